# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A second opinion on logs that no signature explains: the failure's class and the failures that look alike."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import scipy  # type: ignore[import-untyped]
import sklearn.exceptions
import sklearn.preprocessing
from scipy import sparse
from sklearn.exceptions import InconsistentVersionWarning
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression

from models.attribution_features import FEATURES_VERSION, LogFeatures

NAME = "attribution"
_PARTS = ("words", "classes", "failures", "likeness")
_RANKED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """What the model is taught: an attempt, or a signature's line, and its label.

    `family` and `source` say where it is from, so that what is alike never stands on both sides of a split.
    """

    name: str
    features: LogFeatures
    failure_class: str
    failure: str
    family: str
    source: str
    is_case: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionSettings:
    """`regularisation` is logistic regression's C; `facts_weight` the length of the facts beside words of length 1."""

    word_features: int = 1 << 14
    fact_features: int = 1 << 10
    shortest: int = 3
    longest: int = 5
    regularisation: float = 10.0
    facts_weight: float = 0.5
    iterations: int = 150

    def as_json(self) -> dict[str, Any]:
        """What another program needs to build the same features."""
        return {
            "version": FEATURES_VERSION,
            "words": {"analyzer": "char_wb", "ngrams": [self.shortest, self.longest], "hashed_to": self.word_features},
            "facts": {"hashed_to": self.fact_features, "weight": self.facts_weight},
            "regularisation": self.regularisation,
            "iterations": self.iterations,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What the model would guess. It never moves an action; `is_confident` is above the measured threshold."""

    model: str
    failure_class: str
    confidence: float
    is_confident: bool
    classes: tuple[tuple[str, float], ...]
    failures: tuple[tuple[str, float], ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "class": self.failure_class,
            "confidence": round(self.confidence, 3),
            "is_confident": self.is_confident,
            "classes": [{"class": name, "probability": round(p, 3)} for name, p in self.classes],
            "failures": [{"failure": name, "likeness": round(p, 3)} for name, p in self.failures],
        }


class ModelUnreadable(ValueError):
    """Bytes that hold no attribution model that these libraries can use."""


class AttributionModel:
    """Hashed character n-grams of masked lines, and hashed facts, into logistic regression over the classes.

    Shapes: `hint` takes one attempt's features; classes come back as the likeliest five, failures too.
    Units:  a class's probability is the regression's, uncalibrated; a failure's likeness is the cosine between
            the attempt's words and the nearest example of it.
    Errors: ValueError from `fit` for fewer than two classes.
    Source: char_wb n-grams beat words on 120 log lines of 12 sources, left out in turn (0.80 to 0.70). Cases are
            learnt twice, with and without what signatures claim: else the words would learn nothing.
    """

    name = NAME
    version = 1

    def __init__(self, settings: AttributionSettings, parts: Mapping[str, Any]) -> None:
        self.settings = settings
        self._parts = {part: parts[part] for part in _PARTS}
        self._hashed_words, self._hashed_facts = _hashers(settings)

    @classmethod
    def fit(
        cls, examples: Sequence[Example], settings: AttributionSettings | None = None, counted: Any = None
    ) -> AttributionModel:
        """Learn the examples; `counted` are their rows of `hashed_words`, if they are at hand."""
        chosen = settings or AttributionSettings()
        cases = [number for number, one in enumerate(examples) if one.is_case]
        classes = [one.failure_class for one in examples] + [examples[i].failure_class for i in cases]
        if len(set(classes)) < 2:
            raise ValueError(f"need examples of at least two classes, got {sorted(set(classes))}")
        facts = _hashers(chosen)[1]
        counted = hashed_words(examples, chosen) if counted is None else counted
        weights = TfidfTransformer(sublinear_tf=True).fit(counted)
        weighed = weights.transform(counted)
        features = [one.features for one in examples] + [examples[i].features.without_claims() for i in cases]
        inputs = _inputs(sparse.vstack([weighed, weighed[cases]]), facts, features, chosen)
        regression = LogisticRegression(
            C=chosen.regularisation, class_weight="balanced", max_iter=chosen.iterations, tol=1e-3
        )
        with warnings.catch_warnings():  # stopped after so many steps is what is asked for: it regularises too
            warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
            regression.fit(inputs, classes)
        parts = {"words": weights, "classes": regression, "likeness": sparse.csr_matrix(weighed, dtype=np.float32)}
        return cls(chosen, {**parts, "failures": [one.failure for one in examples]})

    def hints(self, asked: Sequence[LogFeatures], *, threshold: float = 1.01, model: str = NAME) -> list[Hint]:
        """A hint for each attempt; `threshold` is the confidence from which on it counts as confident."""
        if not asked:
            return []
        words = self._parts["words"].transform(self._hashed_words.transform([f.words for f in asked]))
        regression = self._parts["classes"]
        rows = regression.predict_proba(_inputs(words, self._hashed_facts, asked, self.settings)).tolist()
        alike = (words @ self._parts["likeness"].T).toarray().tolist()
        out = []
        for row, cosines in zip(rows, alike, strict=True):
            classes = _ranked(zip(map(str, regression.classes_), row, strict=True))
            out.append(
                Hint(
                    model=model,
                    failure_class=classes[0][0],
                    confidence=classes[0][1],
                    is_confident=classes[0][1] >= threshold,
                    classes=classes,
                    failures=_ranked(zip(self._parts["failures"], cosines, strict=True)),
                )
            )
        return out

    def hint(self, asked: LogFeatures, *, threshold: float = 1.01, model: str = NAME) -> Hint:
        return self.hints([asked], threshold=threshold, model=model)[0]

    # -------------------------------------------------------------- bytes

    def to_bytes(self) -> bytes:
        """What `joblib.dump` makes of the fitted parts: scikit-learn's own classes, none of ours."""
        out = io.BytesIO()
        joblib.dump({"version": self.version, **self._parts}, out, compress=3)
        return out.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, settings: AttributionSettings) -> AttributionModel:
        """The model of such bytes. UNPICKLES: only for bytes whose digest a person has promoted.

        Errors: ModelUnreadable for another version of the model or of scikit-learn.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("error", InconsistentVersionWarning)
            try:
                parts = joblib.load(io.BytesIO(data))
            except InconsistentVersionWarning as why:
                raise ModelUnreadable(f"{why}; train the model anew with the installed libraries") from why
        if not isinstance(parts, dict) or parts.get("version") != cls.version or not parts.keys() >= set(_PARTS):
            raise ModelUnreadable(f"need a {NAME} model of version {cls.version}; train it anew")
        return cls(settings, parts)


def settings_from_json(said: Mapping[str, Any]) -> AttributionSettings:
    """Errors: ModelUnreadable for features of another version, or fields that are missing."""
    if said.get("version") != FEATURES_VERSION:
        raise ModelUnreadable(
            f"need features of version {FEATURES_VERSION}, got {said.get('version')!r}; train the model anew"
        )
    try:
        shortest, longest = said["words"]["ngrams"]
        return AttributionSettings(
            word_features=int(said["words"]["hashed_to"]),
            fact_features=int(said["facts"]["hashed_to"]),
            shortest=int(shortest),
            longest=int(longest),
            regularisation=float(said["regularisation"]),
            facts_weight=float(said["facts"]["weight"]),
            iterations=int(said["iterations"]),
        )
    except (KeyError, TypeError, ValueError) as why:
        raise ModelUnreadable(f"features.json: {why!r}; train the model anew") from why


def libraries() -> dict[str, str]:
    """The versions that a fitted model depends on, as they run here."""
    return {
        "joblib": str(joblib.__version__),
        "numpy": str(np.__version__),
        "scikit-learn": str(sklearn.__version__),
        "scipy": str(scipy.__version__),
    }


def _ranked(scored: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    """The names with the highest scores, each once, with its best one."""
    best: dict[str, float] = {}
    for name, score in scored:
        if score > best.get(name, 0.0):
            best[name] = score
    return tuple(sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:_RANKED])


def hashed_words(examples: Sequence[Example], settings: AttributionSettings) -> Any:
    """The counted n-grams of each example, a row each: the dear part of `fit`, and the same in every fold."""
    return _hashers(settings)[0].transform([one.features.words for one in examples])


def _hashers(settings: AttributionSettings) -> tuple[Any, Any]:
    words = HashingVectorizer(
        analyzer="char_wb",
        ngram_range=(settings.shortest, settings.longest),
        n_features=settings.word_features,
        alternate_sign=False,
        norm=None,
    )
    return words, FeatureHasher(n_features=settings.fact_features, alternate_sign=False)


def _inputs(words: Any, hasher: Any, asked: Sequence[LogFeatures], settings: AttributionSettings) -> Any:
    facts = sklearn.preprocessing.normalize(hasher.transform([dict(f.facts) for f in asked]))
    return sparse.hstack([words, settings.facts_weight * facts], format="csr")
