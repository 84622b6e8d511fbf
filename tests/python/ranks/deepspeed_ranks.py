"""DeepSpeed's layouts, each trained without and with a monitor: one rank of them."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor

import common
import tensorprobe
from common import STEPS, Collectives, Truth

CLIP, MICROS = 0.3, 2


class FusedAdamW(torch.optim.AdamW):
    """torch's own, which DeepSpeed takes for its fused one, and so wraps in FP16_Optimizer."""


class Layout:
    """One configuration of the engine."""

    def __init__(
        self,
        stage: int,
        *,
        dtype: str = "f32",
        zero: dict[str, Any] | None = None,
        fused: bool = False,
        grad_accum_dtype: str | None = None,
        place: str = "after",
        micros: int = MICROS,
        scale: float = 0,
        each: bool = False,
        checks: bool = False,
        autocast: bool = False,
        power: int = 8,
    ) -> None:
        """each: gradients before the reduction are recorded of each micro step. checks: over ranks.

        power: of 2, what the loss is multiplied by at first.
        """
        self.each, self.checks, self.power = each, checks, power
        self.stage, self.dtype, self.fused, self.place = stage, dtype, fused, place
        self.micros = micros
        self.said: list[float] = []
        """By step: by what the wrapper says that the loss is multiplied."""
        self.config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": micros,
            "gradient_clipping": CLIP,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": stage,
                "reduce_bucket_size": 1500,
                "stage3_param_persistence_threshold": 0,
                "sub_group_size": 2000,
                **(zero or {}),
            },
        }
        if dtype == "bf16":
            self.config["bf16"] = {"enabled": True}
        if dtype == "fp16":
            self.config["fp16"] = {
                "enabled": True,
                "loss_scale": scale,
                "initial_scale_power": power,
                "hysteresis": 1,
            }
        if autocast:
            self.config["torch_autocast"] = {"enabled": True, "dtype": "float16"}
        if grad_accum_dtype:
            self.config["data_types"] = {"grad_accum_dtype": grad_accum_dtype}

    def optimizer(self, model: torch.nn.Module) -> torch.optim.Optimizer:
        """Two groups, as trainers have them: with and without weight decay."""
        kind = FusedAdamW if self.fused else torch.optim.AdamW
        decay = [p for p in model.parameters() if p.dim() > 1]
        other = [p for p in model.parameters() if p.dim() <= 1]
        groups = [{"params": decay, "weight_decay": 0.01}, {"params": other, "weight_decay": 0.0}]
        return kind(groups, lr=common.LR, betas=common.BETAS, eps=common.EPS)

    def train(self, watch: Callable[..., Any] | None, truth: Truth) -> None:
        """With the monitor that watch makes, or, without one, writing down the truth."""
        model = common.make_model()
        names: dict[Any, str] = {p: f"0:{n}" for n, p in model.named_parameters()}
        base = self.optimizer(model)
        local: dict[tuple[str, int], Tensor] = {}
        alone: dict[tuple[str, int], Tensor] = {}  # the same of micro steps
        micro_of: dict[str, int] = defaultdict(int)
        step = 0

        def collect(name: str) -> Callable[[Tensor], None]:
            def hook(grad: Tensor) -> None:
                part = grad.detach().float().clone()
                if self.each:
                    alone[name, common.by_micro(step, micro_of[name])] = part
                    micro_of[name] += 1
                before = local.get((name, step))
                local[name, step] = part if before is None else before + part

            return hook

        monitor = None
        if watch is not None and self.place == "before":
            monitor = watch(model)
        if watch is None:
            for p, n in names.items():
                p.register_hook(collect(n))
        engine, *_ = deepspeed.initialize(model=model, optimizer=base, config=self.config)
        zero = engine.optimizer
        if watch is not None and self.place == "after":
            monitor = watch(model, zero)
        elif watch is not None and self.place == "engine":
            monitor = watch(engine, zero.optimizer)
        scales: list[float] = []
        scaler: Any = engine.torch_autocast_z0_gradscaler
        if scaler is not None and self.power > 8:
            scaler._init_scale = 2.0**self.power
        self.said = []
        for step in range(STEPS):
            micro_of.clear()
            begin = Collectives.now()
            for micro in range(self.micros):
                if watch is None and micro == 0:
                    self.weights(names, step, truth.origin)
                    begin = Collectives.now()
                loss = common.loss_of(engine, common.batch(step, micro, dist.get_rank()))
                engine.backward(loss)
                if micro == self.micros - 1:
                    scale = float(getattr(zero, "loss_scale", 1.0)) if self.dtype == "fp16" else 1.0
                    self.said.append(scale)
                    scales.append(scale if self.stage > 0 else 1.0)
                    if scaler is not None:
                        scales[-1] = scaler.get_scale()
                engine.step()
            truth.collectives.append(Collectives.now() - begin)
            skipped = scaler is not None and scaler.get_scale() < scales[-1]
            truth.skipped.append(skipped or bool(getattr(zero, "overflow", False)))
            norm = engine.get_global_grad_norm()
            truth.norms[step] = -1.0 if norm is None else float(norm)
            if watch is None:
                self.weights(names, step, truth.updated)
        truth.state = common.digest(
            [p.ds_tensor if self.stage == 3 else p for p in names],
            list(base.state.values()),
        )
        if monitor is not None:
            truth.kinds = sorted(monitor._optimizers.kinds())
            monitor.close()
        if watch is None:
            self.finish(truth, local, scales)
            if self.each:
                truth.unreduced = {(n, at): g / scales[at // 100] for (n, at), g in alone.items()}
        engine.destroy()

    def weights(self, names: dict[Any, str], step: int, into: dict[Any, Tensor]) -> None:
        """What the parameters are now, all of them."""
        for p, n in names.items():
            if self.stage == 3:
                with deepspeed.zero.GatheredParameters([p]):
                    into[n, step] = p.detach().clone()
            else:
                into[n, step] = p.detach().clone()

    def finish(
        self, truth: Truth, local: dict[tuple[str, int], Tensor], scales: list[float]
    ) -> None:
        """Reduce by ourselves, and simulate Adam."""
        for (name, step), value in local.items():
            truth.unreduced[name, step] = value / scales[step]
            total = value.double()
            dist.all_reduce(total)
            truth.reduced[name, step] = total / dist.get_world_size() / scales[step]
        names = list({name: None for name, _ in local})
        for step in range(STEPS):
            if truth.norms[step] < 0:
                squares = sum(truth.reduced[n, step].square().sum().item() for n in names)
                truth.norms[step] = squares**0.5
        clip = common.clipping(truth, CLIP)
        if self.stage > 0 or self.dtype == "f32":
            common.adam(truth, names, clip)
            return

        # Without ZeRO the engine doesn't multiply the loss, but the step divides by the scale.
        def divided(step: int) -> float:
            scale = self.said[step]
            return min(1 / scale, CLIP / (truth.norms[step] + 1e-6 * scale))

        common.adam(truth, names, divided, begun=True)

    def skipping(self, monitor: Any, truth: Truth, second: Truth) -> dict[str, Any]:
        """Some steps were skipped, and are marked; the rest of it is what other layouts check."""
        marked = [step.skipped for step in tensorprobe.Journal(monitor.directory)]
        problems = [] if truth.state == second.state else ["training has other bits"]
        return {"problems": problems, "marked": marked, "skipped": truth.skipped}

    def __call__(self, out: Path) -> dict[str, Any]:
        """Both trainings, and the comparison."""
        truth, second, monitor = common.train_twice(self.train, out, self.each, self.checks)
        if self.power > 8:
            return self.skipping(monitor, truth, second)
        found = common.compare(truth, second, monitor, self.dtype, self.each, self.checks)
        return {**found, "stage": self.stage}


def layouts() -> Iterator[tuple[str, Layout]]:
    """All of them, by name."""
    for stage in range(4):
        for dtype in ("f32", "bf16", "fp16"):
            yield f"z{stage}_{dtype}", Layout(stage, dtype=dtype)
    yield "z1_bf16_f32", Layout(1, dtype="bf16", grad_accum_dtype="fp32")
    yield "z2_bf16_f32", Layout(2, dtype="bf16", grad_accum_dtype="fp32")
    yield "z0_bf16_fused", Layout(0, dtype="bf16", fused=True)
    yield "z2_round_robin", Layout(2, zero={"round_robin_gradients": True})
    offload = {"offload_optimizer": {"device": "cpu"}}
    yield "z1_offload", Layout(1, zero=offload)
    yield "z2_offload", Layout(2, zero=offload)
    yield "z3_offload", Layout(3, zero=offload)
    for stage in range(4):
        yield f"z{stage}_each", Layout(stage, each=True)
    yield "z0_f32_checks", Layout(0, checks=True)
    yield "z0_bf16_checks", Layout(0, dtype="bf16", checks=True)
    yield "z1_bf16_checks", Layout(1, dtype="bf16", grad_accum_dtype="fp32", checks=True)
    yield "z2_fp16_checks", Layout(2, dtype="fp16", checks=True)
    yield "z3_f32_checks", Layout(3, checks=True)
    yield "z0_autocast", Layout(0, autocast=True)
    yield "z2_fp16_each", Layout(2, dtype="fp16", each=True)
    for stage in (1, 3):
        yield f"z{stage}_skips", Layout(stage, dtype="fp16", power=19)
    yield "z0_autocast_skips", Layout(0, autocast=True, power=22)
    yield "z2_before", Layout(2, place="before")
    yield "z3_before", Layout(3, place="before")
    yield "z3_engine", Layout(3, place="engine")
    yield "z1_engine", Layout(1, place="engine", micros=1)


if __name__ == "__main__":
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    sys.modules["deepspeed.runtime.engine"].FusedAdam = FusedAdamW  # type: ignore[attr-defined]
    kind = type(deepspeed.accelerator.get_accelerator())
    kind.is_fp16_supported = lambda _: True  # as torch computes with it on CPUs
    deepspeed.logger.setLevel("ERROR")
    common.main(dict(layouts()))
