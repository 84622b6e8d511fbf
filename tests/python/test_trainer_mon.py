"""TrainerMon as the users of both ancestors call it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor, nn

import kj600.module_hook
import tensorprobe
from tensorprobe import TrainerMon
from tensorprobe._targets import squashed, unwrapped

pytestmark = pytest.mark.usefixtures("seed")

Record = dict[str, Any]
EVERYTHING = {
    "xy_distribution": True,
    "wg_distribution": True,
    "mv_distribution": True,
    "param_distribution": True,
    "format": "api",
    "strict": True,
}


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Snippets name files relative to where they run, and share an optimizer by the class."""
    monkeypatch.chdir(tmp_path)
    yield
    TrainerMon._shared_optimizer = None


def linear(inputs: int = 4, outputs: int = 4) -> nn.Linear:
    return nn.Linear(inputs, outputs, dtype=torch.float64)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def norm(tensor: Tensor | None) -> float:
    assert tensor is not None
    return float(torch.linalg.vector_norm(tensor.detach().double()))


class Layer(nn.Module):
    """Takes an optional mask and returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp = linear()

    def forward(
        self, x: Tensor, mask: Tensor | None = None, scale: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        y = self.mlp(x) * scale
        return y, y.sum(0)


class Model(nn.Module):
    """Its names are those of the ancestors' documents."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.ModuleDict({"word_embedding": linear()})
        self.encoder = nn.Module()
        self.layers = [Layer() for _ in range(layers)]
        self.encoder.add_module("layers", nn.ModuleList(self.layers))
        self.final_norm = nn.LayerNorm(4, dtype=torch.float64)
        self.grad_acc_steps = 1

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding["word_embedding"](x)
        for layer in self.layers:
            x, extra = layer(x, None)
            x = x + extra
        y: Tensor = self.final_norm(x)
        return y


class Wrapper(nn.Module):
    """As DistributedDataParallel and Megatron's own put one into the names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> Any:
        return self.module(*args)


def adam(*models: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam([p for model in models for p in model.parameters()], lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        model(draw(3, 4)).pow(2).sum().backward()
        optimizer.step()


def steps_of(monitor: TrainerMon) -> list[tensorprobe.Step]:
    monitor.close()
    try:
        return list(tensorprobe.Journal(monitor.directory))
    except FileNotFoundError:
        return []


def rows(monitor: TrainerMon, quantity: str = "actv") -> set[str]:
    return {
        r["row"] for step in steps_of(monitor) for r in step.records if r["quantity"] == quantity
    }


def write_config(name: str, **fields: Any) -> None:
    Path(name).write_text(json.dumps({**EVERYTHING, **fields}))


# ---- the calls in the ancestors' documents, as they stand there ----


def test_kj600_hooks_inside_the_model_provider() -> None:
    from kj600.module_hook import TrainerMon

    write_config("llama2_config.json")
    args = SimpleNamespace(global_batch_size=8, data_parallel_size=2, micro_batch_size=4)
    hookers = []

    def model_provider() -> nn.Module:
        model = Model()
        hooker = TrainerMon(
            "./llama2_config.json",
            params_have_main_grad=True,
            opt_ty="Megatron_DistributedOptimizer",
        )  # or opt_ty=Megatron_Float16OptimizerWithFloat16Params
        hooker.hook_modules(
            model=model,
            grad_acc_steps=args.global_batch_size
            // args.data_parallel_size
            // args.micro_batch_size,
        )
        hookers.append(hooker)
        return model

    def setup_model_and_optimizer(*_: Any) -> tuple[nn.Module, torch.optim.Optimizer, None]:
        model = model_provider()
        return model, adam(model), None

    model_type = None
    model, optimizer, opt_param_scheduler = setup_model_and_optimizer(model_provider, model_type)
    # 插入位置

    TrainerMon.set_wrapped_optimizer(optimizer)

    assert opt_param_scheduler is None
    other = Model()
    train(other, adam(other))
    train(model, optimizer, 3)
    (hooker,) = hookers
    assert [s.step for s in steps_of(hooker)] == [0, 1, 2]
    assert "final_norm.weight" in rows(hooker, "exp_avg")


def test_msprobe_in_megatrons_pretrain() -> None:
    write_config("monitor_config.json", xy_distribution=True)
    args = SimpleNamespace(global_batch_size=8, data_parallel_size=2, micro_batch_size=4)
    model = Model()
    optimizer = adam(model)

    # 监控工具初始化
    monitor = TrainerMon(
        config_file_path="./monitor_config.json",
        process_group=None,
        params_have_main_grad=True,  # 权重是否使用main_grad，默认为True。
        opt_ty=None,  # 优化器类型，默认为None，具体取值参考公开接口
    )
    monitor.set_wrapped_optimizer(optimizer)
    # 挂载监控对象
    monitor.monitor_gnorm_with_ad(
        model,
        grad_acc_steps=args.global_batch_size // args.data_parallel_size // args.micro_batch_size,
        optimizer=None,
        dp_group=None,
        tp_group=None,
    )

    model(draw(3, 4)).sum().backward()
    # optional
    # 可以在任意位置获取当前的参数梯度统计量
    reduced, unreduced = monitor.generate_wgrad_metrics()
    # 可以在任意位置获取当前的激活值、激活值梯度统计量
    actv, actv_grad = monitor.generate_xy_metrics()

    weight = model.get_parameter("final_norm.weight")
    expected = {"norm": pytest.approx(norm(weight.grad), rel=1e-12)}
    assert reduced["0:final_norm.weight/rank0/post_grad"] == expected
    assert unreduced["0:final_norm.weight/rank0/acc_grad"] == expected
    assert "0:final_norm.output:0/rank0/actv" in actv
    assert "0:final_norm.output:0/rank0/actv_grad" in actv_grad
    optimizer.step()
    assert len(steps_of(monitor)) == 1


def test_msprobe_with_accelerates_optimizer() -> None:
    """The wrapped optimizer is an attribute of the framework's."""
    write_config("monitor_config.json")
    model = Model()
    optimizer = SimpleNamespace(optimizer=adam(model))
    monitor = TrainerMon("monitor_config.json")
    monitor.set_wrapped_optimizer(
        optimizer.optimizer
    )  # optimizer.optimizer为DeepSpeedZeroOptimizer
    monitor.monitor_gnorm_with_ad(model, optimizer=optimizer.optimizer)
    train(model, optimizer.optimizer, 2)
    assert len(steps_of(monitor)) == 2


def test_msprobe_with_deepspeed() -> None:
    write_config("monitor_config.json")
    model = Model()
    optimizer = adam(model)
    # 以zero1优化器举例，opt_ty取值DeepSpeedZeroOptimizer_Stage1_or_2
    # 示例为deepspeed，params_have_main_grad取值False
    monitor = TrainerMon(
        "./monitor_config.json",
        params_have_main_grad=False,
        opt_ty="DeepSpeedZeroOptimizer_Stage1_or_2",
    )
    monitor.set_wrapped_optimizer(optimizer)  # optimzier为训练框架自定义的优化器
    monitor.monitor_gnorm_with_ad(model, grad_acc_steps=model.grad_acc_steps, optimizer=optimizer)

    train(model, optimizer)
    monitor.ops = ["min", "max"]
    monitor.reload_xy(xy_distribution=True)
    model(draw(3, 4))
    actv, _ = monitor.generate_xy_metrics()
    assert set(actv["0:final_norm.output:0/rank0/actv"]) == {"min", "max"}
    monitor.close()


def test_msprobe_with_a_pipelines_group() -> None:
    write_config("monitor_config.json")
    store = torch.distributed.HashStore()  # type: ignore[attr-defined]
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        group = torch.distributed.group.WORLD
        mpu = SimpleNamespace(get_pipeline_model_parallel_group=lambda: group)
        monitor = TrainerMon(
            "./monitor_config.json",
            process_group=mpu.get_pipeline_model_parallel_group(),
            params_have_main_grad=True,
        )
    finally:
        torch.distributed.destroy_process_group()
    model = Model()
    optimizer = adam(model)
    monitor.set_monitor(model, optimizer)
    train(model, optimizer)
    assert [s.pp_stage for s in steps_of(monitor)] == [0]


class LanguageModel(nn.Module):
    """Its layers take two arguments and return one tensor, as in both documents' examples."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = linear()

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            y: Tensor = self.mlp(x) * mask
            return y

    def __init__(self) -> None:
        super().__init__()
        self.language_model = nn.Module()
        encoder = nn.Module()
        self.layers = [LanguageModel.Layer() for _ in range(2)]
        encoder.add_module("layers", nn.ModuleList(self.layers))
        self.language_model.add_module("encoder", encoder)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(4, dtype=torch.float64)
        for layer in self.layers:
            x = layer(x, mask)
        return x


EXAMPLE = {
    "targets": {
        "language_model.encoder.layers.0": {
            "input": "tuple[2]:0",
            "output": "tensor",
            "input_grad": "tuple[2]:0",
            "output_grad": "tuple[1]:0",
        }
    },
    "print_struct": False,
    "module_ranks": [0, 1, 2, 3],
    "xy_distribution": True,
    "mv_distribution": True,
    "wg_distribution": True,
    "alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}]},
    "ops": ["min", "max", "norm", "zeros", "id"],
    "eps": 1e-8,
}


@pytest.mark.parametrize("wrappers", [0, 2])
def test_the_documents_example_of_a_configuration(wrappers: int) -> None:
    model: nn.Module = LanguageModel()
    for _ in range(wrappers):
        model = Wrapper(model)
    name = "module." * wrappers + "language_model.encoder.layers.0"
    x = draw(3, 4).requires_grad_()
    y = model.get_submodule(name)(x, torch.ones(4, dtype=torch.float64))
    optimizer = adam(model)
    monitor = TrainerMon(EXAMPLE)
    monitor.set_monitor(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(x).sum().backward()
        optimizer.step()
    (step,) = steps_of(monitor)
    assert rows(monitor) == rows(monitor, "actv_grad") == {f"{name}.input", f"{name}.output"}
    assert rows(monitor, "grad_reduced") == {f"{name}.mlp.weight", f"{name}.mlp.bias"}
    activations = {r["row"]: r["norm"] for r in step.records if r["quantity"] == "actv"}
    assert activations[f"{name}.output"] == pytest.approx(norm(y), rel=1e-12)
    gradients = {r["row"]: r["norm"] for r in step.records if r["quantity"] == "actv_grad"}
    assert gradients[f"{name}.input"] == pytest.approx(norm(x.grad), rel=1e-12)


# ---- both orders of arguments, optimizers named early, late and never ----


@pytest.mark.parametrize("method", ["set_monitor", "monitor_gnorm_with_ad"])
@pytest.mark.parametrize(
    "call",
    [
        lambda f, m, o: f(m, o, 1, None, None, 7),
        lambda f, m, o: f(m, o, grad_acc_steps=1, start_iteration=7),
        lambda f, m, o: f(m, 1, o, start_iteration=7),
        lambda f, m, o: f(m, 4.0, o, None, None, start_iteration=7),
        lambda f, m, o: f(m, optimizer=o, dp_group=None, tp_group=None, start_iteration=7),
    ],
)
def test_both_orders(
    method: str, call: Callable[[Any, nn.Module, torch.optim.Optimizer], None]
) -> None:
    model = Model()
    optimizer = adam(model)
    monitor = TrainerMon({"wg_distribution": True, "format": "api"})
    call(getattr(monitor, method), model, optimizer)
    train(model, optimizer, 2)
    assert [s.step for s in steps_of(monitor)] == [7, 8]
    assert monitor.step_number == 9


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((None, 1, None, None, 0, 1), {}, "at most 6"),
        ((1,), {"grad_acc_steps": 2}, "two values for 'grad_acc_steps'"),
        ((), {"grad_acc_step": 2}, "no argument 'grad_acc_step'"),
        ((), {"start_iteration": "3"}, "is an integer, not '3'"),
        ((object(),), {}, "a object has no step hooks"),
        ((MagicMock(),), {}, "a MagicMock has no step hooks"),
    ],
)
def test_wrong_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    monitor = TrainerMon({"format": "api"})
    with pytest.raises(TypeError, match=message):
        monitor.set_monitor(Model(), *args, **kwargs)
    monitor.close()


def test_wrong_arguments_of_the_constructor() -> None:
    with pytest.raises(TypeError, match="write params_have_main_grad=False"):
        TrainerMon({}, False)
    kj600.module_hook.TrainerMon({}, False).close()
    monitor = TrainerMon({})
    with pytest.raises(ValueError, match="is not negative; it is -1"):
        monitor.set_monitor(Model(), None, start_iteration=-1)
    monitor.close()


def test_an_optimizer_that_is_found_by_its_parameters() -> None:
    model, other = Model(), Model()
    monitor = TrainerMon(EVERYTHING)
    monitor.hook_modules(model)
    train(other, adam(other), 2)
    train(model, adam(model), 3)  # which dies
    second = adam(model, other)
    train(model, second, 1)
    train(other, adam(other, model), 2)  # neither are those that come while it lives
    assert [s.step for s in steps_of(monitor)] == [0, 1, 2, 3]
    assert "encoder.layers.0.mlp.weight" in rows(monitor, "exp_avg")
    train(model, second)
    assert len(steps_of(monitor)) == 4


def test_the_classes_optimizer_is_for_monitors_without_their_own() -> None:
    first, second = Model(), Model()
    shared, own = adam(first, second), adam(second)
    before = TrainerMon(EVERYTHING)
    before.hook_modules(first)
    has_own = TrainerMon(EVERYTHING)
    has_own.set_wrapped_optimizer(own)
    has_own.hook_modules(second)
    TrainerMon.set_wrapped_optimizer(shared)
    after = TrainerMon(EVERYTHING)
    after.hook_modules(second)
    train(first, shared, 2)
    train(second, own, 1)
    assert [m.step_number for m in (before, has_own, after)] == [2, 1, 2]
    for monitor in (before, has_own, after):
        monitor.close()


def test_nothing_stays_of_the_global_hooks() -> None:
    from torch.optim import optimizer as module

    counts = [len(module._global_optimizer_pre_hooks), len(module._global_optimizer_post_hooks)]
    monitor = TrainerMon(EVERYTHING)
    monitor.hook_modules(Model())
    assert len(module._global_optimizer_pre_hooks) == counts[0] + 2
    monitor.close()
    assert counts == [
        len(module._global_optimizer_pre_hooks),
        len(module._global_optimizer_post_hooks),
    ]


def test_chunks_of_a_virtual_pipeline() -> None:
    chunks = [Model(1), Model(1)]
    optimizer = adam(*chunks)
    monitor = TrainerMon(
        {**EVERYTHING, "targets": {"final_norm": {}, "1:encoder.layers.0": {"output": "tuple[2]"}}}
    )
    monitor.set_monitor(chunks, optimizer)
    outputs = []
    between = [chunks[0](draw(3, 4)) for _ in range(2)]  # one chunk may be ahead of the other
    for x in between:
        outputs.append((x, chunks[1](x)))
        outputs[-1][1].sum().backward()
    actv, _ = monitor.generate_xy_metrics()
    reduced, _ = monitor.generate_wgrad_metrics()
    optimizer.step()
    for micro_step, pair in enumerate(outputs):
        for stage, output in enumerate(pair):
            values = actv[f"{stage}:final_norm.output:{micro_step}/rank0/actv"]
            assert values["norm"] == pytest.approx(norm(output), rel=1e-12)
    assert {tag.split("/")[0] for tag in reduced} == {
        *(f"{stage}:final_norm.{name}" for stage in (0, 1) for name in ("weight", "bias")),
        *(f"1:encoder.layers.0.mlp.{name}" for name in ("weight", "bias")),
    }
    (step,) = steps_of(monitor)
    assert step.micro_steps == 2
    stages = {(r["row"], r["vpp_stage"]) for r in step.records if r["quantity"] == "actv"}
    assert ("encoder.layers.0.output", 1) in stages
    assert ("encoder.layers.0.output", 0) not in stages


# ---- values on demand ----


def test_metrics_are_of_now_and_recorded_once() -> None:
    model = Model()
    optimizer = adam(model)
    ops = ["norm", "min", "max", "mean", "zeros", "nans", "id", "shape", "dtype"]
    monitor = TrainerMon({**EVERYTHING, "ops": ops})
    with pytest.raises(RuntimeError, match="set_monitor"):
        monitor.generate_wgrad_metrics()
    monitor.set_monitor(model, optimizer)
    assert monitor.generate_xy_metrics() == ({}, {})
    assert monitor.generate_wgrad_metrics() == ({}, {})  # no gradients yet
    x = draw(3, 4)
    y = model(x)
    y.sum().backward()
    weight = model.get_parameter("encoder.layers.1.mlp.weight")
    for _ in range(2):
        assert weight.grad is not None
        weight.grad.mul_(3)
        grad = weight.grad
        reduced, _ = monitor.generate_wgrad_metrics()
        assert reduced["0:encoder.layers.1.mlp.weight/rank0/post_grad"] == {
            "norm": pytest.approx(norm(grad), rel=1e-12),
            "min": grad.min().item(),
            "max": grad.max().item(),
            "mean": pytest.approx(grad.mean().item(), rel=1e-9),
            "zeros": (grad.abs() < 1e-8).double().mean().item(),
            "nans": 0,
            "id": None,
            "shape": (4, 4),
            "dtype": "torch.float64",
        }
    actv, actv_grad = monitor.generate_xy_metrics()
    assert actv["0:.input:0/rank0/actv"]["norm"] == pytest.approx(norm(x), rel=1e-12)
    assert actv_grad["0:.output:0/rank0/actv_grad"]["mean"] == 1.0
    monitor.ops = []
    assert monitor.ops == ["norm"]
    for bad in (["norm", "median"], [1]):
        with pytest.raises(ValueError, match="is not one of norm, min"):
            monitor.ops = bad  # type: ignore[assignment]
    assert monitor.ops == ["norm"]
    optimizer.step()
    assert monitor.generate_xy_metrics() == ({}, {})
    (step,) = steps_of(monitor)
    keys = [(r["row"], r["quantity"], r["micro_step"], r["call"]) for r in step.records]
    assert len(keys) == len(set(keys))


def test_reload_xy() -> None:
    model = Model()
    optimizer = adam(model)
    monitor = TrainerMon({"format": "api", "wg_distribution": True})
    monitor.set_monitor(model, optimizer)
    for xy_distribution in (True, False):
        train(model, optimizer)
        monitor.reload_xy(xy_distribution)
    train(model, optimizer)
    steps = steps_of(monitor)
    assert [s.micro_steps for s in steps] == [1, 1, 1]
    counts = [sum(r["quantity"] == "actv" for r in s.records) for s in steps]
    assert counts[0] == counts[2] == 0
    assert counts[1] > 10


# ---- targets ----


def hooked(targets: dict[str, Any], model: nn.Module, **fields: Any) -> TrainerMon:
    monitor = TrainerMon({**EVERYTHING, "targets": targets, **fields})
    optimizer = adam(model)
    monitor.set_monitor(model, optimizer)
    train(model, optimizer)
    return monitor


LAYER = "encoder.layers.0"


@pytest.mark.parametrize(
    ("spec", "expected", "gradients"),
    [
        (
            {},
            {"input", "output_0", "output_1"},
            {"input", "output_0", "output_1"},
        ),
        ({"input": "tuple[2]", "output": "tuple[2]:1"}, {"input", "output"}, set()),
        ({"input": "tuple[2]:1"}, set(), set()),  # None
        ({"output": "tuple[2]:0"}, {"output"}, set()),
        ({"input_grad": "tuple[2]:0", "output_grad": "tuple[2]:1"}, set(), {"input", "output"}),
        ({"input_grad": "tuple[2]"}, set(), {"input"}),
    ],
)
def test_sides(spec: dict[str, str], expected: set[str], gradients: set[str]) -> None:
    model = Model()
    seen: dict[str, Any] = {}
    model.get_submodule(LAYER).register_forward_hook(
        lambda _m, args, output: seen.update(input=args[0], outputs=output)
    )
    monitor = hooked({LAYER: spec}, model)
    assert rows(monitor) == {f"{LAYER}.{side}" for side in expected}
    assert rows(monitor, "actv_grad") == {f"{LAYER}.{side}" for side in gradients}
    chosen = {
        "input": seen["input"],
        "output": seen["outputs"][int(spec.get("output", ":0")[-1])],
        "output_0": seen["outputs"][0],
        "output_1": seen["outputs"][1],
    }
    for record in steps_of(monitor)[0].records:
        if record["quantity"] == "actv":
            side = record["row"].removeprefix(f"{LAYER}.")
            assert record["norm"] == pytest.approx(norm(chosen[side]), rel=1e-12)


def test_gradients_of_sides() -> None:
    """Against torch's own full backward hook, on a twin."""
    model = Model()
    twin = copy.deepcopy(model)
    found: dict[str, Any] = {}
    twin.get_submodule(LAYER).register_full_backward_hook(
        lambda _m, grad_input, grad_output: found.update(input=grad_input[0], out=grad_output[1])  # type: ignore[index]
    )
    spec = {"input_grad": "tuple[2]:0", "output_grad": "tuple[2]:1"}
    monitor = TrainerMon({**EVERYTHING, "targets": {LAYER: spec}})
    optimizer = adam(model)
    monitor.set_monitor(model, optimizer)
    x = draw(3, 4)
    for one in (model, twin):
        one(x).pow(2).sum().backward()
    optimizer.step()
    (step,) = steps_of(monitor)
    values = {r["row"]: r["norm"] for r in step.records if r["quantity"] == "actv_grad"}
    assert values == {
        f"{LAYER}.input": pytest.approx(norm(found["input"]), rel=1e-12),
        f"{LAYER}.output": pytest.approx(norm(found["out"]), rel=1e-12),
    }


@pytest.mark.parametrize(
    ("spec", "real"),
    [
        ({"input": "tensor"}, "tuple[2]"),
        ({"input": "tuple[3]:2"}, "tuple[2]"),
        ({"output": "tensor"}, r"size=(3, 4), dtype=torch.float64"),
        ({"output": "tuple[1]"}, "tuple[2]"),
        ({"input_grad": "tuple[1]"}, "<class 'NoneType'>"),
        ({"output_grad": "tuple[4]:3"}, r"size=(4,), dtype=torch.float64"),
    ],
)
def test_a_side_that_does_not_fit(spec: dict[str, str], real: str) -> None:
    model = Model()
    monitor = TrainerMon({**EVERYTHING, "targets": {LAYER: spec}})
    optimizer = adam(model)
    monitor.set_monitor(model, optimizer)
    with pytest.warns(RuntimeWarning, match="does not fit") as caught:
        train(model, optimizer, 3)
    (message,) = [str(w.message) for w in caught]
    ((side, _),) = spec.items()
    assert f'"{side}": "' in message
    assert f"'{LAYER}'" in message
    assert real in message
    assert rows(monitor) == rows(monitor, "actv_grad") == set()


def test_keyword_arguments_follow_the_positional_ones() -> None:
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = Layer()

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x=x, mask=None, scale=2.0)[0]
            return y

    monitor = hooked({"layer": {"input": "tuple[3]:0"}}, Caller())
    assert rows(monitor) == {"layer.input"}
    monitor = hooked({"layer.mlp": {"input": "tensor", "output": "tensor"}}, Caller())
    assert rows(monitor) == {"layer.mlp.input", "layer.mlp.output"}


@pytest.mark.parametrize(
    ("target", "modules", "parameters"),
    [
        (LAYER, 1, 2),
        (f"module.{LAYER}", 1, 2),
        (f"module.module.{LAYER}", 1, 2),
        (f"_orig_mod.module.{LAYER}", 1, 2),
        (f"0:{LAYER}", 1, 2),
        (f"1:{LAYER}", 0, 0),
        ("0.mlp", 1, 2),
        ("layers.0.mlp", 1, 2),
        ("embedding.word_embedding.weight", 0, 1),
        ("word_embedding", 1, 2),
        ("module", 1, 8),
        ("_orig_mod", 0, 0),
        ("encoder.layers", 1, 4),
        ("layers.1.ml", 0, 0),
    ],
)
@pytest.mark.filterwarnings("ignore:tensorprobe. targets")
def test_names_with_and_without_wrappers(target: str, modules: int, parameters: int) -> None:
    class OptimizedModule(nn.Module):
        """As torch.compile wraps."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self._orig_mod = inner

        def forward(self, *args: Any) -> Any:
            return self._orig_mod(*args)

    model = Wrapper(OptimizedModule(Model()))
    monitor = hooked({target: {}}, model, forward_only=True)
    found = rows(monitor)
    if target not in ("encoder.layers",):  # a list, which is never called
        assert len({row.rsplit(".", 1)[0] for row in found}) == modules
    assert len(rows(monitor, "param_origin")) == parameters


def test_squashed_names() -> None:
    """Expected: what the newest ancestor's function gives, written down by hand."""
    names = {
        "module.module.language_model.encoder.layers.63.mlp.linear_fc2": "layers.63.mlp.linear_fc2",
        "layers.3.mlp": "layers.3.mlp",
        "a.layer.1.b.layer.2.w": "layer.2.w",
        "model.embeddings.word": "embeddings.word",
        "module.final_layernorm.weight": "final_layernorm.weight",
        "module.output_layer.weight": "output_layer.weight",
        "module.norm.weight": "norm.weight",
        "fc1.weight": "fc1.weight",
    }
    assert {name: squashed(name) for name in names} == names
    assert unwrapped("module.module._orig_mod.a.module.b") == "a.module.b"
    assert unwrapped("a._checkpoint_wrapped_module.b._fsdp_wrapped_module.w") == "a.b.w"
    assert unwrapped("module") == unwrapped("_orig_mod") == ""
    model = Wrapper(Model())
    monitor = hooked({"0.mlp": {}, "final_norm": {}}, model, squash_name=True)
    assert rows(monitor) == {
        f"{name}.{side}" for name in ("layers.0.mlp", "final_norm") for side in ("input", "output")
    }
    assert "layers.0.mlp.weight" in rows(monitor, "param_origin")


def test_squashed_names_that_are_the_same_stay_long() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.ModuleDict({"layers": nn.Sequential(linear())})
            self.b = nn.ModuleDict({"layers": nn.Sequential(linear())})

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.b["layers"](self.a["layers"](x))
            return y

    monitor = hooked({}, Two(), squash_name=True)
    assert {"a.layers.0.weight", "b.layers.0.weight"} <= rows(monitor, "param_origin")


def test_a_target_that_names_nothing() -> None:
    monitor = TrainerMon({**EVERYTHING, "targets": {"encoder.layer.0": {}, "fc9": {}}})
    model = Model()
    with pytest.warns(RuntimeWarning, match=r"no module or parameter 'encoder.layer.0';.*'fc9'"):
        monitor.set_monitor(model, adam(model))
    monitor.close()


def test_messages(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        monitor = TrainerMon({**EVERYTHING, "targets": {LAYER: {}, "final_norm": {}}}, rank=rank)
        model = Model()
        monitor.set_monitor(model, adam(model))
        monitor.close()
    assert capsys.readouterr().out.splitlines() == [
        f"> {LAYER} is monitored successfully",
        "> final_norm is monitored successfully",
        "> 2 out of 2 modules are monitored.",
    ]
    monkeypatch.setenv("TENSORPROBE_LOG_LEVEL", "2")
    monitor = TrainerMon(EVERYTHING)
    monitor.hook_modules(Model())
    monitor.close()
    assert capsys.readouterr().out == ""


# ---- which steps, which ranks ----


@pytest.mark.parametrize(
    ("fields", "begin", "expected"),
    [
        ({"start_step": 3}, 0, [3, 4, 5, 6, 7]),
        ({"step_interval": 3}, 0, [0, 3, 6]),
        ({"start_step": 2, "step_interval": 2, "collect_times": 2}, 0, [2, 4]),
        ({"start_step": 12, "step_interval": 2}, 10, [12, 14, 16]),
        ({"start_step": 3, "step_interval": 4}, 10, [11, 15]),
        ({"collect_times": 0}, 0, []),
    ],
)
def test_steps_that_are_collected(fields: dict[str, int], begin: int, expected: list[int]) -> None:
    model = Model()
    optimizer = adam(model)
    monitor = TrainerMon({**EVERYTHING, **fields})
    monitor.set_monitor(model, optimizer, start_iteration=begin)
    for _ in range(8):
        train(model, optimizer)
        assert monitor.generate_xy_metrics() == ({}, {})
    assert monitor.step_number == begin + 8
    steps = steps_of(monitor)
    assert [s.step for s in steps] == expected
    assert len({len(s.records) for s in steps[1:]}) <= 1
    assert all(s.micro_steps == 1 for s in steps)


def test_the_last_collected_step_takes_the_hooks_back() -> None:
    model = Model()
    optimizer = adam(model)
    monitor = TrainerMon({**EVERYTHING, "collect_times": 2})
    monitor.set_monitor(model, optimizer)
    counts = []
    for _ in range(3):
        counts.append(sum(len(m._forward_pre_hooks) for m in model.modules()))
        train(model, optimizer)
    assert counts[0] == counts[1] > 5
    assert counts[2] == 0
    monitor.close()


def test_a_graph_of_a_collected_step_may_run_in_one_that_is_not() -> None:
    model = Model()
    optimizer = adam(model)
    monitor = TrainerMon({**EVERYTHING, "step_interval": 2})
    monitor.set_monitor(model, optimizer)
    loss = model(draw(3, 4)).sum()
    optimizer.step()
    loss.backward()
    optimizer.step()
    assert [s.step for s in steps_of(monitor)] == [0]


@pytest.mark.parametrize("ranks", [[0, 2], "0,2"])
def test_ranks_that_are_watched(ranks: Any) -> None:
    for rank, count in ((0, 2), (1, 0), (2, 2)):
        model = Model()
        optimizer = adam(model)
        monitor = TrainerMon({**EVERYTHING, "module_ranks": ranks}, rank=rank)
        monitor.set_monitor(model, optimizer)
        train(model, optimizer, 2)
        monitor.reload_xy(True)
        assert bool(model._forward_pre_hooks) is (count > 0)
        assert len(steps_of(monitor)) == count


def test_training_is_not_changed() -> None:
    """By sides, skipped steps, the global hooks and values on demand."""

    def run(watched: bool) -> list[Tensor]:
        torch.manual_seed(5)
        model = Model()
        optimizer = adam(model)
        if watched:
            sides = {"input_grad": "tuple[2]", "output_grad": "tuple[2]:1", "output": "tuple[2]"}
            monitor = TrainerMon({**EVERYTHING, "targets": {LAYER: sides}, "step_interval": 2})
            monitor.hook_modules(model)
        for _ in range(6):
            optimizer.zero_grad()
            model(draw(3, 4)).pow(2).sum().backward()
            if watched:
                monitor.generate_wgrad_metrics()
                monitor.generate_xy_metrics()
            optimizer.step()
        if watched:
            monitor.close()
        return [p.detach() for p in model.parameters()]

    for left, right in zip(run(False), run(True), strict=True):
        assert torch.equal(left, right)


# ---- print_struct ----

PRINT = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from test_trainer_mon import Model, Wrapper, adam, draw
from tensorprobe import TrainerMon
model = Model()
optimizer = adam(model)
monitor = TrainerMon("monitor.json")
if "--global" in sys.argv:
    monitor.hook_modules(model)
else:
    monitor.set_monitor(model, optimizer)
for step in range(3):
    model.eval()
    model(draw(7, 4))
    model.train()
    model(draw(3, 4)).sum().backward()
    try:
        optimizer.step()
    except Exception:
        print("caught")
    print("after step", step)
print(sum(len(m._forward_hooks) for m in list(model.modules())[1:]))  # the root is counted on
"""


def run_print_struct(tmp_path: Path, *arguments: str) -> tuple[list[str], dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", PRINT, str(Path(__file__).parent), *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    path = tmp_path / "monitor_output" / "module_struct" / "rank0" / "module_struct.json"
    lines = done.stdout.splitlines()
    structure: dict[str, Any] = json.loads(path.read_text())
    assert json.loads(lines[lines.index("> module struct:") + 1]) == structure
    return lines, structure


X = "size=(3, 4), dtype=torch.float64"
NONE = "<class 'NoneType'>"


@pytest.mark.parametrize("arguments", [(), ("--global",)])
def test_print_struct_ends_the_run(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    Path("monitor.json").write_text('{"print_struct": true}')
    lines, structure = run_print_struct(tmp_path, *arguments)
    assert not [line for line in lines if line in ("caught", "after step 0")]
    assert list(structure)[:2] == ["0:", "0:embedding.word_embedding"]
    assert len(structure) == 7  # those that were called
    assert lines[-1] == '> the run ends here; "exit_after_struct": false goes on'
    assert structure["0:encoder.layers.0"] == {
        "input": {"config": "tuple[2]", "0": X, "1": NONE},
        "output": {"config": "tuple[2]", "0": X, "1": "size=(4,), dtype=torch.float64"},
        "input_grad": {"config": "tuple[2]", "0": X, "1": NONE},
        "output_grad": {"config": "tuple[2]", "0": X, "1": "size=(4,), dtype=torch.float64"},
    }
    assert structure["0:"] == {
        "input": {"config": "tuple[1]", "0": X},
        "output": {"config": "tensor", "tensor": X},
        "input_grad": {"config": "tuple[1]", "0": NONE},
        "output_grad": {"config": "tuple[1]", "0": X},
    }


def test_print_struct_may_go_on(tmp_path: Path) -> None:
    Path("monitor.json").write_text('{"print_struct": true, "exit_after_struct": false}')
    lines, _ = run_print_struct(tmp_path)
    assert [line for line in lines if line.startswith("after")] == [
        f"after step {step}" for step in range(3)
    ]
    assert lines.count("> module struct:") == 1
    assert not [line for line in lines if "the run ends here" in line]
    assert lines[-1] == "0"


def test_printed_structure_as_targets_selects_the_same_tensors() -> None:
    model = Wrapper(Model())
    optimizer = adam(model)
    monitor = TrainerMon({"print_struct": True, "exit_after_struct": False})
    monitor.set_monitor(model, optimizer)
    train(model, optimizer)
    monitor.close()
    structure = json.loads(
        Path("monitor_output/module_struct/rank0/module_struct.json").read_text()
    )
    targets = {key: {side: own[side]["config"] for side in own} for key, own in structure.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen = hooked(targets, model)
        everything = hooked({}, model)
    for quantity in ("actv", "actv_grad"):
        several = {row for row in rows(everything, quantity) if row[-2:] in ("_0", "_1")}
        firsts = {row[:-2] for row in several if row.endswith("_0")}
        assert rows(chosen, quantity) == rows(everything, quantity) - several | firsts
