"""A callback for the Trainer of Lightning: ``Trainer(callbacks=[TensorProbeCallback()])``."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from tensorprobe._config_file import ConfigSource
from tensorprobe._frameworks._living import wrapper_of
from tensorprobe._step_numbers import StepNumbers
from tensorprobe.watch import watch

if TYPE_CHECKING:
    from tensorprobe.session import Session


_PACKAGES = ("lightning.pytorch", "pytorch_lightning")  # the same under two names
_USED = next((one for one in _PACKAGES if one in sys.modules), _PACKAGES[0])
_Callback: Any = importlib.import_module(_USED).Callback


class TensorProbeCallback(_Callback):  # type: ignore[misc]
    """Watches each ``fit()`` from its begin to its end.

    Takes what ``watch()`` takes, but for model and optimizer. Loss, learning rate and gradient norm
    are recorded as the scalars ``loss``, ``lr`` and ``grad_norm``. ``session``: of the training
    that runs, or of the last one.
    """

    def __init__(self, config: ConfigSource | None = None, **options: Any) -> None:
        self.session: Session | None = None
        self._config = config
        self._options = options
        self._numbers: StepNumbers | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin to watch."""
        self.close()
        optimizers = trainer.optimizers
        optimizer = optimizers[0] if len(optimizers) == 1 else optimizers
        self.session = watch(wrapper_of(pl_module), optimizer, self._config, **self._options)
        self._numbers = StepNumbers(self.session, optimizers[-1] if optimizers else None)

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

    def close(self) -> None:
        """Take all hooks back."""
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        if self.session is not None:
            self.session.close()
