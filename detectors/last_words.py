# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""An error in words that no signature knows, at the very end of a job's log: it ended, and the cause has no name."""

from __future__ import annotations

import re
from collections.abc import Mapping

from detectors.claim import Claim
from detectors.lines import Lines
from detectors.log_text import LogText
from relight.types import FailureName, Role, SignatureId, Stream
from rules.match import Hit

_LAST_LINES = 6
# A level or a word that programs use for the end of things, not for a nuisance.
_LOUD = re.compile(
    r"(?:^|[\s\[|(<])(?:ERROR|FATAL|CRITICAL|SEVERE|PANIC)(?:[\]\s:|)>-]|$)"
    r"|^[EF]\d{4} \d\d:\d\d:\d\d"
    r"|\b(?:[Ff]atal(?: error|:)|panic:|PANIC|[Aa]borting\b|[Cc]heck failed:|core dumped|unrecoverable)"
    r"|\b[Uu]ncaught exception\b"
    r"|^\s*(?:[\w.-]+:? )?[Ee]rror: \S"
    r"|^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S"
    r"|\b(?:exit(?:ed|ing)?|terminat(?:ed|ing)|died|crashed|quit(?:ting)?|stopp(?:ed|ing)) "
    r"(?:with|due to|because of|after|on) (?:an? )?(?:fatal |unexpected |unhandled )?"
    r"(?:error|exception|failure|status [1-9]|code [1-9])"
)
_QUIET = re.compile(
    r"\b(?:WARN(?:ING)?|INFO|DEBUG|TRACE|retry(?:ing)?|will retry|ignor(?:ed|ing)|deprecat|fall(?:ing)? back"
    r"|skipp(?:ed|ing)|no errors?|0 errors?|errors?[=:] ?0|non-?fatal|recovered|not an error|harmless|benign"
    r"|suppress)\b",
    re.IGNORECASE,
)


def last_words(log: LogText, lines: Lines, at_line: Mapping[int, tuple[Hit, ...]]) -> tuple[int, Claim] | None:
    """The first loud line among the last six of a job's own log, where no signature says anything of it.

    Errors: none. A level that the line itself calls a warning, and words of retrying, are not loud.
    """
    if log.stream is not Stream.APPLICATION:
        return None
    tail = [i for i in range(max(0, len(lines) - 40), len(lines)) if lines[i].body.strip()][-_LAST_LINES:]
    for index in tail:
        body = lines[index].body
        whole = f"{lines[index].prefix}{body}"
        if index in at_line or not (_LOUD.search(body) or _LOUD.search(whole)) or _QUIET.search(whole):
            continue
        return index, Claim(
            signature=SignatureId("relight.last_words"),
            title="the log ends with an error that no signature knows",
            failure=FailureName("cause_not_in_log"),
            role=Role.TEARDOWN,
            does_not_prove="what failed, nor that the job ended: its words are unknown",
        )
    return None
