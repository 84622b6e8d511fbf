r"""Make the csv files that tests/python/test_peer.py compares ours with, by an ancestor itself.

The ancestor is msprobe's Monitor (the package mindstudio-probe). It lives in a folder of its own:

    pip install --target DIR --no-deps mindstudio-probe==26.2.0
    pip install --target DIR pytz pyopenssl openpyxl matplotlib pyyaml rich tabulate twisted \
        einops psutil
    python scripts/peer_fixtures.py DIR [CASE...]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests" / "python"
FIXTURES = TESTS / "fixtures" / "msprobe-26.2.0"


def run_case(name: str) -> None:
    """Train one case with the ancestor, in this process."""
    sys.path.insert(0, str(TESTS))
    from msprobe.pytorch import TrainerMon

    from peer_cases import CASES

    case = CASES[name]
    path = Path(os.environ["MONITOR_OUTPUT_DIR"]) / "config.json"
    path.write_text(json.dumps(case.full_config()))
    model, optimizer = case.make()
    monitor = TrainerMon(str(path), params_have_main_grad=False)
    monitor.set_monitor(
        case.watched_part(model),
        optimizer,
        grad_acc_steps=case.micro_steps,
        start_iteration=case.start_iteration,
    )
    case.train(model, optimizer)


def main() -> int:
    """Run every case in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        run_case(options.worker)
        return 0
    sys.path.insert(0, str(TESTS))
    from peer_cases import CASES

    failed = []
    for name in options.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            environment = {
                **os.environ,
                "MONITOR_OUTPUT_DIR": folder,
                "PYTHONPATH": str(options.folder.resolve()),
                "OMP_NUM_THREADS": "1",
            }
            command = [sys.executable, __file__, str(options.folder), "--worker", name]
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            files = sorted(Path(folder).glob("*-rank0-*/*.csv")) or sorted(
                Path(folder).glob("*/*.csv")
            )
            if done.returncode != 0 or not files:
                print(done.stdout[-3000:], done.stderr[-3000:], sep="\n")
                failed.append(name)
                continue
            shutil.rmtree(FIXTURES / name, ignore_errors=True)
            (FIXTURES / name).mkdir(parents=True)
            for file in files:
                shutil.copy(file, FIXTURES / name / file.name)
            print(f"{name}: {len(files)} files")
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
