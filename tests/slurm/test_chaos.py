# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""kill -9 between every pair of steps of a recovery on the real cluster: the steps are those it really makes.

`make test-slurm` takes a sample that changes from run to run; RELIGHT_CHAOS=all takes them all, and
RELIGHT_CHAOS_SEED repeats a sample.
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from service.bootstrap import open_tokens
from service.config import load_settings
from service.tokens import Role
from tests.slurm.cluster import CannotRun, SlurmCluster, install
from tests.slurm.lanes import LANES, Book, Ground, Lane, end
from tests.slurm.policy_words import lift_limits
from tests.slurm.proof import AdvisorProcess
from tests.slurm.reaper import Point
from tests.slurm.stories import SILENT, STORIES, Run, Story, places, side_by_side

pytestmark = [pytest.mark.slurm, pytest.mark.chaos]
IS_WHOLE = os.environ.get("RELIGHT_CHAOS") == "all"
SEED = int(os.environ.get("RELIGHT_CHAOS_SEED") or time.time())
MISSED = 0.1  # where rounds fall differently, a step may not come up

Steps = Mapping[tuple[str, Story], tuple[str, ...]]


@pytest.fixture(scope="module")
def ground() -> Iterator[Ground]:
    try:
        install()
    except CannotRun as why:
        pytest.skip(f"NO REAL SLURM HERE: {why}")
    folder = Path(tempfile.mkdtemp(prefix="rlc-"))
    partitions = [
        f"PartitionName=lane{n} Nodes=node[{2 * n - 1}-{2 * n}] MaxTime=INFINITE" for n in range(1, LANES + 1)
    ]
    cluster = SlurmCluster(
        folder=Path(tempfile.mkdtemp(prefix="rls-")), nodes=2 * LANES, base_port=17_150 + (os.getpid() % 40) * 300,
        slurmd_timeout_s=60, extra=partitions,
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as listener:
        advisor = AdvisorProcess(folder=folder, port=listener.getsockname()[1])
    advisor.write_settings()
    secret, _ = open_tokens(load_settings(advisor.settings).settings).issue(
        Role.ADMIN, "chaos", at=datetime.now(UTC), days=1
    )
    (folder / "token").write_text(secret)
    book = Book(cluster=cluster)
    made = Ground(cluster=cluster, folder=folder, advisor=advisor, secret=secret, book=book)
    try:
        cluster.start()
        made.serve()
        made.until(lambda: made.ask("/readyz") is not None, 60, "the advisor answers")
        lift_limits(made.client)
        threading.Thread(target=book.watch, name="book", daemon=True).start()
        yield made
    finally:
        book.stop()
        end(made.watchdog)
        end(made.serving)
        made.client.close()
        cluster.stop()
        if not os.environ.get("RELIGHT_CHAOS_KEEP"):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def lanes(ground: Ground) -> Iterator[list[Lane]]:
    made = [Lane(ground=ground, number=number) for number in range(1, LANES + 1)]
    yield made
    for lane in made:
        end(lane.controller)


@pytest.fixture(scope="module")
def steps(ground: Ground, lanes: list[Lane]) -> Steps:
    """What each recovery does when nobody dies, of the controller and of the advisor."""
    ground.watch_over(hard_s=60)
    runs = [Run(story, Point(), who) for story in STORIES for who in ("controller", "controller", "advisor")]
    found: dict[tuple[str, Story], tuple[str, ...]] = {}
    results = side_by_side(lanes, runs)
    assert [one.wrong for one in results if one.wrong] == []
    for result in results:
        key = (result.run.who, result.run.story)
        found[key] = max(found.get(key, ()), result.steps, key=len)
    for (who, story), taken in sorted(found.items(), key=lambda one: (one[0][0], one[0][1].name)):
        print(f"{who}, {story.name}: {len(taken)} steps")
    return found


def chosen(runs: list[Run], sample: int) -> list[Run]:
    """All of them, or a sample that another seed makes another one."""
    if IS_WHOLE or len(runs) <= sample:
        return runs
    return random.Random(SEED).sample(runs, sample)


def all_are_well(lanes: list[Lane], runs: list[Run], what: str, out_of: int) -> None:
    """Runs in which nobody came to die are tried once more."""
    begun = time.monotonic()
    results = side_by_side(lanes, runs)
    again = [one.run for one in results if not one.was_killed and not one.wrong]
    results += side_by_side(lanes, again)
    killed = {one.run for one in results if one.was_killed}
    print(f"{what}: {len(killed)} of {len(runs)} places, of {out_of} that there are, in {time.monotonic() - begun:.0f} s"
          f" (seed {SEED}); never taken: {[str(run) for run in set(runs) - killed]}")  # fmt: skip
    wrong = [one.wrong for one in results if one.wrong]
    assert wrong == [], f"RELIGHT_CHAOS_SEED={SEED}: {len(wrong)} of {len(runs)}\n" + "\n".join(wrong)
    assert len(killed) >= (1 - MISSED) * len(runs)
    assert lanes[0].ground.book.overdue == []


def test_a_controller_killed_after_any_step_restarts_the_job_once(lanes: list[Lane], steps: Steps) -> None:
    runs = [Run(story, point) for story in STORIES for point in places(steps["controller", story])]
    all_are_well(lanes, chosen(runs, 24), "controller", len(runs))


def test_a_controller_that_dies_for_good_after_any_step_holds_no_job_past_its_deadline(
    ground: Ground, lanes: list[Lane], steps: Steps
) -> None:
    ground.watch_over(hard_s=6)
    try:
        runs = [
            Run(story, point, is_for_good=True) for story in STORIES for point in places(steps["controller", story])
        ]
        all_are_well(lanes, chosen(runs, 8), "controller, for good", len(runs))
    finally:
        ground.watch_over(hard_s=60)


def test_a_watchdog_killed_after_any_step_still_lets_go_in_time(ground: Ground, lanes: list[Lane]) -> None:
    """The controller has died for good with the job held and marked."""
    ground.watch_over(hard_s=6)
    try:
        with kept_alive(ground):
            alone = side_by_side(lanes, [Run(SILENT, Point(), "watchdog") for _ in range(2)])
            assert [one.wrong for one in alone if one.wrong] == []
            runs = [Run(SILENT, point, "watchdog") for point in places(max((one.steps for one in alone), key=len))]
            all_are_well(lanes, chosen(runs, 8), "watchdog", len(runs))
    finally:
        ground.watch_over(hard_s=60)


def test_an_advisor_killed_around_any_event_forgets_nothing(ground: Ground, lanes: list[Lane], steps: Steps) -> None:
    after = {story: places(steps["advisor", story])[1:] for story in STORIES}
    points = {story: [*after[story], *(replace(point, when="before") for point in after[story])] for story in STORIES}
    runs = [Run(story, point, "advisor") for story in STORIES for point in points[story]]
    with kept_alive(ground):
        all_are_well(lanes, chosen(runs, 8), "advisor", len(runs))
    verified = ground.client.post("/v1/audit/verify", json={}).json()
    assert verified["is_sound"], verified


@contextmanager
def kept_alive(ground: Ground) -> Iterator[None]:
    """What an init system does for advisor and watchdog."""
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(0.1):
            if ground.serving is None or not ground.serving.is_alive():
                ground.serve()
            if ground.watchdog is None or not ground.watchdog.is_alive():
                ground.watch_over(ground.book.hard_s)

    thread = threading.Thread(target=keep, name="init", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
