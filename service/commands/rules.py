# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight rules`: what a rule author runs between two edits."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from relight.types import Stream
from rules.lint import LintReport, lint
from rules.overlay import overlay_json_schema
from rules.schema import signature_json_schema
from service import bootstrap
from service.commands import rule_bench, rule_docs, rule_fmt
from service.commands.options import AsJson, ConfigFile, settings_from
from service.rule_reports import (
    Format,
    explanation,
    new_signature,
    problem_lines,
    signature_names,
    with_related,
)
from service.terminal import ExitCode, escaped, message, result, result_json, stop

app = typer.Typer(help="Lint, test, explain and try signatures.", no_args_is_help=True, rich_markup_mode=None)
app.command()(rule_fmt.fmt)
app.command("bench")(rule_bench.run_bench)
app.command()(rule_docs.docs)
RuleFolders = Annotated[
    list[Path] | None, typer.Option("--rules", help="Folders with your own signatures and overlays.")
]
Paths = Annotated[list[Path] | None, typer.Argument(help="Signature files or folders; all packs if none.")]


@app.command("lint")
def lint_rules(
    paths: Paths = None,
    form: Annotated[Format, typer.Option("--format", help="How to print problems.")] = "text",
    config: ConfigFile = None,
) -> None:
    """Check every signature: form, patterns, references and its own examples."""
    report, asked = _checked(paths or [], config)
    for line in problem_lines(report.problems, form):
        result(line)
    now = bootstrap.clock().now()
    for quiet in (one for one in report.silences if one.file in asked and one.until <= now):
        message(f"{quiet.file}:{quiet.line}: the silence of {quiet.target} is over since {quiet.until:%Y-%m-%d}")
    message(_summary(report, len(asked)))
    raise typer.Exit(ExitCode.FINDINGS if report.problems else ExitCode.OK)


@app.command("test")
def run_tests(
    paths: Annotated[list[Path], typer.Argument(help="Signature files or folders.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Run the examples inside signature files, and all other checks on them."""
    report, asked = _checked(paths, config)
    faulty = {p.file for p in report.problems}
    sound = [s for s in report.signatures if signature_names(asked).get(s.id) not in {None, *faulty}]
    if as_json:
        passed = [{"id": s.id, "fires": len(s.tests.fires), "silent": len(s.tests.silent)} for s in sound]
        problems = json.loads("".join(problem_lines(report.problems, "json")))
        result_json({"passed": passed, "problems": problems})
    else:
        for signature in sound:
            fires, silent = len(signature.tests.fires), len(signature.tests.silent)
            result(f"ok {signature.id}: fires on {fires}, silent on {silent}")
        for line in problem_lines(report.problems, "text"):
            result(line)
    message(_summary(report, len(asked)))
    raise typer.Exit(ExitCode.FINDINGS if report.problems else ExitCode.OK)


@app.command()
def explain(
    name: Annotated[str, typer.Argument(help="Signature id, or id#code for one row of a table.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Say what a signature means, what it does not prove, and where its lines come from."""
    texts = _all_texts(config)
    identity, _, code = name.partition("#")
    file = signature_names(texts).get(identity)
    if file is None:
        raise stop(f"no signature {identity!r}{_suggestion(identity, signature_names(texts))}", ExitCode.USAGE)
    report = lint(with_related({file: texts[file]}, texts), bootstrap.failures())
    found = [s for s in report.signatures if s.id == identity]
    if not found:
        raise stop(f"{file} is faulty; run: relight rules lint {file}", ExitCode.FINDINGS)
    signature = found[0]
    if code and (signature.table is None or code not in signature.table.rows):
        rows = signature.table.rows if signature.table is not None else ()
        raise stop(f"{identity} has no row {code!r}{_suggestion(code, rows)}", ExitCode.USAGE)
    if as_json:
        result_json({"file": file, **signature.model_dump(mode="json", exclude_none=True)})
    else:
        for line in explanation(signature, file, code):
            result(line)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Signature id.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
    folders: RuleFolders = None,
) -> None:
    """Show a signature as it is in force, and the file and line that each field comes from, overlays included."""
    from service import rule_origins

    texts = _all_texts(config, folders)
    homes = signature_names(texts)
    if name not in homes:
        raise stop(f"no signature {name!r}{_suggestion(name, homes)}", ExitCode.USAGE)
    report = lint(texts, bootstrap.failures())
    found = next((s for s in report.signatures if s.id == name), None)
    for line in problem_lines(report.problems, "text"):
        message(line)
    if found is None:
        raise stop(f"{homes[name]} is faulty, see above", ExitCode.FINDINGS)
    state = rule_origins.state_of(found, report.touches, report.silences, bootstrap.clock().now())
    fields = tuple(rule_origins.origins(found, report, homes[name], texts[homes[name]]))
    if as_json:
        result_json({"id": name, **rule_origins.origins_told(state, fields)})
    else:
        result(escaped(f"{name}: {state}"))
        for one in fields:
            result(f"  {one}")
    raise typer.Exit(ExitCode.FINDINGS if report.problems else ExitCode.OK)


@app.command()
def match(
    file: Annotated[Path, typer.Option("--file", "-f", help="A log; - reads standard input.")],
    stream: Annotated[Stream, typer.Option(help="Who wrote the log.")] = Stream.APPLICATION,
    only: Annotated[str | None, typer.Option(help="One signature id.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Show which signatures match which lines of a log, with the matched words marked."""
    from service.rule_trial import show_matches, without_faulty

    texts = _all_texts(config)
    names = signature_names(texts)
    if only is not None and only not in names:
        raise stop(f"no signature {only!r}{_suggestion(only, names)}", ExitCode.USAGE)
    report = lint(texts if only is None else {names[only]: texts[names[only]]}, bootstrap.failures())
    rules = without_faulty(report, only)
    if str(file) != "-" and not file.is_file():
        raise stop(f"no log file {file}", ExitCode.USAGE)
    show_matches(rules, file, stream, as_json)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="<pack>.<name>, as in nccl.collective_timeout.")],
    failure: Annotated[str, typer.Option(help="An entry of the taxonomy.")] = "cause_not_in_log",
    stream: Annotated[Stream, typer.Option(help="Where the line is seen.")] = Stream.APPLICATION,
    line: Annotated[
        str, typer.Option(help="A line it must fire on.")
    ] = "EDIT: a line that must fire, as it is printed",
    config: ConfigFile = None,
) -> None:
    """Print a signature to fill in; save it as rules/packs/<pack>/<name>.yaml."""
    pack, _, rest = name.partition(".")
    if not (pack and rest and name.replace(".", "", 1).replace("_", "").isalnum() and name == name.lower()):
        raise stop(f"id {name!r}: need <pack>.<name> in lower case, letters, digits and _", ExitCode.USAGE)
    known = bootstrap.failures()
    if failure not in known:
        raise stop(f"no failure {failure!r}{_suggestion(failure, known)}", ExitCode.USAGE)
    taken = signature_names(_all_texts(config)).get(name)
    if taken is not None:
        raise stop(f"id {name!r} is used in {taken}, choose another", ExitCode.USAGE)
    result(new_signature(name, failure, stream, line).rstrip("\n"))
    message(f"save it as rules/packs/{pack}/{rest}.yaml, replace what says EDIT, then: relight rules test FILE")


@app.command()
def schema(
    overlay: Annotated[bool, typer.Option("--overlay", help="That of overlays instead.")] = False,
) -> None:
    """Print the JSON Schema of a signature file, or of an overlay, for editors."""
    result(json.dumps(overlay_json_schema() if overlay else signature_json_schema(), indent=2))


def _checked(paths: list[Path], config: Path | None) -> tuple[LintReport, Mapping[str, str]]:
    """A report on the files asked for, checked together with what they refer to."""
    everything = _all_texts(config)
    if not paths:
        return lint(everything, bootstrap.failures()), everything
    try:
        asked = bootstrap.read_rule_files(paths)
    except OSError as error:
        raise stop(f"{error.filename or ''} {error.strerror or error}".strip(), ExitCode.USAGE) from error
    if not asked:
        raise stop("no *.yaml file in " + ", ".join(map(str, paths)), ExitCode.USAGE)
    same = set(asked.values())  # a shipped file may be asked for by another path
    others = {f: text for f, text in everything.items() if f not in asked and text not in same}
    report = lint(with_related(asked, others), bootstrap.failures())
    return LintReport(
        signatures=report.signatures,
        problems=tuple(p for p in report.problems if p.file in asked or any(f in p.what for f in asked)),
        files=len(asked),
        touches=report.touches,
        silences=report.silences,
    ), asked


def _all_texts(config: Path | None, folders: list[Path] | None = None) -> dict[str, str]:
    """The shipped rules and those of the site. Ends with code 2 where a folder is missing."""
    try:
        texts = bootstrap.rule_texts(settings_from(config))
        return {**texts, **bootstrap.read_rule_files(folders or ())}
    except OSError as error:
        raise stop(f"{error.filename or ''} {error.strerror or error}".strip(), ExitCode.USAGE) from error


def _summary(report: LintReport, files: int) -> str:
    count = len(report.problems)
    return f"{files} file{'s' * (files != 1)}, {count} problem{'s' * (count != 1)}"


def _suggestion(typed: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(typed, sorted(known), 3)
    return f"; did you mean {', '.join(map(escaped, near))}?" if near else ""
