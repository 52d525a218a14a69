# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""slurmrestd in memory: the fake Slurm behind the requests and answers of one version of its API.

Shapes, by where they are known from: v0.0.38 from answers recorded on Slurm 22.05.8 (strings, raw wait statuses,
`null` for unset, 500 for a job that is not there, 200 with errors for an update that is refused); v0.0.42 from
answers recorded on 24.11.5 (lists of states, `{set, infinite, number}`); v0.0.43 to v0.0.46 by the OpenAPI
description that SchedMD publishes of each (expanded log paths since v0.0.43, `step_id.sluid`, the requeue request
and 422 since v0.0.45).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from relight.jobs import JobRecord, RefusalCode, SchedulerNode, SchedulerRefused, SchedulerUnreachable
from relight.testing.fake_slurm import FakeSlurm
from relight.types import NodeName

NO_SUCH_JOB = 2017
_WORDS = {
    "not_found": "Invalid job id specified",
    "invalid_node": "Invalid node name specified",
    "not_pending": "Job is no longer pending execution",
    "already_pending": "Job is pending execution",
    "not_requeueable": "Requested operation is presently disabled",
    "not_batch": "Only batch jobs are accepted or processed",
}
DISABLED_IN_38 = {"excluded_nodes": "Disabled key", "admin_comment": "Unknown key"}


class FakeSlurmrestd:
    """A `RestWire` that speaks one version of the API; what the version lacks is answered as it answers it."""

    def __init__(self, slurm: FakeSlurm, version: int) -> None:
        self._slurm, self.version = slurm, version
        self.requests: list[tuple[str, str, Any]] = []

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        self.requests.append((method, path, body))
        if path == "/openapi/v3":
            return 200, json.dumps({"paths": {f"/slurm/v0.0.{self.version}/jobs": {}}}).encode()
        what = path.removeprefix(f"/slurm/v0.0.{self.version}/")
        if what == path:
            return 404, b"Unable find requested URL."
        try:
            return self._said(200, **self._do(method, what, body))
        except SchedulerRefused as no:
            return self._no(no)
        except SchedulerUnreachable:
            return self._said(500, errors=[{"error_number": -1, "error": "Unspecified error", "source": "slurmctld"}])

    # -------------------------------------------------------------- requests

    def _do(self, method: str, what: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        now = self._slurm.clock.now()
        if (method, what) == ("GET", "jobs"):
            return {"jobs": [self.job(one) for one in self._slurm.survey(now).jobs]}
        if (method, what) == ("GET", "nodes"):
            return {"nodes": [self._node(one) for one in self._slurm.survey(now).nodes]}
        if (method, what) == ("GET", "ping"):
            return {"pings": [{"hostname": "head", "mode": "primary"}]}
        found = re.fullmatch(r"job/(\d+)(/requeue\?Hold=true)?", what)
        assert found is not None, what
        job_id = found[1]
        if found[2]:
            assert self.version >= 45, "a request that this version does not have"
            self._slurm.requeue_hold(job_id)
            return {"status": [{"job_id": int(job_id), "error_code": 0, "error": "", "why": ""}]}
        if method == "DELETE":
            self._slurm.job(job_id) if job_id in self._ids() else self._absent()
            self._slurm.cancel(job_id)
            return {}
        if method == "POST":
            self._update(job_id, body or {}, now)
            return {"results": None} if self.version >= 40 else {}
        job = self._slurm.show(job_id, now).job
        return {"jobs": [self.job(job)]} if job is not None else self._absent()

    def _update(self, job_id: str, body: Mapping[str, Any], now: datetime) -> None:
        if job_id not in self._ids():
            self._absent()
        for key, value in body.items():
            if self.version < 40 and key in DISABLED_IN_38:
                raise SchedulerRefused(RefusalCode.OTHER, f'{DISABLED_IN_38[key]} "{key}"')
            match key:
                case "hold":
                    self._slurm.hold(job_id) if value else self._slurm.release(job_id)
                case "comment" | "admin_comment":
                    self._slurm.mark(job_id, value)
                case "excluded_nodes" if value != []:  # an empty list changes nothing
                    self._slurm.set_exclusions(job_id, [NodeName(one) for one in (value or ())])
                case "begin_time" if self.version < 40:
                    self._slurm.start_after(job_id, int(str(value).removeprefix("now").lstrip("+") or 0))
                case "begin_time":
                    self._slurm.start_after(job_id, int(value["number"] - now.timestamp()))

    def _ids(self) -> set[str]:
        return {one.job_id for one in self._slurm.jobs()}

    def _absent(self) -> dict[str, Any]:
        raise SchedulerRefused(RefusalCode.NOT_FOUND, "Invalid job id specified")

    # -------------------------------------------------------------- answers

    def _no(self, no: SchedulerRefused) -> tuple[int, bytes]:
        words = _WORDS.get(str(no.code), no.said)
        number = NO_SUCH_JOB if str(no.code) == "not_found" else 1
        error = {"error_number": number, "error": words, "description": "", "source": "slurm_update_job2()"}
        if self.version < 40:
            return self._said(500 if number == NO_SUCH_JOB else 200, errors=[error])
        if self.version >= 45:
            return self._said(422, errors=[error])
        return self._said(404 if number == NO_SUCH_JOB else 500, errors=[error])

    def _said(self, code: int, errors: Any = (), **fields: Any) -> tuple[int, bytes]:
        release = {"release": "fake", "cluster": "fake"}
        meta = {"Slurm": release} if self.version < 40 else {"slurm": release}
        return code, json.dumps({"meta": meta, "errors": list(errors), "warnings": [], **fields}).encode()

    def _number(self, value: int | None) -> Any:
        if self.version < 40:
            return value
        return {"set": value is not None, "infinite": False, "number": value or 0}

    def _moment(self, value: datetime | None) -> Any:
        seconds = int(value.timestamp()) if value is not None else 0
        return seconds if self.version < 40 else self._number(seconds)

    def _exit(self, job: JobRecord) -> Any:
        if self.version < 40:
            return (job.exit_code or 0) << 8 | (job.signal or 0)
        name = {None: "", 15: "SIGTERM"}.get(job.signal, "?")
        return {
            "status": ["SUCCESS" if not job.exit_code else "ERROR"],
            "return_code": self._number(job.exit_code or 0),
            "signal": {"id": self._number(job.signal), "name": name},
        }

    def job(self, job: JobRecord) -> dict[str, Any]:
        is_old = self.version < 40
        told = {
            "job_id": int(job.job_id), "name": job.name, "user_name": job.user, "user_id": 1000,
            "partition": job.partition, "account": "",
            "job_state": job.native_state if is_old else [job.native_state],
            "state_reason": "None", "state_description": job.reason.replace("_", " "),
            "restart_cnt": job.restart_count, "nodes": ",".join(job.nodes),
            "node_count": self._number(job.requested_nodes),
            "excluded_nodes": ",".join(job.exc_nodes), "batch_flag": job.is_batch, "requeue": job.requeueable,
            "priority": self._number(job.priority), "submit_time": self._moment(job.submit_at),
            "start_time": self._moment(job.start_at), "end_time": self._moment(job.end_at),
            "eligible_time": self._moment(job.eligible_at), "exit_code": self._exit(job),
            "comment": job.comment, "admin_comment": job.admin_comment, "time_limit": self._number(None),
            "array_job_id": self._number(0), "array_task_id": self._number(None), "het_job_id": self._number(0),
            "standard_output": "/logs/%j.out", "current_working_directory": "/",
        }  # fmt: skip
        if not is_old:
            told |= {"hold": job.is_held, "failed_node": ",".join(job.failed_nodes), "extra": ""}
        if self.version >= 43:
            told["stdout_expanded"] = f"/logs/{job.job_id}.out"
        if self.version >= 45:
            told["step_id"] = {"sluid": f"s{job.job_id}{job.restart_count}", "job_id": self._number(int(job.job_id))}
        return told

    def _node(self, node: SchedulerNode) -> dict[str, Any]:
        state = node.native_state.upper()
        if self.version < 40:
            return {"name": node.name, "state": state.lower(), "state_flags": [], "partitions": list(node.partitions)}
        words = [state.rstrip("*"), *(["NOT_RESPONDING"] if state.endswith("*") else [])]
        return {"name": node.name, "state": words, "partitions": list(node.partitions), "reason": ""}
