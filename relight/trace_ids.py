# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Names of traces and spans, made from an incident's id, so that whoever knows the incident can join its trace."""

from __future__ import annotations

import hashlib
import re

from relight.types import IncidentId

ROOT = "recovery"
_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16


def trace_id(incident: IncidentId) -> str:
    """32 hex digits, always the same for one incident."""
    return hashlib.sha256(f"relight trace {incident}".encode()).hexdigest()[:32]


def span_id(incident: IncidentId, name: str = ROOT) -> str:
    """16 hex digits, always the same for one part of one incident's recovery."""
    return hashlib.sha256(f"relight span {incident} {name}".encode()).hexdigest()[:16]


def traceparent(incident: IncidentId, name: str = ROOT) -> str:
    """The header that puts a request into the incident's trace, below the part of that name.

    Source: W3C Trace Context, https://www.w3.org/TR/trace-context/#traceparent-header
    """
    return f"00-{trace_id(incident)}-{span_id(incident, name)}-01"


def trace_of(header: str) -> str | None:
    """The trace that a `traceparent` names; None for one that the standard tells to ignore."""
    found = _PARENT.fullmatch(header.strip())
    if found is None:
        return None
    version, trace, span, _, more = found.groups()
    is_valid = version != "ff" and trace != _NO_TRACE and span != _NO_SPAN and (more is None or version != "00")
    return trace if is_valid else None
