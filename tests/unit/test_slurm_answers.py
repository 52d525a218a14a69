# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Real answers of Slurm 22.05 and 24.11, in text and JSON, and answers that are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.slurm import scontrol_text, slurm_json
from controllers.slurm.native_states import attempt_state, node_fate
from controllers.slurm.node_names import compacted, expanded
from controllers.slurm.scontrol_text import Garbled
from relight.types import AttemptState, NodeName

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("slurm_answers.json").read_text("utf-8"))
TEXTS = {name: one["scontrol"] for name, one in ANSWERS.items() if "scontrol" in one}
S = AttemptState

ENDS = {
    "completed": (S.COMPLETED, 0, None, ""),
    "failed": (S.FAILED, 3, None, "NonZeroExitCode"),
    "failed_signal": (S.FAILED, 143, None, "NonZeroExitCode"),
    "timeout": (S.TIMED_OUT, 0, 15, "TimeLimit"),
    "cancelled": (S.CANCELLED_BY_USER, 0, 15, ""),
    "cancelled_pending": (S.CANCELLED_BY_USER, 0, None, "JobHeldUser"),
    "nodefail_norequeue": (S.NODE_FAILED, 0, 15, "NodeDown"),
    "oom_batch": (S.FAILED, 0, 9, "JobLaunchFailure"),
}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_an_end_is_read_the_same_from_text_and_json(name: str) -> None:
    text, other = scontrol_text.job(TEXTS[name]), slurm_json.json_job(ANSWERS[name]["json"])
    assert (text.state, text.exit_code, text.signal, text.reason) == ENDS[name]
    assert (other.state, other.exit_code, other.signal, other.reason) == ENDS[name]


@pytest.mark.parametrize("name", sorted(TEXTS))
def test_text_and_json_tell_of_one_job_alike(name: str) -> None:
    text, other = scontrol_text.job(TEXTS[name]), slurm_json.json_job(ANSWERS[name]["json"])
    fields = [field for field in text.__slots__ if field != "gpus_per_node"]
    assert {f: getattr(text, f) for f in fields} == {f: getattr(other, f) for f in fields}


def test_the_objects_of_newer_versions_are_unwrapped() -> None:
    job = slurm_json.json_job(ANSWERS["slurm-24.11"]["json"])
    assert (job.job_id, job.state, job.nodes) == ("1", S.RUNNING, (NodeName("node1"), NodeName("node2")))
    assert (job.exit_code, job.signal, job.time_limit_s, job.requested_nodes) == (0, None, None, 2)
    assert job.log_paths == (), "both went to /dev/null"
    assert not job.is_held


@pytest.mark.parametrize(
    ("said", "expected"),
    [(768, (3, None)), (15, (0, 15)), (36608, (143, None)), (0, (0, None)), (None, (None, None)),
     ({"status": ["SIGNALED"], "return_code": {"set": False, "infinite": False, "number": 0},
       "signal": {"id": {"set": True, "infinite": False, "number": 9}, "name": "Killed"}}, (None, 9)),
     ({"status": "ERROR", "return_code": 2, "signal": {"signal_id": 0, "name": None}}, (2, None))],
)  # fmt: skip
def test_exit_codes_come_as_wait_status_or_as_objects(said: Any, expected: tuple[int | None, int | None]) -> None:
    assert slurm_json.exit_of(said) == expected


def test_a_held_requeue_is_told_from_other_holds() -> None:
    line = TEXTS["completed"].replace("JobState=COMPLETED Reason=None", "JobState=PENDING Reason={}")
    line = line.replace("Priority=", "Priority=0 Nice=0 X=")
    ours = scontrol_text.job(line.format("job_requeued_in_held_state"))
    slurms = scontrol_text.job(line.format("JobHoldMaxRequeue"))
    assert ours.is_held
    assert not ours.is_schedulers_hold
    assert slurms.is_held
    assert slurms.is_schedulers_hold


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["RUNNING"], S.RUNNING), (["FAILED", "COMPLETING"], S.ENDING), (["COMPLETING"], S.ENDING),
        (["PENDING", "REQUEUED"], S.PENDING), (["SPECIAL_EXIT"], S.PENDING), (["CANCELLED by 1000"], S.CANCELLED_BY_USER),
        (["OUT_OF_MEMORY"], S.FAILED), (["BOOT_FAIL"], S.NODE_FAILED), (["DEADLINE"], S.TIMED_OUT),
        (["SUSPENDED"], S.RUNNING), (["A_WORD_OF_2031"], None), ([], None), ([""], None),
    ],
)  # fmt: skip
def test_states_in_every_shape(words: list[str], state: AttemptState | None) -> None:
    assert attempt_state(words) is state


@pytest.mark.parametrize(
    ("words", "fate"),
    [
        (["idle"], (True, False)), (["mixed"], (True, False)), (["mixed*"], (False, True)), (["down*"], (False, True)),
        (["IDLE", "DRAIN"], (False, False)), (["drained"], (False, False)), (["allocated+"], (True, False)),
        (["IDLE", "NOT_RESPONDING"], (False, True)), (["idle~"], (True, False)), (["completing"], (True, False)),
        (["unknown"], (False, True)), (["maint"], (False, False)), ([], (False, False)),
    ],
)  # fmt: skip
def test_a_node_is_usable_lost_or_neither(words: list[str], fate: tuple[bool, bool]) -> None:
    assert node_fate(words) == fate


def test_nodes_are_read_from_text_with_all_their_partitions() -> None:
    text = "n1|gpu*|idle|none\nn1|debug|idle|none\nn2|gpu*|down*|Not responding | said ctld\n"
    first, second = scontrol_text.nodes(text)
    assert (first.partitions, first.is_usable) == (("gpu", "debug"), True)
    assert (second.is_lost, second.reason) == (True, "Not responding | said ctld")


def test_nodes_are_read_from_recorded_json() -> None:
    found = slurm_json.json_nodes(ANSWERS["nodes-22.05"])
    assert found
    assert all(node.name and node.native_state for node in found)


# ------------------------------------------------------------------ forgeries


FORGED = "x JobState=FAILED Reason=NodeDown Restarts=0 Requeue=1"


@pytest.mark.parametrize(
    "line",
    [
        TEXTS["completed"].replace("JobName=sbatch", f"JobName={FORGED}"),
        TEXTS["completed"].replace("Command=(null)", f"Command=(null) WorkDir=/x Comment={FORGED} "),
        TEXTS["completed"] + f" AdminComment={FORGED}",
    ],
)
def test_a_record_that_imitates_fields_is_marked_as_ambiguous(line: str) -> None:
    assert scontrol_text.job(line).is_ambiguous


@pytest.mark.parametrize("name", ["a=b", "Foo=bar baz=1", "job state=FAILED", "JobStateX=1"])
def test_a_name_that_only_looks_odd_is_just_a_name(name: str) -> None:
    job = scontrol_text.job(TEXTS["completed"].replace("JobName=sbatch", f"JobName={name}"))
    assert (job.name, job.is_ambiguous, job.state) == (name, False, S.COMPLETED)


# ------------------------------------------------------------------ no answers


@pytest.mark.parametrize(
    "text", ["", "\n \n", "slurm_load_jobs error: x", "JobId=abc JobState=RUNNING", "{}", "JobId=1"]
)
def test_an_answer_that_is_none_is_garbled_and_never_no_jobs(text: str) -> None:
    with pytest.raises(Garbled):
        scontrol_text.jobs(text)


def test_a_cluster_without_jobs_says_so() -> None:
    assert scontrol_text.jobs("No jobs in the system\n") == ()


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{", '{"errors": [{"error": "x"}], "jobs": []}', '{"jobs": 3}', "[" * 9000]
)
def test_json_that_is_no_answer_is_garbled(text: str) -> None:
    with pytest.raises(Garbled):
        slurm_json.json_jobs(slurm_json.decoded(text))


@given(st.text())
def test_any_text_is_read_or_garbled(text: str) -> None:
    for read in (scontrol_text.jobs, scontrol_text.nodes):
        try:
            read(text)
        except Garbled:
            continue


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)
                    | st.dictionaries(st.sampled_from(["job_id", "job_state", "nodes", "exit_code", "set", "number"]),
                                      inner)))  # fmt: skip
def test_any_json_is_read_or_garbled(said: Any) -> None:
    try:
        slurm_json.json_job({"job_id": 1, **said} if isinstance(said, dict) else said)
    except Garbled:
        return


# ------------------------------------------------------------------ accounting and clocks


def test_accounting_tells_the_runs_of_a_job_apart() -> None:
    text = (
        "28|NODE_FAIL|0:0|node[1-3]|2026-11-29T15:17:43|2026-11-29T15:18:03\n"
        "28|RESIZING|0:0|node[1-2]|2026-11-29T15:18:04|2026-11-29T15:18:05\n"
        "281|FAILED|3:0|node1|2026-11-29T15:18:04|2026-11-29T15:18:05\n"
        "28|CANCELLED by 1000|0:15|None assigned|2026-11-29T15:18:04|Unknown\n"
    )
    first, second = scontrol_text.history(text, "28")
    assert (first.restart_index, first.state, len(first.nodes)) == (0, S.NODE_FAILED, 3)
    assert (second.state, second.cancelled_by, second.end_at) == (S.CANCELLED_BY_USER, "1000", None)


def test_a_requeued_row_does_not_say_why() -> None:
    (run,) = scontrol_text.history("7|REQUEUED|0:0|n1|2026-11-29T15:17:43|2026-11-29T15:18:03", "7")
    assert run.state is None


def test_times_are_taken_in_the_zone_of_the_commands() -> None:
    zone = timezone(timedelta(hours=2))
    job = scontrol_text.job(TEXTS["failed"], zone)
    assert job.start_at == datetime(2026, 11, 29, 13, 10, 27, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "delay"),
    [
        ("AuthInfo = cred_expire=60", 60),
        ("SchedulerParameters = bf_max,requeue_delay=30", 30),
        ("MinJobAge = 300 sec", 120),
    ],
)
def test_the_requeue_delay_is_found_where_slurm_hides_it(text: str, delay: float) -> None:
    assert scontrol_text.clocks(text).requeue_delay_s == delay


def test_clocks_of_nothing_are_unknown() -> None:
    said = scontrol_text.clocks("")
    assert (said.requeue_delay_s, said.min_job_age_s, said.has_accounting) == (None, None, None)


# ------------------------------------------------------------------ host lists


def test_host_lists_are_opened_and_closed() -> None:
    assert expanded("node[1,3-4],login1") == ("node1", "node3", "node4", "login1")
    assert expanded("(null)") == expanded("None assigned") == ()
    assert compacted([NodeName("n3"), NodeName("n1"), NodeName("n2")]) == "n[1-3]"
    assert compacted([]) == ""


@pytest.mark.parametrize("text", ["n[1-", "n[1-999999]", "n1;reboot", "n[1-100000]m[1-100000]", "-n1", "a b"])
def test_a_host_list_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="host"):
        expanded(text)


@pytest.mark.parametrize("name", ["n1 State=RESUME", "n1;x", "", "-x", "n[1-3]"])
def test_a_name_that_is_more_than_a_name_is_never_sent(name: str) -> None:
    with pytest.raises(ValueError, match="host name"):
        compacted([NodeName(name)])
