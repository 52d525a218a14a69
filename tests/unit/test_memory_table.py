# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whose memory it was when the kernel killed a worker."""

from __future__ import annotations

import pytest

from detectors.crash import diagnose
from detectors.log_text import read_log
from relight.types import Action, NodeName, Stream
from service.diagnosis import Diagnostician

HEADER = "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name"


def report(*rows: tuple[int, int, int, str], limit: str = "CONSTRAINT_NONE") -> bytes:
    table = [
        f"[{pid:7d}] {uid:5d} {pid} 900000 {pages} 4096        0             0 {name}" for pid, uid, pages, name in rows
    ]
    lines = [
        "rsync invoked oom-killer: gfp_mask=0x140cca(GFP_HIGHUSER_MOVABLE|__GFP_COMP), order=0, oom_score_adj=0",
        HEADER,
        *table,
        f"oom-kill:constraint={limit},nodemask=(null),cpuset=/,mems_allowed=0-1,global_oom,task=python3,pid=71,uid=40",
    ]
    return "".join(f"[1000.{n:06d}] {line}\n" for n, line in enumerate(lines)).encode()


def action(shipped: Diagnostician, log: bytes) -> Action | None:
    logs = [read_log("n4.dmesg", log, Stream.KERNEL, node=NodeName("n4"))]
    said, _ = diagnose(logs, shipped.signatures, shipped.progress, shipped.taxonomy)
    assert said.failure == "host_oom_killed"
    return said.action


OURS = (71, 40, 3_900_000, "python3")


def test_memory_that_another_user_holds_is_a_matter_of_the_node(shipped: Diagnostician) -> None:
    assert (
        action(shipped, report((9, 0, 800, "sshd"), (50, 52, 247_000_000, "ray::Buf"), OURS))
        is Action.RESTART_EXCLUDING
    )


@pytest.mark.parametrize(
    "log",
    [
        report(OURS, (72, 40, 90_000_000, "python3"), (50, 52, 100_000_000, "ray::Buf")),
        report((50, 52, 247_000_000, "ray::Buf"), OURS, limit="CONSTRAINT_MEMCG"),
        report((50, 52, 247_000_000, "ray::Buf")),
        report(),
    ],
    ids=["the job holds as much", "the job's own limit", "the victim is not listed", "no table"],
)
def test_without_another_holder_the_claim_stays_as_it_is(shipped: Diagnostician, log: bytes) -> None:
    assert action(shipped, log) is None
