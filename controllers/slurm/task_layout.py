# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which rank runs on which node, where Slurm's own records leave no doubt; else nothing.

Slurm tells a step's tasks, nodes and distribution, and not how many tasks each node got: `-N2 -n4` may be laid
out three and one. So the split must be certain: a task a node, one node alone, `--ntasks-per-node`, or the same
CPUs on every node. A rank is a task only where the tasks themselves are the workers: a launcher such as torchrun
starts workers of its own, and a task on a node of several GPUs is most likely one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from controllers.slurm.node_names import expanded
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import JobRecord
from relight.types import NodeName

MAX_RANKS = 16_384
NO_STEPS = "No job steps in the system"
_STEP = re.compile(r"StepId=([\w+]+)\.(\w+)(?!\S)")
_FIELD = re.compile(r"(?<!\S)(State|NodeList|Tasks|Name|Dist)=(\S*)")
_CPU_GROUP = re.compile(r"(?<!\S)Nodes=(\S+) CPU_IDs=\S+")
_JOB = re.compile(r"\AJobId=(\d+)(?!\S)")
# Programs that start the workers, or hide what does.
_LAUNCHERS = re.compile(
    r"torchrun|torch\.distributed|accelerate|deepspeed|composer|horovodrun|mpirun|mpiexec|orted|prted|prun|ray|"
    r"ft_launcher|nvidia-resiliency|colossalai|lightning|"
    r"env|(?:ba|da|z|k|c|tc|fi)?sh|apptainer|singularity|enroot|podman|docker|time|nsys|numactl|hydra_.*"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One running step of a job, as `scontrol show step` tells it; `job` is 39_1 for the task of an array."""

    job: str
    name: str
    nodes: tuple[NodeName, ...]
    tasks: int
    distribution: str


def steps(text: str) -> tuple[Step, ...]:
    """The running numbered steps of `scontrol --oneliner show step`. Errors: Garbled."""
    found: list[Step] = []
    for line in text.splitlines():
        if not line.strip() or line.strip() == NO_STEPS:
            continue
        step = _STEP.match(line)
        if step is None:
            raise Garbled(f"no step record: {line[:120]!r}")
        # A step's name may imitate fields: what stands first is Slurm's for all that precede the name.
        said: dict[str, str] = {}
        for field in _FIELD.finditer(line):
            said[field[1]] = "" if field[1] in said else field[2]
        if not step[2].isdigit() or said.get("State") != "RUNNING" or not said.get("Tasks", "").isdigit():
            continue
        try:
            nodes = expanded(said.get("NodeList", ""))
        except ValueError as why:
            raise Garbled(f"step {step[0]}: {why}") from why
        found.append(
            Step(job=step[1], name=said.get("Name", ""), nodes=nodes, tasks=int(said["Tasks"]),
                 distribution=said.get("Dist", ""))
        )  # fmt: skip
    return tuple(found)


def even_jobs(text: str) -> frozenset[str]:
    """The jobs of `scontrol --oneliner --details show job` that have the same CPUs on every node."""
    found = set()
    for line in text.splitlines():
        job, groups = _JOB.match(line), _CPU_GROUP.findall(line)
        if job is not None and len(groups) == 1:
            found.add(job[1])
    return frozenset(found)


def main_step(job: JobRecord, known: Iterable[Step]) -> Step | None:
    """The one step that uses all of the job's nodes; None if there is none, or more than one."""
    whole = [one for one in known if _is_of(one, job) and set(one.nodes) == set(job.nodes)]
    return whole[0] if len(whole) == 1 else None


def _is_of(step: Step, job: JobRecord) -> bool:
    return step.job in {job.job_id, f"{job.array_job}_{job.array_task}"}


def needs_details(job: JobRecord, step: Step) -> bool:
    """Whether it takes a look at the CPUs to know how the tasks are split."""
    if len(step.nodes) == 1 or step.tasks == len(step.nodes) or step.tasks % len(step.nodes):
        return False
    return job.tasks_per_node != step.tasks // len(step.nodes)


def rank_nodes(job: JobRecord, step: Step, *, is_even: bool) -> tuple[NodeName, ...]:
    """The node of each rank, in order of ranks; () where anything is left to guess."""
    count = len(step.nodes)
    if job.het_leader is not None or count == 0 or not 0 < step.tasks <= MAX_RANKS or step.tasks % count:
        return ()
    each = step.tasks // count
    if each == 1 and not _is_worker(job, step):
        return ()
    if count > 1 and each > 1 and job.tasks_per_node != each and not is_even:
        return ()
    kind = re.split(r"[:,]", step.distribution, maxsplit=1)[0]
    if count == 1 or each == 1:
        return tuple(step.nodes[rank % count] for rank in range(step.tasks)) if kind in _PLAIN or count == 1 else ()
    if kind == "Block":
        return tuple(step.nodes[rank // each] for rank in range(step.tasks))
    if kind == "Cyclic":
        return tuple(step.nodes[rank % count] for rank in range(step.tasks))
    return ()


# With a task a node all of these are in the order of the nodes; an arbitrary one is in the user's.
_PLAIN = frozenset({"Block", "Cyclic", "Plane"})


def _is_worker(job: JobRecord, step: Step) -> bool:
    """Whether a node's only task is the node's only worker."""
    return (job.gpus_per_node or 0) <= 1 and _LAUNCHERS.fullmatch(step.name) is None and bool(step.name)


def places(
    jobs: Iterable[JobRecord], known: Iterable[Step], even: frozenset[str]
) -> Mapping[str, tuple[NodeName, ...]]:
    """For each job that has steps: the node of each rank, or () if that is not certain."""
    all_steps = tuple(known)
    found: dict[str, tuple[NodeName, ...]] = {}
    for job in jobs:
        own = [one for one in all_steps if _is_of(one, job)]
        step = main_step(job, own)
        if step is not None:
            found[job.job_id] = rank_nodes(job, step, is_even=job.job_id in even)
        elif own:
            found[job.job_id] = ()
    return found
