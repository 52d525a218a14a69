# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What signatures cost: the costly one is named, counts are exact, and every signature is measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relight.types import Stream
from rules.lint import check
from rules.schema import Signature
from service.cli import app
from service.rule_bench import LEAST, bench, rounds
from tests.unit.test_rules_overlay import FAILURES, SIGNATURE

COSTLY = SIGNATURE.replace("demo.lost", "demo.costly").replace(
    "    - text: 'widget is lost'",
    "    - regex: '(?P<host>\\w+) .*(?P<message>widget is (?:lost|gone)) .*(?P<reason>\\w+) (?P<user>\\w+)$'\n"
    "    - text: 'widget is lost'",
)
IDLE = SIGNATURE.replace("demo.lost", "demo.idle").replace("widget", "gadget")
LINES = [f"n{number} says that the widget is lost since {number % 7} days by ada".encode() for number in range(300)]
LINES += [b"step 17 loss 2.31"] * 700


def signatures() -> tuple[Signature, ...]:
    texts = {"a": SIGNATURE, "b": COSTLY, "c": IDLE}
    return check(texts, FAILURES).signatures


def test_the_costliest_signature_is_measured_with_the_set_and_without_it() -> None:
    found = bench(signatures(), LINES * 3, Stream.APPLICATION, repeats=3, tick=lambda: None)
    costliest = found.signatures[0]
    assert costliest.id in {"demo.costly", "demo.lost"}  # which of the two is for a quiet machine to say
    assert costliest.with_lines_s is not None
    assert costliest.without_lines_s is not None
    assert ("demo.costly", 0) in {(one.signature, one.index) for one in found.regexes}


def test_counts_of_the_prefilter_are_exact() -> None:
    found = bench(signatures(), LINES * 2, Stream.APPLICATION, repeats=1, tick=lambda: None)
    assert (found.lines, found.named, found.candidates, found.matched) == (2_000, 600, 1_200, 1_200)
    assert {one.id: (one.candidates, one.matched) for one in found.signatures} == {
        "demo.lost": (600, 600), "demo.costly": (600, 600), "demo.idle": (0, 0),
    }  # fmt: skip
    assert found.patterns == 4


def test_in_a_stream_where_a_signature_does_not_count_its_candidates_match_nothing() -> None:
    found = bench(signatures(), LINES * 2, Stream.KERNEL, repeats=1, tick=lambda: None)
    assert (found.candidates, found.matched) == (1_200, 0)


def test_a_short_log_is_read_over_and_over_and_an_empty_one_is_refused() -> None:
    found = bench(signatures(), LINES[:3], Stream.APPLICATION, repeats=1, tick=lambda: None)
    assert LEAST <= found.lines < LEAST + 3
    with pytest.raises(ValueError, match="no line"):
        bench(signatures(), [], Stream.APPLICATION, repeats=1, tick=lambda: None)


def test_the_bar_is_told_how_often_it_will_be_moved() -> None:
    ticks: list[None] = []
    few = signatures()
    bench(few, LINES, Stream.APPLICATION, repeats=2, tick=lambda: ticks.append(None))
    assert len(ticks) == rounds(few, 2)


def test_the_command_fails_below_the_speed_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.bootstrap.rule_texts", lambda _: {"a": SIGNATURE, "b": COSTLY})
    log = tmp_path / "job.log"
    log.write_bytes(b"\n".join(LINES))
    args = ["rules", "bench", str(log), "--repeats", "1"]
    shown = CliRunner().invoke(app, args)
    assert shown.exit_code == 0, shown.output
    assert "costs most   demo.costly" in shown.stdout
    said = json.loads(CliRunner().invoke(app, [*args, "--json"]).stdout)
    assert said["signatures"][0]["id"] == "demo.costly"
    slow = CliRunner().invoke(app, [*args, "--at-least", "1000000000"])
    assert (slow.exit_code, "wanted 1,000,000,000" in slow.stderr) == (1, True)
    assert CliRunner().invoke(app, ["rules", "bench", str(tmp_path / "none.log")]).exit_code == 2
