# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Pages about signatures: current, complete, and unharmed by what log lines hold."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner, Result

from rules.lint import check
from service import bootstrap
from service.cli import app
from service.rule_pages import pages
from tests.unit.test_rules_overlay import FAILURES, SIGNATURE, TABLE

DOCS = Path(__file__).parents[2] / "docs" / "signatures"


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["rules", "docs", *args])


def made(*texts: str) -> dict[str, str]:
    return pages(check({f"{n}.yaml": text for n, text in enumerate(texts)}, FAILURES).signatures, bootstrap.taxonomy())


def test_the_committed_pages_are_current() -> None:
    told = run(str(DOCS), "--check")
    assert told.exit_code == 0, f"refresh them: relight rules docs docs/signatures\n{told.stdout}{told.stderr}"


def test_a_page_tells_id_role_class_action_example_and_source() -> None:
    page = made(SIGNATURE)["demo.md"]
    for said in (
        "## demo.lost",
        "- root, error: `gpu_fell_off_bus`, class hardware",
        "- action at first: restart_excluding",
        "- does not prove more than it says",
        "- printed by here",
        "```text\nwell, the widget is lost\n```",
    ):
        assert said in page


def test_a_table_has_a_line_for_each_row() -> None:
    page = made(TABLE)["demo.md"]
    assert "| 7 | It fell off | `gpu_fell_off_bus` | hardware | root | restart_excluding |" in page
    assert "| 8 | It is missing | `gpu_missing` | hardware | root | restart_excluding |" in page


def test_an_example_can_not_break_out_of_its_fence_nor_a_title_out_of_its_line() -> None:
    nasty = SIGNATURE.replace("well, the widget is lost", "widget is lost ```` </pre> # x").replace(
        "title: The widget is lost", "title: 'A <script> | [link](x)'"
    )
    page = made(nasty)["demo.md"]
    assert "`````text\nwidget is lost ```` </pre> # x\n`````" in page
    assert "<script>" not in page.replace("\\<script\\>", "")


def test_the_front_page_counts_what_there_is() -> None:
    front = made(SIGNATURE, TABLE)["README.md"]
    assert "2 signatures in 1 packs" in front
    assert "| [demo](demo.md) | 2 | 2 |" in front


def test_the_command_writes_what_changed_removes_what_is_gone_and_keeps_what_is_not_its_own(tmp_path: Path) -> None:
    rules, out = tmp_path / "rules", tmp_path / "out"
    rules.mkdir()
    out.mkdir()
    (rules / "lost.yaml").write_text(SIGNATURE, "utf-8")
    (out / "old.md").write_text(made(SIGNATURE)["demo.md"], "utf-8")
    (out / "notes.md").write_text("# mine", "utf-8")
    args = (str(out), "--rules", str(rules))
    assert run(*args, "--check").exit_code == 1
    assert not (out / "demo.md").exists()
    assert run(*args).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["README.md", "demo.md", "notes.md"]
    assert run(*args, "--check").exit_code == 0
