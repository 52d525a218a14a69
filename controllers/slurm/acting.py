# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Carries one verb out: intent on record, fresh look, the verb if the look agrees, another look, result on record."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from controllers.slurm.advice import Advisor, AdvisorRefused
from controllers.slurm.following import Following
from controllers.slurm.plan import Do, Verb, is_ours, next_step, own_mark, took_effect
from controllers.slurm.pursuit import Pursuit
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.slips import Slips
from controllers.slurm.store import Store
from relight.hold_mark import with_mark
from relight.jobs import BatchScheduler, JobRecord, RefusalCode, SchedulerRefused
from relight.ports import Clock
from relight.types import AttemptState, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A verb was refused for good: what to report, once nothing of ours holds the job any more."""

    disposition: str
    reason: str


class Blind(RuntimeError):
    """The job can't be read now; nothing may be concluded from that."""


_REFUSED = {
    RefusalCode.NOT_REQUEUEABLE: Gone(disposition="ABANDONED", reason="not_requeueable"),
    RefusalCode.NOT_BATCH: Gone(disposition="ABANDONED", reason="not_requeueable"),
    RefusalCode.NOT_FOUND: Gone(disposition="ABANDONED", reason="expired"),
}
# Somebody, or we before a crash, did it already: the next look decides.
_HARMLESS = frozenset({RefusalCode.ALREADY_PENDING, RefusalCode.NOT_PENDING})


class Acting:
    """The only place that sends verbs.

    Errors: Blind, SchedulerUnreachable, AdvisorUnreachable, StoreUnusable, OSError: go on at the next round.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        scheduler: BatchScheduler,
        advisor: Advisor,
        store: Store,
        slips: Slips,
        following: Following,
        clock: Clock,
    ) -> None:
        self._settings, self._scheduler, self._advisor = settings, scheduler, advisor
        self._store, self._slips, self._following, self._clock = store, slips, following, clock

    def look(self, pursuit: Pursuit) -> JobRecord | None:
        """The job as it is now. Errors: Blind."""
        reading = self._scheduler.show(pursuit.job_id, self._clock.now())
        if reading.is_blind:
            raise Blind(reading.why_blind)
        return reading.job

    def save(self, pursuit: Pursuit) -> None:
        self._store.put("pursuit", pursuit.attempt, pursuit.stored())

    # -------------------------------------------------------------- after a crash

    def resume(self, pursuit: Pursuit, job: JobRecord | None) -> None:
        """A step whose outcome was not recorded is read back, never sent again blindly."""
        if not pursuit.open_step:
            return
        verb, now = Verb(pursuit.open_step), self._clock.now()
        wanted, on_record = pursuit.wanted(now), bool(pursuit.token)
        step = next_step(job, wanted)
        is_done = took_effect(verb, job, wanted, self.target(pursuit, job))
        if not is_done and isinstance(step, Do) and step.verb is verb:
            return  # it is due still, and will be sent under the same key
        # The interruption may have come before the intent arrived; its key makes two of them one.
        detail = {"job_id": pursuit.job_id, "at": now.isoformat()}
        self._milestone(pursuit, verb, "intent", self._key(pursuit, verb), detail, on_record=on_record)
        told = {"seen": "after an interruption"} if is_done else {"why": "overtaken by events"}
        self._finished(pursuit, verb, "done" if is_done else "error", job, told, on_record=on_record)

    # -------------------------------------------------------------- one verb

    def perform(self, pursuit: Pursuit, do: Do, *, on_record: bool) -> Gone | None:
        """Send one verb, if the job still asks for it.

        `on_record` is false for what must not wait for the advisor: the hold while it decides, and the release
        at the deadline. Those milestones are sent later.
        """
        self._intend(pursuit, do, on_record=on_record)
        job = self.look(pursuit)
        wanted = pursuit.wanted(self._clock.now())
        if next_step(job, wanted) != do:
            self._finished(pursuit, do.verb, "error", job, {"why": "overtaken by events"}, on_record=on_record)
            return None
        refusal: SchedulerRefused | None = None
        try:
            self._send(pursuit, do, job)
        except SchedulerRefused as why:
            refusal = why
        after = self.look(pursuit)
        wanted = pursuit.wanted(self._clock.now())
        if took_effect(do.verb, after, wanted, self.target(pursuit, after)):
            self._finished(pursuit, do.verb, "done", after, {}, on_record=on_record)
            return None
        detail = {"why": str(refusal)[:300] if refusal else "accepted, but the job did not change"}
        self._finished(pursuit, do.verb, "error", after, detail, on_record=on_record)
        return self._verdict(pursuit, do, refusal)

    def target(self, pursuit: Pursuit, job: JobRecord | None) -> set[NodeName]:
        """The whole list of exclusions: other people's, ours that still stand, and the wanted ones."""
        if job is None:
            return set()
        track, now = self._following.track(pursuit.job_id), self._clock.now()
        standing = track.exclusions_for(now, job.exc_nodes) if track else set(job.exc_nodes)
        if pursuit.lacks_capacity:
            return standing - set(map(NodeName, pursuit.added))
        return standing | set(map(NodeName, pursuit.exclusions))

    def unmark(self, pursuit: Pursuit, job: JobRecord) -> None:
        """Take away a mark that an end on a side path left behind; a mark says nothing by itself."""
        if own_mark(job, pursuit.wanted(self._clock.now())) is not None and job.state is AttemptState.PENDING:
            self._scheduler.mark(job.job_id, with_mark(self._scheduler.marked_text(job), None))

    def _send(self, pursuit: Pursuit, do: Do, job: JobRecord | None) -> None:
        if job is None:
            return
        match do.verb:
            case Verb.REQUEUE_HOLD:
                self._hold(pursuit, do, job)
            case Verb.SET_EXCLUSIONS:
                self._exclude(pursuit, job)
            case Verb.RELEASE:
                self._release(pursuit, job)
            case Verb.CANCEL:
                self._scheduler.cancel(job.job_id)

    def _hold(self, pursuit: Pursuit, do: Do, job: JobRecord) -> None:
        mark = pursuit.mark(do.state)
        self._slips.put(job.job_id, mark)
        if job.restart_count == pursuit.restart_count:
            self._scheduler.requeue_hold(job.job_id)
        elif not job.is_held:
            self._scheduler.hold(job.job_id)
        held = self.look(pursuit)
        if held is not None and held.is_held and held.restart_count == mark.restart_count:
            self._scheduler.mark(held.job_id, with_mark(self._scheduler.marked_text(held), mark))
            self._slips.drop(job.job_id)

    def _exclude(self, pursuit: Pursuit, job: JobRecord) -> None:
        track, target = self._following.track(pursuit.job_id), self.target(pursuit, job)
        if track is not None:  # remembered first: an entry of ours must never be taken for the user's
            now = self._clock.now()
            ours = {node: until for node, until in track.ours.items() if datetime.fromisoformat(until) > now}
            users = set(job.exc_nodes) - set(ours)
            added = {node: until for node, until in pursuit.expires.items() if node not in users}
            if pursuit.lacks_capacity:
                ours = {node: until for node, until in ours.items() if node not in pursuit.added}
            else:
                pursuit.added = sorted(added)
                self.save(pursuit)
                ours |= added
            self._following.remember(replace(track, ours=ours))
        self._scheduler.set_exclusions(job.job_id, sorted(target))

    def _release(self, pursuit: Pursuit, job: JobRecord) -> None:
        wanted, now = pursuit.wanted(self._clock.now()), self._clock.now()
        if is_ours(job, wanted):
            self._scheduler.release(job.job_id)
        if not pursuit.released_at:
            pursuit.released_at = now.isoformat()
            self.save(pursuit)
        if self._settings.start_at_once:
            self._bring_forward(pursuit, job, now)
        if own_mark(job, wanted) is not None:
            self._scheduler.mark(job.job_id, with_mark(self._scheduler.marked_text(job), None))
        self._slips.drop(job.job_id)

    def _bring_forward(self, pursuit: Pursuit, job: JobRecord, now: datetime) -> None:
        """Slurm lets a requeued job wait for two minutes; the advised back-off counts instead, if it is shorter.

        It runs from the hold on, so that the time of the decision is part of it.
        """
        delay = max(min(float(pursuit.delay_s), self._settings.max_delay_s), self._settings.rest_s)
        begun = datetime.fromisoformat(pursuit.held_at or pursuit.released_at)
        start = begun + timedelta(seconds=delay)
        if job.state is not AttemptState.PENDING or (job.eligible_at is not None and job.eligible_at <= start):
            return
        try:
            self._scheduler.start_after(job.job_id, max(0, math.ceil((start - now).total_seconds())))
        except SchedulerRefused as why:
            if why.code not in _HARMLESS:
                raise

    # -------------------------------------------------------------- records

    def _intend(self, pursuit: Pursuit, do: Do, *, on_record: bool) -> None:
        now = self._clock.now()
        pursuit.open_step = str(do.verb)
        if do.verb is Verb.REQUEUE_HOLD and not pursuit.held_at:
            pursuit.held_at = now.isoformat()
        if do.verb is Verb.CANCEL:
            pursuit.we_cancelled = True
        self.save(pursuit)
        key, detail = self._key(pursuit, do.verb), {"job_id": pursuit.job_id, "at": now.isoformat()}
        self._store.log(now.isoformat(), pursuit.attempt, do.verb, "intent", {"key": key})
        if do.verb is Verb.REQUEUE_HOLD:
            self._store.put("held_run", pursuit.attempt, {"at": now.isoformat()})
        self._milestone(pursuit, do.verb, "intent", key, detail, on_record=on_record)

    def _finished(
        self,
        pursuit: Pursuit,
        verb: Verb,
        phase: str,
        job: JobRecord | None,
        detail: dict[str, str],
        *,
        on_record: bool = True,
    ) -> None:
        now = self._clock.now()
        key = self._key(pursuit, verb)
        told = {**detail, "job_id": pursuit.job_id, "at": now.isoformat(), "job_state": job.native_state if job else ""}
        self._store.log(now.isoformat(), pursuit.attempt, verb, phase, {"key": key, **detail})
        self._milestone(pursuit, verb, phase, key, told, on_record=on_record)
        pursuit.open_step = ""
        if phase == "error" and verb is Verb.REQUEUE_HOLD and (job is None or not is_ours(job, pursuit.wanted(now))):
            pursuit.held_at = ""  # whoever queued it again, it was not we
        if phase == "error":
            pursuit.tries[verb] = pursuit.tries.get(verb, 0) + 1
        if phase == "done":
            pursuit.done[verb] = pursuit.done.get(verb, 0) + 1
            pursuit.times.setdefault(str(verb), now.isoformat())
        self.save(pursuit)

    def _milestone(
        self, pursuit: Pursuit, verb: Verb, phase: str, key: str, detail: dict[str, str], *, on_record: bool
    ) -> None:
        entry: dict[str, Any] = {"step": str(verb), "phase": phase, "key": f"{key}/{phase}", "detail": detail}
        if on_record:
            self._post(pursuit, entry)
        elif entry["key"] not in {one["key"] for one in pursuit.outbox}:
            pursuit.outbox.append(entry)
            self.save(pursuit)

    def witness_release(self, pursuit: Pursuit, job: JobRecord | None) -> None:
        """A hold of ours that we did not end ourselves: the watchdog's doing or a person's goes on record too."""
        now = self._clock.now().isoformat()
        detail = {"why": "ended by the watchdog or by a person", "job_id": pursuit.job_id, "at": now,
                  "job_state": job.native_state if job else ""}  # fmt: skip
        self._milestone(
            pursuit, Verb.RELEASE, "done", f"{pursuit.generation}/release/witnessed", detail, on_record=True
        )

    def flush(self, pursuit: Pursuit) -> None:
        """Milestones that could not be sent when they were due, in their order."""
        while pursuit.outbox:
            self._post(pursuit, pursuit.outbox[0])
            pursuit.outbox.pop(0)
            self.save(pursuit)

    def _post(self, pursuit: Pursuit, entry: Mapping[str, Any]) -> None:
        try:
            self._advisor.milestone(
                pursuit.id, str(entry["step"]), str(entry["phase"]), str(entry["key"]), entry["detail"]
            )  # fmt: skip
        except AdvisorRefused as why:
            if why.code == "not_actionable" and entry["phase"] == "intent":
                raise
            self._store.log(self._clock.now().isoformat(), pursuit.attempt, str(entry["step"]), "unrecorded",
                            {"why": str(why)[:300], "key": entry["key"]})  # fmt: skip

    def _key(self, pursuit: Pursuit, verb: Verb) -> str:
        """The same for one step however often it is told; a step that is taken again, as to undo it, has its own."""
        again = f"+{count}" if (count := pursuit.done.get(verb, 0)) else ""
        return f"{pursuit.generation}/{verb}/{pursuit.tries.get(verb, 0)}{again}"

    def _verdict(self, pursuit: Pursuit, do: Do, refusal: SchedulerRefused | None) -> Gone | None:
        if refusal is not None and refusal.code in _REFUSED:
            return _REFUSED[refusal.code]
        if refusal is not None and refusal.code in _HARMLESS:
            return None
        is_final = refusal is not None and refusal.code in {RefusalCode.DENIED, RefusalCode.INVALID_NODE}
        if is_final or pursuit.tries.get(do.verb, 0) >= self._settings.max_tries:
            return Gone(disposition="FAILED", reason="scheduler_refused")
        return None
