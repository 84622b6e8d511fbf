"""What the documents of KJ600 and of msprobe 1.1.1 show, run as it stands there.

fixtures/ancestors holds their configurations and calls. Each configuration is trained with on a
model that has its names, and must record what its document says. Objects of Megatron, DeepSpeed
and accelerate are stand-ins here: they have the attributes and arguments that the calls use, and
torch's own optimizer inside.
"""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn

import kj600.module_hook
import tensorprobe
from tensorprobe import TrainerMon

pytestmark = pytest.mark.usefixtures("seed")

DOCUMENTS = Path(__file__).parent / "fixtures" / "ancestors"
Rows = dict[str, set[str]]


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    TrainerMon._shared_optimizer = None


class Mlp(nn.Module):
    """Takes two arguments and returns one tensor, as the documents' examples do."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.dense(x) * mask
        return y


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mlp = Mlp()

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y: Tensor = self.mlp(x, mask)
        return y


class Model(nn.Module):
    """Its parts lie below `prefix`, in containers that are not called."""

    def __init__(self, prefix: str, layers: int = 2, embedding: str = "word_embedding") -> None:
        super().__init__()
        below: nn.Module = self
        for part in prefix.split("."):
            below.add_module(part, nn.Module())
            below = below.get_submodule(part)
        below.add_module("embedding", nn.Module())
        below.add_module("encoder", nn.Module())
        self.word_embedding = [nn.Linear(4, 4, bias=False)]  # in lists they have one name only
        self.stack = [Layer() for _ in range(layers)]
        below.get_submodule("embedding").add_module(embedding, self.word_embedding[0])
        below.get_submodule("encoder").add_module("layers", nn.ModuleList(self.stack))
        self.double()
        self.grad_acc_steps = 1

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((4,), 0.5, dtype=torch.float64)
        x = self.word_embedding[0](x)
        for layer in self.stack:
            x = layer(x, mask)
        return x


def language_model() -> Model:
    return Model("language_model", 10, "word_embeddings")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        size = 1.0 if step < 4 else 1e6
        model(size * torch.randn(3, 4, dtype=torch.float64)).pow(2).sum().backward()
        optimizer.step()


class Run:
    """A training with one of the configurations; `changes` are fields that are written into it."""

    def __init__(
        self, document: str, model: Model, *, steps: int = 2, rank: int = 0, **changes: Any
    ) -> None:
        path = Path("monitor_config.json")
        text = (DOCUMENTS / f"{document}.json").read_text()
        for name, value in changes.items():
            text = re.sub(r"\{", f'{{\n"{name}": {json.dumps(value)},', text, count=1)
        path.write_text(text)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        self.monitor = TrainerMon(path, rank=rank)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # no target is unknown, every spec fits
            self.monitor.set_monitor(model, optimizer)
            train(model, optimizer, steps)
        self.monitor.close()
        self.folder = Path(self.monitor.directory)

    def rows(self) -> Rows:
        """The rows of each quantity."""
        found: Rows = {}
        if self.folder.exists():
            for step in tensorprobe.Journal(self.folder):
                for record in step.records:
                    found.setdefault(record["quantity"], set()).add(record["row"])
        return found

    def csv(self, name: str) -> pd.DataFrame:
        return pd.read_csv(self.folder / name)


def parameters(model: Model, prefix: str = "") -> set[str]:
    return {name for name, _ in model.named_parameters() if name.startswith(prefix)}


def sides(*names: str) -> set[str]:
    return {f"{name}.{side}" for name in names for side in ("input", "output")}


LAYER = "language_model.encoder.layers.0"
FIRST_EXAMPLE = {"actv", "actv_grad", "grad_unreduced", "grad_reduced", "exp_avg", "exp_avg_sq"}


def test_kj600_03(capfd: pytest.CaptureFixture[str]) -> None:
    model = language_model()
    seen: list[Tensor] = []
    model.get_submodule(LAYER).register_forward_hook(lambda _m, _a, y: seen.append(y.detach()))
    run = Run("kj600-03", model, steps=6, rank=1)
    rows = run.rows()
    assert set(rows) >= FIRST_EXAMPLE
    assert "param_origin" not in rows
    assert rows["actv"] == rows["actv_grad"] == sides(LAYER)
    own = parameters(model, LAYER)
    assert len(own) == 2
    assert rows["grad_reduced"] == rows["exp_avg"] == rows["exp_avg_sq"] == own

    events = EventAccumulator(str(run.folder), size_guidance={"tensors": 0}).Reload()
    tags = [tag for tag in events.Tags()["tensors"] if re.search(r"\.output:.*/actv_(?!grad)", tag)]
    prefix = f"0:{LAYER}.output:0/rank1/actv_"
    # "id" is the value of a tensor without dimensions
    assert sorted(tags) == [prefix + op for op in ("max", "min", "norm", "zeros")]
    norms = [e.tensor_proto.double_val[0] for e in events.Tensors(prefix + "norm")]
    assert norms == pytest.approx([float(y.norm()) for y in seen], rel=1e-12)

    out, err = capfd.readouterr()
    assert "is the documentation's placeholder: nobody is informed" in err
    alerts = run.monitor.alerts()
    assert {alert.rule for alert in alerts} == {"AnomalyTurbulence"}
    assert 4 in {alert.step for alert in alerts}
    assert "AnomalyTurbulence: first in " in err
    # Rank 1 is the lowest that the configuration names.
    assert out == f"> {LAYER} is monitored successfully\n> 1 out of 1 modules are monitored.\n"


def test_kj600_03_on_another_rank() -> None:
    assert Run("kj600-03", language_model(), rank=0).rows() == {}


@pytest.mark.parametrize("document", ["kj600-04", "msprobe-1.1.1-33"])
def test_nothing_is_switched_on(document: str, capfd: pytest.CaptureFixture[str]) -> None:
    run = Run(document, language_model())
    assert run.rows() == {}
    assert "nothing is switched on, so that nothing will be recorded" in capfd.readouterr().err


def test_kj600_04_with_activations() -> None:
    run = Run("kj600-04", language_model(), xy_distribution=True)
    output = {"language_model.embedding.word_embeddings.output"}
    assert run.rows() == {"actv": output, "actv_grad": output}


def test_msprobe_33_with_activations() -> None:
    run = Run("msprobe-1.1.1-33", language_model(), xy_distribution=True)
    names = sides(*(f"language_model.encoder.layers.{number}" for number in range(10)))
    assert run.rows() == {"actv": names, "actv_grad": names}
    assert Run("msprobe-1.1.1-33", language_model(), rank=1, xy_distribution=True).rows() == {}


def test_msprobe_04(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Run("msprobe-1.1.1-04", Model("module"))
    assert ended.value.code == 0
    (path,) = Path().glob("monitor_output/module_struct/rank0/module_struct.json")
    structure = json.loads(path.read_text())
    assert json.loads(capfd.readouterr().out.splitlines()[1]) == structure
    # As the document's sample of the output is laid out, 05.
    sample = json.loads("{" + (DOCUMENTS / "msprobe-1.1.1-05.json").read_text().rstrip(",\n") + "}")
    (theirs,) = sample.values()
    ours = structure["0:module.encoder.layers.1.mlp.dense"]
    assert list(ours) == list(theirs)
    assert ours["input"] == {"config": "tuple[1]", "0": "size=(3, 4), dtype=torch.float64"}
    assert ours["input"].keys() == theirs["input"].keys()


@pytest.mark.parametrize("backward_only", [False, True])
def test_msprobe_06(backward_only: bool) -> None:
    model = Model("module")
    assert Run("msprobe-1.1.1-06", model).rows() == {}  # a fragment that shows the names
    run = Run(
        "msprobe-1.1.1-06", Model("module"), xy_distribution=True, backward_only=backward_only
    )
    names = sides("module.encoder.layers.0.mlp")  # no gradients: its object names none
    assert run.rows() == ({} if backward_only else {"actv": names})


def test_msprobe_07() -> None:
    model = Model("module")
    rows = Run("msprobe-1.1.1-07", model, xy_distribution=True).rows()
    called = ["", "module.embedding.word_embedding"]
    for number in range(2):
        layer = f"module.encoder.layers.{number}"
        called += [layer, f"{layer}.mlp", f"{layer}.mlp.dense"]
    two = {f"module.encoder.layers.{number}{mlp}" for number in range(2) for mlp in ("", ".mlp")}
    inputs = {f"{name}.input_{index}" for name in two for index in range(2)}
    assert rows["actv"] == (sides(*called) - {f"{name}.input" for name in two}) | inputs


def test_msprobe_08() -> None:
    model = Model("module")
    rows = Run("msprobe-1.1.1-08", model, wg_distribution=True, param_distribution=True).rows()
    mlp = parameters(model, "module.encoder.layers.0.mlp")
    wanted = mlp | {"module.embedding.word_embedding.weight"}
    assert len(wanted) == 3
    assert set(rows) == {"grad_unreduced", "grad_reduced", "param_origin", "param_updated"}
    assert all(found == wanted for found in rows.values())


def test_msprobe_09() -> None:
    model = Model("module")
    rows = Run("msprobe-1.1.1-09", model, mv_distribution=True).rows()
    assert rows == {"exp_avg": parameters(model), "exp_avg_sq": parameters(model)}
    assert len(parameters(model)) == 5


def test_msprobe_10() -> None:
    model = Model("module")
    run = Run("msprobe-1.1.1-10", model, param_distribution=True, steps=1)
    table = run.csv("param_updated_0-0.csv")
    assert list(table)[3:] == ["norm", "min", "max", "mean", "nans", "zeros"]
    for row in table.itertuples():
        values = model.get_parameter(str(row.name)).detach()
        assert (row.nans, row.zeros) == (0, 0)
        expected = [values.norm(), values.min(), values.max(), values.mean()]
        found = [row.norm, row.min, row.max, row.mean]
        for one, other in zip(found, expected, strict=True):
            assert one == round(float(other), 12) or one == pytest.approx(float(other), abs=1e-12)
            assert len(str(one).partition(".")[2]) <= 12


@pytest.mark.parametrize(
    ("document", "kinds"),
    [
        ("msprobe-1.1.1-14", ["param_origin", "param_updated"]),
        ("msprobe-1.1.1-16", ["grad_unreduced", "grad_reduced"]),
        ("msprobe-1.1.1-25", ["exp_avg", "exp_avg_sq"]),
    ],
)
def test_msprobe_csv_of_parameters(document: str, kinds: list[str]) -> None:
    model = Model("module")
    run = Run(document, model)
    wanted = parameters(model)
    if document.endswith("25"):
        wanted = {name for name in wanted if ".layers.1." not in name}
    assert run.rows() == dict.fromkeys(kinds, wanted)
    steps = [1] if document.endswith("25") else [0, 1]  # the first step finds no moments
    names = {f"{kind}_{step}-{step}.csv" for kind in kinds for step in steps}
    assert {path.name for path in run.folder.glob("*.csv")} == names
    assert not list(run.folder.glob("events*"))
    for name in names:
        assert list(run.csv(name))[3:] == ["norm", "min", "max", "nans"]


def test_msprobe_18() -> None:
    """The member of a configuration, and the script that reads what it makes written."""
    member = (DOCUMENTS / "msprobe-1.1.1-18.json").read_text().strip().rstrip(",")
    changes = json.loads("{" + member + "}")
    run = Run("msprobe-1.1.1-16", Model("module"), steps=6, **changes)
    assert 4 in {alert.step for alert in run.monitor.alerts()}
    folder = run.folder.parent / "anomaly_detected"
    (path,) = folder.glob("rank0/anomaly.json")
    assert "_step_4_" in path.read_text()
    command = [sys.executable, "-m", "tensorprobe.anomaly_analyse", "-d", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "AnomalyTurbulence" in done.stdout
    assert (folder / "anomaly_analyse.json").exists()


def test_msprobe_21() -> None:
    run = Run("msprobe-1.1.1-21", Model("module.module.language_model"))
    rows = run.rows()
    assert set(rows) == {"actv"}  # forward_only
    layers = [f"module.module.language_model.encoder.layers.{number}" for number in range(2)]
    assert sides(*(f"{layer}.mlp.dense" for layer in layers)) < rows["actv"]  # all_xy
    # Of the one that has an object with specs these hold, of the others everything.
    assert f"{layers[1]}.input_1" in rows["actv"]
    assert {path.name for path in run.folder.glob("*.csv")} == {"actv_0-0.csv", "actv_1-1.csv"}


def test_msprobe_32() -> None:
    model = language_model()
    run = Run("msprobe-1.1.1-32", model)
    rows = run.rows()
    assert FIRST_EXAMPLE | {"param_origin", "param_updated"} <= set(rows)
    assert sides(f"{LAYER}.mlp.dense", "language_model.embedding.word_embeddings") < rows["actv"]
    assert rows["param_updated"] == parameters(model, LAYER)  # all_xy is about activations
    events = EventAccumulator(str(run.folder), size_guidance={"tensors": 0}).Reload()
    tag = f"0:{LAYER}.mlp.dense.weight/rank0/"
    for op in ("min", "max", "norm", "zeros", "nans", "mean"):
        assert f"{tag}post_grad_{op}" in events.Tags()["tensors"]
    assert not list(run.folder.glob("*.csv"))


# ---- the calls ----


def call(document: str) -> str:
    """Read the text of a call, with its one import changed."""
    text = (DOCUMENTS / f"{document}.py.txt").read_text()
    return text.replace("from msprobe.pytorch import", "from tensorprobe import")


def write_config(name: str) -> None:
    fields = {"xy_distribution": True, "wg_distribution": True, "format": "api", "strict": True}
    Path(name).write_text(json.dumps(fields))


def recorded_steps(monitor: Any) -> list[int]:
    monitor.close()
    return [step.step for step in tensorprobe.Journal(monitor.directory)]


MEGATRON = SimpleNamespace(global_batch_size=8, data_parallel_size=2, micro_batch_size=2)


def test_the_calls_of_kj600() -> None:
    write_config("llama2_config.json")
    names: dict[str, Any] = {"args": MEGATRON, "model_type": None}

    def setup_model_and_optimizer(
        provider: Any, _: Any
    ) -> tuple[nn.Module, torch.optim.Optimizer, None]:
        model = provider()
        return model, torch.optim.Adam(model.parameters()), None

    def model_provider() -> nn.Module:
        model = language_model()
        names["model"] = model
        exec(call("kj600-05"), names)
        return model

    names["setup_model_and_optimizer"] = setup_model_and_optimizer
    names["model_provider"] = model_provider
    exec(call("kj600-06"), names)
    train(names["model"], names["optimizer"], 3)
    assert recorded_steps(names["hooker"]) == [0, 1, 2]


def test_the_calls_in_megatrons_pretrain() -> None:
    write_config("monitor_config.json")
    model = language_model()
    optimizer = torch.optim.Adam(model.parameters())
    names: dict[str, Any] = {
        "args": MEGATRON,
        "model_provider": None,
        "model_type": None,
        "setup_model_and_optimizer": lambda *_: (model, optimizer, None),
    }
    exec(call("msprobe-1.1.1-01"), names)
    # Nothing has run yet.
    assert [names[name] for name in ("reduced", "unreduced", "actv", "actv_grad")] == [{}] * 4
    train(model, optimizer, 2)
    for name in ("msprobe-1.1.1-23", "msprobe-1.1.1-24"):
        names["condition"] = True
        exec(call(name).replace("{some condition}", "condition"), names)
    monitor = names["monitor"]
    model(torch.ones(1, 4, dtype=torch.float64)).sum().backward()
    reduced, _ = monitor.generate_wgrad_metrics()
    actv, actv_grad = monitor.generate_xy_metrics()
    assert set(reduced[f"0:{LAYER}.mlp.dense.weight/rank0/post_grad"]) == {"min", "max"}
    assert set(actv[f"0:{LAYER}.output:0/rank0/actv"]) == {"min", "max"}
    assert f"0:{LAYER}.output:0/rank0/actv_grad" in actv_grad
    optimizer.step()
    assert recorded_steps(monitor) == [0, 1, 2]


def test_the_calls_with_accelerate() -> None:
    write_config("monitor_config.json")
    model = language_model()
    wrapped = SimpleNamespace(optimizer=torch.optim.Adam(model.parameters()))
    names: dict[str, Any] = {
        "accelerator": SimpleNamespace(prepare=lambda _: (model, wrapped, None, None, None)),
        "TrainerMon": TrainerMon,
    }
    text = call("msprobe-1.1.1-02")
    text = text.replace("TrainerMon(...)", 'TrainerMon("monitor_config.json")')
    exec(text.replace("(....", "(model, "), names)
    train(model, wrapped.optimizer, 2)
    assert recorded_steps(names["monitor"]) == [0, 1]


def test_the_calls_in_transformers_trainer() -> None:
    write_config("monitor_config.json")
    model = language_model()
    wrapped = SimpleNamespace(optimizer=torch.optim.Adam(model.parameters()))
    text = call("msprobe-1.1.1-03")
    text = text.replace("_inner_training_loop:", "_inner_training_loop(self):")
    text = text.replace("TrainerMon(...)", 'TrainerMon("monitor_config.json")')
    text = text.replace("(....", "(model, ")
    text = text.rstrip().removesuffix("...") + "train(model, self.optimizer.optimizer, 1)\n"
    text += textwrap.indent("return monitor\n", " " * 8)
    names: dict[str, Any] = {
        "TrainerMon": TrainerMon,
        "model": model,
        "train": train,
        "epochs_trained": 0,
        "num_train_epochs": 2,
    }
    exec(text, names)
    trainer: Any = names["Trainer"]()
    trainer.optimizer = wrapped
    assert recorded_steps(trainer._inner_training_loop()) == [0, 1]


def test_the_calls_with_deepspeed() -> None:
    write_config("monitor_config.json")
    model = Model("module")
    optimizer = torch.optim.Adam(model.parameters())
    names: dict[str, Any] = {"model": model, "optimizer": optimizer}
    exec(call("msprobe-1.1.1-15"), names)  # 17, 22 and 26 are the same
    train(model, optimizer, 2)
    assert recorded_steps(names["monitor"]) == [0, 1]


def test_the_call_with_a_pipelines_group() -> None:
    write_config("monitor_config.json")
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        group = torch.distributed.group.WORLD
        mpu = SimpleNamespace(get_pipeline_model_parallel_group=lambda: group)
        names: dict[str, Any] = {"mpu": mpu, "TrainerMon": TrainerMon}
        exec(call("msprobe-1.1.1-19"), names)
    finally:
        torch.distributed.destroy_process_group()
    model = Model("module")
    optimizer = torch.optim.Adam(model.parameters())
    names["monitor"].set_monitor(model, optimizer)
    train(model, optimizer, 1)
    names["monitor"].close()
    (step,) = tensorprobe.Journal(names["monitor"].directory)
    assert step.pp_stage == 0


@pytest.mark.parametrize(
    "document",
    ["kj600-11", "kj600-12", "kj600-13", *(f"msprobe-1.1.1-{n}" for n in range(27, 32))],
)
def test_signatures(document: str) -> None:
    text = (DOCUMENTS / f"{document}.py.txt").read_text()
    found = re.fullmatch(r"TrainerMon\.(\w+)\((.*)\) -> (.*)\n", text)
    assert found
    owner = kj600.module_hook.TrainerMon if document.startswith("kj600") else TrainerMon
    names: dict[str, Any] = {}
    exec(f"def documented({found[2]}): pass", names)
    wanted = list(inspect.signature(names["documented"]).parameters.values())
    if found[1] == "monitor_gnorm_with_ad":  # it takes two orders of arguments
        model = Model("module")
        optimizer = torch.optim.Adam(model.parameters())
        assert [p.name for p in wanted[:3]] == ["model", "grad_acc_steps", "optimizer"]
        monitor = owner({"wg_distribution": True, "format": "api"})
        monitor.monitor_gnorm_with_ad(model, 1, optimizer, None, None)
        train(model, optimizer, 1)
        assert recorded_steps(monitor) == [0]
        return
    real = inspect.signature(getattr(owner, found[1])).parameters.values()
    ours = [p for p in real if p.name != "self" and p.kind is not p.KEYWORD_ONLY]
    assert [p.name for p in ours] == [p.name for p in wanted]
    for one, other in zip(ours, wanted, strict=True):
        assert other.default in (one.default, other.empty)


# ---- "id" ----


class Scaled(nn.Module):
    """Takes a number and gives one."""

    def forward(self, x: Tensor, scale: float, offset: int = 3) -> tuple[Tensor, float, Tensor]:
        y = x * scale + offset
        return y, scale / 4, y.sum()


def test_the_value_itself() -> None:
    config = {
        "targets": {
            "0": {"input": "tuple[2]:1", "output": "tuple[3]:1", "output_grad": "tuple[3]:1"},
            "1": {"input": "tuple[3]:2", "output": "tuple[3]:2"},
            "2": {"input": "tuple[2]:0", "output": "tuple[3]:0"},
        },
        "xy_distribution": True,
        "format": "csv",
        "ops": ["id", "norm", "shape", "dtype"],
    }
    parts = nn.ModuleList([Scaled(), Scaled(), Scaled()])
    weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monitor = TrainerMon(config)
        monitor.set_monitor(parts, optimizer)
        parts[0](weight, 0.5)
        _, _, loss = parts[1](weight, 2.0, -7)
        parts[2](weight, 1.0)
        loss.backward()
        optimizer.step()
        monitor.close()
    table = pd.read_csv(Path(monitor.directory) / "actv_0-0.csv").set_index("name")
    assert table["id"].dropna().to_dict() == {
        "0.input": 0.5,
        "0.output": 0.125,
        "1.input": -7.0,
        "1.output": 2.0 * 2 - 14,
    }
    assert table.loc["2.input", "norm"] == pytest.approx(2**0.5)
    assert table.loc["0.input", "norm"] == 0.5
    assert list(table.loc["0.input", ["shape", "dtype"]]) == ["[]", "torch.float64"]
    assert not (Path(monitor.directory) / "actv_grad_0-0.csv").exists()  # a number has none
