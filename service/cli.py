# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The `relight` command: which sub-commands there are, each imported only when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

_COMMANDS: dict[str, tuple[str, str]] = {
    "diagnose": ("service.commands.diagnose:diagnose", "Say why a job failed, from its logs."),
    "serve": ("service.commands.serve:serve", "Run the API and the console."),
    "demo": ("service.commands.demo:demo", "A simulated cluster with faults, and its console."),
    "controller": ("service.commands.controller:app", "Carry recommendations out on a cluster."),
    "watchdog": ("service.commands.controller:watchdog_app", "Let go of our holds in time."),
    "doctor": ("service.commands.doctor:app", "Say whether a job's log can be read, and where its way ends."),
    "replay": ("service.commands.replay:replay", "Judge past logs, or an audit log, by today's rules and policy."),
    "rules": ("service.commands.rules:app", "Lint, test, explain and try signatures."),
    "audit": ("service.commands.audit:app", "Verify, export, back up and read the audit log."),
    "models": ("service.commands.models:app", "Train, compare and promote the attribution model."),
    "approve": ("service.commands.answers:approve", "Say yes to a recommendation."),
    "reject": ("service.commands.answers:reject", "Say no to a recommendation."),
    "silence": ("service.commands.silence:app", "Mute messages about something for a while."),
    "promotion": ("service.commands.promotion:app", "How far classes of failures are trusted."),
    "config": ("service.commands.config:app", "Show the settings and where each came from."),
    "token": ("service.commands.token:app", "Issue, list and revoke access tokens."),
    "inject": ("service.commands.inject:app", "Make a rank of a local run fail."),
    "version": ("service.commands.version:version", "Print the version."),
}
_EPILOG = (
    "Examples: relight diagnose job.log | relight rules test my.yaml | relight demo. "
    "Exit codes: 0 ok, 1 findings, 2 usage, 3 configuration, 4 cannot reach, 5 refused, 6 integrity failure, "
    "130 interrupt."
)


class _Commands(TyperGroup):
    """Lists stand-ins, which cost nothing; the real command is imported once its name has been typed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if name in _COMMANDS and command is not None:
            command = _imported(name)
        return name, command, rest


def _imported(name: str) -> Any:
    module, _, attribute = _COMMANDS[name][0].partition(":")
    found = getattr(import_module(module), attribute)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        alone.command(name)(found)
        found = alone
    command = typer.main.get_command(found)
    command.name = name
    return command


def _stand_in() -> None:
    """Never called: `resolve_command` puts the real command in its place."""


app = typer.Typer(
    cls=_Commands,
    help="Relight: detect, attribute, isolate, restart or stop a distributed training job.",
    epilog=_EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for _name, (_, _help) in _COMMANDS.items():
    app.command(_name, help=_help)(_stand_in)


def main() -> None:
    app(prog_name="relight")
