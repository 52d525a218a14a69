# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What goes wrong in a lane, what must have come of it, and the lanes at work side by side."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx

from tests.api.running import XID_79
from tests.slurm.cluster import Broken
from tests.slurm.lanes import Lane
from tests.slurm.reaper import Orders, Point

RECORDED = ("attribution.made", "recommendation.issued", "recommendation.claimed", "milestone.recorded",
            "reconciliation.reported")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Story:
    name: str
    break_it: Callable[[Lane, str], None]
    excludes: bool
    is_slurms: bool = False

    def is_over(self, lane: Lane) -> bool:
        """Spares the test the two minutes that Slurm itself lets a job wait which it queued again by itself."""
        job, outcome = lane.job, lane.outcome()
        is_seen_to = job.get("ExcNodeList") != "(null)" or time.monotonic() > lane.hurries_from
        if self.is_slurms and job.get("Reason") == "BeginTime" and is_seen_to:
            lane.hurry()
        return outcome is not None


def _silent_failure(lane: Lane, _: str) -> None:
    """No cause in the log: held first, claimed after a while."""
    (lane.run / "fail").touch()


def _dead_gpu(lane: Lane, node: str) -> None:
    """The kernel names the cause: claimed, held, excluded, released."""
    line = {"attempt_id": lane.attempt_id, "file": "kern.log", "number": 1, "stream": "kernel", "node": node,
            "at": datetime.now(UTC).isoformat(), "text": XID_79}  # fmt: skip
    lane.ground.send_line(line)
    (lane.run / "fail").touch()


def _lost_node(lane: Lane, node: str) -> None:
    """Slurm requeues by itself: adopted."""
    lane.ground.cluster.client("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=power")


SILENT = Story("silent failure", _silent_failure, excludes=False)
DEAD_GPU = Story("dead GPU", _dead_gpu, excludes=True)
LOST_NODE = Story("lost node", _lost_node, excludes=True, is_slurms=True)
PATIENCE_S = 150.0  # the advisor may be killed eight times meanwhile
HELD = Point("scontrol mark")
STORIES = (SILENT, DEAD_GPU, LOST_NODE)


@dataclass(frozen=True, slots=True)
class Run:
    """One failure in one lane, and where who dies."""

    story: Story
    point: Point
    who: str = "controller"
    is_for_good: bool = False

    @property
    def orphans(self) -> Point | None:
        """Where the controller dies for good, so that the watchdog is left alone with a hold."""
        if self.who == "watchdog":
            return HELD
        return self.point if self.is_for_good else None

    def __str__(self) -> str:
        return f"{self.story.name}, {self.who} dies {'for good ' if self.is_for_good else ''}{self.point}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """`steps` are those of the one who was to die; `wrong` is empty if all is well."""

    run: Run
    was_killed: bool = False
    steps: tuple[str, ...] = ()
    wrong: str = ""


# ------------------------------------------------------------------ one run


def recovered(lane: Lane, run: Run) -> Result:
    """Break a fresh job and see that it recovers as it must."""
    lane.begin()
    try:
        subject = {"controller": lane.name, "watchdog": lane.job_id, "advisor": lane.attempt_id}[run.who]
        orders = Orders(lane.ground.orders, run.who)
        before, victim = lane.step, lane.fresh()["NodeList"]
        orders.arm(subject, run.point)
        if run.orphans is not None:
            lane.dies_for_good, lane.hurries_from = True, time.monotonic() + 20
            lane.orders.arm(lane.name, run.orphans)
        run.story.break_it(lane, victim)
        if run.orphans is not None:
            outlived(lane, run.story)
        lane.wait(lambda: run.story.is_over(lane), PATIENCE_S, "the recovery is over")
        if run.orphans is not None:  # Slurm's own two minutes are nobody's to spare where the watchdog let go
            lane.hurry()
        lane.wait(lambda: lane.fresh()["JobState"] == "RUNNING", 60, "it runs again")
        lane.wait(lambda: lane.step > before + 3, 40, "it trains beyond its last step")
        assert_restarted_once(lane)
        assert_on_record(lane)
        if run.orphans is None:
            assert_as_advised(lane, victim if run.story.excludes else None)
        return Result(run=run, was_killed=orders.has_killed(subject), steps=tuple(orders.steps(subject)))
    finally:
        lane.finish()


def outlived(lane: Lane, story: Story) -> None:
    """The controller is gone for good: until the hold is let go nobody starts another."""
    lane.wait(lambda: lane.orders.has_killed(lane.name) or story.is_over(lane), 60, "the controller dies")
    hard = lane.ground.book.hard_s
    lane.wait(lambda: lane.fresh().get("Priority") != "0", hard + 12, "somebody lets go of the job")
    assert int(lane.fresh()["Restarts"]) <= 1
    lane.dies_for_good = False


def assert_restarted_once(lane: Lane) -> None:
    job = lane.fresh()
    assert (job["Restarts"], len(lane.began_on)) == ("1", 2), (
        f"one failure, one restart: {job['Restarts']}, {lane.began_on}"
    )
    assert "relight:" not in job.get("AdminComment", ""), job["AdminComment"]
    assert len(lane.advice()) == 1, [one["id"] for one in lane.advice()]


def assert_as_advised(lane: Lane, victim: str | None) -> None:
    """What was advised is what came of it."""
    (advice,), job = lane.advice(), lane.fresh()
    assert advice["state"] == "CONVERGED", (advice["state"], lane.milestones())
    named = [one["node"] for one in advice["exclusions"]]
    assert job["ExcNodeList"] == (",".join(named) or "(null)"), (job["ExcNodeList"], named)
    assert named == ([victim] if victim else []), named
    assert not set(named) & set(lane.began_on[1:]), lane.began_on


def assert_on_record(lane: Lane) -> None:
    """Every verb that took effect is in the audit log, its intent before it; so is all that led to it."""
    told, kinds = lane.milestones(), [one["kind"] for one in lane.timeline()]
    for verb in lane.done():
        assert f"{verb}:done" in told, (verb, told)
        assert f"{verb}:intent" in told, (verb, told)
        assert told.index(f"{verb}:intent") < told.index(f"{verb}:done"), told
    left = iter(kinds)
    if lane.done() and lane.advice()[0]["state"] == "CONVERGED":
        assert all(kind in left for kind in RECORDED), kinds


# ------------------------------------------------------------------ many runs


def side_by_side(lanes: Iterable[Lane], runs: Iterable[Run]) -> list[Result]:
    """Every run in the next free lane."""
    left: queue.SimpleQueue[Run] = queue.SimpleQueue()
    for run in runs:
        left.put(run)
    results: list[Result] = []

    def work(lane: Lane) -> None:
        while True:
            try:
                run = left.get_nowait()
            except queue.Empty:
                return
            try:
                results.append(recovered(lane, run))
            except (AssertionError, Broken, KeyError, httpx.HTTPError) as why:
                results.append(Result(run=run, wrong=f"{run}: {type(why).__name__} {why}"))
                print(results[-1].wrong, flush=True)  # there may be an hour to go

    threads = [threading.Thread(target=work, args=(lane,), name=lane.name, daemon=True) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def places(steps: Sequence[str]) -> list[Point]:
    """Before the first step, and after each: between two steps there is nothing but memory."""
    found = [Point(step, list(steps[: index + 1]).count(step)) for index, step in enumerate(steps)]
    return [Point(steps[0], 1, "before"), *found] if steps else []
