# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Walks the way of a job from the queue to an action, and says where it ends and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from controllers.slurm.advice import Advisor, AdvisorRefused, AdvisorUnreachable
from controllers.slurm.opt_in import OptInRules
from controllers.slurm.tracks import new_track
from relight.jobs import BatchScheduler, JobRecord, SchedulerClocks
from relight.types import AttemptId, ClusterId, Mode

MAX_SKEW_S = 30.0
NEEDED_AGE_S = 240.0


class Verdict(StrEnum):
    FINE = "ok"
    MIND = "mind"
    ENDS = "ends here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One station; `ENDS` means that nothing behind it happens."""

    station: str
    verdict: Verdict
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkup:
    """What a walk needs; without an advisor it stops before it."""

    scheduler: BatchScheduler
    opt_in: OptInRules
    cluster: ClusterId
    advisor: Advisor | None = None

    def walk(self, job_id: str | None, now: datetime) -> Iterator[Finding]:
        """The stations in order, up to the one where the way ends."""
        reading = self.scheduler.survey(now)
        if reading.is_blind:
            yield _ends("scheduler", f"can't be read: {reading.why_blind}")
            return
        usable = sum(node.is_usable for node in reading.nodes)
        yield _fine("scheduler", f"{len(reading.jobs)} jobs, {usable} of {len(reading.nodes)} nodes usable")
        yield from clock_findings(self.scheduler.clocks(), now)
        if job_id is not None:
            yield from self._job(job_id, now)

    def _job(self, job_id: str, now: datetime) -> Iterator[Finding]:
        seen = self.scheduler.show(job_id, now)
        if seen.job is None:
            yield _ends("job", seen.why_blind or f"Slurm knows no job {job_id}: never there, or purged after MinJobAge")
            return
        job = seen.job
        yield _fine("job", f"{job.native_state} {job.reason}, restart {job.restart_count}, on {len(job.nodes)} nodes")
        choice = self.opt_in.choose(job)
        if choice.mode is None:
            yield _ends("opt-in", f"not followed, by {choice.said_by}")
            return
        yield Finding(
            station="opt-in", verdict=Verdict.MIND if choice.mode is Mode.MONITOR else Verdict.FINE,
            says=f"mode {choice.mode}, by {choice.said_by}",
        )  # fmt: skip
        if not (job.requeueable and job.is_batch):
            yield Finding(station="requeue", verdict=Verdict.MIND, says="never requeued: --no-requeue, or no batch job")
        if self.advisor is not None:
            yield from self._advice(self.advisor, job, now)

    def _advice(self, advisor: Advisor, job: JobRecord, now: datetime) -> Iterator[Finding]:
        runs = self.scheduler.history(job.job_id, now) if job.restart_count else ()
        track = new_track(job, self.opt_in.choose(job), runs, now)
        for count in range(job.restart_count, max(-1, job.restart_count - 2), -1):
            yield from _attempt(advisor, track.attempt(self.cluster, count), count)


def _attempt(advisor: Advisor, attempt: AttemptId, count: int) -> Iterator[Finding]:
    station = f"run {count}"
    try:
        seen = advisor.attempt(attempt)
        yield _fine(station, f"attempt {attempt}, {seen['state']}, {seen.get('log_lines', 0)} log lines")
        if not seen.get("log_lines"):
            yield Finding(station=f"{station}: signal", verdict=Verdict.MIND, says="no line of its log has arrived")
        name = seen.get("recommendation_id")
        if not name:
            yield _ends(f"{station}: advice", "none asked for: the run has not failed, or the controller does not run")
            return
        advice = advisor.recommendation(name)
    except AdvisorUnreachable as why:
        yield _ends("advisor", str(why))
        return
    except AdvisorRefused as why:
        yield _ends(station, f"the advisor does not know it: {why.code}")
        return
    yield _fine(f"{station}: advice", f"{advice.action}, because of {advice.failure} ({advice.evidence_status})")
    if advice.blocked_by:
        yield _ends(f"{station}: gates", f"blocked by {', '.join(advice.blocked_by)}")
    else:
        yield _fine(f"{station}: action", f"{advice.state} {advice.reconciled}".strip())


def clock_findings(clocks: SchedulerClocks, now: datetime) -> Iterator[Finding]:
    """What Slurm's own times and settings mean for recovery."""
    if clocks.requeue_delay_s is not None:
        says = f"a requeued job waits {clocks.requeue_delay_s:.0f} s, unless its begin time is brought forward"
        yield Finding(station="requeue delay", verdict=Verdict.MIND, says=says)
    if clocks.min_job_age_s is not None:
        is_enough = clocks.min_job_age_s >= NEEDED_AGE_S
        says = f"MinJobAge {clocks.min_job_age_s:.0f} s" + ("" if is_enough else f", shorter than {NEEDED_AGE_S:.0f} s")
        yield Finding(station="purge", verdict=Verdict.FINE if is_enough else Verdict.MIND, says=says)
    if clocks.requeues_by_default is False:
        yield Finding(station="JobRequeue", verdict=Verdict.MIND, says="0: only jobs with --requeue can be restarted")
    if clocks.has_accounting is False:
        says = "none: first submit times and the ends of requeued runs are known only if they were seen"
        yield Finding(station="accounting", verdict=Verdict.MIND, says=says)
    if clocks.at is not None:
        skew = abs((now - clocks.at).total_seconds())
        is_near = skew <= MAX_SKEW_S
        says = f"{skew:.0f} s apart" + ("" if is_near else "; set both by NTP, and check --zone with --ssh")
        yield Finding(station="clock", verdict=Verdict.FINE if is_near else Verdict.MIND, says=says)


def _fine(station: str, says: str) -> Finding:
    return Finding(station=station, verdict=Verdict.FINE, says=says)


def _ends(station: str, says: str) -> Finding:
    return Finding(station=station, verdict=Verdict.ENDS, says=says)
