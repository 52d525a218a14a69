# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The attribution model: what it may look at, what it answers, and figures that do not flatter it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from detectors.attribution_examples import attempt_features, signature_examples
from detectors.crash import diagnose
from detectors.log_text import read_log
from models.attribution_features import MAX_LINES, LogFeatures, features_of
from models.attribution_model import AttributionModel, ModelUnreadable, settings_from_json
from models.attribution_scores import Guess, confident_from, data_digest, evaluate, group_cases, metrics_of
from models.attribution_training import compare, objections, train
from relight.types import NO_FAILURE, Attribution, EvidenceStatus, FailureClass, FailureName, Stream
from service.adapters.log_files import read_folder
from service.diagnosis import Diagnostician
from service.model_hints import ModelHints
from tests.unit.lessons import SMALL, WORDS, case, lessons, signature_line

AT = datetime(2026, 1, 1, tzinfo=UTC)
FAILURES = Path(__file__).parents[2] / "datasets" / "failures"


@pytest.fixture(scope="module")
def model() -> AttributionModel:
    return AttributionModel.fit(lessons(), SMALL)


# ------------------------------------------------------------------ features


def test_the_rules_own_verdict_and_the_numbers_of_a_log_are_no_features(shipped: Diagnostician) -> None:
    log = read_log(
        "dmesg.log", b"NVRM: Xid (PCI:0000:3b:00): 79, pid=4242, GPU has fallen off the bus.\n", Stream.KERNEL
    )
    _, evidence = diagnose([log], shipped.signatures, shipped.progress, shipped.taxonomy)
    features = attempt_features([log], evidence, shipped.taxonomy)
    assert features.facts["says:root:gpu_fell_off_bus"] > 0
    assert features.facts["stream:kernel"] == 1.0
    assert "4242" not in features.words
    assert not [name for name in features.facts if name.startswith(("verdict", "attribution", "action"))]


def test_without_claims_a_log_looks_as_if_no_signature_knew_it() -> None:
    (one,) = [e for e in lessons() if e.name == "network-bravo-1"]
    assert "says:root:network_bravo" in one.features.facts
    assert one.features.without_claims().facts == {"stream:kernel": 1.0}
    assert one.features.without_claims().words == one.features.words


def test_of_a_long_log_the_last_different_lines_count() -> None:
    masked = [f"line {'x' * n}" for n in range(MAX_LINES + 5)] + ["line ", "", "  "]
    words = features_of((), masked, [Stream.APPLICATION]).words.split("\n")
    assert (len(words), words[-1], "line xxxx" in words) == (MAX_LINES, "line ", False)


def test_no_logs_at_all_are_empty_features(shipped: Diagnostician) -> None:
    assert attempt_features([], (), shipped.taxonomy) == LogFeatures()


def test_lines_of_signatures_that_tell_no_cause_teach_nothing(shipped: Diagnostician) -> None:
    taught = list(signature_examples(shipped.signatures.signatures, shipped.taxonomy))
    silent = {str(s.id) for s in shipped.signatures.signatures if s.role in {"teardown", "confirmation"}}
    assert len(taught) > 1_000
    assert not silent & {one.source for one in taught}
    assert all(one.failure_class == shipped.taxonomy[FailureName(one.failure)].failure_class for one in taught)


# ------------------------------------------------------------------ answers


def test_words_of_a_class_are_recognised_in_a_family_never_seen(model: AttributionModel) -> None:
    for kind, text in WORDS.items():
        hint = model.hint(LogFeatures(words=f"{text}\nzulu component stopped"))
        assert hint.failure_class == kind
        assert hint.failures[0][0].startswith(kind)
        assert sum(p for _, p in hint.classes) == pytest.approx(1.0)


def test_a_hint_is_confident_only_from_the_measured_threshold_on(model: AttributionModel) -> None:
    asked = LogFeatures(words=WORDS["storage"])
    sure = model.hint(asked).confidence
    assert model.hint(asked, threshold=sure).is_confident
    assert not model.hint(asked, threshold=sure + 0.001).is_confident
    assert not model.hint(asked).is_confident, "without a measured threshold nothing is confident"


def test_a_model_written_to_bytes_answers_the_same(model: AttributionModel) -> None:
    again = AttributionModel.from_bytes(model.to_bytes(), settings_from_json(SMALL.as_json()))
    for one in lessons(1):
        assert again.hint(one.features) == model.hint(one.features)


def test_bytes_of_something_else_and_features_of_another_version_are_refused(model: AttributionModel) -> None:
    import io

    import joblib

    out = io.BytesIO()
    joblib.dump({"version": 99}, out)
    with pytest.raises(ModelUnreadable, match="version 1"):
        AttributionModel.from_bytes(out.getvalue(), SMALL)
    with pytest.raises(ModelUnreadable, match="train the model anew"):
        settings_from_json({**SMALL.as_json(), "version": 0})
    with pytest.raises(ModelUnreadable, match=r"features\.json"):
        settings_from_json({"version": 1})


def test_one_class_alone_teaches_nothing() -> None:
    with pytest.raises(ValueError, match="at least two classes"):
        AttributionModel.fit([e for e in lessons() if e.failure_class == "network"], SMALL)


def test_the_order_of_the_lessons_changes_neither_digest_nor_figures() -> None:
    there, back = lessons(), lessons()[::-1]
    assert data_digest(there) == data_digest(back)
    assert evaluate(there, SMALL, folds=3).metrics == evaluate(back, SMALL, folds=3).metrics
    assert data_digest(there[1:]) != data_digest(there)


# ------------------------------------------------------------------ figures


def test_cases_of_one_family_one_source_or_the_same_words_stay_together() -> None:
    cases = [
        case("a", "network", "one two three four", family="f1"),
        case("b", "network", "five six seven", family="f1"),
        case("c", "storage", "eight nine", family="f2", source="org/repo#7"),
        case("d", "storage", "ten eleven", family="f3", source="org/repo#7"),
        case("e", "hardware", "one two three four", family="f4"),
        case("f", "hardware", "twelve thirteen", family="f5"),
    ]
    a, b, c, d, e, f = group_cases(cases)
    assert a == b == e
    assert c == d
    assert len({a, c, f}) == 3
    a, b, c, d, e, f = group_cases(cases, by_family=False)
    assert a == e != b
    assert c == d


def test_a_label_that_only_the_family_tells_is_not_learnt_across_families() -> None:
    """Each family has a word of its own and nothing else in common: a random split would find them easy."""
    cases = [
        case(
            f"{kind}{family}{n}",
            kind,
            f"{hash_word(kind + family)} {hash_word(f'{kind}{family}{n}')} ended",
            family=f"{kind}{family}",
        )
        for kind in ("left", "right")
        for family in ("qa", "wb", "ec", "rd", "tf", "yg")
        for n in range(4)
    ]
    grouped = evaluate(cases, SMALL, folds=4).metrics["accuracy"]
    by_report = evaluate(cases, SMALL, folds=4, by_family=False).metrics["accuracy"]
    assert grouped <= 0.7 < 0.9 <= by_report


def hash_word(text: str) -> str:
    """A word that tells nothing of the text: letters that a generator draws for it."""
    drawn = np.random.default_rng([ord(letter) for letter in text])
    return "".join(drawn.choice(list("bcdfghjklmnpqrstvwxyz"), 12))


def test_a_signature_line_like_an_asked_case_is_not_learnt_from() -> None:
    cases = [
        case(f"{k}{n}", k, f"{k}{n} {hash_word(k + str(n))} ended", family=f"{k}{n}")
        for k in ("le", "ri")
        for n in range(6)
    ]
    answers = [signature_line(f"s{c.name}", c.failure_class, c.failure, c.features.words) for c in cases]
    others = [
        signature_line("o1", "le", "x", "quite another sentence"),
        signature_line("o2", "ri", "y", "some words apart"),
    ]
    leaked = evaluate([*cases, *answers, *others], SMALL, folds=4)
    clean = evaluate([*cases, *others], SMALL, folds=4)
    assert leaked.metrics["failure_top3"] == clean.metrics["failure_top3"] == 0.0


def test_lines_of_the_asked_failure_can_be_withheld_whatever_they_say() -> None:
    cases = lessons(1)
    lines = [
        signature_line(f"s{c.name}", c.failure_class, c.failure, f"{hash_word(c.name)} {c.failure}") for c in cases
    ]
    asked = evaluate([*cases, *lines], SMALL, folds=3, without_failure=True)
    assert asked.metrics["failure_top3"] == 0.0


def test_cross_validation_asks_about_every_case_once_and_names_the_constant_it_must_beat() -> None:
    scores = evaluate(lessons(), SMALL, folds=4)
    assert sorted(g.case for g in scores.guesses) == sorted(e.name for e in lessons())
    assert scores.metrics["majority_accuracy"] == 0.333
    assert scores.metrics["accuracy"] > 0.9
    with pytest.raises(ValueError, match="at least two groups"):
        evaluate([e for e in lessons() if e.family == "networkalpha"], SMALL)


def guess(confidence: float, is_right: bool) -> Guess:
    return Guess(case=str(confidence), truth="a", guess="a" if is_right else "b", confidence=confidence,
                 truth_rank=1, failure_rank=None)  # fmt: skip


def test_the_threshold_ends_where_guesses_first_fail_and_not_at_a_lucky_stretch_below() -> None:
    top = [guess(0.99 - n / 1000, True) for n in range(25)]
    bad = [guess(0.8 - n / 1000, False) for n in range(10)]
    lucky = [guess(0.5 - n / 1000, True) for n in range(200)]
    threshold = confident_from([*top, *bad, *lucky])
    assert 0.79 < threshold < 0.97
    assert confident_from([guess(0.9 - n / 1000, False) for n in range(30)]) > 1
    assert confident_from([]) > 1


def test_no_cases_have_no_figures() -> None:
    with pytest.raises(ValueError, match="at least one labelled case"):
        metrics_of([], 0.5)


# ------------------------------------------------------------------ champion and challenger


def test_a_challenger_that_learnt_nonsense_is_objected_to() -> None:
    good = train(lessons(), version="1", at=AT, settings=SMALL, views=())
    kinds = list(WORDS)
    shuffled = [
        replace(e, failure_class=kinds[(kinds.index(e.failure_class) + n) % 3]) for n, e in enumerate(lessons())
    ]
    bad = train(shuffled, version="2", at=AT, settings=SMALL, views=())
    assert objections(good, None) == ()
    assert objections(good, good) == ()
    assert "commonest class" in " ".join(objections(bad, None))
    assert any("macro-F1 falls" in one for one in objections(bad, good))


def test_a_comparison_counts_only_cases_with_the_same_label() -> None:
    good = train(lessons(), version="1", at=AT, settings=SMALL, views=())
    other = [replace(e, failure_class="storage") if e.name == "network-alpha-0" else e for e in lessons()]
    both = compare(good, train(other, version="2", at=AT, settings=SMALL, views=()))
    assert both.cases == len(lessons()) - 1


# ------------------------------------------------------------------ beside the rules


def verdict(failure: str, has_root: bool, shipped: Diagnostician) -> Attribution:
    log = read_log("job.log", b"RuntimeError: CUDA error: out of memory\n", Stream.APPLICATION)
    said, _ = diagnose([log], shipped.signatures, shipped.progress, shipped.taxonomy)
    return replace(said, failure=FailureName(failure), root=said.root if has_root else None)


def test_the_model_is_heard_only_where_the_rules_name_no_cause(model: AttributionModel, shipped: Diagnostician) -> None:
    logs = [read_log("job.log", WORDS["network"].encode(), Stream.APPLICATION)]
    hints = ModelHints(model=model, reference="attribution@1", threshold=0.0)
    known = verdict("cuda_oom", True, shipped)
    assert hints.hint(logs, (), known, shipped.taxonomy) is None
    for unnamed in (verdict("cause_not_in_log", True, shipped), verdict(NO_FAILURE, False, shipped)):
        said = hints.hint(logs, (), unnamed, shipped.taxonomy)
        assert said is not None
        assert (said.failure_class, said.model) == ("network", "attribution@1")
        assert set(said.as_json()) == {"model", "class", "confidence", "is_confident", "classes", "failures"}


def test_no_promoted_model_means_rules_alone_and_a_reason(shipped: Diagnostician) -> None:
    class Nothing:
        def open(self, digest: str, promoted: object) -> tuple[AttributionModel, object]:
            raise AssertionError("nothing was promoted, so nothing may be opened")

    hints = ModelHints.of(Nothing(), {})  # type: ignore[arg-type]
    unnamed = Attribution(failure=NO_FAILURE, failure_class=FailureClass.BENIGN, evidence_status=EvidenceStatus.UNKNOWN)
    assert hints.hint([], (), unnamed, shipped.taxonomy) is None
    assert "rules alone" in hints.reason


def test_a_real_case_is_read_the_same_way_twice(shipped: Diagnostician) -> None:
    logs = read_folder(FAILURES / "c0004").logs
    _, evidence = diagnose(logs, shipped.signatures, shipped.progress, shipped.taxonomy)
    first = attempt_features(logs, evidence, shipped.taxonomy)
    assert first == attempt_features(logs, evidence, shipped.taxonomy)
    assert first.words
