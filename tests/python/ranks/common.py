"""What the processes of the tests of sharded trainings share: a tiny GPT, truths, comparisons.

A layout is trained twice: without a monitor, while everything that a monitor should see is written
down by other means; and with one. The same bits come out of both, so that what the first one wrote
down is the truth about the second one, too.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

import tensorprobe

VOCABULARY, WIDTH, LENGTH, STEPS = 37, 16, 8, 6
LR, BETAS, EPS = 1e-2, (0.9, 0.95), 1e-8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        heads = [part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (q, k, v)]
        a = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.proj(a.transpose(1, 2).flatten(2))
        y: Tensor = x + self.out(functional.gelu(self.fc(self.ln2(x))))
        return y


class TinyGPT(nn.Module):
    """Of sizes that no number of ranks divides."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(2))
        self.ln_f, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for block in self.h:
            y = block(y)
        logits: Tensor = self.head(self.ln_f(y))
        return logits


def make_model() -> TinyGPT:
    torch.manual_seed(1234)
    return TinyGPT()


def batch(step: int, micro: int = 0, rank: int = 0, n: int = 2) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 100 * micro + rank)
    ids = torch.randint(VOCABULARY, (n, LENGTH + 1), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def loss_of(model: Callable[[Tensor], Tensor], pair: tuple[Tensor, Tensor]) -> Tensor:
    logits = model(pair[0])
    return functional.cross_entropy(logits.flatten(0, 1).float(), pair[1].flatten())


# ---- What a layout is, and what is known about it ----


@dataclass
class Truth:
    """By name of the parameter (of its row) and step: whole tensors, as far as this rank goes."""

    unreduced: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    reduced: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    exp_avg: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    exp_avg_sq: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    origin: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    updated: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    update: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    """Adam's, of the moments that are there before the step."""
    norms: dict[int, float] = field(default_factory=dict)
    """By step: the norm of the whole gradient that the framework reports."""
    collectives: list[int] = field(default_factory=list)
    """How many there were in each step."""
    logged: list[dict[str, Any]] = field(default_factory=list)
    """What a trainer has said of each step."""
    kinds: list[str] = field(default_factory=list)
    """What the ancestors call the optimizer that was found."""
    skipped: list[bool] = field(default_factory=list)
    """By step: the framework made no update."""
    state: str = ""
    """Of everything that training leaves."""


def digest(*things: Any) -> str:
    """A hash of tensors to the bit, in whatever containers."""
    found = hashlib.sha256()

    def add(thing: Any) -> None:
        if isinstance(thing, Tensor):
            found.update(f"{thing.dtype} {tuple(thing.shape)}".encode())
            found.update(thing.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(thing, dict):
            for key, value in thing.items():
                found.update(str(key).encode() if not isinstance(key, Tensor) else b"tensor")
                add(value)
        elif isinstance(thing, (list, tuple)):
            for value in thing:
                add(value)
        else:
            found.update(repr(thing).encode())

    add(things)
    add(torch.get_rng_state())
    return found.hexdigest()


class Collectives:
    """Counts those of every process group, as the groups themselves number them."""

    @staticmethod
    def now() -> int:
        from torch.distributed import distributed_c10d as c10d

        groups: list[Any] = [*c10d._world.pg_map]
        return sum(group._get_sequence_number_for_group() for group in groups)


def adam(
    truth: Truth, names: list[str], scale_of: Callable[[int], float], *, begun: bool = False
) -> None:
    """What Adam keeps of the reduced gradients, in f64. scale_of: what clipping leaves of them.

    begun: it has made a step without gradients before the first one.
    """
    for name in names:
        first = torch.zeros_like(truth.reduced[name, 0], dtype=torch.float64)
        second = torch.zeros_like(first)
        for step in range(STEPS):
            done = step + begun
            if done > 0:
                truth.exp_avg[name, step] = first.clone()
                truth.exp_avg_sq[name, step] = second.clone()
                mean = first / (1 - BETAS[0] ** done)
                root = (second / (1 - BETAS[1] ** done)).sqrt()
                truth.update[name, step] = mean / (root + EPS)
            grad = truth.reduced[name, step].double() * scale_of(step)
            first = BETAS[0] * first + (1 - BETAS[0]) * grad
            second = BETAS[1] * second + (1 - BETAS[1]) * grad**2


def by_micro(step: int, micro: int) -> int:
    """A number for a micro step among those of all steps."""
    return 100 * step + micro


def clipping(truth: Truth, limit: float) -> Callable[[int], float]:
    """What is left of a gradient when its norm is limited."""

    def scale_of(step: int) -> float:
        return min(1.0, limit / (truth.norms[step] + 1e-6))

    return scale_of


# ---- Comparison ----


def flat_part(key: dict[str, Any], whole: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The elements of the whole tensor that a series speaks of, and which range these are."""
    kind, ranges, *_ = key["span"]
    flat = whole.flatten()
    if kind != "flat":  # of a box the truth is this rank's piece
        return flat, (0, flat.numel())
    ((start, length, full),) = ranges
    start %= flat.numel()  # counted through the tensor parallel pieces
    assert full % flat.numel() == 0, key
    return flat[start : start + length], (start, start + length)


def differences(record: dict[str, Any], part: Tensor, tolerance: float) -> Iterator[str]:
    """In which statistics the record is not what this part of the tensor has."""
    part = part.double()
    size = part.abs().max().item() if part.numel() else 0.0
    expected = {
        "count": part.numel(),
        "norm": part.norm().item(),
        "min": part.min().item() if part.numel() else 0.0,
        "max": part.max().item() if part.numel() else 0.0,
        "mean": part.mean().item() if part.numel() else 0.0,
    }
    for op, value in expected.items():
        if part.numel() == 0 and op != "count":
            continue
        scale = 0.0 if op == "count" else expected["norm"] if op == "norm" else size
        if not math.isclose(record[op], value, rel_tol=0, abs_tol=tolerance * scale + 1e-30):
            yield f"{op} {record[op]!r}, not {value!r}"


@dataclass
class Check:
    """Compares the journal of one rank with what is known."""

    layout: str
    truth: Truth
    tolerance: float
    problems: list[str] = field(default_factory=list)
    seen: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    """By quantity, name and step: the range, Σ x² and the copies."""
    checked: int = 0
    micro: bool = False
    """Gradients before the reduction are those of each micro step: of ``by_micro`` steps."""
    keys: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def journal(self, directory: str) -> None:
        """Look at every record of a parameter."""
        quantities = {
            "grad_unreduced": self.truth.unreduced,
            "grad_reduced": self.truth.reduced,
            "exp_avg": self.truth.exp_avg,
            "exp_avg_sq": self.truth.exp_avg_sq,
            "param_origin": self.truth.origin,
            "param_updated": self.truth.updated,
            "adam_update": self.truth.update,
            "mg_direction": self.truth.update,  # as often
        }
        journal = tensorprobe.Journal(directory)
        for key in journal.defined():
            known_as = (key["quantity"], key["vpp_stage"], key["name"])
            key["span"] = key["span"] or ("whole", (), 1, 0)
            assert self.keys.setdefault(known_as, key) is key, key
        steps = list(journal)
        if [step.step for step in steps] != list(range(STEPS)):
            self.problems.append(f"steps {[step.step for step in steps]}")
        for step in steps:
            if step.errors or step.unfilled or step.partial:
                self.problems.append(f"step {step.step}: {step}")
            for record in step.records:
                known = quantities.get(record["quantity"])
                if known is not None:
                    self._record(record, step.step, known)
        for quantity, known in quantities.items():
            for name, step_number in known:
                self.seen.setdefault(f"{quantity} {name} {step_number}", [])

    def _record(
        self, record: dict[str, Any], step: int, known: dict[tuple[str, int], Tensor]
    ) -> None:
        quantity, name = record["quantity"], f"{record['vpp_stage']}:{record['name']}"
        if self.micro and quantity == "grad_unreduced":
            step = by_micro(step, record["micro_step"])
        whole = known.get((name, step))
        where = f"{quantity} of {name}, step {step}"
        if whole is None:
            self.problems.append(f"{where}: nobody expected that")
            return
        key = self.keys[quantity, record["vpp_stage"], record["name"]]
        part, (start, end) = flat_part(key, whole)
        bits16 = record["dtype"] in ("torch.bfloat16", "torch.float16", "bfloat16", "float16")
        tolerance = max(self.tolerance, 1e-5 if not bits16 else 4e-3)
        if quantity == "adam_update":
            # What is nearly 0 may be anything.
            found = [] if _near(record["norm"], part.norm().item(), 10 * tolerance) else ["norm"]
        elif quantity == "mg_direction":
            found = self._direction(record, key, (name, step))
        else:
            found = list(differences(record, part, tolerance))
        self.problems += [f"{where}: {one}" for one in found]
        self.checked += 1
        self.seen[f"{quantity} {name} {step}"].append(
            [start, end, whole.numel(), record["norm"] ** 2, key["global_name"], key["span"]]
        )

    def _direction(self, record: dict[str, Any], key: Any, place: tuple[str, int]) -> list[str]:
        """How far the signs of gradient and first moment agree."""
        grad, _ = flat_part(key, self.truth.reduced[place])
        first, _ = flat_part(key, self.truth.exp_avg[place])
        expected = (torch.sign(grad * first).mean().item() + 1) / 2
        if abs(record["min"] - expected) <= 0.02 + 1 / grad.numel():
            return []
        return [f"{record['min']}, not {expected}"]


def _near(a: float, b: float, tolerance: float) -> bool:
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=1e-30)


def train_twice(
    train: Callable[[Callable[..., Any] | None, Truth], None],
    out: Path,
    each: bool,
    checks: bool = False,
) -> tuple[Truth, Truth, Any]:
    """Train without a monitor and with one; what is known of both, and the first monitor.

    each: gradients before the reduction are recorded of each micro step. checks: norms and copies
    are compared over ranks.
    """
    truth, second = Truth(), Truth()
    train(None, truth)
    monitors: list[Any] = []

    def watch(*args: Any, **kwargs: Any) -> Any:
        monitor = tensorprobe.watch(
            *args,
            **kwargs,
            xy_distribution=False,
            monitor_mbs_grad=each,
            self_check=checks,
            replica_check=2 if checks else 0,
            mv_distribution=True,
            param_distribution=True,
            ur_distribution=True,
            mg_direction=True,
            strict=True,
            format="api",
            output_dir=out,
        )
        monitors.append(monitor)
        return monitor

    train(watch, second)
    return truth, second, monitors[0]


def checked(directory: str, truth: Truth) -> Iterator[str]:
    """What is wrong with what the checks over ranks have found."""
    journal = tensorprobe.Journal(directory)
    norms = [norm for norm in truth.norms.values() if norm >= 0]
    for name in ("self_check.recorded", "self_check.framework"):
        found = journal.series(name, "scalar")[1]
        same = (math.isclose(a, b, rel_tol=1e-5) for a, b in zip(found, norms, strict=False))
        if len(found) != len(norms) or not all(same):
            yield f"{name}: {found}, not {norms}"
    steps, found = journal.series("replica_check.different", "scalar")
    if steps != [*range(0, STEPS, 2)] or any(found):
        yield f"replica_check.different: {found} in {steps}"


def compare(
    truth: Truth, second: Truth, monitor: Any, dtype: str, each: bool, checks: bool = False
) -> dict[str, Any]:
    """What the monitor has recorded beside the truth, and the second training beside the first."""
    check = Check("", truth, 1e-5 if dtype == "f32" else 2e-2)
    check.micro = each
    check.journal(monitor.directory)
    if truth.state != second.state:
        check.problems.append("training has other bits with a monitor")
    # One a step; one every other step; and one to agree on how many copies there are.
    own = [checks + (checks and step % 2 == 0) + (checks and step == 0) for step in range(STEPS)]
    expected = [a + b for a, b in zip(truth.collectives, own, strict=True)]
    if second.collectives != expected or not all(truth.collectives):
        check.problems.append(f"collectives {second.collectives}, not {expected}")
    check.problems += checked(monitor.directory, truth) if checks else ()
    return {
        "problems": check.problems,
        "seen": check.seen,
        "checked": check.checked,
        "norms": truth.norms,
        "kinds": second.kinds,
    }


def write(out: Path, layout: str, rank: int, **content: Any) -> None:
    """What one rank has to say about one layout."""
    (out / f"{layout}.{rank}.json").write_text(json.dumps(content))


def main(layouts: dict[str, Callable[[Path], dict[str, Any]]]) -> None:
    """``python SCRIPT OUT NAME…``: runs these layouts in this rank, each into its file."""
    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{out}/store",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    for name in sys.argv[2:]:
        try:
            content = layouts[name](out / name)
        except Exception:
            content = {"problems": [traceback.format_exc()], "seen": {}, "checked": 0}
        write(out, name, dist.get_rank(), **content)
        if any("Traceback" in problem for problem in content["problems"]):
            os._exit(1)  # the others would wait
        dist.barrier()
    dist.destroy_process_group()
