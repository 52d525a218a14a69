# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm's text answers, read tolerantly: unknown fields are skipped, imitated ones are noticed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, tzinfo

from controllers.slurm.gres import gpus_per_node
from controllers.slurm.log_patterns import LogOwner, log_path
from controllers.slurm.native_states import attempt_state, ended_state, node_fate
from controllers.slurm.node_names import expanded
from relight.jobs import EndedRun, JobRecord, SchedulerClocks, SchedulerNode
from relight.types import NodeName

# Fields that the user writes freely: what looks like a field within them is not one.
_FREE = ("JobName", "Comment", "AdminComment", "SystemComment", "Extra", "Command", "WorkDir", "StdErr", "StdIn",
         "StdOut", "Features", "Licenses", "Network", "Container", "WCKey", "Reservation", "Dependency")  # fmt: skip
_OURS = (
    "JobId", "ArrayJobId", "ArrayTaskId", "HetJobId", "HetJobOffset", "SLUID", "UserId", "Account", "QOS",
    "Priority", "JobState", "Reason", "FailedNode", "Requeue", "Restarts", "BatchFlag", "ExitCode", "TimeLimit",
    "SubmitTime", "EligibleTime", "StartTime", "EndTime", "Partition", "ExcNodeList", "NodeList", "NumNodes",
    "TRES", "AllocTRES", "ReqTRES", "TresPerNode", "NtasksPerN:B:S:C",
)  # fmt: skip
_OTHERS = (
    "ArrayTaskThrottle", "HetJobIdSet", "GroupId", "MCS_label", "Nice", "Reboot", "DerivedExitCode", "RunTime",
    "TimeMin", "AccrueTime", "ResizeTime", "Deadline", "PreemptEligibleTime", "PreemptTime", "SuspendTime",
    "SecsPreSuspend", "LastSchedEval", "Scheduler", "AllocNode:Sid", "ReqNodeList", "SchedNodeList", "BatchHost",
    "NumCPUs", "NumTasks", "CPUs/Task", "ReqB:S:C:T", "Socks/Node", "CoreSpec", "JOB_GRES",
    "MinCPUsNode", "MinMemoryNode", "MinMemoryCPU", "MinTmpDiskNode", "DelayBoot", "OverSubscribe", "Contiguous",
    "Power", "TresPerJob", "TresPerTask", "TresPerSocket", "TresBind", "TresFreq", "MailUser", "MailType",
    "Switches", "CpusPerTres", "MemPerTres", "KillOInInvalidDependent", "StepMgrEnabled", "Segment", "SegmentSize",
)  # fmt: skip
_FIELD = re.compile(r"(?<!\S)(" + "|".join(map(re.escape, (*_FREE, *_OURS, *_OTHERS))) + r")=")
_USER = re.compile(r"(.*)\((\d+)\)")
_NO_TIME = frozenset({"", "Unknown", "None", "N/A", "(null)", "NONE"})
NO_JOBS = "No jobs in the system"


class Garbled(ValueError):
    """An answer that is not what Slurm prints."""


def jobs(text: str, zone: tzinfo = UTC) -> tuple[JobRecord, ...]:
    """The records of `scontrol --oneliner show job`.

    Errors: Garbled for an empty answer, since a cluster without jobs says so, and for lines that are no
    records.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise Garbled("an empty answer, which Slurm never gives")
    return tuple(job(line, zone) for line in lines if line.strip() != NO_JOBS)


def job(line: str, zone: tzinfo = UTC) -> JobRecord:
    """One record. Errors: Garbled."""
    said, is_ambiguous = _fields(line)
    if not said.get("JobId", "").isdigit() or "JobState" not in said:
        raise Garbled(f"no job record: {line[:120]!r}")
    try:
        return _job(said, zone, is_ambiguous)
    except ValueError as why:
        raise Garbled(f"job {said['JobId']}: {why}") from why


def _job(said: Mapping[str, str], zone: tzinfo, is_ambiguous: bool) -> JobRecord:
    user = _USER.fullmatch(said.get("UserId", ""))
    code, signal = _exit(said.get("ExitCode", ""))
    task, job_id = said.get("ArrayTaskId", ""), said["JobId"]
    nodes = expanded(said.get("NodeList", ""))
    requested = _leading(said.get("NumNodes", ""))
    owner = LogOwner(
        job_id=job_id, name=said.get("JobName", ""), user=user[1] if user else "", node=nodes[0] if nodes else "",
        work_dir=said.get("WorkDir", ""), array_job=said.get("ArrayJobId"),
        array_task=int(task) if task.isdigit() else None,
    )  # fmt: skip
    paths = (log_path(said.get(name, ""), owner) for name in ("StdOut", "StdErr"))
    return JobRecord(
        job_id=job_id,
        state=attempt_state([said["JobState"]]),
        native_state=said["JobState"],
        reason=_reason(said.get("Reason", "")),
        restart_count=_leading(said.get("Restarts", "")) or 0,
        name=owner.name,
        user=owner.user,
        uid=user[2] if user else "",
        account=_text(said.get("Account", "")),
        partition=_text(said.get("Partition", "")),
        submit_at=_time(said.get("SubmitTime", ""), zone),
        start_at=_time(said.get("StartTime", ""), zone),
        end_at=_time(said.get("EndTime", ""), zone),
        eligible_at=_time(said.get("EligibleTime", ""), zone),
        nodes=nodes,
        requested_nodes=requested,
        gpus_per_node=gpus_per_node(said.get("TresPerNode", ""), _tres(said), requested),
        tasks_per_node=_leading(said.get("NtasksPerN:B:S:C", "")) or None,
        exc_nodes=expanded(said.get("ExcNodeList", "")),
        failed_nodes=expanded(said.get("FailedNode", "")),
        priority=_leading(said.get("Priority", "")),
        is_batch=said.get("BatchFlag", "0") not in {"0", ""},
        requeueable=said.get("Requeue", "0") not in {"0", ""},
        exit_code=code,
        signal=signal,
        time_limit_s=_duration(said.get("TimeLimit", "")),
        comment=_text(said.get("Comment", "")),
        admin_comment=_text(said.get("AdminComment", "")),
        extra=_text(said.get("Extra", "")),
        log_paths=tuple(dict.fromkeys(path for path in paths if path is not None)),
        work_dir=owner.work_dir,
        array_job=owner.array_job,
        array_task=owner.array_task,
        is_array_rest="ArrayTaskId" in said and not task.isdigit(),
        het_leader=said.get("HetJobId"),
        het_offset=_leading(said.get("HetJobOffset", "")),
        sluid=said.get("SLUID"),
        is_ambiguous=is_ambiguous,
    )


def _fields(line: str) -> tuple[dict[str, str], bool]:
    """The fields of a record, and whether one that we rely on is there twice."""
    said: dict[str, str] = {}
    is_ambiguous = False
    found = list(_FIELD.finditer(line))
    ends = [*(after.start() for after in found[1:]), len(line)]
    for here, end in zip(found, ends, strict=False):
        name = here[1]
        is_ambiguous = is_ambiguous or name in said
        said.setdefault(name, line[here.end() : end].strip())
    return said, is_ambiguous


# ------------------------------------------------------------------ nodes, accounting, configuration

NODE_FORMAT = "%N|%P|%T|%E"
HISTORY_FIELDS = ("JobIDRaw", "State", "ExitCode", "NodeList", "Submit", "End")


def nodes(text: str) -> tuple[SchedulerNode, ...]:
    """The nodes of `sinfo -h -N -o '%N|%P|%T|%E'`, which has a line for each partition of a node."""
    found: dict[NodeName, SchedulerNode] = {}
    for line in text.splitlines():
        parts = line.split("|", 3)
        if len(parts) != 4:
            raise Garbled(f"no node record: {line[:120]!r}")
        name, partition, state, why = (part.strip() for part in parts)
        is_usable, is_lost = node_fate([state])
        before = found.get(NodeName(name))
        found[NodeName(name)] = SchedulerNode(
            name=NodeName(name),
            is_usable=is_usable,
            is_lost=is_lost,
            partitions=(*(before.partitions if before else ()), partition.rstrip("*")),
            native_state=state,
            reason="" if why.lower() == "none" else why,
        )
    if not found:
        raise Garbled("an empty answer, which Slurm never gives")
    return tuple(found.values())


def history(text: str, job_id: str, zone: tzinfo = UTC) -> tuple[EndedRun, ...]:
    """The runs of `sacct --duplicates -X -P -n` with `HISTORY_FIELDS`, oldest first."""
    runs: list[EndedRun] = []
    for line in text.splitlines():
        parts = line.split("|")
        if len(parts) != len(HISTORY_FIELDS):
            raise Garbled(f"no accounting record: {line[:120]!r}")
        raw, state, exited, hosts, submitted, ended = (part.strip() for part in parts)
        if raw != job_id or state.startswith("RESIZING"):
            continue  # a resize is no run of its own
        code, signal = _exit(exited)
        by = re.fullmatch(r"CANCELLED by (\d+)", state)
        runs.append(
            EndedRun(
                restart_index=len(runs), state=ended_state(state), native_state=state, exit_code=code, signal=signal,
                submit_at=_time(submitted, zone), end_at=_time(ended, zone), nodes=expanded(hosts),
                cancelled_by=by[1] if by else "",
            )
        )  # fmt: skip
    return tuple(runs)


def clocks(text: str, zone: tzinfo = UTC) -> SchedulerClocks:
    """What `scontrol show config` says; requeue_delay is in SchedulerParameters, else 120 s or cred_expire."""
    said = dict(_settings(text))
    expire = re.search(r"cred_expire=(\d+)", said.get("AuthInfo", ""))
    delay = re.search(r"requeue_delay=(\d+)", said.get("SchedulerParameters", ""))
    stated = delay or expire
    at = re.search(r"Configuration data as of (\S+)", text)
    kind = said.get("AccountingStorageType", "")
    return SchedulerClocks(
        requeue_delay_s=None if not said else float(stated[1]) if stated else 120.0,
        min_job_age_s=_maybe_float(_leading(said.get("MinJobAge", ""))),
        requeues_by_default=None if "JobRequeue" not in said else said["JobRequeue"].strip() != "0",
        has_accounting=None if not kind else not kind.strip("() ").endswith(("none", "null")),
        cluster=said.get("ClusterName", ""),
        version=said.get("SLURM_VERSION", ""),
        at=_time(at[1], zone) if at else None,
    )


def _settings(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, sign, value = line.partition("=")
        if sign:
            yield name.strip(), value.strip()


# ------------------------------------------------------------------ single values


def _time(text: str, zone: tzinfo) -> datetime | None:
    if text in _NO_TIME:
        return None
    try:
        read = datetime.fromisoformat(text)
    except ValueError as why:
        raise Garbled(f"{text[:40]!r} is no time") from why
    return (read if read.tzinfo is not None else read.replace(tzinfo=zone)).astimezone(UTC)


def _duration(text: str) -> float | None:
    """`[days-]hours:minutes:seconds`; None for no limit."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _exit(text: str) -> tuple[int | None, int | None]:
    found = re.fullmatch(r"(\d+):(\d+)", text)
    return (int(found[1]), int(found[2]) or None) if found else (None, None)


def _leading(text: str) -> int | None:
    found = re.match(r"-?\d+", text)
    return int(found[0]) if found else None


def _maybe_float(value: int | None) -> float | None:
    return None if value is None else float(value)


def _tres(said: Mapping[str, str]) -> str:
    return " ".join(said.get(name, "") for name in ("AllocTRES", "TRES", "ReqTRES"))


def _reason(text: str) -> str:
    """One spelling of a reason: squeue prints `job requeued in held state`, scontrol joins the words."""
    return "" if text in {"None", "(null)"} else text.replace(" ", "_")


def _text(text: str) -> str:
    return "" if text == "(null)" else text
