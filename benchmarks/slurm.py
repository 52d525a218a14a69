# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""200 concurrent jobs through one controller on the fake scheduler: how long a round takes, and how a burst drains.

The advisor runs in this process and is reached without a network; the store is a file, synced before each
verb. Latencies on a real cluster are those of `make test-slurm`.
"""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from pathlib import Path

import anyio.from_thread

from controllers.slurm.opt_in import OptInRules
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.store import Store
from relight.types import AttemptState, Mode
from service import bootstrap
from service.config import Settings
from service.tokens import Role
from tests.simulation.recovery_world import World

JOBS = 200
ROUNDS = 40
BURST = 20


def main() -> None:
    rules = bootstrap.rule_store(Settings())
    settings = ControllerSettings(opt_in=OptInRules(default=Mode.ACT), verify_after_s=2, settle_s=0, max_delay_s=0)
    with anyio.from_thread.start_blocking_portal() as portal, tempfile.TemporaryDirectory() as folder:
        world = World(rules, portal, nodes=JOBS + 20, settings=settings)
        world.store = Store(str(Path(folder) / "controller.sqlite"))
        world.boot_controller()
        _lift_limits(world)
        jobs = [world.slurm.submit(1, comment="relight=act") for _ in range(JOBS)]
        first = _round(world)
        quiet = [_round(world) for _ in range(ROUNDS)]
        busy: list[float] = []
        for number in range(ROUNDS):
            if number < JOBS // BURST:
                for job_id in jobs[number * BURST : (number + 1) * BURST]:
                    world.slurm.end(job_id, exit_code=7)
            busy.append(_round(world))
        done = sum(world.slurm.job(one).restart_count == 1 for one in jobs)
        running = sum(world.slurm.job(one).state is AttemptState.RUNNING for one in jobs)
    print(f"jobs {JOBS}; first round, all published: {first:.2f} s")
    print(f"quiet rounds: median {statistics.median(quiet):.3f} s, p99 {_p99(quiet):.3f} s")
    print(f"rounds while {BURST} jobs fail in each of {JOBS // BURST}: median {statistics.median(busy):.3f} s, "
          f"p99 {_p99(busy):.3f} s")  # fmt: skip
    print(f"restarted once: {done} of {JOBS}; running again: {running}")


def _lift_limits(world: World) -> None:
    """A burst like this would trip the breaker at once, as it should; here the controller is measured."""
    admin = world.service.as_(Role.ADMIN)
    told = admin.get("/v1/policy")
    text = told.json()["text"]
    for name, limit in (
        ("breaker_workloads", 0),
        ("cluster_restarts_per_hour", 9999),
        ("user_restarts_per_hour", 9999),
    ):
        text = re.sub(rf"(?m)^  {name}: \d+", f"  {name}: {limit}", text)
    body = {"text": text, "actor": "benchmark", "reason": "measures the controller, not the policy"}
    answer = admin.put("/v1/policy", json=body, headers={"If-Match": told.headers["ETag"]})
    if answer.status_code != 200:
        raise SystemExit(answer.text)


def _round(world: World) -> float:
    world.clock.advance(seconds=5)
    begun = time.perf_counter()
    world.controller.tick()
    return time.perf_counter() - begun


def _p99(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.99))]


if __name__ == "__main__":
    main()
