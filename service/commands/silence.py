# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight silence`: mute the messages about something for a while; nothing else about it changes."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import typer

from service import bootstrap
from service.commands.options import AsJson
from service.commands.server import DEFAULT_URL, Cluster, TokenFile, Url, server, span
from service.terminal import ExitCode, escaped, message, result, result_json, stop

app = typer.Typer(help="Mute messages for a while.", no_args_is_help=True, rich_markup_mode=None)
Actor = Annotated[str, typer.Option("--actor", envvar="USER", help="Who says so, for the record.")]


@app.command()
def add(
    reason: Annotated[str, typer.Option(help="Why, for whoever wonders at the quiet.")],
    lasting: Annotated[str, typer.Option("--for", help="How long, as in 30m, 4h or 2d; 30d at most.")],
    actor: Actor,
    workload: Annotated[str | None, typer.Option(help="Incidents of this workload.")] = None,
    node: Annotated[str | None, typer.Option(help="Incidents that this node is blamed for.")] = None,
    failure: Annotated[str | None, typer.Option(help="Incidents of this failure, as in gpu_fell_off_bus.")] = None,
    signature: Annotated[str | None, typer.Option(help="Incidents that this rule found.")] = None,
    cluster: Cluster = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Silence what matches everything that is given."""
    matchers = {"workload_id": workload, "node": node, "failure": failure, "signature_id": signature}
    given = {name: value for name, value in matchers.items() if value}
    if not given:
        raise stop("name at least one of --workload, --node, --failure and --signature", ExitCode.USAGE)
    ends_at = bootstrap.clock().now() + span(lasting)
    body = given | {"ends_at": ends_at.isoformat(), "actor": actor, "reason": reason}
    if cluster:
        body["cluster_id"] = cluster
    told = server(url, token_file).ask("POST", "/v1/silences", body=body).body
    if as_json:
        result_json(told)
    else:
        result(told["id"])
        message(f"silent until {told['ends_at']}; detection, advice and controllers go on")


@app.command("list")
def list_silences(
    over: Annotated[bool, typer.Option("--over", help="Those that are over too.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List what is silenced, newest first."""
    query = {} if over else {"is_standing": "true"}
    items = server(url, token_file).ask("GET", "/v1/silences", query=query).body["items"]
    if as_json:
        result_json(items)
        return
    for one in items:
        result(_line(one))
    if not items:
        message("nothing is silenced")


@app.command()
def end(
    name: Annotated[str, typer.Argument(help="Its id, as `list` shows it.")],
    actor: Actor,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """End a silence now."""
    query = {"actor": actor, "reason": reason}
    told = server(url, token_file).ask("DELETE", f"/v1/silences/{name}", query=query).body
    if as_json:
        result_json(told)
    else:
        result(_line(told))


def _line(one: dict[str, Any]) -> str:
    named = (("workload", "workload_id"), ("node", "node"), ("failure", "failure"), ("signature", "signature_id"))
    about = " and ".join(f"{name} {one[key]}" for name, key in named if one[key])
    until = datetime.fromisoformat(one["ended_at"] or one["ends_at"])
    state = "until" if one["is_standing"] else "over since"
    return escaped(f"{one['id']}  {state} {until:%Y-%m-%d %H:%M} UTC  {about}  ({one['actor']}: {one['reason']})")
