"""How often do the default rules cry wolf? Many short healthy trainings that nobody tuned by.

Each run is another model (a GPT of 9 layers, or a mixture of experts of 4, with more than 1,000
series), another seed, and one of a few learning rates and schedules; it is recorded, judged by
``tensorprobe backtest`` with each set of rules of ``bench/diagnosis.py``, and deleted. A line of
JSON a run goes to a file, so that a later call goes on where this one was stopped.

    python bench/healthy.py RESULTS [--runs 75] [--steps 400] [--seed 0]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import tensorprobe
from diagnosis import OPS, RULES, Model, Run, batch_of, findings

KINDS = {"deep": (9, 16, 0), "wide": (9, 24, 0), "experts": (4, 16, 4), "many": (3, 24, 6)}
RATES = (1e-3, 2e-3, 3e-3)


def rate_at(step: int, steps: int, peak: float, schedule: str) -> float:
    """Constant, or risen over 30 steps and fallen to a tenth along a cosine."""
    if schedule == "constant":
        return peak
    return peak * min((step + 1) / 30, 0.55 + 0.45 * math.cos(math.pi * step / steps))


def train(number: int, seed: int, steps: int, base: Path) -> dict[str, Any]:
    kind = list(KINDS)[number % len(KINDS)]
    peak = RATES[number // len(KINDS) % len(RATES)]
    schedule = ("constant", "cosine")[number // (len(KINDS) * len(RATES)) % 2]
    layers, width, experts = KINDS[kind]
    torch.manual_seed(770_000 + 1000 * seed + number)
    generator = torch.Generator().manual_seed(880_001 + 1000 * seed + number)
    table = torch.rand(16, 16, generator=generator) ** 6 + 1e-6
    model = Model(layers, width, experts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak)
    with tensorprobe.watch(
        model, optimizer, format="api", ops=OPS, output_dir=str(base), alert={"rules": []}
    ) as monitor:
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = rate_at(step, steps, peak, schedule)
            x, y = batch_of(generator, table)
            loss: Any = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            monitor.log_scalar("loss", loss)
            optimizer.step()
            optimizer.zero_grad()
    series = len(tensorprobe.Journal(monitor.directory).defined())
    run = Run([monitor.directory], "none", False, "healthy", kind, steps + 1, steps, "head", True)
    result: dict[str, Any] = {
        "run": number, "seed": seed, "model": kind, "rate": peak, "schedule": schedule,
        "steps": steps, "series": series, "loss": float(loss.detach()), "rules": {},
    }  # fmt: skip
    for name, rules in RULES.items():
        found = findings(rules, [run])[monitor.directory]
        result["rules"][name] = {
            "incidents": [[step, row] for step, row in found.incidents],
            "steps": len(found.alerts),
        }
    return result


def report(lines: list[dict[str, Any]]) -> None:
    steps = sum(line["steps"] for line in lines)
    fewest = min(line["series"] for line in lines)
    print(f"{steps} healthy steps in {len(lines)} runs, of {fewest} series and more\n")
    print("| rules | incidents | per 10,000 steps | steps with an alert |")
    print("|---|---|---|---|")
    for name in RULES:
        found = [line["rules"][name] for line in lines]
        incidents = sum(len(one["incidents"]) for one in found)
        alerted = sum(one["steps"] for one in found)
        print(f"| {name} | {incidents} | {10000 * incidents / steps:.1f} | {alerted} |")


def main() -> int:
    parser = argparse.ArgumentParser(description="Count false incidents of healthy runs.")
    parser.add_argument("results", type=Path, help="a line of JSON a run; what is there is kept")
    parser.add_argument("--runs", type=int, default=75)
    parser.add_argument("--steps", type=int, default=400, help="of a run")
    parser.add_argument("--seed", type=int, default=0, help="other weights and data")
    parser.add_argument("--base", type=Path, help="where recordings are made and deleted")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = arguments.results.read_text() if arguments.results.exists() else ""
    lines = [json.loads(line) for line in text.splitlines()]
    for number in range(arguments.runs):
        if any((line["run"], line["seed"]) == (number, arguments.seed) for line in lines):
            continue
        base = Path(tempfile.mkdtemp(dir=arguments.base))
        try:
            lines.append(train(number, arguments.seed, arguments.steps, base))
        finally:
            shutil.rmtree(base)
        with arguments.results.open("a") as file:
            file.write(json.dumps(lines[-1]) + "\n")
    report(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
