"""Collectives: four processes call each of them, watched (collectives_child.py)."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

import journal_reader
from tensorprobe import Journal

RANKS = range(4)
ASYNC, DONE, POLLED, LATE = 1, 2, 4, 16

Results = list[dict[str, Any]]


@pytest.fixture(scope="session")
def results(collectives: Path) -> Results:
    """What each rank says."""
    return [json.loads((collectives / f"results{rank}.json").read_text()) for rank in RANKS]


def journal(collectives: Path, name: str, rank: int) -> Journal:
    """That of one rank."""
    (directory,) = (collectives / name).glob(f"*-rank{rank}-*")
    return Journal(directory)


def steps_of(collectives: Path, name: str, rank: int) -> list[list[dict[str, Any]]]:
    """The records of collectives, step by step."""
    return [
        [record for record in step.records if record["quantity"] == "comm"]
        for step in journal(collectives, name, rank)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("rank", RANKS)
def test_every_call_is_recorded_once_with_its_values(
    collectives: Path, results: Results, rank: int
) -> None:
    """Synchronous, asynchronous, in a subgroup: operations, groups, slots and numbers."""
    expected = results[rank]["every"]
    steps = steps_of(collectives, "every", rank)
    assert len(steps) == len(expected) > 100
    for records, case in zip(steps, expected, strict=True):
        calls = [record for record in records if "sequence" in record]
        tensors = [record for record in records if "norm" in record]
        assert len(calls) + len(tensors) == len(records)
        assert Counter(record["name"] for record in calls) == Counter(
            name for name, _ in case["calls"]
        ), case
        assert {record["group"] for record in records if record["name"]} == {case["group"]}, case
        assert all(record["filled"] and record["done_ns"] is not None for record in calls), case
        assert all(record["call_ns"] <= record["done_ns"] for record in calls), case
        assert all(record["waited_ns"] <= record["done_ns"] for record in calls), case
        wanted = {(name, slot): v for name, slots in case["calls"] for slot, v in slots.items()}
        found = {(r["name"], f"{r['role']}_{r['slot']}"): r for r in tensors}
        assert len(tensors) == len(found), case
        assert found.keys() == wanted.keys(), case
        for key, numbers in wanted.items():
            for statistic, value in numbers.items():
                assert math.isclose(found[key][statistic], value, rel_tol=1e-6, abs_tol=1e-7), (
                    case["case"],
                    key,
                    statistic,
                )


@pytest.mark.slow
def test_ranks_number_and_hash_the_calls_of_a_group_alike(collectives: Path) -> None:
    """But for what goes from one to another, which both sides number."""
    seen: dict[tuple[str, int], set[tuple[str, int]]] = {}
    for rank in RANKS:
        for records in steps_of(collectives, "every", rank):
            for record in records:
                if "sequence" in record and record["name"][:4] not in ("send", "recv"):
                    place = (record["group"], record["sequence"])
                    seen.setdefault(place, set()).add((record["name"], record["running"]))
    assert len(seen) > 100
    assert all(len(names) == 1 for names in seen.values())


@pytest.mark.slow
@pytest.mark.parametrize("rank", RANKS)
def test_csv_has_one_row_for_all_calls_of_a_step(
    collectives: Path, results: Results, rank: int
) -> None:
    """In a file of its own, with operation, group and slot."""
    directory = Path(journal(collectives, "every", rank).directory)
    (path,) = directory.glob("comm_*.csv")
    rows = list(csv.DictReader(path.open()))
    assert list(rows[0])[:4] == ["op", "group", "slot", "step"]
    wanted = [
        (name, case["group"], slot, step, numbers["norm"])
        for step, case in enumerate(results[rank]["every"])
        for name, slots in case["calls"]
        for slot, numbers in slots.items()
    ]
    found = [(r["op"], r["group"], r["slot"], int(r["step"]), float(r["norm"])) for r in rows]
    assert len(found) == len(wanted)
    for a, b in zip(sorted(found), sorted(wanted), strict=True):
        assert a[:4] == b[:4]
        assert math.isclose(a[4], b[4], rel_tol=1e-6)


@pytest.mark.slow
def test_everything_is_taken_back(results: Results) -> None:
    """The process has compared object by object, ten times; here, that it had something to."""
    assert all(result["taken_back"] > 500 for result in results)


@pytest.mark.slow
def test_exceptions_and_results_are_the_same(results: Results) -> None:
    """Of wrong calls and right ones."""
    for result in results:
        found = result["exceptions"]
        assert found["with"] == found["without"]
        assert sum(": " in text for text in found["with"].values()) >= 6
        assert found["with"]["fine"] == "None"


@pytest.mark.slow
def test_works_that_nobody_waits_for_are_counted(collectives: Path, results: Results) -> None:
    """Their results are recorded all the same."""
    for rank in RANKS:
        said = results[rank]["never_waited"]["said"]
        assert "1 asynchronous collectives of 1 were never waited for" in said
        (records,) = steps_of(collectives, "never", rank)
        call, post = (r for r in records if r["name"] and r["role"] != "pre")
        assert call["flags"] == ASYNC | DONE | POLLED
        assert post["min"] == post["max"] == 10.0


@pytest.mark.slow
def test_a_call_that_outlives_its_step_is_recorded_in_both(collectives: Path) -> None:
    """In the first as far as is known, in the second with its end and its values."""
    first, second = steps_of(collectives, "late", 0)
    begun, barrier = (record for record in first if record["name"])
    assert (begun["name"], begun["done_ns"], barrier["name"]) == ("recv", None, "barrier")
    assert begun["flags"] & DONE == 0
    ended, post = (record for record in second if record["name"])
    assert ended["flags"] & (DONE | LATE) == DONE | LATE
    assert ended["sequence"] == begun["sequence"]
    assert ended["issue_ns"] == begun["issue_ns"]
    assert ended["done_ns"] > 0
    assert post["mean"] == 5.0
    assert all(step.unfilled == 0 and not step.partial for step in journal(collectives, "late", 0))


@pytest.mark.slow
def test_three_thousand_calls_come_through(collectives: Path, results: Results) -> None:
    """In a loop, while every core is busy: none hangs and none is lost."""
    for rank in RANKS:
        assert results[rank]["many_calls"] == 3000
        calls = [
            record
            for records in steps_of(collectives, "many", rank)
            for record in records
            if "sequence" in record and not record["flags"] & LATE
        ]
        assert len(calls) == 3000
        assert [call["sequence"] for call in calls] == list(
            range(calls[0]["sequence"], calls[0]["sequence"] + 3000)
        )


@pytest.mark.slow
def test_calls_are_seen_in_an_older_torch(collectives: Path) -> None:
    """By another way, which inference mode leaves out."""
    for rank in RANKS:
        (records,) = steps_of(collectives, "older", rank)
        counted = Counter(record["name"] for record in records if "sequence" in record)
        assert counted == {
            "all_reduce": 101,
            "all_gather_into_tensor": 100,
            "barrier": 100,
            "monitored_barrier": 1,
        }
        posts = [record for record in records if record["row"].startswith("all_reduce.post_0")]
        assert [post["mean"] for post in posts] == [4.0] * 101


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddp", "fsdp2", "tp", "moe"])
def test_frameworks_are_seen(collectives: Path, results: Results, name: str) -> None:
    """Which collectives a step has; that training is the same the process has checked."""
    wanted = {
        "ddp": {"all_reduce": 1},
        "fsdp2": {"all_gather_into_tensor": 1, "reduce_scatter_tensor": 1},
        "tp": {"all_reduce": 1},
        "moe": {"all_to_all_single": 3},
    }[name]
    for rank in RANKS:
        for step, records in enumerate(steps_of(collectives, name, rank)):
            calls = [record for record in records if "sequence" in record]
            found = Counter(call["name"] for call in calls)
            assert found.keys() >= wanted.keys()
            assert all(found[op] >= times for op, times in wanted.items()), found
            assert all(call["done_ns"] is not None for call in calls)
            norm = results[rank]["frameworks"][name][step]
            if name == "ddp":  # its one bucket is all gradients
                (post,) = (r for r in records if r["row"] == "all_reduce.post_0")
                assert math.isclose(post["norm"], norm, rel_tol=1e-6)
            if name == "fsdp2":  # this rank's shards of all gradients
                posts = [
                    r["norm"] for r in records if r["row"][:26] == "reduce_scatter_tensor.post"
                ]
                assert math.isclose(math.hypot(*posts), norm, rel_tol=1e-6)


@pytest.mark.slow
def test_lines_of_code_choose_calls(collectives: Path) -> None:
    """Others leave no trace, but for the numbers of what is recorded."""
    for rank in RANKS:
        first, second = steps_of(collectives, "lines", rank)
        for records in (first, second):
            (call,) = (record for record in records if "sequence" in record)
            assert call["location"].rpartition("/")[2].startswith("collectives_parts.py[")
            assert {r["row"] for r in records if r["name"] == "all_reduce"} == {
                "all_reduce",
                "all_reduce.pre_0",
                "all_reduce.post_0",
            }
        sequences = [r["sequence"] for r in [*first, *second] if "sequence" in r]
        assert sequences[1] - sequences[0] == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["beside", "only"])
def test_log_before_the_second_step(collectives: Path, results: Results, name: str) -> None:
    """Stacks, dtypes, shapes and members, by the lowest rank; cc_log_only ends the run."""
    for rank in RANKS:
        printed, ended = results[rank]["logs"][name]
        assert ended == (name == "only")
        header, _, text = printed.partition("\n")
        if rank > 0:
            assert "collectives of the first step" not in printed
            continue
        assert "collectives of the first step" in header
        logged = json.loads(text)
        assert logged.keys() == {"all_reduce"}
        here, there = logged["all_reduce"]
        assert here["tensors"] == ["float32[2]", "float32[2]"]
        assert there["tensors"] == ["float64[5]", "float64[5]"]
        assert here["ranks"] == "0-3"
        assert here["calls"] == 2
        place = f"collectives_parts.py[{results[rank]['logs']['line']}]   here"
        assert here["stack"][0].endswith(place)
        assert here["stack"][1].endswith("   log")
    by_hand = results[0]["logs"]["by_hand"]
    assert by_hand.startswith("> collectives of the first step")
    recorded = [record for records in steps_of(collectives, name, 0) for record in records]
    assert bool(recorded) == (name == "beside")


@pytest.mark.slow
def test_calls_of_a_step_are_merged(collectives: Path) -> None:
    """Norms as roots of sums of squares, means by elements: of two calls, 2 and 5 elements."""
    directory = Path(journal(collectives, "beside", 0).directory)
    (path,) = directory.glob("comm_*.csv")
    rows = {(row["slot"], row["step"]): row for row in csv.DictReader(path.open())}
    wanted = {"pre_0": [1.0] * 2 + [2.0] * 5, "post_0": [4.0] * 2 + [8.0] * 5}
    assert rows.keys() == {(slot, step) for slot in wanted for step in "012"}
    events = EventAccumulator(str(directory), size_guidance={TENSORS: 0}).Reload()
    for slot, values in wanted.items():
        norm, mean = math.hypot(*values), sum(values) / len(values)
        assert math.isclose(float(rows[slot, "1"]["norm"]), norm, rel_tol=1e-12)
        assert math.isclose(float(rows[slot, "1"]["mean"]), mean, rel_tol=1e-12)
        assert (rows[slot, "1"]["min"], rows[slot, "1"]["max"]) == (
            f"{min(values):.0f}",
            f"{max(values):.0f}",
        )
        shown = events.Tensors(f"all_reduce/rank0/{slot}_norm")
        assert [event.step for event in shown] == [0, 1, 2]
        assert math.isclose(shown[1].tensor_proto.double_val[0], norm, rel_tol=1e-12)


@pytest.mark.slow
def test_bytes_are_as_described(collectives: Path) -> None:
    """An independent reader finds the same, at the places of docs/journal.md."""
    own = journal(collectives, "lines", 2)
    mine = [record for step in own for record in step.records if "sequence" in record]
    theirs = []
    for item, definitions in journal_reader.read_journal(Path(own.directory)):
        if item.type == journal_reader.BATCH:
            for raw in item.records:
                fields = journal_reader.record_fields(raw)
                if fields["kind"] == 3:
                    key = definitions.keys[fields["key"]]
                    place = definitions.keys[fields["location"] - 1]["name"]
                    shape = definitions.shapes[fields["shape"]]
                    theirs.append((fields, key, place, shape))
    assert len(mine) == len(theirs) == 2
    for record, (fields, key, place, shape) in zip(mine, theirs, strict=True):
        assert (key["name"], key["global_name"]) == ("all_reduce", "0:0-3")
        assert (record["name"], record["group"]) == ("all_reduce", "0:0-3")
        assert (key["quantity"], key["role"], shape) == (13, 0, record["shape"])
        assert place == record["location"]
        for name in journal_reader.COLLECTIVE:
            assert name == "location" or fields[name] == record[name], name


@pytest.mark.slow
def test_a_nan_is_found_where_it_came_in(results: Results) -> None:
    """On the rank that put it in; on the others in what came out."""
    for rank in RANKS:
        rows = [row for row, step in results[rank]["bad_number"] if step == 0]
        assert rows[0] == ("all_reduce.pre_0#1" if rank == 2 else "all_reduce.post_0#1")


@pytest.mark.slow
def test_only_chosen_ranks_are_watched(results: Results) -> None:
    """On the others nothing is put in place; with cc_log_only all end."""
    for rank in RANKS:
        assert results[rank]["some_ranks"] == {"in_place": rank in (0, 2), "ended": 1}


@pytest.mark.slow
def test_rows_of_a_step_have_names_of_their_own(collectives: Path) -> None:
    """Also those of several groups: other files than csv tell them apart by these."""
    for rank in RANKS:
        for records in steps_of(collectives, "every", rank):
            rows = [record["row"] for record in records if record["name"]]
            assert len(rows) == len(set(rows))
