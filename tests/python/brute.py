"""What a monitor should find, the slow way: plain torch hooks, float64, one statistic at a time.

Rows are kept under (kind, row name, step, micro step) as the CSV files and the journal name them.
Values of inputs, outputs, parameters and moments and gradients of outputs are taken from the very
tensors of the watched run. Gradients of inputs come from a twin: the same weights, no activation in
place, torch's full backward hooks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import math
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import models
import tensorprobe

EPS = 1e-8

Key = tuple[str, str, int, int]  # kind, row name, step, micro step
Side = Literal["input", "output"]


@dataclass(frozen=True)
class Row:
    """One tensor's statistics, or, when `twin` is kept, the tensor to compare loosely with."""

    stats: dict[str, float | int]
    dtype: str
    shape: tuple[int, ...]
    call: int
    twin: Tensor | None = None
    contiguous: bool = True
    values: Tensor | None = None


def statistics(tensor: Tensor, eps: float = EPS) -> dict[str, float | int]:
    """Compute every field of a record, and norm and mean as they are shown."""
    x = tensor.detach().reshape(-1).double()
    size = x.abs()
    finite = x[torch.isfinite(x)]
    tiny = torch.finfo(tensor.dtype).tiny
    nan = math.nan
    known = size[~torch.isnan(size)]
    mean = finite.mean() if len(finite) else torch.tensor(nan)
    return {
        "count": x.numel(),
        "nan": int(torch.isnan(x).sum()),
        "pos_inf": int((x == math.inf).sum()),
        "neg_inf": int((x == -math.inf).sum()),
        "zeros": int((size < eps).sum()),
        "subnormal": int(((size > 0) & (size < tiny)).sum()),
        "min": float(x.min()) if len(x) else nan,
        "max": float(x.max()) if len(x) else nan,
        "finite_min": float(finite.min()) if len(finite) else nan,
        "finite_max": float(finite.max()) if len(finite) else nan,
        "abs_max": float(known.max()) if len(known) else nan,
        "sum": float(finite.sum()),
        "sum_abs": float(finite.abs().sum()),
        "sum_sq": float((finite * finite).sum()),
        "m2": float(((finite - mean) ** 2).sum()) if len(finite) else 0.0,
        "norm": float(torch.linalg.vector_norm(x)),
        "mean": float(x.mean()) if len(x) else nan,
    }


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Find the floating-point tensors in arguments or in a result."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors_of(item)


def row_name(module: str, side: Side, slot: int, slots: int, call: int) -> str:
    name = f"{module}.{side}" + (f"_{slot}" if slots > 1 else "")
    return name + (f"#{call}" if call else "")


def inputs_of(
    module: str, args: Any, kwargs: dict[str, Any], call: int
) -> Iterator[tuple[str, Tensor]]:
    """Name positional inputs by number among all, those given by keyword by that."""
    slots = len(list(tensors_of((args, kwargs))))
    for slot, tensor in enumerate(tensors_of(args)):
        yield row_name(module, "input", slot, slots, call), tensor
    for keyword, value in kwargs.items():
        parts = list(tensors_of(value))
        for part, tensor in enumerate(parts):
            name = f"{module}.input_{keyword}" + (f".{part}" if len(parts) > 1 else "")
            yield name + (f"#{call}" if call else ""), tensor


@dataclass
class Recorder:
    """Attach it with `with recorder.watching(model, optimizer)`; `rows` is what it found."""

    setting: models.Setting
    rows: dict[Key, Row] = field(default_factory=dict)
    step: int = 0
    micro: int = -1
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, name: str, tensor: Tensor, call: int = 0, micro: int = 0) -> None:
        key = (kind, name, self.step, micro)
        assert key not in self.rows, key
        values = tensor.detach().clone()
        self.rows[key] = Row(
            statistics(tensor),
            str(tensor.dtype),
            tuple(tensor.shape),
            call,
            contiguous=tensor.is_contiguous(),
            values=values.reshape(-1),
        )

    @contextlib.contextmanager
    def watching(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
        """Yield what is to be called with every training batch before the model is."""
        with torch.random.fork_rng(devices=[]):
            self.twin = self.setting.build(in_place=False).train()
        handles: list[Any] = []
        for name, module in model.named_modules():
            handles += self._watch_module(name, module)
        names = dict(model.named_parameters(remove_duplicate=False))
        handles += [
            optimizer.register_step_pre_hook(lambda *_: self._before_step(optimizer, names)),
            optimizer.register_step_post_hook(lambda *_: self._after_step(names)),
        ]
        try:
            yield lambda batch: self._run_twin(model, batch)
        finally:
            for handle in handles:
                handle.remove()

    def _watch_module(self, name: str, module: nn.Module) -> list[Any]:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            if not (torch.is_grad_enabled() and module.training):
                return
            if name == "":
                self.micro += 1
                self.calls.clear()
            call = self.calls[name]
            for title, tensor in inputs_of(name, args, kwargs, call):
                self.add("actv", title, tensor, call, self.micro)
                if not tensor.requires_grad:
                    # The twin's hooks make a gradient even for what needs none (a mask).
                    self.rows.pop(("actv_grad", title, self.step, self.micro), None)

        def after(_: nn.Module, __: Any, result: Any) -> None:
            if not (torch.is_grad_enabled() and module.training):
                return
            call, micro = self.calls[name], self.micro
            self.calls[name] += 1
            found = list(tensors_of(result))
            for slot, tensor in enumerate(found):
                title = row_name(name, "output", slot, len(found), call)
                self.add("actv", title, tensor, call, micro)
                if tensor.requires_grad:

                    def on_gradient(gradient: Tensor, title: str = title) -> None:
                        self.add("actv_grad", title, gradient, call, micro)

                    tensor.register_hook(on_gradient)  # type: ignore[no-untyped-call]

        return [
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after),
        ]

    def _run_twin(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        """Run the same forward and backward, same random numbers, for gradients of inputs."""
        micro = self.micro + 1
        calls: dict[str, list[tuple[int, int]]] = {}
        self.twin.load_state_dict(model.state_dict())
        handles = []
        for name, module in self.twin.named_modules():

            def note(_: nn.Module, args: Any, kwargs: Any, name: str = name) -> None:
                done = calls.setdefault(name, [])
                done.append((len(done), len(list(tensors_of((args, kwargs))))))

            def full(_: nn.Module, grads: Any, __: Any, name: str = name) -> None:
                call, slots = calls[name].pop()  # a backward meets the last call first
                for slot, gradient in enumerate(grads):
                    if gradient is not None:
                        title = row_name(name, "input", slot, slots, call)
                        key = ("actv_grad", title, self.step, micro)
                        assert key not in self.rows, key
                        self.rows[key] = Row(
                            statistics(gradient),
                            str(gradient.dtype),
                            tuple(gradient.shape),
                            call,
                            twin=gradient.detach().clone(),
                        )

            handles.append(module.register_forward_pre_hook(note, with_kwargs=True))
            handles.append(module.register_full_backward_hook(full))
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            # What torch's hooks can't do for the root and the embedding is not asked of them.
            warnings.filterwarnings("ignore", message="(Full|For) backward hook")
            self.setting.loss(self.twin, batch).backward()  # type: ignore[no-untyped-call]
        self.twin.zero_grad()
        for handle in handles:
            handle.remove()

    def _before_step(self, optimizer: torch.optim.Optimizer, names: dict[str, Any]) -> None:
        for name, parameter in names.items():
            if parameter.grad is not None:
                self.add("grad_unreduced", name, parameter.grad)
                self.add("grad_reduced", name, parameter.grad)
            state = optimizer.state.get(parameter, {})
            for moment in ("exp_avg", "exp_avg_sq"):
                if moment in state:
                    self.add(moment, name, state[moment])
            self.add("param_origin", name, parameter)

    def _after_step(self, names: dict[str, Any]) -> None:
        for name, parameter in names.items():
            self.add("param_updated", name, parameter)
        self.step += 1
        self.micro = -1


@dataclass
class Watched:
    """A training that the monitor and brute force watched together."""

    outcome: models.Outcome
    expected: dict[Key, Row]
    directory: Path
    counters: dict[str, int]


OPS = ["norm", "min", "max", "mean", "zeros", "nans", "id", "shape", "dtype"]


@functools.cache
def watched_run(setting: models.Setting) -> Watched:
    """Train with everything on, once for all tests that look at the run."""
    recorder = Recorder(setting)
    folder = tempfile.mkdtemp(prefix="tensorprobe-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    kept: list[Any] = []

    @contextlib.contextmanager
    def both(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[Any]:
        config = {"ops": OPS, "eps": EPS, "strict": True}
        with (
            tensorprobe.watch(model, optimizer, output_dir=folder, config=config) as monitor,
            recorder.watching(model, optimizer) as before_batch,
        ):
            kept.append(monitor)
            yield before_batch

    outcome = models.train(setting, both)
    return Watched(outcome, recorder.rows, Path(kept[0].directory), kept[0].counters())
