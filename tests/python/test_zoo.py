"""Many kinds of models train with everything on: same bits, every output there, right gradients."""

from __future__ import annotations

import math
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

import tensorprobe
import zoo

pytestmark = pytest.mark.slow

STEPS = 3
CASES = [*zoo.torch_cases(), *zoo.transformers_cases()]

Row = tuple[int, str, int]  # step, module, slot


@dataclass
class Outcome:
    """What a training left: every bit of its state, and what was seen on the way."""

    state: list[Tensor] = field(default_factory=list)
    outputs: Counter[Row] = field(default_factory=Counter)
    input_norms: dict[Row, list[float]] = field(default_factory=lambda: defaultdict(list))
    handing_on: set[str] = field(default_factory=set)  # modules that returned an input


def slot_of(number: int, count: int) -> int:
    return number if count > 1 else -1


class Training:
    """Three steps from the same start."""

    def __init__(self, case: zoo.Case) -> None:
        torch.manual_seed(5)
        torch.set_num_threads(1)
        self.case = case
        self.model = case.build().train()
        args, kwargs = case.batch()
        if any(isinstance(p, nn.UninitializedParameter) for p in self.model.parameters()):
            self.model(*args, **kwargs)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.step = 0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        for self.step in range(STEPS):
            torch.manual_seed(100 + self.step)
            args, kwargs = self.case.batch()
            self.optimizer.zero_grad()
            zoo.any_loss(self.model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
        for parameter in self.model.parameters():
            self.outcome.state.append(parameter.detach().clone())
            self.outcome.state += [v.clone() for v in self.optimizer.state[parameter].values()]
        self.outcome.state += [buffer.clone() for buffer in self.model.buffers()]
        self.outcome.state.append(torch.get_rng_state())
        return self.outcome

    def count_outputs(self) -> Any:
        """Count every floating-point tensor that a module returns, by torch's own global hook."""
        names = {module: name for name, module in self.model.named_modules()}

        def count(module: nn.Module, args: Any, output: Any) -> None:
            if module in names:
                if {id(x) for x in zoo.floats(args)} & {id(x) for x in zoo.floats(output)}:
                    self.outcome.handing_on.add(names[module])
                tensors = zoo.floats(output)
                for number in range(len(tensors)):
                    row = self.step, names[module], slot_of(number, len(tensors))
                    self.outcome.outputs[row] += 1

        return register_module_forward_hook(count)

    def full_hooks(self) -> None:
        """Have torch's full backward hooks tell the gradients of inputs.

        They make a tensor of each argument of its own; here one tensor has one gradient, shown at
        its first place.
        """
        for name, module in self.model.named_modules():
            places: list[Any] = []

            def before(_: nn.Module, args: Any, kwargs: Any, places: list[Any] = places) -> None:
                known = [id(tensor) for tensor in zoo.floats((args, kwargs))]
                places[:] = [
                    slot_of(known.index(id(arg)), len(known))
                    if isinstance(arg, Tensor) and arg.is_floating_point() and arg.requires_grad
                    else None
                    for arg in args
                ]

            def full(
                _: nn.Module, grads: Any, __: Any, name: str = name, places: list[Any] = places
            ) -> None:
                sums: dict[int, Tensor] = {}
                for place, grad in zip(places, grads, strict=False):
                    if place is not None and grad is not None:
                        sums[place] = sums[place] + grad if place in sums else grad
                for slot, total in sums.items():
                    norm = float(torch.linalg.vector_norm(total.double()))
                    self.outcome.input_norms[self.step, name, slot].append(norm)

            module.register_forward_pre_hook(before, with_kwargs=True)
            module.register_full_backward_hook(full)


def watched(case: zoo.Case, folder: Path) -> tuple[Outcome, Outcome]:
    """What the training left and what was counted beside it; what the monitor recorded."""
    training = Training(case)
    config = {"format": "api", "strict": True}
    counting = training.count_outputs()
    try:
        with tensorprobe.watch(
            training.model, training.optimizer, output_dir=folder, config=config
        ) as session:
            outcome = training.run()
    finally:
        counting.remove()
    assert session.counters()["errors"] == 0
    found = Outcome()
    for step in tensorprobe.Journal(session.directory):
        for record in step.records:
            row = step.step, record["name"], record["slot"]
            if record["quantity"] == "actv" and record["role"] == "output":
                found.outputs[row] += 1
            if record["quantity"] == "actv_grad" and record["role"] == "input":
                found.input_norms[row].append(record["norm"])
    return outcome, found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_model_trains_as_before_and_everything_is_there(case: zoo.Case, tmp_path: Path) -> None:
    plain = Training(case).run()
    outcome, found = watched(case, tmp_path)
    assert len(plain.state) == len(outcome.state)
    assert all(torch.equal(a, b) for a, b in zip(plain.state, outcome.state, strict=True))
    assert outcome.outputs == found.outputs
    assert outcome.outputs

    twin = Training(case)
    twin.full_hooks()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(Full|For) backward hook")
        if not case.full:
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                twin.run()
            return
        expected = twin.run().input_norms
    for row, norms in expected.items():
        ours = found.input_norms.get(row, [])
        # An input that goes out as it came has a row where one use of it is left.
        if ours or row[1] not in outcome.handing_on:
            assert sorted(ours) == pytest.approx(sorted(norms), rel=1e-5, abs=1e-12), row
    assert all(math.isfinite(n) for norms in found.input_norms.values() for n in norms)


def test_there_are_enough_of_them() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 60
