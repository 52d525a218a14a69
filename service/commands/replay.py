# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight replay`: what would have been detected, advised, stopped and excluded, over logs or an audit log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from relight.ports import AuditUnavailable
from rules.problems import RulesInvalid
from service import bootstrap
from service.bootstrap import LogUnreadable
from service.config import ConfigError, Recommend, Rules, Settings
from service.plugins import PluginError
from service.replay_report import page
from service.replay_score import Label, LabelUnreadable, Score, changes, read_label
from service.terminal import ExitCode, escaped, message, progress, result, stop

_AUDIT_ENDINGS = {".duckdb", ".parquet"}


def replay(
    source: Annotated[
        Path, typer.Argument(help="A folder of case folders, one case folder, a log file, or an audit log.")
    ],
    rules: Annotated[list[Path] | None, typer.Option(help="Folders with signatures to try.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A policy file to try.")] = None,
    diff: Annotated[
        str | None, typer.Option(help="`shipped` for the shipped rules and policy, or a JSON file of an earlier --out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write everything as JSON.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write a page of HTML with charts.")] = None,
    max_false_stops: Annotated[int, typer.Option(min=0, help="More of them among labelled cases fail.")] = 0,
    min_precision: Annotated[float, typer.Option(min=0, max=1, help="Less among labelled cases fails.")] = 0.0,
    fail_on_change: Annotated[bool, typer.Option(help="With --diff: any changed verdict fails.")] = False,
) -> None:
    """Judge the past again, in the time that it states, from a cold start.

    Exit code 0 if all bounds hold, 1 if one does not.
    """
    if not source.exists():
        raise stop(f"{source} does not exist; give a folder of logs or an audit log", ExitCode.USAGE)
    is_audit = source.suffix in _AUDIT_ENDINGS or (source / "events.parquet").is_file()
    try:
        said = _audit(source, rules, policy) if is_audit else _logs(source, rules, policy)
        if diff is not None:
            said["changes"] = [asdict(one) for one in changes(_before(diff, source, is_audit, said), said["cases"])]
    except RulesInvalid as invalid:
        for problem in invalid.problems:
            message(str(problem))
        raise stop(f"the rules hold {len(invalid.problems)} problem(s), see above", ExitCode.CONFIG) from invalid
    except (ConfigError, PluginError, OSError, LabelUnreadable, AuditUnavailable) as why:
        raise stop(str(why), ExitCode.CONFIG) from why
    if out is not None:
        out.write_bytes(orjson.dumps(said, option=orjson.OPT_INDENT_2) + b"\n")
    if report is not None:
        report.write_text(page(said), "utf-8")
    result(_summary(said))
    found = _failures(said, max_false_stops, min_precision, fail_on_change)
    for fault in found:
        message(f"relight: {fault}")
    raise typer.Exit(ExitCode.FINDINGS if found else ExitCode.OK)


def _settings(rules: Sequence[Path] | None, policy: Path | None) -> Settings:
    from relight.types import Mode

    return Settings(rules=Rules(folders=tuple(rules or ()), policy_file=policy), recommend=Recommend(mode=Mode.ACT))


def _logs(source: Path, rules: Sequence[Path] | None, policy: Path | None) -> dict[str, Any]:
    from service.replay import LogReplay

    kit = bootstrap.replay_kit(_settings(rules, policy))
    player, score, told = LogReplay(kit.start), Score(), list[dict[str, Any]]()
    folders = kit.cases(source)
    labels: dict[str, Label] = {}
    with progress("replaying", len(folders)) as bar:
        for name, folder in folders:
            try:
                case = kit.read(folder)
            except LogUnreadable as why:
                message(f"relight: {name} left out: {why}")
                continue
            told.append(player.replay(name, case.logs).as_json())
            if folder.is_dir() and (label := read_label(folder)) is not None:
                labels[name] = label
            bar.advance()
    for one in told:
        if one["name"] in labels:
            score.add(one, labels[one["name"]])
    return {
        "schema": 1, "source": str(source), "rules": kit.rules_digest, "policy": kit.policy_version, "cases": told,
        "score": score.as_json() if labels else None,
    }  # fmt: skip


def _audit(source: Path, rules: Sequence[Path] | None, policy: Path | None) -> dict[str, Any]:
    """An audit log keeps verdicts and no lines, so that other rules have nothing to read in it."""
    if rules:
        raise stop("an audit log holds no lines, so --rules has nothing to read; give the logs", ExitCode.USAGE)
    kit = bootstrap.replay_kit(_settings((), policy))
    player = kit.redecide()
    with progress("replaying", None) as bar:
        for batch in kit.events(source):
            player.take(batch)
            bar.advance(len(batch))
    told = [
        one.as_json() | {"name": one.recommendation, "root_file": None, "root_line": None}
        for one in player.found.values()
    ]
    before = [
        {"name": one["name"], "failure": one["failure"], "action": one["was_action"], "nodes": one["was_nodes"]}
        for one in told
    ]
    return {
        "schema": 1, "source": str(source), "rules": "as recorded", "policy": kit.policy_version, "cases": told,
        "score": None, "changes": [asdict(one) for one in changes(before, told)],
        "feedback": {verdict: sum(one["feedback"] == verdict for one in told) for verdict in ("right", "wrong")},
    }  # fmt: skip


def _before(diff: str, source: Path, is_audit: bool, said: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    if diff == "shipped":
        again = _audit(source, None, None) if is_audit else _logs(source, None, None)
        cases: Sequence[Mapping[str, Any]] = again["cases"]
        return cases
    try:
        earlier = orjson.loads(Path(diff).read_bytes())
        cases = earlier["cases"]
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise stop(f"--diff {diff}: {why}; give `shipped` or a file that --out wrote", ExitCode.USAGE) from why
    if earlier.get("schema") != said["schema"]:
        raise stop(f"--diff {diff} is of schema {earlier.get('schema')!r}, not {said['schema']}", ExitCode.USAGE)
    return cases


def _summary(said: Mapping[str, Any]) -> str:
    cases = said["cases"]
    counts = {name: sum(one["action"] == name for one in cases) for name in
              ("restart", "restart_excluding", "stop", "continue")}  # fmt: skip
    nodes = sorted({node for one in cases for node in one["nodes"]})
    lines = [
        f"{len(cases)} cases: " + ", ".join(f"{n} {name}" for name, n in counts.items()),
        f"{len(nodes)} nodes kept out" + (f": {', '.join(map(escaped, nodes[:12]))}" if nodes else ""),
    ]
    if (score := said.get("score")) is not None:
        total = score["total"]
        low, high = total["precision_95"]
        delay = "" if total["delay_s_median"] is None else f", detected after {total['delay_s_median']:.1f} s (median)"
        lines.append(
            f"{total['cases']} labelled: {total['right']} named rightly ({low:.1%} to {high:.1%}), "
            f"{total['actions_right']} advised fitly, {total['false_stops']} false stops, "
            f"{total['false_exclusions']} with wrong nodes{delay}"
        )
    lines += [
        f"changed {escaped(change['name'])}: {escaped(change['before'])}  =>  {escaped(change['after'])}"
        for change in said.get("changes") or ()
    ]
    return "\n".join(lines)


def _failures(said: Mapping[str, Any], max_false_stops: int, min_precision: float, fail_on_change: bool) -> list[str]:
    found = list[str]()
    if (score := said.get("score")) is not None:
        total = score["total"]
        if total["false_stops"] > max_false_stops:
            found.append(f"{total['false_stops']} false stops, at most {max_false_stops}")
        if total["precision"] is not None and total["precision"] < min_precision:
            found.append(f"precision {total['precision']:.3f}, at least {min_precision}")
    if fail_on_change and said.get("changes"):
        found.append(f"{len(said['changes'])} verdicts changed")
    return found
