# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A site's overlays and silences over signatures that it does not own: what holds, who wins, what is refused and why."""

from __future__ import annotations

import itertools
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from relight.types import Action, Severity, Stream
from rules.checked import Checked
from rules.lint import check, lint
from rules.match import Hit
from rules.problems import RulesInvalid
from service import bootstrap
from service.cli import app

ROOT = Path(__file__).parents[2]

SIGNATURE = """\
id: demo.lost
title: The widget is lost
failure: gpu_fell_off_bus
role: root
streams: [application]
source: ['here']
does_not_prove: more than it says
match:
  any:
    - text: 'widget is lost'
tests:
  fires:
    - line: 'well, the widget is lost'
  silent:
    - line: 'the widget is fine'
"""
TABLE = """\
id: demo.code
title: The widget reported a code
failure: gpu_fell_off_bus
role: root
streams: [kernel]
source: ['here']
does_not_prove: more than it says
match:
  any:
    - regex: 'widget code (?P<code>\\d+)'
table:
  by: code
  rows:
    '7': {title: It fell off, failure: gpu_fell_off_bus, severity: critical}
    '8': {title: It is missing, failure: gpu_missing}
tests:
  fires:
    - line: 'widget code 7'
      failure: gpu_fell_off_bus
  silent:
    - line: 'widget code 9'
"""
BENIGN = (
    SIGNATURE.replace("demo.lost", "demo.harmless")
    .replace("failure: gpu_fell_off_bus", "failure: none")
    .replace("role: root", "role: benign")
)
FAILURES = ["gpu_fell_off_bus", "gpu_missing", "none"]
NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)


def overlay(body: str, *, order: int = 0, target: str = "demo.lost") -> str:
    lines = "".join(f"    {line}\n" for line in ["reason: our site differs", *body.splitlines()])
    return f"kind: overlay\norder: {order}\nchanges:\n  '{target}':\n{lines}"


def silence(target: str = "demo.lost", since: str = "2026-12-01", until: str = "2026-12-03") -> str:
    return (
        f"kind: overlay\nsilences:\n  - signature: {target}\n    from: '{since}'\n    until: '{until}'\n"
        "    reason: cables are swapped\n"
    )


def checked(**overlays: str) -> Checked:
    return check({"lost.yaml": SIGNATURE, "code.yaml": TABLE, **overlays}, FAILURES)


def faults(**overlays: str) -> list[str]:
    return [str(p) for p in lint({"lost.yaml": SIGNATURE, "code.yaml": TABLE, **overlays}, FAILURES).problems]


def hit(rules: Checked, line: bytes, stream: Stream = Stream.APPLICATION, at: datetime | None = None) -> Hit | None:
    return next(iter(rules.compiled(at)[0].match_line(line, stream)), None)


def test_severity_action_and_maturity_are_the_overlays_and_the_rest_stays() -> None:
    rules = checked(site=overlay("severity: warning\naction: continue\nmaturity: test\n"))
    found = hit(rules, b"the widget is lost")
    assert found is not None
    assert (found.severity, found.action, found.maturity) == (Severity.WARNING, Action.CONTINUE, "test")
    assert (found.failure, found.title) == ("gpu_fell_off_bus", "The widget is lost")
    assert [(t.field, t.before, t.value, t.file, t.line) for t in rules.touches] == [
        ("severity", "error", "warning", "site", 6),
        ("action", "none", "continue", "site", 7),
        ("maturity", "stable", "test", "site", 8),
    ]


def test_a_signature_that_is_switched_off_matches_nothing_and_is_still_known() -> None:
    rules = checked(site=overlay("enabled: false\n"))
    assert hit(rules, b"the widget is lost") is None
    assert "demo.lost" in {s.id for s in rules.signatures}
    assert rules.disabled == {"demo.lost"}


def test_one_row_of_a_table_is_changed_or_switched_off_alone() -> None:
    rules = checked(
        a=overlay("action: restart\nseverity: warning\n", target="demo.code#7"),
        b=overlay("enabled: false\n", target="demo.code#8"),
    )
    seven = hit(rules, b"widget code 7", Stream.KERNEL)
    assert seven is not None
    assert (seven.action, seven.severity) == (Action.RESTART, Severity.WARNING)
    assert hit(rules, b"widget code 8", Stream.KERNEL) is None


def test_an_added_spelling_fires_and_keeps_the_signatures_name() -> None:
    rules = checked(
        site=overlay(
            "add:\n  any: [{regex: 'ACME: unit (?P<rank>\\d+) gone'}]\n  streams: [kernel]\n"
            "tests:\n  fires: [{line: 'ACME: unit 3 gone', captures: {rank: '3'}}]\n"
        )
    )
    found = hit(rules, b"ACME: unit 3 gone", Stream.KERNEL)
    assert found is not None
    assert (found.name, found.captures) == ("demo.lost", {"rank": 3})
    assert hit(rules, b"the widget is lost", Stream.KERNEL) is not None


def test_an_added_exception_keeps_its_line_silent() -> None:
    body = "add: {unless: [{text: 'in a drill'}]}\ntests: {silent: [{line: 'widget is lost in a drill'}]}\n"
    rules = checked(site=overlay(body))
    assert hit(rules, b"the widget is lost in a drill") is None
    assert hit(rules, b"the widget is lost") is not None


def test_a_spelling_that_an_upgrade_brought_meanwhile_is_no_fault() -> None:
    body = "add: {any: [{text: 'widget is lost'}]}\ntests: {fires: [{line: 'the widget is lost'}]}\n"
    rules = checked(site=overlay(body))
    assert [(t.field, t.is_in_force, t.before) for t in rules.touches] == [("any", False, "has it already")]
    assert len(next(s for s in rules.signatures if s.id == "demo.lost").match.any) == 1


def test_the_order_that_files_are_read_in_changes_nothing() -> None:
    texts = {"x": overlay("severity: info\n", order=1), "y": overlay("severity: warning\n"), "z": silence()}
    made = []
    for names in itertools.permutations("abc"):
        rules = checked(**dict(zip(names, texts.values(), strict=True)))
        made.append(next(s for s in rules.signatures if s.id == "demo.lost").severity)
    assert set(made) == {Severity.INFO}


def test_the_higher_order_wins_and_the_loser_is_told() -> None:
    rules = checked(a=overlay("severity: info\n", order=5), b=overlay("severity: warning\n"))
    assert [(t.file, t.value, t.is_in_force) for t in rules.touches] == [("a", "info", True), ("b", "warning", False)]


def test_two_of_one_order_that_differ_are_refused_with_both_places_both_values_and_a_way_out() -> None:
    said = faults(a=overlay("severity: info\n"), b=overlay("severity: warning\n"))
    assert said == [
        "b:6:15 demo.lost changes.demo.lost.severity: warning contradicts info in a:6, both in order 0, "
        "remove one, or give its file an 'order' above 0"
    ]
    assert faults(a=overlay("severity: info\n"), b=overlay("severity: info\n")) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (overlay("severity: info\n", target="demo.lots"), "no signature 'demo.lots', did you mean 'demo.lost'?"),
        (overlay("action: stop\n", target="demo.code#77"), "'demo.code' has no row '77', did you mean 'demo.code#7'?"),
        (overlay("action: stop\n", target="demo.lost#1"), "'demo.lost' has no row '1', write 'demo.lost'"),
        (overlay("maturity: test\n", target="demo.code#7"), "a row has no 'maturity' of its own, set it on 'demo.code'"),
        (overlay("severity: info\n", target="demo.code"), "1 rows of this table have their own severity"),
        (overlay("role: symptom\n"), "unknown key 'role', an overlay sets enabled, severity, action, maturity and adds"),
        (overlay("severity: info\n").replace("kind: overlay", "kind: Overlay"), "'Overlay' is not allowed, use 'overlay'"),
        (overlay("severity: info\n").replace("kind: overlay\n", ""), "'kind' is missing"),
        (overlay("sevrity: info\n"), "unknown key 'sevrity', did you mean 'severity'?"),
        (overlay("enabled: 0\n"), "Input should be a valid boolean"),
        (overlay(""), "it changes nothing"),
        ("kind: overlay\n", "it holds neither 'changes' nor 'silences'"),
        (overlay("severity: info\n").replace("    reason: our site differs\n", ""), "'reason' is missing, say why"),
        (overlay("add: {any: [{text: 'gone astray'}]}\n"), "no example holds it, add a line with it to tests.fires"),
        (overlay("add: {unless: [{text: 'drill'}]}\n"), "no example holds it, add a line with it to tests.silent"),
        (
            overlay("add: {any: [{regex: 'a(?=b)'}]}\ntests: {fires: [{line: ab}]}\n"),
            "look-around is not possible in RE2",
        ),
        (
            overlay("add: {any: [{text: 'the widget'}]}\ntests: {fires: [{line: 'the widget'}]}\n"),
            "demo.lost now fires on 'the widget is fine', an example of its own, narrow what is added",
        ),
        (
            overlay("add: {unless: [{text: 'well'}]}\ntests: {silent: [{line: 'well'}]}\n"),
            "demo.lost no longer fires on 'well, the widget is lost', an example of its own",
        ),
        (silence(until="2027-06-01"), "a silence lasts 30 days at most; for good, use 'changes' with enabled: false"),
        (silence(until="2026-11-01"), "'until' must be after 'from'"),
        (silence(until="2026-12-03T10:00:00"), "the time names no zone"),
        (silence(until="soon"), "no date or time; write '2026-12-24'"),
        (silence().replace("    until: '2026-12-03'\n", ""), "'until' is missing, say when the silence ends"),
        (silence(target="demo.lots"), "no signature 'demo.lots', did you mean 'demo.lost'?"),
    ],
)  # fmt: skip
def test_what_an_overlay_may_not_say_is_refused_in_words(text: str, said: str) -> None:
    found = faults(site=text)
    assert any(said in one and one.startswith("site:") for one in found), found


def test_a_faulty_overlay_keeps_the_whole_set_from_loading() -> None:
    with pytest.raises(RulesInvalid, match=r"demo\.lots"):
        checked(site=overlay("severity: info\n", target="demo.lots"))


def test_a_silence_holds_from_its_first_to_before_its_last_moment() -> None:
    rules = checked(site=silence())
    first, last = datetime(2026, 12, 1, tzinfo=UTC), datetime(2026, 12, 3, tzinfo=UTC)
    instant = timedelta(microseconds=1)
    for at, is_silenced in [(first - instant, False), (first, True), (last - instant, True), (last, False)]:
        found = hit(rules, b"the widget is lost", at=at)
        assert found is not None
        assert found.maturity.startswith("silenced") is is_silenced, at
    assert rules.turns() == (first, last)


def test_a_silenced_match_is_still_seen_and_says_until_when_and_why() -> None:
    found = hit(checked(site=silence()), b"the widget is lost", at=NOON)
    assert found is not None
    assert found.maturity == "silenced until 2026-12-03T00:00Z (cables are swapped; site:3)"


def test_one_row_may_be_silenced_and_its_neighbours_speak() -> None:
    rules = checked(site=silence("demo.code#7"))
    seven, eight = (hit(rules, f"widget code {n}".encode(), Stream.KERNEL, NOON) for n in (7, 8))
    assert seven is not None
    assert eight is not None
    assert (seven.silence != "", eight.silence) == (True, "")


def test_a_silenced_benign_signature_no_longer_silences_others_on_its_line() -> None:
    files = {"lost.yaml": SIGNATURE, "benign.yaml": BENIGN}
    spoken = hit(check(files, FAILURES), b"the widget is lost")
    assert spoken is not None
    assert spoken.name == "demo.harmless"
    rules = check({**files, "site": silence("demo.harmless")}, FAILURES).compiled(NOON)[0]
    assert "demo.lost" in {one.name for one in rules.match_line(b"the widget is lost", Stream.APPLICATION)}


def test_without_a_moment_no_silence_holds() -> None:
    found = hit(checked(site=silence()), b"the widget is lost")
    assert found is not None
    assert found.maturity == "stable"


def test_the_example_of_the_docs_loads_over_the_shipped_packs() -> None:
    text = (ROOT / "docs" / "rules.md").read_text("utf-8")
    (example,) = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "kind: overlay" in block]
    report = lint({**bootstrap.shipped_rule_texts(), "site.yaml": example}, bootstrap.failures())
    assert report.problems == ()
    assert {touch.target for touch in report.touches} == {"nccl.collective_timeout", "xid.catalogue#79"}
    assert [quiet.target for quiet in report.silences] == ["host.segfault"]


# ------------------------------------------------------------------ the command that shows origins


def show(folder: Path, name: str, *more: str) -> Result:
    return CliRunner().invoke(app, ["rules", "show", name, "--rules", str(folder), *more])


def test_show_names_the_file_and_line_of_each_field_and_what_was_overruled(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(overlay("severity: info\n", order=5, target="nccl.collective_timeout"), "utf-8")
    (tmp_path / "b.yaml").write_text(overlay("severity: warning\n", target="nccl.collective_timeout"), "utf-8")
    said = json.loads(show(tmp_path, "nccl.collective_timeout", "--json").stdout)
    fields = [one for one in said["fields"] if one["field"] == "severity"]
    assert said["state"] == "in force"
    assert [(f["value"], f["file"], f["line"], f["before"], f["note"]) for f in fields] == [
        ("info", str(tmp_path / "a.yaml"), 6, "error", ""),
        ("warning", str(tmp_path / "b.yaml"), 6, "", ", overruled"),
    ]
    own = next(one for one in said["fields"] if one["field"] == "title")
    assert (own["file"], own["line"]) == ("rules/packs/nccl/collective_timeout.yaml", 3)


def test_show_tells_an_added_spelling_a_changed_row_and_a_signature_that_is_off(tmp_path: Path) -> None:
    body = "add: {any: [{text: 'ACME gave up'}]}\ntests: {fires: [{line: 'ACME gave up'}]}\n"
    (tmp_path / "a.yaml").write_text(overlay(body, target="nccl.collective_timeout"), "utf-8")
    (tmp_path / "b.yaml").write_text(overlay("action: stop\n", target="xid.catalogue#79"), "utf-8")
    (tmp_path / "c.yaml").write_text(overlay("enabled: false\n", target="host.segfault"), "utf-8")
    added = show(tmp_path, "nccl.collective_timeout").stdout
    assert f"ACME gave up   [{tmp_path}/a.yaml:6, added]: our site differs" in added
    row = show(tmp_path, "xid.catalogue").stdout
    assert f"xid.catalogue#79 action stop   [{tmp_path}/b.yaml:6, was none]: our site differs" in row
    assert show(tmp_path, "host.segfault").stdout.startswith(f"host.segfault: disabled by {tmp_path}/c.yaml:6")


def test_show_of_a_faulty_set_names_the_faults_and_ends_with_findings(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(overlay("severity: info\n", target="nccl.collective_timeouts"), "utf-8")
    told = show(tmp_path, "nccl.collective_timeout")
    assert told.exit_code == 1
    assert "did you mean 'nccl.collective_timeout'?" in told.stderr
    assert show(tmp_path, "nccl.no_such").exit_code == 2


def test_lint_names_silences_that_are_over(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(silence("host.segfault", since="2020-01-01", until="2020-01-02"), "utf-8")
    told = CliRunner().invoke(app, ["rules", "lint", str(tmp_path)])
    assert told.exit_code == 0
    assert f"{tmp_path}/a.yaml:3: the silence of host.segfault is over since 2020-01-02" in told.stderr
