# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""slurmrestd's answers: recorded on 22.05.8 and 24.11.5, shaped as documented for later versions, and none at all."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from controllers.slurm.rest import SlurmRest, spoken_version
from controllers.slurm.rest_versions import RestVersion, newest_version
from controllers.slurm.rest_wire import HttpRestWire
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import RefusalCode, SchedulerRefused, SchedulerUnreachable
from relight.types import AttemptState, NodeName

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("slurm_answers.json").read_text("utf-8"))
NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
JOBS = {"jobs": [ANSWERS["failed"]["json"]], "errors": []}
NEWER = {"jobs": [ANSWERS["slurm-24.11"]["json"]], "errors": [], "warnings": []}
# Recorded from slurmrestd 22.05.8, shortened to what is read.
NO_SUCH_JOB = {"errors": [{"description": "Unable to find JobId=999999", "error_number": 2017,
                           "error": "Invalid job id specified", "source": "slurm_load_job"}], "jobs": []}  # fmt: skip
WRONG_TOKEN = {"errors": [{"description": "Failed while looking for jobs", "error_number": -1,
                           "error": "Unspecified error", "source": "slurm_load_jobs"}], "jobs": []}  # fmt: skip
DISABLED_KEY = {"errors": [{"description": 'Disabled key: "excluded_nodes"', "error_number": 1,
                            "error": "Operation not permitted", "source": "openapi specification"},
                           {"description": "job parsing failed for [localhost]:45702", "error_number": 9001,
                            "error": "Failure during parsing", "source": "_parse_job_list"}]}  # fmt: skip


class _Clock:
    def now(self) -> datetime:
        return NOON


@dataclass
class Recorded:
    answers: Mapping[str, tuple[int, Any]]
    sent: list[tuple[str, str, Any]] = field(default_factory=list)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        self.sent.append((method, path, body))
        status, said = self.answers[path.split("/", 3)[3]]
        if status == 0:
            raise SchedulerUnreachable("connection refused")
        return status, said if isinstance(said, bytes) else json.dumps(said).encode()


def rest(answers: Mapping[str, tuple[int, Any]], version: int = 38) -> SlurmRest:
    return SlurmRest(wire=Recorded(answers), version=RestVersion(version), clock=_Clock())


@pytest.mark.parametrize(
    ("version", "jobs", "state"), [(38, JOBS, AttemptState.FAILED), (42, NEWER, AttemptState.RUNNING)]
)
def test_both_generations_are_read(version: int, jobs: Any, state: AttemptState) -> None:
    reading = rest({"jobs": (200, jobs), "nodes": (200, ANSWERS["nodes-22.05"])}, version).survey(NOON)
    assert not reading.is_blind, reading.why_blind
    assert reading.jobs[0].state is state
    assert reading.nodes


def test_a_job_of_26_05_is_read_by_what_its_description_adds() -> None:
    """SchedMD's description of v0.0.45: `step_id.sluid`, expanded paths, `select_type` and `power` gone or renamed."""
    job = {name: value for name, value in ANSWERS["slurm-24.11"]["json"].items() if name != "power"}
    job |= {
        "step_id": {"sluid": "sQ2X4", "job_id": {"set": True, "infinite": False, "number": 1}, "step_id": "batch"},
        "stdout_expanded": "/srv/lab/7.out", "stderr_expanded": "", "submit_line": "sbatch -N2 --requeue x",
        "job_state": ["RUNNING"], "licenses_allocated": "", "segment_size": 0, "container_type": "",
        "tres_alloc_str": "cpu=2,node=2,gres/gpu=16", "tasks_per_node": {"set": True, "infinite": False, "number": 8},
    }  # fmt: skip
    told = rest({"jobs": (200, {"jobs": [job], "errors": []}), "nodes": (200, ANSWERS["nodes-22.05"])}, 45)
    (seen,) = told.survey(NOON).jobs
    assert (seen.sluid, seen.log_paths[0], seen.gpus_per_node, seen.tasks_per_node) == ("sQ2X4", "/srv/lab/7.out", 8, 8)


@pytest.mark.parametrize("answer", [(0, None), (500, b"x"), (401, b"Authentication failure"), (200, b""), (200, b"[]"),
                                    (200, b"{}"), (404, b"Unable find requested URL."), (404, {}), (500, WRONG_TOKEN),
                                    (200, {"jobs": [], "errors": [{"error": "no"}]})])  # fmt: skip
def test_everything_else_is_blind(answer: tuple[int, Any]) -> None:
    slurm = rest({"jobs": answer, "nodes": (200, ANSWERS["nodes-22.05"]), "job/7": answer})
    assert slurm.survey(NOON).is_blind
    assert slurm.show("7", NOON).is_blind


@pytest.mark.parametrize("status", [500, 404, 422])
def test_a_missing_job_is_absent_by_slurms_word_for_it_and_by_no_status_alone(status: int) -> None:
    assert rest({"job/7": (status, NO_SUCH_JOB)}).show("7", NOON).is_absent


def test_an_answer_of_200_with_errors_is_a_refusal() -> None:
    """As 22.05 answers an update with a key that it does not take: 200, and nothing done."""
    with pytest.raises(SchedulerRefused, match="Disabled key"):
        rest({"job/7": (200, DISABLED_KEY)}).release("7")


def test_a_refusal_among_the_results_of_single_jobs_is_one() -> None:
    said = {"errors": [], "results": [{"job_id": 7, "error_code": 2019, "error": "Job is no longer pending execution"}]}
    with pytest.raises(SchedulerRefused) as no:
        rest({"job/7": (200, said)}, 42).set_exclusions("7", (NodeName("n1"),))
    assert no.value.code is RefusalCode.NOT_PENDING


def test_results_without_an_error_are_none() -> None:
    """The description of v0.0.45 shows `status: [null, null]` where nothing went wrong."""
    told = rest({"job/7/requeue?Hold=true": (200, {"errors": [], "status": [None, None], "results": []})}, 45)
    told.requeue_hold("7")


def test_a_wrong_token_is_no_refusal_since_nothing_is_known() -> None:
    with pytest.raises(SchedulerUnreachable):
        rest({"job/7": (500, WRONG_TOKEN)}).hold("7")


def test_a_job_that_is_gone_is_cancelled_already() -> None:
    rest({"job/7": (500, NO_SUCH_JOB)}).cancel("7")


@pytest.mark.parametrize(("version", "begin"), [
    (38, "now+30"), (42, {"set": True, "infinite": False, "number": int(NOON.timestamp()) + 30}),
])  # fmt: skip
def test_a_begin_time_is_text_in_the_old_version_and_a_number_since(version: int, begin: Any) -> None:
    told = rest({"job/7": (200, {"errors": []})}, version)
    told.start_after("7", 30)
    assert isinstance(told.wire, Recorded)
    assert told.wire.sent == [("POST", f"/slurm/v0.0.{version}/job/7", {"begin_time": begin})]


def test_what_could_be_more_than_a_job_id_is_sent_nowhere() -> None:
    told = rest({})
    assert told.show("7/../../jobs", NOON).is_blind
    with pytest.raises(SchedulerRefused):
        told.cancel("7?signal=USR1")


def test_the_newest_common_version_is_chosen_and_others_are_refused_politely() -> None:
    paths: Any = {"/slurm/v0.0.41/jobs/": {}, "/slurm/v0.0.44/jobs/": {}, "/slurm/v0.0.99/jobs/": {}}
    assert newest_version({"paths": paths}) == RestVersion(44)
    with pytest.raises(Garbled, match="supported"):
        newest_version({"paths": {"/slurm/v0.0.99/jobs": {}}})
    with pytest.raises(ValueError, match="not supported"):
        RestVersion(39)


# ------------------------------------------------------------------ the wire


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, str | None, str | None]]] = []

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers["X-SLURM-USER-NAME"], self.headers["X-SLURM-USER-TOKEN"]))
        body = json.dumps({"paths": {"/slurm/v0.0.38/jobs": {}}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is to be printed."""


class _UnixServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(str(self.server_address))

    def get_request(self) -> tuple[socket.socket, tuple[str, int]]:
        return self.socket.accept()[0], ("local", 0)


@contextmanager
def answering(server: HTTPServer) -> Iterator[None]:
    _Answering.seen.clear()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_the_token_is_read_again_at_every_call(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("SLURM_JWT=abc\n")
    server = HTTPServer(("127.0.0.1", 0), _Answering)
    with answering(server):
        wire = HttpRestWire(f"http://127.0.0.1:{server.server_address[1]}", "relight", token)
        assert spoken_version(wire) == RestVersion(38)
        token.write_text("def")
        wire.send("GET", "/openapi/v3")
        wire.close()
    assert [(user, told) for _, user, told in _Answering.seen] == [("relight", "abc"), ("relight", "def")]


def test_a_unix_socket_needs_no_token(tmp_path: Path) -> None:
    server = _UnixServer(str(tmp_path / "rest.sock"), _Answering)  # type: ignore[arg-type]
    with answering(server):
        wire = HttpRestWire(f"unix:{tmp_path}/rest.sock", "relight", None)
        assert spoken_version(wire) == RestVersion(38)
        wire.close()
    assert _Answering.seen == [("/openapi/v3", None, None)]


def test_a_token_file_that_is_gone_makes_blind(tmp_path: Path) -> None:
    slurm = SlurmRest(
        wire=HttpRestWire("http://127.0.0.1:9", "relight", tmp_path / "none"), version=RestVersion(38), clock=_Clock()
    )
    assert "token file" in slurm.survey(NOON).why_blind


def test_nobody_listening_makes_blind(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc")
    wire = HttpRestWire("http://127.0.0.1:9", "relight", tmp_path / "token")
    assert SlurmRest(wire=wire, version=RestVersion(38), clock=_Clock()).survey(NOON).is_blind


@pytest.mark.parametrize(("url", "why"), [("http://head:6820", "needs a token file"), ("head:6820", "must be http://")])
def test_an_address_that_cannot_work_is_refused_at_once(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        HttpRestWire(url, "relight", None)
