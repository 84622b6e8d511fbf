"""A monitor attached to a model and its optimizer."""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from tensorprobe import _core, _frameworks, _html
from tensorprobe._collectives import Collectives
from tensorprobe._config_file import ConfigFile, ConfigSource, config_source
from tensorprobe._limits import listen_to_script, warn_of_depth, warn_of_lost_steps
from tensorprobe._messages import complain, say, warn
from tensorprobe._optimizers import Metrics, Optimizers, on_step
from tensorprobe._ranks import world_size
from tensorprobe._resume import load_state, state_of
from tensorprobe._structure import StructurePrinter
from tensorprobe._targets import Selection, WatchedModule, in_functional_call
from tensorprobe._zoom import Zoom
from tensorprobe.journal import Alert, Incident, Journal

if TYPE_CHECKING:
    import torch


class _Place(NamedTuple):
    """What a module's hooks are made for."""

    module: int
    """Its id; who has the place holds the module, too."""
    name: str
    vpp_stage: int
    recorded: bool
    target: int


class _Hooked(NamedTuple):
    module: torch.nn.Module
    hook: _core.ModuleHook
    handles: list[Any]


class Session:
    """Hooks on one model and one optimizer, from construction to ``close()``.

    A context manager that need not be used as one: what is still open at interpreter exit is
    closed then. In a forked child every method does nothing.
    """

    def __init__(
        self,
        monitor: _core.Monitor,
        model: torch.nn.Module | Sequence[torch.nn.Module],
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
        *,
        rank: int = 0,
        params_have_main_grad: bool = False,
        report: bool = False,
        config_file: str | None = None,
        copies: tuple[Any, Any] = (None, None),
    ) -> None:
        """Attach the hooks.

        model: several are the chunks of a virtual pipeline, in order. optimizer: of several, the
        last one ends the step; None: the first one that steps and has a parameter of the model.
        report: say what is monitored. config_file: is looked at after each step; nothing is
        recorded until it switches ``dynamic_on`` on. copies: the groups of data and of tensor
        parallelism whose first process alone records the reduced gradients that all have.
        """
        self._monitor = monitor
        self._pid = os.getpid()
        self._rank = rank
        self._module_handles: list[Any] = monitor.collector_handles
        self._step_handles: list[Any] = []
        self._hooked: dict[_Place, _Hooked] = {}
        self._xy_is_hooked = False
        self._printer: StructurePrinter | None = None
        self._structure_is_printed = False
        self._closed = False
        self._has_warned_of_closed = False
        self._end_is_told = False
        self._scripted: list[str] = []
        self._listeners: list[Any] = []
        self._directory: str = monitor.directory
        from tensorprobe._compile import CompileWatch, original

        chunks = list(model) if isinstance(model, Sequence) else [model]
        self._chunks = [original(chunk) for chunk in chunks]
        self._compile = CompileWatch()
        self._collectives = Collectives(monitor, self.close)
        self._optimizer: Any = None
        self._expected_kind: str | None = None
        self._expected: list[Any] = []  # what tells of a framework's optimizer that is to come
        self._optimizers = Optimizers(
            monitor,
            params_have_main_grad,
            lambda: self._selection,
            lambda: bool(self._module_handles),
            lambda: (self._selected, self._is_lowest_rank),
        )
        self._optimizers.have_copies(*copies)
        self._zoom = Zoom(
            monitor, self._widen, lambda: self._watched_modules()[1], self._optimizers.with_state
        )
        self._may_report = report
        self._config_file = None if config_file is None else ConfigFile(config_file)
        self._is_on = config_file is None
        self._take_config()
        ranks = self._config["module_ranks"]
        if not self._selected and rank == 0 and min(ranks) >= world_size():
            complain(
                f"module_ranks {ranks} have none of the ranks of this launch (0 to "
                f"{world_size() - 1}): nothing of the model is recorded"
            )
        if config_file is not None and self._report:
            say(f"> waiting for a change of {config_file} that has dynamic_on true.")
        try:
            if self._config_file is not None:
                monitor.pause()
            elif self._selected:
                self._selection.warn_of_strangers()
                self.hook_modules(self._config["xy_distribution"])
            self.use_optimizer(optimizer)
            self._listeners.append(listen_to_script())
            if self._scripted:
                count = len(self._scripted)
                _warn(f"'{self._scripted[0]}' is not recorded: it is scripted ({count} in all)")
        except BaseException:
            self._detach()
            monitor.close()
            raise
        atexit.register(self._close_at_exit)

    def _take_config(self) -> None:
        self._config = self._monitor.config
        ranks = self._config["module_ranks"]
        self._selected = not ranks or self._rank in ranks
        self._is_lowest_rank = self._rank == (min(ranks) if ranks else 0)
        self._report = self._may_report and self._is_lowest_rank
        self._select()
        self._collectives.configure(self._config, aloud=self._is_lowest_rank)

    def _select(self) -> _frameworks.Adapter | None:
        """Find out what the configuration means in the model as it is now."""
        adapter = _frameworks.find(self._chunks, self._optimizer)
        self._selection = Selection(self._chunks, self._config, self._monitor.matches, adapter)
        return adapter

    def start(self, config: ConfigSource | None = None) -> None:
        """Record from now on, ``collect_times`` steps. To be called between two steps.

        config: a file or a dict that takes the place of the configuration. ConfigError when it is
        wrong; then everything goes on as before.
        """
        if self._pid != os.getpid():
            return
        if config is not None:
            self._monitor.configure(**config_source(config))
            self._take_config()
        self._monitor.resume()
        self._begin()
        if self._wants_structure() and not self._looks_at_step_ends:
            self._hook_step_end(self._optimizers.last)

    def stop(self) -> None:
        """Record nothing from now on, until ``start()``; a step that runs is completed."""
        if self._pid != os.getpid():
            return
        self._is_on = False
        self._monitor.pause()
        if not self._monitor.collecting:
            self._unhook_modules()

    def _begin(self) -> None:
        """Attach anew what the configuration may have changed, but for the optimizer's hooks."""
        self._is_on = True
        self._end_is_told = False
        self._optimizers.watch()
        if self._selected:
            self._selection.warn_of_strangers()
            self.hook_modules(self._config["xy_distribution"])
        else:
            self._unhook_modules()
        self._make_printer()

    def _reload(self) -> None:
        """Do what the configuration's file says, if it has changed."""
        if self._config_file is None or not self._config_file.has_changed():
            return
        step = self._monitor.open_step
        self._monitor.configure(config_path=self._config_file.path)
        self._take_config()
        if self._config["dynamic_on"]:
            self._monitor.resume()
            self._begin()
            if self._report:
                before = f"config is updated at step{step - 1}"
                say(f"> {before}, will start new hook at step{step}.")
        else:
            was_on = self._is_on and not self._end_is_told
            self.stop()
            if was_on and self._report:
                say(f"> config is updated at step{step - 1}, monitoring stops.")

    def hook_modules(self, xy_distribution: bool) -> None:
        """Record activations from now on, or no longer; with ``all_xy`` and without targets all."""
        if not self._selected:
            return
        self._unhook_modules()
        self._xy_is_hooked = xy_distribution
        targets = self._config["targets"]
        everything, watched = self._watched_modules()
        warn_of_depth(one.name for one in watched)
        self._hook_watched(watched, {})
        self._compile.start()
        self._monitor.tell(self._refresh, self._warn_of_silence)
        self._collectives.watch(self._module_handles)
        if self._report and xy_distribution:
            for one in watched:
                stage_name = f"{one.vpp_stage}:" if len(self._chunks) > 1 else ""
                name = one.name or "the model"
                say(f"> {stage_name}{name} is monitored successfully")
            wanted = len(watched) if everything else len(targets)
            say(f"> {len(watched)} out of {wanted} modules are monitored.")

    def _watched_modules(self) -> tuple[bool, list[WatchedModule]]:
        """Whether these are all modules, and which they are."""
        everything = self._config["all_xy"]
        if not self._config["xy_distribution"]:
            # the default of who names no module
            everything = everything or self._config["targets"] == [""]
        return everything, self._selection.modules(everything) if self._xy_is_hooked else []

    def _hook_watched(self, watched: list[WatchedModule], known: dict[_Place, _Hooked]) -> None:
        """Hook these and the roots, which count the micro steps; known ones have hooks already."""
        hooked = {id(one.module) for one in watched}
        for stage, chunk in enumerate(self._chunks):
            if id(chunk) not in hooked:
                self._hook_module(known, chunk, "", stage, recorded=False)
        for one in watched:
            self._hook_module(
                known, one.module, one.name, one.vpp_stage, recorded=True, target=one.target
            )

    def _refresh(self) -> bool:
        """Hook what the model consists of now. What has stayed keeps its hooks.

        False: it can't be told yet, as the parameters are another's for the time of a call.
        """
        if self._closed or not self._selected:
            return True
        if in_functional_call():
            return False
        self._optimizers.watch(self._select())
        before, self._hooked = self._hooked, {}
        self._module_handles.clear()
        self._hook_watched(self._watched_modules()[1], before)
        for place, gone in before.items():
            if place not in self._hooked:
                self._remove(gone.handles)
        self._compile.keep({one.hook for one in self._hooked.values()})
        self._compile.start()
        self._collectives.watch(self._module_handles)
        return True

    def _widen(self, on: bool) -> bool:
        """Hook everything for a while, or what is configured again. False: that can't be."""
        if self._closed or (on and (not self._module_handles or self._compile.is_used)):
            return False
        if on:
            self._xy_was_hooked = self._xy_is_hooked
        self._config = self._monitor.config
        self._xy_is_hooked = on or self._xy_was_hooked
        if not self._module_handles:  # it has been stopped meanwhile
            self._select()
            return False
        return self._refresh()

    def _warn_of_silence(self) -> None:
        """Warn of targets that match modules of which none has been called in the first step.

        And of gradients that nobody has wrapped by now to be read before they are reduced.
        """
        self._optimizers.warn_of_reduction()
        fired: dict[int, bool] = {}
        for place, hooked in self._hooked.items():
            if place.recorded:
                fired[place.target] = fired.get(place.target, False) or hooked.hook.fired
        silent = [target for target, yes in fired.items() if not yes]
        if not silent:
            return
        names = [repr(self._config["targets"][target]) for target in silent[:4] if target >= 0]
        more = f" and {len(silent) - 4} more" if len(silent) > 4 else ""
        what = (
            f"targets that matched but were never called: {', '.join(names)}{more}"
            if names
            else "no module of the model was called"
        )
        _warn(
            f"{what}, in a training forward of the first step: was it in eval mode or under "
            "torch.no_grad(), called by another method than model(...), as model.forward(...) or "
            "a method of its own, or not used in this step?"
        )

    def _hook_module(
        self,
        known: dict[_Place, _Hooked],
        module: torch.nn.Module,
        name: str,
        vpp_stage: int,
        *,
        recorded: bool,
        target: int = -1,
    ) -> None:
        from torch.jit import ScriptModule

        if isinstance(module, ScriptModule):
            self._scripted.append(name)
            return
        place = _Place(id(module), name, vpp_stage, recorded, target)
        if place in known:
            self._hooked[place] = known[place]
            self._module_handles.extend(known[place].handles)
            return
        root = module is self._chunks[vpp_stage]
        hook = self._monitor.module_hook(module, name, vpp_stage, root, recorded, target)
        handles = [module.register_forward_pre_hook(hook.forward_pre, with_kwargs=True)]
        if recorded or root:
            # Of the root the end is noticed also when it fails: another forward isn't within it.
            handles.append(
                module.register_forward_hook(hook.forward, with_kwargs=True, always_call=root)
            )
        self._module_handles.extend(handles)
        self._hooked[place] = _Hooked(module, hook, handles)
        self._compile.add(hook, module, name, handles)

    def _unhook_modules(self) -> None:
        self._remove(self._module_handles)
        self._hooked.clear()
        self._compile.stop()

    def use_optimizer(
        self, optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None
    ) -> None:
        """End steps with this optimizer's from now on, instead of with the one before."""
        if self._closed:
            return
        self._remove(self._expected)
        if optimizer is None:
            self._expected = _frameworks.expect(self._chunks, self._use)
        self._use(optimizer)

    def _use(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._optimizers.waits = optimizer is None and bool(self._expected)
        self._optimizers.use(optimizer, self._select())
        self._compare_kinds()
        self._make_printer()
        self._remove(self._step_handles)
        self._step_handles.extend(_frameworks.when_wrapped(lambda: self._chunks, self._look_again))
        self._looks_at_step_ends = False
        if self._config["cc_enable"] or self._config_file is not None:
            before = self._collectives.before_step
            self._step_handles.extend(on_step(self._optimizers.last, before, None))
        if self._config_file is not None or self._wants_structure():
            self._hook_step_end(self._optimizers.last)

    def _look_again(self) -> None:
        """Find out anew whose the model is: somebody has just wrapped it."""
        if not self._closed and self._selected:
            self._optimizers.watch(self._select())

    def _wants_structure(self) -> bool:
        return self._is_on and self._config["print_struct"] and not self._structure_is_printed

    def _make_printer(self) -> None:
        """Have the structure printed at the end of the step, if that is wanted."""
        if self._printer is not None:
            self._printer.remove()
            self._printer = None
        if self._wants_structure() and self._selected:
            path = Path(self._directory).parent / "module_struct" / f"rank{self._rank}"
            self._printer = StructurePrinter(
                self._chunks, path / "module_struct.json", aloud=self._is_lowest_rank
            )

    def _hook_step_end(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Look at the end of each step whether the structure or a new configuration is there."""
        self._looks_at_step_ends = True
        members = self._selection.members() if optimizer is None else set()

        def after(stepped: torch.optim.Optimizer, *_: Any) -> None:
            groups = stepped.param_groups
            ours = not members or any(p in members for group in groups for p in group["params"])
            if not ours or self._pid != os.getpid():
                return
            if self._wants_structure():
                self._print_structure()
            try:
                self._reload()
            except Exception as error:  # whatever it is, training goes on as before
                complain(f"{error}; the configuration is not changed")
            if self._is_on and self._report and not self._module_handles:
                self._tell_end()

        framework = self._optimizers.on_step_end(after)
        if framework is not None:
            members = set()  # its steps are ours, whatever they step with
        handles = on_step(optimizer, None, after) if framework is None else framework
        self._step_handles.extend(handles)

    def _tell_end(self) -> None:
        """Say once that the last step that is collected has ended, and what starts it anew."""
        if self._config_file is not None and not self._end_is_told:
            self._end_is_told = True
            step, path = self._monitor.open_step - 1, self._config_file.path
            say(f"> Finish monitor at step{step}, will start anew when {path} changes.")

    def _print_structure(self) -> None:
        if self._printer is not None:
            if not self._printer.has_seen_a_step():
                return
            self._printer.finish()
        self._structure_is_printed = True
        if self._config["exit_after_struct"]:
            self.close()
            if self._is_lowest_rank:
                print('> the run ends here; "exit_after_struct": false goes on', flush=True)
            raise SystemExit(0)

    @staticmethod
    def _remove(handles: list[Any]) -> None:
        for handle in handles:
            handle.remove()
        handles.clear()

    def _detach(self) -> None:
        """Take every hook back, and let go of the model."""
        self._monitor.tell(None, None)
        self._zoom.detach()
        self._unhook_modules()
        self._optimizers.close()
        self._remove(self._expected)
        self._remove(self._step_handles)
        self._remove(self._listeners)
        if self._printer is not None:
            self._printer.remove()
        self._chunks, self._optimizer = [], None
        self._selection = Selection([], self._config, self._monitor.matches)

    @property
    def directory(self) -> str:
        """Where this rank's files are; it is made with the first step."""
        return self._directory

    @property
    def config(self) -> dict[str, Any]:
        """The validated configuration, as far as hooks use it."""
        return self._monitor.config

    @property
    def step_number(self) -> int:
        """The number of the open step, as its rows have it; once closed, of the last one."""
        return self._monitor.step_number

    def counters(self) -> dict[str, int]:
        """What the monitor knows about itself; after ``close()`` as it was when that began."""
        return self._monitor.counters()

    def alerts(self) -> list[Alert]:
        """The alerts that are in the journal by now; complete after ``close()``."""
        try:
            return Journal(self._directory).alerts()
        except FileNotFoundError:
            return []

    def incidents(self) -> list[Incident]:
        """What went wrong, one for each cause, as the journal has it by now."""
        try:
            return Journal(self._directory).incidents()
        except FileNotFoundError:
            return []

    def _repr_html_(self) -> str | None:
        return _html.shown(
            lambda: _html.monitor(
                self._directory, self.counters(), self.incidents(), not self._closed
            )
        )

    def gradients(self) -> Metrics:
        """Read every watched parameter's gradient as it is now, recording nothing."""
        return self._optimizers.gradients() if self._config["wg_distribution"] else {}

    def expect_kind(self, kind: str) -> None:
        """Say when the optimizer isn't of the kind that the ancestors call so (``opt_ty``)."""
        self._expected_kind = kind
        self._compare_kinds()

    def _compare_kinds(self) -> None:
        found, expected = self._optimizers.kinds(), self._expected_kind
        if expected is None or not found or expected in found:
            return
        self._expected_kind = None  # said once
        complain(
            f"opt_ty is {expected!r}, but the optimizer is {' and '.join(sorted(found))}: that is "
            "what is watched"
        )

    def report(self, report: Callable[[], None]) -> None:
        """Have this called at the end of each step, where ``log_scalar`` still belongs to it."""
        self._optimizers.report(report)

    def gradient_norm(self) -> float | None:
        """The norm that a framework has computed for the step that ends; None: it hasn't."""
        return self._optimizers.norm()

    def take_gradients(self) -> None:
        """Record the gradients as reduced now, and not when the optimizer's step begins.

        For loops in which they are clipped in between: call it after backward().
        """
        if self._pid == os.getpid():
            self._optimizers.take_gradients()

    def activations(self) -> tuple[Metrics, Metrics]:
        """What the running step has recorded so far: activations, and their gradients."""
        found: tuple[Metrics, Metrics] = ({}, {})
        for quantity, stage, row, micro_step, values in self._monitor.activations():
            found[quantity == _core.ACTIVATION_GRAD][f"{stage}:{row}:{micro_step}"] = values
        return found

    def log_scalar(self, name: str, value: Any) -> None:
        """Record a number of the step that is open: its loss, a learning rate, anything.

        value: a number, or a tensor of one element, which is read as it is now. A name that is
        logged several times in a step has the rows ``name``, ``name#1`` … A value that can't be
        recorded gives a warning, once, and so does a call after ``close()``.
        """
        if self._closed and not self._has_warned_of_closed:
            self._has_warned_of_closed = True
            complain(f"log_scalar({name!r}, …) after close(): it isn't recorded")
        self._monitor.log_scalar(name, value)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps: which run it is, and at which step."""
        return state_of(self._monitor, self._directory)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on in the directory of the run that saved this, with the step it was at.

        To be called between two steps, in a new process before the first one. What that run had of
        this step and of later ones no longer counts. Any rank's state will do.
        """
        if self._pid == os.getpid() and not self._closed:
            self._directory = load_state(self._monitor, state)

    def step(self) -> None:
        """Ends the step by hand, for training loops whose optimizer has no ``step`` hooks."""
        if self._pid == os.getpid():
            self._collectives.before_step()
            self._monitor.step()

    def close(self) -> None:
        """Removes every hook and writes what is left. A second call does nothing.

        Warns when not everything could be written.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        warn_of_lost_steps(self._monitor)
        atexit.unregister(self._close_at_exit)
        self._detach()
        self._collectives.tell_unwaited()
        try:
            self._monitor.close()
        except OSError as error:
            _warn(str(error))

    def _close_at_exit(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _warn(text: str) -> None:
    """Warnings that were turned into errors don't end the training."""
    with contextlib.suppress(RuntimeWarning):
        warn(text)
