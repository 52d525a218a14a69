# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Three hours of a 64-node cluster in fast-forward: eight workloads, faults of every kind, and who dealt with them."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from itertools import count
from typing import Any

from service.demo_clock import WoundClock
from service.demo_plan import GPU_LOST, LATE, MISMATCH, NODES_EACH, SLOW_RANK, STALE, TIMEOUT, WANTED, WORKLOADS, Wanted
from service.demo_run import Run
from service.demo_site import CLUSTER, NODES, Json, Site

SPAN_S = 3 * 3_600.0
TICK_S = 30.0


class Fleet:
    """Plays the cluster against a service whose clock it winds; each course is a generator of waits in seconds.

    Errors: DemoFailed if the service refuses a request.
    """

    def __init__(self, site: Site, clock: WoundClock) -> None:
        self._site = site
        self._clock = clock
        self._began: datetime = clock.now()
        self._runs = {one.name: Run(one, site, self._began) for one in WORKLOADS}
        self._due: list[tuple[float, int, Iterator[float]]] = []
        self._order = count()
        self._spares = [f"gpu{n:03d}" for n in range(len(WORKLOADS) * NODES_EACH + 1, NODES + 1)]
        self._at_s = 0.0

    def play(self) -> None:
        """Three hours, and then the clock goes with the real one."""
        self._site.mode("cluster", CLUSTER, "act", "barbara")
        for one in WORKLOADS:
            self._site.mode("workload", one.name, one.mode, one.user)
        for course in (self._gpu_lost(), self._node_lost(), self._hung(), self._slow("speech-3b"), self._mismatch(),
                       self._watched(), self._slow("longctx-8b"), self._well(), self._bench()):  # fmt: skip
            heapq.heappush(self._due, (0.0, next(self._order), course))
        while self._at_s < SPAN_S:
            self._pass(self._at_s + TICK_S)
        self._clock.release()

    def go_on(self) -> None:
        """What ran on since: to be called now and then, so that healthy jobs don't look as if they hung."""
        self._publish((self._clock.now() - self._began).total_seconds())

    def missing(self) -> list[str]:
        """The incidents that should be there and are not."""
        known = [(one["workload_id"], self._site.told(f"/v1/incidents/{one['id']}/why")) for one in self._incidents()]
        return [str(one) for one in WANTED if not any(_is(one, workload, why) for workload, why in known)]

    def sights(self) -> list[tuple[str, str]]:
        """What to look at in the console: a path and why."""
        waiting = next(one["id"] for one in self._incidents() if one["state"] == "AWAITING_APPROVAL")
        return [
            (f"/console/incidents/{waiting}", "a stop that waits for your approval: y approves, ? tells the keys"),
            (f"/console/attempts/{self._runs['speech-3b'].attempt}/steps", f"rank {SLOW_RANK} lags behind its peers"),
            (f"/console/goodput?cluster={CLUSTER}", "where the GPU-hours of the three hours went"),
            ("/console/nodes/gpu003", "the dossier of the node whose GPU fell off the bus"),
            (f"/console/shadow?cluster={CLUSTER}", "what people did where Relight only watched"),
        ]

    def _incidents(self) -> list[Json]:
        return list(self._site.told("/v1/incidents", cluster=CLUSTER, limit=100)["items"])

    # -------------------------------------------------------------- time

    def _pass(self, until_s: float) -> None:
        while self._due and self._due[0][0] <= until_s:
            at_s, _, course = heapq.heappop(self._due)
            self._wind(at_s)
            if (wait := next(course, None)) is not None:
                heapq.heappush(self._due, (at_s + wait, next(self._order), course))
        self._wind(until_s)
        self._publish(until_s)

    def _wind(self, to_s: float) -> None:
        self._at_s = to_s
        self._clock.wind(next(iter(self._runs.values())).moment(to_s))

    def _publish(self, until_s: float) -> None:
        self._site.signals(step for run in self._runs.values() for step in run.reports(until_s))

    # -------------------------------------------------------------- courses

    def _gpu_lost(self) -> Iterator[float]:
        """Act mode: a controller restarts it without the node, while everybody sleeps."""
        run = self._began_at_once("pretrain-70b")
        yield 4_360.0
        advice = yield from self._crashes(run, run.nodes[2])
        yield from self._recovered(run, advice)
        self._site.feedback(advice, "ada", "right")

    def _node_lost(self) -> Iterator[float]:
        """Approve mode: it waits three minutes for a person, then a controller acts."""
        run = self._began_at_once("moe-8x22b")
        yield 6_200.0
        node = run.nodes[4]
        run.stop()
        self._say(run, "slurm.log", "scheduler", [
            f"srun: error: Node failure on {node}",
            "srun: Job step aborted: Waiting up to 62 seconds for job step to finish."])  # fmt: skip
        yield 20.0
        run.observed("NODE_FAILED", self._at_s, failed_nodes=[node], reason="NodeFail")
        advice = self._site.advice(run.attempt)
        yield 175.0
        self._site.approve(advice, "grace")
        yield from self._recovered(run, advice)

    def _hung(self) -> Iterator[float]:
        """Monitor mode: a rank stops, the others wait until their watchdogs fire, and a person takes over."""
        run = self._began_at_once("vision-9b", hang_at_s=5_000.0)
        yield 5_000.0
        yield 600.0
        for rank in (0, 12):
            self._say(run, f"rank{rank}.log", "application", [LATE, TIMEOUT.format(rank=rank)], rank=rank)
        yield 60.0
        self._site.advice(run.attempt, "manual")
        yield 1_100.0
        run.observed("CANCELLED_BY_USER", self._at_s, actor="linus")
        yield 300.0
        yield from self._resubmitted(run, run.nodes)

    def _slow(self, name: str) -> Iterator[float]:
        self._began_at_once(name)
        yield SPAN_S

    def _mismatch(self) -> Iterator[float]:
        """Approve mode: a run completes, the next can't load what it saved, and its stop waits for a person."""
        run = self._began_at_once("rl-13b")
        yield 8_700.0
        run.stop()
        run.observed("COMPLETED", self._at_s, exit_code=0)
        yield 1_800.0
        run.queue(self._at_s, run.nodes)
        yield 120.0
        run.observed("RUNNING", self._at_s)
        yield 95.0
        self._say(run, "rank0.log", "application", MISMATCH, rank=0)
        yield 10.0
        run.observed("FAILED", self._at_s, exit_code=1)
        self._site.advice(run.attempt)

    def _watched(self) -> Iterator[float]:
        """Monitor mode: people restart as advised once, and once on the very node that was accused."""
        run = self._began_at_once("code-34b")
        yield 2_900.0
        run.stop()
        self._say(run, "rank9.log", "application", [STALE], rank=9)
        yield 30.0
        run.observed("FAILED", self._at_s, exit_code=1)
        advice = self._site.advice(run.attempt)
        yield 1_500.0
        self._site.feedback(advice, "donald", "right")
        yield from self._resubmitted(run, run.nodes)
        yield 2_800.0
        yield from self._crashes(run, run.nodes[5])
        yield 1_200.0
        yield from self._resubmitted(run, run.nodes)

    def _well(self) -> Iterator[float]:
        run = self._began_at_once("embed-1b")
        yield 9_500.0
        run.stop()
        run.observed("COMPLETED", self._at_s, exit_code=0)

    def _bench(self) -> Iterator[float]:
        yield 1_800.0
        self._site.exclude(self._spares.pop(), "barbara", "all-reduce at 12 GB/s of 46 GB/s in the nightly bench")

    # -------------------------------------------------------------- parts of courses

    def _began_at_once(self, name: str, hang_at_s: float | None = None) -> Run:
        run = self._runs[name]
        run.queue(self._at_s, run.workload.nodes)
        run.start(self._at_s, hang_at_s)
        return run

    def _crashes(self, run: Run, node: str) -> Generator[float, None, Json]:
        """A GPU of the node is lost; the kernel says so at once, the other ranks' watchdogs and Slurm later."""
        run.stop()
        self._say(run, f"kern-{node}.log", "kernel", [GPU_LOST], node=node)
        for rank in (0, 9):
            self._say(run, f"rank{rank}.log", "application", [TIMEOUT.format(rank=rank)], rank=rank)
        yield 40.0
        run.observed("FAILED", self._at_s, exit_code=1)
        return self._site.advice(run.attempt)

    def _recovered(self, run: Run, advice: Json) -> Iterator[float]:
        """What a controller does, each verb on record before and after."""
        yield 4.0
        token = self._site.claim(advice)
        for step in ("requeue_hold", "set_exclusions", "release"):
            self._site.milestone(advice, step, "intent")
            yield 1.0
            self._site.milestone(advice, step, "done")
        accused = [one["node"] for one in advice["exclusions"]]
        seen = {"job_state": "PENDING", "restart_count": 1, "exc_nodes": accused, "held": False}
        self._site.converged(advice, token, seen)
        nodes = [node for node in run.nodes if node not in accused]
        run.queue(self._at_s, [*nodes, *(self._spares.pop(0) for _ in accused)])
        yield 140.0
        run.start(self._at_s)

    def _resubmitted(self, run: Run, nodes: Sequence[str]) -> Iterator[float]:
        run.queue(self._at_s, nodes)
        yield 200.0
        run.start(self._at_s)

    def _say(self, run: Run, file: str, stream: str, texts: Sequence[str], **where: Any) -> None:
        at = run.moment(self._at_s).isoformat()
        if "rank" in where:
            where["node"] = run.node_of(where["rank"])
        self._site.lines(
            {"attempt_id": run.attempt, "file": file, "number": number, "stream": stream, "at": at, "text": text,
             **where}
            for number, text in enumerate(texts, 1)
        )  # fmt: skip


def _is(wanted: Wanted, workload: str | None, why: Json) -> bool:
    kinds = {one["kind"] for one in why["anomalies"]}
    advice = why.get("recommendation") or {}
    found = (workload, why["failure"], advice.get("action", ""))
    return found == (wanted.workload, wanted.failure, wanted.action) and wanted.kind in kinds
