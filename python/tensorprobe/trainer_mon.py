"""The class by which users of KJ600 and the msprobe Monitor know it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._ranks import this_rank
from tensorprobe.journal import Alert
from tensorprobe.session import Session

if TYPE_CHECKING:
    import torch


class TrainerMon:
    """Watches a model as a JSON configuration says.

    config: the path of a JSON file, or the same as a dict. params_have_main_grad: parameters may
    carry their gradient in ``main_grad`` (as Megatron does); where it is absent ``grad`` is read.
    Raises ConfigError (a ValueError) when the configuration is wrong.
    """

    def __init__(
        self,
        config: str | os.PathLike[str] | dict[str, Any],
        params_have_main_grad: bool = True,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        run_id: str | None = None,
    ) -> None:
        self._params_have_main_grad = params_have_main_grad
        self._session: Session | None = None
        self._monitor = _core.Monitor(
            config_path=None if isinstance(config, dict) else os.fspath(config),
            config_json=json.dumps(config) if isinstance(config, dict) else None,
            rank=this_rank() if rank is None else rank,
            output_dir=None if output_dir is None else os.fspath(output_dir),
            run_id=run_id,
        )

    def set_monitor(
        self,
        model: torch.nn.Module | list[torch.nn.Module],
        optimizer: torch.optim.Optimizer,
        grad_acc_steps: int = 1,
    ) -> None:
        """Starts watching; the optimizer's ``step`` ends a step.

        grad_acc_steps is accepted for its callers' sake: micro steps are counted by the model's
        forwards.
        """
        if self._session is not None:
            raise RuntimeError("set_monitor has been called already")
        if isinstance(model, list):
            if len(model) != 1:
                raise ValueError("a list of models must hold exactly one")
            model = model[0]
        self._session = Session(
            self._monitor, model, optimizer, params_have_main_grad=self._params_have_main_grad
        )

    def _attached(self) -> Session:
        if self._session is None:
            raise RuntimeError("call set_monitor(model, optimizer) first")
        return self._session

    @property
    def directory(self) -> str:
        """Where this rank's files are; it is made with the first step."""
        return self._attached().directory

    @property
    def step_number(self) -> int:
        """How many optimizer steps have ended."""
        return self._attached().step_number

    def counters(self) -> dict[str, int]:
        """What the monitor knows about itself; after ``close()`` as it was when that began."""
        return self._attached().counters()

    def alerts(self) -> list[Alert]:
        """The alerts that are in the journal by now; complete after ``close()``."""
        return self._attached().alerts()

    def close(self) -> None:
        """Removes every hook and writes what is left. A second call does nothing."""
        if self._session is not None:
            self._session.close()
        else:
            self._monitor.close()
