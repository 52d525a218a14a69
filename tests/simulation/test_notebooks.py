# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The notebooks run as plain programs, within their time, on what is shipped."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
TIME_S = 120
OURS = {"relight", "models", "rules", "detectors"}
THEIRS = {"pandas", "numpy", "river", "sklearn", "pyarrow"}
SAYS = {
    "01_read_the_audit_log": "cause_not_in_log",
    "02_retrain_attribution": "majority_accuracy",
    "03_rolling_baselines": "ends in the same state",
}


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(notebook: Path, tmp_path: Path) -> None:
    work = tmp_path / "notebooks"
    work.mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", str(notebook)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIME_S,
        check=False,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert SAYS[notebook.stem] in done.stdout


def test_each_notebook_is_known_here() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(SAYS)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_imports_the_core_and_never_the_service(notebook: Path) -> None:
    imported = set()
    for node in ast.walk(ast.parse(notebook.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported <= OURS | THEIRS | set(sys.stdlib_module_names)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_percent_text_without_outputs(notebook: Path) -> None:
    text = notebook.read_text("utf-8")
    assert text.splitlines()[1] == "# %% [markdown]"
    assert text.count("\n# %%") >= 4
    assert [p.name for p in (ROOT / "notebooks").iterdir() if p.suffix == ".ipynb"] == []
