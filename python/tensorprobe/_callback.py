"""What the callbacks for trainers share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensorprobe._config_file import ConfigSource
from tensorprobe._frameworks._living import wrapper_of
from tensorprobe._step_numbers import StepNumbers
from tensorprobe.watch import watch

if TYPE_CHECKING:
    from tensorprobe.session import Session


class Watching:
    """One session at a time, and the numbers of its steps."""

    def __init__(self, config: ConfigSource | None = None, **options: Any) -> None:
        self.session: Session | None = None
        self._config = config
        self._options = options
        self._numbers: StepNumbers | None = None

    def _begin(self, model: Any, optimizer: Any, first: Any) -> StepNumbers:
        """Watch the model; first: the optimizer whose learning rate is recorded."""
        self.close()
        self.session = watch(wrapper_of(model), optimizer, self._config, **self._options)
        self._numbers = StepNumbers(self.session, first)
        return self._numbers

    def close(self) -> None:
        """Take all hooks back, also where the training ended with an exception."""
        if self._numbers is not None:
            self._numbers.close()
            self._numbers = None
        if self.session is not None:
            self.session.close()
