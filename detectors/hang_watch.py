# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The watch over one attempt: since when it makes no progress, in which phase, and how long that may last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.hang_limits import COMPILE_GAPS, START_LIMIT_S, Limits, Pause
from detectors.pauses import MIN_ORDINARY, Pauses
from detectors.rank_signs import Lagging, RankSigns
from relight.ports import ProbeReading
from relight.types import AttemptState, LogRef, Phase, StepProgress
from relight.watching import HangTerms

OWN_GAP_S = 60.0
_OWN_GAP_AT_LEAST_S = 5.0  # of our own clock: a busy machine ticks late, however small the patience
_SAME_BATCH_S = 1e-3
_UNNAMED_SLACK = 3


@dataclass(frozen=True, slots=True)
class Judgement:
    """A pause that is too long: `score` is what was measured, `threshold_s` what would have been usual."""

    score: float
    threshold_s: float | None
    onset_at: datetime
    reason: str


class Watch:
    """Clock, phases and learned pauses of one attempt.

    Shapes: observations in order of arrival; steps may repeat, be late, or go back.
    Units:  seconds since the epoch on the detector's own clock, which never runs back. It runs `1 / patience`
            times as fast as ours: a patience below 1 shrinks every limit and every prior alike.
    Errors: none for any observation; `restored` raises what `Pauses.restored` raises.
    """

    def __init__(self, patience: float = 1.0, start_limit_s: float = START_LIMIT_S) -> None:
        self._patience = patience
        self._start_limit_s = start_limit_s
        self.terms = HangTerms()
        self.pauses = Pauses()
        self.ranks = RankSigns()
        self.is_suspected = False
        self.is_confirmed = False
        self.is_held = False
        self.is_over = False
        self.evidence: tuple[LogRef, ...] = ()
        self._clock = 0.0
        self._began: float | None = None
        self._progress: float | None = None
        self._floor = 0.0
        self._wrote = 0.0
        self._ticked: float | None = None
        self._step: int | None = None
        self._unnamed_step: int | None = None
        self._rewinds: dict[int, int] = {}
        self._marks: frozenset[str] = frozenset()
        self._is_tainted = False
        self._gaps = 0
        self._longest_s = 0.0
        self._settled_s = 0.0
        self._expected_s = 0.0
        self._confirmed_after_s: float | None = None

    # -------------------------------------------------------------- what is seen

    def _on_clock(self, at: datetime) -> float:
        return at.timestamp() / self._patience

    def _when(self, clock: float) -> datetime:
        return datetime.fromtimestamp(clock * self._patience, UTC)

    def _advanced(self, at: datetime) -> float:
        self._clock = max(self._clock, self._on_clock(at))
        if self._began is None:
            self._began = self._clock
        return self._clock

    def inherit(self, before: Watch) -> None:
        """Beliefs, not clocks: phases that were open and ranks that were behind died with that attempt.

        A pause that was ended on our word alone may not have been a hang: the next attempt is given longer at
        such a place, so that a job is not ended for ever by the evaluation that we can't see.
        """
        self.pauses = before.pauses.carried()
        if before._confirmed_after_s is not None:
            self.pauses.learn(2.0 * before._confirmed_after_s, before._marks, before._step)

    def paced_anew(self) -> None:
        """The job trains with another batch or length: its steps have another pace, its phases about the same."""
        self.pauses = self.pauses.carried(keeps_pace=False)
        self._gaps, self._longest_s, self._expected_s = 0, 0.0, 0.0

    @property
    def has_progressed(self) -> bool:
        return self._progress is not None

    def confirmed(self, judgement: Judgement) -> None:
        """Remember a verdict; `threshold_s` is set if nothing but time spoke for it."""
        self.is_confirmed = True
        limit_s = judgement.threshold_s
        self._confirmed_after_s = None if limit_s is None else limit_s / self._patience

    def wrote(self, at: datetime) -> None:
        self._wrote = max(self._wrote, self._advanced(at))

    def beat(self, rank: int, at: datetime) -> None:
        self.ranks.beat(rank, self._advanced(at))

    def scheduled(self, is_judged: bool, state: AttemptState, at: datetime) -> None:
        """What the scheduler says: while the job does not run, its silence means nothing."""
        now = self._advanced(at)
        if self.is_held and is_judged:
            self._hold(now)
        self.is_held = not is_judged
        self.is_over = self.is_over or state.is_terminal

    def progressed(self, seen: StepProgress, at: datetime) -> None:
        now = self._advanced(at)
        self._wrote = max(self._wrote, now)
        if seen.phase is not Phase.STEP or not seen.is_completed or seen.checkpoint_step is not None:
            self._marked(seen)
            return
        step, rank = seen.step, int(seen.rank) if seen.rank is not None else None
        if step is None or self._step is None or step > self._step:
            self._advance(seen, now)
        elif step < self._step and self._goes_back(step, rank):
            self._rewound(step, now)
        if step is not None and rank is not None:
            self.ranks.stepped_alone(rank, step, now)
        elif step is not None:
            self._unnamed_step = max(step, self._unnamed_step or 0)

    def progressed_together(self, seen: StepProgress, ranks: NDArray[np.int64], at: datetime) -> None:
        """One step of many ranks, reported at once."""
        self.progressed(seen, at)
        if seen.step is not None:
            self.ranks.stepped(ranks, seen.step, self._clock)

    def _marked(self, seen: StepProgress) -> None:
        if seen.phase is Phase.STEP and seen.checkpoint_step is None:
            return
        phase = Phase.CHECKPOINT if seen.phase is Phase.STEP else seen.phase
        if phase is Phase.START and self._progress is not None and Phase.START.value not in self._marks:
            self._marks = frozenset()  # a restart inside the attempt: what was open is open no more
            self._gaps, self._longest_s = 0, 0.0
        self._marks |= {phase.value}
        self._refer(seen)

    def _refer(self, seen: StepProgress) -> None:
        if seen.where is not None:
            self.evidence = (seen.where,)

    def _goes_back(self, step: int, rank: int | None) -> bool:
        """True once a writer counts up again below what it had reached: a single low number is a late line."""
        writer = -1 if rank is None else rank
        own = self._unnamed_step if rank is None else self.ranks.last_step(rank)
        if own is None or step >= own - (_UNNAMED_SLACK if rank is None else 0):
            return False
        before = self._rewinds.get(writer)
        self._rewinds[writer] = step
        return before is not None and step > before

    def _rewound(self, step: int, now: float) -> None:
        gap_s = self._elapsed_at(now)
        if Phase.START.value in self._marks or self.pauses.is_long(gap_s):
            self._gaps, self._longest_s = 0, 0.0
        self._step, self._unnamed_step, self._progress = step, step, now
        self._rewinds.clear()
        self.ranks.rewound(step)
        self._settle()

    def _advance(self, seen: StepProgress, now: float) -> None:
        ended = seen.step
        stride = 1 if ended is None or self._step is None else ended - self._step
        if self._progress is None:
            self._first_progress(now)
        elif now - self._progress > _SAME_BATCH_S:
            self._gap_ended(now)
        if seen.step_s is not None:
            expected_s = seen.step_s * stride / self._patience
            self._expected_s = min(expected_s, 6 * 3600.0) if stride < 10_000 else 0.0
        self._progress = now
        self._step = ended if ended is not None else self._step
        self._rewinds.clear()
        self._settle()
        self._refer(seen)

    def _first_progress(self, now: float) -> None:
        if self._began is not None and now > self._began and not self._is_tainted:
            self._longest_s = 0.0
            self.pauses.learn(now - self._began, frozenset({Phase.START.value}), None)

    def _gap_ended(self, now: float) -> None:
        gap_s = self._elapsed_at(now)
        self._gaps += 1
        self._longest_s = max(self._longest_s, gap_s)
        self._settled_s = max(self._settled_s, gap_s) if self._gaps > COMPILE_GAPS else 0.0
        if self._gaps == MIN_ORDINARY and not self._is_tainted:
            self.pauses.warmed_up(self._longest_s)
        is_compile = self._gaps <= COMPILE_GAPS and not self._marks
        if self._is_tainted or is_compile:
            return
        # What was called a hang and ended by itself was a pause, but a fault may have had its part in it.
        known_s = self._confirmed_after_s
        self.pauses.learn(gap_s if known_s is None else min(gap_s, 2.0 * known_s), self._marks, self._step)
        self._confirmed_after_s = None

    def _settle(self) -> None:
        self._marks = frozenset()
        self.is_suspected = False
        self._is_tainted = False

    # -------------------------------------------------------------- time

    def tick(self, now: datetime) -> None:
        """Let time pass; where we were away ourselves, the silence was ours."""
        at = self._advanced(now)
        own_gap = max(OWN_GAP_S, _OWN_GAP_AT_LEAST_S / self._patience)
        before = self._ticked if self._ticked is not None else self._began
        was_away = before is not None and at - before > own_gap
        self._ticked = at
        if self.is_held or was_away:
            self._hold(at)

    def hold_until(self, now: datetime) -> None:
        self._hold(self._advanced(now))

    def _hold(self, at: float) -> None:
        self._floor = max(self._floor, at)
        self._is_tainted = True
        self.is_suspected = False

    def _elapsed_at(self, at: float) -> float:
        since = self._progress if self._progress is not None else self._began
        return at - max(since if since is not None else at, self._floor)

    # -------------------------------------------------------------- verdicts

    @property
    def may_confirm(self) -> bool:
        return not (self.is_confirmed or self.is_over or self.is_held or Phase.END.value in self._marks)

    @property
    def progress_at(self) -> datetime | None:
        return self._when(self._progress) if self._progress is not None else None

    @property
    def usual_s(self) -> float | None:
        median = self.pauses.median_s
        return None if median is None else median * self._patience

    @property
    def kind(self) -> str:
        """The class of the running pause."""
        if self._progress is None:
            return Phase.START.value
        return self.pauses.class_of(self._marks, self._step)

    def _limits(self) -> Limits:
        is_first = self._gaps == 0 and self._progress is not None and self._began is not None
        pause = Pause(
            kind=self.kind, is_marked=bool(self._marks), has_progressed=self._progress is not None, gaps=self._gaps,
            longest_s=self._longest_s, settled_s=self._settled_s, expected_s=self._expected_s,
            start_s=(self._progress or 0.0) - (self._began or 0.0) if is_first else 0.0,
        )  # fmt: skip
        return Limits(self.pauses, pause, self._start_limit_s, self.terms.scaled(1.0 / self._patience))

    def suspicion(self, now: datetime) -> Judgement | None:
        at, limit_s = self._on_clock(now), self._limits().suspect_after_s()
        if self._elapsed_at(at) <= limit_s:
            return None
        return self._judgement(at, limit_s, f"no progress in phase {self.kind}")

    def deserves_a_look(self, now: datetime) -> bool:
        """Whether second signs are worth asking before time alone makes a suspicion."""
        after_s = self._limits().look_after_s()
        return after_s is not None and self._elapsed_at(self._on_clock(now)) > after_s

    def verdict(self, now: datetime, *, is_alive: bool) -> Judgement | None:
        """A hang by time alone; a job that still writes, or that a probe calls alive, is given longer."""
        at = self._on_clock(now)
        is_silent = self._progress is not None and self.ranks.all_silent(max(self._progress, self._floor), at)
        is_alive = is_alive or self._is_talking(at)
        limit_s = self._limits().confirm_after_s(is_silent=is_silent, is_alive=is_alive)
        if limit_s is None or self._elapsed_at(at) <= limit_s:
            return None
        return self._judgement(at, limit_s, f"hang: no progress in phase {self.kind} beyond what it ever took")

    def agreed(self, now: datetime, readings: Sequence[ProbeReading]) -> Judgement | None:
        """A hang because a second sign agrees with the suspicion."""
        at, limits = self._on_clock(now), self._limits()
        if self._elapsed_at(at) <= limits.agree_after_s():
            return None
        reasons = [r.reason or r.probe for r in readings]
        lagging = self._lagging(at)
        if lagging is not None and lagging.is_firm and self._elapsed_at(at) > limits.rank_silent_s():
            reasons.append(lagging.reason)
        if not reasons:
            return None
        return self._judgement(at, None, f"hang: no progress in phase {self.kind}, and {', '.join(reasons)}")

    def culprits(self, now: datetime) -> tuple[int, ...]:
        lagging = self._lagging(self._on_clock(now))
        return lagging.ranks if lagging is not None else ()

    def _lagging(self, at: float) -> Lagging | None:
        since = self._progress if self._progress is not None else self._began
        if since is None:
            return None
        return self.ranks.lagging(max(since, self._floor), at, self.pauses.median_s or 0.0)

    def _is_talking(self, at: float) -> bool:
        began = self._progress if self._progress is not None else self._began
        fresh_s = max(30.0, 5.0 * (self.pauses.median_s or 0.0))
        return began is not None and self._wrote > began + _SAME_BATCH_S and at - self._wrote <= fresh_s

    def _judgement(self, at: float, limit_s: float | None, reason: str) -> Judgement:
        elapsed = self._elapsed_at(at)
        onset = self._when(min(at, at - elapsed + (self.pauses.median_s or 0.0)))
        took_s = elapsed * self._patience
        threshold_s = None if limit_s is None else limit_s * self._patience
        return Judgement(took_s, threshold_s, onset, f"{reason} ({took_s:.{0 if took_s >= 10 else 1}f} s)")

    # -------------------------------------------------------------- state

    _PLAIN = (
        "is_suspected", "is_confirmed", "is_held", "is_over", "_clock", "_began", "_progress", "_floor", "_wrote",
        "_ticked", "_step", "_unnamed_step", "_is_tainted", "_gaps", "_longest_s", "_settled_s", "_expected_s",
        "_confirmed_after_s",
    )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self, name) for name in self._PLAIN},
            "pauses": self.pauses.as_json(),
            "ranks": self.ranks.as_json(),
            "rewinds": {str(writer): step for writer, step in self._rewinds.items()},
            "marks": sorted(self._marks),
            "evidence": [[ref.file, ref.line] for ref in self.evidence],
            "terms": self.terms.as_json(),
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], patience: float = 1.0, start_limit_s: float = START_LIMIT_S) -> Watch:
        out = cls(patience, start_limit_s)
        out.terms = HangTerms(**state["terms"])
        for name in cls._PLAIN:
            setattr(out, name, state[name])
        out.pauses = Pauses.restored(state["pauses"])
        out.ranks = RankSigns.restored(state["ranks"])
        out._rewinds = {int(writer): step for writer, step in state["rewinds"].items()}
        out._marks = frozenset(state["marks"])
        out.evidence = tuple(LogRef(file=file, line=line) for file, line in state["evidence"])
        return out
