# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""ADWIN's opinion on the few ranks that the CUSUM suspects: an independent second vote."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from models.adwin_residual import AdwinResidual

MOST_VOTERS = 64
PAST = 256


class SecondVotes:
    """One ADWIN for each suspect rank, fed with what is typical of its peers and then with its own residuals.

    Shapes: at most 64 suspects and 256 values of a typical past, however many ranks there are.
    Units:  residuals are logarithms; a vote is a confirmed rise of 0.03 or more.
    Source: a rank that was slow from the start has no past of its own to differ from; its peers do.
    """

    def __init__(self) -> None:
        self._typical: deque[float] = deque(maxlen=PAST)
        self._voters: dict[int, AdwinResidual] = {}
        self._level: dict[int, float] = {}

    def see_typical(self, residual: float) -> None:
        self._typical.append(residual)

    def see(self, suspects: Mapping[int, float]) -> None:
        """The residuals of this step's suspects by rank; who is none any more loses his voter."""
        for rank in [r for r in self._voters if r not in suspects]:
            del self._voters[rank], self._level[rank]
        for rank, residual in suspects.items():
            voter = self._voters.get(rank)
            if voter is None:
                if len(self._voters) >= MOST_VOTERS:
                    continue
                voter = self._voters[rank] = AdwinResidual(keep=1024)
                for value in self._typical:
                    voter.learn_one(value)
                self._level[rank] = residual
            voter.learn_one(residual)
            self._level[rank] += 0.1 * (residual - self._level[rank])

    def agrees(self, rank: int) -> bool | None:
        """Does ADWIN see a rise? None if it wasn't asked or hasn't seen enough."""
        voter = self._voters.get(rank)
        score = None if voter is None else voter.score_one(0.0)
        return None if score is None else score > 0

    def level(self, rank: int) -> float | None:
        """The recent mean residual of a suspect."""
        return self._level.get(rank)

    def snapshot(self) -> dict[str, Any]:
        return {
            "typical": list(self._typical),
            "voters": [[r, self._level[r], voter.snapshot()] for r, voter in self._voters.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._typical = deque(state["typical"], maxlen=PAST)
        self._voters, self._level = {}, {}
        for rank, level, past in state["voters"]:
            self._voters[rank] = AdwinResidual(keep=1024)
            self._voters[rank].restore(past)
            self._level[rank] = level
