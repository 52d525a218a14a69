# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One workload of the demo's cluster: its attempts one after the other, and what their ranks report.

The ranks' times are those of the fleet simulator that the benchmarks use, which only a source tree has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from benchmarks.fleet import Event, Fault, Job, JobPlan, What, plan
from service.demo_site import GPUS_PER_NODE, NODES, Json, Site

STEP_S = 60.0
FOREVER_S = 30 * 86_400.0
STEPS_PER_CHECKPOINT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A workload's name, owner and nodes, how bold Relight may be with it, and what slows it."""

    name: str
    user: str
    mode: str
    seed: int
    nodes: tuple[str, ...]
    faults: tuple[Fault, ...] = ()


@dataclass(slots=True)
class Run:
    """The newest attempt of a workload. Units: seconds since the demo's beginning at `began`."""

    workload: Workload
    site: Site
    began: datetime
    nodes: list[str] = field(default_factory=list)
    index: int = -1
    reached: int = 0
    saved: int = 0
    _events: Iterator[Event] | None = None
    _next: Event | None = None
    _since_s: float = 0.0
    _first: int = 0

    @property
    def attempt(self) -> str:
        return f"{self.workload.name}-{self.index}"

    @property
    def ranks(self) -> int:
        return len(self.nodes) * GPUS_PER_NODE

    def node_of(self, rank: int) -> str:
        return self.nodes[rank // GPUS_PER_NODE]

    # -------------------------------------------------------------- its life

    def queue(self, at_s: float, nodes: Sequence[str]) -> None:
        """Another attempt waits for its nodes."""
        self.index += 1
        self.nodes = list(nodes)
        self._events = self._next = None
        self.observed("PENDING", at_s)

    def start(self, at_s: float, hang_at_s: float | None = None) -> None:
        """It runs, from the last checkpoint on; `hang_at_s` is when its ranks fall silent."""
        self._since_s, self._first, self.reached = at_s, self.saved, self.saved
        self.observed("RUNNING", at_s)
        hang = None if hang_at_s is None else hang_at_s - at_s
        self._events = Job(self._plan(at_s)).events(FOREVER_S, hang_at_s=hang)
        self._next = next(self._events)

    def stop(self) -> None:
        """Its ranks report no more; the scheduler has yet to say so."""
        self._events = self._next = None

    def observed(self, state: str, at_s: float, **more: Any) -> None:
        said = {
            "workload_id": self.workload.name,
            "scheduler": {"kind": "slurm", "job_id": str(7000 + self.workload.seed)},
            "attempt_index": self.index,
            "name": self.workload.name,
            "user": self.workload.user,
            "partition": "gpu",
            "allocated_nodes": [] if state == "PENDING" else self.nodes,
            "requested_nodes": len(self.nodes),
            "gpus_per_node": GPUS_PER_NODE,
            "cluster_nodes": NODES,
            "partition_nodes": NODES,
            "eligible_nodes": NODES,
            "requeueable": True,
            "state": state,
            "observed_at": self.moment(at_s).isoformat(),
        }
        if state != "PENDING":
            said["rank_to_node"] = {str(rank): self.node_of(rank) for rank in range(self.ranks)}
        self.site.attempt(self.attempt, {**said, **more})

    def moment(self, at_s: float) -> datetime:
        return self.began + timedelta(seconds=at_s)

    # -------------------------------------------------------------- what its ranks say

    def reports(self, until_s: float) -> Iterator[list[Json]]:
        """The signals of each step and checkpoint that fell due; none once its ranks are silent."""
        while self._next is not None and self._since_s + self._next.at_s <= until_s:
            event = self._next
            if event.what is What.STEP and event.compute is not None:
                yield self._step(event)
            elif event.what is What.CHECKPOINT_COMPLETED:
                self.saved = self._first + event.step
                yield [self._signal(event, "save", progress={"step": self.saved, "checkpoint_step": self.saved})]
            self._next = next(self._events, None) if self._events is not None else None

    def _step(self, event: Event) -> list[Json]:
        assert event.compute is not None
        self.reached = self._first + event.step
        timed = [
            self._signal(event, str(rank), step_timing={
                "rank": rank, "step": self.reached, "step_s": round(event.wall_s, 4), "compute_s": round(own, 4)})
            for rank, own in enumerate(event.compute.tolist())
        ]  # fmt: skip
        return [*timed, self._signal(event, "step", progress={"step": self.reached})]

    def _signal(self, event: Event, who: str, **payload: Json) -> Json:
        return {
            "source": "trainer",
            "source_event_id": f"{self.attempt}-{self._first + event.step}-{who}",
            "event_time": self.moment(self._since_s + event.at_s).isoformat(),
            "attempt_id": self.attempt,
            **payload,
        }

    def _plan(self, at_s: float) -> JobPlan:
        faults = tuple(replace(one, at_s=one.at_s - at_s) for one in self.workload.faults)
        drawn = plan(self.workload.seed + 100 * self.index, ranks=self.ranks, is_variable=False, faults=faults)
        return replace(
            drawn, stages=1, step_s=STEP_S, last_stage=1.0, checkpoint_every=STEPS_PER_CHECKPOINT, checkpoint_s=20.0,
            eval_every=None, stalls_per_day=0.0, start_s=150.0, warm_up_steps=2, ramp_at_s=None, ramp=1.0,
            drift_ratio=0.0,
        )  # fmt: skip
