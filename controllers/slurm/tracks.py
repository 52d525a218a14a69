# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What is remembered of each followed job, so that a run keeps its name and its end when the queue forgets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from controllers.slurm.identity import attempt_id, workload_id
from controllers.slurm.opt_in import Choice
from relight.jobs import EndedRun, JobRecord
from relight.types import AttemptId, AttemptState, ClusterId, Mode, NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One job over all its requeues; times as ISO text, since this is stored as it is.

    `was_alive`: it was seen before it had ended, so that its end is news. `last` is the newest attempt body
    sent; `submits` are the submit times seen, which tell a state that was rolled back from a job id that is
    used anew. `ours` are nodes that we excluded, with their expiry.
    """

    job_id: str
    workload: str
    first_submit: str
    owner: str
    restart_count: int
    submits: tuple[str, ...]
    mode: str
    index_base: int = 0
    ours: Mapping[str, str] = field(default_factory=dict)
    last: Mapping[str, Any] = field(default_factory=dict)
    applied: bool = False
    asked: bool = False
    was_alive: bool = False
    is_gone: bool = False
    seen_at: str = ""

    def attempt(self, cluster: ClusterId, restart_count: int | None = None) -> AttemptId:
        count = self.restart_count if restart_count is None else restart_count
        return attempt_id(cluster, self.job_id, datetime.fromisoformat(self.first_submit), count)

    def exclusions_for(self, now: datetime, current: Collection[NodeName]) -> set[NodeName]:
        """The job's list without those of ours whose time is over; everybody else's entries stay."""
        over = {node for node, until in self.ours.items() if datetime.fromisoformat(until) <= now}
        return {node for node in current if node not in over}

    def users_own(self, current: Collection[NodeName]) -> tuple[NodeName, ...]:
        return tuple(sorted(node for node in current if node not in self.ours))

    def stored(self) -> dict[str, Any]:
        return asdict(self)


def track_from(body: Mapping[str, Any]) -> Track:
    known = {name: body[name] for name in Track.__dataclass_fields__ if name in body}
    return Track(**{**known, "submits": tuple(known.get("submits", ()))})


def new_track(job: JobRecord, choice: Choice, runs: tuple[EndedRun, ...] | None, now: datetime) -> Track:
    """A job seen for the first time; accounting knows when it was first submitted."""
    submits = [run.submit_at for run in runs or () if run.submit_at is not None]
    first = min([*submits, *([job.submit_at] if job.submit_at else [])], default=now)
    return Track(
        job_id=job.job_id, workload=workload_id(job, first, choice.workload), first_submit=first.isoformat(),
        owner=_owner(job), restart_count=job.restart_count, submits=_submits((), job),
        mode=str(choice.mode or Mode.MONITOR), seen_at=now.isoformat(), was_alive=not is_over(job),
    )  # fmt: skip


def is_over(job: JobRecord) -> bool:
    return job.state is not None and job.state.is_terminal


def is_same_job(track: Track, job: JobRecord) -> bool:
    """Not another job with a recycled id: counts only rise, except where a fail-over rolled them back."""
    if track.owner != _owner(job):
        return False
    submit = job.submit_at.isoformat() if job.submit_at else ""
    if job.restart_count == 0:
        return not submit or submit in track.submits
    return job.restart_count >= track.restart_count or submit in track.submits


def advanced(track: Track, job: JobRecord, choice: Choice, now: datetime) -> Track:
    return replace(
        track, restart_count=job.restart_count, submits=_submits(track.submits, job), is_gone=False,
        mode=str(choice.mode or Mode.MONITOR), seen_at=now.isoformat(),
    )  # fmt: skip


def _owner(job: JobRecord) -> str:
    return f"{job.uid or job.user}/{job.name}"


def _submits(known: tuple[str, ...], job: JobRecord) -> tuple[str, ...]:
    if job.submit_at is None:
        return known
    return tuple(dict.fromkeys([*known, job.submit_at.isoformat()]))[-32:]


# ------------------------------------------------------------------ attempt bodies


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """How many nodes there are for a job: in the cluster, its partition, and usable ones of that."""

    cluster: int
    partition: int
    eligible: int
    lost: frozenset[NodeName]


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a look tells beside the job itself; `rank_nodes` None means that nothing new is known of its ranks."""

    capacity: Capacity
    rank_nodes: tuple[NodeName, ...] | None = None


def attempt_body(
    job: JobRecord, track: Track, choice: Choice, cluster: ClusterId, around: Surroundings, at: datetime
) -> dict[str, Any]:
    """What `PUT /v1/attempts/{id}` is sent of a job as it is now."""
    state, capacity = job.state or AttemptState.LOST, around.capacity
    nodes = list(job.nodes) or list(track.last.get("allocated_nodes", ()) if _is_same_run(track, job) else ())
    failed = [*job.failed_nodes]
    if state in {AttemptState.NODE_FAILED, AttemptState.ENDING, AttemptState.FAILED}:
        failed += [node for node in nodes if node in capacity.lost and node not in failed]
    before = track.last.get("failed_nodes", ()) if _is_same_run(track, job) else ()
    failed += [node for node in before if node not in failed]  # they vanish from the record at a requeue
    return {
        **_standing(job, track, choice, cluster, capacity),
        "allocated_nodes": nodes,
        "rank_to_node": _rank_to_node(job, track, around.rank_nodes),
        "state": str(state),
        "reason": _reason(job),
        "exit_code": job.exit_code if state.is_terminal else None,
        "signal": job.signal if state.is_terminal else None,
        "actor": f"uid:{job.cancelled_by}" if job.cancelled_by else "",
        "failed_nodes": failed,
        "started_at": job.start_at.isoformat() if job.start_at and state is not AttemptState.PENDING else None,
        "observed_at": at.isoformat(),
    }


def _rank_to_node(job: JobRecord, track: Track, rank_nodes: tuple[NodeName, ...] | None) -> dict[str, str] | None:
    """The ranks' nodes as newly told, else as they were in this run: a step that has ended is told no more."""
    if rank_nodes is None:
        known: dict[str, str] | None = track.last.get("rank_to_node") if _is_same_run(track, job) else None
        return known
    return {str(rank): node for rank, node in enumerate(rank_nodes)} or None


def ended_body(track: Track, run: EndedRun | None, lost: Collection[NodeName], at: datetime) -> dict[str, Any]:
    """How a run ended that the queue has replaced by the next one."""
    last = dict(track.last)
    if last.get("state") in {str(state) for state in AttemptState if state.is_terminal}:
        return {**last, "observed_at": at.isoformat()}
    known = list(last.get("failed_nodes", ()))
    failed = known + [node for node in last.get("allocated_nodes", ()) if node in lost and node not in known]
    state = run.state if run is not None else None
    if state is None:
        state = AttemptState.NODE_FAILED if failed else AttemptState.LOST
    reason = run.native_state if run is not None else "nobody saw it end, and there is no accounting"
    return {
        **last,
        "state": str(state),
        "reason": "NodeDown" if state is AttemptState.NODE_FAILED else reason,
        "failed_nodes": failed,
        "exit_code": run.exit_code if run else None,
        "signal": run.signal if run else None,
        "actor": f"uid:{run.cancelled_by}" if run and run.cancelled_by else "",
        "observed_at": at.isoformat(),
    }


def _standing(job: JobRecord, track: Track, choice: Choice, cluster: ClusterId, capacity: Capacity) -> dict[str, Any]:
    scheduler: dict[str, Any] = {"kind": "slurm", "job_id": job.array_job or job.het_leader or job.job_id}
    named = {
        "restart_count": job.restart_count,
        "array_task": job.array_task,
        "het_offset": job.het_offset,
        "sluid": job.sluid,
        "uid": job.uid or None,
    }
    scheduler.update({name: value for name, value in named.items() if value is not None})
    hang = {name: value for name, value in choice.hang.as_json().items() if value is not None}
    opt_in = {"mode": str(choice.mode) if choice.mode else None, "max_restarts": choice.max_restarts,
              "max_no_progress": choice.max_no_progress, **({"hang": hang} if hang else {})}  # fmt: skip
    is_leader = (job.het_offset or 0) == 0
    return {
        "cluster_id": str(cluster),
        "workload_id": track.workload,
        "scheduler": scheduler,
        "attempt_index": track.index_base + job.restart_count,
        "name": job.name[:256],
        "user": job.user[:256],
        "account": job.account[:256],
        "partition": job.partition or None,
        "requested_nodes": job.requested_nodes,
        "gpus_per_node": job.gpus_per_node,
        "user_exclusions": list(track.users_own(job.exc_nodes)),
        "requeueable": job.requeueable and job.is_batch and is_leader,
        "time_limit_s": job.time_limit_s,
        "log_paths": [path[:4096] for path in job.log_paths],
        "opt_in": opt_in,
        "cluster_nodes": capacity.cluster,
        "partition_nodes": capacity.partition,
        "eligible_nodes": capacity.eligible,
    }


def _reason(job: JobRecord) -> str:
    said = job.reason
    if job.native_state in {"OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE", "SUSPENDED", "SPECIAL_EXIT"}:
        said = f"{job.native_state} {said}".strip()
    return said[:256]


def _is_same_run(track: Track, job: JobRecord) -> bool:
    index: object = track.last.get("attempt_index")
    return index == track.index_base + job.restart_count
