"""Directories of ranks for which an ancestor has made its trend database, and how that is compared.

scripts/peer_trend.py makes the ancestor's; test_export.py makes ours.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures" / "msprobe-26.2.0"
EXPECTED = FIXTURES / "trend.json"

MAPPING = {"layers.": "blocks.", "blocks.0": "first.0"}

# Name → arguments of data2db.
VARIANTS: dict[str, dict[str, Any]] = {
    "micro_steps": {"micro_step": True},
    "steps": {"micro_step": False},
    "mapping": {"micro_step": True, "mapping": MAPPING},
}

_EXTREMES = """\
vpp_stage,name,step,micro_step,norm,min,max,zeros,nans,mean,shape
0,layers.0.1.mlp,0,0,inf,-inf,2e9,0.5,0,nan,"[2, 3]"
0,layers.0.1.mlp,0,1,1e9,-3e9,1000000001,0,1,-1e9,[2]
1,layers.0.1.mlp,0,0,1,2,3,4,5,6,[2]
1,head,3,2,,-0.0,1e-320,0,0,0,[]
0,7.x.12,3,0,1,1,1,1,1,1,[1]
"""


def make_ranks(directory: Path) -> None:
    """Three ranks: two from the fixtures, and one with what a viewer can't draw."""
    for rank, case in enumerate(("accumulation", "chunks")):
        target = directory / f"Dec03_21-34-40-rank{rank}-1a2b3c4d"
        target.mkdir(parents=True)
        for path in (FIXTURES / case).glob("*.csv"):
            shutil.copy(path, target)
    target = directory / "Dec03_21-34-40-rank2-1a2b3c4d"
    target.mkdir(parents=True)
    (target / "actv_0-99.csv").write_text(_EXTREMES)
    (target / "other_notes.csv").write_text("a,b\n1,2\n")


def read_trend(path: Path) -> dict[str, list[list[Any]]]:
    """Every table, without numbers that say only in which order rows came."""
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    (stats,) = connection.execute("SELECT * FROM global_stats").fetchall()
    found = {
        "global_stats": sorted(
            [name, sorted(stats[name].split(",")) if isinstance(stats[name], str) else stats[name]]
            for name in stats.keys()  # noqa: SIM118 (a Row iterates over its values)
        ),
        "columns": [
            [row["name"], row["type"], row["pk"]]
            for row in connection.execute("PRAGMA table_info(trend_data)")
        ],
        "metrics": [
            list(row)
            for row in connection.execute(
                "SELECT metric_id, metric_name FROM monitoring_metrics ORDER BY metric_id"
            )
        ],
        "tags": [
            list(row)
            for row in connection.execute(
                "SELECT metric_name, tag_name, category, target_name, vpp_stage, micro_step"
                " FROM monitoring_tags JOIN monitoring_metrics USING (metric_id)"
                " JOIN tag_target_mapping USING (tag_id) JOIN monitoring_targets USING (target_id)"
                " ORDER BY 1, 2, 3, 4, 5, 6"
            )
        ],
        "trend_data": [
            list(row)
            for row in connection.execute(
                "SELECT metric_name, target_name, vpp_stage, micro_step, trend_data.*"
                " FROM trend_data JOIN monitoring_metrics USING (metric_id)"
                " JOIN monitoring_targets USING (target_id)"
            )
        ],
    }
    ids = [7, 6]  # of metric and target, behind the four names, rank and step
    found["trend_data"] = sorted(
        [value for place, value in enumerate(row) if place not in ids]
        for row in found["trend_data"]
    )
    connection.close()
    return found
