# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The console's own style and script: read once, addressed by their digest, kept by browsers for good."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
_KINDS = {"console.css": "text/css", "console.js": "text/javascript", "heat.js": "text/javascript",
          "mark.svg": "image/svg+xml"}  # fmt: skip


@cache
def _content(name: str) -> tuple[bytes, str]:
    body = (FOLDER / name).read_bytes()
    return body, hashlib.sha256(body).hexdigest()[:16]


def asset_address(root: str, name: str) -> str:
    return f"{root}/static/{name}?v={_content(name)[1]}"


def serve(request: Request) -> Response:
    """Needs no token: there is nothing in it that is not public."""
    name = request.path_params["name"]
    if name not in _KINDS:
        raise HTTPException(404, f"no asset {name!r}")
    body, digest = _content(name)
    is_current = request.query_params.get("v") == digest
    headers = {
        "Cache-Control": "public, max-age=31536000, immutable" if is_current else "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'" if name.endswith(".svg")
        else "default-src 'none'",
    }  # fmt: skip
    return Response(body, headers=headers, media_type=_KINDS[name])
