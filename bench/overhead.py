r"""What watching costs a training: CPU time, memory, bytes a step.

A GPT (8 layers, hidden 256, vocabulary 8192, sequence 256, batch 4, AdamW, one torch thread) trains
in blocks of steps: plain, watched, plain again, in changing order, in one process. The ratio is the
CPU time of the whole process (the writer thread included) in a watched block to the mean of the two
plain blocks around it, the median over the rounds; the control is the ratio of these to each
other: how far it is from 1 is noise. Memory is the largest resident set (VmHWM) of any
watched block less that of the plain blocks before the first monitor was opened.

    python bench/overhead.py                       both configurations of TensorProbe
    python bench/overhead.py --json                one JSON object a line
    python bench/overhead.py --ancestor 1.1.1=DIR --ancestor 26.2.0=DIR

The ancestors are msprobe's Monitor. Both import as `msprobe`, so each lives in a folder of its own
and runs in a process of its own:

    pip install --target DIR --no-deps mindstudio-probe==1.1.1       (or 26.2.0)
    pip install --target DIR pytz pyopenssl openpyxl matplotlib pyyaml rich tabulate twisted \
        einops psutil
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

LAYERS, HIDDEN, HEADS, VOCABULARY, LENGTH, BATCH = 8, 256, 4, 8192, 256, 4
GOALS = {"gradients": (0.01, 100.0), "everything": (0.10, 200.0)}  # CPU share, MiB

OPS = ["norm", "min", "max", "mean", "zeros", "nans"]
WEIGHT_GRADIENTS = {"targets": {}, "wg_distribution": True, "format": "csv", "ops": OPS}
EVERYTHING = {
    "targets": {},
    "xy_distribution": True,
    "all_xy": True,
    "wg_distribution": True,
    "param_distribution": True,
    "mv_distribution": True,
    "format": "csv",
    "ops": OPS,
}


class Block(nn.Module):
    """A layer of a GPT."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.out = nn.Linear(HIDDEN, HIDDEN)
        self.norm2 = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape[0], x.shape[1], HEADS, HIDDEN // HEADS
        q, k, v = (t.view(shape).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        y: Tensor = x + self.down(self.act(self.up(self.norm2(x))))
        return y


class GPT(nn.Module):
    """Token ids in, logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Embedding(LENGTH, HIDDEN)
        self.layers = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token(ids) + self.position(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Trainer:
    """A model, its optimizer, and one training step on random tokens."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = GPT().train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1))

    def step(self) -> None:
        logits = self.model(self.ids[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()


def peak_mib() -> float:
    """Largest resident set since reset_peak, in MiB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) / 1024


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


Watch = Callable[[Trainer], contextlib.AbstractContextManager[Any]]


@contextlib.contextmanager
def plain(_: Trainer) -> Iterator[None]:
    """Trains unwatched."""
    yield None


def run_block(trainer: Trainer, watch: Watch, steps: int) -> tuple[float, float, float]:
    """Measure CPU seconds and wall seconds a step, and peak memory.

    Opening, the first step and closing are not timed: a training of weeks sees them once.
    """
    reset_peak()
    with watch(trainer):
        trainer.step()
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            trainer.step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return cpu / steps, wall / steps, peak_mib()


def compare(title: str, watch: Watch, rounds: int, steps: int) -> dict[str, Any]:
    """Run rounds of plain, watched and control blocks; return one row of the table."""
    trainer = Trainer()
    base = max(run_block(trainer, plain, steps)[2] for _ in range(2))
    blocks: dict[str, list[tuple[float, float, float]]] = {
        "plain": [],
        "watched": [],
        "control": [],
    }
    order = list(blocks)
    for number in range(rounds):
        for name in order if number % 2 == 0 else reversed(order):
            blocks[name].append(run_block(trainer, watch if name == "watched" else plain, steps))

    def ratio(column: int) -> float:
        triples = zip(blocks["watched"], blocks["plain"], blocks["control"], strict=True)
        return statistics.median(2 * w[column] / (a[column] + b[column]) for w, a, b in triples)

    control = [a[0] / b[0] for a, b in zip(blocks["control"], blocks["plain"], strict=True)]

    return {
        "configuration": title,
        "cpu_ratio": ratio(0),
        "wall_ratio": ratio(1),
        "control_ratio": statistics.median(control),
        "control_spread": max(abs(value - 1) for value in control),
        "plain_ms_per_step": 1e3 * statistics.median(b[0] for b in blocks["plain"]),
        "memory_mib": max(b[2] for b in blocks["watched"]) - base,
        "rounds": rounds,
        "steps_per_block": steps,
    }


def folder_bytes(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def tensorprobe_row(title: str, rounds: int, steps: int) -> dict[str, Any]:
    """Measure TensorProbe: weight gradients through TrainerMon, or everything through watch()."""
    import tensorprobe

    last: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:

        @contextlib.contextmanager
        def watch(trainer: Trainer) -> Iterator[None]:
            if title == "everything":
                monitor: Any = tensorprobe.watch(
                    trainer.model, trainer.optimizer, output_dir=folder
                )
            else:
                os.environ["TENSORPROBE_OUTPUT_DIR"] = folder
                monitor = tensorprobe.TrainerMon(WEIGHT_GRADIENTS, params_have_main_grad=False)
                monitor.set_monitor(trainer.model, trainer.optimizer)
            try:
                yield
            finally:
                monitor.close()
                last.update(monitor.counters())

        row = compare(f"tensorprobe {title}", watch, rounds, steps)
        # Every block has steps + 1 steps; the files of all of them are still there.
        row["bytes_per_step"] = folder_bytes(Path(folder)) / (rounds * (steps + 1))
    each = last["steps"]
    row["records_per_step"] = last["records"] / each
    row["hook_ms_per_step"] = last["hook_ns"] / each / 1e6
    row["wait_ms_per_step"] = last["wait_ns"] / each / 1e6
    row["writer_ms_per_step"] = last["writer_cpu_ns"] / each / 1e6
    row["gaps"], row["errors"] = last["gaps"], last["errors"]
    return row


def ancestor_row(title: str, version: str, rounds: int, steps: int) -> dict[str, Any]:
    """Measure msprobe's Monitor.

    It can't be closed, so its hooks are taken off the model and the optimizer by hand between
    blocks, which is kinder to it than what its users have.
    """
    import numpy as np

    if version == "1.1.1":
        np.unicode_ = np.str_  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MONITOR_OUTPUT_DIR"] = folder
        from msprobe.pytorch import TrainerMon

        settings = dict(EVERYTHING if title == "everything" else WEIGHT_GRADIENTS)
        settings["targets"] = {name: {} for name, _ in GPT().named_modules() if name}
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(settings))
        hook_tables = (
            "_forward_hooks",
            "_forward_hooks_with_kwargs",
            "_forward_pre_hooks",
            "_forward_pre_hooks_with_kwargs",
            "_backward_hooks",
            "_backward_pre_hooks",
        )
        monitors: list[Any] = []

        @contextlib.contextmanager
        def watch(trainer: Trainer) -> Iterator[None]:
            optimizer = type(trainer.optimizer)
            kept_step = optimizer.step
            if version == "1.1.1":
                # With moments on it wants to be told the kind of optimizer; any name will do.
                monitor = TrainerMon(str(path), None, False, "Megatron_FP32Optimizer")
                monitor.monitor_gnorm_with_ad(trainer.model, 1, trainer.optimizer)
            else:
                monitor = TrainerMon(str(path), params_have_main_grad=False)
                monitor.set_monitor(trainer.model, trainer.optimizer, grad_acc_steps=1)
            monitors[:] = [monitor]
            try:
                yield
            finally:
                for module in trainer.model.modules():
                    for table in hook_tables:
                        getattr(module, table).clear()
                    for parameter in module.parameters(recurse=False):
                        if parameter._backward_hooks:
                            parameter._backward_hooks.clear()
                for handles in monitor.handles.values():
                    for handle in handles:
                        handle.remove()
                # Hooks on gradient accumulators live as long as somebody holds those.
                monitor.grad_accs.clear()
                optimizer.step = kept_step  # type: ignore[method-assign]
                trainer.optimizer.__dict__.pop("step", None)
                trainer.optimizer._optimizer_step_pre_hooks.clear()
                trainer.optimizer._optimizer_step_post_hooks.clear()
                _global_optimizer_pre_hooks.clear()
                _global_optimizer_post_hooks.clear()

        row = compare(f"msprobe {version} {title}", watch, rounds, steps)
        row["bytes_per_step"] = folder_bytes(Path(folder)) / (rounds * (steps + 1))
    return row


def machine() -> str:
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return f"{found[1] if found else platform.machine()}, {os.cpu_count()} CPUs"


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        f"{'':28} {'CPU':>8} {'control':>8} {'spread':>7} {'wall':>8} {'memory':>10} "
        f"{'bytes/step':>11} {'hooks':>9} {'writer':>9}"
    ]
    for row in rows:
        own = [
            f"{row[key]:6.2f} ms" if key in row else ""
            for key in ("hook_ms_per_step", "writer_ms_per_step")
        ]
        lines.append(
            f"{row['configuration']:28} {row['cpu_ratio'] - 1:+8.2%} "
            f"{row['control_ratio'] - 1:+8.2%} {row['control_spread']:7.2%} "
            f"{row['wall_ratio'] - 1:+8.2%} {row['memory_mib']:+6.0f} MiB "
            f"{row['bytes_per_step']:11,.0f} {own[0]:>9} {own[1]:>9}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=4, help="timed steps in a block")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument(
        "--only", choices=("gradients", "everything"), help="one configuration instead of both"
    )
    parser.add_argument(
        "--ancestor", action="append", default=[], metavar="VERSION=DIR", help="see above"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    titles = [options.only] if options.only else ["gradients", "everything"]

    if options.worker:
        torch.set_num_threads(1)
        program, _, title = options.worker.partition(":")
        row = (
            tensorprobe_row(title, options.rounds, options.steps)
            if program == "tensorprobe"
            else ancestor_row(title, program, options.rounds, options.steps)
        )
        print("ROW " + json.dumps(row))
        return 0

    folders = dict(item.split("=", 1) for item in options.ancestor)
    rows = []
    failed = False
    for program in ["tensorprobe", *folders]:
        for title in titles:
            environment = dict(os.environ)
            if program in folders:
                paths = [str(Path(folders[program]).resolve()), environment.get("PYTHONPATH", "")]
                environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
            command = [sys.executable, __file__, "--worker", f"{program}:{title}"]
            command += ["--rounds", str(options.rounds), "--steps", str(options.steps)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            found = [line for line in done.stdout.splitlines() if line.startswith("ROW ")]
            if done.returncode != 0 or not found:
                print(done.stderr[-2000:], file=sys.stderr)
                print(f"{program} {title} failed", file=sys.stderr)
                failed = True
                continue
            row = json.loads(found[0][4:])
            row["machine"] = machine()
            rows.append(row)
            if options.json:
                print(json.dumps(row), flush=True)
    if rows and not options.json:
        print(f"{machine()}, torch {torch.__version__}, one thread;", end=" ")
        print(f"a plain step takes {rows[0]['plain_ms_per_step']:.0f} ms of CPU time")
        print(table(rows))
        for title, (share, mib) in GOALS.items():
            print(f"goal, {title}: at most {share:.0%} and {mib:.0f} MiB")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
