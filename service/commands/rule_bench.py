# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight rules bench`: which signature slows reading down, on a log of your own."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from relight.types import Stream
from rules.lint import lint
from service import bootstrap
from service.commands.options import AsJson, ConfigFile, settings_from
from service.rule_bench import Bench, RegexCost, SignatureCost, bench, rounds
from service.rule_trial import without_faulty
from service.terminal import ExitCode, escaped, message, progress, result, result_json, stop

_WIDEST = 90


def run_bench(
    log: Annotated[Path, typer.Argument(help="A log; the more like yours, the better.")],
    stream: Annotated[Stream, typer.Option(help="Who wrote the log.")] = Stream.APPLICATION,
    lines: Annotated[int, typer.Option(min=1, help="Read no more than so many lines.")] = 3_000,
    repeats: Annotated[int, typer.Option(min=1, max=100, help="Medians of so many rounds.")] = 3,
    top: Annotated[int, typer.Option(min=1, help="Show so many signatures and regexes.")] = 10,
    at_least: Annotated[int | None, typer.Option(help="Exit code 1 below so many lines a second, for CI.")] = None,
    folders: Annotated[list[Path] | None, typer.Option("--rules", help="Folders with your own signatures.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Measure what each signature costs on a log: candidates, confirmations, and the speed without it."""
    try:
        texts = {**bootstrap.rule_texts(settings_from(config)), **bootstrap.read_rule_files(folders or ())}
        with log.open("rb") as opened:
            read = [line.rstrip(b"\r\n") for _, line in zip(range(lines), opened, strict=False)]
    except OSError as error:
        raise stop(f"{error.filename or log} {error.strerror or error}", ExitCode.USAGE) from error
    rules = without_faulty(lint(texts, bootstrap.failures()))
    try:
        with progress("measuring", rounds(rules.signatures, repeats)) as bar:
            found = bench(rules.signatures, read, stream, repeats=repeats, tick=bar.advance)
    except ValueError as why:
        raise stop(f"{log}: {why}", ExitCode.USAGE) from why
    if as_json:
        result_json({**asdict(found), "lines_s": found.lines_s})
    else:
        _show(found, log, stream, top)
    if at_least is not None and found.lines_s < at_least:
        raise stop(f"{found.lines_s:,.0f} lines/s, wanted {at_least:,}", ExitCode.FINDINGS)


def _show(found: Bench, log: Path, stream: Stream, top: int) -> None:
    total_s = found.prefilter_s + found.confirm_s
    result(
        f"{found.lines:,} lines of {escaped(str(log))} ({found.size_bytes / 1e6:.1f} MB), read as {stream}; "
        f"{len(found.signatures)} signatures, {found.patterns:,} spellings; medians of {found.repeats}"
    )
    result(f"  whole set    {found.lines_s:>10,.0f} lines/s: {found.prefilter_s * 1e3:.1f} ms to name candidates, "
           f"{found.confirm_s * 1e3:.1f} ms to confirm them")  # fmt: skip
    result(f"  prefilter    {_share(found.named, found.lines)} of lines name a candidate; "
           f"{_share(found.matched, found.candidates)} of {found.candidates:,} candidates match")  # fmt: skip
    costliest = found.signatures[0]
    result(f"  costs most   {costliest.id}: {_gain(costliest)}")
    result("")
    result(f"{'signature':<44} {'candidates':>10} {'matched':>8} {'confirm':>9} {'alone':>14} {'without it':>16}")
    for one in found.signatures[:top]:
        without = f"{one.without_lines_s:>8,.0f} lines/s" if one.without_lines_s is not None else "-"
        result(f"{one.id:<44} {one.candidates:>10,} {one.matched:>8,} {_share(one.confirm_s, total_s):>9} "
               f"{found.lines / one.alone_s:>8,.0f} l/s {without:>16}")  # fmt: skip
    result("")
    result("slowest regexes, each alone")
    for regex in found.regexes[:top]:
        result(_regex(regex))
    message("confirm: share of the whole set's time; alone: that signature's own prefilter; costs below some "
            "hundredths are noise")  # fmt: skip


def _gain(one: SignatureCost) -> str:
    if one.without_lines_s is None or one.with_lines_s is None:
        return "not measured"
    more = one.without_lines_s / one.with_lines_s - 1
    return f"{one.with_lines_s:,.0f} lines/s with it, {one.without_lines_s:,.0f} without ({more:+.1%})"


def _regex(one: RegexCost) -> str:
    shown = escaped(one.pattern)
    shown = shown if len(shown) <= _WIDEST else shown[: _WIDEST - 3] + "..."
    return f"  {one.ns:>7,.0f} ns a line  {one.signature} match.any.{one.index}  {shown}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
