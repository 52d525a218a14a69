# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a form sent, read under a bound: the console takes no other kind of body."""

from __future__ import annotations

from urllib.parse import parse_qs

from starlette.requests import Request

from service.api.problems import Problem

MAX_FORM_BYTES = 64 * 1024
MAX_FORM_FIELDS = 40


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form, the last of each name. Errors: Problem for a body that is too large or no form."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Problem("unsupported_media_type", f"need application/x-www-form-urlencoded, got {kind or 'nothing'}")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise Problem("body_too_large", f"a form may hold {MAX_FORM_BYTES} bytes")
    try:
        fields = parse_qs(
            body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=MAX_FORM_FIELDS
        )
    except ValueError as why:
        raise Problem("malformed_body", f"not a form: {why}") from why
    return {name: values[-1] for name, values in fields.items()}
