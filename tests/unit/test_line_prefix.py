# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Prefixes of launchers, loggers and kernels: what they say and where the message begins."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detectors.line_prefix import read_prefix


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog", "Watchdog"),
        ("[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog", "Watchdog"),
        ("Nov 14 21:22:13 node06 kernel: [   42.500101] NVRM: Xid", "NVRM: Xid"),
        ("Dec  1 19:32:29 NVRM: Xid (PCI:0000:0f:00): 109", "NVRM: Xid (PCI:0000:0f:00): 109"),
        ("2019-06-10T04:26:59.776Z: [1,12]<stdout>:box-83:679:728 [0] transport/net_ib.cu:80 NCCL WARN", "transport/net_ib.cu:80 NCCL WARN"),
        ("10.0.0.19: kern: warning: [2026-04-22T21:25:20.458998481Z]: NVRM: GPU", "NVRM: GPU"),
        ("kern  :warn  : 2025-04-01T17:37:26,771594+00:00 NVRM: Xid", "NVRM: Xid"),
        ("[Sun Feb 23 16:24:18 2025] NVRM: Xid", "NVRM: Xid"),
        ("6,2958,294049212,-;nvidia-peermem", "nvidia-peermem"),
        ("[  +0.000311] pcieport", "pcieport"),
        ("tunetask/0 [default2]:[rank2]: Traceback", "Traceback"),
        ("(CommandActor pid=6258, ip=10.238.3.117) torch", "torch"),
        ("slurmstepd-node1: error: *** JOB", "error: *** JOB"),
        ("29: srun: Job 7", "srun: Job 7"),
        (" 9: [rank9]: TypeError: x", "TypeError: x"),
        ("[pod/train-worker-1/pytorch] [rank17]: x", "x"),
        ("train-worker-1  | RuntimeError: x", "RuntimeError: x"),
        ("[prterun-n1-123@1,3]<stderr>: RuntimeError: x", "RuntimeError: x"),
        ("2026-01-25T07:15:49.123456789Z stderr F RuntimeError: x", "RuntimeError: x"),
        ("[2026-01-25 07:15:49,123][__main__][ERROR] - RuntimeError: x", "RuntimeError: x"),
        ("Rank 3: RuntimeError: x", "RuntimeError: x"),
        ("Epoch 1 | loss 3", "Epoch 1 | loss 3"),
        ("RuntimeError: x", "RuntimeError: x"),
        ("srun: error: node3: task 2", "srun: error: node3: task 2"),
    ],
)  # fmt: skip
def test_the_message_begins_behind_every_prefix(line: str, message: str) -> None:
    assert line[read_prefix(line, 2025).start :].lstrip() == message


def test_the_global_rank_wins_over_the_rank_inside_a_group() -> None:
    assert read_prefix("[rank13]:[E412 17:16:22.864687456 ProcessGroupNCCL.cpp:616] [Rank 1] x", 2025).rank == 13


@pytest.mark.parametrize(
    "line", [" 3: x", "  3: x", "[1,3]<stderr>:x", "[prterun-n1-9@1,3]<stdout>: x", "[1,rank3]<stderr>: x", "rank 3: x"]
)
def test_launchers_that_pad_or_rename_their_labels_are_read(line: str) -> None:
    said = read_prefix(line)
    assert (said.rank if said.rank is not None else said.task) == 3


def test_the_group_rank_counts_where_there_is_no_other() -> None:
    assert read_prefix("[E ProcessGroupNCCL.cpp:737] [Rank 1] x").rank == 1


@pytest.mark.parametrize(
    ("line", "at"),
    [
        ("[rank0]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] x", datetime(2025, 12, 18, 20, 27, 21, 426415, UTC)),
        ("E606 09:10:14", None),
        ("E0606 09:10:14.926000 2888264 torch/x/api.py:988] failed", datetime(2025, 6, 6, 9, 10, 14, 926000, UTC)),
        ("[2024-03-12 02:29:19,601] torch.distributed: [ERROR] failed", datetime(2024, 3, 12, 2, 29, 19, 601000, UTC)),
        ("[Oct 24 2023 13:37:25] [ERROR] [tid 1234] x", datetime(2023, 10, 24, 13, 37, 25, 0, UTC)),
        ("[2021-02-31T10:00:00] impossible", None),
    ],
)  # fmt: skip
def test_times_are_aware_and_impossible_ones_are_none(line: str, at: datetime | None) -> None:
    assert read_prefix(line, 2025).at == at


def test_a_stamp_without_a_year_is_no_time_when_the_year_is_unknown() -> None:
    assert read_prefix("Nov 14 21:22:13 node06 kernel: x").at is None


def test_hosts_are_read_from_syslog_pdsh_and_nccl() -> None:
    hosts = [
        read_prefix(line).host
        for line in (
            "Nov 14 21:22:13 node06 kernel: x",
            "worker-3: Traceback (most recent call last):",
            "gpu-node3:2611276:2614400 [3] include/alloc.h:178 NCCL WARN",
            "(raylet, ip=10.0.0.1) x",
        )
    ]
    assert hosts == ["node06", "worker-3", "gpu-node3", None]


def test_kernel_uptime_is_kept() -> None:
    assert read_prefix("[   42.500101] x").uptime_s == pytest.approx(42.500101)


@pytest.mark.parametrize("level", ["ERROR", "WARNING", "info", "Critical"])
def test_a_level_is_no_host(level: str) -> None:
    assert read_prefix(f"22: 2026-06-06 04:33:44,381 {level} nvml_monitor: GPU is lost").host is None
    assert read_prefix(f"2026-06-06T04:33:44.381Z {level}-7 kernel: GPU is lost").host == f"{level}-7"
