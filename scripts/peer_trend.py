r"""Make tests/python/fixtures/msprobe-26.2.0/trend.json by the ancestor's own ``data2db``.

The ancestor's folder is that of scripts/peer_fixtures.py:

    python scripts/peer_trend.py DIR
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests" / "python"


def main() -> int:
    """Run each variant."""
    sys.path[:0] = [str(TESTS), sys.argv[1]]
    from msprobe.core.compare.data2db import DBImporter

    from trend_cases import EXPECTED, VARIANTS, make_ranks, read_trend

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        ranks = Path(folder) / "ranks"
        make_ranks(ranks)
        for name, arguments in VARIANTS.items():
            out = Path(folder) / name
            mapping = None
            if "mapping" in arguments:
                mapping = Path(folder) / "mapping.json"
                mapping.write_text(json.dumps(arguments["mapping"]))
            DBImporter(
                str(out),
                str(ranks),
                "monitor",
                None if mapping is None else str(mapping),
                str(arguments["micro_step"]),
            ).import_data()
            found[name] = read_trend(out / "monitor_data.trend.db")
    lines = json.dumps(found, separators=(",", ":")).replace("],[", "],\n[")
    EXPECTED.write_text(lines + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
