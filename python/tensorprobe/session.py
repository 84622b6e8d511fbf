"""A monitor attached to a model and its optimizer."""

from __future__ import annotations

import atexit
import contextlib
import os
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tensorprobe import _core
from tensorprobe._targets import select_modules, select_parameters
from tensorprobe.journal import Alert, Journal

if TYPE_CHECKING:
    import torch


class Session:
    """Hooks on one model and one optimizer, from construction to ``close()``.

    A context manager that need not be used as one: what is still open at interpreter exit is
    closed then. In a forked child every method does nothing.
    """

    def __init__(
        self,
        monitor: _core.Monitor,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        params_have_main_grad: bool = False,
    ) -> None:
        self._monitor = monitor
        self._pid = os.getpid()
        self._handles: list[Any] = []
        self._closed = False
        self._scripted: list[str] = []
        self._directory: str = monitor.directory
        try:
            self._attach(model, optimizer, params_have_main_grad)
            if self._scripted:
                count = len(self._scripted)
                _warn(f"'{self._scripted[0]}' is not recorded: it is scripted ({count} in all)")
        except BaseException:
            self._detach()
            monitor.close()
            raise
        atexit.register(self._close_at_exit)

    def _attach(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        params_have_main_grad: bool,
    ) -> None:
        config = self._monitor.config
        recorded = select_modules(model, config)
        if all(module is not model for _, module in recorded):
            self._hook_module("", model, model, recorded=False)  # it counts the micro steps
        for name, module in recorded:
            self._hook_module(name, module, model, recorded=True)
        parameters: list[tuple[str, torch.nn.Parameter]] = []
        if config["wg_distribution"] or config["mv_distribution"] or config["param_distribution"]:
            parameters = select_parameters(model, config["targets"])
        hook = self._monitor.optimizer_hook(parameters, params_have_main_grad, 0)
        self._handles.append(optimizer.register_step_pre_hook(hook.step_pre))
        self._handles.append(optimizer.register_step_post_hook(hook.step_post))

    def _hook_module(
        self, name: str, module: torch.nn.Module, model: torch.nn.Module, *, recorded: bool
    ) -> None:
        from torch.jit import ScriptModule

        if isinstance(module, ScriptModule):
            self._scripted.append(name)
            return
        hook = self._monitor.module_hook(module, name, 0, module is model, recorded)
        self._handles.append(module.register_forward_pre_hook(hook.forward_pre, with_kwargs=True))
        if recorded:
            self._handles.append(module.register_forward_hook(hook.forward, with_kwargs=True))

    def _detach(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

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
        """How many optimizer steps have ended."""
        return self.counters()["steps"]

    def counters(self) -> dict[str, int]:
        """What the monitor knows about itself; after ``close()`` as it was when that began."""
        return self._monitor.counters()

    def alerts(self) -> list[Alert]:
        """The alerts that are in the journal by now; complete after ``close()``."""
        try:
            return Journal(self._directory).alerts()
        except FileNotFoundError:
            return []

    def step(self) -> None:
        """Ends the step by hand, for training loops whose optimizer has no ``step`` hooks."""
        if self._pid == os.getpid():
            self._monitor.step()

    def close(self) -> None:
        """Removes every hook and writes what is left. A second call does nothing.

        Warns when not everything could be written.
        """
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        atexit.unregister(self._close_at_exit)
        self._detach()
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
    """Warn the caller's caller; warnings that were turned into errors don't end the training."""
    with contextlib.suppress(RuntimeWarning):
        warnings.warn(f"tensorprobe: {text}", RuntimeWarning, stacklevel=3)
