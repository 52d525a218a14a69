# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which node a line is about where it does not say so: records of schedulers name it lines before."""

from __future__ import annotations

import re
from collections.abc import Callable

from relight.types import NodeName

_LOOK_BACK = 60
_NAME = r"(?P<node>[A-Za-z0-9](?:[\w.-]*\w)?)"
# On the line itself: fields of events and mails.
_HERE: tuple[re.Pattern[str], ...] = tuple(
    re.compile(p)
    for p in (
        r"\bNodeName=" + _NAME,
        r'"(?:nodeName|host|hostname|node_name|kubernetes_node)"\s*:\s*"' + _NAME + '"',
        r"\b(?:Exec host|exec_host)[:=]\s*" + _NAME + r"(?:/\d|\b)",
        r"(?:^|[\s,{])(?:node|hostname|nodename|instance)[=:]\"?" + _NAME + r"\"?(?=[\s,}]|$)",
        r"\bkubelet, " + _NAME,
        r"\bon (?:node|host) \"?" + _NAME,
        r"\b[Nn]ode/" + _NAME,
    )
)
# At the head of a record that goes on over several lines.
_HEAD: tuple[re.Pattern[str], ...] = (
    *_HERE[:3],
    re.compile(r"^\s*(?:Node|nodeName|Hostname|hostname|Host|HOSTNAME):\s+" + _NAME + r"(?:/[\da-fA-F.:]*)?\s*$"),
    re.compile(r"^Name:\s+" + _NAME + r"\s*$"),
)
_POD = re.compile(r"^\s*(?:Namespace|Service Account|Node):")
_NO_NODES = frozenset({"none", "null", "n/a", "unknown", "localhost", "default", "true", "false"})


def node_about(line: str, earlier: Callable[[int], str | None]) -> NodeName | None:
    """The node that a line of a scheduler's record is about.

    Shapes: `earlier(k)` is the k-th line before (k from 1), or None where there is none.
    Errors: none; None if neither the line nor the head of its record names a node.
    """
    found = _first(_HERE, line)
    if found is not None:
        return found
    is_pod = False
    for back in range(1, _LOOK_BACK):
        text = earlier(back)
        if text is None:
            return None
        is_pod = is_pod or _POD.match(text) is not None
        found = _first(_HEAD[:-1] if is_pod else _HEAD, text)
        if found is not None:
            return found
    return None


def _first(patterns: tuple[re.Pattern[str], ...], text: str) -> NodeName | None:
    for pattern in patterns:
        found = pattern.search(text)
        if found is not None and found["node"].lower() not in _NO_NODES:
            return NodeName(found["node"])
    return None
