"""Rules in a real run, and over what it recorded: against medians worked out from the journal."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import tensorprobe
from built import TOOL
from journal_reader import ALERTS, read_journal, record_fields
from tensorprobe import Journal, TrainerMon, _core

STEPS = 80


class Net(nn.Module):
    """Two layers, of which the second can be made to die."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(8, 16)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc2(self.act(self.fc1(x)))
        return y


def run(base: Path, rules: list[dict[str, Any]], **extra: Any) -> Journal:
    """Train with a loud batch at 40, a dead layer from 50 on and a learning rate of 0 from 65."""
    config = {
        "targets": {},
        "xy_distribution": True,
        "wg_distribution": True,
        "param_distribution": True,
        "format": "api",
        "alert": {"rules": rules},
        **extra,
    }
    torch.manual_seed(5)
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    monitor = TrainerMon(config, output_dir=base)
    monitor.set_monitor(net, optimizer)
    for step in range(STEPS):
        if step == 50:
            with torch.no_grad():
                net.fc1.bias.fill_(-100.0)
        optimizer.param_groups[0]["lr"] = 0.0 if step == 40 or step >= 65 else 0.01
        x = torch.randn(16, 8) * (1000.0 if step == 40 else 1.0)
        loss = net(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        monitor.log_scalar("loss", loss)
        monitor.log_scalar("other", -loss)
        optimizer.step()
    monitor.close()
    return Journal(monitor.directory)


RULES: list[dict[str, Any]] = [
    {"rule_name": "Exploding", "args": {"threshold": 8, "window": 20, "min_samples": 10}},
    {"rule_name": "LossSpike", "args": {"targets": ["loss"]}},
    {"rule_name": "AllZero"},
    {"rule_name": "UnchangedTensor", "args": {"targets": ["fc?"]}},
]


def series(journal: Journal) -> dict[tuple[str, str], list[tuple[int, dict[str, Any]]]]:
    found = defaultdict(list)
    for step in journal:
        for record in step.records:
            found[record["row"], record["quantity"]].append((step.step, record))
    return found


def low_median(values: list[float]) -> float:
    return statistics.median_low(values)


def exploding(values: list[float], threshold: float, window: int, least: int) -> set[int]:
    """Places at which the documented rule fires, by sorting all over again."""
    fired: set[int] = set()
    kept: list[float] = []
    in_a_row = 0
    for place, value in enumerate(values):
        if not math.isfinite(value):
            continue
        last = kept[-window:]
        fires = False
        if len(last) >= least:
            median = low_median(last)
            deviation = 1.4826 * low_median([abs(v - median) for v in last])
            fires = value > median + threshold * max(deviation, 0.05 * abs(median))
        if fires:
            fired.add(place)
            in_a_row += 1
            if in_a_row < window:
                continue
            kept.clear()
        in_a_row = 0
        kept.append(value)
    return fired


def expected_alerts(journal: Journal) -> dict[str, set[tuple[str, str, int]]]:
    wanted: dict[str, set[tuple[str, str, int]]] = defaultdict(set)
    for (row, quantity), items in series(journal).items():
        steps = [step for step, _ in items]
        records = [record for _, record in items]
        if quantity == "scalar":
            if row == "loss":
                for place in exploding([r["sum"] for r in records], 10, 32, 16):
                    wanted["LossSpike"].add((row, quantity, steps[place]))
            continue
        norms = [math.sqrt(r["sum_sq"]) for r in records]
        for place in exploding(norms, 8, 20, 10):
            wanted["Exploding"].add((row, quantity, steps[place]))
        zero = same = 0
        for place, record in enumerate(records):
            dead = record["zeros"] == record["count"]
            zero = zero + 1 if dead and quantity.startswith(("actv", "grad")) else 0
            if zero == 5:
                wanted["AllZero"].add((row, quantity, steps[place]))
            fields = ("sum", "sum_sq", "m2", "min", "max")
            still = (
                place > 0
                and record["nan"] == 0
                and all(record[f] == records[place - 1][f] for f in fields)
            )
            same = same + 1 if still and quantity == "param_updated" else 0
            if same == 5:
                wanted["UnchangedTensor"].add((row, quantity, steps[place]))
    return wanted


def test_every_rule_in_a_run(tmp_path: Path) -> None:
    journal = run(tmp_path, RULES)
    found: dict[str, set[tuple[str, str, int]]] = defaultdict(set)
    for alert in journal.alerts():
        found[alert.rule].add((alert.row, alert.quantity, alert.step))
    wanted = expected_alerts(journal)
    assert found == wanted
    assert ("loss", "scalar", 40) in found["LossSpike"]
    assert ("fc1.input", "actv", 40) in found["Exploding"]
    assert ("act.output", "actv", 54) in found["AllZero"]
    assert ("fc2.bias", "param_updated", 69) in found["UnchangedTensor"]
    assert ("fc1.weight", "param_updated", 54) in found["UnchangedTensor"]  # its layer is dead


def test_backtest_says_what_the_run_said(tmp_path: Path) -> None:
    """Rules over an unwatched run's journal fire where they would have fired in it."""
    with_rules = run(tmp_path / "a", RULES)
    without = run(tmp_path / "b", [])
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"alert": {"rules": RULES}, "wg_distribution": True}))
    done = subprocess.run(
        [TOOL, "backtest", rules, tmp_path / "b"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0] == without.directory
    alerts = with_rules.alerts()
    values = sum(step.count for step in without.steps())
    assert f"  {STEPS} steps, {values} values" in lines
    for rule in ("Exploding", "LossSpike", "AllZero", "UnchangedTensor"):
        steps = [alert.step for alert in alerts if alert.rule == rule]
        many = "" if len(steps) == 1 else "s"
        assert f"{rule}: {len(steps)} alert{many} in {len(set(steps))} of {STEPS} steps" in lines
        first = next(alert for alert in alerts if alert.rule == rule)
        start = f"  {rule}, step {first.step}: {first.row} ({first.quantity}): "
        assert any(line.startswith(start) for line in lines), (start, lines)


def test_backtest_lists_for_programs(tmp_path: Path) -> None:
    """Steps, counts, first tensors and incidents are those that the run itself recorded."""
    journal = run(tmp_path / "a", RULES)
    rules = tmp_path / "rules.json"
    rules.write_text(json.dumps({"alert": {"rules": RULES}, "wg_distribution": True}))
    done = subprocess.run(
        [TOOL, "backtest", "--list", rules, journal.directory],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    counts: dict[int, int] = defaultdict(int)
    for alert in journal.alerts():
        counts[alert.step] += 1
    assert {int(line[2]): int(line[3]) for line in lines if line[0] == "alerts"} == counts
    begun = [i for i in journal.incidents(changes=True) if i.state == "begins"]
    found = [tuple(line[1:]) for line in lines if line[0] == "incident"]
    assert found == [
        (journal.directory, str(i.step), i.severity, i.cause, i.rule, i.quantity, i.row)
        for i in begun
    ]
    assert found
    for line in lines:
        rows = line[6::3]
        firsts = [i.row for i in begun if line[0] == "alerts" and i.step == int(line[2])]
        assert firsts in ([], rows[:1])


def test_backtest_of_what_is_not_there(tmp_path: Path) -> None:
    rules = tmp_path / "rules.json"
    command = [str(TOOL), "backtest", str(rules), str(tmp_path)]
    for text, message in [
        ('{"alert": {"rules": [{"rule_name": "Exploding"}]}, "wg_distribution": true}', "journal"),
        ('{"wg_distribution": true}', "has no rules"),
        ('{"alert": {"rules": [{"rule_name": "Explode"}]}}', "rules.json:1:36: alert.rules[0]"),
    ]:
        rules.write_text(text)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert message in done.stderr
    done = subprocess.run(command[:3], capture_output=True, text=True, check=False)
    assert done.returncode == 2


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    torch.manual_seed(1)
    layers = [nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)]
    net = nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    names = ("Exploding", "Vanishing", "LossSpike", "AllZero", "UnchangedTensor")
    config = {
        "xy_distribution": True,
        "wg_distribution": True,
        "mv_distribution": True,
        "param_distribution": True,
        "format": "api",
        "alert": {"rules": [{"rule_name": name} for name in names]},
    }
    monitor = TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(net, optimizer)
    for _ in range(200):
        x = torch.randn(64, 16)
        loss = (net(x).squeeze(1) - x.sum(1).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        monitor.log_scalar("loss", loss)
        optimizer.step()
    monitor.close()
    assert monitor.alerts() == []


def test_one_incident_in_a_run(tmp_path: Path) -> None:
    """A weight that becomes NaN: one incident, read by the independent reader and by ours."""
    torch.manual_seed(0)
    last = nn.Linear(8, 1)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), last)
    optimizer = torch.optim.AdamW(net.parameters())
    rules = [{"rule_name": "AnomalyNan"}, {"rule_name": "Exploding"}]
    config = {
        "xy_distribution": True,
        "wg_distribution": True,
        "param_distribution": True,
        "mv_distribution": True,
        "format": "api",
        "alert": {"rules": rules},
    }
    monitor = TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(net, optimizer)
    for step in range(16):
        if step == 3:
            with torch.no_grad():
                last.weight[0, 5] = math.nan
        net(torch.randn(4, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    (incident,) = monitor.incidents()
    alerts = monitor.alerts()
    assert (incident.row, incident.quantity) == ("2.weight", "param_origin")
    assert (incident.cause, incident.severity) == ("weight", "critical")
    assert (incident.element, incident.bits) == (5, 0x7FC00000)
    assert (incident.first_step, incident.state, incident.step) == (3, "grows", 12)
    assert {alert.incident for alert in alerts} == {1}
    until = [alert for alert in alerts if alert.step <= 12]
    assert incident.alerts == len(until)
    assert incident.series == len({(a.row, a.quantity) for a in until})
    assert "first in 2.weight (param_origin): 1 value is NaN" in incident.text
    changes = Journal(monitor.directory).incidents(changes=True)
    assert [(change.state, change.steps) for change in changes] == [("begins", 1), ("grows", 10)]
    stored = [
        record_fields(record)
        for item, _ in read_journal(Path(monitor.directory))
        for record in (item.records if item.type == ALERTS else ())
    ]
    found = [fields for fields in stored if fields["kind"] == 4]
    names = ("first_step", "last_step", "steps", "alerts", "series", "value", "parent", "bits")
    for ours, theirs in zip(changes, found, strict=True):
        assert [getattr(ours, name) for name in names] == [theirs[name] for name in names]


def observe(base: Path, norms: list[float], first: int, **start: Any) -> str:
    """Record numbers under one name, and let Exploding look at them."""
    monitor = _core.Monitor(
        config_json=json.dumps(
            {"wg_distribution": True, "format": "api", "alert": {"rules": [BURST]}}
        ),
        output_dir=str(base),
        **start,
    )
    key = monitor.key("weight", _core.GRAD_REDUCED)
    for step, norm in enumerate(norms, first):
        monitor.start_at(step)
        monitor.observe(key, torch.tensor([norm]))
        monitor.step()
    directory = monitor.directory
    monitor.close()
    return directory


BURST = {"rule_name": "Exploding", "args": {"min_samples": 8, "window": 16, "threshold": 20}}


def test_baselines_survive_a_restart(tmp_path: Path) -> None:
    """The second attempt begins at step 20: what the first one had from there on doesn't count."""
    before = observe(tmp_path, [1.0] * 20 + [1000.0] * 5, 0)
    after = observe(tmp_path, [1.0, 50.0, 1.0], 20, resume=before)
    assert after == before
    alerts = [(alert.step, alert.value) for alert in Journal(after).alerts()]
    assert (21, 50.0) in alerts
    assert (20, 1.0) not in alerts
    fresh = observe(tmp_path / "fresh", [1.0, 50.0, 1.0], 20)
    assert Journal(fresh).alerts() == []


def test_the_element_and_its_pattern(tmp_path: Path, seed: int) -> None:
    """Where the only bad element of a tensor is, whatever its strides, and what its bits are."""
    rng = torch.Generator().manual_seed(seed)
    monitor = _core.Monitor(
        config_json=json.dumps(
            {
                "wg_distribution": True,
                "format": "api",
                "alert": {"rules": [{"rule_name": "AnomalyNan"}]},
            }
        ),
        output_dir=str(tmp_path),
    )
    patterns = {
        torch.float32: (torch.int32, [0x7FC00000, 0x7F800000, 0x7F801234]),
        torch.float64: (torch.int64, [0x7FF8000000000000, 0x7FF0000000000000, 0x7FF0000000000001]),
        torch.float16: (torch.int16, [0x7E00, 0x7C00, 0x7C01]),
        torch.bfloat16: (torch.int16, [0x7FC0, 0x7F80, 0x7F81]),
    }
    wanted = []
    for number in range(48):
        dtype = list(patterns)[number % 4]
        integer, bits = patterns[dtype]
        pattern = bits[number // 4 % 3]
        shape = [int(n) for n in torch.randint(3, 9, (3,), generator=rng)]
        base = torch.randn(shape, generator=rng).to(dtype)
        order = [int(n) for n in torch.randperm(3, generator=rng)]
        tensor = base.permute(order)
        tensor = tensor[:, ::2] if number % 3 == 0 else tensor
        place = int(torch.randint(0, tensor.numel(), (1,), generator=rng))
        at = torch.unravel_index(torch.tensor(place), tensor.shape)
        tensor.view(integer)[at] = pattern
        monitor.start_at(100 * number)
        quantity = _core.PARAM_ORIGIN if number % 2 else _core.GRAD_REDUCED
        monitor.observe(monitor.key(f"t{number}", quantity), tensor)
        monitor.step()
        assert not bool(tensor.reshape(-1)[place].isfinite())
        assert int((~tensor.isfinite()).sum()) == 1
        flipped = number // 4 % 3 == 2 or (number // 4 % 3 == 1 and number % 2)
        wanted.append((f"t{number}", place, pattern, bool(flipped)))
    directory = monitor.directory
    monitor.close()
    found = [
        (i.name, i.element, i.bits, i.cause == "flipped_bit")
        for i in Journal(directory).incidents()
    ]
    assert found == wanted
    assert (
        f"(element {wanted[0][1]} is 0x{wanted[0][2]:x})" in Journal(directory).incidents()[0].text
    )


def test_a_bad_batch_of_a_later_micro_step(tmp_path: Path) -> None:
    """The gradients of the whole step, which say micro step 0, are its victims."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(net.parameters())
    config = {
        "xy_distribution": True,
        "wg_distribution": True,
        "param_distribution": True,
        "mv_distribution": True,
        "format": "api",
        "alert": {"rules": [{"rule_name": "AnomalyNan"}]},
    }
    monitor = TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(net, optimizer, grad_acc_steps=3)
    for step in range(3):
        for micro_step in range(3):
            x = torch.randn(2, 4)
            if (step, micro_step) == (1, 2):
                x[0, 3] = math.nan
            net(x).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    incident = monitor.incidents()[0]
    assert (incident.row, incident.quantity) == (".input", "actv")
    assert (incident.first_step, incident.micro_step, incident.cause) == (1, 2, "bad_batch")
    report = tmp_path / "report"
    command = [str(TOOL), "analyse", monitor.directory, "-o", str(report)]
    environment = {**os.environ, "TENSORPROBE_PYTHON": sys.executable}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    assert "step 1, critical, rank 0: AnomalyNan: first in .input (actv)" in done.stdout
    assert "in its first step: .input (actv) → 0.input (actv) → " in done.stdout


def test_the_console_says_which_rules_are_warming_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Once, at the start; not on other ranks, and not again where a resumed run knows enough."""
    said = []
    for rank, resume, start in ((0, None, 0), (1, None, 0), (0, "first", 20)):
        model = torch.nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with tensorprobe.watch(
            model, optimizer, format="api", output_dir=str(tmp_path), rank=rank,
            run_id="first" if resume is None else None, resume=resume, start_iteration=start,
        ):  # fmt: skip
            for _ in range(20):
                model(torch.ones(2, 3)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
        lines = capfd.readouterr().err.splitlines()
        said.append([line for line in lines if "warming up" in line])
    assert said[1:] == [[], []]
    assert said[0] == [
        "tensorprobe: rules that are warming up say nothing yet: LossSpike, GradNormSpike, "
        "VarianceBounds, WeightUpdateRatio, DeadUnits before step 16"
    ]
