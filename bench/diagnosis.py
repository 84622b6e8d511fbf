"""How well do the rules find what was broken on purpose? Small models, injected faults, a score.

Trains a GPT and a mixture of experts many times, breaks something in a known place at a known
step, records everything, and runs rules over the recordings: the defaults of ``watch()``, and
those of msprobe. One half of the runs (``tuned``) is what thresholds may be chosen by; the other
half has other seeds, sites and models, and is what counts (``scored``).

    python bench/diagnosis.py [--runs 2] [--healthy 3000] [--keep DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import tensorprobe

ROOT = Path(__file__).parents[1]
BUILD = Path(os.environ.get("TP_BUILD_DIR", ROOT / "build/release"))
WITHIN = 20  # steps in which a fault has to be found
OPS = ["norm", "min", "max", "mean", "zeros", "nans"]
STALLED_NAME = "StalledStep"
STALLED_STEP = {"rule_name": STALLED_NAME, "args": {"threshold": 1.0}}
WATCH = [
    {"rule_name": name}
    for name in (
        "AnomalyNan", "LossSpike", "GradNormSpike", "VarianceBounds", "WeightUpdateRatio",
        "UnchangedTensor", "DeadUnits", "StalledStep", "ReplicaDrift",
    )
]  # fmt: skip
RULES: dict[str, list[dict[str, Any]]] = {
    "defaults of watch()": WATCH,
    "msprobe, as documented": [
        {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5, "mode": "compat"}},
        {"rule_name": "AnomalyNan"},
    ],
    "msprobe, threshold 10": [
        {"rule_name": "AnomalyTurbulence", "args": {"threshold": 10, "mode": "compat"}},
        {"rule_name": "AnomalyNan"},
    ],
}


class Block(nn.Module):
    """Attention and a feed-forward part, or experts in its place."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.router = nn.Linear(width, experts) if experts else None
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
            for _ in range(max(experts, 1))
        )

    def forward(self, x: torch.Tensor) -> Any:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 2, d // 2).unbind(2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        if self.router is None:
            return x + self.parts[0](h)
        weights = self.router(h).softmax(-1)
        top = weights.topk(2, -1)
        gates = torch.zeros_like(weights).scatter(-1, top.indices, top.values)
        return x + sum(gates[..., i : i + 1] * part(h) for i, part in enumerate(self.parts))


class Model(nn.Module):
    """Predicts the next token of a random automaton; floats go in, so that a batch can be bad."""

    def __init__(self, layers: int, width: int, experts: int) -> None:
        super().__init__()
        self.embed = nn.Linear(16, width)
        self.blocks = nn.ModuleList(Block(width, experts) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 16)

    def forward(self, x: torch.Tensor) -> Any:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def batch_of(generator: torch.Generator, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(0, 16, (8, 1), generator=generator)
    for _ in range(12):
        rows = table[tokens[:, -1]]
        tokens = torch.cat([tokens, torch.multinomial(rows, 1, generator=generator)], 1)
    return F.one_hot(tokens[:, :-1], 16).float(), tokens[:, 1:]


@dataclass
class Scene:
    """What a fault can reach."""

    model: nn.Module  # without a wrapper
    optimizer: torch.optim.Optimizer
    step: int
    fault_step: int
    x: torch.Tensor
    y: torch.Tensor
    site: str
    rank: int
    generator: torch.Generator
    state: dict[str, Any]

    @property
    def since(self) -> int:
        return self.step - self.fault_step

    def weight(self) -> torch.Tensor:
        return self.model.get_parameter(self.site + ".weight").data


def put(tensor: torch.Tensor, value: float, scene: Scene) -> None:
    place = int(torch.randint(0, tensor.numel(), (1,), generator=scene.generator))
    tensor.view(-1)[place] = value


def nan_weight(scene: Scene) -> None:
    if scene.since == 0:
        put(scene.weight(), float("nan"), scene)


def inf_weight(scene: Scene) -> None:
    if scene.since == 0:
        put(scene.weight(), float("inf"), scene)


def nan_batch(scene: Scene) -> None:
    if scene.since == 0:
        put(scene.x, float("nan"), scene)


def flipped_bit(scene: Scene) -> None:
    """Exponent's top bit of the largest weight."""
    if scene.since == 0:
        weight = scene.weight().view(-1)
        place = int(weight.abs().argmax())
        (bits,) = struct.unpack("<I", struct.pack("<f", float(weight[place])))
        weight[place] = struct.unpack("<f", struct.pack("<I", bits ^ (1 << 30)))[0]


def bad_batch(scene: Scene) -> None:
    if scene.since == 0:
        scene.x *= 1000


def labels(scene: Scene) -> None:
    if scene.since >= 0:
        scene.y.copy_(torch.randint(0, 16, scene.y.shape, generator=scene.generator))


def dead_layer(scene: Scene) -> None:
    if scene.since == 0:
        scene.model.get_parameter(scene.site + ".bias").data.fill_(-100)


def collapse(scene: Scene) -> None:
    if scene.since == 0:
        scene.weight().zero_()
        scene.model.get_parameter(scene.site + ".bias").data.zero_()


def drift(scene: Scene) -> None:
    """10 % a step."""
    if scene.since >= 0:
        scene.weight().mul_(1.1)


def learning_rate(scene: Scene) -> None:
    if scene.since >= 0:
        scene.optimizer.param_groups[0]["lr"] = 100 * scene.state["lr"]


def stuck(scene: Scene) -> None:
    if scene.since >= 0:
        scene.optimizer.param_groups[0]["lr"] = 0.0


def no_fault(scene: Scene) -> None:
    pass


def nan_gradient(scene: Scene) -> None:
    if scene.since == 0:
        grad = scene.model.get_parameter(scene.site + ".weight").grad
        assert grad is not None
        put(grad, float("nan"), scene)


def inf_gradient(scene: Scene) -> None:
    if scene.since == 0:
        grad = scene.model.get_parameter(scene.site + ".weight").grad
        assert grad is not None
        put(grad, float("inf"), scene)


def scaled_gradients(scene: Scene) -> None:
    """After the reduction, on one rank: the replicas drift apart."""
    if scene.since >= 0 and scene.rank == 1:
        for parameter in scene.model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 100


def scaled_gradient(scene: Scene) -> None:
    """The same of one parameter, and no more than twice."""
    if scene.since >= 0 and scene.rank == 1:
        grad = scene.model.get_parameter(scene.site + ".weight").grad
        assert grad is not None
        grad *= 2


def not_reduced(scene: Scene) -> None:
    """Rank 0 gets the mean, rank 1 keeps its own gradients."""
    if scene.since >= 0:
        for parameter in scene.model.parameters():
            assert parameter.grad is not None
            total = parameter.grad.clone()
            dist.all_reduce(total)
            if scene.rank == 0:
                parameter.grad.copy_(total / dist.get_world_size())


@dataclass(frozen=True)
class Fault:
    """Where it is put in, and what is right."""

    name: str
    before: Callable[[Scene], None] = no_fault  # the forward
    after: Callable[[Scene], None] = no_fault  # the backward
    activation: float | None = None  # what the site's output gets
    gradient: float | None = None  # what the gradient of the site's output gets
    broken: bool = False  # NaN or infinity
    sites: tuple[str, ...] = ("blocks.0.qkv", "blocks.1.parts.0.0", "blocks.1.out", "head")
    anywhere: bool = False  # the first tensor isn't a matter of one place
    ddp: bool = False
    alone: bool = False  # from the fault on DDP reduces nothing
    hangs: bool = False  # rank 1, in the site's forward, for HANG seconds


HANG = 2.5  # seconds; STALLED_STEP says so sooner, which by default waits for half an hour
ALL = (
    Fault("NaN in a weight", nan_weight, broken=True),
    Fault("Inf in a weight", inf_weight, broken=True),
    Fault("NaN in an activation", activation=float("nan"), broken=True),
    Fault("Inf in an activation", activation=float("inf"), broken=True),
    Fault("NaN in a gradient", after=nan_gradient, broken=True),
    Fault("Inf in a gradient", after=inf_gradient, broken=True),
    Fault("NaN in the backward", gradient=float("nan"), broken=True),
    Fault("NaN in the batch", nan_batch, broken=True, sites=("",)),
    Fault("one bit flipped", flipped_bit),
    Fault("batch × 1000", bad_batch, sites=("",)),
    Fault("labels corrupted", labels, anywhere=True, sites=("head",)),
    Fault("layer dies", dead_layer, sites=("blocks.0.parts.0.0", "blocks.1.parts.0.0")),
    Fault("layer becomes zero", collapse, sites=("blocks.0.qkv", "blocks.1.out")),
    Fault("weights drift 10 % a step", drift),
    Fault("learning rate × 100", learning_rate, anywhere=True, sites=("head",)),
    Fault("optimizer stuck", stuck, anywhere=True, sites=("head",)),
    Fault("NaN in a gradient, DDP", after=nan_gradient, broken=True, ddp=True),
    Fault("NaN in a weight, DDP", nan_weight, broken=True, ddp=True),
    Fault("one rank's gradients × 100", after=scaled_gradients, anywhere=True, ddp=True),
    Fault("one rank's gradient × 2", after=scaled_gradient, ddp=True),
    Fault("one replica not reduced", after=not_reduced, anywhere=True, ddp=True, alone=True),
    Fault("a rank hangs", ddp=True, hangs=True, sites=("blocks.0.qkv", "blocks.1.out", "head")),
)


@dataclass
class Run:
    """A recording, and what was done to it."""

    directories: list[str]
    fault: str
    broken: bool
    split: str
    model: str
    step: int  # of the fault; beyond the last one in healthy runs
    steps: int
    site: str
    anywhere: bool
    ranks: int = 1
    series: int = 0
    seconds: float = field(default=0.0)


def train(fault: Fault, split: str, kind: str, seed: int, steps: int, base: Path, rank: int) -> Run:
    """Train with the fault at a step of the seed's choice."""
    layers, width, experts = {"gpt": (2, 16, 0), "deep": (9, 16, 0), "moe": (2, 16, 4)}[kind]
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed * 7919 + 1)
    table = torch.rand(16, 16, generator=generator) ** 6 + 1e-6
    data = torch.Generator().manual_seed(seed * 7919 + 2 + rank)  # faults are alike on all ranks
    model = Model(layers, width, experts)
    fault_step = 50 + seed % 11 if fault.name != "none" else steps + 1
    sites = [s for s in fault.sites if s == "" or s in dict(model.named_modules())]
    site = sites[(seed // 2) % len(sites)]
    lr = 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scene = Scene(model, optimizer, 0, fault_step, torch.empty(0), torch.empty(0), site, rank,
                  generator, {"lr": lr})  # fmt: skip

    def break_output(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        if scene.since == 0 and fault.gradient is not None:
            output.register_hook(lambda g: torch.full_like(g, fault.gradient or 0.0))
        if scene.since == 0 and fault.activation is not None:
            output = output.clone()
            output.view(-1)[0] = fault.activation
        if scene.since == 0 and fault.hangs and rank == 1:
            time.sleep(HANG)
        return output

    model.get_submodule(site).register_forward_hook(break_output)
    watched: Any = DistributedDataParallel(model) if fault.ddp else model
    began = time.process_time()
    with tensorprobe.watch(
        watched, optimizer, format="api", ops=OPS, output_dir=str(base), rank=rank,
        run_id=f"{fault.name}-{seed}".replace(" ", "_") if fault.ddp else None,
        alert={"rules": [STALLED_STEP] if fault.hangs else []},
    ) as monitor:  # fmt: skip
        for step in range(min(steps, fault_step + WITHIN + 2)):
            scene.step = step
            scene.x, scene.y = batch_of(data, table)
            fault.before(scene)
            alone = fault.alone and scene.since >= 0
            with watched.no_sync() if alone else contextlib.nullcontext():
                loss: Any = F.cross_entropy(watched(scene.x).flatten(0, 1), scene.y.flatten())
                loss.backward()
            fault.after(scene)
            monitor.log_scalar("loss", loss)
            optimizer.step()
            optimizer.zero_grad()
    return Run(
        [monitor.directory], fault.name, fault.broken, split, kind, fault_step,
        min(steps, fault_step + WITHIN + 2), site, fault.anywhere,
        seconds=time.process_time() - began,
    )  # fmt: skip


def plan(runs: int, start: int, *, ddp: bool) -> Iterator[tuple[Fault, str, str, int]]:
    """Tuned are GPTs of even seeds; scored are GPTs of odd seeds and mixtures of experts."""
    for number, fault in enumerate(fault for fault in ALL if fault.ddp == ddp):
        for i in range(runs):
            seed = 10000 * start + 100 * number + 4 * i
            yield fault, "tuned", "gpt", seed
            yield fault, "scored", "gpt", seed + 3
            yield fault, "scored", "moe", seed + 1


def train_ddp(rank: int, runs: int, start: int, base: str, queue: Any) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29631"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    for fault, split, kind, seed in plan(runs, start, ddp=True):
        # An expert that no token chose would have no gradient to reduce.
        run = train(fault, split, "gpt" if kind == "moe" else kind, seed, 200, Path(base), rank)
        dist.barrier()
        queue.put((rank, seed, run))
    dist.destroy_process_group()


def record_all(arguments: argparse.Namespace, base: Path) -> list[Run]:
    found = []
    for fault, split, kind, seed in plan(arguments.runs, arguments.seed, ddp=False):
        found.append(train(fault, split, kind, seed, 200, base, 0))
    healthy = Fault("none", sites=("head",))
    for kind, place in (("deep", 9001), ("moe", 9003)):
        seed = 10000 * arguments.seed + place
        found.append(train(healthy, "tuned", kind, seed, arguments.healthy // 5, base, 0))
        found.append(train(healthy, "scored", kind, seed + 1, arguments.healthy, base, 0))
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    spawn: Any = vars(torch.multiprocessing)["spawn"]
    context = spawn(
        train_ddp, (arguments.runs, arguments.seed, str(base), queue), nprocs=2, join=False
    )
    ranks: dict[int, Run] = {}
    for _ in range(2 * len(list(plan(arguments.runs, arguments.seed, ddp=True)))):
        _, seed, run = queue.get()
        if seed in ranks:
            ranks[seed].directories += run.directories
        else:
            ranks[seed] = run
    while not context.join():
        pass
    return found + list(ranks.values())


@dataclass
class Finding:
    """What rules said of a journal."""

    incidents: list[tuple[int, str]]  # step, row
    alerts: list[tuple[int, list[str]]]  # step, the first rows


def findings(rules: list[dict[str, Any]], runs: list[Run]) -> dict[str, Finding]:
    found: dict[str, Finding] = defaultdict(lambda: Finding([], []))
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"ops": OPS, "wg_distribution": True, "alert": {"rules": rules}}, file)
        file.flush()
        directories = [directory for run in runs for directory in run.directories]
        done = subprocess.run(
            [BUILD / "tools/tensorprobe", "backtest", "--list", file.name, *directories],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    for line in done.stdout.splitlines():
        kind, directory, step, *rest = line.split("\t")
        if kind == "incident":
            found[directory].incidents.append((int(step), rest[4]))
        else:
            found[directory].alerts.append((int(step), rest[3::3]))
    for run in runs:
        if run.fault == "a rank hangs" and STALLED_NAME in {rule["rule_name"] for rule in rules}:
            stalled_in(run, found)
    return found


def stalled_in(run: Run, found: dict[str, Finding]) -> None:
    """Add what the writers' threads said while the ranks hung; who came less far, first."""
    said = [
        (alert.step, alert.order, directory, alert.row)
        for directory in run.directories
        for alert in tensorprobe.Journal(directory).alerts()
        if alert.rule == STALLED_NAME
    ]
    for step, _, directory, row in sorted(said)[:1]:
        found[directory].incidents.append((step, row))
        found[directory].alerts.append((step, [row]))


def is_at(site: str, row: str) -> bool:
    """The site's own weight, bias, input or output; a later input is a victim."""
    name = row.partition("#")[0]
    if site == "":
        return name in (".input", "embed.input")
    return name == site + ".output" or name in (
        site + ".weight", site + ".bias", site + ".input", site + ".1.input"
    )  # fmt: skip


@dataclass
class Score:
    """Of one fault."""

    runs: int = 0
    found: int = 0
    steps: list[int] = field(default_factory=list)
    placed: int = 0
    top1: int = 0
    top3: int = 0


def score(rules: list[dict[str, Any]], runs: list[Run], by_alerts: bool) -> None:
    """Print the table of one set of rules."""
    scores: dict[str, Score] = defaultdict(Score)
    false, quiet = 0, 0
    found = findings(rules, runs)
    for run in runs:
        all_of_it = [found[directory] for directory in run.directories]
        starts = [
            (step, rows)
            for finding in all_of_it
            for step, rows in (
                finding.alerts if by_alerts else [(step, [row]) for step, row in finding.incidents]
            )
        ]
        false += sum(step < run.step for step, _ in starts)
        quiet += min(run.step, run.steps) * len(run.directories)
        if run.fault == "none":
            continue
        entry = scores[run.fault]
        entry.runs += 1
        within = 0 if run.broken else WITHIN
        hits = sorted((s, rows) for s, rows in starts if run.step <= s <= run.step + within)
        if not hits:
            continue
        entry.found += 1
        entry.steps.append(hits[0][0] - run.step)
        if not run.anywhere:
            entry.placed += 1
            first = hits[0][1][0]
            alerts = [
                row for finding in all_of_it for s, rows in finding.alerts if s == hits[0][0]
                for row in rows
            ]  # fmt: skip
            entry.top1 += is_at(run.site, first)
            entry.top3 += any(is_at(run.site, row) for row in [first, *alerts])
    print("| fault | runs | found | steps to it | first tensor | among the first 3 |")
    print("|---|---|---|---|---|---|")
    for name, entry in scores.items():
        steps = sorted(entry.steps)
        middle = str(steps[len(steps) // 2]) if steps else ""
        place = f"{entry.top1}/{entry.placed}" if entry.placed else ""
        three = f"{entry.top3}/{entry.placed}" if entry.placed else ""
        print(f"| {name} | {entry.runs} | {entry.found} | {middle} | {place} | {three} |")
    for title, names in (
        ("NaN and Inf", {fault.name for fault in ALL if fault.broken}),
        ("the others", {fault.name for fault in ALL if not fault.broken}),
    ):
        group = [entry for name, entry in scores.items() if name in names]
        total, hit = sum(e.runs for e in group), sum(e.found for e in group)
        placed, top1 = sum(e.placed for e in group), sum(e.top1 for e in group)
        print(
            f"\n{title}: {hit}/{total} found ({100 * hit / max(total, 1):.0f} %), the first tensor "
            f"is right in {top1}/{placed} ({100 * top1 / max(placed, 1):.0f} %)"
        )
    kind = "steps with alerts" if by_alerts else "incidents"
    print(f"\nfalse: {false} {kind} in {quiet} healthy steps "
          f"({10000 * false / max(quiet, 1):.1f} per 10,000)\n")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Score rules on injected faults.")
    parser.add_argument("--runs", type=int, default=2, help="of each fault, split and model")
    parser.add_argument("--healthy", type=int, default=3000, help="steps of a healthy run")
    parser.add_argument("--seed", type=int, default=0, help="other places, steps and data")
    parser.add_argument("--keep", type=Path, help="record here; what is there is scored again")
    parser.add_argument("--split", default="tuned,scored")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        base = arguments.keep or Path(temporary)
        manifest = base / "runs.json"
        if manifest.exists():
            runs = [Run(**values) for values in json.loads(manifest.read_text())]
        else:
            base.mkdir(parents=True, exist_ok=True)
            runs = record_all(arguments, base)
            manifest.write_text(json.dumps([vars(run) for run in runs]))
        for split in arguments.split.split(","):
            chosen = [run for run in runs if run.split == split]
            for name, rules in RULES.items():
                print(f"### {split}: {name}\n")
                score(rules, chosen, by_alerts=name.startswith("msprobe"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
