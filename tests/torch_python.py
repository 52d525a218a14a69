# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""An interpreter that has PyTorch: ours, or the system's, for which what ranks import needs only its own library."""

from __future__ import annotations

import functools
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
_SYSTEM = Path("/usr/bin/python3")
_HAS = """import sys
import torch.distributed as dist
import relight.client
raise SystemExit(sys.version_info < (3, 11) or not dist.is_available())"""


@functools.cache
def python_with_torch() -> str | None:
    """The first that can run the DDP example from the checkout, or None."""
    if find_spec("torch") is not None:
        return sys.executable
    if not _SYSTEM.exists():
        return None
    asked = subprocess.run([_SYSTEM, "-c", _HAS], cwd=PROJECT, capture_output=True, timeout=120, check=False)
    return str(_SYSTEM) if asked.returncode == 0 else None


def require_torch() -> str:
    """That interpreter, or a skip that says what is not tested and how to have it."""
    found = python_with_torch()
    if found is None:
        pytest.skip(
            "NO TORCH HERE: the DDP form is NOT tested; make test-torch installs Debian's python3-torch as root"
        )
    return found
