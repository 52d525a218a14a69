# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a job's owner or its site says of its pauses, and what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest
import yaml

from detectors.hang import HangDetector
from relight.ports import TakesTerms
from relight.testing.detector import NOON, ONE
from relight.types import AttemptId, Heartbeat, Rank, StepProgress, Tier
from relight.watching import LEARNED, HangPolicy, HangTerms
from rules.policy_table import load_policy
from rules.problems import RulesInvalid
from service.adapters.rule_files import POLICY_FILE
from service.diagnosis import Diagnostician


def confirmed_after(detector: HangDetector, steps: int, most_s: int, beating: Sequence[int] = ()) -> int | None:
    """Seconds from the last of some steps, 5 s each, to a confirmed hang; `beating` ranks go on."""
    for number in range(steps):
        at = NOON + timedelta(seconds=5 * number)
        detector.observe(StepProgress(attempt=ONE, at=at, step=number))
        for rank in range(4):
            detector.observe(Heartbeat(attempt=ONE, at=at, rank=Rank(rank)))
        assert detector.overdue(at) == ()
    for later in range(0, most_s, 5):
        at = NOON + timedelta(seconds=5 * (steps - 1) + later)
        for rank in beating:
            detector.observe(Heartbeat(attempt=ONE, at=at, rank=Rank(rank)))
        if any(one.tier is Tier.CONFIRMED for one in detector.overdue(at)):
            return later
    return None


def bound(**said: float) -> HangDetector:
    detector = HangDetector()
    detector.bound(ONE, HangTerms(**said))
    return detector


def test_the_hang_detector_takes_terms() -> None:
    assert isinstance(HangDetector(), TakesTerms)


def test_without_a_word_what_was_learned_holds() -> None:
    assert confirmed_after(bound(), 60, 4_000) == confirmed_after(HangDetector(), 60, 4_000)


def test_a_pause_may_be_called_a_hang_sooner() -> None:
    assert confirmed_after(bound(at_most_s=120), 60, 4_000) == 125


def test_a_pause_may_be_spared_for_longer_even_where_a_rank_falls_silent() -> None:
    assert confirmed_after(bound(at_least_s=2_000), 60, 4_000) == 2_005
    assert confirmed_after(HangDetector(), 60, 4_000, beating=(0, 1, 2)) is not None
    silent = confirmed_after(bound(at_least_s=2_000), 60, 4_000, beating=(0, 1, 2))
    assert silent is not None and silent >= 2_000


def test_a_start_is_judged_only_where_somebody_says_how_long_it_may_take() -> None:
    def started(detector: HangDetector) -> int | None:
        detector.observe(Heartbeat(attempt=ONE, at=NOON, rank=Rank(0)))
        for later in range(0, 4_000, 5):
            if any(one.tier is Tier.CONFIRMED for one in detector.overdue(NOON + timedelta(seconds=later))):
                return later
        return None

    assert started(HangDetector()) is None
    assert started(bound(start_s=600)) == 605


def test_terms_go_over_a_restart_of_the_detector_and_die_with_the_attempt() -> None:
    detector, again = bound(at_most_s=120), HangDetector()
    again.restore(detector.snapshot())
    assert confirmed_after(again, 60, 4_000) == 125
    again.forget(ONE)
    assert again.snapshot()["watches"] == {}


def test_terms_are_seconds_of_ours_whatever_the_patience() -> None:
    detector = HangDetector(patience=0.5)
    detector.bound(ONE, HangTerms(at_most_s=120))
    assert confirmed_after(detector, 60, 4_000) == 125


def test_another_attempt_is_not_bound() -> None:
    detector = HangDetector()
    detector.bound(AttemptId("another"), HangTerms(at_most_s=60))
    after = confirmed_after(detector, 60, 4_000)
    assert after is not None and after > 120


# ------------------------------------------------------------------ who says it


def test_the_narrower_word_goes_before_the_wider() -> None:
    policy = HangPolicy(
        default=HangTerms(at_least_s=600, start_s=3_600),
        partitions={"debug": HangTerms(at_most_s=300)},
        workloads={"big": HangTerms(at_least_s=1_800)},
    )
    assert policy.terms_for("gpu", "w") == HangTerms(at_least_s=600, start_s=3_600)
    assert policy.terms_for("debug", "w") == HangTerms(at_least_s=300, at_most_s=300, start_s=3_600)
    assert policy.terms_for("debug", "big") == HangTerms(at_least_s=1_800, at_most_s=1_800, start_s=3_600)
    assert policy.terms_for("gpu", "w", HangTerms(at_most_s=60)).at_least_s == 60
    assert HangPolicy().terms_for("gpu", "w") == LEARNED


def table(shipped: Diagnostician, hangs: object) -> HangPolicy:
    text = yaml.safe_dump({**yaml.safe_load(POLICY_FILE.read_text()), "hangs": hangs})
    return load_policy("policy.yaml", text, shipped.taxonomy).hangs


def test_policy_says_it_for_all_for_partitions_and_for_workloads(shipped: Diagnostician) -> None:
    said = table(
        shipped, {"at_least_s": 60, "partitions": {"debug": {"at_most_s": 300}}, "workloads": {"w": {"start_s": 900}}}
    )
    assert said.default == HangTerms(at_least_s=60)
    assert said.terms_for("debug", "w") == HangTerms(at_least_s=60, at_most_s=300, start_s=900)
    assert load_policy("policy.yaml", POLICY_FILE.read_text(), shipped.taxonomy).hangs == HangPolicy()


@pytest.mark.parametrize(
    ("hangs", "words"),
    [
        ({"at_least_s": 5}, r"at_least_s 5 is not from 30|5 is out of range"),
        ({"workloads": {"w": {"at_most_s": 900_000}}}, r"900000 is out of range"),
        ({"partitions": {"p": {"at_least_s": 600, "at_most_s": 300}}}, r"at_least_s 600 is above at_most_s 300"),
        ({"workloads": {"w": {"at_mots_s": 300}}}, r"unknown key 'at_mots_s'.*did you mean 'at_most_s'"),
        ({"at_most_s": "5m"}, r"'5m' does not fit"),
    ],
)
def test_a_faulty_bound_is_named_with_its_place_and_the_way_out(
    shipped: Diagnostician, hangs: object, words: str
) -> None:
    with pytest.raises(RulesInvalid, match=words):
        table(shipped, hangs)
