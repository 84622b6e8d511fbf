"""kill -9 at random moments: nothing that was finished is lost, nothing is there twice.

The end of step k waits until step k-1 is in the journal; so when the process has got as far as
finishing step k, the journal has all steps up to k-1. The next start of the same rank brings csv
and event files up to the end of the journal. What is read back is compared with an undisturbed run.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

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
            series[tag][event.step] = repr(event.tensor_proto.double_val[:])
    return series


def cut(frames: dict[str, pd.DataFrame], steps: int) -> dict[str, pd.DataFrame]:
    return {
        kind: frame[frame["step"] < steps].reset_index(drop=True) for kind, frame in frames.items()
    }


@pytest.mark.slow
def test_kill_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seed = int(os.environ.get("TP_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"TP_TEST_SEED={seed}")
    draw = random.Random(seed)
    # The fork server imports torch once, from where this file lies.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kill_child"])
    killed = tmp_path / "killed"
    runs: list[tuple[Path, int]] = []  # directory, last step whose end was passed
    for _ in range(KILLS):
        before = set(killed.glob("*"))
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=kill_child.child, args=(str(killed), send))
        process.start()
        send.close()
        finished = receive.recv()  # training is on its way
        time.sleep(draw.uniform(0.0, 0.25))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        try:
            while True:
                finished = receive.recv()
        except (EOFError, OSError):
            pass
        made = set(killed.glob("*")) - before
        assert len(made) == 1 or finished == 0  # the first step makes the directory
        runs += [(directory, finished) for directory in made]
    assert len(runs) >= KILLS - 3

    lengths = []
    for directory, finished in runs:
        frames = journal_reader.read_journal(directory)
        found = [item.step for item, _ in frames if item.type == journal_reader.BATCH]
        assert found == list(range(len(found)))
        assert finished - 1 in found or finished == 0
        lengths.append(len(found))
    most = max(lengths)

    # The undisturbed run, and at the same time the next start that completes the others.
    idle = kill_child.Net()
    with tensorprobe.watch(idle, torch.optim.SGD(idle.parameters()), output_dir=killed):
        deadline = time.monotonic() + 120
        while any((d / "lock").exists() for d, _ in runs) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert not [d for d, _ in runs if (d / "lock").exists()]
    reference = Path(kill_child.train(str(tmp_path / "reference"), most, None))
    expected_csv = read_csv(reference)
    expected_events = read_events(reference)
    assert {"actv", "actv_grad", "grad_reduced", "param_updated", "exp_avg"} <= set(expected_csv)
    odd = expected_csv["actv"].query("name == 'odd.output_1'")
    assert odd["norm"].isna().all()
    assert (odd["nans"] == 1).all()

    for (directory, _), steps in zip(runs, lengths, strict=True):
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
    print(f"{len(runs)} runs killed after {min(lengths)} to {most} steps")
