"""A callback for the Trainer of transformers: ``Trainer(…, callbacks=[TensorProbeCallback()])``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from tensorprobe._config_file import ConfigSource
from tensorprobe._frameworks._living import kind, wrapper_of
from tensorprobe._frameworks._patch import Listener, listen
from tensorprobe._step_numbers import StepNumbers
from tensorprobe.watch import watch

if TYPE_CHECKING:
    from tensorprobe.session import Session


class TensorProbeCallback(TrainerCallback):
    """Watches each training from its begin to its end.

    Takes what ``watch()`` takes, but for model and optimizer. Loss, learning rate and gradient norm
    are recorded as the scalars ``loss``, ``lr`` and ``grad_norm``. ``session``: of the training
    that runs, or of the last one.
    """

    def __init__(self, config: ConfigSource | None = None, **options: Any) -> None:
        self.session: Session | None = None
        self._config = config
        self._options = options
        self._numbers: StepNumbers | None = None
        self._handle: Listener | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin to watch."""
        self.close()
        optimizer = kwargs["optimizer"]
        model = wrapper_of(kwargs["model"])
        self.session = watch(model, optimizer, self._config, **self._options)
        numbers = self._numbers = StepNumbers(self.session, optimizer)

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
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        if self.session is not None:
            self.session.close()
