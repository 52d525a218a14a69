# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm's JSON answers, of the command line and of slurmrestd, in the shapes that the versions print."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controllers.slurm.gres import gpus_per_node
from controllers.slurm.log_patterns import LogOwner, log_path
from controllers.slurm.native_states import attempt_state, node_fate
from controllers.slurm.node_names import expanded
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import JobRecord, SchedulerNode
from relight.types import NodeName

MAX_BYTES = 256 * 1024 * 1024


def decoded(text: str | bytes) -> Mapping[str, Any]:
    """The answer as a mapping, with Slurm's own errors raised. Errors: Garbled."""
    if len(text) > MAX_BYTES:
        raise Garbled(f"an answer of {len(text)} bytes, the limit is {MAX_BYTES}")
    try:
        said = json.loads(text)
    except (ValueError, RecursionError) as why:
        raise Garbled(f"no JSON: {why}") from why
    if not isinstance(said, dict):
        raise Garbled(f"no JSON object but {type(said).__name__}")
    errors = said.get("errors") or []
    if errors:  # HTTP 200 and exit code 0 go well with a list of errors
        raise Garbled(f"Slurm reports errors: {str(errors)[:200]}")
    return said


def json_jobs(said: Mapping[str, Any]) -> tuple[JobRecord, ...]:
    """All jobs of an answer. Errors: Garbled."""
    found = said.get("jobs")
    if not isinstance(found, list):
        raise Garbled("no list of jobs")
    return tuple(json_job(one) for one in found)


def json_job(said: Any) -> JobRecord:
    """One job. Errors: Garbled."""
    if not isinstance(said, dict) or number(said.get("job_id")) is None:
        raise Garbled(f"no job record: {str(said)[:120]}")
    try:
        return _job(said)
    except (ValueError, TypeError, AttributeError, OverflowError) as why:
        raise Garbled(f"job {said.get('job_id')}: {why}") from why


def _job(said: Mapping[str, Any]) -> JobRecord:
    words = states(said.get("job_state"))
    code, signal = exit_of(said.get("exit_code"))
    array_job, task = number(said.get("array_job_id")), number(said.get("array_task_id"))
    leader = number(said.get("het_job_id"))
    hosts = expanded(str(said.get("nodes") or ""))
    owner = LogOwner(
        job_id=str(number(said["job_id"])), name=str(said.get("name") or ""), user=str(said.get("user_name") or ""),
        node=hosts[0] if hosts else "", work_dir=str(said.get("current_working_directory") or ""),
        array_job=str(array_job) if array_job else None, array_task=task if array_job else None,
    )  # fmt: skip
    # Since 25.05 the patterns come filled in as well, those among them that only Slurm can fill in.
    output = said.get("stdout_expanded") or said.get("standard_output") or _default_output(owner)
    errors = said.get("stderr_expanded") or said.get("standard_error") or ""
    paths = (log_path(str(text), owner) for text in (output, errors))
    minutes = number(said.get("time_limit"))
    reason = str(said.get("state_description") or said.get("state_reason") or "")
    return JobRecord(
        job_id=owner.job_id,
        state=attempt_state(words),
        native_state=",".join(words),
        reason="" if reason == "None" else reason.replace(" ", "_"),
        restart_count=number(said.get("restart_cnt")) or 0,
        name=owner.name,
        user=owner.user,
        uid=str(number(said.get("user_id")) if number(said.get("user_id")) is not None else ""),
        account=str(said.get("account") or ""),
        partition=str(said.get("partition") or ""),
        submit_at=moment(said.get("submit_time")),
        start_at=moment(said.get("start_time")),
        end_at=moment(said.get("end_time")),
        eligible_at=moment(said.get("eligible_time")),
        nodes=hosts,
        requested_nodes=number(said.get("node_count")),
        gpus_per_node=gpus_per_node(
            str(said.get("tres_per_node") or ""),
            f"{said.get('tres_alloc_str') or ''} {said.get('tres_req_str') or ''}",
            number(said.get("node_count")),
        ),
        tasks_per_node=number(said.get("tasks_per_node")) or None,
        exc_nodes=_hosts(said.get("excluded_nodes")),
        failed_nodes=_hosts(said.get("failed_node")),
        priority=0 if said.get("hold") is True else number(said.get("priority")),
        is_batch=bool(said.get("batch_flag", True)),
        requeueable=bool(said.get("requeue", True)),
        exit_code=code,
        signal=signal,
        time_limit_s=minutes * 60.0 if minutes else None,
        comment=_comment(said.get("comment"), "job"),
        admin_comment=_comment(said.get("admin_comment"), "administrator"),
        extra=str(said.get("extra") or ""),
        log_paths=tuple(dict.fromkeys(path for path in paths if path is not None)),
        work_dir=owner.work_dir,
        array_job=owner.array_job,
        array_task=owner.array_task,
        is_array_rest=bool(said.get("array_task_string")) and task is None,
        het_leader=str(leader) if leader else None,
        het_offset=number(said.get("het_job_offset")) if leader else None,
        sluid=_sluid(said),
    )


def _default_output(owner: LogOwner) -> str:
    return f"slurm-{'%A_%a' if owner.array_task is not None else '%j'}.out"


def json_nodes(said: Mapping[str, Any]) -> tuple[SchedulerNode, ...]:
    """All nodes of an answer: a string with suffix and flags, or a list of words. Errors: Garbled."""
    found = said.get("nodes")
    if not isinstance(found, list) or not found:
        raise Garbled("no list of nodes")
    records: list[SchedulerNode] = []
    for one in found:
        if not isinstance(one, dict) or not one.get("name"):
            raise Garbled(f"no node record: {str(one)[:120]}")
        words = [*states(one.get("state")), *states(one.get("state_flags"))]
        is_usable, is_lost = node_fate(words)
        partitions = tuple(str(name) for name in one.get("partitions") or ())
        records.append(
            SchedulerNode(
                name=NodeName(str(one["name"])), is_usable=is_usable, is_lost=is_lost, partitions=partitions,
                native_state=",".join(words), reason=str(one.get("reason") or ""),
            )
        )  # fmt: skip
    return tuple(records)


# ------------------------------------------------------------------ single values


def number(said: Any) -> int | None:
    """An integer in any wrapping; None where it is unset or infinite."""
    if isinstance(said, dict):
        return number(said.get("number")) if said.get("set") and not said.get("infinite") else None
    if isinstance(said, bool) or said is None:
        return None
    if isinstance(said, int | float):
        return int(said)
    text = str(said).strip()
    return int(text) if text.lstrip("-").isdigit() else None


def states(said: Any) -> list[str]:
    """The words of a state: a string until 23.02, a list of strings since."""
    if isinstance(said, str):
        return [said] if said else []
    return [str(word) for word in said] if isinstance(said, list) else []


def moment(said: Any) -> datetime | None:
    """Seconds since 1970; 0 stands for unset."""
    seconds = number(said)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def exit_of(said: Any) -> tuple[int | None, int | None]:
    """(exit code, signal), from a raw wait status or from an object."""
    if isinstance(said, dict) and "return_code" in said:
        signal = (said.get("signal") or {}).get("id", (said.get("signal") or {}).get("signal_id"))
        return number(said["return_code"]), number(signal) or None
    raw = number(said)
    return (None, None) if raw is None else (raw >> 8 & 0xFF, raw & 0x7F or None)


def _hosts(said: Any) -> tuple[NodeName, ...]:
    if isinstance(said, list):
        return tuple(name for text in said for name in expanded(str(text)))
    return expanded(str(said or ""))


def _sluid(said: Mapping[str, Any]) -> str | None:
    """The id of this very run: of the job's step id since 26.05."""
    step = said.get("step_id")
    found = said.get("sluid") or (step.get("sluid") if isinstance(step, dict) else None)
    return str(found) if found else None


def _comment(said: Any, owner: str) -> str:
    return str(said.get(owner) or "") if isinstance(said, dict) else str(said or "")
