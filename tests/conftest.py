# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What many tests need: the shipped rules, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.adapters.diagnosis_kit import build_diagnostician
from service.diagnosis import Diagnostician

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Diagnostician:
    """The diagnostician of the shipped packs, taxonomy and policy."""
    return build_diagnostician(cache=tmp_path_factory.getbasetemp().parent / "rules")
