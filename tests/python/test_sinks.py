"""The files of both sinks as pandas and TensorBoard read them, and after every kind of restart."""

from __future__ import annotations

import contextlib
import csv
import json
import math
import os
import random
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator
from tensorboard.util import tensor_util

from built import BUILD

WRITER = BUILD / "tests" / "unit" / "write_sinks"
SEED = int(os.environ.get("TENSORPROBE_TEST_SEED", random.SystemRandom().randrange(2**32)))

KINDS = ["actv", "actv_grad", "grad_unreduced", "grad_reduced"]
KINDS += ["param_origin", "param_updated", "exp_avg", "exp_avg_sq"]
TAG_KINDS = {"grad_unreduced": "acc_grad", "grad_reduced": "post_grad"}
OPS = ["norm", "min", "max", "mean", "zeros", "nans", "id"]
DTYPES = {1: "torch.float64", 2: "torch.float32", 3: "torch.float16", 4: "torch.bfloat16"}
NAMES = ["", "fc1", "layers.0.mlp", 'odd,"name"', "weiß", "a b", "layers.0.mlp.weight", "x" * 200]


COST = {f"tensorprobe/{what}" for what in ("bytes", "records")}
COST |= {f"tensorprobe/{what}_ms" for what in ("step", "hook", "wait", "writer")}
ABOUT = {"tensorprobe/tags", "custom_scalars__config__"} | COST


@dataclass
class Key:
    """A series; its row name is spelled out here once more."""

    kind: str
    role: int
    vpp: int
    slot: int
    name: str

    def row(self, call: int) -> str:
        side = ["", ".input", ".output"][self.role]
        slot = f"_{self.slot}" if self.slot >= 0 else ""
        return self.name + side + slot + (f"#{call}" if call else "")

    @property
    def has_micro_step(self) -> bool:
        return self.kind in ("actv", "actv_grad")


@dataclass
class Record:
    key: int
    micro_step: int
    call: int
    shape: int
    dtype: int
    words: list[int]

    def value(self, op: str, shape: list[int]) -> float:
        count, nan, pos_inf, neg_inf, zeros = self.words[:5]
        low, high = (as_double(w) for w in self.words[6:8])
        total, sum_sq = as_double(self.words[12]), as_double(self.words[14])
        if op == "norm":
            return math.nan if nan else math.inf if pos_inf or neg_inf else math.sqrt(sum_sq)
        if op == "mean":
            if nan or count == 0 or (pos_inf and neg_inf):
                return math.nan
            return math.inf if pos_inf else -math.inf if neg_inf else total / count
        if op == "zeros":
            return zeros / count if count else math.nan
        if op == "id":
            return low if not shape and count == 1 else math.nan
        return {"min": low, "max": high, "nans": float(nan)}[op]


@dataclass
class Run:
    """Keys, shapes and steps, and the text that write_sinks takes them from."""

    keys: list[Key]
    shapes: list[list[int]]
    steps: dict[int, list[Record]] = field(default_factory=dict)

    def text(self, first: int = 0) -> str:
        lines = [
            f"key {KINDS.index(k.kind) + 1} {k.role} {k.vpp} {k.slot} {k.name}" for k in self.keys
        ]
        lines += [f"shape {len(s)} {' '.join(map(str, s))}" for s in self.shapes]
        for step, records in self.steps.items():
            if step < first:
                continue
            lines.append(f"batch {step} {1_700_000_000_000_000_000 + step} {len(records)}")
            for r in records:
                words = " ".join(f"{w:x}" for w in r.words)
                lines.append(f"{r.key} {r.micro_step} {r.call} {r.shape} {r.dtype} {words}")
        return "\n".join(lines) + "\n"


def as_double(word: int) -> float:
    return float(struct.unpack("<d", struct.pack("<Q", word))[0])


def as_word(value: float) -> int:
    if math.isnan(value):
        return 0x7FF8000000000000
    return int(struct.unpack("<Q", struct.pack("<d", value))[0])


def draw_double(rng: random.Random) -> float:
    """Any double: special ones, short ones, those of f32 tensors, and every bit pattern."""
    choice = rng.randrange(8)
    if choice == 0:
        return rng.choice([math.nan, math.inf, -math.inf, 0.0, 5e-324, 1.7976931348623157e308])
    if choice == 1:
        return rng.randrange(-(10**6), 10**6) / 1000
    if choice <= 4:
        return float(np.float32(rng.gauss(0, 10.0 ** rng.randrange(-8, 8))))
    value = as_double(rng.getrandbits(64))
    return value if math.isfinite(value) else rng.gauss(0, 1)


def draw_run(rng: random.Random, steps: int, repeats: int = 3) -> Run:
    shapes: list[list[int]] = [[], [5], [3, 4], [2, 3, 4]]
    keys = []
    for kind in KINDS:
        for name in rng.sample(NAMES, 3):
            role = rng.choice([1, 2]) if kind in ("actv", "actv_grad") else 0
            slot = rng.choice([-1, 0, 1]) if role else -1
            keys.append(Key(kind, role, rng.randrange(3), slot, name))
    keys = [k for i, k in enumerate(keys) if k not in keys[:i]]
    run = Run(keys, shapes)
    for step in range(steps):
        records = []
        for index, key in enumerate(keys):
            if key.kind.startswith("exp_avg") and step == 0:
                continue
            for micro in range(repeats if key.has_micro_step else 1):
                for call in range(rng.choice([1, 1, 2]) if key.role else 1):
                    shape = rng.randrange(len(shapes))
                    count = math.prod(shapes[shape])
                    nan, pos, neg = (rng.choice([0, 0, 0, 1]) for _ in range(3))
                    words = [count, nan, pos, neg, rng.randrange(count + 1), 0]
                    words += [as_word(draw_double(rng)) for _ in range(5)]
                    words += [
                        0,
                        as_word(rng.gauss(0, 1e5)),
                        0,
                        as_word(rng.expovariate(1e-5)),
                        0,
                        0,
                    ]
                    records.append(Record(index, micro, call, shape, rng.randrange(1, 5), words))
        rng.shuffle(records)
        run.steps[step] = records
    return run


@dataclass(frozen=True)
class Options:
    ops: list[str]
    steps_per_file: int = 1
    ndigits: int = 0


@dataclass
class Result:
    statuses: list[str]
    cursors: list[str]


def write(
    sink: str,
    directory: Path,
    text: str,
    options: Options,
    *,
    fail_after: int = 0,
    cursor: str = "",
) -> Result:
    ops = ",".join(options.ops)
    arguments: list[object] = [sink, directory, ops, options.ndigits, options.steps_per_file]
    arguments += [3, fail_after]
    arguments += [cursor] if cursor else []
    command = [str(WRITER), *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    lines = [line.split(" ") for line in done.stdout.splitlines()]
    assert done.returncode == 0 or fail_after, done.stdout
    return Result([line[0] for line in lines], [line[1] for line in lines if line[0] == "TP_OK"])


def same(got: float, expected: float) -> bool:
    return got == expected or (math.isnan(got) and math.isnan(expected))


def check_csv(run: Run, directory: Path, ops: list[str], steps_per_file: int) -> None:
    """Every row of every file, in order, and no file besides."""
    expected: dict[str, list[list[object]]] = {}
    for step, records in run.steps.items():
        begin = step - step % steps_per_file
        for r in records:
            key, shape = run.keys[r.key], run.shapes[r.shape]
            row: list[object] = [key.vpp, key.row(r.call), step]
            row += [r.micro_step] if key.has_micro_step else []
            for op in ops:
                if op == "shape":
                    row.append(str(shape))
                elif op == "dtype":
                    row.append(DTYPES[r.dtype])
                else:
                    row.append(r.value(op, shape))
            expected.setdefault(f"{key.kind}_{begin}-{begin + steps_per_file - 1}.csv", []).append(
                row
            )
    assert sorted(p.name for p in directory.glob("*")) == sorted(expected)
    for name, rows in expected.items():
        frame = pd.read_csv(
            directory / name,
            float_precision="round_trip",
            keep_default_na=False,
            na_values={op: ["nan"] for op in OPS},
        )
        micro = ["micro_step"] if name.startswith("actv") else []
        assert list(frame.columns) == ["vpp_stage", "name", "step", *micro, *ops]
        assert len(frame) == len(rows), name
        for got, row in zip(frame.itertuples(index=False), rows, strict=True):
            for a, b in zip(got, row, strict=True):
                assert same(float(a), b) if isinstance(b, float) else a == b, (name, got, row)


def check_events(run: Run, directory: Path, ops: list[str]) -> None:
    expected: dict[str, list[tuple[int, float]]] = {}
    for step, records in run.steps.items():
        for r in records:
            key, shape = run.keys[r.key], run.shapes[r.shape]
            micro = f":{r.micro_step}" if key.has_micro_step else ""
            kind = TAG_KINDS.get(key.kind, key.kind)
            for op in ops:
                if op in ("shape", "dtype") or (op == "id" and shape):
                    continue
                tag = f"{key.vpp}:{key.row(r.call)}{micro}/rank3/{kind}_{op}"
                expected.setdefault(tag, []).append((step, r.value(op, shape)))
    reader = EventAccumulator(str(directory), size_guidance={TENSORS: 0})
    reader.Reload()
    assert reader.file_version == 2
    assert set(reader.Tags()["tensors"]) == set(expected) | ABOUT
    for tag, values in expected.items():
        assert reader.SummaryMetadata(tag).plugin_data.plugin_name == "scalars"
        events = reader.Tensors(tag)
        assert [e.step for e in events] == [step for step, _ in values], tag
        for event, (step, value) in zip(events, values, strict=True):
            (exact,) = event.tensor_proto.double_val
            assert same(exact, value), (tag, step)
            shown = tensor_util.make_ndarray(event.tensor_proto)
            assert (shown.dtype, shown.shape) == (np.float32, ())
            with np.errstate(over="ignore"):
                assert same(float(shown), float(np.float32(value))), (tag, step)
            assert event.wall_time == pytest.approx(1.7e9, abs=1)


@pytest.fixture
def rng() -> random.Random:
    print(f"TENSORPROBE_TEST_SEED={SEED}")
    return random.Random(SEED)


# Deprecated in pandas 3, whose default it has become; older ones need it.
pytestmark = pytest.mark.filterwarnings("ignore:The 'float_precision' argument")

# The value itself (id) is left out where shapes change from step to step.
EVENT_OPS = [op for op in OPS if op != "id"]


@pytest.mark.parametrize("steps_per_file", [1, 3, 1000])
def test_pandas_reads_what_was_written(
    tmp_path: Path, rng: random.Random, steps_per_file: int
) -> None:
    run = draw_run(rng, 7)
    ops = [*rng.sample(OPS, 7), "shape", "dtype"]
    write("csv", tmp_path, run.text(), Options(ops=ops, steps_per_file=steps_per_file))
    check_csv(run, tmp_path, ops, steps_per_file)


@pytest.mark.parametrize("digits", [1, 6, 12, 20])
def test_csv_rounds_as_python_does(tmp_path: Path, rng: random.Random, digits: int) -> None:
    run = draw_run(rng, 2)
    write("csv", tmp_path, run.text(), Options(ops=["min", "max"], ndigits=digits))
    seen = 0
    for path in tmp_path.glob("*.csv"):
        frame = pd.read_csv(path, float_precision="round_trip", keep_default_na=False)
        step = int(path.stem.split("_")[-1].split("-")[0])
        kind = path.stem.rsplit("_", 1)[0]
        rows = [r for r in run.steps[step] if run.keys[r.key].kind == kind]
        for record, low, high in zip(rows, frame["min"], frame["max"], strict=True):
            for op, got in (("min", low), ("max", high)):
                assert same(float(got), round(record.value(op, []), digits))
                seen += 1
    assert seen > 100


def test_counts_have_no_decimals(tmp_path: Path, rng: random.Random) -> None:
    run = draw_run(rng, 1)
    write("csv", tmp_path, run.text(), Options(ops=["nans"]))
    for path in tmp_path.glob("*.csv"):
        assert {line.rsplit(",", 1)[1] for line in path.read_text().splitlines()[1:]} <= {"0", "1"}


def test_tensorboard_reads_what_was_written(tmp_path: Path, rng: random.Random) -> None:
    run = draw_run(rng, 7)
    ops = [*EVENT_OPS, "shape", "dtype"]
    write("tensorboard", tmp_path, run.text(), Options(ops=ops))
    check_events(run, tmp_path, ops)
    (path,) = tmp_path.glob("*")
    parts = path.name.split(".")
    assert [*parts[:3], parts[-1]] == ["events", "out", "tfevents", "tensorprobe"]


@pytest.mark.slow
@pytest.mark.parametrize("loader", ["true", "false"])
def test_the_scalars_page_shows_them(tmp_path: Path, loader: str) -> None:
    """Of both loaders: the fast one, the default, silently leaves out what it can't show."""
    values = [0.5, math.nan, math.inf, -math.inf, 3.0]
    run = Run([Key("param_origin", 0, 0, -1, "weight")], [[1]])
    for step, value in enumerate(values):
        words = [1, 0, 0, 0, 0, 0, 0, as_word(value), 0, 0, 0, 0, 0, 0, 0, 0, 0]
        run.steps[step] = [Record(0, 0, 0, 0, 2, words)]
    (tmp_path / "run").mkdir()
    write("tensorboard", tmp_path / "run", run.text(), Options(ops=["max"]))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(tmp_path)]
    command += ["--host", "127.0.0.1", "--port", str(port), f"--load_fast={loader}"]
    query = urllib.parse.urlencode({"run": "run", "tag": "0:weight/rank3/param_origin_max"})
    url = f"http://127.0.0.1:{port}/data/plugin/scalars/scalars?{query}"
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as server:
        try:
            shown: list[list[object]] = []
            for _ in range(300):
                time.sleep(0.2)
                with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
                    shown = json.load(answer)
                if shown:
                    break
        finally:
            server.terminate()
    assert [row[1] for row in shown] == list(range(5))
    assert [row[2] for row in shown] == [0.5, "NaN", "Infinity", "-Infinity", 3.0]


def test_the_value_itself_is_shown_for_scalars_only(tmp_path: Path) -> None:
    keys = [Key("param_origin", 0, 0, -1, "scale"), Key("param_origin", 0, 0, -1, "weight")]
    run = Run(keys, [[], [1]])
    words = [1, 0, 0, 0, 0, 0, *[as_word(0.1)] * 5, 0, 0, 0, 0, 0, 0]
    run.steps = {s: [Record(0, 0, 0, 0, 2, words), Record(1, 0, 0, 1, 2, words)] for s in range(3)}
    write("tensorboard", tmp_path, run.text(), Options(ops=["id", "min"]))
    check_events(run, tmp_path, ["id", "min"])


def damage(directory: Path, before: dict[str, int], rng: random.Random) -> None:
    """What a crash can leave behind the cursor: files cut, or longer by torn bytes."""
    for path in directory.glob("*"):
        least = before.get(path.name, 0)
        content = path.read_bytes()
        if len(content) == least:
            continue  # nothing has been written to it since
        kept = content[: rng.randrange(least, len(content) + 1)]
        path.write_bytes(kept + rng.randbytes(rng.choice([0, 0, 1, 100])))


@pytest.mark.parametrize("sink", ["csv", "tensorboard"])
@pytest.mark.parametrize("steps_per_file", [1, 4])
def test_restart_from_every_cursor_neither_doubles_nor_loses(
    tmp_path: Path, rng: random.Random, sink: str, steps_per_file: int
) -> None:
    run = draw_run(rng, 9, repeats=1)
    ops = EVENT_OPS
    for restart in range(9):
        directory = tmp_path / str(restart)
        directory.mkdir()
        options = Options(ops, steps_per_file)
        first = Run(run.keys, run.shapes, {s: run.steps[s] for s in range(restart)})
        result = write(sink, directory, first.text(), options)
        sizes = {path.name: path.stat().st_size for path in directory.glob("*")}
        cursor = result.cursors[-1] if result.cursors else ""
        write(sink, directory, run.text(restart), options, cursor=cursor)
        if sink == "csv" or restart > 0:
            damage(directory, sizes, rng)
            write(sink, directory, run.text(restart), options, cursor=cursor)
        if sink == "csv":
            check_csv(run, directory, ops, steps_per_file)
        else:
            check_events(run, directory, ops)


@pytest.mark.parametrize("sink", ["csv", "tensorboard"])
def test_a_full_disk_that_has_room_again(tmp_path: Path, rng: random.Random, sink: str) -> None:
    run = draw_run(rng, 6, repeats=1)
    options = Options(EVENT_OPS, 4)
    for fail_after in range(1, 30):
        directory = tmp_path / str(fail_after)
        directory.mkdir()
        result = write(sink, directory, run.text(), options, fail_after=fail_after)
        done = len(result.cursors)
        if done == 6:
            break
        assert result.statuses[done] == "TP_ERR_NOSPACE"
        cursor = result.cursors[-1] if done else ""
        write(sink, directory, run.text(done), options, cursor=cursor)
        if sink == "csv":
            check_csv(run, directory, EVENT_OPS, 4)
        else:
            check_events(run, directory, EVENT_OPS)
    assert fail_after > 6


def test_files_from_before_without_a_cursor_are_begun_anew(
    tmp_path: Path, rng: random.Random
) -> None:
    run = draw_run(rng, 3)
    for sink in ("csv", "tensorboard"):
        (directory := tmp_path / sink).mkdir()
        for _ in range(2):
            write(sink, directory, run.text(), Options(ops=EVENT_OPS, steps_per_file=2))
    check_csv(run, tmp_path / "csv", EVENT_OPS, 2)
    check_events(run, tmp_path / "tensorboard", EVENT_OPS)


@pytest.mark.parametrize("sink", ["csv", "tensorboard"])
def test_a_file_shorter_than_its_cursor_stays_readable(
    tmp_path: Path, rng: random.Random, sink: str
) -> None:
    run = draw_run(rng, 4, repeats=1)
    first = Run(run.keys, run.shapes, {s: run.steps[s] for s in range(2)})
    options = Options(["norm"], 100)
    result = write(sink, tmp_path, first.text(), options)
    for path in tmp_path.glob("*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    write(sink, tmp_path, run.text(2), options, cursor=result.cursors[-1])
    if sink == "csv":
        for path in tmp_path.glob("*.csv"):
            steps = pd.read_csv(path)["step"].tolist()
            assert steps == sorted(steps)
            assert {2, 3} <= set(steps)
    else:
        reader = EventAccumulator(str(tmp_path), size_guidance={TENSORS: 0})
        reader.Reload()
        seen = {e.step for tag in reader.Tags()["tensors"] for e in reader.Tensors(tag)}
        assert {2, 3} <= seen


def test_steps_repeated_from_a_checkpoint_keep_the_rows_before_it(
    tmp_path: Path, rng: random.Random
) -> None:
    run = draw_run(rng, 10, repeats=1)
    options = Options(["norm", "min"], 4)
    result = write("csv", tmp_path, run.text(), options)
    write("csv", tmp_path, run.text(6), options, cursor=result.cursors[-1])
    rows = pd.concat(pd.read_csv(p) for p in tmp_path.glob("param_origin_*.csv"))
    times = rows.groupby("step").size()
    assert (times[6:] == 2 * times[0]).all()
    assert (times[:6] == times[0]).all()


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\uff1d", "\uff20"])
def test_no_spreadsheet_runs_a_name(tmp_path: Path, start: str) -> None:
    """OWASP's way: an apostrophe, which a spreadsheet shows as text."""
    words = [1, *[0] * 16]
    names = [f'{start}HYPERLINK("x","y")', "fc-1", "a=b", "'quoted'"]
    keys = [Key("param_origin", 0, 0, -1, name) for name in names]
    run = Run(keys, [[1]])
    run.steps[0] = [Record(number, 0, 0, 0, 2, words) for number in range(len(keys))]
    write("csv", tmp_path, run.text(), Options(ops=["max"]))
    (path,) = tmp_path.glob("*.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    assert [row[1] for row in rows] == ["'" + names[0], *names[1:]]
    assert pd.read_csv(path)["name"].tolist() == ["'" + names[0], *names[1:]]
