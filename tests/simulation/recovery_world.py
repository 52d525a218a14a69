# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A whole small world in virtual time: advisor in process, fake Slurm, controller, watchdog, and murder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, cast

import anyio.from_thread

from controllers.slurm.advice import Advisor, AdvisorUnreachable
from controllers.slurm.controller import Controller, Round
from controllers.slurm.opt_in import OptInRules
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.store import Store
from controllers.slurm.watchdog import Watch, Watchdog
from relight.events import MilestoneRecorded
from relight.hold_mark import HoldMark, MarkState, read_mark
from relight.testing.fake_slurm import FakeSlurm
from relight.types import AttemptState, Mode
from service.rules_store import RuleStore
from service.tokens import Role
from tests.api.running import XID_79, Service, StandingClock, start


class Killed(BaseException):
    """kill -9: nothing of the victim's own runs any more."""


@dataclass
class Reaper:
    """Kills whoever makes the n-th call to the outside, before the call or right after it took effect."""

    at: int | None = None
    is_after: bool = False
    calls: int = 0

    def around(self, call: Callable[[], Any]) -> Any:
        self.calls += 1
        is_hit = self.at == self.calls
        if is_hit and not self.is_after:
            raise Killed
        answer = call()
        if is_hit:
            raise Killed
        return answer


class Mortal:
    """Any object whose method calls pass by the reaper."""

    def __init__(self, inner: Any, reaper: Reaper, methods: frozenset[str]) -> None:
        self._inner, self._reaper, self._methods = inner, reaper, methods

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._methods:
            return found

        def called(*args: Any, **named: Any) -> Any:
            if args and args[0] in {"GET", "meta"}:  # reads and the place in the stream change nothing
                return found(*args, **named)
            return self._reaper.around(lambda: found(*args, **named))

        return called


@dataclass
class InProcess:
    """The advisor's API, without a network; silent while `is_down`."""

    service: Service
    is_down: bool = False
    sent: list[tuple[str, str]] = field(default_factory=list)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
        traceparent: str = "",
    ) -> tuple[int, Mapping[str, Any]]:
        if self.is_down:
            raise AdvisorUnreachable("connection refused")
        self.sent.append((method, path))
        said = {"json": body} if body is not None else {}
        if traceparent:
            said["headers"] = {"traceparent": traceparent}
        answer = self.service.request(method, path, params=dict(query or {}), **said)
        return answer.status_code, answer.json()


class MemorySlips:
    def __init__(self) -> None:
        self.kept: dict[str, HoldMark] = {}

    def put(self, job_id: str, mark: HoldMark) -> None:
        self.kept[job_id] = mark

    def drop(self, job_id: str) -> None:
        self.kept.pop(job_id, None)

    def all(self) -> Mapping[str, HoldMark]:
        return dict(self.kept)


VERBS = frozenset({"mark", "requeue_hold", "hold", "set_exclusions", "release", "start_after", "cancel"})
WRITES = frozenset({"put", "drop", "log"})


class World:
    """`step` lets one second pass and everybody act once; what must never happen is checked after each."""

    def __init__(
        self,
        rules: RuleStore,
        portal: anyio.from_thread.BlockingPortal,
        *,
        nodes: int = 6,
        settings: ControllerSettings | None = None,
        **slurm: Any,
    ) -> None:
        self.clock = StandingClock()
        self.service = start(rules, portal, clock=self.clock).as_(Role.CONTROLLER)
        self.slurm = FakeSlurm(self.clock, nodes, **slurm)
        self.transport = InProcess(self.service)
        self.store, self.watchdog_store, self.slips = Store(":memory:"), Store(":memory:"), MemorySlips()
        self.settings = settings or ControllerSettings(opt_in=OptInRules(default=Mode.ACT), verify_after_s=10)
        self.reaper, self.watchdog_reaper = Reaper(), Reaper()
        self.is_paused = self.has_watchdog = False
        self.has_watchdog = True
        self.has_controller = True
        self.last: Round | None = None
        self.boot()

    # -------------------------------------------------------------- processes

    def boot(self) -> None:
        """Start the controller and the watchdog, on what their predecessors left behind."""
        self.boot_controller()
        self.boot_watchdog()

    def boot_controller(self) -> None:
        reaper = self.reaper
        self.controller = Controller(
            self.settings,
            Mortal(self.slurm, reaper, VERBS),
            Advisor(Mortal(self.transport, reaper, frozenset({"send"}))),
            cast(Any, Mortal(self.store, reaper, WRITES)),
            Mortal(self.slips, reaper, frozenset({"put", "drop"})),
            self.clock,
            lambda: self.is_paused,
        )

    def boot_watchdog(self) -> None:
        reaper = self.watchdog_reaper
        self.watchdog = Watchdog(
            Mortal(self.slurm, reaper, VERBS),
            cast(Any, Mortal(self.watchdog_store, reaper, WRITES)),
            self.slips,
            self.clock,
        )

    def step(self, seconds: int = 1) -> None:
        for _ in range(seconds):
            self.clock.advance(seconds=1)
            if not self.transport.is_down:
                self._advisors_chores()
            if self.has_controller:
                self._act_controller()
            if self.has_watchdog:
                self._act_watchdog()
            self.check()

    def _advisors_chores(self) -> None:
        self.service.application.loop.tick(self.clock.at)
        self.service.application.advisor.sweep()

    def _act_controller(self) -> None:
        try:
            self.last = self.controller.tick()
        except Killed:
            self.boot_controller()

    def _act_watchdog(self) -> Watch | None:
        try:
            return self.watchdog.tick()
        except Killed:
            self.boot_watchdog()
            return None

    def until(self, claim: Callable[[], bool], limit: int = 400) -> int:
        """How many seconds it took. Errors: AssertionError if it never came true."""
        for second in range(limit):
            if claim():
                return second
            self.step()
        raise AssertionError(f"not within {limit} s; last round: {self.last}; jobs: {self.slurm.jobs()}")

    # -------------------------------------------------------------- events

    def running(self, nodes: int = 2, **said: Any) -> str:
        job_id = self.slurm.submit(nodes, **said)
        self.until(lambda: self.slurm.job(job_id).state is AttemptState.RUNNING)
        self.step(2)
        return job_id

    def attempt(self, job_id: str, restart_count: int | None = None) -> str:
        track = self.controller.following.track(job_id)
        assert track is not None
        return track.attempt(self.settings.cluster, restart_count)

    def gpu_falls_off(self, job_id: str) -> str:
        """The kernel of the job's first node reports it, and the job fails; the node is returned."""
        node = self.slurm.job(job_id).nodes[0]
        self.say(job_id, XID_79, stream="kernel", node=node, file="kern.log")
        self.slurm.end(job_id)
        return node

    def say(self, job_id: str, text: str, **over: Any) -> None:
        line = {"attempt_id": self.attempt(job_id), "file": "job.err", "number": self.clock.at.second + 1,
                "stream": "application", "at": self.clock.at.isoformat(), "text": text} | over  # fmt: skip
        sent = self.service.as_(Role.ADMIN).send_lines(line)
        assert sent.status_code == 200, sent.text

    # -------------------------------------------------------------- readings

    def advice(self, job_id: str, restart_count: int = 0) -> dict[str, Any]:
        attempt = self.attempt(job_id, restart_count)
        items: list[dict[str, Any]] = self.service.get("/v1/recommendations", params={"attempt": attempt}).json()[
            "items"
        ]
        assert len(items) <= 1, items
        return items[0] if items else {"state": "", "action": ""}

    def kinds(self) -> list[str]:
        return self.service.audit.kinds()

    def milestones(self) -> list[tuple[str, str]]:
        return [(e.step, str(e.phase)) for e in self.service.audit.events() if isinstance(e, MilestoneRecorded)]

    def deeds(self, what: str) -> int:
        return sum(deed.what == what for deed in self.slurm.deeds)

    def deeds_of(self, job_id: str) -> int:
        return sum(deed.job_id == job_id and deed.what in VERBS for deed in self.slurm.deeds)

    def touched(self, job_id: str) -> bool:
        """Whether any verb was sent for the job."""
        return self.deeds_of(job_id) > 0

    # -------------------------------------------------------------- what must never happen

    def check(self) -> None:
        for job in self.slurm.jobs():
            mark = read_mark(job.marks) or self.slips.kept.get(job.job_id)
            if not job.is_held or job.is_schedulers_hold or mark is None or mark.restart_count != job.restart_count:
                continue
            if mark.state is MarkState.DECIDING:
                late = (self.clock.at - min(mark.until, mark.placed_at + timedelta(seconds=240))).total_seconds()
                assert late <= 3, f"job {job.job_id} is held {late} s past its deadline"

    def check_audit(self) -> None:
        """Every verb on the scheduler has its intent and its outcome on record, in that order; the chain holds."""
        said = self.milestones()
        by_watchdog = {"release"} if any(entry[3] == "done" for entry in self.watchdog_store.entries()) else set()
        for step in ("requeue_hold", "set_exclusions", "release"):
            if not self.deeds(step):
                continue
            assert (step, "done") in said, (step, said)
            if step not in by_watchdog:
                assert (step, "intent") in said, (step, said)
                assert said.index((step, "intent")) < said.index((step, "done"))
        assert self.service.audit.verify().is_sound

    def with_settings(self, **over: Any) -> None:
        self.settings = replace(self.settings, **over)
        self.boot_controller()
