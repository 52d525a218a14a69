# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The only place that constructs anything: settings in, a running service out.

HTTP and DuckDB are imported where they are first needed: the command line must not pay for them when it lints a rule.
"""

from __future__ import annotations

from service.adapters.log_files import LogUnreadable
from service.adapters.rule_files import write_rule_file
from service.bootstrap.diagnosis import DiagnosisTools, demo_cases, diagnosis_tools, labelled_examples
from service.bootstrap.kit import (
    clock,
    failures,
    model_hints,
    model_store,
    open_audit,
    open_tokens,
    read_rule_files,
    rule_store,
    rule_texts,
    shipped_rule_texts,
    taxonomy,
)
from service.bootstrap.replay import ReplayKit, replay_kit
from service.bootstrap.serving import Running, build_app, described_app, first_token, running, serve
from service.bootstrap.wiring import Parts, build_application

__all__ = [
    "DiagnosisTools",
    "LogUnreadable",
    "Parts",
    "ReplayKit",
    "Running",
    "build_app",
    "build_application",
    "clock",
    "demo_cases",
    "described_app",
    "diagnosis_tools",
    "failures",
    "first_token",
    "labelled_examples",
    "model_hints",
    "model_store",
    "open_audit",
    "open_tokens",
    "read_rule_files",
    "replay_kit",
    "rule_store",
    "rule_texts",
    "running",
    "serve",
    "shipped_rule_texts",
    "taxonomy",
    "write_rule_file",
]
