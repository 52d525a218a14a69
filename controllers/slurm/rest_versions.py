# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What each version of slurmrestd's API can do, and how it wants to be told.

v0.0.38 (Slurm 22.05, as Debian 12 ships it) refuses `excluded_nodes` as a "Disabled key", does not know
`admin_comment` and takes times as text. v0.0.40 to v0.0.44 take both and times as numbers, but have no way to
requeue. v0.0.45 (Slurm 26.05) brought `GET job/ID/requeue?Hold=true`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from controllers.slurm.scontrol_text import Garbled
from relight.types import NodeName

OLDEST = 38
FIRST_WITH_EXCLUSIONS = 40
FIRST_WITH_REQUEUE = 45
SUPPORTED = (OLDEST, *range(FIRST_WITH_EXCLUSIONS, 47))


class RestVerb(StrEnum):
    """The verbs of a batch scheduler, by their names in the port."""

    MARK = "mark"
    REQUEUE_HOLD = "requeue_hold"
    HOLD = "hold"
    SET_EXCLUSIONS = "set_exclusions"
    RELEASE = "release"
    START_AFTER = "start_after"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class RestVersion:
    """One version of the API, by its last number. Errors: ValueError for one that is not supported."""

    number: int

    def __post_init__(self) -> None:
        if self.number not in SUPPORTED:
            known = ", ".join(f"v0.0.{number}" for number in SUPPORTED)
            raise ValueError(f"slurmrestd v0.0.{self.number} is not supported, these are: {known}")

    def __str__(self) -> str:
        return f"v0.0.{self.number}"

    def lacks(self, marks_in: str) -> frozenset[RestVerb]:
        """The verbs that this version has no request for."""
        missing: set[RestVerb] = set()
        if self.number < FIRST_WITH_REQUEUE:
            missing.add(RestVerb.REQUEUE_HOLD)
        if self.number < FIRST_WITH_EXCLUSIONS:
            missing.add(RestVerb.SET_EXCLUSIONS)
            if marks_in == "AdminComment":
                missing.add(RestVerb.MARK)
        return frozenset(missing)

    def start_body(self, delay_s: int, now: datetime) -> dict[str, Any]:
        """A begin time: text until v0.0.38, a number that is set or not since."""
        if self.number < FIRST_WITH_EXCLUSIONS:
            return {"begin_time": f"now+{delay_s}" if delay_s > 0 else "now"}
        begin = int((now + timedelta(seconds=max(delay_s, 0))).timestamp())
        return {"begin_time": {"set": True, "infinite": False, "number": begin}}

    def exclusions_body(self, nodes: Sequence[NodeName]) -> dict[str, Any]:
        """The whole list. An empty list would mean "unchanged" to slurmrestd; an empty text empties it."""
        return {"excluded_nodes": sorted(map(str, set(nodes))) or ""}

    def mark_body(self, marks_in: str, text: str) -> dict[str, Any]:
        return {"admin_comment" if marks_in == "AdminComment" else "comment": text}


def newest_version(openapi: Any) -> RestVersion:
    """The newest version that both sides speak, by the paths of `/openapi/v3`. Errors: Garbled."""
    paths = openapi.get("paths") if isinstance(openapi, Mapping) else None
    found = {int(version) for path in paths or () for version in re.findall(r"/slurm/v0\.0\.(\d+)/", str(path))}
    common = found & set(SUPPORTED)
    if not common:
        raise Garbled(f"slurmrestd speaks {sorted(found) or 'nothing known'}, supported are {SUPPORTED}")
    return RestVersion(max(common))
