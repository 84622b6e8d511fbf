"""Watching compiled models: no graph breaks, every value, the same training.

What a module returns, and the gradient of it, is compared with an eager twin: before each step it
gets the compiled model's weights, and torch's own hooks read it in float64.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import gc
import io
import math
import pickle
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM

import models  # puts the demo's folder on the path
import tensorprobe
from model import GPT
from tensorprobe import _compile

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
    _compile._said.clear()
    yield
    torch._dynamo.reset()


def gpt(layers: int = 2) -> nn.Module:
    """The tests' GPT, made small."""
    torch.manual_seed(1)
    return GPT(SYMBOLS, BATCH[1], layers=layers, width=16, heads=2)


def llama(layers: int = 2, cached: bool = False) -> nn.Module:
    """A Llama of transformers, made small. cached: its forward makes an object and fills it."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=SYMBOLS,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        use_cache=cached,
    )
    return LlamaForCausalLM(config)


def cached_llama(layers: int) -> nn.Module:
    """As transformers' models are trained by default."""
    return llama(layers, cached=True)


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
@pytest.mark.parametrize(
    ("make", "backend", "layers"),
    [
        (gpt, "aot_eager", 2),
        (llama, "aot_eager", 2),
        (cached_llama, "aot_eager", 1),
        (gpt, "inductor", 1),
        (llama, "inductor", 1),
    ],
)
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


class Part(nn.Module):
    """What is checkpointed."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 24)
        self.act = nn.Tanh()
        self.down = nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.act(self.up(x)))
        return y


class Checkpointed(nn.Module):
    """A few parts, which can be checkpointed in each of the two ways."""

    def __init__(self, parts: int = 2) -> None:
        super().__init__()
        self.token = nn.Embedding(SYMBOLS, 16)
        self.parts = nn.ModuleList(Part() for _ in range(parts))
        self.head = nn.Linear(16, SYMBOLS)
        self.reentrant: bool | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        for part in self.parts:
            if self.reentrant is None:
                x = x + part(x)
            else:
                x = x + checkpoint(part, x, use_reentrant=self.reentrant)
        y: Tensor = self.head(x)
        return y


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "reentrant", "within"),
    [
        ("aot_eager", False, True),
        ("aot_eager", False, False),
        ("aot_eager", True, False),
        ("inductor", True, True),
    ],
)
def test_checkpointed_parts_are_recorded_once(
    backend: Backend, reentrant: bool, within: bool, tmp_path: Path
) -> None:
    def train(watched: bool) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(2)
        model = Checkpointed()
        twin = Twin(model)
        model.reentrant = reentrant
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        monitor = tensorprobe.watch(model, optimizer, output_dir=tmp_path) if watched else None
        run: Run = model
        if within:
            run = torch.compile(model, fullgraph=True, backend=backend)
        else:
            for part in model.parts:
                part.compile(fullgraph=True, backend=backend)
        for step in range(2):
            expected = twin.step(model, step, 2)
            step_of(run, optimizer, step, 2)
        if monitor is not None:
            monitor.close()
            assert_close(outputs_in(monitor.directory, 1), expected)
        return state_of(model, optimizer)

    assert same_bits(train(False), train(True))


def watched_gpt(tmp_path: Path, **options: Any) -> tuple[nn.Module, Any, Run, Any]:
    """A small model, its optimizer, the compiled forward, and a session."""
    model = gpt(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path, **options)
    return model, optimizer, run, session


def graphs() -> int:
    """How many graphs have been compiled."""
    return int(counters["stats"]["unique_graphs"])


def test_no_step_compiles_anew(tmp_path: Path) -> None:
    _, optimizer, run, session = watched_gpt(tmp_path, start_step=1, step_interval=2)
    for step in range(5):
        step_of(run, optimizer, step)
        assert graphs() == 1
    session.close()
    steps = list(tensorprobe.Journal(session.directory))
    assert [one.step for one in steps] == [1, 3]
    assert {r["micro_step"] for one in steps for r in one.records} == {0}


def test_the_last_collected_step_leaves_a_graph_without_operators(tmp_path: Path) -> None:
    _, optimizer, run, session = watched_gpt(tmp_path, collect_times=1)
    step_of(run, optimizer, 0)
    seen: list[str] = []

    def look(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    look_at: Run = torch.compile(session._chunks[0], fullgraph=True, backend=look)
    look_at(tokens(1))
    assert seen
    assert not [target for target in seen if "tensorprobe" in target]
    step_of(run, optimizer, 1)
    assert graphs() == 3
    session.close()


def test_evaluation_between_training_is_not_recorded(tmp_path: Path) -> None:
    model, optimizer, run, session = watched_gpt(tmp_path)
    for step in range(2):
        step_of(run, optimizer, step)
        model.eval()
        run(tokens(step))
        model.train()
        with torch.no_grad():
            run(tokens(step))
    session.close()
    first, second = tensorprobe.Journal(session.directory)
    assert first.micro_steps == second.micro_steps == 1
    rows = outputs_in(session.directory, 1)
    assert len(rows) == 2 * len(list(model.named_modules())) - 2  # no list has a forward
    assert {row[4:] for row in rows} == {(0, 0)}


def test_dynamic_shapes_share_a_graph(tmp_path: Path) -> None:
    model = gpt(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)
    run = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    sizes = [(2, 5), (3, 7), (4, 6)]
    for size in sizes:
        x = torch.randint(SYMBOLS, size)
        loss_of(run(x), x).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    session.close()
    assert graphs() == 1
    for step, size in enumerate(sizes):
        rows = outputs_in(session.directory, step)
        assert rows["head", "actv", "output", -1, 0, 0]["shape"] == (*size, SYMBOLS)
        assert rows["head", "actv_grad", "output", -1, 0, 0]["shape"] == (*size, SYMBOLS)


@pytest.mark.parametrize("in_place", [False, True])
def test_equal_blocks_share_a_graph(in_place: bool, tmp_path: Path) -> None:
    torch.manual_seed(3)
    model = Checkpointed(12)  # more than torch compiles anew
    twin = Twin(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for number, part in enumerate(model.parts):
        if in_place:
            part.compile(fullgraph=True, backend="aot_eager")
        else:
            compiled: Any = torch.compile(part, fullgraph=True, backend="aot_eager")
            model.parts[number] = compiled
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)
    x = tokens(0)
    loss_of(twin.model(x), x).backward()  # type: ignore[no-untyped-call]
    step_of(model, optimizer, 0)
    session.close()
    assert graphs() == 1
    assert_close(outputs_in(session.directory, 0), twin.found)


@pytest.mark.parametrize("optimized", [False, True])
def test_watching_may_begin_after_compiling(optimized: bool, tmp_path: Path) -> None:
    model = gpt(1)
    twin = Twin(model)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    run: Any = torch.compile(model, fullgraph=True, backend="aot_eager")
    step_of(run, optimizer, 0)
    for _ in range(2):  # and again, and again
        session = tensorprobe.watch(run if optimized else model, optimizer, output_dir=tmp_path)
        expected = twin.step(model, 1)
        step_of(run, optimizer, 1)
        session.close()
        assert_close(outputs_in(session.directory, 0), expected)


def test_copies_and_pickles_of_a_traced_model_are_not_watched(tmp_path: Path) -> None:
    model, optimizer, run, session = watched_gpt(tmp_path)
    step_of(run, optimizer, 0)
    records = session.counters()["records"]
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    others = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved, weights_only=False),
    ]
    for other in others:
        for call in (other, torch.compile(other, fullgraph=True, backend="aot_eager")):
            loss_of(call(tokens(1)), tokens(1)).backward()  # type: ignore[no-untyped-call]
    session.close()
    assert session.counters()["records"] == records


def test_close_leaves_nothing(tmp_path: Path) -> None:
    model, optimizer, run, session = watched_gpt(tmp_path)
    step_of(run, optimizer, 0)
    waiting = run(tokens(1))  # its backward comes after the end
    session.close()
    records = session.counters()["records"]
    loss_of(waiting, tokens(1)).backward()  # type: ignore[no-untyped-call]
    step_of(run, optimizer, 2)
    assert session.counters()["records"] == records
    assert session.counters()["errors"] == 0
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not torch._dynamo.callback.callback_handler.start_callbacks
    assert not _compile._hooks
    alive = weakref.ref(model)
    del model, module, optimizer, run, session, waiting
    torch._dynamo.reset()
    gc.collect()
    assert alive() is None


def test_sides_of_targets(tmp_path: Path) -> None:
    targets = {
        "parts.0": {"input": "tuple[1]:0", "output_grad": "tensor"},
        "parts.1": {"output": "tuple[3]:1"},
        "token": {"input": "tensor"},
        "head": {},
    }
    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path, targets=targets)
    run = torch.compile(model, fullgraph=True, backend="aot_eager")
    misfit = r"\"tuple\[3\]:1\" does not fit module 'parts.1', which has a tensor there"
    with pytest.warns(RuntimeWarning, match=misfit) as said:
        step_of(run, optimizer, 0)
    session.close()
    assert len([one for one in said if "tensorprobe" in str(one.message)]) == 1
    (step,) = tensorprobe.Journal(session.directory)
    rows = {(r["name"], r["quantity"], r["role"], r["dtype"]) for r in step.records if r["role"]}
    assert rows == {
        ("token", "actv", "input", "torch.int64"),
        ("parts.0", "actv", "input", "torch.float32"),
        ("parts.0", "actv_grad", "output", "torch.float32"),
        ("head", "actv", "input", "torch.float32"),
        ("head", "actv", "output", "torch.float32"),
        ("head", "actv_grad", "input", "torch.float32"),
        ("head", "actv_grad", "output", "torch.float32"),
    }


@pytest.mark.slow
def test_inductor_rounds_what_is_read_of_16_bits(tmp_path: Path) -> None:
    def train(watched: bool) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(4)
        model = Checkpointed(1).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        run = torch.compile(model, fullgraph=True)
        with contextlib.ExitStack() as stack:
            if watched:
                stack.enter_context(tensorprobe.watch(model, optimizer, output_dir=tmp_path))
            for step in range(2):
                step_of(run, optimizer, step)
        return state_of(model, optimizer)

    with torch._inductor.config.patch(emulate_precision_casts=True), warnings.catch_warnings():
        warnings.filterwarnings("error", "tensorprobe")
        assert same_bits(train(False), train(True))
    with pytest.warns(RuntimeWarning, match="emulate_precision_casts = True"):
        train(True)


def test_torch_without_such_operators_compiles_with_breaks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(_compile, "is_supported", lambda: False)
    model = Checkpointed()
    twin = Twin(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)
    run = torch.compile(model, backend="aot_eager")
    expected = twin.step(model, 0)
    watched = len([module for module in model.modules() if module is not model.parts]) + 1
    with pytest.warns(RuntimeWarning, match=f"breaks at each of the {watched} modules"):
        step_of(run, optimizer, 0)
    session.close()
    assert sum(counters["graph_break"].values()) > 0
    assert_close(outputs_in(session.directory, 0), expected)


def test_export_is_no_forward(tmp_path: Path) -> None:
    model = Checkpointed()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)
    with pytest.warns(RuntimeWarning, match="torch.export runs the model without values"):
        program = torch.export.export(model, (tokens(0),))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "tensorprobe")
        torch.export.export(model, (tokens(0),))
    assert not [one for one in program.graph.nodes if "tensorprobe" in str(one.target)]
    step_of(model, optimizer, 0, 2)
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    assert step.micro_steps == 2
    assert {r["micro_step"] for r in step.records if r["name"] == "head"} == {0, 1}
    assert session.counters()["unreadable"] == 0


@dataclasses.dataclass
class Answer:
    """What a module may return."""

    scores: Tensor
    label: str
    more: list[Tensor | None]


class Answering(nn.Module):
    """Returns what it is told to put its two tensors into, and takes such a thing."""

    def __init__(self, pack: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.pack = pack

    def forward(self, x: Tensor, *, like: Any) -> Any:
        return self.pack(3 * x, x - 1)


@pytest.mark.parametrize(
    "pack",
    [
        lambda one, two: Answer(one, "first", [None, two]),
        lambda one, two: {"one": one, "two": (two, 3)},
        lambda one, two: deque([one, two]),
        lambda one, two: torch.return_types.max((one, two)),
    ],
)
def test_containers_are_taken_apart(pack: Callable[[Tensor, Tensor], Any], tmp_path: Path) -> None:
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "answer": Answering(pack)})
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)
    x = torch.randn(2, 4)
    like = Answer(torch.ones(5), "like", [])

    @torch.compile(fullgraph=True, backend="aot_eager")
    def run(x: Tensor) -> Tensor:
        found: list[Tensor] = []
        _compile._add_tensors(model["answer"](model["first"](x), like=like), False, found)
        return found[0].sum() + found[1].sin().sum()

    y = 3 * model["first"](x).detach()
    run(x).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    rows = {(r["quantity"], r["role"], r["slot"]): r["norm"] for r in step.records}
    (given,) = [r["norm"] for r in step.records if r["row"] == "answer.input_like"]
    assert given == pytest.approx(math.sqrt(5))
    assert rows["actv", "output", 0] == pytest.approx(float(y.norm()))
    assert rows["actv", "output", 1] == pytest.approx(float((y / 3 - 1).norm()))
    assert rows["actv_grad", "output", 0] == pytest.approx(math.sqrt(8))
    assert rows["actv_grad", "output", 1] == pytest.approx(float((y / 3 - 1).cos().norm()))


class Sum(nn.Module):
    def forward(self, x: Tensor, **parts: Any) -> Any:
        one, two = parts["pair"]
        return x * parts["scale"] + one - two


def test_keyword_inputs_have_their_names(tmp_path: Path) -> None:
    model = nn.ModuleDict({"first": nn.Linear(4, 4), "sum": Sum()})
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path)

    @torch.compile(fullgraph=True)
    def run(x: Tensor, backwards: bool) -> Any:
        y = model["first"](x)
        if backwards:
            return model["sum"](y, scale=y + 3, pair=(y, 2 * y)).sum()
        return model["sum"](y, pair=(y, 2 * y), scale=y + 3).sum()

    x = torch.randn(2, 4)
    for backwards in (False, True):
        run(x, backwards).backward()
    y = model["first"](x).detach()
    optimizer.step()
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    found: dict[tuple[str, str], list[float]] = {}
    for record in step.records:
        if record["name"] == "sum" and record["role"] == "input":
            found.setdefault((record["quantity"], record["argument"]), []).append(record["norm"])
    norm = [float(value.norm()) for value in (y, 2 * y, y + 3)]
    assert found["actv", "pair"] == pytest.approx(2 * norm[:2])
    assert found["actv", "scale"] == pytest.approx(2 * norm[2:])
    assert found["actv_grad", "scale"] == pytest.approx(2 * norm[:1])
    rows = {record["row"] for record in step.records if record["name"] == "sum"}
    assert {"sum.input_0", "sum.input_pair.0", "sum.input_pair.1", "sum.input_scale"} <= rows


def test_torch_func_compiles_as_before(tmp_path: Path) -> None:
    model = Part()
    optimizer = torch.optim.SGD(model.parameters(), 1e-2)
    x = torch.randn(5, 16)

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(model, parameters, (row,))
        return found.square().sum()

    frozen = {name: parameter.detach() for name, parameter in model.named_parameters()}
    each = torch.func.vmap(torch.func.grad(loss), (None, 0))
    expected = each(frozen, x)
    with tensorprobe.watch(model, optimizer, output_dir=tmp_path) as session:
        run: Run = torch.compile(each, fullgraph=True, backend="aot_eager")
        found = run(frozen, x)
    assert set(found) == set(expected)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)
    assert session.counters()["errors"] == 0


def test_forwards_side_by_side_in_threads(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    session = tensorprobe.watch(model, optimizer, output_dir=tmp_path, format="api")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    compiled(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    both = threading.Barrier(2)
    failed: list[BaseException] = []

    def work(first: int) -> None:
        try:
            for i in range(first, first + 20):
                both.wait(60)
                compiled(torch.full((2, 8), float(i + 1))).sum().backward()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(20 * k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    optimizer.step()
    session.close()
    assert not failed
    steps = list(tensorprobe.Journal(session.directory))
    found: dict[tuple[str, str], dict[int, Any]] = {}
    for record in steps[1].records:
        assert record["call"] == 0
        place = found.setdefault((record["row"], record["quantity"]), {})
        assert record["micro_step"] not in place
        place[record["micro_step"]] = record
    inputs = {micro: r["max"] for micro, r in found["0.input", "actv"].items()}
    assert sorted(inputs.values()) == [float(i + 1) for i in range(40)]
    outputs = found["2.output", "actv"]
    assert outputs.keys() == inputs.keys() == found["2.output", "actv_grad"].keys()
    for micro, value in inputs.items():
        expected = model(torch.full((2, 8), value)).detach().double()
        assert outputs[micro]["norm"] == pytest.approx(float(expected.norm()), rel=1e-5)


class Masked(nn.Module):
    def forward(self, x: Tensor, *, mask: Tensor) -> Tensor:
        return x * mask


class Masking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.inner = Masked()

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return torch.as_tensor(self.inner(y, mask=y * 2).sum())


def test_a_target_names_a_keyword(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Masking()
    x = torch.randn(3, 4)
    y = model.fc(x).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    side = {"input": "keyword:mask", "input_grad": "keyword:mask"}
    targets = {"inner": side, "fc": {"input": "keyword:mask"}}
    session = tensorprobe.watch(
        model, optimizer, output_dir=tmp_path, format="api", targets=targets
    )
    with pytest.warns(RuntimeWarning, match="\"keyword:mask\" does not fit module 'fc'"):
        torch.compile(model, backend="aot_eager", fullgraph=True)(x).backward()
    optimizer.step()
    session.close()
    (step,) = tensorprobe.Journal(session.directory)
    found = {r["quantity"]: r for r in step.records if r["quantity"].startswith("actv")}
    assert [r["row"] for r in found.values()] == ["inner.input_mask"] * 2
    assert found["actv"]["norm"] == pytest.approx(float((y * 2).norm()), rel=1e-6)
    assert found["actv_grad"]["norm"] == pytest.approx(float(y.norm()), rel=1e-6)
