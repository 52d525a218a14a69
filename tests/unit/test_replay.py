# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight replay`: the past judged again from a cold start, scored where labels stand, with an exit code for CI."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from service import bootstrap
from service.cli import app
from service.config import Audit, Recommend, Settings
from service.replay_report import page
from service.replay_score import Label, LabelUnreadable, Score, changes, interval, median, read_label

FAILURES = Path(__file__).parents[2] / "datasets" / "failures"
CASES = ("c0078", "c0153", "c0226", "c0100")
START = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
XID = "node07 kernel: NVRM: Xid (PCI:0000:1a:00): 79, pid=4242, name=python, GPU has fallen off the bus."


def relight(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["replay", *map(str, words)])


@pytest.fixture
def cases(tmp_path: Path) -> Path:
    for name in CASES:
        shutil.copytree(FAILURES / name, tmp_path / "cases" / name)
    return tmp_path / "cases"


def replayed(*words: str | Path, out: Path) -> dict[str, Any]:
    answer = relight(*words, "--out", out)
    assert answer.exit_code in (0, 1), answer.output
    said: dict[str, Any] = json.loads(out.read_text())
    return said


def test_labelled_cases_are_judged_and_scored(cases: Path, tmp_path: Path) -> None:
    said = replayed(cases, out=tmp_path / "out.json")
    told = {one["name"]: (one["failure"], one["action"]) for one in said["cases"]}
    assert told == {
        "c0078": ("gpu_fell_off_bus", "restart_excluding"), "c0153": ("cuda_oom", "stop"),
        "c0226": ("nccl_collective_timeout", "restart"), "c0100": ("none", "continue"),
    }  # fmt: skip
    total = said["score"]["total"]
    assert (total["cases"], total["right"], total["false_stops"]) == (4, 4, 0)
    root = next(one for one in said["cases"] if one["name"] == "c0078")
    assert (root["root_file"], root["nodes"]) == ("case.log", ["node06"])


def test_labels_never_change_what_is_said(cases: Path, tmp_path: Path) -> None:
    before = replayed(cases, out=tmp_path / "a.json")["cases"]
    for label in cases.rglob("label.json"):
        said = json.loads(label.read_text())
        label.write_text(json.dumps(said | {"failure": "disk_full", "action": "stop", "culprit_nodes": ["n0"]}))
    after = replayed(cases, out=tmp_path / "b.json")
    assert after["cases"] == before
    assert after["score"]["total"]["right"] == 0


def test_a_false_stop_or_low_precision_fails_the_run(cases: Path) -> None:
    assert relight(cases).exit_code == 0
    label = cases / "c0153" / "label.json"
    label.write_text(json.dumps({"failure": "cuda_oom", "action": "restart"}))
    answer = relight(cases)
    assert answer.exit_code == 1 and "1 false stops, at most 0" in answer.output
    assert relight(cases, "--max-false-stops", "1").exit_code == 0
    label.write_text(json.dumps({"failure": "disk_full", "action": "stop"}))
    assert relight(cases, "--min-precision", "0.9").exit_code == 1


def timed(path: Path, *lines: tuple[int, str]) -> Path:
    path.write_text("".join(f"{(START + timedelta(seconds=s)).isoformat()} {text}\n" for s, text in lines))
    return path


def test_time_is_that_of_the_lines(tmp_path: Path) -> None:
    steps = [(60 * n, f"node07 trainer: iteration {n} loss 2.0") for n in range(5)]
    log = timed(tmp_path / "kern.log", *steps, (400, XID), (1_000, "node07 trainer: bye"))
    (case,) = replayed(log, out=tmp_path / "out.json")["cases"]
    assert case["failure"] == "gpu_fell_off_bus"
    assert 0 <= case["delay_s"] <= 30
    assert 570 <= case["before_end_s"] <= 600
    assert case["runtime_s"] == 1_000


def test_a_log_without_times_has_no_delay(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("RuntimeError: CUDA error: an illegal memory access was encountered\n")
    (case,) = replayed(log, out=tmp_path / "out.json")["cases"]
    assert case["delay_s"] is None and case["failure"] != "none"


def test_a_change_of_policy_shows_and_can_fail_the_run(cases: Path, tmp_path: Path) -> None:
    from service.adapters.rule_files import POLICY_FILE

    policy = tmp_path / "policy.yaml"
    text = POLICY_FILE.read_text()
    policy.write_text(_restarting(text, "gpu_fell_off_bus"))
    answer = relight(cases, "--policy", policy, "--diff", "shipped", "--max-false-stops", "9")
    assert answer.exit_code == 0 and "changed c0078" in answer.output and "=>" in answer.output
    args = ("--policy", policy, "--diff", "shipped", "--fail-on-change", "--max-false-stops", "9")
    assert relight(cases, *args).exit_code == 1
    same = relight(cases, "--diff", "shipped", "--fail-on-change")
    assert same.exit_code == 0 and "changed" not in same.output


def _restarting(policy: str, failure: str) -> str:
    import yaml

    said = yaml.safe_load(policy)
    said.setdefault("failures", {})[failure] = {"action": "restart"}
    return yaml.safe_dump(said)


def test_two_runs_are_compared_by_the_file_of_the_first(cases: Path, tmp_path: Path) -> None:
    first = tmp_path / "first.json"
    replayed(cases, out=first)
    shutil.rmtree(cases / "c0100")
    answer = relight(cases, "--diff", first)
    assert "changed c0100: none → continue  =>  not there" in answer.output
    first.write_text("{}")
    assert relight(cases, "--diff", first).exit_code == 2


def test_the_report_escapes_what_a_log_says(tmp_path: Path) -> None:
    said = {
        "source": "<script>alert(1)</script>", "rules": "r", "policy": "p", "score": None,
        "cases": [{"name": "<img src=x>", "failure": "none\x1b[2J", "action": "stop", "nodes": ["n'\">"],
                   "root_file": "</td>", "root_line": 1, "reason": "&", "delay_s": 3.0}],
    }  # fmt: skip
    html = page(said)
    assert "<script>alert" not in html and "<img" not in html and "\x1b" not in html and "</td>:1" not in html
    assert "&lt;img src=x&gt;" in html and "script-src" not in html and "default-src &#x27;" not in html


def test_a_report_is_written_with_its_charts(cases: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    assert relight(cases, "--report", report).exit_code == 0
    html = report.read_text()
    assert html.count("<svg") >= 2 and "By signature" in html and "gpu_fell_off_bus" in html


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    assert relight(tmp_path / "nowhere").exit_code == 2
    folder = tmp_path / "bad"
    folder.mkdir()
    (folder / "job.log").write_text("x\n")
    (folder / "label.json").write_text("{}")
    answer = relight(folder)
    assert answer.exit_code == 3 and "need failure and action" in answer.output
    with pytest.raises(LabelUnreadable):
        read_label(folder)


# ------------------------------------------------------------------ audit logs


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """An audit log that a service wrote about one failure."""
    from service.replay import EventClock, LogReplay
    from service.rules_store import RuleStore

    path = tmp_path / "relight.duckdb"
    settings = Settings(audit=Audit(path=path), recommend=Recommend(mode="act"))
    rules: RuleStore = bootstrap.rule_store(settings)
    made: list[Any] = []

    def start(clock: Any) -> Any:
        audit = bootstrap.open_audit(settings, clock)
        made.append(bootstrap.build_application(settings, bootstrap.Parts(clock=clock, audit=audit, rules=rules)))
        return made[-1]

    kit = bootstrap.replay_kit(Settings())
    LogReplay(start).replay("c0078", kit.read(FAILURES / "c0078").logs)
    assert isinstance(made[0].journal.clock, EventClock)
    made[0].journal.audit.close()
    return path


def test_an_audit_log_decided_anew_by_the_same_policy_says_the_same(recorded: Path, tmp_path: Path) -> None:
    said = replayed(recorded, out=tmp_path / "out.json")
    (case,) = said["cases"]
    assert (case["failure"], case["action"], case["was_action"]) == (
        "gpu_fell_off_bus", "restart_excluding", "restart_excluding",
    )  # fmt: skip
    assert said["changes"] == []


def test_another_policy_over_an_audit_log_or_its_export_changes_the_verdict(recorded: Path, tmp_path: Path) -> None:
    from service.adapters.rule_files import POLICY_FILE

    policy = tmp_path / "policy.yaml"
    policy.write_text(_restarting(POLICY_FILE.read_text(), "gpu_fell_off_bus"))
    log = bootstrap.open_audit(Settings(audit=Audit(path=recorded)))
    log.export(str(tmp_path / "export"))
    log.close()
    for source in (recorded, tmp_path / "export", tmp_path / "export" / "events.parquet"):
        said = replayed(source, "--policy", policy, out=tmp_path / "out.json")
        assert [(one["was_action"], one["action"]) for one in said["cases"]] == [("restart_excluding", "restart")]
        assert len(said["changes"]) == 1


def test_other_rules_have_nothing_to_read_in_an_audit_log(recorded: Path, tmp_path: Path) -> None:
    assert relight(recorded, "--rules", tmp_path).exit_code == 2


# ------------------------------------------------------------------ scores


def said(failure: str = "disk_full", action: str = "restart", **more: Any) -> dict[str, Any]:
    return {"name": "c", "failure": failure, "action": action, "nodes": [], "signature": "s", "delay_s": 5.0,
            "runtime_s": 7_200.0} | more  # fmt: skip


def label(action: str = "restart", *also: str, **more: Any) -> Label:
    return Label(failure="disk_full", action=action, acceptable=frozenset({action, *also}), **more)


def test_a_wrong_stop_costs_the_run_and_a_fit_one_nothing() -> None:
    score = Score()
    score.add(said(action="stop"), label("restart", gpus=8))
    score.add(said(action="stop"), label("restart", "stop"))
    score.add(said(action="restart"), label("stop"))
    total = score.total
    assert (total.false_stops, total.missed_stops, total.gpu_h_lost) == (1, 1, 16.0 + 2.0)
    assert score.as_json()["by_signature"]["s"]["cases"] == 3


def test_nodes_are_wrong_only_where_a_label_names_others() -> None:
    score = Score()
    score.add(said(nodes=["n1"]), label(nodes=frozenset({"n1", "n2"})))
    score.add(said(nodes=["n1"]), label(nodes=None))
    score.add(said(nodes=["n3"]), label(nodes=frozenset({"n1"})))
    assert score.total.false_exclusions == 1


def test_shares_have_intervals_and_delays_a_median() -> None:
    assert interval(0, 0) == (None, None)
    low, high = interval(98, 100)
    assert low is not None and high is not None and 0.92 < low < 0.98 < high < 1
    assert (median([]), median([3, 1, 2]), median([4, 1])) == (None, 2, 2.5)


def test_changes_name_what_only_one_side_has() -> None:
    found = changes([said(name="a"), said(name="b")], [said(name="b", action="stop"), said(name="c")])
    assert [(one.name, one.before, one.after) for one in found] == [
        ("a", "disk_full → restart", "not there"),
        ("b", "disk_full → restart", "disk_full → stop"),
        ("c", "not there", "disk_full → restart"),
    ]
