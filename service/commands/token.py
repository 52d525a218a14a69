# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight token`: who may call the API, in which role, and until when."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from service import bootstrap
from service.commands.options import AsJson, ConfigFile, settings_from
from service.terminal import ExitCode, escaped, message, result, result_json, stop
from service.tokens import Role, Token, TokenBook, TokenError

app = typer.Typer(help="Issue, list and revoke access tokens.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def new(
    client: Annotated[str, typer.Argument(help="Whose token it is, as in slurm-controller.")],
    role: Annotated[Role, typer.Option(help="What it may do.")],
    cluster: Annotated[str | None, typer.Option(help="The one cluster it is good for.")] = None,
    days: Annotated[int, typer.Option(help="Days until it expires.")] = 90,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Issue a token; the secret is printed once and never kept."""
    try:
        secret, token = _book(config).issue(role, client, at=bootstrap.clock().now(), days=days, cluster=cluster)
    except (TokenError, OSError) as error:
        raise stop(str(error), ExitCode.USAGE) from error
    if as_json:
        result_json({"secret": secret, **_shown(token)})
    else:
        result(secret)
        message(f"digest {token.sha256[:12]}, {role}, until {token.expires_at:%Y-%m-%d}; it is not shown again")


@app.command("list")
def list_tokens(as_json: AsJson = False, config: ConfigFile = None) -> None:
    """List tokens by digest, client and role; secrets are not kept, so none are shown."""
    now, tokens = bootstrap.clock().now(), _book(config).tokens()
    if as_json:
        result_json([{**_shown(t), "is_live": t.is_live(now)} for t in tokens])
        return
    for token in tokens:
        state = "live" if token.is_live(now) else ("revoked" if token.is_revoked else "expired")
        result(
            f"{token.sha256[:12]}  {token.role:<10}  {token.cluster or 'all clusters':<14}  "
            f"{token.expires_at:%Y-%m-%d}  {state:<7}  {escaped(token.client)}"
        )
    if not tokens:
        message("no tokens; issue one with: relight token new CLIENT --role viewer")


@app.command()
def revoke(
    digest: Annotated[str, typer.Argument(help="The beginning of a digest, as `list` shows it.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Revoke a token at once; a running server notices at its next request."""
    try:
        token = _book(config).revoke(digest)
    except (TokenError, OSError) as error:
        raise stop(str(error), ExitCode.USAGE) from error
    if as_json:
        result_json(_shown(token))
    else:
        result(f"revoked {token.sha256[:12]} of {escaped(token.client)}")


def _book(config: Path | None) -> TokenBook:
    auth = settings_from(config).auth
    if auth.tokens_file is None:
        raise stop(
            "no token file is set; name one in [auth] tokens_file or RELIGHT__AUTH__TOKENS_FILE",
            ExitCode.CONFIG,
        )
    try:
        return TokenBook(auth.tokens_file, max_days=auth.max_token_days)
    except (TokenError, OSError) as error:
        raise stop(str(error), ExitCode.CONFIG) from error


def _shown(token: Token) -> dict[str, str | bool | None]:
    return {
        "digest": token.sha256,
        "client": token.client,
        "role": token.role,
        "cluster": token.cluster,
        "created_at": token.created_at.isoformat(),
        "expires_at": token.expires_at.isoformat(),
        "is_revoked": token.is_revoked,
    }
