# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The linter reports every problem at once, each with its place and a way out; a set loads whole or not."""

from __future__ import annotations

import time

import pytest

from rules.lint import LintReport, lint, load
from rules.problems import Problem, RulesInvalid

FAILURES = ("gpu_fell_off_bus", "nccl_collective_timeout", "none")
GOOD = """\
id: demo.lost_gpu
title: The GPU is gone
failure: gpu_fell_off_bus
role: root
streams: [kernel, application]
source: ['the kernel driver']
does_not_prove: that the card is broken
match:
  any:
    - regex: 'GPU at (?P<pci>[0-9a-f:.]+) has fallen off'
  unless:
    - text: 'simulated'
tests:
  fires:
    - line: 'NVRM: GPU at 0000:3b:00.0 has fallen off the bus'
      captures: {pci: '0000:3b:00.0'}
  silent:
    - line: 'NVRM: GPU at 0000:3b:00.0 has fallen off the bus (simulated)'
"""
TABLE = """\
id: demo.codes
title: A code
role: root
streams: [kernel]
source: ['a manual']
does_not_prove: anything else
match:
  any:
    - regex: 'Xid.*: (?P<xid>\\d+),'
table:
  by: xid
  rows:
    '79': {title: Fell off, failure: gpu_fell_off_bus}
    '13': {title: Program error, failure: none, role: benign}
tests:
  fires:
    - line: 'NVRM: Xid (PCI:0000:3b:00): 79, pid=1'
      captures: {xid: '79'}
      failure: gpu_fell_off_bus
  silent:
    - line: 'NVRM: Xid (PCI:0000:3b:00): 999, pid=1'
"""


def edited(text: str, *edits: tuple[str, str]) -> str:
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def checked(*texts: str) -> LintReport:
    return lint({f"{number}.yaml": text for number, text in enumerate(texts)}, FAILURES)


def only_problem(*texts: str) -> Problem:
    (problem,) = checked(*texts).problems
    return problem


def test_a_faultless_signature_and_a_table_load() -> None:
    report = checked(GOOD, TABLE)
    assert report.problems == ()
    assert [s.id for s in report.signatures] == ["demo.lost_gpu", "demo.codes"]


def test_all_faults_of_all_files_are_reported_at_once_in_order_of_place() -> None:
    first = edited(GOOD, ("role: root", "role: rooot"), ("streams: [kernel, application]", "strems: [kernel]"))
    second = edited(GOOD, ("demo.lost_gpu", "demo.other"), ("gpu_fell_off_bus", "gpu_fell_of_bus"))
    problems = checked(first, second).problems
    assert [(p.file, p.key) for p in problems] == [
        ("0.yaml", "streams"),
        ("0.yaml", "role"),
        ("0.yaml", "strems"),
        ("1.yaml", "failure"),
    ]
    assert [p.fix for p in problems][2:] == ["did you mean 'streams'?", "did you mean 'gpu_fell_off_bus'?"]


def test_a_problem_reads_as_place_signature_key_what_and_fix() -> None:
    text = str(only_problem(edited(GOOD, ("gpu_fell_off_bus", "gpu_fell_of_bus"))))
    assert text == (
        "0.yaml:3:10 demo.lost_gpu failure: failure 'gpu_fell_of_bus' is not in the taxonomy, "
        "did you mean 'gpu_fell_off_bus'?"
    )


@pytest.mark.parametrize("look", ["(?=x)", "(?!x)", "(?<=x)", "(?<!x)"])
def test_look_around_is_explained_with_the_way_out(look: str) -> None:
    problem = only_problem(edited(GOOD, ("GPU at", f"GPU {look}at")))
    assert problem.what == "look-around is not possible in RE2"
    assert "unless" in problem.fix
    assert problem.key == "match.any.0.regex"
    assert problem.line == 10


def test_back_references_are_explained() -> None:
    assert "back-references" in only_problem(edited(GOOD, ("GPU at", "GPU (a)\\1 at"))).what


def test_a_broken_expression_is_told_in_the_words_of_re2() -> None:
    assert only_problem(edited(GOOD, ("has fallen off", "has (fallen off"))).what.startswith("RE2 refuses it:")


def test_an_expression_that_matches_nothing_at_all_is_refused() -> None:
    problem = only_problem(edited(GOOD, ("GPU at (?P<pci>[0-9a-f:.]+) has fallen off", "(GPU)*")))
    assert problem.what == "it matches an empty line"


def test_an_unknown_capture_is_refused_with_the_nearest_name() -> None:
    problem = only_problem(edited(GOOD, ("?P<pci>", "?P<pcie>")))
    assert (problem.what, problem.fix) == ("unknown capture 'pcie'", "did you mean 'pci'?")


def test_an_id_used_twice_names_both_files() -> None:
    problem = only_problem(GOOD, GOOD)
    assert problem.file == "1.yaml"
    assert problem.what == "id 'demo.lost_gpu' is also used in 0.yaml"


def test_superseding_what_does_not_exist_is_refused_with_the_nearest_name() -> None:
    problem = only_problem(GOOD, TABLE + "supersedes: [demo.lost_gpus]\n")
    assert (problem.what, problem.fix) == ("no signature 'demo.lost_gpus'", "did you mean 'demo.lost_gpu'?")


def test_an_example_that_does_not_fire_is_reported_at_its_line() -> None:
    problem = only_problem(edited(GOOD, ("has fallen off the bus'", "fell off the bus'")))
    assert (problem.line, problem.key) == (15, "tests.fires.0")
    assert problem.what == "no match, but it must fire"


def test_a_near_miss_that_matches_is_reported() -> None:
    problem = only_problem(edited(GOOD, ("(simulated)", "(real)")))
    assert (problem.key, problem.what) == ("tests.silent.0", "it matches, but must not")


def test_a_wrong_capture_shows_both_values() -> None:
    problem = only_problem(edited(GOOD, ("captures: {pci: '0000:3b:00.0'}", "captures: {pci: '0000:3c:00.0'}")))
    assert problem.what == "capture 'pci' is '0000:3b:00.0', expected '0000:3c:00.0'"


def test_a_table_example_checks_the_failure_of_its_row() -> None:
    problem = only_problem(edited(TABLE, ("      failure: gpu_fell_off_bus", "      failure: none")))
    assert problem.what == "names failure 'gpu_fell_off_bus', expected 'none'"


def test_a_row_with_an_unknown_failure_is_named_by_its_code() -> None:
    problem = only_problem(edited(TABLE, ("failure: none", "failure: nonsense")))
    assert problem.key == "table.rows.13.failure"


@pytest.mark.parametrize(
    ("edit", "key"),
    [
        (("role: root", "role: benign"), "failure"),
        (("role: root", "role: root\nexcuses: [gpu_fell_off_bus]"), "excuses"),
        (("role: root", "role: root\nevent: step"), "event"),
        (("role: root", "role: root\nkind: progress"), "event"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(edit: tuple[str, str], key: str) -> None:
    assert only_problem(edited(GOOD, edit)).key == key


@pytest.mark.parametrize("missing", ["does_not_prove: that the card is broken\n", "source: ['the kernel driver']\n"])
def test_what_keeps_a_match_from_being_over_read_is_mandatory(missing: str) -> None:
    problem = only_problem(edited(GOOD, (missing, "")))
    assert problem.what == f"{missing.partition(':')[0]!r} is missing"


def test_a_pattern_is_a_regex_or_a_text_and_not_both() -> None:
    both = edited(GOOD, ("    - text: 'simulated'", "    - text: 'simulated'\n      regex: 'simulated'"))
    assert "either 'regex' or 'text'" in only_problem(both).what


def test_a_list_where_a_signature_should_be_is_refused() -> None:
    assert only_problem("- a\n- b\n").what == "a signature is a mapping"


def test_one_bad_file_keeps_the_whole_set_from_loading() -> None:
    with pytest.raises(RulesInvalid) as caught:
        load({"a.yaml": GOOD, "b.yaml": "id: [\n"}, FAILURES)
    assert {p.file for p in caught.value.problems} == {"b.yaml"}


def test_signatures_and_progress_load_into_sets_of_their_own_and_deprecated_ones_into_none() -> None:
    progress = edited(
        GOOD,
        ("demo.lost_gpu", "demo.step"),
        ("failure: gpu_fell_off_bus\nrole: root", "failure: none\nrole: benign\nkind: progress\nevent: step"),
    )
    old = edited(GOOD, ("demo.lost_gpu", "demo.old"), ("role: root", "role: root\nmaturity: deprecated"))
    signatures, steps = load({"a.yaml": GOOD, "b.yaml": progress, "c.yaml": old}, FAILURES)
    assert [s.id for s in signatures.signatures] == ["demo.lost_gpu"]
    assert [s.id for s in steps.signatures] == ["demo.step"]


def test_a_pattern_that_would_backtrack_elsewhere_is_linear_here() -> None:
    costly = edited(
        GOOD,
        ("GPU at (?P<pci>[0-9a-f:.]+) has fallen off", "(a+)+(b|c)+GPU"),
        (
            "NVRM: GPU at 0000:3b:00.0 has fallen off the bus'\n      captures: {pci: '0000:3b:00.0'}",
            "aabGPU'",
        ),
        ("NVRM: GPU at 0000:3b:00.0 has fallen off the bus (simulated)", "a" * 3_900),
    )
    began = time.perf_counter()
    assert checked(costly).problems == ()
    assert time.perf_counter() - began < 2
