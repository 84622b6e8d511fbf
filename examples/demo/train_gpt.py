"""Trains a small GPT on real text, breaks it partway, and shows what TensorProbe saw.

python train_gpt.py                      a NaN in a random weight
python train_gpt.py --fault spike        a weight that is suddenly 1000 times as large
python train_gpt.py --fault dead         a layer that suddenly gives nothing but zeros
python train_gpt.py --fault none         nothing happens, and nothing is said
"""

from __future__ import annotations

import argparse
import math
import os
import random
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

import tensorprobe
from fault import FAULTS, Fault, draw, inject
from model import GPT, SYMBOLS, sample, standard_library_text
from plot import plot

WARM_UP = 24  # healthy steps before a fault: the monitor's baseline of a norm needs 20
WORDS = {
    "actv": "activation",
    "actv_grad": "gradient of an activation",
    "grad_unreduced": "gradient before reduction",
    "grad_reduced": "gradient of a weight",
    "param_origin": "weight before the step",
    "param_updated": "weight after the step",
    "exp_avg": "first moment of the optimizer",
    "exp_avg_sq": "second moment of the optimizer",
}
STEPS_AFTER = {"nan": 5, "spike": 8, "dead": 8, "none": 0}


@dataclass(frozen=True)
class Options:
    """What is trained, for how long, and how it is broken."""

    fault: str = "nan"
    seed: int = 0
    steps: int = 300
    layers: int = 4
    width: int = 256
    heads: int = 4
    length: int = 64
    batch: int = 16
    output: str = "monitor_output"


@dataclass(frozen=True)
class Result:
    """What happened. `fault` is None when nothing was broken."""

    fault: Fault | None
    directory: Path
    counters: dict[str, int]
    seconds: float
    alerts: list[tensorprobe.Alert]
    incidents: list[tensorprobe.Incident]
    parameters: int


class Screen:
    """Prints to a person or to a file: colour and a moving bar for the person only."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.live = sys.stdout.isatty()
        self.ascii = "utf" not in (sys.stdout.encoding or "").lower()
        self.columns = min(96, shutil.get_terminal_size().columns)

    def paint(self, text: str, colour: str) -> str:
        codes = {"red": "31", "green": "32", "bold": "1", "dim": "2"}
        return f"\033[{codes[colour]}m{text}\033[0m" if self.live else text

    def say(self, text: str = "") -> None:
        if not self.quiet:
            print(("\033[K" if self.live else "") + text, flush=True)

    def title(self, text: str) -> None:
        line = "-" if self.ascii else "─"
        self.say()
        self.say(self.paint(f"{line * 2} {text} {line * (self.columns - len(text) - 4)}", "bold"))

    def field(self, name: str, text: str) -> None:
        self.say(f"  {self.paint(f'{name:<10}', 'dim')} {text}")

    def progress(self, step: int, steps: int, loss: float, speed: float) -> None:
        if self.quiet:
            return
        facts = f"step {step:>4}/{steps}   loss {loss:6.3f}   {speed:5.1f} steps/s"
        if self.live:
            # The cursor goes back to the start of the line, so that an alert that the monitor
            # prints meanwhile overwrites the bar instead of running on behind it.
            full, empty = "#-" if self.ascii else "█░"
            size = max(10, self.columns - len(facts) - 6)
            done = size * step // steps
            print(f"\033[K  {full * done}{empty * (size - done)}  {facts}\r", end="", flush=True)
        elif step % max(1, steps // 10) == 0 or step == steps:
            print(f"  {facts}", flush=True)


def train(options: Options, text: torch.Tensor, screen: Screen) -> Result:
    """Build a model, watch it, train it, break it."""
    torch.manual_seed(options.seed)
    batches = torch.Generator().manual_seed(options.seed)
    model = GPT(len(SYMBOLS), options.length, options.layers, options.width, options.heads)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    parameters = sum(p.numel() for p in model.parameters())
    fault = None
    if options.fault != "none":
        last = max(WARM_UP, options.steps * 2 // 3)
        first = max(WARM_UP, options.steps // 3)
        fault = draw(options.fault, model, options.seed, first, last)

    screen.field("model", f"{options.layers} layers, {parameters / 1e6:.1f} million parameters")
    screen.field("watched", "every activation, gradient, weight and moment, all defaults")
    screen.say()
    steps = options.steps
    # ---- the only line that training needs for being watched ----
    with tensorprobe.watch(model, optimizer, output_dir=options.output) as monitor:
        begin = time.perf_counter()
        for step in range(options.steps):
            if fault and step == fault.step:
                inject(fault, model)
                steps = min(options.steps, step + STEPS_AFTER[fault.kind])
                screen.say(screen.paint(f"  >> {fault}", "red"))
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * min(1.0, (step + 1) / 20)
            inputs, targets = sample(text, options.batch, options.length, batches)
            loss = functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            seconds = time.perf_counter() - begin
            screen.progress(step + 1, options.steps, loss.item(), (step + 1) / seconds)
            if step + 1 == steps:
                break
        seconds = time.perf_counter() - begin
    if screen.live:
        screen.say()
    if fault and steps < options.steps:
        screen.say("  (stopped here: what comes after a fault would teach nobody anything)")
    return Result(
        fault,
        Path(monitor.directory),
        monitor.counters(),
        seconds,
        monitor.alerts(),
        monitor.incidents(),
        parameters,
    )


def show_first(result: Result, first: tensorprobe.Incident, screen: Screen) -> None:
    """Show the tensor that went wrong first, why, and how many followed it."""
    found = f"{first.op} is {first.value:.4g}"
    if first.op == "nans":
        found = f"{first.value:.0f} values are NaN"
    if not math.isnan(first.baseline):
        found += f"; the median of {first.samples} earlier steps was {first.baseline:.4g}"
    screen.field("step", str(first.first_step))
    screen.field("tensor", screen.paint(first.row, "red") + f"  ({WORDS[first.quantity]})")
    screen.field("found", f"{found}  ({first.rule})")
    reason = first.text.partition(". ")[2]
    if reason:
        screen.field("why", reason.partition(";")[0])
    behind = sum(alert.step == first.first_step for alert in result.alerts) - 1
    screen.field("after it", f"{behind} more alerts in the same step: the victims")


def show_norms(result: Result, first: tensorprobe.Incident, screen: Screen) -> None:
    """Plot the norms of the tensor that was named, read back from the journal."""
    steps, values = tensorprobe.Journal(result.directory).series(
        first.name, first.quantity, first.role, "norm"
    )
    screen.title(f"Norm of {first.row}")
    mark = result.fault.step if result.fault else None
    for line in plot(steps, values, screen.columns - 14, mark=mark, ascii_only=screen.ascii):
        screen.say(line.replace("!", screen.paint("!", "red")))
    if any(not math.isfinite(value) for value in values):
        screen.say(f"{'':12}! is a norm that is NaN or infinite")


def show(options: Options, result: Result, screen: Screen) -> bool:
    """Show the end of the demo; return whether the monitor said what it had to say."""
    screen.title("What went wrong first")
    first = result.incidents[0] if result.incidents else None
    if first:
        show_first(result, first, screen)
    else:
        screen.say(f"  Nothing: no alert in {result.counters['steps']} steps.")
    if result.fault:
        screen.field("the fault", str(result.fault))
    else:
        screen.field("the fault", "none: nothing was broken")
    if first:
        show_norms(result, first, screen)

    screen.title("What the watching cost")
    counters = result.counters
    share = {name: counters[f"{name}_ns"] / 1e9 for name in ("hook", "wait", "writer_cpu")}
    steps = max(1, counters["steps"])
    for name, what in (
        ("hook", "in hooks, inside training"),
        ("wait", "end of step waited for the writer"),
        ("writer_cpu", "writer thread, beside training"),
    ):
        seconds = share[name]
        screen.field(
            f"{seconds / result.seconds:7.2%}",
            f"{1e3 * seconds / steps:6.2f} ms of {1e3 * result.seconds / steps:.0f} ms a step"
            f"   {what}",
        )
    screen.field(
        "records",
        f"{counters['records'] // steps} tensors a step, {counters['records']:,} in all, "
        f"{counters['gaps']} steps lost, {counters['errors']} errors",
    )

    screen.title("Where it is")
    directory = result.directory
    for name, key, what in (
        ("journal", "bytes_journal", "journal/*.tpj"),
        ("tables", "bytes_csv", "*.csv"),
        ("events", "bytes_tensorboard", "for TensorBoard"),
    ):
        screen.field(name, f"{counters[key] / 1e6:7.2f} MB  {what}")
    screen.field("folder", str(directory))
    screen.field("curves", screen.paint(f"tensorboard --logdir {directory}", "bold"))
    screen.say()
    if first is None or result.fault is None:
        return first is None and result.fault is None
    return first.first_step == result.fault.step


def parse(arguments: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Options()
    parser.add_argument("--fault", choices=FAULTS, default=default.fault)
    parser.add_argument("--seed", type=int, help="default: drawn and printed")
    for name in ("steps", "layers", "width", "heads", "length", "batch"):
        parser.add_argument(f"--{name}", type=int, default=getattr(default, name))
    parser.add_argument("--output", default=default.output, help="folder for what is written")
    values = vars(parser.parse_args(arguments))
    if values["seed"] is None:
        values["seed"] = random.SystemRandom().randrange(1_000_000)
    options = Options(**values)
    if options.fault != "none" and options.steps <= WARM_UP:
        parser.error(
            f"--steps must be more than {WARM_UP}: a baseline of 20 healthy steps is needed"
        )
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    # A small model gains little from many threads, and loses a lot when they wait for a busy core.
    torch.set_num_threads(max(1, min(4, len(os.sched_getaffinity(0)) // 2)))
    screen = Screen()
    screen.title("A GPT learns Python, and TensorProbe watches")
    text, folder = standard_library_text()
    screen.field("text", f"{len(text) / 1e6:.1f} million characters from {folder}/*.py")
    again = f"--fault {options.fault} --seed {options.seed}"
    screen.field("seed", f"{options.seed}  (the same run again: {again})")
    result = train(options, text, screen)
    return 0 if show(options, result, screen) else 1


if __name__ == "__main__":
    raise SystemExit(main())
