# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Checkpoints of all ranks: each writes its part, and the step counts once all parts are on disk."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.ddp_numpy.network import Adam, Array
from examples.job_faults import Faults
from examples.run_folder import replace_text


@dataclass(frozen=True, slots=True)
class Loaded:
    step: int
    weights: Array
    adam: Adam
    path: Path


def save_part(root: Path, step: int, rank: int, weights: Array, adam: Adam, faults: Faults) -> Path:
    """Write this rank's part durably under its final name. Errors: OSError."""
    path = part_path(root, step, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".tmp")
    with faults.disk(fresh, step).open("wb") as file:
        np.savez(file, weights=weights, state=adam.state, count=np.int64(adam.count))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    return path


def seal(root: Path, step: int) -> None:
    """Rank 0, once every part is there: from now on a restart resumes here. Keeps the two newest."""
    replace_text(root / "latest.json", json.dumps({"step": step}))
    for old in sorted(root.glob("step-*"))[:-2]:
        shutil.rmtree(old, ignore_errors=True)


def load(root: Path, rank: int) -> Loaded | None:
    """The newest sealed checkpoint, or None if there never was one.

    Errors: OSError, ValueError, zipfile.BadZipFile for one that is damaged: starting anew would hide it.
    """
    try:
        step = int(json.loads((root / "latest.json").read_text())["step"])
    except FileNotFoundError:
        return None
    path = part_path(root, step, rank)
    with np.load(path) as parts:
        adam = Adam(parts["state"], int(parts["count"]))
        return Loaded(step, parts["weights"], adam, path)


def part_path(root: Path, step: int, rank: int) -> Path:
    return root / f"step-{step:08d}" / f"rank{rank}.npz"
