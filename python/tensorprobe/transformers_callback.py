"""A callback for the Trainer of transformers: ``Trainer(…, callbacks=[TensorProbeCallback()])``."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from tensorprobe._callback import Watching
from tensorprobe._config_file import ConfigSource
from tensorprobe._frameworks._living import kind
from tensorprobe._frameworks._patch import Listener, listen


class TensorProbeCallback(Watching, TrainerCallback):
    """Watches each training from its begin to its end.

    Takes what ``watch()`` takes, but for model and optimizer. Loss, learning rate and gradient norm
    are recorded as the scalars ``loss``, ``lr`` and ``grad_norm``. ``session``: of the training
    that runs, or of the last one.
    """

    def __init__(self, config: ConfigSource | None = None, **options: Any) -> None:
        super().__init__(config, **options)
        self._handle: Listener | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        optimizer = kwargs["optimizer"]
        numbers = self._begin(kwargs["model"], optimizer, optimizer)

        def backward(accelerator: Any, loss: Any, *_: Any, **__: Any) -> None:
            if any(one is optimizer for one in accelerator._optimizers):
                numbers.loss(loss)

        of = kind("accelerate.accelerator", "Accelerator")
        self._handle = listen(of, "backward", before=backward)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Write what is left."""
        self.close()

    def close(self) -> None:
        """Take all hooks back, also where the training ended with an exception."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        super().close()
