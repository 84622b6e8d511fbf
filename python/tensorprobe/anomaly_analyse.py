"""Put the anomalies of all ranks in the order in which a model computes, and say what went wrong.

``python -m tensorprobe.anomaly_analyse -d DIR/anomaly_detected`` reads every
``rank<R>/anomaly.json``, shows the first anomalies, and writes them to ``anomaly_analyse.json``.
The files may be those of the msprobe Monitor. Of a directory without such files, as an output
directory or that of one rank is, it reads the journals: ``tensorprobe analyse DIR`` is the same.
Then a report says for each cause, over all ranks, which tensor went wrong first, why, and how it
spread; it goes to ``anomaly_analyse.txt`` as well.
"""

from __future__ import annotations

import argparse
import ast
import heapq
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tensorprobe import _core
from tensorprobe._causes import (
    Found,
    alerts_of,
    counted,
    describe,
    order,
    put_together,
    read_journal,
    stage_of,
)
from tensorprobe.journal import Alert, Incident, Journal


@dataclass(frozen=True)
class Anomaly:
    """One entry of an ``anomaly.json``."""

    rank: int
    step: int
    micro_step: int
    pp_stage: int
    vpp_stage: int
    call_id: int
    """Place in the execution order of the step on this rank; -1 when it isn't known."""
    tag_name: str
    message: str
    group_mates: list[int] | None

    @property
    def stage(self) -> int:
        """Which part of a step it belongs to, told by the last part of its tag."""
        return stage_of(self.kind)

    @property
    def kind(self) -> str:
        """The last part of its tag; of a collective "comm"."""
        kind = self.tag_name.rpartition("/")[2]
        return "comm" if re.fullmatch(r"(pre|post)_-?\d+", kind) else kind

    @property
    def order(self) -> tuple[int | str, ...]:
        """What anomalies are sorted by.

        Data goes up the virtual and pipeline stages in the forward, and down again afterwards.
        """
        place = order(
            self.step, self.micro_step, self.kind, self.vpp_stage, self.pp_stage, self.call_id
        )
        return (*place, self.rank, self.tag_name)


class BadFileError(ValueError):
    """A file that holds no anomalies; the text says which one, and why."""


def _read_anomaly(values: object) -> Anomaly:
    if not isinstance(values, dict):
        raise TypeError(f"an anomaly is an object, not {values!r}")
    unknown = values.keys() - Anomaly.__dataclass_fields__.keys()
    missing = Anomaly.__dataclass_fields__.keys() - values.keys() - {"group_mates"}
    if unknown or missing:
        raise TypeError(
            f"an anomaly has {', '.join(Anomaly.__dataclass_fields__)}; "
            f"{'too much' if unknown else 'missing'}: {', '.join(sorted(unknown or missing))}"
        )
    for name in ("rank", "step", "micro_step", "pp_stage", "vpp_stage", "call_id"):
        if type(values[name]) is not int:
            raise TypeError(f"{name} is an integer, not {values[name]!r}")
    return Anomaly(**{"group_mates": None, **values, "tag_name": str(values["tag_name"])})


def read_file(path: Path) -> Iterator[tuple[str, Anomaly]]:
    """Yield each key of an ``anomaly.json`` with its anomaly. Raises BadFileError."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise BadFileError(f"{path}: {error}") from error
    if not isinstance(entries, dict):
        raise BadFileError(f"{path}: must be an object of anomalies")
    for key, values in entries.items():
        try:
            yield key, _read_anomaly(values)
        except TypeError as error:
            raise BadFileError(f"{path}: {key}: {error}") from error


def find_files(directory: Path) -> list[Path]:
    """Return the ``anomaly.json`` of every rank below a directory, or below its anomaly_detected.

    Or the only one in a rank's own directory. Raises BadFileError when there is none.
    """
    for place in (directory / "anomaly_detected", directory):
        found = sorted(place.glob("*/anomaly.json"))
        if found:
            return found
    if (directory / "anomaly.json").exists():
        return [directory / "anomaly.json"]
    raise BadFileError(
        f"{directory}: holds no rank<R>/anomaly.json; give the anomaly_detected of an output "
        'directory whose configuration has "alert": {"rules": […], "dump": true}'
    )


def latest_run(directory: Path) -> list[Journal]:
    """Return the journals of the latest run in a directory.

    Raises FileNotFoundError when there is no journal.
    """
    journals = [Journal(found) for found in _core.find_journals(str(directory))]
    latest = max(journals, key=lambda journal: journal.run["start_wall_ns"]).run["run_id"]
    return [journal for journal in journals if journal.run["run_id"] == latest]


def read_journals(directory: Path) -> tuple[list[Found], list[int]]:
    """Return the alerts and incidents of the latest run in a directory, and its ranks.

    Raises FileNotFoundError when there is no journal.
    """
    own = latest_run(directory)
    found = [item for journal in own for item in read_journal(journal)]
    return found, sorted({int(journal.run["rank"]) for journal in own})


def drift_of(journals: list[Journal]) -> list[str]:
    """Say where the ranks' parameters part, if they do."""
    if len(journals) < 2:
        return []
    found = _core.find_drift([os.fsencode(journal.directory) for journal in journals])
    if found is None:
        return []
    others = found["parameters"] - 1
    more = f", and {others} more parameter{'' if others == 1 else 's'}" if others else ""
    when = "before" if found["quantity"] == "param_origin" else "after"
    return [
        "",
        f"ReplicaDrift: {when} the update of step {found['step']} rank {found['rank']} has another "
        f"{found['name']} than rank {found['other']}{more}. Look at what happens on one rank alone",
    ]


def anomaly_of(found: Found) -> tuple[str, Anomaly]:
    """Return the entry that ``anomaly.json`` would have for an alert, with its key."""
    alert = found.what
    assert isinstance(alert, Alert)
    tag = found.tag
    key = f"{tag}_step_{alert.step}_call_{alert.order}_{alert.rule}_{alert.op}"
    message = f"{alert.rule} in ('{tag}', '{alert.op}') at step {alert.step}: {alert.text}"
    anomaly = Anomaly(
        rank=found.rank,
        step=alert.step,
        micro_step=alert.micro_step,
        pp_stage=found.pp_stage,
        vpp_stage=alert.vpp_stage,
        call_id=alert.order,
        tag_name=tag,
        message=message,
        group_mates=None,
    )
    return key, anomaly


def report(found: list[Found], ranks: list[int], steps: Sequence[int], count: int) -> list[str]:
    """Say in lines what went wrong, one cause after the other."""
    incidents = [
        item
        for item in found
        if isinstance(item.what, Incident)
        and (not steps or any(item.what.first_step <= s <= item.what.last_step for s in steps))
    ]
    causes = put_together(incidents)
    lines = [f"{counted(len(causes), 'cause')} in {counted(len(ranks), 'rank')}"]
    for number, cause in enumerate(causes[:count], 1):
        top, *others = describe(cause, alerts_of(cause, found), len(ranks), count)
        lines += ["", f"{number}. {top}", *others]
    return lines


def find_others(files: list[Path]) -> list[Path]:
    """Return the directories, beside those of these files, of which some anomaly is known.

    What lies in ``anomaly_detected`` are links to the files of the latest run.
    """
    own = {path.resolve() for path in files}
    beside = {other for path in own for other in path.parent.parent.glob("*/anomaly.json")} - own
    found: list[Path] = []
    for path in sorted(beside, key=lambda other: other.stat().st_mtime):
        try:
            found.extend([path.parent] if any(True for _ in read_file(path)) else [])
        except BadFileError:
            continue  # it was not asked for
    return found


def first(
    anomalies: list[tuple[str, Anomaly]], count: int, steps: Sequence[int] = ()
) -> list[tuple[str, Anomaly]]:
    """Return the first so many anomalies of these steps (of all steps when there are none)."""
    wanted = [item for item in anomalies if not steps or item[1].step in steps]
    return heapq.nsmallest(count, wanted, key=lambda item: item[1].order)


def _steps(text: str) -> list[int]:
    try:
        steps = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        steps = None
    if not isinstance(steps, list) or any(type(step) is not int for step in steps):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of steps; write '[1, 2]'")
    return steps


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of anomalies; write 8")
    return int(text)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tensorprobe analyse",
        description="Show which anomalies came first, over all ranks, and why.",
    )
    parser.add_argument(
        "directory", type=Path, nargs="?", metavar="DIR", help="the same as --data_path"
    )
    parser.add_argument(
        "-d",
        "--data_path",
        type=Path,
        metavar="DIR",
        help="anomaly_detected, or a directory with journals",
    )
    parser.add_argument(
        "-o",
        "--out_path",
        type=Path,
        metavar="DIR",
        help="where anomaly_analyse.json goes (default: --data_path)",
    )
    parser.add_argument(
        "-k", "--topk", type=_count, default=8, metavar="N", help="how many (default: 8)"
    )
    parser.add_argument(
        "-s",
        "--step",
        "--step_list",
        type=_steps,
        default=[],
        metavar="'[1, 2]'",
        help="of which steps (default: all)",
    )
    given = parser.parse_args(arguments)
    given.data_path = given.data_path or given.directory
    if given.data_path is None:
        parser.error("the directory is missing: write -d DIR")
    return given


def _write(path: Path, text: str) -> bool:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"{path}: {error.strerror}", file=sys.stderr)
        return False
    return True


def _show(given: argparse.Namespace, anomalies: list[tuple[str, Anomaly]], ranks: int) -> bool:
    """Print the first anomalies and write them."""
    found = first(anomalies, given.topk, given.step)
    path = (given.out_path or given.data_path) / "anomaly_analyse.json"
    # Ranks of the ancestors can have the same key: the later one gets a number.
    entries: dict[str, object] = {}
    for key, anomaly in found:
        unique = key if key not in entries else f"{key}_{len(entries)}"
        entries[unique] = asdict(anomaly)
    if not _write(path, json.dumps(entries, indent=1, ensure_ascii=False) + "\n"):
        return False
    for index, (_, anomaly) in enumerate(found):
        print(f"{index}: rank {anomaly.rank}: {anomaly.message}")
    of = f"{len(anomalies)} anomalies of {counted(ranks, 'rank')}"
    print(f"{len(found)} of {of} are in {path}")
    return True


def _report(given: argparse.Namespace, found: list[Found], ranks: list[int]) -> bool:
    lines = report(found, ranks, given.step, given.topk) + drift_of(latest_run(given.data_path))
    print("\n" + "\n".join(lines))
    path = (given.out_path or given.data_path) / "anomaly_analyse.txt"
    return _write(path, "\n".join(lines) + "\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status."""
    given = _arguments(arguments)
    anomalies: list[tuple[str, Anomaly]] = []
    files: list[Path] = []
    status = 0
    try:
        found, ranks = read_journals(given.data_path)
    except FileNotFoundError:
        found, ranks = [], []
    try:
        files = find_files(given.data_path)
    except BadFileError as error:
        if not ranks:
            print(error, file=sys.stderr)
            return 1
        anomalies = [anomaly_of(item) for item in found if isinstance(item.what, Alert)]
    for path in files:
        try:
            anomalies.extend(read_file(path))
        except BadFileError as error:  # the other ranks still have something to say
            print(error, file=sys.stderr)
            status = 1
    if not _show(given, anomalies, len(files) or len(ranks)):
        return 1
    if ranks and not _report(given, found, ranks):
        return 1
    if not anomalies:
        for other in find_others(files):
            print(f"another run has anomalies: python -m tensorprobe.anomaly_analyse -d {other}")
    return status


if __name__ == "__main__":
    sys.exit(main())
