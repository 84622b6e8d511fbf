"""What a watched model can't do, what is said then, and how threads and failures are told apart."""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensorprobe


def watch(model: nn.Module, folder: Path, optimizer: Any = None, **config: Any) -> Any:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return tensorprobe.watch(
        model, optimizer, output_dir=folder, config={"format": "api", **config}
    )


def records(session: tensorprobe.Session) -> list[list[dict[str, Any]]]:
    session.close()
    return [step.records for step in tensorprobe.Journal(session.directory)]


def test_script_is_told_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    session = watch(model, tmp_path)
    with pytest.raises(AttributeError):
        torch.jit.script(model)
    assert (
        "torch.jit.script can't compile the hooks of a watched Sequential" in capfd.readouterr()[1]
    )
    torch.jit.script(nn.Linear(2, 2))
    session.close()
    torch.jit.script(model)
    assert "script" not in capfd.readouterr()[1]


def test_modules_nested_deep_are_warned_of(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def nested(depth: int) -> nn.Module:
        model: nn.Module = nn.Linear(2, 2)
        for _ in range(depth - 1):
            model = nn.Sequential(model)
        return model

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # some libraries raise it as they are imported
    try:
        watch(nested(100), tmp_path).close()
        assert "nested" not in capfd.readouterr()[1]
        model = nested(210)
        with watch(model, tmp_path):
            said = capfd.readouterr()[1]
            assert "modules are nested 210 deep" in said
            with pytest.raises(RecursionError):
                model(torch.ones(1, 2))
            sys.setrecursionlimit(int(said.partition("setrecursionlimit(")[2].partition(")")[0]))
            model(torch.ones(1, 2))
    finally:
        sys.setrecursionlimit(limit)


@pytest.mark.parametrize(("level", "said"), [("2", True), ("3", False)])
def test_warnings_obey_the_level(
    level: str, said: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the hooks (a tensor can't be read) and those of the session (a silent target)."""
    monkeypatch.setenv("TENSORPROBE_LOG_LEVEL", level)

    class Sparse(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.to_sparse()

    model = nn.ModuleDict({"sparse": Sparse(), "silent": nn.Linear(2, 2)})
    session = watch(model, tmp_path, targets={"sparse": {}, "silent": {}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model["sparse"](torch.eye(2))
        session.step()
    texts = [str(one.message) for one in caught]
    assert any("it is sparse" in text for text in texts) == said
    assert any("never called: 'silent'" in text for text in texts) == said
    assert session.counters()["unreadable"] == 1
    session.close()


def test_threads_side_by_side_count_their_own_calls(tmp_path: Path) -> None:
    """Three forwards, of which each calls a module twice, and waits for the others in between."""
    turns = threading.Barrier(3, timeout=60)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            turns.wait()
            y = self.fc(x)
            turns.wait()
            z: Tensor = self.fc(y)
            turns.wait()
            return z

    model = Net()
    session = watch(model, tmp_path)
    threads = [threading.Thread(target=model, args=(torch.ones(1, 2),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.step()
    (found,) = records(session)
    calls = Counter((r["micro_step"], r["call"]) for r in found if r["row"].startswith("fc.output"))
    assert calls == {(micro, call): 1 for micro in range(3) for call in range(2)}


class Failing(torch.optim.SGD):
    """Fails when it is told to, before or after it has updated."""

    when: str = ""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        when, type(self).when = self.when, ""
        if when == "before":
            raise RuntimeError("planted")
        super().step(closure)
        if when == "after":
            raise RuntimeError("planted")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_step_that_is_tried_again_has_its_gradients_once(when: str, tmp_path: Path) -> None:
    model = nn.Linear(3, 1)
    optimizer = Failing(model.parameters(), lr=0.1)
    session = watch(model, tmp_path, optimizer)
    for step in range(2):
        model(torch.ones(2, 3)).sum().backward()
        if step == 0:
            Failing.when = when
            with pytest.raises(RuntimeError, match="planted"):
                optimizer.step()
        optimizer.step()
        optimizer.zero_grad()
    found = records(session)
    assert len(found) == 2
    for step_records in found:
        rows = Counter((r["row"], r["quantity"]) for r in step_records)
        for name in ("weight", "bias"):
            for quantity in ("grad_reduced", "param_origin", "param_updated"):
                assert rows[name, quantity] == 1, (name, quantity)


def norms(records: list[dict[str, Any]], quantity: str, row: str) -> list[float]:
    found = [r for r in records if (r["quantity"], r["row"].partition("#")[0]) == (quantity, row)]
    return [r["norm"] for r in sorted(found, key=lambda r: (r["micro_step"], r["call"]))]


def test_a_gradient_scaler_around_a_compiled_model(tmp_path: Path) -> None:
    """The same bits as without a monitor; unscaled gradients; the step with an infinity skipped."""

    def train(folder: Path | None) -> tuple[nn.Module, list[Tensor], Any]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        session = None if folder is None else watch(model, folder, optimizer)
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        gradients = []
        for step in range(3):
            loss = compiled(torch.randn(5, 3)).sum() * (torch.inf if step == 1 else 1.0)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            weight: Any = model[0].weight
            gradients.append(weight.grad.clone())
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return model, gradients, session

    plain, gradients, _ = train(None)
    torch._dynamo.reset()
    watched, same, session = train(tmp_path)
    for one, other in zip(plain.parameters(), watched.parameters(), strict=True):
        assert torch.equal(one, other)
    session.close()
    steps = list(tensorprobe.Journal(session.directory))
    assert [step.skipped for step in steps] == [False, True, False]
    for number in (0, 2):
        assert torch.equal(gradients[number], same[number])
        expected = float(torch.linalg.vector_norm(gradients[number].double()))
        (found,) = norms(steps[number].records, "grad_reduced", "0.weight")
        assert found == pytest.approx(expected, rel=1e-12)
        assert len(norms(steps[number].records, "actv_grad", "0.output")) == 1
    torch._dynamo.reset()


def test_threads_run_forwards_of_a_compiled_model(tmp_path: Path) -> None:
    """One after the other, in threads of their own: each has its rows, and its backward, too."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    batches = [torch.full((2, 3), float(number + 1)) for number in range(4)]
    expected = [float(model[0](batch).detach().double().norm()) for batch in batches]
    session = watch(model, tmp_path)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")

    def run(batch: Tensor) -> None:
        compiled(batch).sum().backward()

    for batch in batches:
        thread = threading.Thread(target=run, args=(batch,))
        thread.start()
        thread.join()
    session.step()
    (found,) = records(session)
    assert norms(found, "actv", "0.output") == pytest.approx(expected, rel=1e-6)
    assert len(norms(found, "actv_grad", "0.output")) == 4
    torch._dynamo.reset()
