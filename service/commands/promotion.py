# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight promotion`: how far each class of failures is trusted, and the way up and down."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from relight.promotion import Stage
from relight.types import FailureClass
from service.commands.options import AsJson
from service.commands.server import DEFAULT_URL, Cluster, TokenFile, Url, server
from service.terminal import escaped, message, result, result_json

app = typer.Typer(help="How far classes of failures are trusted.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(
    cluster: Cluster = None, url: Url = DEFAULT_URL, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """Every class with its stage, its record, and what keeps it from the next stage."""
    query = {"cluster": cluster} if cluster else {}
    told = server(url, token_file).ask("GET", "/v1/stages", query=query).body
    if as_json:
        result_json(told)
        return
    for one in told["classes"]:
        result(_line(one))


@app.command("set")
def set_stage(
    failure_class: Annotated[FailureClass, typer.Argument(help="The class of failures.")],
    stage: Annotated[Stage, typer.Argument(help="Its new stage: down at will, up by one over its bar.")],
    reason: Annotated[str, typer.Option(help="Why, for the record.")],
    actor: Annotated[str, typer.Option("--actor", envvar="USER", help="Who says so, for the record.")],
    cluster: Cluster = None,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Raise or lower a class; exit code 5 and the reasons where its record is below the bar."""
    asked = server(url, token_file)
    query = {"cluster": cluster} if cluster else {}
    etag = asked.ask("GET", "/v1/stages", query=query).etag
    body: dict[str, Any] = {"class": failure_class.value, "stage": stage.value, "reason": reason, "actor": actor}
    told = asked.ask("PUT", "/v1/stages", body=body | ({"cluster_id": cluster} if cluster else {}), etag=etag).body
    if as_json:
        result_json(told)
        return
    result(_line(next(one for one in told["classes"] if one["class"] == failure_class.value)))
    message("modes hold beside it: the lower of the two counts")


def _line(one: dict[str, Any]) -> str:
    record = one["record"]
    interval = f", {record['low']:.0%} to {record['high']:.0%}" if record["low"] is not None else ""
    following = "" if one["following"] is None else f"  {one['following']}: " + (
        "over the bar" if one["may_rise"] else "; ".join(one["missing"])
    )  # fmt: skip
    shown = f"{one['class']:<18} {one['stage']:<8} held {record['held']} of {record['decided']}{interval}"
    return escaped(f"{shown}, {record['false_stops']} false stops{following}")
