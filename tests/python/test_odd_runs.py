"""Training runs out of the ordinary: watching neither changes nor breaks them."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

import tensorprobe

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("seed")

Run = tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]


class Call(nn.Module):
    """A module around a function of itself and its input."""

    def __init__(self, function: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any) -> Any:
        return self.function(self, *args)


def backward(loss: Tensor, **options: Any) -> None:
    loss.backward(**options)  # type: ignore[no-untyped-call]


def plain_run(model: nn.Module, *shape: int, rate: float = 0.01) -> Run:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def step() -> None:
        optimizer.zero_grad()
        backward(model(torch.randn(shape)).float().pow(2).mean())
        optimizer.step()

    return model, optimizer, step


# ---- the bits ----


def packed_lstm() -> Run:
    def forward(m: Any, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4, 2]))
        y: Tensor = nn.utils.rnn.pad_packed_sequence(m.lstm(packed)[0])[0]
        return y

    return plain_run(Call(forward, lstm=nn.LSTM(5, 7, 2, dropout=0.1, bidirectional=True)), 6, 3, 5)


def attention_to_itself() -> Run:
    attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
    return plain_run(Call(lambda m, x: m.attention(x, x, x)[0], attention=attention), 2, 4, 8)


def convolutions_in_place() -> Run:
    layers = [nn.Conv2d(3, 8, 3), nn.Dropout2d(0.2, True), nn.BatchNorm2d(8), nn.ReLU(True)]
    return plain_run(nn.Sequential(*layers, nn.Flatten(), nn.Linear(288, 4)), 4, 3, 8, 8)


def lazy_layers() -> Run:
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d(), nn.Flatten(), nn.LazyLinear(2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        backward(model(torch.randn(4, 3, 6, 6)).pow(2).mean())
        optimizer.step()

    return model, optimizer, step


def parametrized() -> Run:
    wrap = nn.utils.parametrizations
    layers = [wrap.spectral_norm(nn.Linear(4, 4)), wrap.weight_norm(nn.Linear(4, 4))]
    return plain_run(nn.Sequential(*layers, wrap.orthogonal(nn.Linear(4, 4))), 2, 4)


def scaled_autocast() -> Run:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.randn(2, 4)).float().pow(2).mean()
        backward(scaler.scale(loss * float("inf") if count == 2 else loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return model, optimizer, step


def closure() -> Run:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")
    x = torch.randn(8, 3)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value: Tensor = model(x).pow(2).mean()
        backward(value)
        return value

    def step() -> None:
        optimizer.step(loss)  # type: ignore[no-untyped-call]

    return model, optimizer, step


def gradient_penalty() -> Run:
    model = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        x = torch.randn(4, 3, requires_grad=True)
        y = model(x).sum()
        (grad,) = torch.autograd.grad(y, x, create_graph=True)
        backward(y + (grad.norm(dim=1) - 1).pow(2).sum(), retain_graph=True)
        backward(y)
        optimizer.step()

    return model, optimizer, step


def recursion() -> Run:
    def forward(m: Any, x: Tensor, depth: int = 0) -> Tensor:
        y: Tensor = m(m.fc(x), depth + 1) if depth < 5 else x
        return y

    return plain_run(Call(forward, fc=nn.Linear(3, 3)), 2, 3)


def failures_on_the_way() -> Run:
    count = 0

    def fail(_: Tensor) -> None:
        raise KeyError("planted")

    def forward(m: Any, x: Tensor) -> Tensor:
        y: Tensor = m.first(x)
        if count % 3 == 1:
            raise KeyError("planted")
        if count % 3 == 2:
            y.register_hook(fail)  # type: ignore[no-untyped-call]
        z: Tensor = m.second(y) + m.first(y)
        return z

    model = Call(forward, first=nn.Linear(3, 3), second=nn.Linear(3, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def step() -> None:
        nonlocal count
        count += 1
        with contextlib.suppress(KeyError):
            backward(model(torch.randn(2, 3)).pow(2).sum())
        optimizer.step()

    return model, optimizer, step


def nothing_to_see() -> Run:
    model = Call(lambda m, x: m.fc(x), fc=nn.Linear(3, 3))
    model.register_parameter("empty", nn.Parameter(torch.zeros(0, 3)))
    model.register_parameter("number", nn.Parameter(torch.tensor(2.0)))
    return plain_run(model, 0, 3)


RUNS = [
    packed_lstm,
    attention_to_itself,
    convolutions_in_place,
    lazy_layers,
    parametrized,
    scaled_autocast,
    closure,
    gradient_penalty,
    recursion,
    failures_on_the_way,
    nothing_to_see,
]


def final_state(make: Callable[[], Run], output_dir: Path | None) -> list[tuple[str, bytes]]:
    torch.manual_seed(7)
    model, optimizer, step = make()
    watcher: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if output_dir is not None:
        watcher = tensorprobe.watch(model, optimizer, output_dir=output_dir, strict=True)
    with watcher:
        for _ in range(6):
            step()
    tensors = dict(model.state_dict())
    for number, state in optimizer.state_dict()["state"].items():
        tensors |= {f"{number} {key}": value for key, value in state.items()}
    tensors["random numbers"] = torch.get_rng_state()
    return [
        (
            name,
            value.detach().numpy().tobytes() if isinstance(value, Tensor) else repr(value).encode(),
        )
        for name, value in tensors.items()
    ]


@pytest.mark.parametrize("make", RUNS, ids=lambda make: make.__name__)
def test_watching_changes_nothing(make: Callable[[], Run], tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        watched = final_state(make, tmp_path)
    plain = final_state(make, None)
    assert [name for name, _ in watched] == [name for name, _ in plain]
    assert [a[0] for a, b in zip(watched, plain, strict=True) if a != b] == []
    (directory,) = tmp_path.iterdir()
    steps = list(tensorprobe.Journal(directory))
    assert [step.skipped for step in steps] == [
        make is scaled_autocast and number == 1 for number in range(6)
    ]
    assert all(step.records for step in steps)


# ---- what is not the monitor's own ----


def start(model: nn.Module, optimizer: torch.optim.Optimizer, where: Path) -> tensorprobe.Session:
    return tensorprobe.watch(model, optimizer, output_dir=where, format="api")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_in_a_hook_reaches_the_program(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler runs when a hook has Python code of torch run."""
    model, optimizer, step = plain_run(nn.Linear(3, 3), 2, 3)
    x = torch.randn(2, 3, requires_grad=True)
    session = start(nn.Sequential(model, nn.Identity()), optimizer, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(RemovableHandle, "__init__", interrupting(error))
        with pytest.raises(error):
            model(x)
    step()
    session.close()
    assert session.counters()["errors"] == 0
    assert [s.step for s in tensorprobe.Journal(session.directory)] == [0]


def interrupting(error: type[BaseException]) -> Callable[..., None]:
    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    return interrupted


def test_an_interrupt_at_the_end_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step ends all the same, and hooks on leaves are taken back."""
    leaf = nn.Parameter(torch.randn(2, 3))
    uses_leaf = Call(
        lambda m, x: m.leaf(x) * m.fc(x), leaf=Call(lambda _, x: leaf), fc=nn.Linear(3, 3)
    )
    model, optimizer, step = plain_run(uses_leaf, 2, 3)
    remove = RemovableHandle.remove
    interrupts = 0

    def interrupted_once(handle: RemovableHandle) -> None:
        nonlocal interrupts
        interrupts += 1
        if interrupts == 1:
            raise KeyboardInterrupt
        remove(handle)

    session = start(model, optimizer, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(RemovableHandle, "remove", interrupted_once)
        with pytest.raises(KeyboardInterrupt):
            step()
    assert not leaf._backward_hooks
    step()
    session.close()
    assert [s.step for s in tensorprobe.Journal(session.directory)] == [0, 1]


def test_warnings_as_errors_do_not_end_the_training(tmp_path: Path) -> None:
    """Something takes the directory's name before the first step makes it."""
    model, optimizer, step = plain_run(nn.Linear(3, 3), 2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with start(model, optimizer, tmp_path / "a") as session:
            (tmp_path / "a").touch()
            step()
    assert session.counters()["journaled_steps"] == 0
    session = start(model, optimizer, tmp_path / "b")
    (tmp_path / "b").touch()
    step()
    with pytest.warns(RuntimeWarning, match="could not write"):
        session.close()


# ---- values ----


def test_a_failed_backward_leaves_no_part_of_a_gradient(tmp_path: Path) -> None:
    fail = False

    class Fragile(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            if fail:
                raise KeyError("planted")
            return grad

    fragile: Callable[[Tensor], Tensor] = Fragile.apply
    inner = Call(lambda _, y: fragile(y) * 3 + y * 2)
    model = Call(lambda m, x: m.inner(m.fc(x)), fc=nn.Linear(3, 3), inner=inner)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with start(model, optimizer, tmp_path) as session:
        y = model(torch.randn(2, 3)).sum()
        fail = True
        with pytest.raises(KeyError, match="planted"):
            backward(y, retain_graph=True)
        fail = False
        backward(y)
        optimizer.step()
    journal = tensorprobe.Journal(session.directory)
    norms = journal.series("inner", "actv_grad", role="input", op="norm")[1]
    assert norms == pytest.approx([float(torch.full((2, 3), 5.0).norm())])


def test_a_subclass_does_not_see_what_hooks_ask(tmp_path: Path) -> None:
    calls: list[str] = []

    class Listening(Tensor):
        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            calls.append(str(func))
            call: Any = super().__torch_function__
            return call(func, types, args, kwargs or {})

    def two_inputs(_: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return x * 2 + y

    def heard(watched: bool) -> list[str]:
        torch.manual_seed(7)
        inner = Call(two_inputs)
        model = Call(lambda m, x: m.inner(m.fc(x), x), fc=nn.Linear(3, 3), inner=inner)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = start(model, optimizer, tmp_path) if watched else None
        x = torch.randn(2, 3).as_subclass(Listening).requires_grad_()
        calls.clear()
        backward(model(x).sum())
        optimizer.step()
        found = calls[:]
        if session is not None:
            session.close()
            assert session.counters()["errors"] == 0
            (step,) = tensorprobe.Journal(session.directory)
            rows = {(r["row"], r["quantity"]) for r in step.records}
            assert {("inner.input_1", "actv"), ("inner.input_1", "actv_grad")} < rows
        return found

    plain = heard(False)
    assert len(plain) > 3
    assert heard(True) == plain


# ---- names, places, processes ----


@pytest.mark.parametrize("name", [b"\xff\xfe", "ü 漢 'q\"".encode()], ids=["bytes", "utf-8"])
def test_any_name_of_a_directory(name: bytes, tmp_path: Path) -> None:
    class AsBytes:
        def __fspath__(self) -> bytes:
            return os.fsencode(tmp_path) + b"/" + name

    where: list[Any] = [Path(os.fsdecode(bytes(AsBytes().__fspath__()))), AsBytes()]
    for output_dir in where:
        model, optimizer, step = plain_run(nn.Linear(3, 3), 2, 3)
        with tensorprobe.watch(model, optimizer, output_dir=output_dir) as session:
            step()
        assert Path(session.directory).parent == where[0]
        assert [s.step for s in tensorprobe.Journal(session.directory)] == [0]
    config = Path(os.fsdecode(bytes(AsBytes().__fspath__()))) / "monitor.json"
    config.write_text('{"eps": "small"}')
    with pytest.raises(tensorprobe.ConfigError, match="eps") as caught:
        tensorprobe.TrainerMon(config)
    assert caught.value.file == str(config)


@pytest.mark.parametrize("rank", [-1, 2**32])
def test_a_rank_that_cannot_be(rank: int, tmp_path: Path) -> None:
    model, optimizer, _ = plain_run(nn.Linear(3, 3), 2, 3)
    with pytest.raises(ValueError, match=f"rank must be .*{rank}"):
        tensorprobe.watch(model, optimizer, output_dir=tmp_path, rank=rank)


def test_a_forked_child_can_call_everything(tmp_path: Path) -> None:
    model, optimizer, step = plain_run(nn.Linear(3, 3), 2, 3)
    with start(model, optimizer, tmp_path) as session:
        step()
        pid = os.fork()
        if pid == 0:
            try:
                step()
                session.step()
                session.close()
                os._exit(0)
            except BaseException:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [s.step for s in tensorprobe.Journal(session.directory)] == [0]


def test_scripted_modules_are_left_out(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # script is deprecated
        scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 3)))
    model, optimizer, step = plain_run(nn.Sequential(nn.Linear(3, 3), scripted), 2, 3)
    with pytest.warns(RuntimeWarning, match=r"'1' is not recorded: it is scripted \(2 in all\)"):
        session = start(model, optimizer, tmp_path)
    step()
    session.close()
    (recorded,) = tensorprobe.Journal(session.directory)
    names = {r["name"] for r in recorded.records}
    assert names == {"", "0", "0.weight", "0.bias", "1.0.weight", "1.0.bias"}


# ---- modes ----


class Functions(TorchFunctionMode):
    """Draws a random number for whatever it sees."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        torch.rand(1, generator=NOISE)
        return function(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Likewise, below autograd."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            torch.rand(1, generator=NOISE)
        return function(*args, **(kwargs or {}))


NOISE = torch.Generator()


@pytest.mark.parametrize("mode", [Functions, Operations])
def test_modes_do_not_see_what_hooks_do(mode: Any, tmp_path: Path) -> None:
    def draws(watched: bool) -> Tensor:
        torch.manual_seed(5)
        NOISE.manual_seed(5)
        twice = Call(lambda m, x: m.fc(x) * x.sum() + m.fc(x * 2), fc=nn.Linear(4, 4))
        model = nn.Sequential(twice, nn.ReLU())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        session = tensorprobe.watch(model, optimizer, output_dir=tmp_path) if watched else None
        x = torch.randn(3, 4, requires_grad=True)
        with mode():
            for _ in range(2):
                optimizer.zero_grad()
                backward(model(x).sum())
                optimizer.step()
        if session is not None:
            session.close()
            assert session.counters()["errors"] == 0
            assert session.counters()["records"] > 40
        return NOISE.get_state()

    assert torch.equal(draws(False), draws(True))
