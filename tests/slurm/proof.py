# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A real training on a real cluster, with the controller and the watchdog as processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.slurm.cluster import SlurmCluster

ROOT = Path(__file__).resolve().parents[2]
SERVED = "from service.cli import main; main()"
_STEP = re.compile(r"\[rank0\].* step=(\d+)/")


@dataclass(frozen=True, slots=True)
class Form:
    """A program that trains, and the interpreter that has what it needs."""

    program: str
    python: str = sys.executable


NUMPY = Form("examples.ddp_numpy")


@dataclass(kw_only=True)
class Proof:
    """One cluster, one advisor; `train` submits, the other methods look.

    With an `advisor` of its own process, that follows the job's files and ranks report to it themselves.
    """

    cluster: SlurmCluster
    client: httpx.Client
    folder: Path
    advisor: AdvisorProcess | None = None
    _jobs: dict[str, Path] = field(default_factory=dict)
    form: Form = NUMPY

    # -------------------------------------------------------------- jobs

    def train(
        self, name: str, *, nodes: int = 3, each: int = 1, flags: str = "", submit: tuple[str, ...] = (),
        mode: str = "act", checkpoint_every: int = 10,
    ) -> str:  # fmt: skip
        """A data-parallel training of `each` ranks a node; the job's id."""
        run = self.folder / name
        run.mkdir()
        script = run / "job.sh"
        script.write_text(
            f"#!/bin/bash\ncd {ROOT}\n{self._reporting()}"
            f"exec srun --export=ALL --kill-on-bad-exit=1 -n {nodes * each} {self.form.python} -m {self.form.program}"
            f" --run {run} --steps 100000 --checkpoint-every {checkpoint_every} --step-s 0.1 {flags}\n"
        )
        said = self.cluster.client(
            "sbatch", "--parsable", f"-N{nodes}", f"--ntasks-per-node={each}", "--open-mode=append", f"--job-name={name}",
            f"--comment=relight={mode}", "-o", str(run / "job.out"), *submit, str(script),
        )  # fmt: skip
        job_id = said.strip()
        self._jobs[job_id] = run
        return job_id

    def _reporting(self) -> str:
        """Ranks report their steps and heartbeats themselves where the advisor follows the log files."""
        if self.advisor is None:
            return ""
        said = {"URL": self.client.base_url, "TOKEN_FILE": self.folder / "token", "HEARTBEAT_S": 0.5, "FLUSH_S": 0.3,
                "TIMING_INTERVAL_S": 0, "STALL_S": 5}  # fmt: skip
        return "".join(f"export RELIGHT_{name}={value}\n" for name, value in said.items())

    def job(self, job_id: str) -> dict[str, str]:
        text = self.cluster.client("scontrol", "-o", "show", "job", job_id)
        return dict(re.findall(r"(\w+)=(\S*)", text))

    def run(self, job_id: str) -> Path:
        return self._jobs[job_id]

    def step(self, job_id: str) -> int:
        """The last step that rank 0 has completed, over all runs."""
        text = self._text(job_id)
        return max((int(number) for number in _STEP.findall(text)), default=0)

    def resumed_at(self, job_id: str) -> int:
        """The step of the checkpoint that rank 0 began from last; -1 if it never did."""
        found = re.findall(r"\[rank0\].* resumed from checkpoint \S+ at step (\d+)", self._text(job_id))
        return int(found[-1]) if found else -1

    def order(self, job_id: str, rank: int, **fault: Any) -> None:
        """A fault from within, by the rank's control file."""
        place = self.run(job_id) / "control" / f"rank{rank}.json"
        place.parent.mkdir(exist_ok=True)
        place.write_text(json.dumps(fault))

    def rank_pids(self, node: str) -> list[int]:
        return self.cluster.ranks(node, self.form.program)

    def nodes(self, job_id: str) -> list[str]:
        text = self.cluster.client("scontrol", "show", "hostnames", self.job(job_id)["NodeList"])
        return text.split()

    def excluded(self, job_id: str) -> set[str]:
        said = self.job(job_id)["ExcNodeList"]
        return set() if said == "(null)" else set(self.cluster.client("scontrol", "show", "hostnames", said).split())

    def hurry(self, job_id: str) -> None:
        """Spare the test Slurm's own two minutes."""
        self.cluster.client("scontrol", "update", f"JobId={job_id}", "StartTime=now", check=False)

    def cancel(self, job_id: str) -> None:
        self.cluster.client("scancel", job_id, check=False)

    def cancel_all(self, *, but: str = "") -> None:
        """Cancel every other job and wait until Slurm is done with it."""
        others = [job_id for job_id in self._jobs if job_id != but]
        for job_id in others:
            self.cancel(job_id)
        running = ("squeue", "-h", "-o", "%i", "-t", "R,CG,PD")
        self.until(lambda: not set(others) & set(self.cluster.client(*running).split()), 40, "nothing else runs")

    # -------------------------------------------------------------- the advisor

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        """Oldest first."""
        items: list[dict[str, Any]] = self.client.get("/v1/attempts", params={"job_id": job_id}).json()["items"]
        return sorted(items, key=lambda one: int(one["attempt_index"]))

    def advice(self, job_id: str, index: int = 0) -> dict[str, Any]:
        for attempt in self.attempts(job_id):
            if attempt["attempt_index"] == index:
                query = {"attempt": attempt["id"]}
                items: list[dict[str, Any]] = self.client.get("/v1/recommendations", params=query).json()["items"]
                return items[0] if items else {}
        return {}

    def state(self, job_id: str, index: int = 0) -> str:
        return str(self.advice(job_id, index).get("state", ""))

    def timeline(self, job_id: str, index: int = 0) -> list[dict[str, Any]]:
        attempt = self.attempts(job_id)[index]["id"]
        found: list[dict[str, Any]] = []
        query: dict[str, Any] = {"limit": 250}
        while True:
            page = self.client.get(f"/v1/attempts/{attempt}/timeline", params=query).json()
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            query["cursor"] = page["next_cursor"]

    def kinds(self, job_id: str, index: int = 0) -> list[str]:
        """What is on record of an attempt in its order, without what merely came in."""
        told = [one["kind"] for one in self.timeline(job_id, index)]
        return [kind for kind in told if kind not in {"signal.accepted", "attempt.observed"}]

    def incidents(self, job_id: str, index: int = 0) -> list[dict[str, Any]]:
        query = {"attempt": self.attempts(job_id)[index]["id"]}
        items: list[dict[str, Any]] = self.client.get("/v1/incidents", params=query).json()["items"]
        return items

    def anomalies(self, job_id: str, kind: str) -> list[dict[str, Any]]:
        """The confirmed ones of a kind in a job's first run."""
        query = {"attempt": self.attempts(job_id)[0]["id"], "kind": kind}
        items: list[dict[str, Any]] = self.client.get("/v1/anomalies", params=query).json()["items"]
        return [one for one in items if one["tier"] == "confirmed"]

    def milestones(self, job_id: str, index: int = 0) -> list[str]:
        found = [one["event"] for one in self.timeline(job_id, index) if one["kind"] == "milestone.recorded"]
        return [f"{one['step']}:{one['phase']}" for one in found]

    # -------------------------------------------------------------- time

    def until(self, claim: Callable[[], bool], limit_s: float, what: str) -> float:
        """How long it took. Errors: AssertionError with what is known."""
        begun = time.monotonic()
        while not claim():
            if time.monotonic() - begun > limit_s:
                queue = self.cluster.client("squeue", "-a", "-t", "all", "-o", "%i %T %r %N %p", check=False)
                logs = {one.name: one.read_text("utf-8")[-600:] for one in self.folder.glob("*.log")}
                known = "\n".join(map(self._known, self._jobs))
                raise AssertionError(f"not within {limit_s} s: {what}\n{queue}\n{known}\n{logs}")
            time.sleep(0.2)
        return time.monotonic() - begun

    def _known(self, job_id: str) -> str:
        """What the advisor knows of a job, for whoever reads why a test failed."""
        lines = []
        for attempt in self.attempts(job_id):
            query = {"attempt": attempt["id"]}
            found = self.client.get("/v1/anomalies", params=query).json()["items"]
            said = self.advice(job_id, attempt["attempt_index"])
            told = [f"{one['kind']} {one['tier']}: {one['summary']}" for one in found]
            advice = {name: said.get(name) for name in ("state", "action", "failure", "reason", "blocked_by")}
            lines.append(f"job {job_id}: {attempt['state']}, step {attempt['last_step']}, {told}, {advice}")
        return "\n".join(lines)

    def trains(self, job_id: str, beyond: int) -> float:
        """Completed steps, and a controller that has seen the job run."""
        self.until(lambda: any(one["state"] == "RUNNING" for one in self.attempts(job_id)), 40, "the job is followed")
        return self.until(lambda: self.step(job_id) > beyond, 60, f"job {job_id} beyond step {beyond}")

    def _text(self, job_id: str) -> str:
        out = self.run(job_id) / "job.out"
        return out.read_text("utf-8", errors="replace") if out.exists() else ""

    # -------------------------------------------------------------- processes

    def spawn(self, *argv: str, log: str) -> subprocess.Popen[bytes]:
        """A command of ours; one that goes over SSH is not told where the cluster is."""
        with (self.folder / f"{log}.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-c", SERVED, *argv], cwd=ROOT, stdout=out, stderr=out,
                env=dict(os.environ) if "--ssh" in argv else self.cluster.environment,
            )  # fmt: skip

    def command(self, *argv: str) -> None:
        """A command of ours that asks the advisor, as a person gives it. Errors: AssertionError with what it said."""
        begun = self.spawn(*argv, "--url", str(self.client.base_url), "--token-file", str(self.folder / "token"),
                           log="command")  # fmt: skip
        assert begun.wait(60) == 0, (self.folder / "command.log").read_text("utf-8")[-600:]

    def start_controller(self, *extra: str) -> subprocess.Popen[bytes]:
        return self.spawn(
            "controller", "slurm", "--url", str(self.client.base_url), "--token-file", str(self.folder / "token"),
            "--state", str(self.folder / "controller"), "--slips", str(self.folder / "slips"), "--every", "0.5",
            "--settle-s", "4", "--verify-after-s", "3", "--max-delay-s", "0", "--pause-file", str(self.folder / "pause"),
            *extra, log="controller",
        )  # fmt: skip

    def start_watchdog(self) -> subprocess.Popen[bytes]:
        return self.spawn("watchdog", "slurm", "--state", str(self.folder / "watchdog"), "--slips",
                          str(self.folder / "slips"), "--every", "1", log="watchdog")  # fmt: skip

    @contextmanager
    def shipping(self) -> Iterator[None]:
        """Job output goes to the advisor, as a site's collector would send it."""
        stop = threading.Event()
        thread = threading.Thread(target=self._ship, args=(stop,), name="shipper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join(10)

    def _ship(self, stop: threading.Event) -> None:
        sent: dict[str, int] = {}
        while not stop.wait(0.3):
            for job_id, run in list(self._jobs.items()):
                out = run / "job.out"
                attempts = self.attempts(job_id) if out.exists() else []
                whole = out.read_text("utf-8", errors="replace").rpartition("\n")[0] if attempts else ""
                lines = whole.splitlines()[sent.get(job_id, 0) :]
                if not lines:
                    continue
                first = sent.get(job_id, 0) + 1
                body = "\n".join(
                    json.dumps({"attempt_id": attempts[-1]["id"], "file": "job.out", "number": first + index,
                                "stream": "application", "text": text})
                    for index, text in enumerate(lines)
                )  # fmt: skip
                headers = {"Content-Type": "application/x-ndjson"}
                if self.client.post("/v1/logs/ndjson", content=body.encode(), headers=headers).is_success:
                    sent[job_id] = first - 1 + len(lines)


@dataclass(kw_only=True)
class AdvisorProcess:
    """`relight serve` as a process of its own, on a port that it keeps over a restart."""

    folder: Path
    port: int
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def settings(self) -> Path:
        return self.folder / "advisor.toml"

    def write_settings(self) -> None:
        """Act mode; logs are followed where they are written; hangs are judged in a fifth of the usual time."""
        here = self.folder
        self.settings.write_text(
            f'[server]\nport = {self.port}\n[auth]\ntokens_file = "{here}/tokens.json"\n'
            f'[audit]\npath = "{here}/audit.duckdb"\n[recommend]\nmode = "act"\n'
            f'[follow]\nroots = ["{here}"]\npoll_every_s = 0.3\n[plugins.options.hang]\npatience = 0.2\n'
        )

    def start(self) -> None:
        """Errors: AssertionError if it does not answer within half a minute."""
        with (self.folder / "advisor.log").open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SERVED, "serve", "--config", str(self.settings)],
                cwd=ROOT,
                stdout=out,
                stderr=out,
            )
        until = time.monotonic() + 30
        while not self._answers():
            said = (self.folder / "advisor.log").read_text()[-600:]
            assert time.monotonic() < until and self.process.poll() is None, said
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code < 600
        except httpx.HTTPError:
            return False

    def kill(self) -> None:
        assert self.process is not None
        end(self.process, signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            end(self.process)


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    if process.poll() is None:
        os.kill(process.pid, how)
    process.wait(20)
