# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight rules fmt`: rule files written the one way, so that a diff shows what changed and nothing else."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import Annotated

import typer

from rules.formatting import CommentsLost, formatted
from rules.problems import RulesInvalid
from service import bootstrap
from service.rule_reports import problem_lines
from service.terminal import ExitCode, escaped, message, result, stop

STDIN = "-"


def fmt(
    paths: Annotated[list[Path], typer.Argument(help="Rule files, folders of them, or - for standard input.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit code 1 if a file would change.")] = False,
    diff: Annotated[bool, typer.Option("--diff", help="Show what would change, and write nothing.")] = False,
) -> None:
    """Write signatures and overlays the one way: order of keys, quoting, indentation. Comments are kept."""
    if [str(path) for path in paths] == [STDIN]:
        sys.stdout.write(_formatted(STDIN, sys.stdin.read()) or "")
        return
    try:
        texts = bootstrap.read_rule_files(paths)
    except OSError as error:
        raise stop(f"{error.filename or ''} {error.strerror or error}".strip(), ExitCode.USAGE) from error
    if not texts:
        raise stop("no *.yaml file in " + ", ".join(map(str, paths)), ExitCode.USAGE)
    faulty, changed = 0, 0
    for file, text in texts.items():
        written = _formatted(file, text)
        if written is None:
            faulty += 1
        elif written != text:
            changed += 1
            _change(Path(file), text, written, is_shown=diff, is_kept=check or diff)
    state = "would change" if check or diff else "changed"
    message(f"{len(texts)} files, {changed} {state}" + (f", {faulty} faulty and left alone" if faulty else ""))
    raise typer.Exit(ExitCode.FINDINGS if faulty or (changed and (check or diff)) else ExitCode.OK)


def _formatted(file: str, text: str) -> str | None:
    """None for a file whose form is at fault, after saying why."""
    try:
        return formatted(file, text)
    except RulesInvalid as invalid:
        for line in problem_lines(invalid.problems, "text"):
            message(line)
    except CommentsLost as why:
        message(str(why))
    return None


def _change(file: Path, before: str, after: str, *, is_shown: bool, is_kept: bool) -> None:
    if is_shown:
        lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(file), str(file), lineterm="")
        for line in lines:
            result(escaped(line))
    else:
        result(str(file))
    if not is_kept:
        try:
            bootstrap.write_rule_file(file, after)
        except OSError as error:
            raise stop(f"{file}: {error.strerror or error}", ExitCode.CANNOT_REACH) from error
