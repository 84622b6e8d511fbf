"""Watching compiled models: no graph breaks, every value, the same training.

What a module returns, and the gradient of it, is compared with an eager twin: before each step it
gets the compiled model's weights, and torch's own hooks read it in float64.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

import models  # puts the demo's folder on the path
import tensorprobe
from model import GPT

Backend = Literal["aot_eager", "inductor"]
Run = Callable[..., Any]
Row = tuple[str, str, str, int, int, int]  # module, quantity, role, slot, micro step, call

SYMBOLS = models.VOCABULARY
BATCH = (2, 8)
STEPS = 3


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Nothing has been compiled in this process."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def gpt(layers: int = 2) -> nn.Module:
    """The tests' GPT, made small."""
    torch.manual_seed(1)
    return GPT(SYMBOLS, BATCH[1], layers=layers, width=16, heads=2)


def llama(layers: int = 2) -> nn.Module:
    """A Llama of transformers, made small."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=SYMBOLS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def tokens(step: int, micro_step: int = 0) -> Tensor:
    """What a forward gets."""
    generator = torch.Generator().manual_seed(100 * step + micro_step)
    return torch.randint(SYMBOLS, BATCH, generator=generator)


def loss_of(output: Any, x: Tensor) -> Tensor:
    """Of logits, or of what transformers wrap around them."""
    logits = output if isinstance(output, Tensor) else output.logits
    return functional.cross_entropy(logits.flatten(0, 1), x.roll(-1, 1).flatten())


def step_of(run: Run, optimizer: torch.optim.Optimizer, step: int, micro_steps: int = 1) -> None:
    """One optimizer step."""
    for micro_step in range(micro_steps):
        x = tokens(step, micro_step)
        loss_of(run(x), x).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Everything that training has changed."""
    moments = [value for state in optimizer.state.values() for value in state.values()]
    return [*(p.detach().clone() for p in model.parameters()), *moments, torch.get_rng_state()]


def same_bits(one: list[Tensor], other: list[Tensor]) -> bool:
    """Whether two trainings ended in the same bits."""
    return len(one) == len(other) and all(map(torch.equal, one, other))


def leaves(value: Any) -> list[Tensor]:
    """The floating-point tensors in what a module returned."""
    found = torch.utils._pytree.tree_leaves(value if not hasattr(value, "keys") else dict(value))
    return [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.is_floating_point()]


class Twin:
    """An eager copy in float64 whose outputs and their gradients torch's own hooks read."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).double()
        self.calls: dict[str, int] = {}
        self.found: dict[Row, Tensor] = {}
        self.micro_step = 0
        for name, module in self.model.named_modules():
            module.register_forward_hook(self.hook_of(name))

    def hook_of(self, name: str) -> Callable[..., None]:
        """Of one module."""

        def after(_: nn.Module, __: Any, output: Any) -> None:
            call = self.calls.get(name, 0)
            self.calls[name] = call + 1
            tensors = leaves(output)
            for number, tensor in enumerate(tensors):
                slot = -1 if len(tensors) == 1 else number
                place = (name, "actv", "output", slot, self.micro_step, call)
                self.found[place] = tensor.detach().clone()
                if tensor.requires_grad:
                    place = (name, "actv_grad", "output", slot, self.micro_step, call)
                    hook = self.gradient_hook_of(place)
                    tensor.register_hook(hook)  # type: ignore[no-untyped-call]

        return after

    def gradient_hook_of(self, place: Row) -> Callable[[Tensor], None]:
        """Of one tensor."""

        def arrived(gradient: Tensor) -> None:
            self.found[place] = gradient.clone()

        return arrived

    def step(self, weights: nn.Module, step: int, micro_steps: int = 1) -> dict[Row, Tensor]:
        """What a step from these weights shows."""
        self.model.load_state_dict(weights.state_dict())
        self.found = {}
        for self.micro_step in range(micro_steps):
            self.calls.clear()
            x = tokens(step, self.micro_step)
            loss_of(self.model(x), x).backward()  # type: ignore[no-untyped-call]
        return self.found


def outputs_in(directory: str, step: int) -> dict[Row, dict[str, Any]]:
    """The records of outputs and their gradients of one step, of which each may be there once."""
    rows: dict[Row, dict[str, Any]] = {}
    for one in tensorprobe.Journal(directory):
        for r in one.records if one.step == step else []:
            if r["role"] == "output":
                place = (r["name"], r["quantity"], "output", r["slot"], r["micro_step"], r["call"])
                assert place not in rows
                rows[place] = r
    return rows


def assert_close(rows: dict[Row, dict[str, Any]], twin: dict[Row, Tensor]) -> None:
    """Every output and gradient that the twin has is recorded, with its values."""
    assert set(rows) == set(twin)
    for place, x in twin.items():
        row, size = rows[place], float(x.abs().max())
        assert row["count"] == x.numel(), place
        assert math.isclose(row["norm"], float(x.norm()), rel_tol=1e-4, abs_tol=1e-12), place
        for op, value in (("min", x.min()), ("max", x.max()), ("mean", x.mean())):
            assert abs(row[op] - float(value)) <= 1e-4 * size + 1e-12, (place, op)


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "layers"), [("aot_eager", 2), ("inductor", 1)])
@pytest.mark.parametrize("make", [gpt, llama])
def test_fullgraph_shows_every_output_and_gradient(
    make: Callable[[int], nn.Module], backend: Backend, layers: int, tmp_path: Path
) -> None:
    def train(watched: bool) -> tuple[list[Tensor], str]:
        torch._dynamo.reset()
        counters.clear()
        model = make(layers)
        twin = Twin(model)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        monitor = tensorprobe.watch(model, optimizer, output_dir=tmp_path) if watched else None
        run = torch.compile(model, fullgraph=True, backend=backend)
        expected = []
        for step in range(STEPS):
            expected.append(twin.step(model, step, 2) if watched else {})
            step_of(run, optimizer, step, 2)
        assert sum(counters["graph_break"].values()) == 0
        assert counters["stats"]["unique_graphs"] == 1
        if monitor is None:
            return state_of(model, optimizer), ""
        monitor.close()
        assert monitor.counters()["errors"] == 0
        for step in range(STEPS):
            assert_close(outputs_in(monitor.directory, step), expected[step])
        return state_of(model, optimizer), monitor.directory

    without, _ = train(False)
    with_monitor, _ = train(True)
    assert same_bits(without, with_monitor)
