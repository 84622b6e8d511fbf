"""Models, monitors, threads and processes that come and go."""

from __future__ import annotations

import copy
import gc
import io
import json
import pickle
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import tensorprobe

torch.set_num_threads(1)

pytestmark = pytest.mark.usefixtures("seed")


class Net(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.act = nn.ReLU(inplace=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(self.act(self.fc(x)))
        return y


def backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        backward(model(torch.randn(3, 4, dtype=dtype)).pow(2).sum())
        optimizer.step()
        optimizer.zero_grad()


def start(model: Any, optimizer: Any, tmp_path: Path, **config: Any) -> tensorprobe.Session:
    settings = {"format": "api", "strict": True, **config}
    return tensorprobe.watch(model, optimizer, output_dir=tmp_path, config=settings)


def made(make: Callable[[Any], torch.optim.Optimizer] | None = None) -> tuple[Net, Any]:
    model = Net()
    return model, (make or (lambda p: torch.optim.Adam(p, lr=0.01)))(model.parameters())


def steps_of(session: tensorprobe.Session) -> list[tensorprobe.Step]:
    session.close()
    assert session.counters()["errors"] == 0
    return list(tensorprobe.Journal(session.directory))


def content(steps: list[tensorprobe.Step]) -> list[list[Any]]:
    """Everything but times."""
    return [
        [{k: v for k, v in r.items() if k not in ("time_ns", "key", "shape_id")} for r in s.records]
        for s in steps
    ]


# ---- models and monitors ----


def test_two_models_in_turns(tmp_path: Path) -> None:
    """Each has what it has alone."""

    def run(together: bool) -> list[list[list[Any]]]:
        torch.manual_seed(5)
        pairs = [made(), made()]
        found = []
        if together:
            sessions = [start(m, o, tmp_path / f"{together}{i}") for i, (m, o) in enumerate(pairs)]
        for number in range(2):
            for i, (model, optimizer) in enumerate(pairs):
                torch.manual_seed(10 * number + i)
                if not together and number == 0:
                    found.append(start(model, optimizer, tmp_path / f"{together}{i}"))
                train(model, optimizer)
        return [content(steps_of(session)) for session in (sessions if together else found)]

    def alone(i: int) -> list[list[Any]]:
        torch.manual_seed(5)
        pairs = [made(), made()]
        model, optimizer = pairs[i]
        session = start(model, optimizer, tmp_path / f"alone{i}")
        for number in range(2):
            torch.manual_seed(10 * number + i)
            train(model, optimizer)
        return content(steps_of(session))

    assert run(together=True) == [alone(0), alone(1)]


def test_two_monitors_on_one_model(tmp_path: Path) -> None:
    """With different configurations; one is closed earlier."""
    model, optimizer = made()
    first = start(model, optimizer, tmp_path / "a")
    second = start(model, optimizer, tmp_path / "b", targets={"fc": {}}, all_xy=False)
    train(model, optimizer, 2)
    second.close()
    train(model, optimizer)
    whole, part = steps_of(first), steps_of(second)
    assert (len(whole), len(part)) == (3, 2)
    for one, two in zip(whole, part, strict=False):
        values = {(r["row"], r["quantity"]): r["norm"] for r in one.records}
        some = {(r["row"], r["quantity"]): r["norm"] for r in two.records}
        assert {row.split(".")[0] for row, _ in some} == {"fc"}
        assert some.items() <= values.items()


def test_a_model_that_moves_to_another_dtype(tmp_path: Path) -> None:
    """In place, as module.to() does, and with new parameters, as it may be told to."""
    model, optimizer = made(lambda p: torch.optim.SGD(p, lr=0.01))
    session = start(model, optimizer, tmp_path)
    train(model, optimizer)
    model.double()
    train(model, optimizer)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        model.bfloat16()
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    session.use_optimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    session.use_optimizer(optimizer)
    train(model, optimizer)
    steps = steps_of(session)
    for step, dtype in zip(steps, ("float32", "float64", "bfloat16"), strict=True):
        found = {r["dtype"] for r in step.records if r["row"] in ("fc.weight", "fc.output")}
        assert found == {f"torch.{dtype}"}
        assert {r["quantity"] for r in step.records} == {
            *(
                "actv",
                "actv_grad",
                "grad_unreduced",
                "grad_reduced",
                "param_origin",
                "param_updated",
            )
        }


def test_hooking_again_and_again(tmp_path: Path) -> None:
    """A notebook's cell: the monitor of the last run is closed or forgotten, and made anew."""
    model, optimizer = made()
    sessions = []
    for number in range(10):
        session = start(model, optimizer, tmp_path / str(number))
        train(model, optimizer)
        if number % 2:
            session.close()
        sessions.append(session)
    for number, session in enumerate(sessions):
        steps = steps_of(session)
        assert len(steps) == (1 if number % 2 else 10 - number)
        for step in steps:
            rows = [(r["row"], r["quantity"]) for r in step.records]
            assert len(rows) == len(set(rows))
    assert not model.fc._forward_hooks
    assert not model._forward_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_names_that_are_no_text(tmp_path: Path) -> None:
    names = ["a\0b", "c\ud800", "漢", "p q/r", '"']
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(4, 4))
        model.register_parameter(f"w{name}", nn.Parameter(torch.ones(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    session = start(model, optimizer, tmp_path, format=["csv", "tensorboard"])
    train(model, optimizer)
    (step,) = steps_of(session)
    found = {r["name"] for r in step.records if r["quantity"] == "actv"}
    assert found == {"", "a\\x00b", "c\\ud800", "漢", "p q/r", '"'}
    assert {"wa\\x00b", "wc\\ud800"} <= {r["name"] for r in step.records}


# ---- what close leaves ----


def test_a_closed_session_holds_nothing_of_the_model(tmp_path: Path, no_gc: None) -> None:
    model, optimizer = made()
    session = start(model, optimizer, tmp_path)
    train(model, optimizer, 2)
    session.close()
    gone = [weakref.ref(one) for one in (model, model.fc, model.fc.weight, optimizer)]
    optimizer.zero_grad()
    del model, optimizer
    gc.collect()  # a module and its own hooks dicts are cycles of torch's
    assert [one() for one in gone] == [None] * 4
    assert session.counters()["steps"] == 2


@pytest.mark.parametrize("closed", [False, True], ids=["watched", "closed"])
def test_a_model_can_be_copied_and_saved(closed: bool, tmp_path: Path) -> None:
    """Also while it is watched; copies train, and leave no rows."""
    model, optimizer = made()
    session = start(model, optimizer, tmp_path)
    train(model, optimizer)
    if closed:
        session.close()
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ]
    states = copy.deepcopy(optimizer.state_dict())
    saved = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), saved)
    for other in copies:
        copied = torch.optim.Adam(other.parameters(), lr=0.01)
        copied.load_state_dict(states)
        train(other, copied)
    x = torch.randn(2, 4)
    assert torch.equal(copies[0](x), copies[1](x)) is False
    steps = steps_of(session)
    assert [s.step for s in steps] == [0]
    assert not any(s.partial for s in steps)


# ---- threads ----


def test_threads_run_forwards_side_by_side(tmp_path: Path) -> None:
    """Each call of each thread is recorded with the values, and as the micro step, that it is."""
    model, optimizer = made()
    session = start(model, optimizer, tmp_path)
    inputs = [torch.full((3, 4), float(2 ** (3 * i))) for i in range(4)]
    outputs = {float(x.double().norm()): float(model(x).detach().double().norm()) for x in inputs}
    session.step()  # of the line before
    ready = threading.Barrier(len(inputs))
    errors: list[BaseException] = []

    def work(x: Tensor) -> None:
        try:
            ready.wait()
            for _ in range(20):
                backward(model(x).sum())
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    optimizer.step()
    assert not errors
    step = steps_of(session)[-1]
    assert step.micro_steps == 80
    found: dict[tuple[str, str], dict[int, float]] = {}
    for r in step.records:
        rows = found.setdefault((r["row"], r["quantity"]), {})
        assert r["micro_step"] not in rows
        rows[r["micro_step"]] = r["norm"]
    for row in ("fc.input", "fc.output", "act.output", "head.output", ".output"):
        assert set(found[row, "actv"]) == set(range(80))
    for micro, norm in found["fc.input", "actv"].items():
        assert found[".output", "actv"][micro] == pytest.approx(outputs[norm])
    assert set(found["fc.output", "actv_grad"]) == set(range(80))


# ---- processes ----


class Numbers(Dataset[Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((4,), float(index))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_data_loader_workers(method: str, tmp_path: Path) -> None:
    model, optimizer = made()
    session = start(model, optimizer, tmp_path)
    loader = DataLoader(Numbers(), batch_size=4, num_workers=1, multiprocessing_context=method)
    for batch in loader:
        backward(model(batch).sum())
        optimizer.step()
    steps = steps_of(session)
    assert [s.step for s in steps] == [0, 1]
    norms = [r["norm"] for s in steps for r in s.records if r["row"] == ".input"]
    expected = [float(torch.stack([Numbers()[i] for i in range(a, a + 4)]).norm()) for a in (0, 4)]
    assert norms == pytest.approx(expected)
    assert len(list(tmp_path.iterdir())) == 1


END = """
import os, sys, torch, tensorprobe
from torch import nn
model = nn.Sequential(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
monitor = tensorprobe.watch(model, optimizer, output_dir=sys.argv[1], format="csv")
print(monitor.directory, flush=True)
for step in range(5):
    model(torch.randn(2, 4)).sum().backward()
    if step == 4:
        {ending}
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("ending", "status", "last"),
    [
        ("sys.exit(3)", 3, "partial"),
        ("raise KeyboardInterrupt", -2, "partial"),
        ("raise ValueError", 1, "partial"),
        ("os._exit(4)", 4, "open"),
        ("break", 0, "partial"),
    ],
)
def test_ends_of_a_process(ending: str, status: int, last: str, tmp_path: Path) -> None:
    """Whatever can still run at exit closes the journal; os._exit costs the last step at most."""
    done = subprocess.run(
        [sys.executable, "-c", END.format(ending=ending), tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (status, 130 if status == -2 else status), done.stderr
    journal = tensorprobe.Journal(done.stdout.strip())
    steps = list(journal)
    if last == "partial":
        assert [(s.step, s.partial) for s in steps] == [(n, n == 4) for n in range(5)]
        assert journal.closed
        rows = {(r["row"], r["quantity"]) for r in steps[4].records}
        assert ("0.output", "actv_grad") in rows
    else:
        assert [s.step for s in steps][:3] == [0, 1, 2]
        assert not any(s.partial for s in steps)
    assert json.dumps([s.step for s in steps])
