# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The controller's round: look, publish, ask, and take every recovery one step further."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controllers.slurm.acting import Acting, Blind
from controllers.slurm.advice import Advice, Advisor, AdvisorRefused, AdvisorUnreachable, SeenIncident
from controllers.slurm.drains import Drains, DrainsRefused
from controllers.slurm.following import EndedBadly, Following
from controllers.slurm.pursuit import new_pursuit, pursuit_from
from controllers.slurm.recovery import Recovery
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.slips import Slips
from controllers.slurm.store import Store
from relight.jobs import BatchScheduler, ClusterReading, SchedulerUnreachable
from relight.ports import Clock
from relight.types import Action, AttemptId, AttemptState, IncidentId, Mode

_HUNG = frozenset({"hang"})
_SLOW = frozenset({"straggler", "slowdown"})
SLOW_EVERY = timedelta(minutes=1)
FOLLOW_UPS = 5
FOLLOWED_FOR = timedelta(hours=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What one round came to; `why` tells of the first thing that stood in the way."""

    at: datetime
    jobs: int = 0
    recoveries: int = 0
    is_blind: bool = False
    is_advised: bool = True
    why: str = ""


class Controller:
    """Carries recommendations out on one cluster; a fresh one on the same store goes on where the last stopped.

    Errors of a round: StoreUnusable and OSError only; a blind scheduler and a silent advisor are results.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        scheduler: BatchScheduler,
        advisor: Advisor,
        store: Store,
        slips: Slips,
        clock: Clock,
        is_paused: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings, self._scheduler, self._advisor = settings, scheduler, advisor
        self._store, self._clock = store, clock
        self.following = Following(settings, scheduler, advisor, store)
        acting = Acting(settings, scheduler, advisor, store, slips, self.following, clock)
        self._recovery = Recovery(settings, acting, advisor, store, clock, is_paused)
        self._drains = Drains(advisor, settings.cluster)
        self._jobs_before = 0
        self._slow_at: dict[IncidentId, datetime] = {}

    def tick(self) -> Round:
        """One round."""
        now = self._clock.now()
        reading = self._scheduler.survey(now)
        if why := self._blindness(reading):
            return Round(at=now, is_blind=True, why=why)
        self._recovery.nodes = reading.nodes
        why = ""
        try:
            for failure in self.following.follow(reading, self._born_at(now)):
                self._ask(failure, "exited")
            for failure in tuple(self.following.unasked()):
                self._ask(failure, "exited")
            self._watch(now)
            self._see_what_came_of_it(now)
            self._drains.look(reading.nodes, now)
        except (AdvisorUnreachable, DrainsRefused) as silent:
            why = str(silent)
        recoveries, why_not = self._recover()
        return Round(
            at=now, jobs=len(reading.jobs), recoveries=recoveries, is_advised=not why and not why_not,
            why=why or why_not,
        )  # fmt: skip

    # -------------------------------------------------------------- looking

    def _blindness(self, reading: ClusterReading) -> str:
        """An empty queue right after a full one is believed only when it is seen twice."""
        if reading.is_blind:
            return reading.why_blind or "the scheduler did not answer"
        before, self._jobs_before = self._jobs_before, len(reading.jobs)
        if before > 0 and not reading.jobs:
            return f"no jobs at all, {before} a moment ago: not believed until it is confirmed"
        return ""

    def _born_at(self, now: datetime) -> datetime:
        """When this controller's store began: what had failed before is shown, and not acted on."""
        known = self._store.get("meta", "born")
        if known is None:
            known = {"at": now.isoformat()}
            self._store.put("meta", "born", known)
        return datetime.fromisoformat(known["at"])

    # -------------------------------------------------------------- asking

    def _ask(self, failure: EndedBadly, trigger: str, *, was_running: bool = False) -> None:
        try:
            advice = self._advisor.advise(failure.attempt, trigger)
        except AdvisorRefused as why:
            now = self._clock.now().isoformat()
            self._store.log(now, failure.attempt, "ask", "refused", {"why": str(why)[:300]})
            if why.code != "unknown_attempt":
                self.following.asked(failure.attempt, failure.job_id)
            return
        self._pursue(advice, failure, was_running=was_running)
        if not was_running:
            self.following.asked(failure.attempt, failure.job_id)

    def _pursue(self, advice: Advice, failure: EndedBadly, *, was_running: bool) -> None:
        acts = advice.action in {Action.RESTART, Action.RESTART_EXCLUDING, Action.STOP}
        is_known = self._store.get("pursuit", failure.attempt) is not None
        if is_known or not acts or not advice.is_open:
            return
        now = self._clock.now()
        begun = new_pursuit(
            advice, job_id=failure.job_id, restart_count=failure.restart_count, ended_at=failure.ended_at,
            started_at=failure.started_at, was_running=was_running, now=now,
            settle_until=now + timedelta(seconds=self._settings.settle_s),
        )  # fmt: skip
        begun.gpus = self._gpus(failure)
        self._store.put("pursuit", failure.attempt, begun.stored())

    def _gpus(self, failure: EndedBadly) -> int | None:
        """How many GPUs stand idle meanwhile."""
        track = self.following.track(failure.job_id)
        each = track.last.get("gpus_per_node") if track is not None else None
        wanted = track.last.get("requested_nodes") if track is not None else None
        return int(each) * int(wanted) if each and wanted else None

    def _watch(self, now: datetime) -> None:
        """Runs that hang or became slow while Slurm thinks that all is well, and what people propose."""
        for incident in self._advisor.open_incidents():
            is_due = _HUNG & set(incident.anomalies) or self._is_slow_again(incident, now)
            if is_due and (running := self._running(incident.attempt, now)) is not None:
                self._ask(running, "external", was_running=True)
        known = self._store.get("meta", "revision") or {"number": 0}
        changed, revision = self._advisor.changed(self._settings.cluster, int(known["number"]))
        self._adopt(changed, now)
        if revision != known["number"]:
            self._store.put("meta", "revision", {"number": revision})

    def _is_slow_again(self, incident: SeenIncident, now: datetime) -> bool:
        """Slowness is weighed anew at each checkpoint once it was asked about; asking again keeps that up."""
        asked_at = self._slow_at.get(incident.id)
        if not _SLOW & set(incident.anomalies) or (asked_at is not None and now - asked_at < SLOW_EVERY):
            return False
        self._slow_at = {name: at for name, at in self._slow_at.items() if now - at < FOLLOWED_FOR} | {incident.id: now}
        return True

    def _see_what_came_of_it(self, now: datetime) -> None:
        """When training went on: the advisor knows, by a step beyond the last; it is asked for an hour."""
        pending = [(key, body) for key, body in self._store.all("outcome") if _is_open_end(body, now)]
        for key, body in pending[:FOLLOW_UPS]:
            try:
                incident = self._advisor.incident(IncidentId(body["incident"]))
            except AdvisorRefused:
                body["times"]["unknown"] = now.isoformat()
                self._store.put("outcome", key, body)
                continue
            if incident.state in {"PROGRESS_RESUMED", "CLOSED_RECOVERED"}:
                body["times"]["resumed"] = incident.changed_at.isoformat()
                self._store.put("outcome", key, body)

    def _adopt(self, changed: Iterable[Advice], now: datetime) -> None:
        for advice in changed:
            if not advice.is_open or self._store.get("pursuit", advice.attempt) is not None:
                continue
            running = self._running(advice.attempt, now)
            if running is not None:
                self._pursue(advice, running, was_running=True)

    def _running(self, attempt: AttemptId, now: datetime) -> EndedBadly | None:
        track = self.following.by_attempt(attempt)
        if track is None or track.last.get("state") != AttemptState.RUNNING:
            return None
        started = track.last.get("started_at")
        return EndedBadly(
            attempt=attempt, job_id=track.job_id, restart_count=track.restart_count, ended_at=now,
            started_at=datetime.fromisoformat(started) if started else None, mode=Mode(track.mode),
        )  # fmt: skip

    # -------------------------------------------------------------- recovering

    def _recover(self) -> tuple[int, str]:
        """Every recovery in turn, the longest held first, within the time of a round."""
        begun, why = self._clock.now(), ""
        pursuits = [pursuit_from(body) for _, body in self._store.all("pursuit")]
        pursuits.sort(key=lambda one: (not one.held_at, one.held_at, one.ended_at))
        for pursuit in pursuits:
            try:
                self._recovery.advance(pursuit)
            except (Blind, SchedulerUnreachable, AdvisorUnreachable, AdvisorRefused) as stopped:
                why = why or f"job {pursuit.job_id}: {stopped}"
            if (self._clock.now() - begun).total_seconds() > self._settings.round_budget_s:
                break
        return len(pursuits), why


def _is_open_end(outcome: Mapping[str, Any], now: datetime) -> bool:
    times = outcome.get("times", {})
    is_done = "resumed" in times or "unknown" in times or "executed" not in times
    if is_done or not outcome.get("incident") or outcome.get("action") == Action.STOP:
        return False
    return now - datetime.fromisoformat(times["executed"]) < FOLLOWED_FOR
