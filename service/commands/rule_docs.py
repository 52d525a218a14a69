# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight rules docs`: what the signatures are, as pages that can't be out of date unnoticed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rules.lint import check as checked
from rules.problems import RulesInvalid
from rules.schema import Signature
from service import bootstrap
from service.rule_pages import NOTE, pages
from service.rule_reports import problem_lines
from service.terminal import ExitCode, message, result, stop


def docs(
    folder: Annotated[Path, typer.Argument(help="Where the pages go, as docs/signatures.")],
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if a page is not current.")
    ] = False,
    folders: Annotated[
        list[Path] | None, typer.Option("--rules", help="Folders with signatures, instead of the shipped packs.")
    ] = None,
) -> None:
    """Write a page for each pack: id, kind, class, action, an example line, and who prints it."""
    try:
        made = pages(_signatures(folders or []), bootstrap.taxonomy())
        held = {path.name: path.read_text("utf-8") for path in sorted(folder.glob("*.md"))}
    except OSError as error:
        raise stop(f"{error.filename or ''} {error.strerror or error}".strip(), ExitCode.USAGE) from error
    stale = [name for name, text in made.items() if held.get(name) != text]
    gone = [name for name, text in held.items() if name not in made and text.startswith(NOTE)]
    for name in (*stale, *gone):
        result(str(folder / name))
    if check:
        message(f"{len(made)} pages, {len(stale) + len(gone)} not current")
        raise typer.Exit(ExitCode.FINDINGS if stale or gone else ExitCode.OK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in stale:
            (folder / name).write_text(made[name], "utf-8")
        for name in gone:
            (folder / name).unlink()
    except OSError as error:
        raise stop(f"{error.filename}: {error.strerror or error}", ExitCode.CANNOT_REACH) from error
    message(f"{len(made)} pages, {len(stale)} written, {len(gone)} removed")


def _signatures(folders: list[Path]) -> tuple[Signature, ...]:
    texts = bootstrap.read_rule_files(folders) if folders else bootstrap.shipped_rule_texts()
    try:
        return checked(texts, bootstrap.failures()).signatures
    except RulesInvalid as invalid:
        for line in problem_lines(invalid.problems, "text"):
            message(line)
        raise stop("no page is made of faulty rules, see above", ExitCode.FINDINGS) from invalid
