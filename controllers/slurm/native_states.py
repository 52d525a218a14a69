# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm's words for a job's state, put into ours."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType

from relight.types import AttemptState

_BASE = MappingProxyType(
    {
        "PENDING": AttemptState.PENDING,
        "RUNNING": AttemptState.RUNNING,
        "SUSPENDED": AttemptState.RUNNING,
        "COMPLETED": AttemptState.COMPLETED,
        "CANCELLED": AttemptState.CANCELLED_BY_USER,
        "FAILED": AttemptState.FAILED,
        "OUT_OF_MEMORY": AttemptState.FAILED,
        "LAUNCH_FAILED": AttemptState.FAILED,
        "RECONFIG_FAIL": AttemptState.FAILED,
        "TIMEOUT": AttemptState.TIMED_OUT,
        "DEADLINE": AttemptState.TIMED_OUT,
        "NODE_FAIL": AttemptState.NODE_FAILED,
        "BOOT_FAIL": AttemptState.NODE_FAILED,
        "PREEMPTED": AttemptState.PREEMPTED,
        "REVOKED": AttemptState.LOST,
        # Flags that stand alone in text.
        "CONFIGURING": AttemptState.PENDING,
        "REQUEUED": AttemptState.PENDING,
        "REQUEUE_HOLD": AttemptState.PENDING,
        "REQUEUE_FED": AttemptState.PENDING,
        "SPECIAL_EXIT": AttemptState.PENDING,
        "RESV_DEL_HOLD": AttemptState.PENDING,
        "RESIZING": AttemptState.RUNNING,
        "SIGNALING": AttemptState.RUNNING,
        "STOPPED": AttemptState.RUNNING,
        "STAGE_OUT": AttemptState.ENDING,
        "COMPLETING": AttemptState.ENDING,
    }
)
# Accounting closes a requeued run with this word, which says nothing of why it ended.
RUN_WAS_REQUEUED = "REQUEUED"


def attempt_state(words: Iterable[str]) -> AttemptState | None:
    """The state by a base word and its flags, in any order; None if no word is known.

    A run that is still being cleaned up has not ended, whatever it will have ended as.
    """
    known = [_BASE[word] for word in (w.split()[0].upper() for w in words if w.strip()) if word in _BASE]
    if not known:
        return None
    if AttemptState.ENDING in known:
        return AttemptState.ENDING
    return known[0]


def ended_state(word: str) -> AttemptState | None:
    """The state of a run that accounting has closed; None for a requeue, whose cause it does not tell."""
    first = word.split()[0].upper() if word.strip() else ""
    if first in {RUN_WAS_REQUEUED, "RESIZING"}:
        return None
    return _BASE.get(first)


# Node states, without the suffixes * ~ # ! % @ ^ - + that tell of power, reboots and reservations.
_LOST = frozenset({"down", "fail", "error", "unknown", "powered_down", "power_down", "no_respond", "not_responding"})
_USABLE = frozenset({"idle", "alloc", "allocated", "mix", "mixed", "comp", "completing", "plnd", "planned", "reserved"})


def node_fate(words: Iterable[str]) -> tuple[bool, bool]:
    """(is usable, is lost) by the words of a node's state; `*` means that it does not answer."""
    plain = [word.strip().lower() for word in words if word.strip()]
    bare = {word.rstrip("*~#!%$@^-+") for word in plain}
    is_lost = any(word.endswith("*") for word in plain) or bool(bare & _LOST)
    is_barred = any(w.startswith(("drain", "drng", "maint", "futr", "future", "power")) for w in bare)
    return bool(bare & _USABLE) and not is_lost and not is_barred, is_lost
