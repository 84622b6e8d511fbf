"""The class by which users of KJ600 and the msprobe Monitor know it."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from tensorprobe import _core
from tensorprobe._arguments import check_model, kind
from tensorprobe._config_file import ConfigSource, config_source, is_watched
from tensorprobe._optimizers import Metrics, torch_optimizer
from tensorprobe._ranks import launch_id, pipeline_stage, this_rank
from tensorprobe._resume import check_start, start_at
from tensorprobe.journal import Alert, Incident
from tensorprobe.session import Session

if TYPE_CHECKING:
    import torch

    Model = torch.nn.Module | Sequence[torch.nn.Module]

# What the ancestors' opt_ty calls optimizers.
_KINDS = (
    "Megatron_Float16OptimizerWithFloat16Params",
    "Megatron_DistributedOptimizer",
    "Megatron_FP32Optimizer",
    "DeepSpeedZeroOptimizer_Stage0",
    "DeepSpeedZeroOptimizer_Stage1_or_2",
    "DeepSpeedZeroOptimizer_Stage3",
)
_OLDER_ORDER = ("grad_acc_steps", "optimizer", "dp_group", "tp_group")
_NEWER_ORDER = ("optimizer", "grad_acc_steps", "tp_group", "dp_group", "start_iteration")


class _SetWrappedOptimizer:
    """``set_wrapped_optimizer(optimizer)``, which may be called on the class and on an instance.

    Names the optimizer whose ``step`` ends a step, before or after hooking. On the class: of every
    monitor that has none of its own.
    """

    def __get__(self, instance: TrainerMon | None, owner: type[TrainerMon]) -> Callable[..., None]:
        def set_wrapped_optimizer(_wrapped_optimizer: Any) -> None:
            if instance is None:
                TrainerMon._share_optimizer(_wrapped_optimizer)
            else:
                instance._use_optimizer(_wrapped_optimizer)

        return set_wrapped_optimizer


def _check_monitor(monitor: object, name: str) -> None:
    """Raise TypeError when the method was called on the class: then self is the first argument."""
    if not isinstance(monitor, TrainerMon):
        raise TypeError(
            f"TrainerMon.{name}(…) was called on the class, with {kind(monitor)}: "
            f"write TrainerMon(config).{name}(model, optimizer)"
        )


class TrainerMon:
    """Watches a model as a JSON configuration says.

    config_file_path: the path of a JSON file, or the same as a dict. process_group: that of the
    pipeline; this process's place in it is the pipeline stage. params_have_main_grad: parameters
    may carry their gradient in ``main_grad`` (as Megatron does); where it is absent ``grad`` is
    read. opt_ty: what the ancestors call the optimizer; it is found out anyway, and a difference is
    said. resume: the id of an earlier run, or the directory of one of its ranks, to go on in, as
    ``append_output`` does by times. Raises ConfigError (a ValueError) when the configuration is
    wrong.
    """

    _shared_optimizer: ClassVar[weakref.ref[torch.optim.Optimizer] | None] = None
    _instances: ClassVar[weakref.WeakSet[TrainerMon]] = weakref.WeakSet()

    def __init__(
        self,
        config_file_path: ConfigSource,
        process_group: Any = None,
        params_have_main_grad: bool = True,
        opt_ty: str | None = None,
        *,
        output_dir: str | os.PathLike[str] | None = None,
        rank: int | None = None,
        run_id: str | None = None,
        resume: str | os.PathLike[str] | None = None,
    ) -> None:
        if isinstance(process_group, bool):
            raise TypeError(
                "process_group is a process group or None; "
                f"write params_have_main_grad={process_group}"
            )
        self._config_file: str | None = None
        if is_watched():
            if isinstance(config_file_path, dict):
                raise ValueError(
                    "DYNAMIC_MONITOR is set: TrainerMon needs the path of a file that it can watch"
                )
            self._config_file = os.fspath(config_file_path)
        self._rank = this_rank() if rank is None else rank
        self._params_have_main_grad = params_have_main_grad
        self._own_optimizer: Any = None
        self._opt_ty = opt_ty
        self._session: Session | None = None
        self._monitor = _core.Monitor(
            rank=self._rank,
            output_dir=None if output_dir is None else os.fspath(output_dir),
            run_id=launch_id() if run_id is None else run_id,
            pp_stage=pipeline_stage(process_group),
            resume=resume,
            **config_source(config_file_path),
        )
        TrainerMon._instances.add(self)

    # ---- attaching ----

    def hook_modules(self, model: Model, grad_acc_steps: int = 1) -> None:
        """Starts watching. A step ends with the optimizer of ``set_wrapped_optimizer``.

        That may be called later, too; until then a step ends with the first optimizer that steps
        and has a parameter of this model. grad_acc_steps is accepted for its callers' sake: micro
        steps are counted by the model's forwards.
        """
        _check_monitor(self, "hook_modules")
        self._attach(model, {})

    def set_monitor(self, model: Model, *args: Any, **kwargs: Any) -> None:
        """Starts watching; the optimizer's ``step`` ends a step.

        ``(model, optimizer, grad_acc_steps=1, tp_group=None, dp_group=None, start_iteration=0)``,
        or the older order ``(model, grad_acc_steps=1, optimizer=None, dp_group=None,
        tp_group=None)``, which is told by its second argument, a number. model: several are the
        chunks of a virtual pipeline. start_iteration: the number of the first step. grad_acc_steps
        is accepted for its callers' sake. dp_group, tp_group: reduced gradients that the processes
        of a group share are recorded by the first of them alone.
        """
        _check_monitor(self, "set_monitor")
        given = self._in_order("set_monitor", args, kwargs)
        self._attach(model, given)

    def monitor_gnorm_with_ad(self, model: Model, *args: Any, **kwargs: Any) -> None:
        """The older name of ``set_monitor``, with the same arguments."""
        _check_monitor(self, "monitor_gnorm_with_ad")
        given = self._in_order("monitor_gnorm_with_ad", args, kwargs)
        self._attach(model, given)

    @staticmethod
    def _in_order(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        order = _OLDER_ORDER if args and isinstance(args[0], (int, float)) else _NEWER_ORDER
        if len(args) > len(order):
            raise TypeError(f"{name}() takes at most {len(order) + 1} positional arguments")
        given = dict(zip(order, args, strict=False))
        for key, value in kwargs.items():
            if key not in _NEWER_ORDER:
                raise TypeError(
                    f"{name}() has no argument {key!r}; it has {', '.join(_NEWER_ORDER)}"
                )
            if key in given:
                raise TypeError(f"{name}() got two values for {key!r}")
            given[key] = value
        return given

    def _attach(self, model: Model, given: dict[str, Any]) -> None:
        optimizer, start_iteration = given.get("optimizer"), given.get("start_iteration", 0)
        if self._session is not None:
            raise RuntimeError("the monitor has been attached to a model already")
        check_model(model, "set_monitor")
        check_start(start_iteration)
        start_at(self._monitor, start_iteration or None)
        if optimizer is not None:
            self._own_optimizer = optimizer
        shared = TrainerMon._shared_optimizer
        if self._own_optimizer is None and shared is not None:
            optimizer = shared()
        else:
            optimizer = self._own_optimizer
        self._session = Session(
            self._monitor,
            model,
            optimizer,
            rank=self._rank,
            params_have_main_grad=self._params_have_main_grad,
            report=True,
            config_file=self._config_file,
            copies=(given.get("dp_group"), given.get("tp_group")),
        )
        if self._opt_ty in _KINDS:
            self._session.expect_kind(self._opt_ty)

    set_wrapped_optimizer = _SetWrappedOptimizer()

    def _use_optimizer(self, optimizer: Any) -> None:
        self._own_optimizer = optimizer
        if self._session is not None:
            self._session.use_optimizer(optimizer)

    @classmethod
    def _share_optimizer(cls, optimizer: Any) -> None:
        own = torch_optimizer(optimizer)
        TrainerMon._shared_optimizer = weakref.ref(own)
        for one in TrainerMon._instances:
            if one._own_optimizer is None and one._session is not None:
                one._session.use_optimizer(own)

    # ---- now and then ----

    def start(
        self,
        model: Model | None = None,
        optimizer: Any = None,
        *,
        config: ConfigSource | None = None,
    ) -> None:
        """Records from now on, ``collect_times`` steps. To be called between two steps.

        model and optimizer: as for ``set_monitor``, where that hasn't been called. config: a file
        or a dict that takes the place of the configuration. ConfigError when it is wrong; then
        everything goes on as before.
        """
        if model is not None:
            self._attach(model, {"optimizer": optimizer})
        self._attached().start(config)

    def step(self) -> None:
        """Ends the step by hand, for training loops whose optimizer has no ``step`` hooks."""
        self._attached().step()

    def stop(self) -> None:
        """Records nothing from now on, until ``start()``; a step that runs is completed."""
        self._attached().stop()

    # ---- values ----

    @property
    def ops(self) -> list[str]:
        """What the metrics show; the configuration's ``ops`` at first.

        And what the files show from the running step on: a csv file never changes its columns, so
        others go into a part of their own. The journal has every statistic anyway.
        """
        return self._monitor.ops

    @ops.setter
    def ops(self, ops: Sequence[str]) -> None:
        self._monitor.ops = list(ops)

    def generate_wgrad_metrics(self) -> tuple[Metrics, Metrics]:
        """The gradients as they are now, after and before the reduction.

        Each is tag → {op: value}. Read at the call; nothing is recorded. With several processes
        the second is empty: ``grad`` may have been reduced.
        """
        rows = self._attached().gradients()
        reduced = {f"{row}/rank{self._rank}/post_grad": values for row, values in rows.items()}
        if self._monitor.reduced_only:
            return reduced, {}
        unreduced = {
            f"{row}/rank{self._rank}/acc_grad": dict(values) for row, values in rows.items()
        }
        return reduced, unreduced

    def generate_xy_metrics(self) -> tuple[Metrics, Metrics]:
        """The activations and their gradients that the running step has so far.

        Each is tag → {op: value}; empty when a step has just ended.
        """
        actv, actv_grad = self._attached().activations()
        return (
            {f"{row}/rank{self._rank}/actv": values for row, values in actv.items()},
            {f"{row}/rank{self._rank}/actv_grad": values for row, values in actv_grad.items()},
        )

    def log_scalar(self, name: str, value: Any) -> None:
        """Record a number of the step that is open: its loss, a learning rate, anything."""
        if self._session is not None:
            self._session.log_scalar(name, value)
        else:
            self._monitor.log_scalar(name, value)

    def reload_xy(self, xy_distribution: bool = False) -> None:
        """Records activations from the next forward on, or no longer."""
        self._attached().hook_modules(xy_distribution)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, so that ``load_state_dict`` goes on in this directory."""
        return self._attached().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the directory of the run that saved this, with the step it was at."""
        self._attached().load_state_dict(state)

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
        """The number of the open step, as its rows have it; once closed, of the last one."""
        return self._attached().step_number

    def counters(self) -> dict[str, int]:
        """What the monitor knows about itself; after ``close()`` as it was when that began."""
        return self._attached().counters()

    def alerts(self) -> list[Alert]:
        """The alerts that are in the journal by now; complete after ``close()``."""
        return self._attached().alerts()

    def incidents(self) -> list[Incident]:
        """What went wrong, one for each cause, as the journal has it by now."""
        return self._attached().incidents()

    def _repr_html_(self) -> str | None:
        return None if self._session is None else self._session._repr_html_()

    def close(self) -> None:
        """Removes every hook and writes what is left. A second call does nothing."""
        if self._session is not None:
            self._session.close()
        else:
            self._monitor.close()
