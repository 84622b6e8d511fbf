"""What is recorded where torch spreads a model over processes: layouts.py trains, this compares."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
import torch

import layouts
import sharded
import tensorprobe
from built import TOOL
from journal_reader import read_journal
from tensorprobe.anomaly_analyse import drift_of

WHOLE = "grad_reduced param_origin param_updated exp_avg exp_avg_sq".split()
SCRIPT = Path(__file__).with_name("layouts.py")
TWO = (
    "ddp ddp_no_sync ddp_micro ddp_view ddp_static ddp_unused ddp_bf16 ddp_powersgd fsdp1_orig "
    "fsdp1_orig_no_sync fsdp1_flat fsdp1_flat_micro fsdp1_no_shard fsdp1_mixed fsdp2 fsdp2_no_sync "
    "fsdp2_micro fsdp2_keep fsdp2_mixed fsdp2_mixed_reduce tp ddp_around"
).split()
FOUR = "fsdp1_hybrid fsdp2_hsdp fsdp2_tp".split()


class Launch:
    """All layouts of so many processes, in one start of them."""

    def __init__(self, folder: Path, world: int) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "WORLD_SIZE": str(world),
            "TORCHELASTIC_RUN_ID": "layouts",
        }
        self.folder, self.world = folder, world
        ranks = [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(folder), str(rank), str(world)],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(world)
        ]
        self.said = [process.communicate(timeout=600)[0] for process in ranks]
        assert [process.returncode for process in ranks] == [0] * world, self.said[0]
        self.results: list[dict[str, Any]] = [
            json.loads((folder / f"results{rank}.json").read_text()) for rank in range(world)
        ]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("two"), 2)


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return Launch(tmp_path_factory.mktemp("four"), 4)


Parts = dict[tuple[str, int, str], list[tuple[Any, float, int]]]


class Recorded:
    """The journals of one layout."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.parts: Parts = defaultdict(list)
        """(quantity, step, name) → (span, norm, rank)."""
        self.local: dict[tuple[int, int, int, str], list[float]] = defaultdict(list)
        """(rank, step, micro step, name) → unreduced norms."""
        self.keys: list[dict[str, Any]] = []
        self.merged: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        """(quantity, step) → name → norm of what was put together."""
        for journal in tensorprobe.open(folder).journals:
            rank = int(journal.run["rank"])
            keys = journal.defined()
            self.keys += [{**key, "rank": rank} for key in keys]
            spans = {(k["quantity"], k["name"]): k["span"] for k in keys}
            for step in journal:
                for record in step.records:
                    quantity, name, norm = record["quantity"], record["name"], record["norm"]
                    if quantity == "grad_unreduced":
                        place = (rank, step.step, record["micro_step"], name)
                        self.local[place].append(norm)
                    else:
                        span = spans[quantity, name]
                        self.parts[quantity, step.step, name].append((span, norm, rank))

        for row in pyarrow.table(tensorprobe.open(folder).merged()).to_pylist():
            assert row["missing"] == 0
            if row["quantity"] == "adam_ratio":
                continue  # NaN where both moments are 0, as of tokens that haven't come
            norms = self.merged[row["quantity"], row["step"]]
            assert norms.setdefault(row["name"], row["norm"]) == row["norm"]

    def whole(self, quantity: str, step: int) -> dict[str, float]:
        """The norm of each whole parameter, of parts that cover it once; copies are the same."""
        found = {}
        for (kind, number, name), parts in self.parts.items():
            if (kind, number) == (quantity, step):
                distinct: dict[Any, list[float]] = defaultdict(list)
                for span, norm, _ in parts:
                    distinct[span[:2]].append(norm)
                assert all(len(set(norms)) == 1 for norms in distinct.values())
                assert {span[2] for span, *_ in parts} == {len(n) for n in distinct.values()}
                assert covers([ranges for _, ranges in distinct])
                found[name] = math.sqrt(sum(norms[0] ** 2 for norms in distinct.values()))
        return found


def volume(ranges: Any, which: int) -> int:
    return math.prod(one[which] for one in ranges)


def covers(parts: list[Any]) -> bool:
    """Whether these are all elements, each once: as many as there are, and none overlaps."""
    if parts == [()]:
        return True
    if sum(volume(ranges, 1) for ranges in parts) != volume(parts[0], 2):
        return False
    apart = [
        any(a[0] + a[1] <= b[0] or b[0] + b[1] <= a[0] for a, b in zip(one, other, strict=True))
        for i, one in enumerate(parts)
        for other in parts[:i]
    ]
    return all(apart)


def close(found: dict[str, float], wanted: dict[str, float], tolerance: float) -> None:
    assert set(found) == set(wanted)
    largest = max(wanted.values(), default=0.0)
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=tolerance, abs=tolerance * largest / 50), (
            name
        )


def check(launch: Launch, layout: str, collectives: int = 0) -> Recorded:
    """What holds of every layout; collectives: how many the monitor makes."""
    results = [one[layout] for one in launch.results]
    for result in results:
        assert result["same_bits"]
        plain, watched = result["collectives"]
        assert watched == plain + collectives > 0
        assert result["said"] == []
    return Recorded(launch.folder / layout)


def compare(launch: Launch, layout: str, collectives: int = 0) -> None:
    recorded = check(launch, layout, collectives)
    result = launch.results[0][layout]
    wanted = result["expected"]
    tolerance = result["tolerance"]
    steps = len(wanted["total"])
    micro = "micro" in layout
    for step in range(steps):
        for quantity in WHOLE:
            expected = wanted[quantity][step]
            if quantity.startswith("param") and "unused" in layout:
                assert "unused.weight" in expected
            whole = recorded.whole(quantity, step)
            close(whole, expected, tolerance)
            close(recorded.merged[quantity, step], whole, 1e-12)
        if layout in ("fsdp1_flat", "fsdp2_keep"):
            update = recorded.whole("adam_update", step)
            close(update, wanted["adam_update"][step], 1e-4)
            directions = [key for key in recorded.parts if key[:2] == ("mg_direction", step)]
            assert len(directions) == (len(update) if step > 0 else 0)
        total = math.sqrt(sum(n**2 for n in recorded.whole("grad_reduced", step).values()))
        own = result["totals"][step]
        if own >= 0:
            assert total == pytest.approx(own, rel=1e-5)
        for rank in range(launch.world):
            for number in range(result["micros"] if micro else 1):
                local = {
                    name: norms
                    for (r, s, m, name), norms in recorded.local.items()
                    if (r, s, m) == (rank, step, number)
                }
                assert all(len(norms) == 1 for norms in local.values())
                if result["parts"]:
                    continue  # parts of parameters; they are those of grad_reduced
                expected = (
                    wanted["micro"][step][rank][number]
                    if micro
                    else wanted["grad_unreduced"][step][rank]
                )
                rough = 1e-5 if result["exact_locally"] else 2e-2
                close({n: v[0] for n, v in local.items()}, expected, max(rough, tolerance))


@pytest.mark.slow
@pytest.mark.parametrize("layout", TWO)
def test_layout_of_two(two: Launch, layout: str) -> None:
    compare(two, layout)


@pytest.mark.slow
@pytest.mark.parametrize("layout", FOUR)
def test_layout_of_four(four: Launch, layout: str) -> None:
    compare(four, layout)


def record_plain(folder: Path, ranks: int, changed: tuple[str, int] | None = None) -> Path:
    """The training of the layouts that clip, in one process with the data of so many."""
    model = layouts.make_model()
    optimizer = layouts.make_optimizer(model.parameters())
    config: dict[str, Any] = {"format": "csv", "xy_distribution": False, "alert": {"rules": []}}
    with tensorprobe.watch(model, optimizer, output_dir=folder, **config):
        for step in range(layouts.STEPS):
            for rank in range(ranks):
                (layouts.loss_of(model, layouts.batch(step, 0, rank), 1) / ranks).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), layouts.CLIP)
            if changed is not None and changed[1] == step:
                with torch.no_grad():
                    model.get_parameter(changed[0])[3, 4] += 0.5
            optimizer.step()
            optimizer.zero_grad()
    return folder


def diff(a: Path, b: Path, status: int) -> list[str]:
    done = subprocess.run(
        [TOOL, "diff", "--tolerance", "1e-4", a, b], capture_output=True, text=True, check=False
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout.splitlines()[2:]


@pytest.mark.slow
def test_runs_are_compared_across_layouts(two: Launch, tmp_path: Path) -> None:
    """The same training in plain torch, DDP, FSDP and FSDP2 agrees, and parts at one weight."""
    plain = record_plain(tmp_path / "plain", 2)
    clipped = ["ddp", "fsdp1_orig", "fsdp2"]
    for layout in clipped:
        for text in (diff(plain, two.folder / layout, 0), diff(two.folder / layout, plain, 0)):
            assert text[0].startswith("no difference: ")
            assert text[0].endswith(" values in 6 steps, the last 5")
    # All layouts have these values in common, and all parts are there.
    kinds = {
        "param_origin": 6,
        "param_updated": 6,
        "grad_reduced": 6,
        "exp_avg": 5,
        "exp_avg_sq": 5,
    }
    names = len(two.results[0]["fsdp2"]["expected"]["param_origin"][0])
    (agreed, apart) = diff(plain, two.folder / "fsdp2", 0)
    assert int(agreed.split()[2]) == names * sum(kinds.values())
    assert apart.startswith("not compared: ")
    # Another weight before step 3: it is the first one, before all that follows from it.
    for at, name in ((3, "h.1.fc.weight"), (5, "wte.weight")):
        changed = record_plain(tmp_path / name, 2, (name, at))
        for layout in clipped:
            text = diff(changed, two.folder / layout, 1)
            assert text[0].startswith(f"first difference: step {at}, {name} (param_origin), ")
            assert f"before it: {at} steps without a difference" in text[1]


@pytest.mark.slow
def test_spans_are_stored_as_documented(two: Launch) -> None:
    for journal in tensorprobe.open(two.folder / "fsdp2").journals:
        rank = int(journal.run["rank"])
        *_, (_, definitions) = read_journal(Path(journal.directory))
        spans = {(key["quantity"], key["name"]): key["span"] for key in definitions.keys.values()}
        box = [(32 * rank, 32, 64), (0, 16, 16)]
        assert spans[4, "h.0.fc.weight"] == (2, box, 1, 0)
        assert spans[3, "h.0.fc.weight"] == (0, [], 1, 0)  # before the reduction
    for journal in tensorprobe.open(two.folder / "fsdp1_orig").journals:
        flat = {
            key["name"]: key["span"]
            for key in journal.defined()
            if key["quantity"] == "exp_avg" and key["span"][0] == "flat"
        }
        assert flat, "no parameter is cut"
        for _, ((start, length, full),), copies, _ in flat.values():
            assert copies == 1
            assert start == 0 or start + length == full


@pytest.mark.slow
def test_show_puts_parts_together(two: Launch) -> None:
    lines = subprocess.run(
        [TOOL, "show", "--merge", two.folder / "fsdp2", "fc.weight", "--format", "json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert lines.returncode == 1
    assert "h.0.fc.weight" in lines.stderr  # the end of several names
    lines = subprocess.run(
        [TOOL, "show", "--merge", two.folder / "fsdp2", "h.0.fc.weight", "--format", "json"],
        capture_output=True,
        text=True,
        check=True,
    )
    rows = [json.loads(line) for line in lines.stdout.splitlines()]
    wanted = two.results[0]["fsdp2"]["expected"]
    assert len(rows) == 6 * 5 - 2  # no moments before the first step
    for row in rows:
        assert (row["parts"], row["records"], row["missing"]) == (2, 2, 0)
        assert (row["count"], row["name"]) == (64 * 16, "h.0.fc.weight")
        norm = wanted[row["quantity"]][row["step"]]["h.0.fc.weight"]
        assert row["norm"] == pytest.approx(norm, rel=1e-5)


CHECKS = 6 + 3 + 1  # one a step, one every other step, and one to agree on how many keys there are


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp_checks", "fsdp2_checks"])
def test_checks_find_nothing_wrong(two: Launch, layout: str) -> None:
    compare(two, layout, CHECKS)
    wanted = two.results[0][layout]
    for journal in tensorprobe.open(two.folder / layout).journals:
        for name in ("self_check.recorded", "self_check.framework"):
            assert journal.series(name, "scalar")[1] == pytest.approx(wanted["totals"], rel=1e-5)
        assert journal.series("replica_check.different", "scalar") == ([0, 2, 4], [0, 0, 0])
        assert journal.alerts() == []
    assert drift_of(list(tensorprobe.open(two.folder / layout).journals)) == []


@pytest.mark.slow
def test_checks_find_what_is_wrong(two: Launch) -> None:
    """Gradients grow behind the record in step 1, a weight of rank 1 differs from step 3 on.

    Rank 1 records one block alone: it sends fewer keys, and nobody waits for the others.
    """
    check(two, "ddp_tampered", CHECKS)
    said = [line for text in two.said for line in text.splitlines() if "_check: step" in line]
    assert len(said) == 2
    assert "self_check: step 1: the recorded gradients have norm" in said[0]
    assert "step 4: 'h.0.fc.weight' has other values on rank 1 (others: 0)" in said[1]
    journals = tensorprobe.open(two.folder / "ddp_tampered").journals
    for journal in journals:  # every rank says it, in the step of each check from then on
        alerts = journal.alerts()
        assert [(one.step, one.rule, one.row) for one in alerts] == [
            (4, "ReplicaDrift", "replica_check.differs.h.0.fc.weight")
        ]
        assert alerts[0].text == "1 rank has other values of it than the others"
        (incident,) = journal.incidents()
        assert incident.text.startswith("ReplicaDrift: h.0.fc.weight: 1 rank has other values")
    # Journals show it at once, without a check.
    (line,) = drift_of(list(journals))[1:]
    assert line.startswith(
        "ReplicaDrift: before the update of step 3 rank 1 has another h.0.fc.weight than rank 0."
    )
    table: Any = pyarrow.RecordBatchReader.from_stream(
        tensorprobe.open(two.folder / "ddp_tampered").merged("h.0.fc.*", "param_origin")
    ).read_pandas()
    for step, name, different in zip(table["step"], table["name"], table["different"], strict=True):
        assert different == (step >= 3 and name == "h.0.fc.weight"), (step, name)
    rules = two.folder / "drift.json"
    for targets, count in (([], 1), (["h.0.fc"], 1), (["h.1"], 0)):
        rule = {"rule_name": "ReplicaDrift", "args": {"targets": targets}}
        rules.write_text(json.dumps({"alert": {"rules": [rule]}}))
        done = subprocess.run(
            [TOOL, "backtest", rules, two.folder / "ddp_tampered"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        found = "ReplicaDrift, step 3: h.0.fc.weight (param_origin) of rank 1 isn't that of rank 0"
        # Each rank's own alerts count, too, of what its check has logged.
        assert done.stdout.count(found) == count, done.stdout
        total = f"ReplicaDrift: {3 * count} alerts in {3 * count} of 12 steps"
        assert total in done.stdout


@pytest.mark.slow
def test_nobody_waits_for_what_one_process_lacks(two: Launch) -> None:
    check(two, "ddp_lacking", 6 + 6 + 1)
    assert ["nothing of rank 1 is compared" in text for text in two.said] == [False, True]
    for journal in tensorprobe.open(two.folder / "ddp_lacking").journals:
        assert journal.series("replica_check.different", "scalar") == ([*range(6)], [0] * 6)


@pytest.mark.slow
def test_gradients_that_are_reduced_often(two: Launch) -> None:
    """Each micro step's: no buffer holds the sum of what this process alone has found."""
    for result in (one["ddp_often"] for one in two.results):
        assert len(result["said"]) == 1
        assert "reduced several times a step: grad_unreduced is left out" in result["said"][0]
    recorded = Recorded(two.folder / "ddp_often")
    assert {step for _, step, *_ in recorded.local} == {0}
    for step in range(6):
        wanted = two.results[0]["ddp_often"]["expected"]["grad_reduced"][step]
        close(recorded.whole("grad_reduced", step), wanted, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["ddp_group", "tp_group"])
def test_one_process_of_a_group_records_what_all_have(two: Launch, layout: str) -> None:
    first, second = sorted(
        tensorprobe.open(two.folder / layout).journals, key=lambda one: str(one.run["rank"])
    )
    names = [
        {key["name"] for key in journal.defined() if key["quantity"] == "grad_reduced"}
        for journal in (first, second)
    ]
    assert "h.0.fc.weight" in names[0]
    assert names[1] == ({"head.weight"} if layout == "tp_group" else set())
    for quantity in ("grad_unreduced", "param_origin"):
        assert second.series("h.0.fc.weight", quantity)[0] == [*range(6)]


@pytest.mark.slow
@pytest.mark.parametrize("script", ["ddp", "fsdp", "fsdp1", "tensor_parallel"])
def test_examples(script: str, tmp_path: Path) -> None:
    """They run as the page says, and every parameter is whole in what they leave."""
    said = sharded.run_example(script, tmp_path)
    assert "step 20: loss" in said
    assert "tensorprobe: warning" not in said
    merged = pyarrow.table(
        tensorprobe.open(tmp_path).merged(quantity="grad_reduced", steps=19)
    ).to_pylist()
    assert {row["missing"] for row in merged} == {0}
    assert len(merged) == 1 + 2 * (2 * 2 + 6 * 2) + 2 + 2
    assert "blocks.1.fc2.weight" in {row["name"] for row in merged}


def files(folder: Path, name: str) -> Iterator[list[str]]:
    for path in sorted(folder.glob(f"*/{name}_*.csv")):
        yield path.read_text().splitlines()


@pytest.mark.slow
def test_micro_steps_have_a_column(two: Launch) -> None:
    for lines in files(two.folder / "ddp_micro", "grad_unreduced"):
        assert lines[0].startswith("vpp_stage,name,step,micro_step,")
        assert {line.split(",")[3] for line in lines[1:]} == {"0", "1"}
    for lines in files(two.folder / "ddp_no_sync", "grad_unreduced"):
        assert lines[0].startswith("vpp_stage,name,step,norm")
