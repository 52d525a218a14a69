# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Labelled cases and signatures as the examples that the attribution model is taught with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from detectors.attribution_examples import attempt_features, case_example, signature_examples
from detectors.crash import diagnose
from detectors.log_text import LogText
from models.attribution_model import Example
from service.diagnosis import Diagnostician


class NamedLogs(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def logs(self) -> tuple[LogText, ...]: ...


def examples_from(cases: Iterable[tuple[NamedLogs, Mapping[str, Any]]], tools: Diagnostician) -> list[Example]:
    """Every case with its label, and the lines on which the loaded signatures fire."""
    out = []
    for case, label in cases:
        _, evidence = diagnose(case.logs, tools.signatures, tools.progress, tools.taxonomy)
        out.append(case_example(case.name, attempt_features(case.logs, evidence, tools.taxonomy), label))
    return [*out, *signature_examples(tools.signatures.signatures, tools.taxonomy)]
