# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""kill -9 at a chosen step: a real process of ours, forked with its imports done, ends itself where it is told to.

A step is a change outside of the process: a verb sent to Slurm, a request to the advisor, a write to a store of
its own, an event recorded. The product knows nothing of this; its classes are wrapped in the forked process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controllers.slurm.command_line import SlurmCommandLine
from controllers.slurm.http_transport import HttpTransport
from controllers.slurm.slips import FolderOfSlips
from controllers.slurm.store import Store
from relight.events import Event, MilestoneRecorded
from service import cli
from service.adapters.duckdb_audit import DuckDBAuditLog

VERBS = ("mark", "requeue_hold", "hold", "set_exclusions", "release", "start_after", "cancel")
UNRELATED = frozenset({"signal.accepted"})
# Of a job that is followed; with which other details of Slurm's a round falls together is chance.
_TOLD_OF_A_TRACK = frozenset({"applied", "asked", "is_gone", "last.state", "ours", "restart_count"})
_RESTLESS = frozenset({"observed_at", "eligible_nodes", "cluster_nodes", "partition_nodes", "seen_at"})


@dataclass(frozen=True, slots=True)
class Point:
    """One place to die at: before or after the n-th time that a step is taken. No step: only count them."""

    step: str = ""
    number: int = 1
    when: str = "after"

    def __str__(self) -> str:
        return f"{self.when} {self.step} #{self.number}"


@dataclass(frozen=True, slots=True)
class Orders:
    """What a subject's process is to do, and the steps that it took, as files that outlive it."""

    folder: Path
    who: str

    def arm(self, subject: str, point: Point) -> None:
        part = self.folder / f"{subject}.{self.who}.part"
        part.write_text(json.dumps(asdict(point)))
        part.replace(self._file(subject, "order"))

    def disarm(self, subject: str) -> None:
        self._file(subject, "order").unlink(missing_ok=True)

    def steps(self, subject: str) -> list[str]:
        file = self._file(subject, "steps")
        return file.read_text().splitlines() if file.exists() else []

    def has_killed(self, subject: str) -> bool:
        return self._file(subject, "killed").exists()

    def take(self, subject: str, step: str, call: Callable[[], Any]) -> Any:
        """Do what `call` does, unless it is time to die; a step counts once it is done."""
        point = self._point(subject)
        if point is None:
            return call()
        is_due = point.step == step and self.steps(subject).count(step) + 1 == point.number
        is_due = is_due and not self.has_killed(subject)
        if is_due and point.when == "before":
            self._die(subject)
        answer = call()
        with self._file(subject, "steps").open("a") as file:
            file.write(f"{step}\n")
        if is_due:
            self._die(subject)
        return answer

    def _point(self, subject: str) -> Point | None:
        try:
            return Point(**json.loads(self._file(subject, "order").read_text()))
        except FileNotFoundError:
            return None

    def _die(self, subject: str) -> None:
        self._file(subject, "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        signal.pause()

    def _file(self, subject: str, kind: str) -> Path:
        return self.folder / f"{subject}.{self.who}.{kind}"


# ------------------------------------------------------------------ whose steps


def wrap(kind: type, name: str, wrapped: Callable[..., Any]) -> None:
    """`wrapped(original, self, *args, **named)` instead of a method."""
    original = getattr(kind, name)

    def called(self: Any, *args: Any, **named: Any) -> Any:
        return wrapped(original, self, *args, **named)

    setattr(kind, name, called)


def controller_steps(orders: Orders, lane: str) -> None:
    """A lane has one job at a time, whose every step is the lane's."""

    def step(said: str) -> Callable[..., Any]:
        return lambda original, self, *args, **named: orders.take(
            lane, said, lambda: original(self, *args, **named)
        )  # fmt: skip

    for verb in VERBS:
        wrap(SlurmCommandLine, verb, step(f"scontrol {verb}"))
    wrap(FolderOfSlips, "put", step("slip put"))
    wrap(FolderOfSlips, "drop", step("slip drop"))

    def sent(original: Any, self: Any, method: str, path: str, **named: Any) -> Any:
        if method == "GET":
            return original(self, method, path, **named)
        said = f"{method} {_kind(path)} {_gist(named.get('body') or {})}".strip()
        return orders.take(lane, said, lambda: original(self, method, path, **named))

    wrap(HttpTransport, "send", sent)
    _store_steps(lambda _, said, call: orders.take(lane, said, call), lambda kind: kind != "meta")


def watchdog_steps(orders: Orders) -> None:
    """Its steps name their job themselves."""
    for verb in VERBS:
        wrap(SlurmCommandLine, verb,
             lambda original, self, job_id, *args, verb=verb: orders.take(
                 job_id, f"scontrol {verb}", lambda: original(self, job_id, *args)
             ))  # fmt: skip
    _store_steps(orders.take, lambda kind: kind == "seen")


def advisor_steps(orders: Orders) -> None:
    """What is recorded, by the attempt that it is about; one transaction is one step."""

    def appended(original: Any, self: Any, events: Sequence[Event]) -> Any:
        return _recorded(orders, events, lambda: original(self, events))

    def once(original: Any, self: Any, key: str, event: Event) -> Any:
        return _recorded(orders, [event], lambda: original(self, key, event))

    wrap(DuckDBAuditLog, "append", appended)
    wrap(DuckDBAuditLog, "record_once", once)


def _recorded(orders: Orders, events: Sequence[Event], call: Callable[[], Any]) -> Any:
    told = [one for one in events if one.kind not in UNRELATED]
    subject = next((str(attempt) for one in told if (attempt := getattr(one, "attempt", None))), "")
    said = " + ".join(map(_name, told))
    return orders.take(subject, said, call) if subject else call()


def _name(event: Event) -> str:
    return f"{event.kind} {event.step}:{event.phase}" if isinstance(event, MilestoneRecorded) else event.kind


def _store_steps(take: Callable[[str, str, Callable[[], Any]], Any], is_told: Callable[[str], bool]) -> None:
    """A document that stays as it is is no step."""

    def put(original: Any, self: Store, kind: str, key: str, body: Mapping[str, Any]) -> Any:
        changed = _changed(kind, self.get(kind, key) or {}, body) if is_told(kind) else ""
        return take(key, f"keep {kind}: {changed}", lambda: original(self, kind, key, body)) if changed else original(
            self, kind, key, body
        )  # fmt: skip

    def drop(original: Any, self: Store, kind: str, key: str) -> Any:
        is_there = is_told(kind) and self.get(kind, key) is not None
        return take(key, f"drop {kind}", lambda: original(self, kind, key)) if is_there else original(self, kind, key)

    def log(original: Any, self: Store, at: str, subject: str, step: str, phase: str, detail: Mapping[str, Any]) -> Any:
        return take(subject, f"log {step}:{phase}", lambda: original(self, at, subject, step, phase, detail))

    wrap(Store, "put", put)
    wrap(Store, "drop", drop)
    wrap(Store, "log", log)


def _changed(kind: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The names of the fields that differ, those of `times` and `last` one by one."""
    if not before:
        return "new"
    names = []
    for name in sorted(set(before) | set(after)):
        old, new = before.get(name), after.get(name)
        if name in {"times", "last"} and isinstance(new, Mapping):
            inner = {one for one in {*(old or {}), *new} if (old or {}).get(one) != new.get(one)} - _RESTLESS
            names += [f"{name}.{one}" for one in sorted(inner)]
        elif old != new and name not in _RESTLESS:
            names.append(name)
    if kind == "track" and names:
        names = sorted(_TOLD_OF_A_TRACK & set(names)) or ["details"]
    return " ".join(names)


def _kind(path: str) -> str:
    """A path without its identifiers."""
    return "/".join(part for part in path.removeprefix("/v1/").split("/") if not any(c.isdigit() for c in part))


def _gist(body: Mapping[str, Any]) -> str:
    said = [body.get(name) for name in ("trigger", "state", "step", "phase", "disposition")]
    return " ".join(str(one) for one in said if one)


# ------------------------------------------------------------------ the process


def live(argv: Sequence[str], environment: Mapping[str, str], log: str, orders: Orders, lane: str) -> None:
    """What a forked process does: it becomes a command of ours, with its steps watched."""
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    match orders.who:
        case "controller":
            controller_steps(orders, lane)
        case "watchdog":
            watchdog_steps(orders)
        case _:
            advisor_steps(orders)
    sys.argv = ["relight", *argv]
    cli.main()
