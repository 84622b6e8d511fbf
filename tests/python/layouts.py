"""Trains a tiny GPT in several processes under many layouts, watched and not, and writes what came.

Started by test_frameworks.py, once for each number of processes. What is expected comes from one
plain model in one process, which sees the batches of all: its gradients are what each process finds
before, and all find after the reduction; its weights and moments are those of every layout.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed, nn

import tensorprobe
from tensorprobe import _checks

CHECK, COPIES = _checks.ReplicaCheck.check, _checks.ReplicaCheck._copies
VOCAB, HIDDEN, TOKENS, STEPS, CLIP = 31, 16, 8, 6, 0.5


class Block(nn.Module):
    """Without a bias of the keys, whose gradient would be nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.q, self.k = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(2))
        self.v, self.proj = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.fc, self.out = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Any) -> Any:
        batch, tokens, _ = x.shape
        h = self.norm1(x)
        q, k, v = (
            part(h).view(batch, tokens, -1, HIDDEN // 4).transpose(1, 2)
            for part in (self.q, self.k, self.v)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(batch, tokens, -1))
        return x + self.out(F.gelu(self.fc(self.norm2(x))))


class TinyGPT(nn.Module):
    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(TOKENS, HIDDEN)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
        if unused:
            self.unused = nn.Linear(3, 3)

    def forward(self, ids: Any) -> Any:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def make_model(**kwargs: Any) -> TinyGPT:
    torch.manual_seed(5)
    return TinyGPT(**kwargs)


def make_optimizer(parameters: Any) -> torch.optim.Optimizer:
    # Without a larger eps the update of an element whose gradient is tiny is anything.
    return torch.optim.AdamW(parameters, lr=1e-2, eps=1e-3, foreach=False)


def batch(step: int, micro: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(10000 * step + 100 * micro + rank)
    return torch.randint(VOCAB, (2, TOKENS + 1), generator=generator)


def loss_of(model: nn.Module, ids: torch.Tensor, micros: int) -> Any:
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()) / micros


# ---- what is expected ----


def norms(tensors: dict[str, Any]) -> dict[str, float]:
    return {name: float(t.detach().double().norm()) for name, t in tensors.items()}


def expected(
    world: int, micros: int, clip: bool, dtype: torch.dtype | None, **kwargs: Any
) -> dict[str, Any]:
    """Train one plain model; norms by quantity, step and name, the local ones by rank, too."""
    model = make_model(**kwargs)
    optimizer = make_optimizer(model.parameters())
    found: dict[str, Any] = {"total": []}
    kinds = "grad_reduced param_origin param_updated exp_avg exp_avg_sq".split()
    found |= {kind: [] for kind in [*kinds, "grad_unreduced", "micro", "adam_update"]}
    parameters = dict(model.named_parameters())
    for step in range(STEPS):
        local: list[dict[str, Any]] = []
        running: list[list[dict[str, float]]] = []
        for rank in range(world):
            computed = model
            if dtype is not None:
                computed = make_model(**kwargs)
                computed.load_state_dict(model.state_dict())
                computed.to(dtype)
            computed.zero_grad()
            running.append([])
            total: dict[str, Any] = {}
            for micro in range(micros):
                computed.zero_grad()
                loss_of(computed, batch(step, micro, rank), micros).backward()
                for name, p in computed.named_parameters():
                    if p.grad is not None:
                        total[name] = total.get(name, 0) + p.grad.float()
                running[-1].append(norms(total))
            local.append(total)
        reduced = {name: sum(one[name] for one in local) / world for name in local[0]}
        found["grad_unreduced"].append([norms(one) for one in local])
        found["micro"].append(running)
        for name, p in parameters.items():
            p.grad = reduced[name].clone() if name in reduced else None
        used = {name: p for name, p in parameters.items() if name in reduced}
        found["grad_reduced"].append(norms({name: p.grad for name, p in used.items()}))
        norm = torch.nn.utils.clip_grad_norm_(parameters.values(), CLIP if clip else 1e9)
        found["total"].append(float(norm))
        found["param_origin"].append(norms(parameters))
        states = {name: optimizer.state[p] for name, p in used.items() if step > 0}
        for kind in ("exp_avg", "exp_avg_sq"):
            found[kind].append(norms({name: state[kind] for name, state in states.items()}))
        found["adam_update"].append(norms({name: update(one) for name, one in states.items()}))
        optimizer.step()
        found["param_updated"].append(norms(parameters))
        optimizer.zero_grad()
    return found


class Witness:
    """Writes down what is there in an unwatched training, for what no other code here makes."""

    def __init__(self, model: Any, optimizer: torch.optim.Optimizer) -> None:
        self.parameters = dict(model.module.named_parameters())
        self.optimizer = optimizer
        self.local: dict[str, Any] = {}
        kinds = "grad_reduced grad_unreduced param_origin param_updated exp_avg exp_avg_sq total"
        self.found: dict[str, list[Any]] = {kind: [] for kind in kinds.split()}
        for name, p in self.parameters.items():
            p.register_hook(functools.partial(self._made, name))

    def _made(self, name: str, gradient: Any) -> None:
        self.local[name] = self.local.get(name, 0) + gradient

    def before_step(self) -> None:
        gradients = {name: p.grad for name, p in self.parameters.items()}
        states = {name: self.optimizer.state[p] for name, p in self.parameters.items()}
        self.found["grad_reduced"].append(norms(gradients))
        self.found["grad_unreduced"].append(norms(self.local))
        self.found["param_origin"].append(norms(self.parameters))
        for kind in ("exp_avg", "exp_avg_sq"):
            known = {name: state[kind] for name, state in states.items() if kind in state}
            self.found[kind].append(norms(known))
        self.local = {}

    def after_step(self, total: float) -> None:
        self.found["param_updated"].append(norms(self.parameters))
        self.found["total"].append(total)

    def of_all(self) -> dict[str, Any]:
        """The same with what each process has found before the reduction."""
        every: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(every, self.found["grad_unreduced"])
        return {**self.found, "grad_unreduced": [list(step) for step in zip(*every, strict=True)]}


def update(state: dict[str, Any]) -> Any:
    """Return what Adam would make of these moments, in f64."""
    count = float(state["step"])
    first = state["exp_avg"].double() / (1 - 0.9**count)
    second = state["exp_avg_sq"].double() / (1 - 0.999**count)
    return first / (second.sqrt() + 1e-3)


# ---- what a layout does ----


class Layout:
    """A model that is spread over processes; what it is expected to be."""

    def __init__(
        self,
        build: Callable[[], Any],
        micros: int = 1,
        config: dict[str, Any] | None = None,
        no_sync: Callable[[nn.Module], Any] | None = None,
        dtype: torch.dtype | None = None,
        unused: bool = False,
        reduces_exactly: bool = True,
        clip: bool = False,
        reference: bool = True,
        tamper: Callable[[Any, int], None] | None = None,
        groups: dict[str, Any] | None = None,
        early: Callable[[Any], Any] | None = None,
        same_data: int = 1,
        witnessed: bool = False,
    ) -> None:
        self.build, self.micros, self.config = build, micros, config or {}
        self.no_sync, self.dtype = no_sync, dtype
        self.unused, self.exact, self.clip = unused, reduces_exactly, clip
        self.reference, self.witnessed = reference, witnessed
        self.seen: dict[str, Any] | None = None
        self.groups = groups
        self.same_data = same_data  # so many processes have parts of one
        self.early = early  # wraps the model when it is watched already
        self.tamper = tamper

    def clip_norm(self, model: nn.Module, bound: float) -> float:
        own = getattr(model, "clip_grad_norm_", None)
        if own is not None:
            norm = own(bound)
        else:
            try:
                norm = torch.nn.utils.clip_grad_norm_(model.parameters(), bound)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                return -1.0  # DTensors and others at once
        full = getattr(norm, "full_tensor", None)
        return float(norm if full is None else full())

    def train(self, folder: Path | None) -> tuple[str, list[float], list[str], int]:
        """Train, watched if there is a folder.

        A digest of all that came out, norms, warnings, and how many collectives there were.
        """
        model = self.build()
        before = collectives()
        optimizer = make_optimizer(model.parameters())
        session: Any = None
        witness = Witness(model, optimizer) if self.witnessed and folder is None else None
        totals: list[float] = []
        rank = distributed.get_rank() // self.same_data
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            if folder is not None:
                config: dict[str, Any] = {
                    "format": "csv",
                    "xy_distribution": False,
                    "alert": {"rules": []},
                }
                config |= self.config
                if self.groups is None:
                    session = tensorprobe.watch(model, optimizer, output_dir=folder, **config)
                else:
                    config |= {"wg_distribution": True, "param_distribution": True}
                    session = tensorprobe.TrainerMon(config, output_dir=folder)
                    session.set_monitor(model, optimizer, **self.groups)
            if self.early is not None:
                model = self.early(model)
            for step in range(STEPS):
                for micro in range(self.micros):
                    last = micro == self.micros - 1
                    context: Any = contextlib.nullcontext()
                    if self.no_sync is not None and not last:
                        context = self.no_sync(model)
                    with context:
                        loss_of(model, batch(step, micro, rank), self.micros).backward()
                if session is not None and self.tamper is not None:
                    session.take_gradients()
                if self.tamper is not None:
                    self.tamper(model, step)
                if witness is not None:
                    witness.before_step()
                totals.append(self.clip_norm(model, CLIP if self.clip else 1e9))
                optimizer.step()
                if witness is not None:
                    witness.after_step(totals[-1])
                optimizer.zero_grad()
            if session is not None:
                session.close()
        many = collectives() - before
        if witness is not None:
            self.seen = witness.of_all()
        return digest(model, optimizer), totals, [str(one.message) for one in said], many


def local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor).detach().contiguous()


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    hasher = hashlib.sha256()
    for group in optimizer.param_groups:
        for p in group["params"]:
            state = optimizer.state.get(p, {})
            for tensor in [p, *(v for v in state.values() if isinstance(v, torch.Tensor))]:
                hasher.update(local(tensor).flatten().view(torch.uint8).numpy().tobytes())
    hasher.update(torch.get_rng_state().numpy().tobytes())
    return hasher.hexdigest()


# ---- the layouts ----


def ddp(hook: str = "", unused: bool = False, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

        model = nn.parallel.DistributedDataParallel(
            make_model(unused=unused),
            # PowerSGD reduces in callbacks, whose order over buckets is not the same everywhere
            bucket_cap_mb=25 if hook == "powersgd" else 0.01,
            **options,
        )
        if hook == "bf16":

            def compress(state: Any, bucket: Any) -> Any:
                return default_hooks.bf16_compress_hook(state, bucket)

            compress.__annotations__.clear()  # texts, where torch wants types
            model.register_comm_hook(None, compress)
        elif hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                None, matrix_approximation_rank=1, start_powerSGD_iter=2
            )
            model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return model

    return build


def fsdp1(mixed: bool = False, **options: Any) -> Callable[[], Any]:
    def build() -> Any:
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        own = dict(options)
        if own.get("strategy"):
            from torch.distributed.fsdp import ShardingStrategy

            own["sharding_strategy"] = ShardingStrategy[own.pop("strategy")]
            if own["sharding_strategy"].name.startswith("HYBRID"):
                own["device_mesh"] = mesh(2, 2)
        if mixed:
            own["mixed_precision"] = MixedPrecision(
                param_dtype=torch.bfloat16, reduce_dtype=torch.float32
            )
        return FullyShardedDataParallel(
            make_model(),
            device_id=torch.device("cpu"),
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            **own,
        )

    return build


def mesh(*shape: int) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    names = {1: ("shard",), 2: ("replicate", "shard")}[len(shape)]
    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def tensor_parallel(model: Any, over: Any) -> None:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan: dict[str, Any] = {name: ColwiseParallel() for name in ("q", "k", "v", "fc")}
    plan |= {"proj": RowwiseParallel(), "out": RowwiseParallel()}
    for block in model.h:
        parallelize_module(block, over, plan)


def fsdp2(
    *shape: int, mixed: str = "", parallel: bool = False, **options: Any
) -> Callable[[], Any]:
    def build() -> Any:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        model = make_model()
        over = mesh(*shape)
        own = dict(options)
        if parallel:
            tensor_parallel(model, over["shard"])
            over = over["replicate"]
        own["mesh"] = over
        if mixed:
            own["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=torch.bfloat16, reduce_dtype=getattr(torch, mixed)
            )
        for block in model.h:
            fully_shard(block, **own)
        return fully_shard(model, **own)

    return build


def marked() -> nn.Module:
    """As Megatron marks a parameter of which each process has a part."""
    model = nn.parallel.DistributedDataParallel(make_model())
    model.module.head.weight.tensor_model_parallel = True
    return model


def tp() -> nn.Module:
    model = make_model()
    tensor_parallel(model, mesh(2))
    return model


@contextlib.contextmanager
def unsynchronised(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


def no_sync(model: Any) -> Any:
    return model.no_sync()


def tamper(model: Any, step: int) -> None:
    """Grow gradients that have been recorded, and a weight of one process on its own."""
    parameters = dict(model.named_parameters())
    if step == 1:
        parameters["module.h.0.fc.weight"].grad.mul_(3)
    if step == 3 and distributed.get_rank() == 1:
        with torch.no_grad():
            parameters["module.h.0.fc.weight"][3, 4] += 0.5


def lack(model: Any, step: int) -> None:
    """Have one process fail to say what it has, and then be without an adapter."""

    def fail(*_: Any) -> None:
        raise RuntimeError("on purpose")

    def without(self: Any, _: Any, rows: Any) -> None:
        CHECK(self, None, rows)

    if distributed.get_rank() == 1:
        _checks.ReplicaCheck._copies = fail if 1 < step < 4 else COPIES  # type: ignore
        _checks.ReplicaCheck.check = without if step == 4 else CHECK  # type: ignore


def layouts(world: int) -> dict[str, Layout]:
    bf16 = torch.bfloat16
    micro = {"monitor_mbs_grad": True}
    adam = {"ur_distribution": True, "mg_direction": True}
    checks: dict[str, Any] = {
        "self_check": True,
        "replica_check": 2,
        "alert": {"rules": [{"rule_name": "ReplicaDrift"}, {"rule_name": "LossSpike"}]},
    }
    some: dict[str, Any] = {"targets": {"h.0": {}}} if distributed.get_rank() == 1 else {}
    if world == 4:
        return {
            "fsdp1_hybrid": Layout(fsdp1(use_orig_params=True, strategy="HYBRID_SHARD")),
            "fsdp2_hsdp": Layout(fsdp2(2, 2)),
            "fsdp2_tp": Layout(fsdp2(2, 2, parallel=True), same_data=2),
        }
    return {
        "ddp": Layout(ddp(), clip=True),
        "ddp_no_sync": Layout(ddp(), 2, no_sync=no_sync),
        "ddp_micro": Layout(ddp(), 2, micro, no_sync=no_sync),
        "ddp_view": Layout(ddp(gradient_as_bucket_view=True), 2, no_sync=no_sync),
        "ddp_static": Layout(ddp(static_graph=True)),
        "ddp_unused": Layout(ddp(find_unused_parameters=True, unused=True), unused=True),
        "ddp_bf16": Layout(ddp(hook="bf16"), reduces_exactly=False),
        "ddp_powersgd": Layout(ddp(hook="powersgd"), reference=False, witnessed=True),
        "fsdp1_orig": Layout(fsdp1(use_orig_params=True), clip=True),
        "fsdp1_orig_no_sync": Layout(fsdp1(use_orig_params=True), 2, no_sync=no_sync),
        "fsdp1_flat": Layout(fsdp1(use_orig_params=False), config=adam),
        "fsdp1_flat_micro": Layout(fsdp1(use_orig_params=False), 2, micro, no_sync=no_sync),
        "fsdp1_no_shard": Layout(fsdp1(use_orig_params=True, strategy="NO_SHARD")),
        "fsdp1_mixed": Layout(fsdp1(use_orig_params=True, mixed=True), dtype=bf16),
        "fsdp2": Layout(fsdp2(2), clip=True),
        "fsdp2_no_sync": Layout(fsdp2(2), 2, no_sync=unsynchronised),
        "fsdp2_micro": Layout(fsdp2(2), 2, micro, no_sync=unsynchronised),
        "fsdp2_keep": Layout(fsdp2(2, reshard_after_forward=False), config=adam),
        "fsdp2_mixed": Layout(fsdp2(2, mixed="float32"), dtype=bf16),
        "fsdp2_mixed_reduce": Layout(fsdp2(2, mixed="bfloat16"), dtype=bf16),
        "tp": Layout(tp, same_data=2),
        "ddp_around": Layout(make_model, early=nn.parallel.DistributedDataParallel),
        "ddp_often": Layout(ddp(), 2),
        "ddp_group": Layout(ddp(), groups={"dp_group": distributed.group.WORLD}),
        "tp_group": Layout(marked, groups={"tp_group": distributed.group.WORLD}),
        "ddp_checks": Layout(ddp(), config=checks),
        "fsdp2_checks": Layout(fsdp2(2), config=checks, clip=True),
        "ddp_lacking": Layout(ddp(), config={**checks, "replica_check": 1}, tamper=lack),
        "ddp_tampered": Layout(ddp(), config={**checks, **some}, tamper=tamper, reference=False),
    }


def collectives() -> int:
    """How many have been started in all groups of this process."""
    groups: Any = distributed.distributed_c10d._world.pg_map
    return sum(group._get_sequence_number_for_group() for group in groups)


def main(folder: Path, rank: int, world: int, chosen: list[str]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    faulthandler.dump_traceback_later(240, exit=True)
    store = torch._C._distributed_c10d.FileStore(str(folder / "store"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    results: dict[str, Any] = {}
    references: dict[Any, Any] = {}
    for name, layout in layouts(world).items():
        if chosen and name not in chosen:
            continue
        plain, _, _, few = layout.train(None)
        watched, totals, said, many = layout.train(folder / name)
        data_ranks = world // layout.same_data
        key = (data_ranks, layout.micros, layout.clip, layout.dtype, layout.unused)
        if layout.reference and rank == 0 and key not in references:
            references[key] = expected(*key[:4], unused=layout.unused)
        results[name] = {
            "same_bits": plain == watched,
            "collectives": [few, many],
            "said": said,
            "totals": totals,
            "tolerance": 2e-2 if layout.dtype or not layout.exact else 1e-5,
            "exact_locally": layout.dtype is None,
            "micros": layout.micros,
            "parts": layout.same_data > 1,
            "expected": references.get(key) if layout.reference else layout.seen,
        }
    (folder / f"results{rank}.json").write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
