# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Labelled cases from disk, for training and evaluation only: nothing that judges a job may read a label."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.adapters.log_files import Case, LogUnreadable, read_folder

LABEL = "label.json"
SHIPPED = Path(__file__).parents[2] / "datasets" / "failures"


def labelled_cases(root: Path) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Each folder below `root` that holds a label, with its logs and the label.

    Errors: LogUnreadable if there is none, or one can't be read or lacks `class` or `failure`.
    """
    folders = sorted(path.parent for path in root.rglob(LABEL))
    if not folders:
        raise LogUnreadable(f"{root} holds no case with a {LABEL}; name a folder of labelled cases")
    for folder in folders:
        yield read_folder(folder), _label(folder / LABEL)


def _label(path: Path) -> dict[str, Any]:
    try:
        said = json.loads(path.read_bytes())
    except (OSError, ValueError) as why:
        raise LogUnreadable(f"{path}: {why}; write it as JSON with class and failure") from why
    if not isinstance(said, dict) or not all(isinstance(said.get(key), str) for key in ("class", "failure")):
        raise LogUnreadable(f"{path}: need an object with the texts class and failure")
    return said
