# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight doctor`: can the progress of this job be read, and if nothing happens to it, where does its way end."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rules.problems import RulesInvalid
from service.bootstrap import LogUnreadable, diagnosis_tools
from service.commands.slurm_doctor import slurm_doctor
from service.doctor import Findings, examine, template
from service.terminal import ExitCode, escaped, message, result, stop

app = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)
app.command("slurm")(slurm_doctor)


@app.callback()
def doctor(
    context: typer.Context,
    log: Annotated[
        str | None,
        typer.Option("--log", help="A log of healthy training, or a folder of one run; .gz too, - for stdin."),
    ] = None,
    rules: Annotated[list[Path] | None, typer.Option(help="Folders with your own signatures.")] = None,
) -> None:
    """Say which progress signature reads a log, with the values read, or what is missing.

    Exit code 0 if hangs and slowdowns can be detected from this log, 1 if something is missing.
    `relight doctor slurm JOB` walks a job's way from the queue to the action instead.
    """
    if context.invoked_subcommand is not None:
        return
    if log is None:
        raise stop("name a log with --log, or a job with `relight doctor slurm JOB`", ExitCode.USAGE)
    try:
        tools = diagnosis_tools(rules or [])
        case = tools.read_folder(Path(log)) if Path(log).is_dir() else tools.read_files([log], {}, {})
    except RulesInvalid as invalid:
        for problem in invalid.problems:
            message(str(problem))
        raise stop(f"the rules hold {len(invalid.problems)} problem(s), see above", ExitCode.CONFIG) from invalid
    except LogUnreadable as why:
        raise stop(str(why), ExitCode.USAGE) from why
    except OSError as missing:
        raise stop(str(missing), ExitCode.CONFIG) from missing
    found = examine(case.logs, tools.diagnostician.progress, tools.clock.now())
    result(report(found))
    if found.missing:
        raise typer.Exit(ExitCode.FINDINGS)


def report(found: Findings) -> str:
    """What was read, what it is good for, what is missing, and a template where no signature fits."""
    lines = [f"{found.lines} lines, {found.steps} of them tell a step"]
    for reading in found.signatures:
        lines.append(f"  {reading.signature}  {reading.count} lines, e.g. line {reading.line}")
        lines.append(f"    {escaped(reading.text[:200])}")
        if reading.values:
            lines.append("    read " + ", ".join(f"{k}={escaped(v)}" for k, v in reading.values.items()))
    lines += ["can detect  " + what for what in found.able] + ["missing     " + what for what in found.missing]
    if found.steps == 0:
        lines += ["", "Adapt this to a line of your log, and check it with `relight rules test my_progress.yaml`:", ""]
        lines.append(template(found.candidate))
    return "\n".join(lines)
