# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The whole record from a running service, which alone may read its file."""

from __future__ import annotations

from pathlib import Path

import httpx

from service.backup import BackupRefused, BackupUnreachable

TIMEOUT_S = 600
_REFUSED = frozenset({401, 403})


def fetched_export(url: str, token: str, to: Path) -> None:
    """Write the Parquet export of the service at `url` to a file.

    Errors: BackupRefused if the token does not do, BackupUnreachable for anything else but the export.
    """
    address = f"{url.rstrip('/')}/v1/audit/export"
    try:
        with (
            httpx.Client(timeout=TIMEOUT_S, trust_env=False) as client,
            client.stream("GET", address, headers={"Authorization": f"Bearer {token}"}) as answer,
        ):
            if answer.status_code in _REFUSED:
                raise BackupRefused(f"{address} answered {answer.status_code}: it needs a viewer's token")
            if answer.status_code != 200:
                raise BackupUnreachable(f"{address} answered {answer.status_code}")
            with to.open("wb") as file:
                for piece in answer.iter_bytes():
                    file.write(piece)
    except httpx.HTTPError as why:
        raise BackupUnreachable(f"{address}: {type(why).__name__} {why}") from why
