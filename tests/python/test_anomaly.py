"""From an alert to anomaly.json, and the order of the anomalies of many ranks."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from built import TOOL
from tensorprobe import Journal, TrainerMon, _causes, anomaly_analyse

FIELDS = [
    "rank",
    "step",
    "micro_step",
    "pp_stage",
    "vpp_stage",
    "call_id",
    "tag_name",
    "message",
    "group_mates",
]
CONFIG: dict[str, Any] = {
    "targets": {},
    "xy_distribution": True,
    "wg_distribution": True,
    "format": "csv",
    "ops": ["norm"],
    "alert": {"rules": [{"rule_name": "AnomalyNan"}], "dump": True},
}


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def train(monitor: TrainerMon, steps: int, bad: int) -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    monitor.set_monitor(net, optimizer)
    for step in range(steps):
        x = torch.full((2, 4), float("nan") if step == bad else 1.0 + step)
        net(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()


def test_the_file_has_every_alert(tmp_path: Path) -> None:
    rules = [
        {"rule_name": "AnomalyNan"},
        {"rule_name": "AnomalyTurbulence", "args": {"threshold": 1e-12}},
    ]
    monitor = TrainerMon({**CONFIG, "alert": {"rules": rules, "dump": True}}, output_dir=tmp_path)
    train(monitor, 4, 2)
    link = tmp_path / "anomaly_detected/rank0/anomaly.json"
    assert link.resolve() == Path(monitor.directory, "anomaly.json").resolve()
    entries = json.loads(link.read_text(encoding="utf-8"))
    alerts = Journal(monitor.directory).alerts()
    assert len(entries) == len(alerts) > 20
    keys = set()
    for alert in alerts:
        kind = {"grad_reduced": "post_grad", "grad_unreduced": "acc_grad"}.get(alert.quantity)
        micro = f":{alert.micro_step}" if kind is None else ""
        tag = f"0:{alert.row}{micro}/rank0/{kind or alert.quantity}"
        key = f"{tag}_step_{alert.step}_call_{alert.order}_{alert.rule}_{alert.op}"
        entry = entries[key]
        assert list(entry) == FIELDS
        message = entry.pop("message")
        assert message.startswith(f"{alert.rule} in ('{tag}', '{alert.op}') at step {alert.step}: ")
        assert entry == {
            "rank": 0,
            "step": alert.step,
            "micro_step": alert.micro_step,
            "pp_stage": 0,
            "vpp_stage": 0,
            "call_id": alert.order,
            "tag_name": tag,
            "group_mates": None,
        }
        keys.add(key)
    assert keys == entries.keys()


def test_the_culprit_comes_first(tmp_path: Path) -> None:
    """A weight that became NaN between two steps, with everything on that shows it later."""
    torch.manual_seed(0)
    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    config = {**CONFIG, "param_distribution": True, "mv_distribution": True, "mg_direction": True}
    monitor = TrainerMon({**config, "ur_distribution": True}, output_dir=tmp_path)
    monitor.set_monitor(net, optimizer)
    last = list(net.parameters())[2]
    for step in range(4):
        if step == 2:
            with torch.no_grad():
                last[0, 0] = float("nan")
        loss = net(torch.ones(2, 4)).sum()
        monitor.log_scalar("loss", loss)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    assert anomaly_analyse.main(["-d", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "anomaly_analyse.json").read_text())
    tags = [entry["tag_name"] for entry in written.values()]
    assert tags[:2] == ["0:2.weight/rank0/param_origin", "0:2.output:0/rank0/actv"]


def test_a_loud_rule_leaves_room(tmp_path: Path) -> None:
    """10,000 of a rule that speaks in every step, and the one of another rule that came later."""
    loud = {"rule_name": "AnomalyNan", "args": {"threshold": 1e-30}}
    zero = {"rule_name": "AllZero"}
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    config = {**CONFIG, "alert": {"rules": [loud, zero], "dump": True}}
    monitor = TrainerMon(config, output_dir=tmp_path)
    monitor.set_monitor(net, optimizer)
    for step in range(1700):
        net(torch.ones(2, 4) if step < 1690 else torch.zeros(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    monitor.close()
    entries = json.loads(Path(monitor.directory, "anomaly.json").read_text()).values()
    rules = [entry["message"].partition(" ")[0] for entry in entries]
    alerts = [alert.rule for alert in Journal(monitor.directory).alerts()]
    assert rules.count("AnomalyNan") == 10000 < alerts.count("AnomalyNan")
    assert rules.count("AllZero") == alerts.count("AllZero") > 0


def test_a_later_run_takes_the_link(tmp_path: Path) -> None:
    monitors = []
    for bad in (1, 9):
        monitors.append(TrainerMon(CONFIG, output_dir=tmp_path))
        train(monitors[-1], 2, bad)
    link = tmp_path / "anomaly_detected/rank0/anomaly.json"
    assert json.loads(link.read_text()) == {}
    assert len(json.loads(Path(monitors[0].directory, "anomaly.json").read_text())) > 5
    assert link.resolve().parent == Path(monitors[1].directory).resolve()


def test_names_are_json(tmp_path: Path) -> None:
    """Names with quotes, backslashes, control characters and every kind of letter."""
    name = 'a"b\\c\n\x01é中🦀'
    net = nn.Module()
    net.register_parameter(name, nn.Parameter(torch.ones(1)))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    monitor = TrainerMon(CONFIG, output_dir=tmp_path)
    monitor.set_monitor(net, optimizer)
    next(iter(net.parameters())).grad = torch.full((1,), float("nan"))
    optimizer.step()
    monitor.close()
    entries = json.loads(Path(monitor.directory, "anomaly.json").read_text(encoding="utf-8"))
    assert [entry["tag_name"] for entry in entries.values()] == [
        f"0:{name}/rank0/acc_grad",
        f"0:{name}/rank0/post_grad",
    ]


CHILD = """
import os, sys, torch
from tensorprobe import TrainerMon
net = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
monitor = TrainerMon({config!r}, output_dir=sys.argv[1], run_id="one")
monitor.set_monitor(net, optimizer)
print(monitor.directory, flush=True)
for step in range(200):
    net(torch.full((1, 4), float("nan"))).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == int(sys.argv[2]):
        os.kill(os.getpid(), 9)
"""


def test_a_kill_tears_nothing(tmp_path: Path) -> None:
    """The file is whole after every kill; recovering gives it all that the journal has, once."""
    for step in (3, 60, 199):
        base = tmp_path / str(step)
        done = subprocess.run(
            [sys.executable, "-c", CHILD.format(config=CONFIG), str(base), str(step)],
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL
        directory = Path(done.stdout.splitlines()[-1])
        before = json.loads((directory / "anomaly.json").read_text())
        for _ in range(2):
            subprocess.run([TOOL, "recover", directory], check=True, capture_output=True)
            entries = json.loads((directory / "anomaly.json").read_text())
            expected = [(a.step, a.order) for a in Journal(directory).alerts()]
            assert [(e["step"], e["call_id"]) for e in entries.values()] == expected
            assert list(entries.items())[: len(before)] == list(before.items())
        assert expected


# ---- the order ----


def precedes(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """What the ancestor's document says, written as comparisons one after the other.

    Earlier steps and micro steps first; forward before backward before optimizer; in the forward
    the smaller virtual and pipeline stage first, else the larger one; then the smaller call.
    """

    def stage(entry: dict[str, Any]) -> int:
        kind = entry["tag_name"].split("/")[-1]
        if kind == "actv":
            return 0
        if kind.endswith("_grad"):
            return 1
        if kind.startswith("exp_avg") or kind == "mg_direction":
            return 2
        return 3 if kind in ("param_updated", "adam_update", "adam_ratio", "scalar") else -1

    for name in ("step", "micro_step"):
        if a[name] != b[name]:
            return bool(a[name] < b[name])
    if stage(a) != stage(b):
        return stage(a) < stage(b)
    for name in ("vpp_stage", "pp_stage"):
        if a[name] != b[name]:
            return bool((a[name] < b[name]) == (stage(a) == 0))
    return bool(a["call_id"] < b["call_id"])


def compare(a: dict[str, Any], b: dict[str, Any]) -> int:
    return precedes(b, a) - precedes(a, b)


def entry_at_random(rng: random.Random, rank: int) -> dict[str, Any]:
    kinds = ["actv", "actv_grad", "acc_grad", "post_grad", "exp_avg", "exp_avg_sq"]
    kinds += ["param_origin", "param_updated", "adam_update", "other", "mg_direction", "scalar"]
    vpp = rng.randrange(3)
    return {
        "rank": rank,
        "step": rng.randrange(3),
        "micro_step": rng.randrange(3),
        "pp_stage": rank % 4,
        "vpp_stage": vpp,
        "call_id": rng.randrange(-1, 6),
        "tag_name": f"{vpp}:layer/rank{rank}/{rng.choice(kinds)}",
        "message": "m",
        "group_mates": rng.choice([None, [rank]]),
    }


@pytest.mark.parametrize("case", range(30))
def test_order(tmp_path: Path, seed: int, case: int) -> None:
    rng = random.Random(seed * 1000 + case)
    everything = []
    for rank in range(rng.randrange(1, 9)):
        entries = [entry_at_random(rng, rank) for _ in range(rng.randrange(30))]
        folder = tmp_path / f"rank{rank}"
        folder.mkdir()
        (folder / "anomaly.json").write_text(
            json.dumps({f"r{rank}-{i}": entry for i, entry in enumerate(entries)})
        )
        everything += entries
    steps = sorted(rng.sample(range(3), rng.randrange(3)))
    count = rng.randrange(1, 60)
    arguments = ["-d", str(tmp_path), "-k", str(count), "--step_list", str(steps)]
    assert anomaly_analyse.main(arguments) == 0
    written = json.loads((tmp_path / "anomaly_analyse.json").read_text())
    found = list(written.values())
    wanted = [entry for entry in everything if not steps or entry["step"] in steps]
    assert len(found) == min(count, len(wanted))
    for ours, theirs in zip(found, sorted(wanted, key=functools.cmp_to_key(compare)), strict=False):
        assert not precedes(ours, theirs)
        assert not precedes(theirs, ours)
    assert all(entry in wanted for entry in found)


def test_anomalies_of_an_earlier_run_are_pointed_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The link is that of the latest run, which may be the one after the one that broke."""
    runs = []
    for bad in (1, -1, -1):
        monitor = TrainerMon(CONFIG, output_dir=tmp_path)
        train(monitor, 2, bad)
        runs.append(monitor.directory)
    capsys.readouterr()
    folder = str(tmp_path / "anomaly_detected")
    assert anomaly_analyse.main(["-d", folder]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("0 of 0 anomalies of 1 rank are in ")
    command = "another run has anomalies: python -m tensorprobe.anomaly_analyse "
    assert shown[1:] == [f"{command}-d {Path(runs[0]).resolve()}"]
    assert anomaly_analyse.main(shown[1].removeprefix(command).split()) == 0
    shown = capsys.readouterr().out.splitlines()
    count = len(json.loads(Path(runs[0], "anomaly.json").read_text()))
    assert shown[0].startswith("0: rank 0: AnomalyNan in ")
    assert shown[8].startswith(f"8 of {count} anomalies of 1 rank are in {runs[0]}")
    assert shown[10] == "1 cause in 1 rank"
    assert shown[12].startswith("1. step 1, critical, rank 0: AnomalyNan: first in .input (actv): ")
    assert "It comes with the batch" in shown[12]
    monitor = TrainerMon(CONFIG, output_dir=tmp_path)
    train(monitor, 2, 0)
    capsys.readouterr()
    assert anomaly_analyse.main(["-d", folder]) == 0
    assert "another run" not in capsys.readouterr().out


def test_documented_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two pipeline stages: the backward runs from the last one to the first."""
    monitor = TrainerMon(CONFIG, output_dir=tmp_path)
    train(monitor, 2, 1)
    folder = tmp_path / "anomaly_detected"
    (folder / "rank1").mkdir()
    own = json.loads((folder / "rank0/anomaly.json").read_text())
    other = {
        key.replace("rank0", "rank1"): {
            **entry,
            "rank": 1,
            "pp_stage": 1,
            "tag_name": entry["tag_name"].replace("rank0", "rank1"),
        }
        for key, entry in own.items()
    }
    (folder / "rank1/anomaly.json").write_text(json.dumps(other))
    done = subprocess.run(
        [sys.executable, "-m", "tensorprobe.anomaly_analyse", "-d", str(tmp_path), "-k", "1000"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("0: rank 0: AnomalyNan in ('0:.input:0/rank0/actv', 'nans')")
    stages = [
        (entry["tag_name"].split("/")[-1] == "actv", entry["rank"])
        for entry in json.loads((tmp_path / "anomaly_analyse.json").read_text()).values()
    ]
    assert stages == sorted(stages, key=lambda s: (not s[0], s[1] if s[0] else -s[1]))
    assert len(stages) == 2 * len(own)


@dataclass(frozen=True)
class Place:
    """Where something stands in a step of all ranks, for the model of the order."""

    step: int
    micro: int
    stage: int
    vpp: int
    pp: int
    call: int


def runs_before(a: Place, b: Place) -> bool:
    """Say the order of a pipeline as a schedule would: by walking it, not by comparing keys."""
    for step in range(3):
        for micro in range(3):
            for stage in (-1, 0, 1, 2, 3):
                chunks = range(3) if stage == 0 else range(2, -1, -1)
                stages = range(4) if stage == 0 else range(3, -1, -1)
                for vpp in chunks:
                    for pp in stages:
                        for call in range(-1, 6):
                            here = Place(step, micro, stage, vpp, pp, call)
                            if here == b:
                                return False
                            if here == a:
                                return True
    raise AssertionError("neither is a place")


places = st.builds(
    Place,
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(-1, 3),
    st.integers(0, 2),
    st.integers(0, 3),
    st.integers(-1, 5),
)
KIND_OF_STAGE = {-1: "param_origin", 0: "actv", 1: "actv_grad", 2: "exp_avg", 3: "param_updated"}


@settings(max_examples=300, deadline=None)
@given(places, places)
def test_order_is_that_of_a_pipeline(a: Place, b: Place) -> None:
    keys = [
        _causes.order(p.step, p.micro, KIND_OF_STAGE[p.stage], p.vpp, p.pp, p.call) for p in (a, b)
    ]
    assert (keys[0] < keys[1]) == runs_before(a, b)
    assert (keys[0] == keys[1]) == (a == b)


WORKER = """
import os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tensorprobe import TrainerMon
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
monitor = TrainerMon({config!r}, output_dir=sys.argv[3], run_id="one")
monitor.set_monitor(model, optimizer)
for step in range(12):
    x = torch.ones(2, 4)
    if step == 5 and rank == 1:
        x[0, 2] = float("nan")
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
monitor.close()
dist.destroy_process_group()
"""


def test_the_rank_that_was_first(tmp_path: Path) -> None:
    """A bad batch of rank 1 reaches rank 0 by the gradients: one cause, and it is rank 1's."""
    config = {**CONFIG, "param_distribution": True, "alert": {"rules": CONFIG["alert"]["rules"]}}
    base = tmp_path / "out"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER.replace("{config!r}", repr(config)), str(rank),
             str(tmp_path / "store"), str(base)],
        )
        for rank in range(2)
    ]  # fmt: skip
    assert [worker.wait(timeout=120) for worker in workers] == [0, 0]
    done = subprocess.run(
        [TOOL, "analyse", base, "-o", tmp_path, "-k", "3"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"TENSORPROBE_PYTHON": sys.executable},
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("0: rank 1: AnomalyNan in ('0:")
    report = (tmp_path / "anomaly_analyse.txt").read_text().splitlines()
    assert report == lines[lines.index("1 cause in 2 ranks") :]
    assert report[2].startswith("1. step 5, critical, rank 1: AnomalyNan: first in ")
    assert "It comes with the batch" in report[2]
    assert report[3].endswith(" alerts until step 11, on 2 of 2 ranks")
    found = sum(len(Journal(path).alerts()) for path in base.glob("*rank*"))
    assert int(report[3].split()[0]) == found > 50
    assert report[4].startswith("  in its first step: ")
    entries = json.loads((tmp_path / "anomaly_analyse.json").read_text())
    assert [entry["rank"] for entry in entries.values()] == [1, 1, 1]
    assert all(list(entry) == FIELDS for entry in entries.values())


BAD = [
    ("{", "Expecting property name"),
    ("[]", "must be an object of anomalies"),
    ('{"a": 3}', "a: an anomaly is an object, not 3"),
    ('{"a": {"rank": 1}}', "missing: call_id, message, micro_step, pp_stage, step, tag_name"),
    ('{"a": {"rank": "1", "step": 0, "micro_step": 0, "pp_stage": 0, "vpp_stage": 0, "call_id": 0,'
     '"tag_name": "t", "message": "m"}}', "rank is an integer, not '1'"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BAD)
def test_bad_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    """The other ranks are put in order, and the bad file is named."""
    for rank, content in enumerate((text, "{}")):
        (tmp_path / f"rank{rank}").mkdir()
        (tmp_path / f"rank{rank}/anomaly.json").write_text(content)
    assert anomaly_analyse.main(["-d", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert message in printed.err
    assert str(tmp_path / "rank0/anomaly.json") in printed.err
    assert "0 of 0 anomalies of 2 ranks" in printed.out


def test_bad_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["-k", "0"], ["-k", "-3"], ["-s", "3"], ["-s", "[1, 'a']"], ["-s", "[["]):
        with pytest.raises(SystemExit) as ended:
            anomaly_analyse.main(["-d", str(tmp_path), *arguments])
        assert ended.value.code == 2
    assert anomaly_analyse.main(["-d", str(tmp_path)]) == 1
    assert '"dump": true' in capsys.readouterr().err
