# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where ranks run: step records as Slurm 22.05.8 prints them, with the placement that those runs really had."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controllers.slurm.scontrol_text import Garbled
from controllers.slurm.task_layout import even_jobs, main_step, needs_details, places, steps
from relight.jobs import JobRecord
from relight.types import AttemptState, NodeName

LINE = ("StepId={step} UserId=0 StartTime=2026-11-29T20:39:31 TimeLimit=UNLIMITED State={state} Partition=main "
        "NodeList={nodes} Nodes={count} CPUs=4 Tasks={tasks} Name={name} Network=(null) TRES=cpu=4,mem=0,node=2 "
        "ResvPorts=(null) CPUFreqReq=Default Dist={dist} SrunHost:Pid=node1:86")  # fmt: skip
BATCH = "StepId=7.batch UserId=0 StartTime=2026-11-29T20:39:31 TimeLimit=UNLIMITED State=RUNNING Partition=main NodeList=node1 Nodes=1 CPUs=1 Tasks=1 Name=batch Network=(null)"


def step(tasks: int = 4, dist: str = "Block", *, count: int = 2, nodes: str = "", name: str = "python",
         state: str = "RUNNING", step: str = "7.0") -> str:  # fmt: skip
    listed = nodes or (f"node[1-{count}]" if count > 1 else "node1")
    return LINE.format(step=step, state=state, nodes=listed, count=count, tasks=tasks, name=name, dist=dist)


def job(nodes: int = 2, **fields: object) -> JobRecord:
    names = tuple(NodeName(f"node{number + 1}") for number in range(nodes))
    return replace(
        JobRecord(job_id="7", state=AttemptState.RUNNING, nodes=names, requested_nodes=nodes),
        **fields,  # type: ignore[arg-type]
    )


def told(one: JobRecord, *lines: str, even: frozenset[str] = frozenset()) -> str | None:
    found = places([one], steps("\n".join([BATCH, *lines])), even).get(one.job_id)
    return None if found is None else " ".join(node.removeprefix("node") for node in found)


@pytest.mark.parametrize(
    ("layout", "placed"),
    [
        ((job(4), step(4, "Cyclic", count=4)), "1 2 3 4"),
        ((job(tasks_per_node=2), step()), "1 1 2 2"),
        ((job(tasks_per_node=2), step(dist="Cyclic")), "1 2 1 2"),
        ((job(tasks_per_node=2), step(dist="Block:Cyclic,NoPack")), "1 1 2 2"),
        ((job(1), step(3, count=1)), "1 1 1"),
        ((job(gpus_per_node=1), step(2)), "1 2"),
        ((job(gpus_per_node=2, tasks_per_node=2), step(4)), "1 1 2 2"),
        ((job(array_job="5", array_task=3), step(2, step="5_3.0")), "1 2"),
    ],
)
def test_what_is_certain_is_told_for_every_rank(layout: tuple[JobRecord, str], placed: str) -> None:
    assert told(*layout) == placed


@pytest.mark.parametrize(
    "layout",
    [
        # -N2 -n4 was really laid out 1 1 1 2: Slurm had given three CPUs on one node and one on the other.
        (job(), step()),
        (job(tasks_per_node=2), step(dist="Plane")),
        (job(tasks_per_node=2), step(dist="Arbitrary")),
        (job(), step(2, dist="Arbitrary")),
        (job(tasks_per_node=2), step(dist="Unknown")),
        (job(tasks_per_node=2), step(3)),
        (job(gpus_per_node=8), step(2)),
        (job(), step(2, name="torchrun")),
        (job(), step(2, name="bash")),
        (job(), step(2, name="accelerate")),
        (job(het_leader="7", het_offset=0), step(2)),
        # Two steps over all nodes: either may be the training.
        (job(), step(2), step(2, step="7.1", name="dcgm_poll")),
        # One that uses only some of the nodes.
        (job(3, tasks_per_node=2), step(2, "Cyclic")),
        # A name that imitates fields.
        (job(), step(2, name="x Tasks=2 Dist=Block")),
        (job(tasks_per_node=20_000), step(40_000)),
    ],
)
def test_what_leaves_anything_to_guess_is_not_told(layout: tuple[JobRecord, ...]) -> None:
    assert told(*layout) in {"", None}  # type: ignore[arg-type]


def test_a_job_without_a_running_step_is_left_out_so_that_what_was_known_stays() -> None:
    assert told(job()) is None
    assert told(job(), step(2, state="PENDING")) is None
    assert told(job(), step(2, step="8.0")) is None
    assert places([job()], steps("No job steps in the system"), frozenset()) == {}


def test_a_small_step_beside_the_training_does_not_hide_it() -> None:
    assert told(job(), step(2), step(1, count=1, step="7.1")) == "1 2"


def test_equal_cpus_on_every_node_make_an_even_split() -> None:
    one = job()
    found = main_step(one, steps(step()))
    assert found is not None
    assert needs_details(one, found)
    assert not needs_details(replace(one, tasks_per_node=2), found)
    even = "JobId=7 JobName=x NodeList=node[1-2] JOB_GRES=(null) Nodes=node[1-2] CPU_IDs=0-3 Mem=0 GRES= MinCPUsNode=1"
    uneven = "JobId=7 JobName=x JOB_GRES=(null) Nodes=node1 CPU_IDs=0-2 Mem=0 GRES= Nodes=node2 CPU_IDs=0 Mem=0 GRES="
    assert told(one, step(), even=even_jobs(even)) == "1 1 2 2"
    assert told(one, step(), even=even_jobs(uneven)) == ""
    assert even_jobs("JobId=7 JobName=a Nodes=b CPU_IDs=c Nodes=node[1-2] CPU_IDs=0-3 Mem=0") == frozenset()


def test_an_answer_that_is_none_is_noticed() -> None:
    with pytest.raises(Garbled):
        steps("slurm_load_job_steps error: Unable to contact slurm controller")
