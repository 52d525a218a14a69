# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Publishes what jobs do as attempts, and notices the runs that ended in failure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from controllers.slurm.advice import Advisor, AdvisorRefused
from controllers.slurm.opt_in import Choice
from controllers.slurm.rank_places import RankPlaces
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.store import Store
from controllers.slurm.tracks import (
    Capacity,
    Surroundings,
    Track,
    advanced,
    attempt_body,
    ended_body,
    is_same_job,
    new_track,
    track_from,
)
from relight.jobs import BatchScheduler, ClusterReading, JobRecord, SchedulerNode
from relight.types import AttemptId, AttemptState, Mode, NodeName

_FAILED = frozenset({AttemptState.FAILED, AttemptState.NODE_FAILED, AttemptState.TIMED_OUT})
# What changes from look to look without meaning anything.
_RESTLESS = frozenset({"observed_at", "eligible_nodes", "cluster_nodes", "partition_nodes"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedBadly:
    """A run that failed: advice is due."""

    attempt: AttemptId
    job_id: str
    restart_count: int
    ended_at: datetime
    started_at: datetime | None
    mode: Mode


class Following:
    """From the jobs of a survey to attempts at the advisor.

    Every fact is stored before and marked as sent after, so that a restart sends again what may not have
    arrived. Errors: AdvisorUnreachable, StoreUnusable; calling again goes on where it stopped.
    """

    def __init__(self, settings: ControllerSettings, scheduler: BatchScheduler, advisor: Advisor, store: Store) -> None:
        self._settings = settings
        self._scheduler = scheduler
        self._advisor = advisor
        self._store = store
        self._places = RankPlaces(scheduler)
        self._known: dict[str, Track] = {key: track_from(body) for key, body in store.all("track")}

    def track(self, job_id: str) -> Track | None:
        return self._known.get(job_id)

    def by_attempt(self, attempt: AttemptId) -> Track | None:
        """The job whose present run that is."""
        cluster = self._settings.cluster
        return next((one for one in self._known.values() if one.attempt(cluster) == attempt), None)

    def remember(self, track: Track) -> None:
        self._store.put("track", track.job_id, track.stored())
        self._known[track.job_id] = track

    def follow(self, reading: ClusterReading, born_at: datetime) -> Iterator[EndedBadly]:
        """Publish every followed job of a survey; the runs that failed come out, until they are asked about."""
        nodes = tuple(reading.nodes)
        followed = [(job, choice) for job in reading.jobs if (choice := self._choice(job)) is not None]
        places = self._places.look((job for job, _ in followed), reading.at)
        for job, choice in followed:
            seen = Surroundings(capacity=capacity_for(job, nodes), rank_nodes=places.get(job.job_id))
            yield from self._job(job, choice, seen, reading.at, born_at)
        self._forget(reading)

    def _choice(self, job: JobRecord) -> Choice | None:
        """What is chosen for a job that is followed."""
        choice = self._settings.opt_in.choose(job)
        is_out = choice.mode is None or job.is_array_rest or job.is_ambiguous or job.state is None
        return None if is_out else choice

    def asked(self, attempt: AttemptId, job_id: str) -> None:
        """Advice on this failure is on record."""
        track = self._known.get(job_id)
        if track is not None and track.attempt(self._settings.cluster) == attempt:
            self.remember(replace(track, asked=True))
        self._store.drop("failure", attempt)

    # -------------------------------------------------------------- one job

    def _job(
        self, job: JobRecord, choice: Choice, around: Surroundings, now: datetime, born_at: datetime
    ) -> Iterator[EndedBadly]:
        track = self._known.get(job.job_id)
        if track is None or not is_same_job(track, job):
            track = self._begun(job, choice, now)
        if job.restart_count > track.restart_count:
            self._replaced(track, job, around.capacity, now)
            track = replace(advanced(track, job, choice, now), last={}, applied=False, asked=False)
        elif job.restart_count < track.restart_count:
            track = replace(advanced(track, job, choice, now), last={}, applied=False)
        body = attempt_body(job, track, choice, self._settings.cluster, around, now)
        if _means(body) != _means(track.last) or not track.applied:
            track = replace(advanced(track, job, choice, now), last=body, applied=False)
            self.remember(track)
            self._send(track.attempt(self._settings.cluster), body)
            track = replace(track, applied=True)
            self.remember(track)
        if job.state in _FAILED and not track.asked and (track.was_alive or (job.end_at or now) >= born_at):
            yield EndedBadly(
                attempt=track.attempt(self._settings.cluster), job_id=job.job_id, restart_count=job.restart_count,
                ended_at=job.end_at or now, started_at=job.start_at, mode=choice.mode or Mode.MONITOR,
            )  # fmt: skip

    def _begun(self, job: JobRecord, choice: Choice, now: datetime) -> Track:
        runs = self._scheduler.history(job.job_id, now) if job.restart_count else ()
        track = new_track(job, choice, runs, now)
        if choice.workload:
            track = replace(track, index_base=self._next_index(track.workload))
        return track

    def _next_index(self, workload: str) -> int:
        ends = [one.index_base + one.restart_count + 1 for one in self._known.values() if one.workload == workload]
        return max(ends, default=0)

    def _replaced(self, track: Track, job: JobRecord, capacity: Capacity, now: datetime) -> None:
        """The queue shows the next run already: say how the one before ended, unless that is known."""
        if not track.last:
            return
        attempt = track.attempt(self._settings.cluster)
        runs = self._scheduler.history(job.job_id, now)
        run = runs[track.restart_count] if runs is not None and len(runs) > track.restart_count else None
        if self._store.get("held_run", attempt) is not None:  # we ended it ourselves
            body = {**track.last, "reason": "requeued by relight", "observed_at": now.isoformat()}
            if body.get("state") not in {str(one) for one in _FAILED}:
                body["state"] = str(AttemptState.FAILED)
        else:
            body = ended_body(track, run, capacity.lost, now)
        self._send(attempt, body)
        if AttemptState(body["state"]) in _FAILED and not track.asked:
            started = track.last.get("started_at")
            failure = EndedBadly(
                attempt=attempt, job_id=job.job_id, restart_count=track.restart_count,
                ended_at=run.end_at if run and run.end_at else now,
                started_at=datetime.fromisoformat(started) if started else None, mode=Mode(track.mode),
            )  # fmt: skip
            self._store.put("failure", attempt, _stored(failure))

    def unasked(self) -> Iterator[EndedBadly]:
        """Failures of runs that the queue has replaced, until they are asked about."""
        for attempt, body in self._store.all("failure"):
            yield EndedBadly(
                attempt=AttemptId(attempt), job_id=body["job_id"], restart_count=body["restart_count"],
                ended_at=datetime.fromisoformat(body["ended_at"]), mode=Mode(body["mode"]),
                started_at=datetime.fromisoformat(body["started_at"]) if body["started_at"] else None,
            )  # fmt: skip

    def _send(self, attempt: AttemptId, body: Mapping[str, Any]) -> None:
        said = {name: value for name, value in body.items() if value is not None}
        try:
            self._advisor.put_attempt(attempt, said)
        except AdvisorRefused as why:
            self._store.log(str(body["observed_at"]), attempt, "attempt", "refused", {"why": str(why)[:300]})

    def _forget(self, reading: ClusterReading) -> None:
        """Runs whose end nobody saw are lost, not failed; jobs that the queue dropped long ago are forgotten."""
        here = {job.job_id for job in reading.jobs}
        keep = timedelta(seconds=self._settings.forget_after_s)
        lost = frozenset(node.name for node in reading.nodes if node.is_lost)
        for job_id, track in list(self._known.items()):
            if job_id in here:
                continue
            if not track.is_gone and track.last and self._scheduler.show(job_id, reading.at).is_absent:
                runs = self._scheduler.history(job_id, reading.at)
                run = runs[track.restart_count] if runs and len(runs) > track.restart_count else None
                body = ended_body(track, run, lost if run else (), reading.at)
                self._send(track.attempt(self._settings.cluster), body)
                self.remember(replace(track, last=body, applied=True, is_gone=True))
            elif track.seen_at and reading.at - datetime.fromisoformat(track.seen_at) > keep:
                del self._known[job_id]
                self._store.drop("track", job_id)


def capacity_for(job: JobRecord, nodes: tuple[SchedulerNode, ...]) -> Capacity:
    """What the job's partition holds, whoever uses it now."""
    own = [node for node in nodes if job.partition in node.partitions] or list(nodes)
    return Capacity(
        cluster=len(nodes),
        partition=len(own),
        eligible=sum(node.is_usable for node in own),
        lost=frozenset(NodeName(node.name) for node in nodes if node.is_lost),
    )


def _means(body: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in _RESTLESS}


def _stored(failure: EndedBadly) -> dict[str, Any]:
    return {
        "job_id": failure.job_id,
        "restart_count": failure.restart_count,
        "ended_at": failure.ended_at.isoformat(),
        "started_at": failure.started_at.isoformat() if failure.started_at else None,
        "mode": str(failure.mode),
    }
