# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Alert rules and dashboard ask for figures that the service gives, and fire when they should."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from relight.testing.audit import MemoryAuditLog
from service.adapters.clock import SystemClock
from service.journal import Journal
from service.metrics import Metrics
from tests.deploy.tools import CHART, DEPLOY, run, tool

ALERTS: dict[str, Any] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
DASHBOARD: dict[str, Any] = json.loads((CHART / "files" / "dashboard.json").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]


def metrics() -> Metrics:
    return Metrics(Journal(MemoryAuditLog(), SystemClock()), lambda: True, lambda: 0)


def names() -> set[str]:
    """Every series that the service gives."""
    found: set[str] = set()
    for family in metrics().registry.collect():
        base = f"{family.name}_total" if family.type == "counter" else family.name
        found |= {base, f"{base}_info"} if family.type == "info" else {base}
        if family.type == "histogram":
            found |= {f"{base}_bucket", f"{base}_sum", f"{base}_count"}
    return found


def asked(expression: str) -> set[str]:
    return set(re.findall(r"\brelight_[a-z_]+", expression))


def expressions() -> Iterator[tuple[str, str]]:
    for rule in RULES:
        yield rule["alert"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def test_every_figure_asked_for_is_given() -> None:
    given = names()
    missing = {(where, name) for where, text in expressions() for name in asked(text) if name not in given}
    assert not missing


def test_every_alert_says_how_bad_and_what_it_is() -> None:
    assert all(rule["labels"]["severity"] in {"warning", "critical"} for rule in RULES)
    assert all(rule["annotations"]["summary"] for rule in RULES)
    assert len({rule["alert"] for rule in RULES}) == len(RULES)


def test_figures_are_named_by_convention_and_carry_no_job_or_user() -> None:
    for family in metrics().registry.collect():
        assert family.name.startswith("relight_") and family.documentation
        assert not re.search(r"_(ms|millis|minutes|hours|kb|mb|percent)$", family.name)
        labels = {name for sample in family.samples for name in sample.labels}
        assert not labels & {"job", "job_id", "user", "attempt", "attempt_id", "workload", "node"}


def test_promtool_finds_the_rules_sound_and_their_tests_green() -> None:
    promtool = tool("promtool", "prometheus")
    run(promtool, "check", "rules", str(CHART / "files" / "alerts.yaml"))
    run(promtool, "test", "rules", str(DEPLOY / "prometheus" / "alerts_test.yaml"))


def test_the_tests_of_the_rules_can_fail(tmp_path: Any) -> None:
    promtool = tool("promtool", "prometheus")
    broken = (
        (CHART / "files" / "alerts.yaml").read_text().replace("relight_circuit_open == 1", "relight_circuit_open == 2")
    )
    (tmp_path / "alerts.yaml").write_text(broken)
    test = (
        (DEPLOY / "prometheus" / "alerts_test.yaml")
        .read_text()
        .replace("../helm/relight/files/alerts.yaml", "alerts.yaml")
    )
    (tmp_path / "test.yaml").write_text(test)
    assert run(promtool, "test", "rules", str(tmp_path / "test.yaml"), check=False).returncode != 0


def test_the_panels_stand_side_by_side() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


@pytest.mark.parametrize("panel", DASHBOARD["panels"], ids=lambda one: one["title"])
def test_prometheus_can_read_every_expression(panel: dict[str, Any], tmp_path: Any) -> None:
    promtool = tool("promtool", "prometheus")
    for number, target in enumerate(panel["targets"]):
        text = target["expr"].replace("$__rate_interval", "5m").replace("$instance", ".*")
        rule = {"groups": [{"name": "x", "rules": [{"record": f"x:{number}", "expr": text}]}]}
        (tmp_path / "rule.yaml").write_text(yaml.safe_dump(rule))
        run(promtool, "check", "rules", str(tmp_path / "rule.yaml"))
