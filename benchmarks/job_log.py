# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A Megatron-style job log of any length that fails at its end; the same seed gives the same bytes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

RANKS = 64
SEED = 20260101


def write_job_log(path: Path, lines: int, seed: int = SEED) -> int:
    """Write `lines` lines and return their bytes."""
    with path.open("w", encoding="utf-8", newline="\n") as out:
        for line in job_log(lines, seed):
            out.write(line + "\n")
    return path.stat().st_size


def job_log(lines: int, seed: int = SEED) -> Iterator[str]:
    """A start, steady training with what stands between its steps, and a GPU that falls off the bus."""
    dice = random.Random(seed)
    ending = list(_ending(dice))
    written = 0
    for line in _start(dice):
        if written == lines - len(ending):
            break
        yield line
        written += 1
    step = 0
    while written < lines - len(ending):
        step += 1
        for line in _step(step, dice):
            if written == lines - len(ending):
                break
            yield line
            written += 1
    yield from ending[: lines - written]


def _clock(second: float) -> str:
    whole = int(second)
    return f"2026-01-{1 + whole // 86400 % 28:02d} {whole // 3600 % 24:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def _start(dice: random.Random) -> Iterator[str]:
    for rank in range(RANKS):
        node = f"node-{rank // 8:03d}"
        yield f"{node}:{41000 + rank}:{42000 + rank} [{rank % 8}] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB"
        for channel in range(4):
            peer = (rank + 1) % RANKS
            yield (
                f"{node}:{41000 + rank}:{42000 + rank} [{rank % 8}] NCCL INFO Channel {channel:02d}/0 : "
                f"{rank}[{rank % 8}] -> {peer}[{peer % 8}] [send] via NET/IB/{dice.randrange(4)}/GDRDMA"
            )
    yield "> building train, validation, and test datasets for GPT ..."
    yield f"number of parameters on (tensor, pipeline) model parallel rank (0, 0): {dice.randrange(10**9, 10**10)}"


def _step(step: int, dice: random.Random) -> Iterator[str]:
    at = 4.1 * step
    yield (
        f" [{_clock(at)}.{dice.randrange(1000):03d}] iteration {step:8d}/  500000 | consumed samples: {step * 512:12d} | "
        f"elapsed time per iteration (ms): {4000 + dice.random() * 200:.1f} | learning rate: {3e-4 * 0.9999**step:.6E} | "
        f"global batch size: 512 | lm loss: {2 + 9 / step**0.5 + dice.random() / 50:.6E} | loss scale: 1.0 | "
        f"grad norm: {0.2 + dice.random():.3f} | number of skipped iterations: 0 | number of nan iterations: 0 |"
    )
    yield f"    {'forward-backward':.<32}: ({3800 + dice.random() * 90:.2f}, {3900 + dice.random() * 90:.2f})"
    yield (
        f"[rank{dice.randrange(RANKS)}]: {_clock(at)},{dice.randrange(1000):03d} INFO data.loader: shard "
        f"/data/tokens/part-{dice.randrange(4096):05d}.bin opened in {dice.random() * 40:.1f} ms"
    )
    if step % 25 == 0:
        yield (
            f"[Rank {dice.randrange(RANKS)}] (after {step} iterations) memory (MB) | allocated: {dice.uniform(3e4, 4e4):.4f} | "
            f"max allocated: {dice.uniform(5e4, 6e4):.4f} | reserved: {dice.uniform(6e4, 7e4):.1f}"
        )
    if step % 500 == 0:
        yield f"saving checkpoint at iteration {step:7d} to /checkpoints/run in torch_dist format"
        yield f"  successfully saved checkpoint from iteration {step:7d} to /checkpoints/run [ t 1/8, p 1/1 ]"
        yield (
            f" validation loss at iteration {step} | lm loss value: {2 + dice.random():.6E} | "
            f"lm loss PPL: {7 + dice.random():.6E} |"
        )


def _ending(dice: random.Random) -> Iterator[str]:
    yield "Jan  5 16:02:24 node-003 kernel: NVRM: Xid (PCI:0000:4e:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
    yield "[rank27]: RuntimeError: CUDA error: unspecified launch failure"
    for rank in range(0, RANKS, 4):
        yield (
            f"[rank{rank}]:[E101 09:12:{rank % 60:02d}.{dice.randrange(10**9):09d} ProcessGroupNCCL.cpp:616] [Rank {rank}] "
            f"Watchdog caught collective operation timeout: WorkNCCL(SeqNum=88123, OpType=ALLREDUCE, NumelIn=39206092, "
            f"NumelOut=39206092, Timeout(ms)=600000) ran for {600000 + dice.randrange(90)} milliseconds before timing out."
        )
    yield "srun: error: node-003: task 27: Exited with exit code 1"
    yield "srun: Job step aborted: Waiting up to 32 seconds for job step to finish."
