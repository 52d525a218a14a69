# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The hang detector: a job that made no progress for longer than its own pauses explain."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np

from detectors.hang_limits import START_LIMIT_S
from detectors.hang_watch import Judgement, Watch
from detectors.shapes import ShapeChange, change_of, is_far, joined
from relight.jsonform import decode, encode
from relight.ports import HangProbe, ProbeReading, ProbeSays
from relight.types import (
    Anomaly,
    AnomalyKind,
    AttemptId,
    AttemptState,
    Heartbeat,
    JobShape,
    LogLine,
    LogRef,
    NodeEvent,
    NodeName,
    Observation,
    Rank,
    Role,
    SchedulerState,
    Scope,
    StepBatch,
    StepProgress,
    StepTiming,
    Tier,
)
from relight.watching import HangTerms
from rules.match import Hit, RuleSet

COMMUNICATION_HANGS = frozenset(
    {
        "nccl_collective_timeout", "nccl_early_timeout", "nccl_watchdog_stuck", "collective_desync",
        "barrier_timeout_at_checkpoint",
    }
)  # fmt: skip
"""Failures whose symptom lines say that a collective waits in vain: no timer has to run out for them."""

_AHEAD = timedelta(seconds=30)
_MAX_SHAPES = 1_000
_NODE_FACT_AGE = timedelta(minutes=10)
_JUDGED = frozenset({AttemptState.RUNNING, AttemptState.SUSPECT})


class HangDetector:
    """Suspects early, confirms once: by a signature, by a probe that agrees, or by the learned limit.

    Shapes: any observation in; at most one suspicion a pause and one confirmed hang an attempt out.
    Units:  seconds on a clock that never runs back: an observation counts as arrived between the last tick
            and 30 s after it, so that a sender's wrong clock can't make a pause. `patience` multiplies every
            limit: 1 is what was measured, a twentieth makes a demonstration short.
    Errors: ValueError unless 0 < patience <= 10, and from `restore` for a state of another version or patience.
    Source: two tiers over `Pauses`; a pause is judged by its phase, never while the scheduler says that the
            job does not run or while our own collectors lag; open phases die with the attempt.
    """

    name = "hang"
    VERSION = 2

    def __init__(
        self,
        signatures: RuleSet | None = None,
        *,
        probes: Sequence[HangProbe] = (),
        start_limit_s: float = START_LIMIT_S,
        patience: float = 1.0,
    ) -> None:
        if not 0 < patience <= 10:
            raise ValueError(f"need 0 < patience <= 10, got {patience}")
        self._patience = patience
        self._probes = tuple(probes)
        self._start_limit_s = start_limit_s
        self._watches: dict[AttemptId, Watch] = {}
        self._placed: dict[AttemptId, dict[Rank, NodeName]] = {}
        self._node_facts: dict[NodeName, datetime] = {}
        self._shapes: dict[AttemptId, JobShape] = {}
        self._last_of_shape: dict[str, AttemptId] = {}
        self._now: datetime | None = None
        self.use_rules(signatures)

    def use_rules(self, signatures: RuleSet | None, _: RuleSet | None = None) -> None:
        """Take the communication hangs out of a rule set; other signatures are not looked at, nor is progress."""
        wanted = signatures.signatures if signatures is not None else ()
        self._signatures = RuleSet(s for s in wanted if COMMUNICATION_HANGS & {s.failure, *s.failures()})

    def place_ranks(self, attempt: AttemptId, rank_to_node: Mapping[Rank, NodeName]) -> None:
        self._placed[attempt] = dict(rank_to_node)

    def bound(self, attempt: AttemptId, terms: HangTerms) -> None:
        """What the job's owner or the site says of its pauses, which goes before what was learned of them."""
        self._watch(attempt).terms = terms

    def follow(self, attempt: AttemptId, previous: AttemptId) -> None:
        """Start `attempt` with what `previous`, of the same workload and shape, taught: not its clock or phases."""
        before = self._watches.get(previous)
        if before is not None:
            self._watch(attempt).inherit(before)

    def suspected(self) -> tuple[AttemptId, ...]:
        """Attempts for which a suspicion is open: worth the price of slower probes."""
        return tuple(a for a, w in self._watches.items() if w.is_suspected)

    # -------------------------------------------------------------- observations

    def observe(self, seen: Observation) -> tuple[Anomaly, ...]:
        match seen:
            case StepProgress():
                self._watch(seen.attempt).progressed(seen, self._arrived(seen.at))
            case StepBatch():
                self._batch(seen)
            case JobShape():
                self._shaped(seen)
            case StepTiming():
                step = StepProgress(attempt=seen.attempt, at=seen.at, step=seen.step, rank=seen.rank)
                self._watch(seen.attempt).progressed(step, self._arrived(seen.at))
            case Heartbeat():
                self._watch(seen.attempt).beat(int(seen.rank), self._arrived(seen.at))
            case SchedulerState():
                is_judged = seen.state in _JUDGED and "SUSPEND" not in seen.reason.upper()
                self._watch(seen.attempt).scheduled(is_judged, seen.state, self._arrived(seen.at))
            case LogLine():
                return self._line(seen)
            case NodeEvent():
                if seen.is_fatal:
                    self._node_facts[seen.node] = self._arrived(seen.at)
        return ()

    def screen(self, lines: Sequence[LogLine], raw: Sequence[bytes]) -> Collection[int]:
        """Those that may tell of a communication hang, and the first: all the others say is that somebody wrote.

        Before the first tick lines are timed by their own stamps, so that each counts.
        """
        if self._now is None:
            return range(len(lines))
        return {0, *(index for index, _ in self._signatures.scan(raw))} if lines else ()

    def _batch(self, seen: StepBatch) -> None:
        ranks = np.asarray(seen.ranks, np.int64)[~np.isnan(np.asarray(seen.step_s, np.float64))]
        if ranks.size:
            step = StepProgress(attempt=seen.attempt, at=seen.at, step=seen.step, rank=Rank(int(ranks[0])))
            self._watch(seen.attempt).progressed_together(step, ranks, self._arrived(seen.at))

    def _shaped(self, seen: JobShape) -> None:
        """An attempt of the same workload and shape starts with what the last one taught."""
        if seen.nodes:
            self.place_ranks(seen.attempt, {Rank(r): node for r, node in enumerate(seen.nodes)})
        known = self._shapes.get(seen.attempt)
        change, shape = change_of(known, seen), joined(known, seen)
        self._shapes[seen.attempt] = shape
        if (known is not None and is_far(known, shape)) or self._differs_from_those_before(seen.attempt, shape, change):
            self._watch(seen.attempt).paced_anew()
        if shape.workload is None:
            return
        key = f"{shape.workload}|{shape.world_size}|{shape.batch}|{shape.sequence_length}"
        before = self._last_of_shape.pop(key, None)
        if before not in (None, seen.attempt) and not self._watch(seen.attempt).has_progressed:
            self.follow(seen.attempt, AttemptId(before or ""))
        self._last_of_shape[key] = seen.attempt
        while len(self._last_of_shape) > _MAX_SHAPES:
            self._last_of_shape.pop(next(iter(self._last_of_shape)))

    def _differs_from_those_before(self, attempt: AttemptId, shape: JobShape, change: ShapeChange) -> bool:
        """True if what is now known of the shape speaks against what was inherited before it was known."""
        if change is not ShapeChange.FULLER:
            return False
        others = [one for a, one in self._shapes.items() if a != attempt and one.workload == shape.workload]
        return bool(others) and is_far(others[-1], shape)

    def _watch(self, attempt: AttemptId) -> Watch:
        known = self._watches.get(attempt)
        if known is None:
            known = self._watches[attempt] = Watch(self._patience, self._start_limit_s)
        return known

    def _arrived(self, at: datetime) -> datetime:
        """When an observation reached us; its own stamp only refines the time between two ticks."""
        if self._now is None:
            return at
        return min(max(at, self._now), self._now + _AHEAD)

    def _line(self, line: LogLine) -> tuple[Anomaly, ...]:
        watch = self._watch(line.attempt)
        at = self._now if self._now is not None else line.at
        if at is None:
            return ()
        watch.wrote(at)
        hit = self._communication_hang(line)
        if hit is None or not watch.may_confirm:
            return ()
        ranks = _named_ranks(hit)
        ref = LogRef(file=line.file, line=line.number)
        judgement = Judgement(1.0, None, watch.progress_at or at, f"{hit.title} ({hit.name})")
        return (self._confirmed(line.attempt, watch, judgement, at, ranks=ranks, evidence=(ref,)),)

    def _communication_hang(self, line: LogLine) -> Hit | None:
        raw = line.text.encode("utf-8", "surrogateescape")
        for hit in self._signatures.match_line(raw, line.stream):
            is_stable = hit.maturity == "stable"
            if is_stable and hit.role in {Role.SYMPTOM, Role.ROOT} and hit.failure in COMMUNICATION_HANGS:
                return hit
        return None

    # -------------------------------------------------------------- time

    def overdue(self, now: datetime) -> tuple[Anomaly, ...]:
        self._now = now if self._now is None else max(self._now, now)
        found: list[Anomaly] = []
        for attempt, watch in self._watches.items():
            found += self._judged(attempt, watch, self._now)
        return tuple(found)

    def _judged(self, attempt: AttemptId, watch: Watch, now: datetime) -> list[Anomaly]:
        watch.tick(now)
        if not watch.may_confirm or watch.is_held:
            return []
        suspicion = watch.suspicion(now)
        if suspicion is None and not watch.deserves_a_look(now):
            return []
        readings = self._readings(attempt, now)
        if any(r.says is ProbeSays.HOLD for r in readings):
            watch.hold_until(now)
            return []
        suspicion = suspicion or watch.agreed(now, [r for r in readings if r.says is ProbeSays.HUNG])
        if suspicion is None:
            return []
        found: list[Anomaly] = []
        if not watch.is_suspected:
            watch.is_suspected = True
            found.append(self._anomaly(attempt, watch, suspicion, now, tier=Tier.SUSPECT))
        confirmed = self._verdict(attempt, watch, readings, now)
        return [*found, confirmed] if confirmed is not None else found

    def _readings(self, attempt: AttemptId, now: datetime) -> list[ProbeReading]:
        readings = [probe.read(attempt, now) for probe in self._probes]
        nodes = set(self._placed.get(attempt, {}).values())
        dead = tuple(n for n, at in sorted(self._node_facts.items()) if n in nodes and now - at <= _NODE_FACT_AGE)
        if dead:
            reason = f"node event on {', '.join(dead)}"
            readings.append(ProbeReading(probe="node_events", says=ProbeSays.HUNG, nodes=dead, reason=reason))
        return readings

    def _verdict(
        self, attempt: AttemptId, watch: Watch, readings: Sequence[ProbeReading], now: datetime
    ) -> Anomaly | None:
        agreed = [r for r in readings if r.says is ProbeSays.HUNG]
        judgement = watch.agreed(now, agreed)
        if judgement is None:
            is_alive = any(r.says is ProbeSays.ALIVE for r in readings)
            judgement = watch.verdict(now, is_alive=is_alive)
        if judgement is None:
            return None
        ranks = tuple(dict.fromkeys(rank for r in agreed for rank in r.ranks))
        nodes = tuple(dict.fromkeys(node for r in agreed for node in r.nodes))
        return self._confirmed(attempt, watch, judgement, now, ranks=ranks, nodes=nodes)

    def _confirmed(
        self,
        attempt: AttemptId,
        watch: Watch,
        judgement: Judgement,
        now: datetime,
        *,
        ranks: tuple[Rank, ...] = (),
        nodes: tuple[NodeName, ...] = (),
        evidence: tuple[LogRef, ...] = (),
    ) -> Anomaly:
        watch.confirmed(judgement)
        return self._anomaly(
            attempt, watch, judgement, now, tier=Tier.CONFIRMED, ranks=ranks, nodes=nodes, evidence=evidence
        )

    def _anomaly(
        self,
        attempt: AttemptId,
        watch: Watch,
        judgement: Judgement,
        now: datetime,
        *,
        tier: Tier,
        ranks: tuple[Rank, ...] = (),
        nodes: tuple[NodeName, ...] = (),
        evidence: tuple[LogRef, ...] = (),
    ) -> Anomaly:
        placed = self._placed.get(attempt, {})
        accused = ranks or tuple(Rank(r) for r in watch.culprits(now))
        where = nodes or tuple(dict.fromkeys(placed[r] for r in accused if r in placed))
        named = [f"rank {r}" for r in accused] or [f"node {n}" for n in nodes] or ["culprit unknown"]
        return Anomaly(
            attempt=attempt, kind=AnomalyKind.HANG, detector=self.name, onset_at=min(judgement.onset_at, now),
            detected_at=now, score=judgement.score, threshold=judgement.threshold_s, baseline=watch.usual_s,
            evidence=evidence or watch.evidence, summary=f"{judgement.reason}; {', '.join(named)}", tier=tier,
            scope=Scope.RANK if accused else Scope.NODE if nodes else Scope.JOB,
            rank=accused[0] if len(accused) == 1 else None, node=where[0] if len(where) == 1 else None,
            detail={"phase": watch.kind, "ranks": list(accused), "nodes": list(where)},
        )  # fmt: skip

    # -------------------------------------------------------------- state

    def forget(self, attempt: AttemptId) -> None:
        self._watches.pop(attempt, None)
        self._placed.pop(attempt, None)
        self._shapes.pop(attempt, None)

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "version": self.VERSION,
            "patience": self._patience,
            "now": self._now.isoformat() if self._now is not None else None,
            "watches": {attempt: watch.as_json() for attempt, watch in self._watches.items()},
            "placed": {a: {str(r): n for r, n in ranks.items()} for a, ranks in self._placed.items()},
            "shapes": {attempt: encode(replace(shape, nodes=())) for attempt, shape in self._shapes.items()},
            "last_of_shape": dict(self._last_of_shape),
            "node_facts": {node: at.isoformat() for node, at in self._node_facts.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("version") != self.VERSION:
            raise ValueError(f"hang state of version {state.get('version')!r}; this code reads {self.VERSION}")
        if state.get("patience", 1.0) != self._patience:
            raise ValueError(f"hang state of patience {state.get('patience')}; this detector has {self._patience}")
        self._now = datetime.fromisoformat(state["now"]) if state["now"] is not None else None
        self._watches = {
            AttemptId(a): Watch.restored(w, self._patience, self._start_limit_s) for a, w in state["watches"].items()
        }
        self._placed = {
            AttemptId(a): {Rank(int(r)): NodeName(n) for r, n in ranks.items()} for a, ranks in state["placed"].items()
        }
        self._shapes = {AttemptId(a): decode(JobShape, shape) for a, shape in state["shapes"].items()}
        self._last_of_shape = {key: AttemptId(a) for key, a in state["last_of_shape"].items()}
        self._node_facts = {NodeName(n): datetime.fromisoformat(at) for n, at in state["node_facts"].items()}


def _named_ranks(hit: Hit) -> tuple[Rank, ...]:
    """Ranks that the line itself says did not arrive; the one that speaks is a victim."""
    if hit.signature.id != "pytorch.monitored_barrier":
        return ()
    ranks = str(hit.captures.get("ranks", hit.captures.get("rank", "")))
    return tuple(Rank(int(r)) for r in ranks.replace(",", " ").split() if r.isdigit())
