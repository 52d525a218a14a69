# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which rank ran where, by what NCCL and torchrun print, and what that says of a kernel's words."""

from __future__ import annotations

import pytest

from detectors.allocation import allocated_nodes
from detectors.crash import diagnose
from detectors.log_text import read_log
from detectors.placement import Placement
from relight.places import bus_address
from relight.types import Attribution, NodeName, Stream
from service.diagnosis import Diagnostician


def init(host: str, pid: int, rank: int, size: int, device: int, bus: str = "1b000") -> str:
    return (
        f"{host}:{pid}:{pid + 900} [{device}] NCCL INFO comm 0x55d0 rank {rank} nranks {size} cudaDev {device} "
        f"nvmlDev {device} busId {bus} commId 0x63f3 - Init COMPLETE"
    )


def placed(*lines: str) -> Placement:
    placement = Placement()
    placement.read(line.encode() for line in lines)
    return placement


def test_every_rank_that_spoke_is_placed() -> None:
    found = placed(init("n1", 10, 0, 2, 0), init("n2", 10, 1, 2, 0, "c3000"))
    assert found.rank_to_node == {0: "n1", 1: "n2"}
    assert found.process_ranks == {("n1", 10): 0, ("n2", 10): 1} and found.device_ranks[NodeName("n2"), 0xC3000] == 1


def test_ranks_between_those_who_spoke_are_placed_where_no_choice_is_left() -> None:
    found = placed(init("n1", 10, 0, 8, 0), init("n2", 11, 6, 8, 2))
    assert found.rank_to_node == {**{r: "n1" for r in range(4)}, **{r: "n2" for r in range(4, 8)}}


@pytest.mark.parametrize(
    "lines",
    [
        (init("n1", 10, 0, 8, 0),),
        (init("n1", 10, 0, 8, 0), init("n2", 11, 5, 8, 0)),
        (init("n1", 10, 0, 9, 0), init("n2", 11, 4, 9, 0)),
        (init("n1", 10, 0, 8, 0), init("n1", 11, 1, 8, 0), init("n2", 12, 4, 8, 0)),
    ],
)
def test_a_part_of_the_map_is_no_map(lines: tuple[str, ...]) -> None:
    whole = placed(*lines).rank_to_node
    assert whole == {} or set(whole) == set(range(8))
    assert len(placed(*lines).reported_places) == len(lines)


def test_a_group_of_which_there_are_several_places_nobody() -> None:
    found = placed(init("n1", 10, 0, 4, 0), init("n2", 11, 0, 4, 0))
    assert found.rank_to_node == {} == found.process_ranks


def test_the_largest_communicator_counts() -> None:
    found = placed(init("n1", 10, 0, 2, 0), init("n2", 11, 1, 2, 0), init("n1", 10, 1, 4, 1))
    assert found.size == 4 and found.reported_places == {1: "n1"}


@pytest.mark.parametrize(
    ("pci", "number"),
    [("0000:c3:00.0", 0xC3000), ("c3:00.0", 0xC3000), ("0018:01:00", 0x1801000), ("GPU-3", None), ("", None)],
)
def test_a_bus_address_is_the_number_that_nccl_prints(pci: str, number: int | None) -> None:
    assert bus_address(pci) == number


def judged(shipped: Diagnostician, job: str, kernel: str) -> Attribution:
    logs = [
        read_log("job.log", job.encode(), Stream.APPLICATION),
        read_log("n2.dmesg", kernel.encode(), Stream.KERNEL, node=NodeName("n2")),
    ]
    return diagnose(logs, shipped.signatures, shipped.progress, shipped.taxonomy)[0]


XID = (
    "[Fri Jul 31 14:24:00 2026] NVRM: Xid (PCI:0000:{bus}:00): 79, pid={pid}, name=python3, GPU has fallen off the bus."
)


def test_a_gpu_of_the_kernels_log_is_the_rank_that_told_its_address(shipped: Diagnostician) -> None:
    job = "\n".join(init(f"n{1 + r // 2}", 10 + r, r, 4, r % 2, f"{r + 1}b000") for r in range(4))
    assert judged(shipped, job, XID.format(bus="4b", pid=1)).ranks == (3,)


def test_a_process_of_the_kernels_log_is_the_rank_that_told_its_number(shipped: Diagnostician) -> None:
    job = "\n".join(init(f"n{1 + r // 2}", 10 + r, r, 4, r % 2) for r in range(4))
    assert judged(shipped, job, XID.format(bus="4b", pid=12)).ranks == (2,)


def test_the_launchers_report_ties_a_process_to_its_rank(shipped: Diagnostician) -> None:
    job = (
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-05-23_19:53:53\n  host      : n2\n"
        "  rank      : 25 (local_rank: 1)\n  exitcode  : -9 (pid: 342671)\n"
    )
    kernel = "[Fri Jul 31 14:24:00 2026] Out of memory: Killed process 342671 (python3) total-vm:1kB, anon-rss:1kB\n"
    said = judged(shipped, job, kernel)
    assert (said.failure, said.ranks) == ("host_oom_killed", (25,))


def test_sruns_report_places_the_tasks_of_one_node(shipped: Diagnostician) -> None:
    said = "{rank}: RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized\n"
    job = "".join(said.format(rank=r) for r in (16, 17))
    job += "srun: error: n2: tasks 16-23: Exited with exit code 1\nsrun: error: n[1,3]: tasks 0-15,24-31: Terminated\n"
    read = read_log("job.log", job.encode(), Stream.APPLICATION)
    told, _ = diagnose([read], shipped.signatures, shipped.progress, shipped.taxonomy)
    assert (told.failure, told.nodes) == ("fabric_manager_not_ready", ("n2",))
    lone = read_log("job.log", job.replace("tasks 16-23", "task 2").encode(), Stream.APPLICATION)
    assert diagnose([lone], shipped.signatures, shipped.progress, shipped.taxonomy)[0].nodes == ()


@pytest.mark.parametrize(
    ("line", "nodes"),
    [
        ("SLURM_JOB_NODELIST=gpu[011-012]", {"gpu011", "gpu012"}),
        ("srun: jobid 440170: nodes(2):`gpu[011-012]', cpu counts: 128(x2)", {"gpu011", "gpu012"}),
        ("salloc: Nodes gpu011 are ready for job", {"gpu011"}),
        ("SLURM_JOB_NODELIST=gpu[0-99999999]", set()),
        ("SLURM_NNODES=4", set()),
    ],
)
def test_the_allocation_is_what_the_job_says(line: str, nodes: set[str]) -> None:
    assert allocated_nodes([b"x", line.encode()]) == nodes


@pytest.mark.parametrize(
    ("after", "failure"),
    [
        ("[rank0]: RuntimeError: NCCL communicator was aborted on rank 0.", "python_exception"),
        ("\n[rank5]: RuntimeError: NCCL communicator was aborted on rank 5.", "python_exception"),
    ],
)
def test_what_others_say_after_an_exception_does_not_explain_it(
    shipped: Diagnostician, after: str, failure: str
) -> None:
    job = (
        "[rank5]: Traceback (most recent call last):\n"
        '[rank5]:   File "/data/proj/collate.py", line 48, in __call__\n'
        '[rank5]:     weights = [len(x["chosen"]) / x["n_turns"] for x in features]\n'
        f"[rank5]: ZeroDivisionError: division by zero\n{after}\n"
    )
    read = read_log("job.log", job.encode(), Stream.APPLICATION)
    told, _ = diagnose([read], shipped.signatures, shipped.progress, shipped.taxonomy)
    assert (told.failure, told.ranks) == (failure, (5,))


@pytest.mark.parametrize(
    ("job", "failure"),
    [
        (
            '  File "/venv/lib/python3.11/site-packages/fsspec/asyn.py", line 25, in _runner\n    result[0] = await coro\n'
            "asyncio.exceptions.TimeoutError\n",
            "hub_transient_error",
        ),
        (
            '  File "/work/train.py", line 25, in step\n    queue.get(timeout=5)\nasyncio.exceptions.TimeoutError\n',
            "python_exception",
        ),
        (
            '  File "/work/plan.py", line 354, in create\n'
            '    raise RuntimeError(f"CUDA out of memory. Tried to allocate 2 GiB")\nKeyError: 3\n',
            "python_exception",
        ),
    ],
    ids=["a transfer", "the program's own wait", "source text"],
)
def test_frames_say_what_an_exception_was_about(shipped: Diagnostician, job: str, failure: str) -> None:
    read = read_log("job.log", f"Traceback (most recent call last):\n{job}".encode(), Stream.APPLICATION)
    assert diagnose([read], shipped.signatures, shipped.progress, shipped.taxonomy)[0].failure == failure
