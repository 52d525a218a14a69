# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a single line can't say: claims that change their name or action in company, one rule a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relight.types import Action, Evidence, FailureName, Role

EARLY_SEQUENCE = 3
LONG_GOOD_WORK_STEPS = 50
CE_STORM_LINES = 3
CE_STORM_ERRORS = 10
PORT_EVENTS = 2
REPORTERS = 2
_ADDRESS = re.compile(r"[\d.]+|[\da-fA-F:]+:[\da-fA-F:]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refined:
    failure: FailureName
    action: Action | None = None
    reason: str = ""
    root: Evidence | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """The winning claim among all evidence of its attempt."""

    winner: Evidence
    claims: Sequence[Evidence]
    evidence: Sequence[Evidence]
    last_step: int | None


Rule = Callable[[Scene], Refined | None]


def refined(
    winner: Evidence, claims: Sequence[Evidence], evidence: Sequence[Evidence], last_step: int | None
) -> Refined:
    """The first rule that has something to say about the winner's failure, else the winner as it is."""
    scene = Scene(winner=winner, claims=claims, evidence=evidence, last_step=last_step)
    for rule in _RULES.get(winner.failure, ()):
        said = rule(scene)
        if said is not None:
            return said
    return Refined(failure=winner.failure)


def _desync(scene: Scene) -> Refined | None:
    """Ranks of one group that wait in *different* collectives have parted ways in the program."""
    waits = [
        c
        for c in scene.claims
        if c.failure == scene.winner.failure and c.rank is not None and {"op", "seq"} <= c.captures.keys()
    ]
    first: dict[int, Evidence] = {}
    for c in waits:
        first.setdefault(c.rank or 0, c)
    ops = {str(c.captures["op"]) for c in first.values()}
    if len(first) < 2 or len(ops) < 2 or _several_groups(scene):
        return None
    return Refined(
        failure=FailureName("collective_desync"),
        reason=f"ranks wait in different collectives: {', '.join(sorted(ops))}",
    )


def _several_groups(scene: Scene) -> bool:
    groups = {str(e.captures["group"]) for e in scene.evidence if e.captures.get("group") is not None}
    return len(groups) > 1


def _early(scene: Scene) -> Refined | None:
    """Nothing ever completed on the communicator: it never worked, rather than stopped working."""
    numbers = [c.captures.get("seq") for c in scene.claims if c.failure == scene.winner.failure]
    seqs = [n for n in numbers if isinstance(n, int)]
    dones = [e.captures.get("last_completed") for e in scene.evidence]
    completed = [n for n in dones if isinstance(n, int)]
    never = bool(completed) and max(completed) < 0
    if not never and not (seqs and max(seqs) <= EARLY_SEQUENCE):
        return None
    return Refined(
        failure=FailureName("nccl_early_timeout"),
        reason="the first collectives of a communicator never finished",
    )


def _oom_after_progress(scene: Scene) -> Refined | None:
    if scene.winner.steps_before < LONG_GOOD_WORK_STEPS:
        return None
    return Refined(
        failure=FailureName("cuda_oom_after_progress"),
        reason=f"device memory ran out after {scene.winner.steps_before} good steps",
    )


def _twice_on_one_port(scene: Scene) -> Refined | None:
    """Two events on one host, or a peer that complains of the same host, make the host the culprit."""
    host = scene.winner.node
    events = sum(c.count for c in scene.claims if c.failure == scene.winner.failure and c.node == host)
    if host is None or events < PORT_EVENTS:
        return None
    return Refined(
        failure=scene.winner.failure,
        action=Action.RESTART_EXCLUDING,
        reason=f"{events} port errors on {host}",
    )


def _all_lose_one_peer(scene: Scene) -> Refined | None:
    """Several hosts whose transfers fail towards the same host, which itself complains of nobody."""
    failed = [c for c in scene.claims if c.failure == scene.winner.failure and c.captures.get("peer") is not None]
    peers = {str(c.captures["peer"]) for c in failed}
    reporters = {c.node for c in failed if c.node is not None}
    if len(peers) != 1 or len(reporters) < REPORTERS or peers & reporters or _ADDRESS.fullmatch(next(iter(peers))):
        return None
    return Refined(
        failure=scene.winner.failure,
        action=Action.RESTART_EXCLUDING,
        reason=f"{len(reporters)} hosts lost their way to {peers.pop()}, and to nobody else",
    )


def _drained_for_it(scene: Scene) -> Refined | None:
    """A launch failure that two witnesses lay on one node: the launcher, and the scheduler or the node's own daemon."""
    same = [c for c in scene.evidence if c.failure == scene.winner.failure]
    accused = [(c.where.file, place) for c in same if (place := c.captures.get("node") or _own_node(c)) is not None]
    if len({file for file, _ in accused}) < 2 or len({place for _, place in accused}) != 1:
        return None
    return Refined(
        failure=scene.winner.failure,
        action=Action.RESTART_EXCLUDING,
        reason=f"{scene.winner.title}; the scheduler or the node itself says so too",
    )


def _own_node(c: Evidence) -> str | None:
    """The node whose daemon wrote the line; a job's own log is no witness against the node it lies on."""
    return c.node if c.stream.is_independent else None


def _ce_storm(scene: Scene) -> Refined | None:
    same = [c for c in scene.evidence if c.failure == scene.winner.failure]
    said = [n for c in same if isinstance(n := c.captures.get("count"), int)]
    if sum(c.count for c in same) >= CE_STORM_LINES or sum(said) >= CE_STORM_ERRORS or "OVERFLOW" in scene.winner.text:
        return None
    return Refined(failure=FailureName("none"), action=Action.CONTINUE, reason="a few corrected memory errors")


def _on_the_way_out(scene: Scene) -> Refined | None:
    """A crash behind the line that says the run is done took nothing away."""
    if not scene.winner.is_after_completion:
        return None
    return Refined(
        failure=FailureName("crash_after_completion"), reason="the run had said that it was done before it crashed"
    )


def _peer_that_left(scene: Scene) -> Refined | None:
    """A worker that left with a code of its own, before its peers complained, is where to look."""
    reporters = {c.rank for c in scene.claims if c.failure == scene.winner.failure}
    for e in scene.evidence:
        code = e.captures.get("exit_code")
        if not isinstance(code, int) or code in _ENDED_FROM_OUTSIDE or e.rank is None or e.rank in reporters:
            continue
        if e.role is Role.TEARDOWN:
            return Refined(
                failure=FailureName("cause_not_in_log"),
                root=e,
                action=Action.RESTART,
                reason=f"rank {e.rank} left with exit code {code} and said nothing; the others only lost it",
            )
    return None


# Success, and the codes of workers that somebody else ended: SIGTERM, SIGABRT, SIGKILL, SIGINT.
_ENDED_FROM_OUTSIDE = frozenset({0, -15, -6, -9, -2, 143, 134, 137, 130})
_RULES: dict[str, tuple[Rule, ...]] = {
    "nccl_collective_timeout": (_desync, _early),
    "remote_peer_exited": (_peer_that_left,),
    "segfault": (_on_the_way_out,),
    "cuda_oom": (_oom_after_progress,),
    "ib_port_error": (_twice_on_one_port,),
    "ib_retry_exceeded": (_all_lose_one_peer,),
    "launch_failure": (_drained_for_it,),
    "host_memory_ce_storm": (_ce_storm,),
}
