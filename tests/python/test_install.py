"""What a C program finds after `cmake --install`: library, headers, pkg-config file, command.

The example in C is built against the installed prefix alone and run; its files are read with pandas
and with the command.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from built import BUILD
from tensorprobe import _core

ROOT = Path(__file__).resolve().parents[2]
STEPS = 40
BREAK_AT = 30


@dataclass(frozen=True)
class Prefix:
    """An installed tree and the environment in which its parts find each other."""

    path: Path
    environment: dict[str, str]

    def run(self, *command: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        result = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            check=False,
            env=self.environment,
        )
        assert result.returncode == status, f"{command}: {result.stdout}{result.stderr}"
        return result

    def tool(self, *arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
        return self.run(self.path / "bin/tensorprobe", *arguments, status=status)


@dataclass(frozen=True)
class Run:
    """One run of the example: its directory and what it printed itself, step by step."""

    directory: Path
    loss: list[float]
    weight_norm: list[float]
    grad_norm: list[float]


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Prefix:
    if not (BUILD / "build.ninja").exists():
        pytest.fail(f"{BUILD} is not built: run `make build` first")
    path = tmp_path_factory.mktemp("prefix")
    subprocess.run(
        ["cmake", "--install", BUILD, "--prefix", path], check=True, stdout=subprocess.DEVNULL
    )
    (pkgconfig,) = path.glob("lib/**/pkgconfig")
    environment = {
        **os.environ,
        "PKG_CONFIG_PATH": str(pkgconfig),
        "LD_LIBRARY_PATH": str(pkgconfig.parent),
    }
    return Prefix(path, environment)


@pytest.fixture(scope="module")
def program(prefix: Prefix, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the example as its first comment says."""
    program = tmp_path_factory.mktemp("program") / "train"
    flags = prefix.run("pkg-config", "--cflags", "--libs", "tensorprobe").stdout.split()
    source = ROOT / "examples/c/train.c"
    prefix.run("cc", "-std=c11", "-O2", "-o", program, source, *flags, "-lm")
    return program


def train(prefix: Prefix, program: Path, output: Path, *arguments: str) -> Run:
    printed = prefix.run(
        program, "--output", output, "--steps", str(STEPS), "--every", "1", *arguments
    ).stdout
    rows = re.findall(r"^(\d+) +(\S+) +(\S+) (\S+)$", printed, re.MULTILINE)
    assert [int(row[0]) for row in rows] == list(range(STEPS))
    directory = re.search(r"^files: (.*)$", printed, re.MULTILINE)
    assert directory is not None
    columns = [[float(row[column]) for row in rows] for column in (1, 2, 3)]
    return Run(Path(directory[1]), *columns)


@pytest.fixture(scope="module")
def run(prefix: Prefix, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train(prefix, program, tmp_path_factory.mktemp("healthy"))


def declared_functions() -> set[str]:
    """Return what the public headers promise."""
    text = "".join(path.read_text() for path in (ROOT / "include/tensorprobe").glob("*.h"))
    return set(re.findall(r"^TP_API [^;(]*?\b(tp_\w+)\(", text, re.MULTILINE))


def library(prefix: Prefix) -> Path:
    (path,) = prefix.path.glob("lib/**/libtensorprobe.so")
    return path


def version(name: str) -> str:
    text = (ROOT / "include/tensorprobe/version.h").read_text()
    match = re.search(rf'#define {name} "?([^"\n]+)', text)
    assert match is not None
    return match[1]


def test_library_exports_exactly_the_public_functions(prefix: Prefix) -> None:
    lines = prefix.run("nm", "-D", "--defined-only", library(prefix)).stdout.splitlines()
    exported = {line.split()[-1] for line in lines}
    assert len(declared_functions()) > 20
    assert exported == declared_functions()


UNLOAD = r"""
#include <assert.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <tensorprobe/tensorprobe.h>

static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    while (readdir(tasks) != NULL) {
        count++;
    }
    closedir(tasks);
    return count - 2; /* . and .. */
}

static float data[1 << 20];
typedef tp_status compute_function(const tp_tensor *, double, tp_stats *);

int main(int argc, char **argv)
{
    for (int round = 0; round < 20; round++) {
        void *library = dlopen(argv[argc - 1], RTLD_NOW);
        void (*set_threads)(uint32_t) =
            (void (*)(uint32_t))dlsym(library, "tp_stats_set_threads");
        compute_function *compute = (compute_function *)dlsym(library, "tp_stats_compute");
        const int64_t shape[] = {1 << 20};
        const tp_tensor tensor = {data, shape, NULL, TP_F32, 1};
        tp_stats stats;
        set_threads(3);
        assert(compute(&tensor, 0.5, &stats) == TP_OK && stats.zeros == 1 << 20);
        assert(threads() == 3);
        dlclose(library);
        assert(threads() == 1);
    }
    return 0;
}
"""


def test_unloading_ends_the_threads(prefix: Prefix, tmp_path: Path) -> None:
    (tmp_path / "unload.c").write_text(UNLOAD)
    include = f"-I{prefix.path / 'include'}"
    program = tmp_path / "unload"
    prefix.run("cc", "-std=gnu11", include, "-o", program, tmp_path / "unload.c")
    prefix.run(program, library(prefix))


def test_soname_and_version_come_from_the_header(prefix: Prefix) -> None:
    dynamic = prefix.run("readelf", "-d", library(prefix)).stdout
    assert f"[libtensorprobe.so.{version('TP_SOVERSION')}]" in dynamic
    found = prefix.run("pkg-config", "--modversion", "tensorprobe").stdout.strip()
    assert found == version("TP_VERSION_STRING")
    assert prefix.tool("--version").stdout == f"tensorprobe {found}\n"


def test_installed_headers_are_the_public_ones(prefix: Prefix) -> None:
    installed = {path.name for path in (prefix.path / "include").glob("**/*.h")}
    assert installed == {path.name for path in (ROOT / "include").glob("**/*.h")}


def test_prefix_holds_nothing_else(prefix: Prefix) -> None:
    assert {path.name for path in prefix.path.iterdir()} <= {"bin", "include", "lib", "lib64"}


def test_example_learns(run: Run) -> None:
    assert np.mean(run.loss[-5:]) < 0.8 * run.loss[0]


def test_csv_holds_the_norms_that_the_program_computed(run: Run) -> None:
    for kind, expected in (("param_origin", run.weight_norm), ("grad_reduced", run.grad_norm)):
        (file,) = run.directory.glob(f"{kind}_*.csv")
        table = pd.read_csv(file)
        rows = table[table["name"] == "hidden.weight"]
        assert list(rows["step"]) == list(range(STEPS))
        np.testing.assert_allclose(rows["norm"], expected, rtol=1e-12)
        assert len(table) == STEPS * 5


def test_show_prints_what_the_journal_holds(prefix: Prefix, run: Run) -> None:
    output = prefix.tool("show", "--series", run.directory).stdout
    assert re.search(rf"^steps +{STEPS} \(0 to {STEPS - 1}\), closed$", output, re.MULTILINE)
    # 3 activations, 3 gradients of activations, 5 parameters; moments from the second step on.
    assert re.search(rf"^records +{STEPS * 21 + (STEPS - 1) * 10}$", output, re.MULTILINE)
    assert re.search(
        r"^series +31: actv 3, actv_grad 3, grad_reduced 5, param_origin 5, param_updated 5, "
        r"exp_avg 5, exp_avg_sq 5$",
        output,
        re.MULTILINE,
    )
    assert re.search(r"^alerts +none$", output, re.MULTILINE)
    cost = re.search(r"^cost +hooks ([\d.]+) %, .* waiting ([\d.]+) %", output, re.MULTILINE)
    assert cost is not None
    assert 0 < float(cost[1]) < 100
    assert 0 <= float(cost[2]) < 100
    line = re.search(r"^param_origin +(\d+) +(\S+) +(\S+) +hidden\.weight$", output, re.MULTILINE)
    assert line is not None
    assert line.groups() == (str(STEPS), f"0-{STEPS - 1}", f"{run.weight_norm[-1]:.6g}")


def test_broken_weight_is_named(prefix: Prefix, program: Path, tmp_path: Path) -> None:
    broken = train(prefix, program, tmp_path, "--break", str(BREAK_AT))
    assert np.isnan(broken.weight_norm[BREAK_AT])
    output = prefix.tool("show", broken.directory).stdout
    alerts = re.findall(r"^ +step (\d+) +(\S+) +(\S+) (\S+): ", output, re.MULTILINE)
    # Not the output of the forward pass, which is recorded first.
    assert alerts[0] == (str(BREAK_AT), "AnomalyNan", "param_origin", "hidden.weight")


def test_show_has_one_line_for_a_step_and_rule(prefix: Prefix, tmp_path: Path) -> None:
    rules = [
        {"rule_name": "AnomalyNan", "args": {"threshold": 100}},
        {"rule_name": "AnomalyTurbulence", "args": {"threshold": 0.5}},
    ]
    monitor = _core.Monitor(
        config_json=json.dumps({"format": "api", "alert": {"rules": rules}}),
        output_dir=str(tmp_path),
    )
    keys = [monitor.key(name, _core.ACTIVATION, _core.ROLE_OUTPUT) for name in "abcd"]
    for values in ([1.0, 1.0, 1.0, 1.0], [1.0, 200.0, 2.0, 300.0]):  # none, both, one, both
        for key, value in zip(keys, values, strict=True):
            monitor.observe(key, torch.tensor([value]))
        monitor.step()
    directory = monitor.directory
    monitor.close()
    output = prefix.tool("show", directory).stdout
    lines = re.findall(r"^ +step (\d+) +(\S+) +actv (\S+): ", output, re.MULTILINE)
    assert lines == [("1", "AnomalyNan", "b.output"), ("1", "AnomalyTurbulence", "b.output")]
    every = prefix.tool("show", "--alerts", directory).stdout
    assert len(re.findall(r"^ +step 1 +Anomaly", every, re.MULTILINE)) == 5


def steps_of(table: Path) -> list[int]:
    return [int(step) for step in pd.read_csv(table)["step"]]


def test_recover_after_a_kill_brings_files_to_the_end_of_the_journal(
    prefix: Prefix, program: Path, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [program, "--output", tmp_path, "--steps", "1000000"],
        env=prefix.environment,
        stdout=subprocess.DEVNULL,
    )
    try:
        while not list(tmp_path.glob("*/exp_avg_sq_0-999.csv")):
            assert process.poll() is None
            time.sleep(0.01)
        (directory,) = tmp_path.iterdir()
        assert "in use" in prefix.tool("recover", directory, status=1).stderr
    finally:
        process.kill()
        process.wait()
    prefix.tool("recover", directory)
    shown = prefix.tool("show", directory).stdout
    steps = re.search(r"^steps +(\d+) [^,]*(, 1 partial)?, not closed", shown, re.MULTILINE)
    assert steps is not None
    # The step in which it was killed is in the journal alone.
    assert ("\nreached  " in shown) == (steps[2] is not None)
    whole = int(steps[1]) - (steps[2] is not None)
    expected = [step for step in range(whole) for _ in range(5)]
    found = [
        step for table in sorted(directory.glob("grad_reduced_*.csv")) for step in steps_of(table)
    ]
    assert found == expected
    assert ": 0 steps added" in prefix.tool("recover", directory).stdout


def test_check_tells_right_from_wrong(prefix: Prefix, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text('{"ops": ["norm"],\n "eps": 1e-8}\n')
    assert prefix.tool("check", config).stdout.startswith(f"{config}: OK\n")
    config.write_text('{"ops": ["norm"],\n "epps": 1e-8}\n')
    error = prefix.tool("check", config, status=1).stderr
    assert f"{config}:2:" in error
    assert "epps" in error
    assert "eps" in error.replace("epps", "")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        ([], 2),
        (["sing"], 2),
        (["show"], 2),
        (["show", "--loudly", "."], 2),
        (["show", "no/such/directory"], 1),
        (["recover"], 2),
        (["recover", "no/such/directory"], 1),
        (["check", "a", "b"], 2),
        (["check", "no/such/file"], 1),
        (["--help"], 0),
        (["show", "--help"], 0),
        (["recover", "--help"], 0),
        (["check", "--help"], 0),
    ],
)
def test_exit_codes(prefix: Prefix, arguments: list[str], status: int) -> None:
    result = prefix.tool(*arguments, status=status)
    text = result.stdout if status == 0 else result.stderr
    assert "tensorprobe" in text
    assert (result.stdout if status else result.stderr) == ""
