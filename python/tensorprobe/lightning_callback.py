"""A callback for the Trainer of Lightning: ``Trainer(callbacks=[TensorProbeCallback()])``."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from tensorprobe._callback import Watching

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same under two names
_USED = next((one for one in _PACKAGES if one in sys.modules), _PACKAGES[0])
_Callback: Any = importlib.import_module(_USED).Callback


class TensorProbeCallback(Watching, _Callback):  # type: ignore[misc]
    """Watches each ``fit()`` from its begin to its end.

    Takes what ``watch()`` takes, but for model and optimizer. Loss, learning rate and gradient norm
    are recorded as the scalars ``loss``, ``lr`` and ``grad_norm``. ``session``: of the training
    that runs, or of the last one.
    """

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        optimizers = trainer.optimizers
        optimizer = optimizers[0] if len(optimizers) == 1 else optimizers
        self._begin(pl_module, optimizer, optimizers[-1] if optimizers else None)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Take the loss."""
        if self._numbers is not None:
            self._numbers.loss(loss)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is left."""
        self.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what is left."""
        self.close()
