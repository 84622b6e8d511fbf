"""The table of options: documentation, JSON Schema and `tensorprobe check` agree with it."""

import contextlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from built import TOOL

ROOT = Path(__file__).parents[2]

GOOD = [
    {},
    {"targets": {}, "all_xy": True},
    {"targets": {"": {}, "fc1": {"input": "tuple[2]:0", "output": "tensor"}}},
    {"targets": {"a.0": {"input_grad": "tuple[2]", "output_grad": "tuple[10]:9"}}},
    {"module_ranks": [0, 1, 2], "start_step": 5, "step_interval": 10, "collect_times": 1e8},
    {"module_ranks": "0,1"},
    {"module_ranks": ""},
    {"format": "csv", "ops": ["norm", "dtype"], "ndigits": 12, "eps": 1, "device_path": "torch"},
    {"format": ["csv", "tensorboard"], "ops": [], "eps": 1e-8},
    {"cc_distribution": {"enable": True, "cc_codeline": ["a"], "cc_pre_hook": False}},
    {"alert": {"rules": [{"rule_name": "AnomalyTurbulence", "args": {"threshold": 1}}]}},
    {"alert": {"rules": [], "dump": True, "inform": {"connection_str": "sqlite:///a"}}},
    {
        "alert": {
            "inform": {
                "recipient": "email",
                "send_email_address": "a@b.c",
                "receive_email_address": "a@b.c",
                "smtp_server": "b.c",
                "smtp_port": "587",
            }
        }
    },
    {"append_output": ["Dec03_21-34-40", "Dec03_21-34-41"]},
    {"append_output": [], "l2_targets": {"linear_hook": []}, "sa_order": "s,b,h,d"},
    {"$schema": "monitor.schema.json", "journal": {"wait_ms": 0}, "input_grad": "tensor"},
]

# What no schema of one value can say.
BETWEEN_VALUES = re.compile(
    r"with i < n, as|is missing|an email needs|takes no arguments but|a factor is at least"
    r"|the threshold of|at most its window|not at shape or dtype|first and the last time"
    r"|duplicate|smtp_port|no regular expression|URL|would send nothing|names no file"
)


def run(
    *arguments: str | Path, command: str = "check", status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run `tensorprobe check`, or another command."""
    line = [str(part) for part in (TOOL, command, *arguments)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


def fits(value: object, schema: dict[str, Any]) -> bool:
    """Validate against the keywords of JSON Schema that ours has; a new one fails."""
    known = {"$schema", "title", "description", "default", "type", "enum", "anyOf", "minimum"}
    known |= {"maximum", "pattern", "items", "minItems", "maxItems"}
    known |= {"properties", "additionalProperties"}
    assert set(schema) <= known
    number = isinstance(value, int | float) and not isinstance(value, bool)
    is_type = {
        "boolean": isinstance(value, bool),
        "integer": number and value == int(value),  # type: ignore[call-overload]
        "number": number,
        "string": isinstance(value, str),
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(is_type[one] for one in types):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema and not any(fits(value, one) for one in schema["anyOf"]):
        return False
    if isinstance(value, str):
        return re.search(schema.get("pattern", ""), value) is not None
    if isinstance(value, list):
        most = schema.get("maxItems", len(value))
        items = schema.get("items", {})
        return schema.get("minItems", 0) <= len(value) <= most and all(
            fits(one, items) for one in value
        )
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        other = schema.get("additionalProperties", {})
        return all(
            fits(one, properties[name])
            if name in properties
            else other is not False and fits(one, other)
            for name, one in value.items()
        )
    if number:
        assert isinstance(value, int | float)
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return True


def bad_configurations() -> list[tuple[object, str]]:
    """Return those of the C tests' bad texts that are JSON, with their messages."""
    cases: list[tuple[object, str]] = []
    text = ""
    for line in (ROOT / "tests/unit/bad_configurations.txt").read_text().splitlines():
        if line.startswith("=> "):
            with contextlib.suppress(ValueError):
                cases.append((json.loads(text, parse_constant=int), line[3:]))
            text = ""
        elif not line.startswith("# "):
            text += line + "\n"
    return cases


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    """Return the schema as an editor reads it."""
    read = json.loads(run("--schema").stdout)
    assert isinstance(read, dict)
    return read


def test_the_documentation_has_the_table() -> None:
    table = run("--fields").stdout
    assert table.count("\n") > 50
    assert f"\n{table}\n" in (ROOT / "docs/configuration.md").read_text()


@pytest.mark.parametrize("config", GOOD)
def test_schema_and_parser_take_what_is_right(
    config: dict[str, Any], schema: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(json.dumps(config))
    assert run(path).stdout.startswith(f"{path}: OK\n")
    assert fits(config, schema)


def test_the_schema_refuses_what_the_parser_refuses(schema: dict[str, Any]) -> None:
    cases = bad_configurations()
    assert len(cases) > 180
    for config, message in cases:
        if BETWEEN_VALUES.search(message) is None and "overflow" not in message:
            assert not fits(config, schema), (config, message)


def test_check_says_what_will_happen(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(
        '{"targets": {"fc1": {}, "fc2": {}}, "xy_distribution": true, "forward_only": true,\n'
        '"wg_distribution": true, "mv_distribution": true, "format": "csv", "ndigits": 6,\n'
        '"ops": ["min", "max"], "step_count_per_record": 10, "strict": true, // all\n'
        '"alert": {"rules": [{"rule_name": "AnomalyNan", "args": {"threshold": 1e10}},\n'
        '{"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}}], "dump": true}}'
    )
    done = run(path)
    assert (
        done.stdout
        == f"""{path}: OK
watches "fc1", "fc2"
in every step
records
  activations of the targets
  parameter gradients
  the optimizer's moments
which costs a step 3 reads of all watched parameters' memory and one read of each activation and \
gradient that is recorded
keeps all statistics in the journal
writes csv files of 10 steps with 6 decimals: min, max
raises an alert when a value is NaN or its magnitude is above 1e+10
raises an alert when a value is off its mean by more than 50 %, after 1 value
writes alerts to anomaly_detected/rank<R>/anomaly.json
ends the training when the monitor itself fails
"""
    )
    assert done.stderr == (
        f"tensorprobe: warning: {path}:3:69: skipped a comment, which JSON has not\n"
    )


def test_check_says_where_it_goes_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(
        '{"wg_distribution": true, "format": "database", "database": {"url":'
        ' "postgresql://me:hunter2@h:5433/d", "targets": ["a", "b*"], "step_interval": 10,'
        ' "rollup_steps": 100}, "alert": {"inform": {"recipient": "email",'
        ' "send_email_address": "a@b", "receive_email_address": "c@d", "smtp_server": "m",'
        ' "send_email_username": "hunter2", "send_email_password": "hunter2"}}}'
    )
    done = run(path)
    assert done.stdout.endswith(
        "keeps all statistics in the journal\n"
        "carries them to postgresql://h:5433/d, beside the training: of a, b* every 10 steps, and a"
        " summary of every series each 100 steps\n"
        "raises no alerts\n"
        "tells c@d of alerts by mail\n"
    )
    assert "hunter2" not in done.stdout + done.stderr
    path.write_text(
        '{"wg_distribution": true, "database": {"url": "$DB"},'
        ' "alert": {"inform": {"connection_str": "file:/x"}}}'
    )
    done = run(path)
    assert "carries them to $DB, beside the training: of all every step\n" in done.stdout
    assert "tells a database (file:/x) of alerts\n" in done.stdout


def test_check_says_when_and_where(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(
        '{"module_ranks": "0,3", "start_step": 100, "step_interval": 10, "collect_times": 5,\n'
        '"dynamic_on": true,\n'
        '"targets": {"a": {}, "b": {}, "c": {}, "d": {}, "e": {}, "f": {}},\n'
        '"print_struct": true, "exit_after_struct": false, "format": "api"}'
    )
    done = run(path)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"{path}: OK",
        'watches "a", "b", "c", "d" and 2 more',
        "on rank 0, 3",
        "in one step of 10, from step 100 on, 5 times",
        "begins with DYNAMIC_MONITOR=true in the step after this file has changed",
        "records",
        "  nothing",
        "keeps all statistics in the journal",
        "raises no alerts",
        "prints what the modules pass around in the first step",
    ]


def test_check_says_what_watch_does(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    path.write_text("{}")
    text = run("--watch", path).stdout
    assert "watches every module and every parameter\n" in text
    assert "writes csv files of 1000 steps with exact numbers: norm, min, max" in text
    assert "raises an alert when a logged number is 6 standard deviations above the median" in text
    assert "  nothing\n" in run(path).stdout


@pytest.mark.parametrize(
    ("purpose", "records", "rules"),
    [
        ("gradients", ["parameter gradients"], 9),
        (
            "nan",
            [
                "activations of all modules",
                "activation gradients of all modules",
                "parameter gradients",
                "parameters before and after the optimizer's step",
                "the optimizer's moments",
            ],
            9,
        ),
        (
            "compare",
            [
                "activations of all modules",
                "activation gradients of all modules",
                "parameter gradients",
                "parameters before and after the optimizer's step",
                "the optimizer's moments",
            ],
            0,
        ),
    ],
)
def test_init_prints_a_configuration(
    purpose: str, records: list[str], rules: int, schema: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "monitor.json"
    path.write_text(run(purpose, command="init").stdout)
    assert fits(json.loads(path.read_text()), schema)
    done = run(path)
    assert done.stderr == ""
    assert done.stdout.count("raises an alert when") == rules
    lines = done.stdout.splitlines()
    assert [line.strip() for line in lines if line.startswith("  ")] == records
    # The same over both defaults, now and when a field gets another one.
    assert run("--watch", path).stdout == done.stdout
    table = [re.split(r" (?<!\\)\| ", line) for line in run("--fields").stdout.splitlines()]
    differing = [row[0].strip("| `") for row in table[2:] if row[2] != row[3]]
    assert len(differing) >= 8
    for field in differing:
        own = json.loads(path.read_text())
        for part in field.split("."):
            own = own[part]
    assert purpose in run("--help", command="init").stdout
    assert purpose in run(command="init", status=2).stderr
    assert "there is no purpose gradient; " in run("gradient", command="init", status=2).stderr


def test_check_says_that_there_will_be_many_csv_files(tmp_path: Path) -> None:
    path = tmp_path / "monitor.json"
    path.write_text('{"wg_distribution": true, "format": "csv"}')
    assert '"step_count_per_record": 1000 puts 1000 steps into one' in run(path).stdout
    assert "step_count_per_record" not in run("--watch", path).stdout


@pytest.mark.parametrize(
    "arguments", [["--schema", "a"], ["--fields", "a"], ["--watch", "--schema"], [], ["a", "b"]]
)
def test_wrong_command_lines(arguments: list[str]) -> None:
    assert run(*arguments, status=2).stdout == ""
