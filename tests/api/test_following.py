# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Logs followed by the service itself: exactly once, over failures, requeues and restarts."""

from __future__ import annotations

from pathlib import Path

import anyio.from_thread
import pytest

from relight.testing.audit import MemoryAuditLog
from service.config import Follow, Recommend, Settings
from service.rules_store import RuleStore
from tests.api.running import BrittleAuditLog, Service, StandingClock, start
from tests.api.test_watched_jobs import step_line


class Site:
    """A folder of job logs and a service that may read below it; `restart` keeps what is on disk and on record."""

    def __init__(self, folder: Path, rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> None:
        self.log = folder / "logs" / "job.out"
        self.log.parent.mkdir()
        self.parts = (rules, portal)
        self.audit, self.clock = BrittleAuditLog(), StandingClock()
        self.settings = Settings(
            recommend=Recommend(mode="act"),
            follow=Follow(roots=(self.log.parent,), cursors_file=folder / "cursors.json"),
        )
        self.restart()

    def restart(self) -> None:
        rules, portal = self.parts
        self.service: Service = start(rules, portal, audit=self.audit, clock=self.clock, settings=self.settings)

    def write(self, *steps: int, log: Path | None = None) -> None:
        with (log or self.log).open("a") as out:
            out.writelines(step_line(step) + "\n" for step in steps)

    def look(self, times: int = 2) -> None:
        (chore,) = (one for one in self.service.application.chores if one.name == "following of logs")
        for _ in range(times):
            self.clock.advance(seconds=2)
            chore.once()

    def told(self, name: str = "a-1") -> tuple[int, int | None]:
        attempt = self.service.get(f"/v1/attempts/{name}").json()
        return attempt["log_lines"], attempt["last_step"]

    def degraded(self) -> list[str]:
        said: list[str] = self.service.get("/readyz").json()["degraded"]
        return said


@pytest.fixture
def site(tmp_path: Path, rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> Site:
    return Site(tmp_path, rules, portal)


def test_the_log_that_an_attempt_names_is_read_while_it_runs(site: Site) -> None:
    site.service.put_attempt(log_paths=[str(site.log)])
    site.look()
    assert site.told() == (0, None)
    site.write(1, 2, 3)
    site.look()
    site.write(4)
    site.look()
    assert site.told() == (4, 4)
    assert site.degraded() == []


def test_a_batch_that_cannot_be_recorded_comes_again_whole_and_once(site: Site) -> None:
    site.service.put_attempt(log_paths=[str(site.log)])
    site.write(1, 2)
    site.audit.is_broken = True
    site.look(3)
    assert "following of logs: AuditUnavailable" in site.degraded()[0]
    site.audit.is_broken = False
    site.write(3)
    site.look()
    assert site.told() == (3, 3)
    assert site.degraded() == []


def test_a_restart_goes_on_where_it_was(site: Site) -> None:
    site.service.put_attempt(log_paths=[str(site.log)])
    site.write(1, 2, 3)
    site.look()
    site.restart()
    site.write(4, 5)
    site.look()
    assert site.told() == (5, 5)


def test_lines_whose_place_was_not_stored_are_known_again_after_a_restart(site: Site, tmp_path: Path) -> None:
    site.service.put_attempt(log_paths=[str(site.log)])
    site.write(1, 2, 3)
    site.look()
    (tmp_path / "cursors.json").unlink()
    site.restart()
    site.write(4)
    site.look()
    assert site.told() == (4, 4)


def test_a_requeued_job_goes_on_in_the_same_file_as_another_attempt(site: Site) -> None:
    site.service.put_attempt("a-0", attempt_index=0, log_paths=[str(site.log)])
    site.write(1, 2, 3)
    site.look()
    site.service.put_attempt("a-0", attempt_index=0, log_paths=[str(site.log)], state="FAILED", exit_code=1)
    for _ in range(40):
        site.look()
    site.service.put_attempt("a-1", attempt_index=1, log_paths=[str(site.log)])
    site.look()
    site.write(2, 3, 4)
    site.look()
    assert (site.told("a-0"), site.told("a-1")) == ((3, 3), (3, 4))
    record = site.service.application.journal.state.attempts["a-1"]
    assert record.was_read_whole


def test_what_is_written_soon_after_the_end_still_counts(site: Site) -> None:
    site.service.put_attempt(log_paths=[str(site.log)])
    site.look()
    site.service.put_attempt(log_paths=[str(site.log)], state="FAILED", exit_code=1)
    site.write(7)
    site.look()
    assert site.told() == (1, 7)


def test_a_path_outside_of_the_allowed_folders_is_refused_and_said(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    site.write(1, log=secret)
    site.service.put_attempt(log_paths=[str(secret), str(site.log)])
    site.write(1)
    site.look()
    assert site.told() == (1, 1)
    (said,) = site.degraded()
    assert said.startswith("1 log paths are refused")


def test_without_an_allowed_folder_nothing_is_followed(
    rules: RuleStore, portal: anyio.from_thread.BlockingPortal
) -> None:
    service = start(rules, portal)
    assert "following of logs" not in {one.name for one in service.application.chores}
    assert isinstance(service.audit, MemoryAuditLog)
