# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which jobs are followed and how far Relight may go with each: by partition, and by the job's own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from relight.jobs import JobRecord
from relight.types import Mode
from relight.watching import LEARNED, HangTerms

# As in --comment="relight=act relight.max_restarts=5", or in --extra='{"relight": "act"}'.
_WORD = re.compile(r"""(?<![\w.])["']?relight(?:\.(\w{1,32}))?["']?\s*[=:]\s*["']?([\w.-]{1,128})(?![\w/])""")
OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What was chosen for one job; `mode` None means that it is not followed at all."""

    mode: Mode | None
    max_restarts: int | None = None
    max_no_progress: int | None = None
    workload: str | None = None
    hang: HangTerms = LEARNED
    said_by: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptInRules:
    """The site's side: a mode for each partition and one for the others; None leaves jobs out.

    `jobs_may_choose`: the words of a job count. A job may always be bolder or more careful than its
    partition, but never bolder than the advisor's own mode for the cluster, which is asked last.
    """

    default: Mode | None = Mode.MONITOR
    partitions: Mapping[str, Mode | None] = field(default_factory=dict)
    jobs_may_choose: bool = True

    @property
    def may_act(self) -> bool:
        """Whether any job could come to be acted on."""
        return self.jobs_may_choose or bool({Mode.APPROVE, Mode.ACT} & {self.default, *self.partitions.values()})

    def choose(self, job: JobRecord) -> Choice:
        site = self.partitions.get(job.partition, self.default)
        said = _said(job) if self.jobs_may_choose else {}
        own = said.get("mode", "").lower()
        mode, by = site, "partition" if job.partition in self.partitions else "default"
        if own == OFF:
            mode, by = None, "job"
        elif own in set(Mode):
            mode, by = Mode(own), "job"
        return Choice(
            mode=mode,
            max_restarts=_number(said.get("max_restarts")),
            max_no_progress=_number(said.get("max_no_progress")),
            workload=said.get("workload"),
            hang=_hang(said),
            said_by=by,
        )


def opt_in(mode: str, partitions: Iterable[str], *, jobs_choose: bool) -> OptInRules:
    """The rules by the words of options, PARTITION=MODE among them. Errors: ValueError."""
    chosen = {}
    for text in partitions:
        name, sign, said = text.partition("=")
        if not sign or not name:
            raise ValueError(f"--partition must be PARTITION=MODE, got {text!r}")
        chosen[name] = _mode(said)
    return OptInRules(default=_mode(mode), partitions=chosen, jobs_may_choose=jobs_choose)


def _mode(text: str) -> Mode | None:
    if text == OFF:
        return None
    try:
        return Mode(text)
    except ValueError as why:
        raise ValueError(f"no mode {text!r}, choose from off, {', '.join(Mode)}") from why


def _said(job: JobRecord) -> dict[str, str]:
    """The administrator's words count over the user's, the comment over the extra field."""
    found: dict[str, str] = {}
    for text in (job.extra, job.comment, job.admin_comment):
        found.update({key or "mode": value for key, value in _WORD.findall(text)})
    return found


def _hang(said: Mapping[str, str]) -> HangTerms:
    """As in --comment="relight.hang_at_most_s=600"; what does not fit is left out: the job is followed all the same."""
    terms = HangTerms(**{name: _number(said.get(f"hang_{name}")) for name in LEARNED.as_json()})
    return LEARNED if terms.faults() else terms


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) <= 6 else None
