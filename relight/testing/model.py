# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The contract of every online model, as tests to inherit: bounded, deterministic, and silent without data."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from relight.ports import OnlineModel


class OnlineModelContract:
    """Inherit, and say how to make the model; `usual` are values it should find usual, `unusual` one it shouldn't."""

    def make(self) -> OnlineModel:
        raise NotImplementedError

    def usual(self, count: int) -> Sequence[float]:
        """Deterministic noise around 1: a sum of incommensurable waves."""
        return [1 + 0.02 * math.sin(1.7 * i * i) + 0.01 * math.sin(0.9 * i) for i in range(count)]

    ordinary: float = 1.0
    unusual: float = 1.5

    def taught(self, values: Sequence[float]) -> OnlineModel:
        model = self.make()
        for value in values:
            model.learn_one(value)
        return model

    def test_it_is_an_online_model(self) -> None:
        assert isinstance(self.make(), OnlineModel)

    def test_without_data_there_is_no_score(self) -> None:
        assert self.make().score_one(1.0) is None

    def test_scoring_teaches_nothing(self) -> None:
        model = self.taught(self.usual(100))
        before = json.dumps(model.snapshot())
        model.score_one(self.unusual)
        assert json.dumps(model.snapshot()) == before

    def test_values_that_are_no_numbers_neither_teach_nor_score(self) -> None:
        model = self.taught(self.usual(100))
        before = json.dumps(model.snapshot(), allow_nan=False)
        for value in (math.nan, math.inf, -math.inf):
            model.learn_one(value)
            assert model.score_one(value) is None
        assert json.dumps(model.snapshot(), allow_nan=False) == before

    def test_a_lasting_rise_scores_higher_than_usual_values(self) -> None:
        model = self.taught(self.usual(300))
        calm = model.score_one(self.ordinary)
        for _ in range(60):
            model.learn_one(self.unusual)
        risen = max(
            s
            for s in (self.taught(self.usual(300)).score_one(self.unusual), model.score_one(self.unusual))
            if s is not None
        )
        assert calm is not None and risen > max(calm, 0.02)

    def test_memory_is_bounded(self) -> None:
        some, many = (len(json.dumps(self.taught(self.usual(n)).snapshot())) for n in (5_000, 10_000))
        assert many < 2 * some + 100
        assert many < 100_000

    def test_a_snapshot_mid_stream_equals_none(self) -> None:
        values = [*self.usual(400), *(self.unusual * v for v in self.usual(200)), *self.usual(1000)]
        whole = self.taught(values)
        for cut in (1, 7, 123, 450, 1200):
            resumed = self.make()
            resumed.restore(json.loads(json.dumps(self.taught(values[:cut]).snapshot(), allow_nan=False)))
            for value in values[cut:]:
                resumed.learn_one(value)
            assert resumed.snapshot() == whole.snapshot()
            assert resumed.score_one(1.1) == whole.score_one(1.1)

    def test_the_state_of_another_model_or_version_is_refused(self) -> None:
        model = self.taught(self.usual(50))
        good = model.snapshot()
        for strange in (
            {**good, "version": 999},
            {**good, "model": "another"},
            {"model": model.name, "version": model.version},
            {},
        ):
            try:
                self.make().restore(strange)
            except ValueError as why:
                assert model.name in str(why)
            else:
                raise AssertionError(f"a strange state was taken over: {strange}")
