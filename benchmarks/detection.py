# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The figures of online detection on seeds never tuned on, each with its bar and a baseline beside it.

Rows come from modules that register them with `row`; a module is a file of this folder named in MODULES.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
from collections.abc import Mapping
from dataclasses import asdict

from benchmarks.detection_table import ROWS, Row, Scale

MODULES = (
    "benchmarks.detection_ranks",
    "benchmarks.detection_job",
    "benchmarks.detection_hang_rows",
    "benchmarks.detection_early",
)


def measure(scale: Scale) -> list[Row]:
    """All rows of all modules, in the order of their numbers."""
    for module in MODULES:
        if importlib.util.find_spec(module) is not None:
            importlib.import_module(module)
    rows: list[Row] = []
    for make in ROWS:
        rows += make(scale)
    return sorted(rows, key=lambda row: [int(part) for part in row.number.split(".")])


def figures(rows: list[Row]) -> Mapping[str, object]:
    flat = {name: value for row in rows for name, value in row.figures.items()}
    missed = [row.number for row in rows if not row.is_met]
    return {"benchmark": "detection", **flat, "rows_missed": missed, "rows": [asdict(row) for row in rows]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of jobs")
    parser.add_argument("--first-seed", type=int, default=100, help="below 100 is for tuning only")
    asked = parser.parse_args()
    rows = measure(Scale(jobs=asked.scale, first_seed=asked.first_seed))
    print(f"{'row':5} {'figure':52} {'measured':24} {'bar':22} {'':4} baseline")
    for row in rows:
        met = "ok" if row.is_met else "MISS"
        print(f"{row.number:5} {row.metric:52} {row.measured:24} {row.bar:22} {met:4} {row.baseline}")
    print(json.dumps(figures(rows)))


if __name__ == "__main__":
    main()
