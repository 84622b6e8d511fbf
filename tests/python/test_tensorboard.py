"""What TensorBoard finds besides scalars: pictures, a layout, a page; many and large files."""

from __future__ import annotations

import math
import os
import re
import struct
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.backend.event_processing.plugin_event_accumulator import (
    TENSORS,
    EventAccumulator,
)
from tensorboard.plugins.custom_scalar import layout_pb2

import tensorprobe
from tensorprobe import _core

OPS = ["norm", "max", "nans"]


def read(directory: Path | str) -> EventAccumulator:
    events = EventAccumulator(str(directory), size_guidance={TENSORS: 0})
    events.Reload()
    return events


def record(directory: Path, steps: list[list[float]], **fields: Any) -> str:
    """Each step has a tensor of one element for each of the keys w0, w1, …."""
    config = {"format": "tensorboard", "ops": OPS, "alert": {"rules": []}, **fields}
    monitor = _core.Monitor(
        config_json=tensorprobe._arguments.config_text(config),
        output_dir=str(directory),
        watch=True,
    )
    for values in steps:
        for number, value in enumerate(values):
            key = monitor.key(f"blocks.{number % 3}.w{number}", _core.GRAD_REDUCED)
            monitor.observe(key, torch.tensor([value]))
        monitor.step()
    where = monitor.directory
    monitor.close()
    return where


def pixels_of(png: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The colours of a palette PNG without filters: rows x columns x 3."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at = 8
    chunks: dict[bytes, bytes] = defaultdict(bytes)
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        body = png[at + 8 : at + 8 + size]
        assert (
            zlib.crc32(kind + body) == struct.unpack(">I", png[at + 8 + size : at + 12 + size])[0]
        )
        chunks[kind] += body
        at += 12 + size
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 3)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    return palette[rows[:, 1:]]


def hot(share: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """matplotlib's colour map of that name, by its corner points."""
    red = np.interp(share, [0, 0.365079, 1], [0.0416, 1, 1])
    green = np.interp(share, [0, 0.365079, 0.746032, 1], [0, 0, 1, 1])
    blue = np.interp(share, [0, 0.746032, 1], [0, 0, 1])
    return np.stack([red, green, blue], axis=-1) * 255


@pytest.mark.parametrize("steps", [9, 600])
def test_heat_maps_of_updates_and_ratios(tmp_path: Path, steps: int) -> None:
    model = torch.nn.Linear(20, 4, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    fields: dict[str, Any] = {
        "format": "tensorboard",
        "ur_distribution": True,
        "xy_distribution": False,
        "alert": {"rules": []},
    }
    with tensorprobe.watch(model, optimizer, fields, output_dir=tmp_path) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(3, 20)).square().sum().backward()
            optimizer.step()
    recorded: dict[int, list[int]] = {
        step.step: one["histogram"]["bins"]
        for step in tensorprobe.Journal(monitor.directory)
        for one in step.records
        if one["quantity"] == "adam_update"
    }
    assert len(next(iter(recorded.values()))) == 30
    events = read(monitor.directory)
    images = events.Tensors("0:weight/rank0/adam_update_heatmap")
    shown = [n for n in range(1, len(recorded) + 1) if n & (n - 1) == 0 or n % 64 == 0]
    assert [e.step for e in images] == [sorted(recorded)[n - 1] for n in shown]
    assert "0:weight/rank0/adam_ratio_heatmap" in events.Tags()["tensors"]
    last = images[-1]
    width, height, png = last.tensor_proto.string_val
    assert (width, height) == (b"640", b"480")
    picture = pixels_of(png)
    assert picture.shape == (480, 640, 3)
    history = np.array([recorded[s] for s in sorted(recorded) if s <= last.step], float)
    merged = 1
    while math.ceil(len(history) / merged) > 280:
        merged *= 2
    columns = [history[i : i + merged].mean(axis=0) for i in range(0, len(history), merged)]
    share = np.stack(columns, axis=1) / np.max(columns)
    for row in range(30):
        for x in range(1, 560, 40):
            found = picture[20 + row * 14 + 7, 60 + x]
            expected = hot(share[row, x * len(columns) // 560])
            assert np.abs(found - expected).max() < 6, (row, x)


def test_series_beyond_the_limit_are_summed_up(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    steps = [[float(n - 7 + step) for n in range(20)] for step in range(3)]
    steps[2][15] = math.nan
    steps[1][2] = math.nan
    directory = record(tmp_path, steps, tensorboard_tags=18)
    events = read(directory)
    own = {t for t in events.Tags()["tensors"] if "/post_grad" in t}
    assert own == {
        f"0:blocks.{n % 3}.w{n}/rank0/post_grad_{op}" for n in range(6) for op in OPS
    } | {
        f"others/rank0/grad_reduced_{op}_{end}".replace("grad_reduced", "post_grad")
        for op in OPS
        for end in ("min", "max")
    }
    others = [np.array(values[6:]) for values in steps]
    for op, values in {"norm": [np.abs(v) for v in others], "max": others}.items():
        for end in ("min", "max"):
            tensors = events.Tensors(f"others/rank0/post_grad_{op}_{end}")
            found = [e.tensor_proto.double_val[0] for e in tensors]
            np.testing.assert_array_equal(found, [getattr(np, end)(v) for v in values])
    nans = events.Tensors("others/rank0/post_grad_nans_max")
    assert [e.tensor_proto.double_val[0] for e in nans] == [0, 0, 1]
    assert "TensorBoard gets 18 tags and no more: of 14 further series" in capfd.readouterr().err


def test_the_layout_has_every_series_once(tmp_path: Path) -> None:
    model = torch.nn.ModuleDict(
        {"blocks": torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(11))}
    )
    model.forward = lambda x: [x := block(x) for block in model["blocks"]][-1]  # type: ignore
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tensorprobe.watch(
        model, optimizer, format="tensorboard", ops=["shape", "max", "norm"], output_dir=tmp_path
    ) as monitor:
        for _ in range(2):
            loss = model(torch.ones(1, 2)).sum()
            monitor.log_scalar("loss", loss)
            loss.backward()
            optimizer.step()
    events = read(monitor.directory)
    assert events.PluginTagToContent("custom_scalars") == {"custom_scalars__config__": b""}
    assert "tensorprobe/tags" in events.PluginTagToContent("text")
    (page,) = events.Tensors("tensorprobe/tags")
    text = page.tensor_proto.string_val[0].decode()
    assert "| `post_grad` | Gradients of parameters" in text
    (config,) = events.Tensors("custom_scalars__config__")
    layout = layout_pb2.Layout.FromString(config.tensor_proto.string_val[0])
    assert layout.category[0].title == "Logged by the training loop"
    assert [one.closed for one in layout.category[:2]] == [False, True]
    tags = set(events.PluginTagToContent("scalars"))
    seen: dict[str, str] = {}
    for category in layout.category:
        for chart in category.chart:
            (pattern,) = chart.multiline.tag
            found = [tag for tag in tags if re.compile(pattern).match(tag)]
            assert found, chart
            for tag in found:
                assert tag not in seen
                seen[tag] = chart.title
    assert set(seen) == {t for t in tags if t.endswith(("_max", "/scalar"))}
    assert seen["0:blocks.1.weight/rank0/param_origin_max"] == "blocks.1 max"
    assert seen["0:blocks.10.weight/rank0/param_origin_max"] == "blocks.10 max"


def test_large_files_are_followed_by_others(tmp_path: Path) -> None:
    """60 MB: TensorBoard reads them without a word of damage, and each file alone."""
    rng = np.random.default_rng(3)
    values = rng.standard_normal((96, 3300))
    directory = record(tmp_path, values.tolist())
    files = sorted(Path(directory).glob("events.out.tfevents.*"))
    assert [path.stat().st_size > 32 << 20 for path in files] == [True, False]
    assert sum(path.stat().st_size for path in files) > 50 << 20
    whole = [list(LegacyEventFileLoader(str(path)).Load()) for path in files]
    assert all(file[0].file_version == "brain.Event:2" for file in whole)
    exact = values.astype(np.float32).astype(float)
    step = 0
    for file in whole:
        batches = [event for event in file if len(event.summary.value) == 3300 * 3]
        for number, event in enumerate(batches):
            assert event.step == step
            found = [v.tensor.double_val[0] for v in event.summary.value[1::3]]
            assert found == exact[step].tolist()
            # Each file can be read alone.
            assert event.summary.value[0].HasField("metadata") == (number == 0)
            step += 1
    assert step == len(values)
    if os.environ.get("TP_SOAK"):  # 40 s
        events = read(directory)
        assert len(events.PluginTagToContent("scalars")) == 3300 * 3
        one = events.Tensors("0:blocks.0.w3/rank0/post_grad_max")
        assert [e.tensor_proto.double_val[0] for e in one] == exact[:, 3].tolist()


def test_a_file_that_no_cursor_speaks_of_is_not_read_twice(tmp_path: Path) -> None:
    """The process died behind a new file and in front of the cursor that tells of it."""
    directory = Path(record(tmp_path, [[1.0], [2.0]]))
    (first,) = directory.glob("events.*")
    later = re.sub(r"tfevents\.(\d+)\.", lambda m: f"tfevents.{int(m[1]) + 1}.", first.name)
    (directory / later).write_bytes(first.read_bytes())
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"format": "tensorboard", "alert": {"rules": []}}
    with tensorprobe.watch(model, optimizer, config, output_dir=tmp_path, resume=directory):
        model(torch.ones(1)).backward()
        optimizer.step()
    assert list(directory.glob("events.*")) == [first]


def test_the_monitors_own_cost(tmp_path: Path) -> None:
    """Tags of what a step took, as the journal has it; bytes are those that the files have."""
    directory = record(tmp_path, [[1.0, 2.0]] * 5)
    steps = list(tensorprobe.Journal(directory).steps())
    events = read(directory)

    def values(tag: str) -> list[float]:
        found = events.Tensors(f"tensorprobe/{tag}")
        assert [event.step for event in found] == [step.step for step in steps]
        return [event.tensor_proto.double_val[0] for event in found]

    assert values("step_ms") == [(step.end_ns - step.begin_ns) / 1e6 for step in steps]
    assert values("hook_ms") == [step.hook_ns / 1e6 for step in steps]
    assert values("wait_ms") == [step.wait_ns / 1e6 for step in steps]
    assert values("writer_ms") == [step.writer_ns / 1e6 for step in steps]
    assert values("records") == [2.0] * 5
    assert values("bytes") == [float(step.bytes) for step in steps]
    assert steps[0].bytes == 0  # nothing had been written
    files = [*Path(directory).glob("journal/*"), *Path(directory).glob("events.*")]
    whole = sum(path.stat().st_size for path in files)
    assert whole / 2 < sum(step.bytes for step in steps) < whole  # all but those of the last step
