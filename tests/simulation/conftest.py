# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Fixtures of the simulations: rules compiled once, and a world for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import anyio.from_thread
import pytest

from service import bootstrap
from service.config import Settings
from service.rules_store import RuleStore
from tests.simulation.recovery_world import World

MakeWorld = Callable[..., World]


@pytest.fixture(scope="session")
def rules() -> RuleStore:
    return bootstrap.rule_store(Settings())


@pytest.fixture(scope="session")
def portal() -> Iterator[anyio.from_thread.BlockingPortal]:
    with anyio.from_thread.start_blocking_portal() as opened:
        yield opened


@pytest.fixture
def make_world(rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> MakeWorld:
    return lambda **said: World(rules, portal, **said)


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world()
