"""The package's surface: configuration, targets, errors, reading back, and use without torch."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tensorprobe
from tensorprobe import _core
from tensorprobe._targets import has_prefix

pytestmark = pytest.mark.usefixtures("seed")


def model_of(*names: str) -> nn.Module:
    model = nn.Sequential()
    for name in names:
        model.add_module(name, nn.Linear(4, 4))
    return model


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).pow(2).sum().backward()
        optimizer.step()


def recorded(directory: str) -> set[tuple[str, str]]:
    return {(r["quantity"], r["row"]) for s in tensorprobe.Journal(directory) for r in s.records}


def test_modules_match_exactly_and_parameters_by_prefix(tmp_path: Path) -> None:
    model = model_of("fc1", "fc10")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {
        "targets": {"fc1": {}},
        "xy_distribution": True,
        "wg_distribution": True,
        "forward_only": True,
        "format": "api",
    }
    monitor = tensorprobe.TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(model, optimizer, grad_acc_steps=1)
    train(model, optimizer)
    monitor.close()
    assert recorded(monitor.directory) == {
        ("actv", "fc1.input"),
        ("actv", "fc1.output"),
        *(
            (quantity, f"fc1.{name}")
            for quantity in ("grad_unreduced", "grad_reduced")
            for name in ("weight", "bias")
        ),
    }


@pytest.mark.parametrize(
    ("name", "prefix", "below"),
    [
        ("fc1.weight", "fc1", True),
        ("fc10.weight", "fc1", False),
        ("fc1.weight", "fc1.weight", True),
        ("fc1.weight", "", True),
        ("fc1.weight", "weight", False),
    ],
)
def test_has_prefix(name: str, prefix: str, below: bool) -> None:
    assert has_prefix(name, prefix) is below


def test_micro_steps_are_counted_though_the_root_is_no_target(tmp_path: Path) -> None:
    model = model_of("fc1", "fc2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"targets": {"fc2": {}}, "xy_distribution": True, "format": "api"}
    monitor = tensorprobe.TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(model, optimizer, grad_acc_steps=2)
    for _ in range(2):
        model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    monitor.close()
    (step,) = tensorprobe.Journal(monitor.directory)
    assert step.micro_steps == 2
    outputs = [r for r in step.records if r["row"] == "fc2.output" and r["quantity"] == "actv"]
    assert [r["micro_step"] for r in outputs] == [0, 1]


def test_main_grad_goes_before_grad(tmp_path: Path) -> None:
    model = model_of("fc")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    weight = model.get_parameter("fc.weight")
    weight.main_grad = torch.full((4, 4), 2.0)  # type: ignore[attr-defined]
    for use, expected in ((True, 8.0), (False, 0.0)):
        monitor = tensorprobe.TrainerMon(
            {"wg_distribution": True, "format": "api"},
            params_have_main_grad=use,
            output_dir=tmp_path,
        )
        monitor.set_monitor(model, optimizer)
        weight.grad = torch.zeros(4, 4)
        optimizer.step()
        monitor.close()
        journal = tensorprobe.Journal(monitor.directory)
        assert journal.series("fc.weight", "grad_reduced") == ([0], [expected])
        assert journal.series("fc.bias", "grad_reduced") == ([], [])


def test_configuration_errors_have_a_place(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    path.write_text('{\n  "targets": {},\n  "eps": "small"\n}\n')
    with pytest.raises(tensorprobe.ConfigError) as caught:
        tensorprobe.TrainerMon(path)
    error = caught.value
    assert isinstance(error, ValueError)
    assert (error.file, error.line, error.field) == (str(path), 3, "eps")
    assert error.column > 0
    assert str(error).startswith(f"{path}:3:")
    with pytest.raises(tensorprobe.ConfigError):
        tensorprobe.TrainerMon({"ops": ["nonsense"]}, output_dir=tmp_path)
    with pytest.raises((OSError, ValueError)):
        tensorprobe.TrainerMon(tmp_path / "absent.json")


def test_config_shows_validated_values(tmp_path: Path) -> None:
    model = model_of("fc")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tensorprobe.watch(
        model, optimizer, output_dir=tmp_path, config={"eps": 1e-3}, ops=["norm", "max"]
    ) as session:
        assert session.config["eps"] == 1e-3
        assert session.config["ops"] == ["norm", "max"]
        assert session.config["all_xy"] is True
        assert session.config["targets"] == [""]


def test_series_and_alerts(tmp_path: Path) -> None:
    model = model_of("fc1", "fc2")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    norms = []
    with tensorprobe.watch(model, optimizer, output_dir=tmp_path, format="api") as session:
        for step in range(4):
            if step == 2:
                with torch.no_grad():
                    model.get_parameter("fc1.weight")[0, 0] = math.nan
            x = torch.randn(3, 4)
            model(x).sum().backward()
            optimizer.step()
            norms.append(float(x.double().norm()))
        assert session.step_number == 4
    journal = tensorprobe.Journal(session.directory)
    steps, values = journal.series("fc1", "actv", "input")
    assert steps == [0, 1, 2, 3]
    assert values == pytest.approx(norms, rel=1e-12)
    assert all(math.isnan(v) for v in journal.series("fc1", "actv", "output")[1][2:])
    assert journal.series("fc1", "actv", "output", op="nans")[1] == [0, 0, 3, 3]
    with pytest.raises(ValueError, match="no such op"):
        journal.series("fc1", "actv", op="median")

    first = session.alerts()[0]
    assert (first.step, first.rule, first.name, first.role) == (2, "AnomalyNan", "fc1", "output")
    assert first.quantity == "actv"
    assert first.row == "fc1.output"
    keys = {(k["name"], k["quantity"], k["role"], k["slot"]) for k in journal.defined()}
    assert ("fc1", "actv", "output", -1) in keys
    assert ("fc2.bias", "param_updated", "", -1) in keys
    assert [s.step for s in journal.steps()] == [0, 1, 2, 3]
    assert journal.closed
    assert journal.run["rank"] == 0


def test_observe_by_hand(tmp_path: Path) -> None:
    monitor = _core.Monitor(config_json='{"format": "api"}', output_dir=str(tmp_path), run_id="r1")
    key = monitor.key("loss", _core.ACTIVATION, _core.ROLE_OUTPUT)
    assert monitor.key("loss", _core.ACTIVATION, _core.ROLE_OUTPUT) == key
    monitor.observe(key, torch.tensor([3.0, 4.0]), micro_step=1)
    monitor.step()
    with pytest.raises(TypeError):
        monitor.observe(key, torch.tensor([1]))
    with pytest.raises(TypeError):
        monitor.observe(key, 3.0)  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        monitor.observe(key + 1, torch.tensor([1.0]))
    directory = monitor.directory
    monitor.close()
    monitor.close()
    (step,) = tensorprobe.Journal(directory)
    (record,) = step.records
    assert (record["norm"], record["micro_step"], record["shape"]) == (5.0, 1, (2,))
    assert tensorprobe.Journal(directory).run["run_id"] == "r1"


def test_set_monitor_is_checked(tmp_path: Path) -> None:
    model = model_of("fc")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = tensorprobe.TrainerMon({"format": "api"}, output_dir=tmp_path)
    with pytest.raises(RuntimeError, match="set_monitor"):
        monitor.counters()
    monitor.set_monitor([model], optimizer)
    with pytest.raises(RuntimeError, match="already"):
        monitor.set_monitor(model, optimizer)
    train(model, optimizer, 3)
    assert monitor.step_number == 3
    monitor.close()
    unused = tensorprobe.TrainerMon({"format": "api"}, output_dir=tmp_path)
    unused.close()


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_compute_stats(isa: str) -> None:
    x = torch.randn(7, 9)[::2, 1:].to(torch.bfloat16).requires_grad_()
    try:
        stats = tensorprobe.compute_stats(x, eps=0.5, isa=isa)
    except ValueError as error:
        pytest.skip(str(error))
    reference = x.detach().double()
    assert stats["kernel"].endswith(isa)
    assert stats["count"] == x.numel()
    assert stats["zeros"] == int((reference.abs() < 0.5).sum())
    assert stats["norm"] == pytest.approx(reference.norm().item(), rel=1e-7)
    assert stats["min"] == reference.min().item()
    with pytest.raises(ValueError, match="isa"):
        tensorprobe.compute_stats(x, isa="neon9")


@pytest.mark.parametrize("value", [1.0, None, [torch.zeros(1)]], ids=["float", "none", "list"])
def test_compute_stats_takes_tensors(value: Any) -> None:
    with pytest.raises(TypeError):
        tensorprobe.compute_stats(value)


def wrapped() -> Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.empty(3, device="meta"),
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.eye(3).to_sparse_csr(),
        lambda: torch.zeros(3, dtype=torch.complex32),
        lambda: torch.complex(torch.ones(3), torch.ones(3)).conj().imag,  # wrong sign in memory
        lambda: torch.empty(3, device="meta", dtype=torch.int32),
        wrapped,
    ],
    ids=["meta", "sparse", "csr", "complex32", "negative", "int_meta", "fake"],
)
def test_compute_stats_refuses_what_it_cannot_read(make: Any) -> None:
    with pytest.raises(ValueError, match="can't be read"):
        tensorprobe.compute_stats(make())


def test_a_plain_subclass_is_read() -> None:
    class Named(Tensor):
        pass

    x = torch.arange(4.0)
    assert tensorprobe.compute_stats(x.as_subclass(Named))["sum"] == 6.0
    assert tensorprobe.compute_stats(nn.Parameter(x))["sum"] == 6.0
    assert tensorprobe.compute_stats(torch.empty(0))["count"] == 0
    assert tensorprobe.compute_stats(torch.tensor(2.0).expand(5, 3))["sum"] == 30.0


def run_python(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    model = model_of("fc")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tensorprobe.watch(model, optimizer, output_dir=tmp_path, format="api") as session:
        train(model, optimizer, 2)
    code = (
        "import sys; sys.modules['torch'] = None; import tensorprobe, json;"
        "print(json.dumps(tensorprobe.Journal(sys.argv[1]).series('fc', 'actv', 'output')))"
    )
    steps, values = tensorprobe.Journal(session.directory).series("fc", "actv", "output")
    assert steps == [0, 1]
    assert json.loads(run_python(code, session.directory)) == [steps, values]


def test_a_torch_without_the_exchange_table(tmp_path: Path) -> None:
    """PyTorch before 2.10 hands tensors out in capsules."""
    code = """
import math, sys, torch
del torch.Tensor.__dlpack_c_exchange_api__
import tensorprobe
x = torch.arange(12.0).reshape(3, 4)[:, 1:].requires_grad_()
print(tensorprobe.compute_stats(x)["sum"])
print(tensorprobe.compute_stats(x.bfloat16())["sum"])
print(tensorprobe.compute_stats(torch.tensor([1, -3]))["sum"])
model = torch.nn.Sequential(torch.nn.Linear(3, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tensorprobe.watch(model, optimizer, output_dir=sys.argv[1], format="api") as session:
    model(x).sum().backward()
    optimizer.step()
(norm,) = tensorprobe.Journal(session.directory).series("", "actv_grad", "input")[1]
print(math.isclose(norm, torch.linalg.vector_norm(x.grad.double()), rel_tol=1e-12))
"""
    assert run_python(code, str(tmp_path)).split() == ["54.0", "54.0", "-2.0", "True"]


def test_what_is_open_at_exit_is_closed(tmp_path: Path) -> None:
    code = """
import sys, torch, tensorprobe
model = torch.nn.Sequential(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
session = tensorprobe.watch(model, optimizer, output_dir=sys.argv[1], format="api")
for _ in range(3):
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
print(session.directory)
"""
    directory = run_python(code, str(tmp_path)).strip()
    journal = tensorprobe.Journal(directory)
    assert [s.step for s in journal.steps()] == [0, 1, 2]
    assert journal.closed


def test_no_journal() -> None:
    with pytest.raises(FileNotFoundError):
        tensorprobe.Journal("/nonexistent/run")
