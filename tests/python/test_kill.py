"""kill -9 at random moments: nothing that was finished is lost, nothing is there twice.

The end of step k waits until step k-1 is in the journal; so when the process has got as far as
finishing step k, the journal has all steps up to k-1. The next start of the same rank brings csv
and event files up to the end of the journal. What the unfinished step had recorded comes from the
black box. What is read back is compared with an undisturbed run.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import struct
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import journal_reader
import kill_child
import tensorprobe

KILLS = 120 if os.environ.get("TP_SOAK") else 30


def read_csv(directory: Path) -> dict[str, pd.DataFrame]:
    """All files of each kind as one frame."""
    kinds: dict[str, list[pd.DataFrame]] = {}
    for path in sorted(directory.glob("*.csv")):
        frame = pd.read_csv(path)
        kinds.setdefault(path.name.rsplit("_", 1)[0], []).append(frame)
    return {kind: pd.concat(frames, ignore_index=True) for kind, frames in kinds.items()}


def read_events(directory: Path) -> dict[str, dict[int, str]]:
    """tag -> step -> value, as text so that NaN equals NaN; a step that is there twice fails."""
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    series: dict[str, dict[int, str]] = {}
    for tag in accumulator.Tags()["scalars"]:
        for event in accumulator.Scalars(tag):
            assert event.step not in series.setdefault(tag, {}), f"{tag}: step {event.step} twice"
            series[tag][event.step] = repr(event.value)
    for tag in accumulator.Tags()["tensors"]:
        for event in accumulator.Tensors(tag):
            assert event.step not in series.setdefault(tag, {}), f"{tag}: step {event.step} twice"
            # What a step cost is another number in each run.
            is_cost = tag.startswith("tensorprobe/")
            series[tag][event.step] = "" if is_cost else repr(event.tensor_proto.double_val[:])
    return series


def cut(frames: dict[str, pd.DataFrame], steps: int) -> dict[str, pd.DataFrame]:
    return {
        kind: frame[frame["step"] < steps].reset_index(drop=True) for kind, frame in frames.items()
    }


def values(
    item: journal_reader.Item, definitions: journal_reader.Definitions
) -> list[tuple[Any, ...]]:
    """Each record of a step without what the clock says."""
    rows: list[tuple[Any, ...]] = []
    for record in item.records:
        if record[0] != 2:  # it was being made
            continue
        key, order, micro_step, call, kind, dtype, shape = struct.unpack_from("<IQIIIII", record, 4)
        name = definitions.keys[key]
        dims = definitions.shapes[shape]
        rows.append((order, name, micro_step, call, kind, dtype, dims, record[56:]))
    return rows


@pytest.mark.slow
def test_kill_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("TP_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"TP_TEST_SEED={seed}")
    draw = random.Random(seed)
    # The fork server imports torch once, from where this file lies.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("TENSORPROBE_JOURNAL_DIR", str(tmp_path / "boxes"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kill_child"])
    killed = tmp_path / "killed"
    # Directory, last step whose end was passed, last step (- 0.5) whose forward was.
    runs: list[tuple[Path, int, float]] = []
    for _ in range(KILLS):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=kill_child.child, args=(str(killed), send))
        process.start()
        send.close()
        directory = Path(receive.recv())
        passed = [receive.recv()]  # training is on its way
        time.sleep(draw.uniform(0.0, 0.25))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        try:
            while True:
                passed.append(receive.recv())
        except (EOFError, OSError):
            pass
        finished = max((p for p in passed if isinstance(p, int)), default=-1)
        runs.append((directory, finished, max(passed)))

    for directory, finished, _ in runs:
        if finished <= 0 and not directory.exists():
            continue  # the first step makes it
        frames = journal_reader.read_journal(directory)
        found = [item.step for item, _ in frames if item.type == journal_reader.BATCH]
        assert found[:finished] == list(range(finished))

    # The next start completes them.
    idle = kill_child.Net()
    with tensorprobe.watch(idle, torch.optim.SGD(idle.parameters()), output_dir=killed):
        deadline = time.monotonic() + 120
        while any((d / "lock").exists() for d, _, _ in runs) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not [d for d, _, _ in runs if (d / "lock").exists()]
    assert list((tmp_path / "boxes").glob("*/*")) == []

    lengths = []
    partial = {}
    for directory, finished, begun in runs:
        whole = []
        for item, definitions in journal_reader.read_journal(directory):
            if item.type == journal_reader.BATCH:
                if item.header["flags"] & 1:
                    assert directory not in partial
                    partial[directory] = (item.step, values(item, definitions))
                else:
                    assert directory not in partial
                    whole.append(item.step)
        assert whole == list(range(len(whole)))
        assert finished < len(whole)
        lengths.append(len(whole))
        # A step that had come to the end of its forward is there.
        assert begun + 0.5 < len(whole) or partial[directory][0] == begun + 0.5
    most = max(lengths)

    # The undisturbed run.
    reference = Path(kill_child.train(str(tmp_path / "reference"), most + 1, None))
    steps_of_reference = {
        item.step: values(item, definitions)
        for item, definitions in journal_reader.read_journal(reference)
        if item.type == journal_reader.BATCH
    }
    assert partial
    for directory, _, begun in runs:
        if directory in partial:
            step, rows = partial[directory]
            expected = steps_of_reference[step]
            assert rows == expected[: len(rows)]
            if begun + 0.5 == step:  # all of the forward, at least
                last = max(i for i, row in enumerate(expected) if row[1]["quantity"] == 1)
                assert len(rows) > last
    expected_csv = read_csv(reference)
    expected_events = read_events(reference)
    assert {"actv", "actv_grad", "grad_reduced", "param_updated", "exp_avg"} <= set(expected_csv)
    odd = expected_csv["actv"].query("name == 'odd.output_1'")
    assert odd["norm"].isna().all()
    assert (odd["nans"] == 1).all()

    for (directory, _, _), steps in zip(runs, lengths, strict=True):
        written = read_csv(directory)
        for kind, frame in cut(expected_csv, steps).items():
            if len(frame) > 0 or kind in written:
                pd.testing.assert_frame_equal(
                    written[kind], frame, check_exact=True, check_dtype=False
                )
        wanted = {
            tag: {step: value for step, value in series.items() if step < steps}
            for tag, series in expected_events.items()
        }
        assert read_events(directory) == {tag: series for tag, series in wanted.items() if series}
    print(
        f"{len(runs)} runs killed after {min(lengths)} to {most} steps, "
        f"{len(partial)} of them with a partial one"
    )
