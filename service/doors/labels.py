# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whose line it is: what labels, file names and the journal say of job, node, rank and stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from detectors.log_names import NamedLog, read_name
from relight.types import Stream
from service.doors.records import Record

ATTEMPT = ("training_attempt", "relight_attempt_id", "attempt_id", "training_attempt_id")
JOB = ("slurm_job_id", "slurm_jobid", "job_id", "jobid", "slurm_job", "k8s_job_uid", "k8s_job_name",
       "k8s_jobset_name", "k8s_jobset_uid", "job_name")  # fmt: skip
RESTART = ("slurm_job_restart_count", "slurm_restart_count", "restart_count", "k8s_jobset_restart_attempt")
RANK = ("training_rank", "rank", "global_rank", "slurm_procid", "slurm_proc_id")
NODE = ("slurm_node_name", "slurmd_nodename", "k8s_node_name", "node_name", "nodename", "node", "host_name",
        "hostname", "host", "kubernetes_node", "_hostname")  # fmt: skip
CLUSTER = ("slurm_cluster_name", "k8s_cluster_name", "relight_cluster")
FILE = ("log_file_path", "log_file_name", "filename", "file", "filepath", "path", "log_file")
STREAM = ("relight_stream", "log_source", "stream")
_SPEAKER = ("transport", "_transport", "syslog_identifier", "_syslog_identifier", "appname", "ident", "facility")
_STREAMS = {one.value: one for one in Stream}
_KERNEL_WORDS = frozenset({"kernel", "kern", "kmsg"})


@dataclass(frozen=True, slots=True)
class Whose:
    """What is known of a line's origin; None where nothing says so."""

    attempt: str | None
    job: str | None
    restart: int | None
    cluster: str | None
    node: str | None
    rank: int | None
    file: str | None
    stream: Stream

    @property
    def is_of_node(self) -> bool:
        """True for a line of a machine and of no job: its readers are the jobs that hold the machine."""
        return self.attempt is None and self.job is None and self.node is not None and self.stream.is_independent


def whose(record: Record) -> Whose:
    """Read a record's labels. Errors: ValueError for a rank or restart count that is no number."""
    labels = record.labels
    attempt, job = _first(labels, ATTEMPT), _first(labels, JOB)
    path = _first(labels, FILE)
    named = _named(path) if path is not None else None
    rank = _number(labels, RANK)
    return Whose(
        attempt=attempt,
        job=job,
        restart=_number(labels, RESTART),
        cluster=_first(labels, CLUSTER),
        node=_first(labels, NODE) or record.journal.get("_HOSTNAME") or (named.node if named else None),
        rank=rank if rank is not None else (named.rank if named else None),
        file=path or _written_to(labels),
        stream=_stream(record, named, is_of_job=attempt is not None or job is not None),
    )


def _stream(record: Record, named: NamedLog | None, *, is_of_job: bool) -> Stream:
    """Who wrote it: a program that sends for itself, or a file of a job, is never the kernel."""
    labels = record.labels
    if "telemetry_sdk_language" in labels:
        return Stream.APPLICATION
    said = next((labels[key] for key in STREAM if labels.get(key) in _STREAMS), None)
    if said is not None:
        return _STREAMS[said]
    if record.journal.get("_TRANSPORT") == "kernel":
        return Stream.KERNEL
    if is_of_job:
        return Stream.APPLICATION
    if any(labels.get(key, "").lower() in _KERNEL_WORDS for key in _SPEAKER):
        return Stream.KERNEL
    return named.stream if named is not None else Stream.APPLICATION


def _written_to(labels: Mapping[str, str]) -> str | None:
    """Standard output or error, if that is all that is known."""
    said = labels.get("log_iostream") or labels.get("stream")
    return said if said in {"stdout", "stderr"} else None


@lru_cache(maxsize=4_096)
def _named(path: str) -> NamedLog | None:
    return read_name(path.removesuffix(".gz"))


def _first(labels: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    for name in names:
        if found := labels.get(name):
            return found
    return None


def _number(labels: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        said = labels.get(name)
        if not said:
            continue
        if not (said.isascii() and said.isdigit() and len(said) < 10):
            raise ValueError(f"{name}: need a whole number from 0, got {said[:40]!r}")
        return int(said)
    return None
