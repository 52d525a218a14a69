# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the demo's cluster runs, what its logs say when something breaks, and what Relight must make of it."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.fleet import Fault, FaultKind
from service.demo_run import Workload

SLOW_RANK = 37
HUNG_RANK = 21
NODES_EACH = 7

GPU_LOST = "NVRM: Xid (PCI:0000:1a:00): 79, pid=4242, name=python, GPU has fallen off the bus."
TIMEOUT = ("[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=118, OpType=ALLREDUCE, "
           "Timeout(ms)=600000) ran for 600042 milliseconds before timing out.")  # fmt: skip
LATE = f"[Rank 0]: Rank {HUNG_RANK} failed to pass monitoredBarrier in 600000 ms"
STALE = "OSError: [Errno 116] Stale file handle: '/scratch/datasets/code/shard-00117.bin'"
MISMATCH = (
    "[rank0]: Traceback (most recent call last):",
    '[rank0]:   File "/workspace/rl/train.py", line 143, in main',
    "[rank0]:     model.load_state_dict(state_dict)",
    "[rank0]: RuntimeError: Error(s) in loading state_dict for TransformerLM:",
    "[rank0]: 	size mismatch for lm_head.weight: copying a param with shape torch.Size([2, 896]) from checkpoint, "
    "the shape in current model is torch.Size([2, 1024]).",
)


def nodes_of(place: int) -> tuple[str, ...]:
    return tuple(f"gpu{n:03d}" for n in range(place * NODES_EACH + 1, (place + 1) * NODES_EACH + 1))


WORKLOADS: tuple[Workload, ...] = (
    Workload(name="pretrain-70b", user="ada", mode="act", seed=1, nodes=nodes_of(0)),
    Workload(name="moe-8x22b", user="grace", mode="approve", seed=2, nodes=nodes_of(1)),
    Workload(name="vision-9b", user="linus", mode="monitor", seed=3, nodes=nodes_of(2)),
    Workload(name="speech-3b", user="barbara", mode="monitor", seed=4, nodes=nodes_of(3),
             faults=(Fault(kind=FaultKind.SLOW_RANK, at_s=6_300.0, factor=1.35, rank=SLOW_RANK),)),
    Workload(name="rl-13b", user="grace", mode="approve", seed=5, nodes=nodes_of(4)),
    Workload(name="code-34b", user="donald", mode="monitor", seed=6, nodes=nodes_of(5)),
    Workload(name="longctx-8b", user="edsger", mode="act", seed=7, nodes=nodes_of(6),
             faults=(Fault(kind=FaultKind.SLOW_NETWORK, at_s=5_400.0, factor=2.5),)),
    Workload(name="embed-1b", user="ada", mode="act", seed=8, nodes=nodes_of(7)),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """An incident that must be found, and what Relight must make of it; a job that goes on needs no advice."""

    workload: str
    what: str
    kind: str
    failure: str
    action: str = ""

    def __str__(self) -> str:
        return f"{self.what} ({self.workload}: {self.kind}, {self.failure}, {self.action or 'no advice'})"


WANTED: tuple[Wanted, ...] = (
    Wanted(workload="pretrain-70b", what="a GPU falls off the bus", kind="crash", failure="gpu_fell_off_bus",
           action="restart_excluding"),
    Wanted(workload="moe-8x22b", what="the scheduler loses a node", kind="crash", failure="node_failure",
           action="restart_excluding"),
    Wanted(workload="vision-9b", what="a rank hangs", kind="hang", failure="nccl_collective_timeout",
           action="restart"),
    Wanted(workload="speech-3b", what="a straggler", kind="straggler", failure="throughput_drop"),
    Wanted(workload="longctx-8b", what="a slow network", kind="slowdown", failure="throughput_drop"),
    Wanted(workload="code-34b", what="a file handle goes stale", kind="crash", failure="stale_file_handle",
           action="restart"),
    Wanted(workload="code-34b", what="a GPU is lost and people keep its node", kind="crash",
           failure="gpu_fell_off_bus", action="restart_excluding"),
    Wanted(workload="rl-13b", what="a checkpoint of another model", kind="crash",
           failure="checkpoint_shape_mismatch", action="stop"),
)  # fmt: skip
