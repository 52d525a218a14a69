# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight diagnose`: why a job failed, from its logs, and what a controller would be advised to do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import orjson
import typer

from relight.policy_words import reason_in_words
from relight.ports import AuditUnavailable
from relight.types import Stream
from rules.problems import RulesInvalid
from service.bootstrap import DiagnosisTools, LogUnreadable, diagnosis_tools, model_hints
from service.commands.options import ConfigFile, settings_from
from service.diagnosis import Diagnosis, as_json, as_prediction
from service.terminal import ExitCode, escaped, message, progress, result, stop

if TYPE_CHECKING:
    from service.model_hints import ModelHints

_MAX_LOSERS = 6
T = TypeVar("T")


def diagnose(
    files: Annotated[
        list[str] | None,
        typer.Argument(help="Log files, .gz too, a folder of one run, or - for standard input."),
    ] = None,
    stream: Annotated[
        list[str] | None, typer.Option(help="FILE=STREAM, e.g. dmesg.txt=kernel; else told from the name.")
    ] = None,
    node: Annotated[list[str] | None, typer.Option(help="FILE=HOST: the host that wrote a file.")] = None,
    as_json_: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    batch: Annotated[Path | None, typer.Option(help="A folder of case folders; one prediction each.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where --batch writes its predictions (JSON lines).")] = None,
    rules: Annotated[list[Path] | None, typer.Option(help="Folders with your own signatures.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A policy file instead of the shipped one.")] = None,
    hint: Annotated[
        bool, typer.Option("--hint", help="Where the rules name no cause, add the promoted model's guess.")
    ] = False,
    config: ConfigFile = None,
) -> None:
    """Say why a job failed, from its logs.

    Judges the last attempt that the logs hold. Exit code 0 if nothing failed, 1 if something did.
    """
    if batch is None and not files:
        raise stop(
            "no log named; try: relight diagnose job.log, or relight diagnose --batch DIR --out FILE",
            ExitCode.USAGE,
        )
    tools = _tools(rules or [], policy, _hints(config) if hint else None)
    if batch is not None:
        _batch(tools, batch, out)
        return
    name, said, notes = _one(tools, files or [], _pairs(stream, "stream", Stream), _pairs(node, "node", str))
    for note in notes:
        message(f"relight: {note}")
    if as_json_:
        result(orjson.dumps(as_json(name, said), option=orjson.OPT_INDENT_2).decode())
    else:
        result(report(said))
    if said.attribution.root is not None:
        raise typer.Exit(ExitCode.FINDINGS)


def _hints(config: Path | None) -> ModelHints:
    try:
        asked = model_hints(settings_from(config))
    except AuditUnavailable as why:
        raise stop(f"--hint reads promotions from the audit log: {why}", ExitCode.CANNOT_REACH) from why
    if asked.model is None:
        message(f"relight: {asked.reason}")
    return asked


def _tools(rules: Sequence[Path], policy: Path | None, hints: ModelHints | None) -> DiagnosisTools:
    try:
        return diagnosis_tools(rules, policy, hints)
    except RulesInvalid as invalid:
        for problem in invalid.problems:
            message(str(problem))
        raise stop(f"the rules hold {len(invalid.problems)} problem(s), see above", ExitCode.CONFIG) from invalid
    except OSError as missing:
        raise stop(str(missing), ExitCode.CONFIG) from missing


def _pairs(given: Sequence[str] | None, option: str, kind: Callable[[str], T]) -> dict[str, T]:
    out: dict[str, T] = {}
    for pair in given or ():
        file, sign, value = pair.rpartition("=")
        if not sign or not file or not value:
            raise stop(f"--{option} wants FILE=VALUE, got {pair!r}", ExitCode.USAGE)
        try:
            out[file] = kind(value)
        except ValueError as unknown:
            known = ", ".join(Stream)
            raise stop(f"--{option} {pair!r}: {value!r} is no stream; use one of {known}", ExitCode.USAGE) from unknown
    return out


def _one(
    tools: DiagnosisTools, files: Sequence[str], streams: Mapping[str, Stream], nodes: Mapping[str, str]
) -> tuple[str, Diagnosis, tuple[str, ...]]:
    unnamed = [f for f in (*streams, *nodes) if f not in files]
    if unnamed:
        raise stop(f"{unnamed[0]!r} is given a stream or node but is not among the files", ExitCode.USAGE)
    try:
        if len(files) == 1 and Path(files[0]).is_dir():
            case = tools.read_folder(Path(files[0]))
        else:
            case = tools.read_files(files, streams, nodes)
    except LogUnreadable as why:
        raise stop(str(why), ExitCode.USAGE) from why
    return case.name, tools.judge(case), case.notes


def _batch(tools: DiagnosisTools, root: Path, out: Path | None) -> None:
    if not root.is_dir():
        raise stop(f"--batch {root} is not a folder", ExitCode.USAGE)
    folders = list(tools.case_folders(root))
    if not folders:
        raise stop(
            f"--batch {root} holds no case folder (a folder with log files, or with an input.json)",
            ExitCode.USAGE,
        )
    lines, skipped = [], 0
    with progress("diagnosing", len(folders)) as bar:
        for folder in folders:
            name = folder.name if folder.parent == root else str(folder.relative_to(root))
            try:
                lines.append(orjson.dumps(as_prediction(name, tools.judge(tools.read_folder(folder)))))
            except LogUnreadable as why:
                message(f"relight: {name} left out: {why}")
                skipped += 1
            bar.advance()
    data = b"".join(line + b"\n" for line in lines)
    if out is None:
        result(data.decode().rstrip("\n"))
    else:
        out.write_bytes(data)
        message(f"relight: {len(lines)} predictions written to {out}" + (f", {skipped} left out" if skipped else ""))
    if skipped:
        raise typer.Exit(ExitCode.FINDINGS)


def report(said: Diagnosis) -> str:
    """The diagnosis in the words of a colleague: what, where, why, what next, and what it is not."""
    a, v = said.attribution, said.verdict
    lines = [f"{a.failure}  ({a.failure_class.value}, {a.evidence_status.value})", f"  {escaped(a.summary)}"]
    if a.root is not None:
        at = f" at {a.root.at:%Y-%m-%d %H:%M:%S}" if a.root.at is not None else ""
        lines += [
            f"  root   {escaped(a.root.where.file)}:{a.root.where.line}{at}",
            f"         {escaped(a.root.text[:240])}",
            f"  rule   {a.root.signature}; does not prove {escaped(a.root.does_not_prove)}",
        ]
    if a.ranks:
        lines.append(f"  ranks  {', '.join(map(str, a.ranks))}")
    if a.nodes:
        lines.append(f"  nodes  {', '.join(map(escaped, a.nodes))}")
    kept_out = f", keeping out {', '.join(map(escaped, said.nodes))}" if said.nodes else ""
    lines += [
        f"advice   {v.action.value}{kept_out}",
        f"  why    {escaped(reason_in_words(v.reason))}",
        f"  else   {escaped(v.counterfactual)}",
    ]
    if said.hint is not None:
        sure = "confident" if said.hint.is_confident else "not confident"
        guess = ", ".join(f"{name} {likeness:.2f}" for name, likeness in said.hint.failures)
        lines.append(f"guess    {said.hint.failure_class} ({said.hint.confidence:.2f}, {sure}); like {guess}")
    if said.first_seen:
        lines.append("new just before")
        lines += [f"  {escaped(x.where.file)}:{x.where.line} {escaped(x.text[:160])}" for x in said.first_seen]
    if a.losers:
        lines.append("lost")
        for loser in a.losers[:_MAX_LOSERS]:
            place = f"{escaped(loser.where.file)}:{loser.where.line}"
            lines.append(f"  {loser.failure} at {place}: {escaped(loser.reason)}")
        if len(a.losers) > _MAX_LOSERS:
            lines.append(f"  and {len(a.losers) - _MAX_LOSERS} more (--json shows all)")
    return "\n".join(lines)
