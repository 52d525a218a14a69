# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rule files written the one way: what is moved, what is quoted, what is kept, and that it can be done twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from rules.comments import comments_of
from rules.formatting import formatted
from rules.problems import RulesInvalid
from rules.source import read_source
from service.cli import app

UNTIDY = """\
# about the whole file
title: "It is lost"   # shown to people
# why this failure
failure: gpu_fell_off_bus
id: demo.lost
streams:
    - application
    - kernel
match:
  # the old spelling
  any:  # spellings
  - text: "it's lost"  # since 1.0
    # inside the item
    since: 1.0 and later
  # the new spelling
  - {regex: 'lost \\d+'}
role: root
tests: {fires: [{line: "it's lost", captures: {node: n1}}], silent: [{line: "found # again"}]}
# the end
"""
TIDY = """\
# about the whole file
id: demo.lost
title: 'It is lost'  # shown to people
# why this failure
failure: gpu_fell_off_bus
role: root
streams: [application, kernel]
match:
  # the old spelling
  any:  # spellings
    - text: 'it''s lost'  # since 1.0
      # inside the item
      since: '1.0 and later'
    # the new spelling
    - regex: 'lost \\d+'
tests:
  fires:
    - line: 'it''s lost'
      captures: {node: n1}
  silent:
    - line: 'found # again'
# the end
"""


def run(*args: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["rules", "fmt", *args], input=stdin)


def test_keys_comments_quotes_and_indentation_find_their_place() -> None:
    assert formatted("f", UNTIDY) == TIDY


def test_formatting_twice_changes_nothing() -> None:
    once = formatted("f", UNTIDY)
    assert formatted("f", once) == once


def test_what_a_file_says_is_the_same_afterwards() -> None:
    assert read_source("f", formatted("f", UNTIDY)).value == read_source("f", UNTIDY).value


def test_a_hash_inside_a_quoted_line_is_no_comment() -> None:
    root = yaml.compose(UNTIDY, Loader=yaml.SafeLoader)
    assert root is not None
    found = comments_of(UNTIDY, root)
    assert found.count() == 9
    assert found.header == ["# about the whole file"]
    assert found.footer == ["# the end"]


def test_an_overlay_has_its_own_order_and_keeps_the_sites_own_order_of_targets() -> None:
    text = (
        "changes:\n  z.z: {severity: info, reason: why not}\n  a.a:\n    enabled: false  # for now\n    reason: noise\n"
        "kind: overlay\n"
    )
    assert formatted("f", text) == (
        "kind: overlay\nchanges:\n  z.z: {severity: info, reason: why not}\n"
        "  a.a:\n    reason: noise\n    enabled: false  # for now\n"
    )


def test_what_has_no_printed_form_stays_escaped() -> None:
    text = 'id: a.b\nmatch: {any: [{text: "a\\tb\\x1b[0m"}]}\n'
    out = formatted("f", text)
    assert '"a\\tb\\e[0m"' in out
    assert read_source("f", out).value == read_source("f", text).value


@pytest.mark.parametrize("text", ["id: [", "id: yes\n", "- a\n", "id: &a x\nb: *a\n", ""])
def test_a_file_whose_form_is_at_fault_is_left_alone(text: str) -> None:
    with pytest.raises(RulesInvalid):
        formatted("f", text)


WORDS = st.text(st.sampled_from("ab #:'\"{}[],-\\\t\u00e9"), min_size=1, max_size=12)
NOTES = st.lists(st.text(st.sampled_from("xy #'"), max_size=6), max_size=3)


@settings(max_examples=150)
@given(st.lists(WORDS, min_size=1, max_size=4), NOTES, NOTES)
def test_any_text_and_any_comments_survive(lines: list[str], above: list[str], behind: list[str]) -> None:
    quoted = [yaml.dump(line, default_style='"', width=10**6).rstrip("\n") for line in lines]
    items = "".join(
        f"    # {above[n % len(above)] if above else ''}\n    - line: {one}"
        + (f"  # {behind[n % len(behind)]}" if behind else "")
        + "\n"
        for n, one in enumerate(quoted)
    )
    text = f"tests:\n  fires:\n{items}id: a.b\n"
    out = formatted("f", text)
    before, after = (yaml.compose(one, Loader=yaml.SafeLoader) for one in (text, out))
    assert before is not None
    assert after is not None
    assert read_source("f", out).value == read_source("f", text).value
    assert comments_of(out, after).count() == comments_of(text, before).count()
    assert formatted("f", out) == out


def test_the_command_writes_and_the_check_only_tells(tmp_path: Path) -> None:
    file = tmp_path / "lost.yaml"
    file.write_text(UNTIDY, "utf-8")
    told = run(str(tmp_path), "--check")
    assert (told.exit_code, file.read_text("utf-8")) == (1, UNTIDY)
    assert str(file) in told.stdout
    assert run(str(tmp_path), "--diff").stdout.count("\n-id: demo.lost\n") == 1
    assert run(str(file)).exit_code == 0
    assert file.read_text("utf-8") == formatted("f", UNTIDY)
    assert run(str(tmp_path), "--check").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["lost.yaml"]


def test_the_command_formats_standard_input() -> None:
    assert run("-", stdin=UNTIDY).stdout == formatted("f", UNTIDY)


def test_a_faulty_file_is_named_and_kept(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("id: yes\n", "utf-8")
    told = run(str(file))
    assert (told.exit_code, file.read_text("utf-8")) == (1, "id: yes\n")
    assert "YAML reads it as true or false" in told.stderr


def test_every_shipped_rule_file_is_written_the_one_way() -> None:
    told = run("rules/packs", "--check")
    assert told.exit_code == 0, f"relight rules fmt rules/packs\n{told.stdout}"
