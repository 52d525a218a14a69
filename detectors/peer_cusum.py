# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""PeerCUSUM: which ranks have become slower than their peers, charged step by step for all ranks at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.peer_groups import Floats, PeerGroups, Slots

_KINDS: Mapping[str, type] = {
    "ranks": np.int32, "stages": np.int16, "bias": np.float32, "charge": np.float32, "excess": np.float32,
    "noise": np.float32, "last": np.float32, "since": np.float32, "count": np.int32, "taught": np.int16,
    "reports": np.uint8, "alarms": np.uint8, "is_alarmed": np.bool_,
}  # fmt: skip
MOST_SAMPLED = 1024
_NUMBERS = ("sigma", "rho", "wall_s", "long_steps", "spread")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerCusumOptions:
    """What is worth an alarm. `effect` is a logarithm: 0.05 is about 5 %; `false_per_day` is for the job."""

    effect: float = 0.05
    false_per_day: float = 0.01
    warmup: int = 20
    noise_floor: float = 0.003
    usual_spread: float = 0.01
    least_share: float = 0.2
    least_duration_s: float = 10.0
    most_taught: int = 1000
    carried_weight: int = 10


class PeerCusum:
    """One-sided CUSUM of each rank's logarithmic distance to its peers, beyond its own baseline.

    Shapes: `step` takes arrays of shape (ranks,) in the order of `ranks`; new ranks get a slot, absent ones
            are NaN. The state is 43 bytes a rank, whatever the stream's length.
    Units:  seconds; distances are ln(1 + (own - peers) / peers), where peers' work counts as at least
            `least_share` of the step, so that half of a millisecond is no slowness.
    Errors: none for any values; those that are negative or not finite count as absent.
    Source: Page's CUSUM with a threshold that follows from the noise, the number of ranks and the false
            alarms allowed a day; noise is the job's or the rank's own, whichever is larger, and counts
            more if it is correlated. A rank's baseline is shrunk to the spread seen between ranks:
            heterogeneous workers are usual there, one slow rank among equals is not.
    """

    def __init__(self, options: PeerCusumOptions | None = None) -> None:
        self.options = options or PeerCusumOptions()
        for name, kind in _KINDS.items():
            setattr(self, name, np.zeros(0, dtype=kind))
        self.sigma = self.rho = self.wall_s = self.long_steps = 0.0
        self.spread = self.options.usual_spread
        self.groups = PeerGroups(self.stages)
        self.stage_medians: Floats = np.zeros(0, dtype=np.float32)
        self.residual: Floats = np.zeros(0, dtype=np.float32)
        self.threshold: Floats = np.zeros(0, dtype=np.float32)

    ranks: NDArray[np.int32]
    stages: NDArray[np.int16]
    bias: Floats
    charge: Floats
    excess: Floats
    noise: Floats
    last: Floats
    since: Floats
    count: NDArray[np.int32]
    taught: NDArray[np.int16]
    reports: NDArray[np.uint8]
    alarms: NDArray[np.uint8]
    is_alarmed: NDArray[np.bool_]

    @property
    def nbytes(self) -> int:
        """What the state takes, without the arrays of one step that are free again."""
        return sum(int(getattr(self, name).nbytes) for name in _KINDS) + self.groups.nbytes

    # -------------------------------------------------------------- who is where

    def slots_of(self, ranks: NDArray[np.integer]) -> Slots:
        """Where these ranks are kept; ranks not seen before get a place."""
        if len(ranks) == len(self.ranks) and np.array_equal(ranks, self.ranks):
            return np.arange(len(ranks), dtype=np.int32)
        fresh = np.setdiff1d(ranks, self.ranks)
        if len(fresh):
            self._grow(fresh)
        return np.searchsorted(self.ranks, ranks).astype(np.int32)

    def _grow(self, fresh: NDArray[np.integer]) -> None:
        order = np.argsort(np.concatenate([self.ranks, fresh]), kind="stable")
        for name, kind in _KINDS.items():
            added = fresh if name == "ranks" else np.zeros(len(fresh))
            joined = np.concatenate([getattr(self, name), added.astype(kind)])
            setattr(self, name, joined[order])
        self.groups = PeerGroups(self.stages)

    def place(self, slots: Slots, stages: NDArray[np.integer]) -> None:
        """Say which pipeline stage ranks belong to; only a change costs anything."""
        if not np.array_equal(self.stages[slots], stages):
            self.stages[slots] = stages
            self.groups = PeerGroups(self.stages)

    # -------------------------------------------------------------- a step

    def step(self, work: Floats, wall_s: float, at_s: float, *, learns: bool = True) -> Slots:
        """Charge one step's work, given in the order of `ranks`; returns the slots newly alarmed."""
        if self._is_pause(wall_s):
            return np.zeros(0, dtype=np.int32)
        distance = self._distance(work, wall_s)
        present = np.isfinite(distance)
        ready = self.reports >= self.options.warmup
        if not ready.all():
            self._warm_up(distance, present & ~ready)
        r = np.where(present, distance - self.bias, 0.0).astype(np.float32, copy=False)
        self.residual = r
        active = present & ready
        own = self._own_noise()
        threshold = self.threshold = self._threshold(own)
        usual = active & ~self.is_alarmed & (self.charge < 0.25 * threshold)
        calm = present & ~self.is_alarmed & (self.charge < 0.5 * float(threshold.min(initial=np.inf)))
        new = self._charge(r, active, own, threshold, at_s)
        if learns:
            self._learn(r, usual, own)
            self._learn_noise(r, present, calm)
        return np.flatnonzero(new).astype(np.int32)

    def _is_pause(self, wall_s: float) -> bool:
        """A step that took far longer than usual is a save or a stall; the third in a row is the new usual."""
        if not (math.isfinite(wall_s) and wall_s > 0):
            return False
        if self.wall_s and wall_s > 2.5 * self.wall_s and self.long_steps < 3:
            self.long_steps += 1
            return True
        self.wall_s = wall_s if not self.wall_s or self.long_steps >= 3 else self.wall_s + 0.05 * (wall_s - self.wall_s)
        self.long_steps = 0
        return False

    def _distance(self, work: Floats, wall_s: float) -> Floats:
        work = np.where(work >= 0, work, np.nan).astype(np.float32, copy=False)
        peers, self.stage_medians = self.groups.medians(work)
        least = self.options.least_share * (self.wall_s or wall_s)
        base = np.maximum(peers, np.float32(max(least, 1e-6) if math.isfinite(least) else 1e-6))
        ratio = (work - peers) / base
        return np.log1p(np.clip(ratio, -0.9, 1e6, out=ratio), out=ratio)

    def _own_noise(self) -> Floats:
        """A rank's own noise where it clearly exceeds the job's, else the job's."""
        job = np.float32(max(self.sigma, self.options.noise_floor))
        own: Floats = np.where(self.noise > 1.3 * job, self.noise, job)
        return own

    def _threshold(self, own: Floats) -> Floats:
        effect = self.options.effect
        steps = 86400 / max(self.wall_s, 1e-3)
        logs = math.log(max(len(self.ranks), 1) * max(steps, 1) / self.options.false_per_day)
        correlated = (1 + self.rho) / (1 - self.rho)
        factor = np.float32(1.5 * correlated * logs / effect)
        threshold: Floats = np.maximum(factor * own * own, np.float32(9 * effect))
        return threshold

    def _charge(
        self, r: Floats, active: NDArray[np.bool_], own: Floats, threshold: Floats, at_s: float
    ) -> NDArray[np.bool_]:
        effect = self.options.effect
        clip = np.maximum(4 * own, np.float32(2 * effect))
        clipped = np.clip(r, -clip, clip)
        charge = np.where(active, np.maximum(self.charge + clipped - np.float32(effect / 2), 0), self.charge)
        is_up = charge > 0
        begins = is_up & (self.count == 0)
        self.since[begins] = at_s
        self.count = np.where(active, np.where(is_up, self.count + 1, 0), self.count).astype(np.int32, copy=False)
        self.excess = np.where(active, np.where(is_up, self.excess + clipped, 0), self.excess)
        lasting = self.count * np.float32(self.wall_s) >= self.options.least_duration_s
        new = (charge > threshold) & ~self.is_alarmed & (self.excess > 0.6 * effect * self.count) & lasting & active
        self.is_alarmed = (self.is_alarmed | new) & is_up
        self.alarms += new & (self.alarms < 255)
        self.charge = np.minimum(charge, 2 * threshold)
        return new

    # -------------------------------------------------------------- learning

    def _warm_up(self, distance: Floats, fresh: NDArray[np.bool_]) -> None:
        """Watch a new rank's first steps: the later half of them says where it usually is."""
        half, warmup = self.options.warmup // 2, self.options.warmup
        self.reports[fresh] += 1
        later = fresh & (self.reports > half)
        self.bias[later] += (np.clip(distance[later], -1, 1) - self.bias[later]) / (self.reports[later] - half)
        done = fresh & (self.reports >= warmup)
        if done.any():
            self._settle(done, warmup - half)

    def _settle(self, done: NDArray[np.bool_], steps: int) -> None:
        """Shrink the means of the first steps to a baseline; far from what is usual between ranks it is 0."""
        known = self.bias[(self.reports >= self.options.warmup)]
        sampling = max(self.sigma, self.options.noise_floor) ** 2 / steps
        between = (1.4826 * float(np.median(np.abs(known - np.median(known))))) ** 2
        self.spread = math.sqrt(max(self.options.usual_spread**2, between - sampling))
        mean = self.bias[done]
        reach = 3 * math.sqrt(self.spread**2 + sampling)
        far = self._are_few(done, mean > reach)
        weight = self.spread**2 / (self.spread**2 + sampling)
        self.bias[done] = np.where(far, 0, mean * np.float32(weight))
        self.taught[done] = np.maximum(self.taught[done], steps)
        self.noise[done] = np.maximum(self.noise[done], self.sigma)

    def _are_few(self, done: NDArray[np.bool_], far: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Many far ones in a group are its structure (an unknown stage, other hardware), not faults."""
        slots = np.flatnonzero(done)
        stage = np.searchsorted(self.groups.labels, self.stages[slots])
        each = np.bincount(stage[far], minlength=len(self.groups.labels))
        few = each <= np.maximum(1, self.groups.sizes // 5)
        return far & few[stage]

    def _learn(self, r: Floats, usual: NDArray[np.bool_], own: Floats) -> None:
        taught = np.minimum(self.taught + usual, self.options.most_taught)
        weight = taught + (own / np.float32(self.spread)) ** 2
        step = np.clip(r, -3 * own, 3 * own) / np.maximum(weight, 1)
        self.bias = np.where(usual, self.bias + step, self.bias)
        self.taught = taught.astype(np.int16)

    def _learn_noise(self, r: Floats, present: NDArray[np.bool_], calm: NDArray[np.bool_]) -> None:
        """The job's noise from all calm ranks of this step, a rank's from its successive differences.

        A rank in whose charge something is building up teaches nothing: its own fault would hide it.
        """
        some = slice(None, None, max(1, len(r) // MOST_SAMPLED))
        job = max(self.sigma, self.options.noise_floor)
        if calm[some].any():
            self._learn_job(r[some][calm[some]], self.last[some][calm[some]], 3 * job)
        moved = np.abs(r - self.last)
        moved = np.float32(0.8862) * np.minimum(moved, np.float32(5.66) * np.maximum(self.noise, np.float32(job)))
        rate: np.float32 | Floats = np.float32(0.01)
        if (self.reports < self.options.warmup).any():
            rate = np.where(self.reports < self.options.warmup, np.float32(0.1), rate)
        np.copyto(self.noise, self.noise + rate * (moved - self.noise), where=calm)
        np.copyto(self.last, r, where=present)

    def _learn_job(self, now: Floats, before: Floats, bound: float) -> None:
        spread = 1.4826 * float(np.median(np.abs(now)))
        self.sigma = spread if not self.sigma else self.sigma + 0.02 * (spread - self.sigma)
        now, before = np.clip(now, -bound, bound), np.clip(before, -bound, bound)
        if (power := float(np.dot(before, before))) > 0:
            self.rho += 0.02 * (float(np.dot(now, before)) / power - self.rho)
            self.rho = min(max(self.rho, 0.0), 0.8)

    # -------------------------------------------------------------- state

    def withdraw(self, slot: int) -> None:
        """Take back a new alarm that something else contradicts; the charge stays and may alarm again."""
        self.is_alarmed[slot] = False
        self.alarms[slot] -= 1

    def begin_again(self, keep_ranks: NDArray[np.bool_] | None = None) -> None:
        """A new attempt of the same shape: charges go, baselines stay with little weight where kept."""
        for name in ("charge", "excess", "last", "since", "count", "alarms", "is_alarmed"):
            getattr(self, name)[:] = 0
        if keep_ranks is not None:
            for name in ("bias", "taught", "reports", "noise"):
                getattr(self, name)[~keep_ranks] = 0
        np.minimum(self.taught, self.options.carried_weight, out=self.taught)
        self.wall_s = self.long_steps = 0.0

    def snapshot(self) -> dict[str, Any]:
        arrays = {name: getattr(self, name).tolist() for name in _KINDS}
        return {**arrays, **{name: getattr(self, name) for name in _NUMBERS}}

    def restore(self, state: Mapping[str, Any]) -> None:
        for name, kind in _KINDS.items():
            setattr(self, name, np.asarray(state[name], dtype=kind))
        for name in _NUMBERS:
            setattr(self, name, float(state[name]))
        self.groups = PeerGroups(self.stages)
