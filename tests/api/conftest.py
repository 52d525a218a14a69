# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Fixtures of the API tests: rules compiled once, and a fresh service for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anyio.from_thread
import pytest

from service import bootstrap
from service.config import Settings
from service.rules_store import RuleStore
from tests.api.running import Service, start


@pytest.fixture(scope="session")
def rules() -> RuleStore:
    """Compiled once: every service of a test run judges by the same rules."""
    return bootstrap.rule_store(Settings())


@pytest.fixture(scope="session")
def portal() -> Iterator[anyio.from_thread.BlockingPortal]:
    with anyio.from_thread.start_blocking_portal() as opened:
        yield opened


@pytest.fixture
def service(rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> Service:
    return start(rules, portal)


@pytest.fixture
def advised(service: Service) -> dict[str, Any]:
    """A crash in approve mode: everything that a page may show is there."""
    service.set_mode("approve")
    service.crash()
    found: dict[str, Any] = service.advise().json()
    return found
