# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight approve` and `relight reject`: a person's answer to one recommendation, after a look at it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from service.commands.options import AsJson
from service.commands.server import DEFAULT_URL, TokenFile, Url, server
from service.terminal import ExitCode, escaped, message, result, result_json, stop

Name = Annotated[str, typer.Argument(help="The recommendation, as messages and the console name it.")]
Actor = Annotated[str, typer.Option("--actor", envvar="USER", help="Who answers, for the record.")]
Note = Annotated[str, typer.Option("--note", help="Why, for the record.")]
Yes = Annotated[bool, typer.Option("--yes", help="Answer without being asked once more.")]


def approve(
    name: Name, actor: Actor, note: Note = "", yes: Yes = False, url: Url = DEFAULT_URL, token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Clear the way for a controller; without an answer in time the scheduler's own rule applies."""
    _answer("approve", name, actor, note, yes, url, token_file, as_json)


def reject(
    name: Name, actor: Actor, note: Note = "", yes: Yes = False, url: Url = DEFAULT_URL, token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Leave the attempt to the scheduler's own rule."""
    _answer("reject", name, actor, note, yes, url, token_file, as_json)


def _answer(verb: str, name: str, actor: str, note: str, yes: bool, url: str, token_file: Any, as_json: bool) -> None:
    """What was shown is what is answered: a revision in between is refused."""
    asked = server(url, token_file)
    known = asked.ask("GET", f"/v1/recommendations/{name}").body
    message(_shown(known))
    if not yes and not typer.confirm(f"{verb} it?", err=True):
        raise stop("nothing was answered", ExitCode.REFUSED)
    body = {"actor": actor, "note": note, "generation": known["generation"]}
    told = asked.ask("POST", f"/v1/recommendations/{name}/{verb}", body=body).body
    if as_json:
        result_json(told)
    else:
        result(f"{told['state']}: {escaped(_what(told))}")


def _shown(known: dict[str, Any]) -> str:
    gates = ", ".join(known["blocked_by"]) or "nothing"
    return escaped(
        f"{known['workload_id']}: {_what(known)}, since {known['failure']} ({known['evidence_status']}); "
        f"{known['state']}, blocked by {gates}; without an answer until {known['expires_at']} "
        "the scheduler's own rule applies"
    )


def _what(known: dict[str, Any]) -> str:
    nodes = ", ".join(one["node"] for one in known["exclusions"])
    return f"{known['action']}{' without ' + nodes if nodes else ''}"
