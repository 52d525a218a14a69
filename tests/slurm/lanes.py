# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lanes: partitions of two nodes on one cluster, each with a controller of its own, so that many may die at once."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import httpx

from relight.deadline import HOLD_TAG
from relight.hold_mark import MarkState, read_mark
from tests.slurm.cluster import SlurmCluster
from tests.slurm.proof import AdvisorProcess
from tests.slurm.reaper import Orders, live

ROOT = Path(__file__).parents[2]
LANES = 8
SLACK_S = 5.0  # a round of the watchdog, a command or two, and a machine with other things to do
RESTART_S = 3.0  # of a watchdog that was killed, and its round
IMPORTED = ["tests.slurm.reaper", "service.bootstrap.wiring", "service.bootstrap.serving", "service.api.app", "uvicorn",
            "service.commands.controller", "service.commands.serve", "detectors.crash", "detectors.hang",
            "detectors.straggler", "detectors.slowdown", "detectors.divergence", "relight.attribute"]  # fmt: skip
JOB = """#!/bin/bash
cd {run}
echo "$SLURMD_NODENAME" >> begun
step=$(cat checkpoint 2>/dev/null || echo 0)
while true; do
  if [ -e fail ] && [ "${{SLURM_RESTART_COUNT:-0}}" = 0 ]; then exit 7; fi
  step=$((step+1)); echo $step > checkpoint; echo "step=$step/100000 loss=1.$((1000 - step % 1000))"
  sleep 0.4
done
"""


class Nursery:
    """Processes of ours, forked from one that has imported everything: a restart costs no second of imports."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(IMPORTED)

    def start(
        self, argv: Sequence[str], environment: Mapping[str, str], log: Path, orders: Orders, lane: str = ""
    ) -> ForkServerProcess:
        said = (list(argv), dict(environment), str(log), orders, lane)
        process = self._context.Process(target=live, args=said)
        process.start()
        return process


def end(process: ForkServerProcess | None) -> None:
    if process is not None:
        process.terminate()
        process.join(15)
        if process.is_alive():
            process.kill()
            process.join(5)


@dataclass(kw_only=True)
class Book:
    """What Slurm says of all jobs, again and again, and every hold of ours with how long it lasted."""

    cluster: SlurmCluster
    hard_s: float = 60.0
    jobs: dict[str, dict[str, str]] = field(default_factory=dict)
    overdue: list[str] = field(default_factory=list)
    deaths: int = 0
    _since: dict[str, tuple[float, int]] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)

    def watch(self) -> None:
        while not self._stop.wait(0.4):
            text = self.cluster.client("scontrol", "-o", "show", "job", check=False)
            seen = (dict(re.findall(r"(\w+)=(\S*)", line)) for line in text.splitlines() if line.startswith("JobId="))
            self.jobs = {one["JobId"]: one for one in seen}
            for job_id, job in self.jobs.items():
                self._judge(job_id, job, time.time())

    def stop(self) -> None:
        self._stop.set()

    def _judge(self, job_id: str, job: Mapping[str, str], now: float) -> None:
        """A hold of ours awaits a decision until its mark says, and never longer than the watchdog's limit.

        A watchdog that is killed over it meanwhile costs the time of its restart.
        """
        mark = read_mark(job.get("AdminComment", ""))
        bare = "requeued_in_held_state" in job.get("Reason", "")
        is_held = job["JobState"] == "PENDING" and job["Priority"] == "0"
        if not is_held or (mark is None and not bare) or (mark is not None and mark.state is MarkState.STOPPED):
            self._since.pop(job_id, None)
            return
        since, deaths = self._since.setdefault(job_id, (now, self.deaths))
        until = since + self.hard_s
        if mark is not None and mark.state is MarkState.DECIDING:
            until = min(until, mark.until.timestamp())
        if now > until + SLACK_S + RESTART_S * (self.deaths - deaths):
            self.overdue.append(f"job {job_id} is held {now - until:.1f} s past its deadline")


@dataclass(kw_only=True)
class Ground:
    """The cluster, one advisor, one watchdog, and the lanes."""

    cluster: SlurmCluster
    folder: Path
    advisor: AdvisorProcess
    secret: str
    book: Book
    nursery: Nursery = field(default_factory=Nursery)
    watchdog: ForkServerProcess | None = None
    serving: ForkServerProcess | None = None

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.secret}"}
        self.client = httpx.Client(base_url=self.advisor.url, headers=headers, timeout=20)
        self.orders = self.folder / "orders"
        self.orders.mkdir()

    def serve(self) -> None:
        """Start the advisor; it answers a little later, unless it is killed before."""
        self.serving = self.nursery.start(
            ["serve", "--config", str(self.advisor.settings)], self.cluster.environment, self.folder / "advisor.log",
            Orders(self.orders, "advisor"),
        )  # fmt: skip

    def ask(self, path: str, **query: Any) -> Any:
        """What the advisor says, None while it does not answer."""
        try:
            answer = self.client.get(path, params=query)
        except httpx.HTTPError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def told(self, path: str, **query: Any) -> Any:
        """What it says, as soon as it is there."""
        found: list[Any] = []

        def is_told() -> bool:
            found.append(self.ask(path, **query))
            return found[-1] is not None

        self.until(is_told, 60, f"the advisor answers {path}")
        return found[-1]

    def send_line(self, line: Mapping[str, Any]) -> None:
        """A line of a log, sent again until it has arrived: lines are known by their number."""
        headers, body = {"Content-Type": "application/x-ndjson"}, json.dumps(line).encode()

        def is_sent() -> bool:
            try:
                return self.client.post("/v1/logs/ndjson", content=body, headers=headers).is_success
            except httpx.HTTPError:
                return False

        self.until(is_sent, 60, "the line is taken")

    def watch_over(self, hard_s: float) -> None:
        """(Re)start the watchdog with a limit of its own."""
        if self.watchdog is not None and not self.watchdog.is_alive():
            self.book.deaths += 1
        end(self.watchdog)
        self.book.hard_s = hard_s
        self.watchdog = self.nursery.start(
            ["watchdog", "slurm", "--state", str(self.folder / "watchdog"), "--slips", str(self.folder / "slips"),
             "--every", "1", "--hard-s", str(hard_s)],
            self.cluster.environment, self.folder / "watchdog.log", Orders(self.orders, "watchdog"),
        )  # fmt: skip

    @staticmethod
    def until(claim: Callable[[], bool], limit_s: float, what: str) -> None:
        begun = time.monotonic()
        while not claim():
            if time.monotonic() - begun > limit_s:
                raise AssertionError(f"not within {limit_s} s: {what}")
            time.sleep(0.25)


@dataclass(kw_only=True)
class Lane:
    """A partition of two nodes, its controller, and the one job that is in it."""

    ground: Ground
    number: int
    controller: ForkServerProcess | None = None
    dies_for_good: bool = False
    hurries_from: float = math.inf
    job_id: str = ""
    attempt_id: str = ""
    run: Path = Path()
    _made: int = 0

    @property
    def name(self) -> str:
        return f"lane{self.number}"

    @property
    def orders(self) -> Orders:
        return Orders(self.ground.orders, "controller")

    # -------------------------------------------------------------- processes

    def start(self) -> None:
        ground, here = self.ground, self.ground.folder
        self.controller = ground.nursery.start(
            ["controller", "slurm", "--url", ground.advisor.url, "--token-file", str(here / "token"), "--cluster", self.name,
             "--name", f"controller-{self.name}", "--mode", "off", "--no-jobs-choose", "--partition", f"{self.name}=act",
             "--state", str(here / self.name), "--slips", str(here / "slips"), "--every", "1", "--settle-s", "2",
             "--verify-after-s", "1", "--max-delay-s", "0", "--pause-file", str(here / "pause")],
            ground.cluster.environment, here / f"{self.name}.log", self.orders, self.name,
        )  # fmt: skip

    def keep_alive(self) -> None:
        """What an init system does, for whoever has not died for good."""
        if self.dies_for_good and self.orders.has_killed(self.name):
            return
        if self.controller is None or not self.controller.is_alive():
            self.start()

    # -------------------------------------------------------------- the job

    def begin(self) -> None:
        """A fresh job that has made some steps, and that the advisor knows to run."""
        ground = self.ground
        self._made, self.attempt_id, self.dies_for_good = self._made + 1, "", False
        self.hurries_from = math.inf
        self.run = ground.folder / f"{self.name}-{self._made}"
        self.run.mkdir()
        for kind in ("order", "steps", "killed"):
            (ground.orders / f"{self.name}.controller.{kind}").unlink(missing_ok=True)
        (self.run / "job.sh").write_text(JOB.format(run=self.run))
        self.job_id = ground.cluster.client(
            "sbatch", "--parsable", "-p", self.name, "--requeue", "-N1", "-n1", "--open-mode=append", "-o", str(self.run / "job.out"),
            str(self.run / "job.sh"),
        ).strip()  # fmt: skip
        self.wait(lambda: self.step > 3, 40, "it trains")
        self.wait(self.is_known, 60, "the advisor knows it")
        self.wait(lambda: (self.attempt(0).get("last_step") or 0) > 0, 60, "its steps arrive")

    def is_known(self) -> bool:
        """Whether the advisor has the job's first run as running; its attempt is known from then on."""
        found = self.attempt(0)
        self.attempt_id = str(found.get("id", ""))
        return found.get("state") == "RUNNING"

    @property
    def step(self) -> int:
        file = self.run / "checkpoint"
        text = file.read_text().strip() if file.exists() else ""
        return int(text) if text.isdigit() else 0

    @property
    def began_on(self) -> list[str]:
        file = self.run / "begun"
        return file.read_text().split() if file.exists() else []

    @property
    def job(self) -> dict[str, str]:
        return self.ground.book.jobs.get(self.job_id, {})

    @property
    def is_held(self) -> bool:
        return self.job.get("JobState") == "PENDING" and self.job.get("Priority") == "0"

    @property
    def bears_a_mark(self) -> bool:
        return f"{HOLD_TAG}:" in self.job.get("AdminComment", "")

    def fresh(self) -> dict[str, str]:
        """The job as Slurm has it right now."""
        return dict(
            re.findall(r"(\w+)=(\S*)", self.ground.cluster.client("scontrol", "-o", "show", "job", self.job_id))
        )

    def hurry(self) -> None:
        self.ground.cluster.client("scontrol", "update", f"JobId={self.job_id}", "StartTime=now", check=False)

    def finish(self) -> None:
        """Nothing is left to the lane's next job."""
        self.orders.disarm(self.name)
        self.dies_for_good, ground = False, self.ground
        ground.cluster.client("scancel", self.job_id, check=False)
        for node in self.nodes:
            if ground.cluster.states().get(node, "").startswith("down"):
                ground.cluster.client("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        gone = {"CANCELLED", "FAILED", "COMPLETED", "NODE_FAIL"}
        self.wait(lambda: self.job.get("JobState", "CANCELLED") in gone, 30, "the job is gone")

    @property
    def nodes(self) -> list[str]:
        return [f"node{2 * self.number - 1}", f"node{2 * self.number}"]

    # -------------------------------------------------------------- what is known

    def attempt(self, index: int) -> dict[str, Any]:
        said = self.ground.ask("/v1/attempts", job_id=self.job_id) or {"items": []}
        return next((one for one in said["items"] if one["attempt_index"] == index), {})

    def advice(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.ground.told("/v1/recommendations", attempt=self.attempt_id)["items"]
        return items

    def timeline(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.ground.told(f"/v1/attempts/{self.attempt_id}/timeline", limit=250)["items"]
        return items

    def milestones(self) -> list[str]:
        told = [one["event"] for one in self.timeline() if one["kind"] == "milestone.recorded"]
        return [f"{one['step']}:{one['phase']}" for one in told]

    def outcome(self) -> dict[str, Any] | None:
        """What the controller kept of the recovery once it was over; None while it is not."""
        file = self.ground.folder / self.name / "controller.sqlite"
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=5) as own:
            rows = own.execute("SELECT body FROM document WHERE kind = 'outcome'").fetchall()
        found = [body for (text,) in rows if (body := json.loads(text))["job_id"] == self.job_id]
        return found[-1] if found else None

    def done(self) -> list[str]:
        """The verbs whose effect the controller has seen, by its own log."""
        file = self.ground.folder / self.name / "controller.sqlite"
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=5) as own:
            query = "SELECT step FROM entry WHERE subject = ? AND phase = 'done' ORDER BY id"
            return [step for (step,) in own.execute(query, (self.attempt_id,))]

    def wait(self, claim: Callable[[], bool], limit_s: float, what: str) -> None:
        def looked() -> bool:
            self.keep_alive()
            return claim()

        try:
            self.ground.until(looked, limit_s, what)
        except AssertionError as late:
            raise AssertionError(f"{self.name}, job {self.job_id}: {late}; {self._known()}") from late

    def _known(self) -> str:
        told = {name: self.job.get(name) for name in ("JobState", "Reason", "Priority", "Restarts", "ExcNodeList",
                                                      "AdminComment")}  # fmt: skip
        log = self.ground.folder / f"{self.name}.log"
        tail = log.read_text(errors="replace")[-300:] if log.exists() else ""
        said = self.ground.ask("/v1/recommendations", attempt=self.attempt_id or "none") or {"items": []}
        advice = [(one["state"], one["action"], one["blocked_by"]) for one in said["items"]]
        return f"{told}; {advice}; steps {self.orders.steps(self.name)[-6:]}; {tail}"
