# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Opt-in, identity, log paths, marks, slips and the command line: what surrounds the controller's decisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.slurm.command_line import SlurmCommandLine
from controllers.slurm.identity import attempt_id
from controllers.slurm.log_patterns import LogOwner, log_path
from controllers.slurm.opt_in import OptInRules
from controllers.slurm.runners import Answer, SshRunner
from controllers.slurm.slips import FolderOfSlips
from controllers.slurm.store import Store
from controllers.slurm.tracks import is_same_job, new_track
from relight.hold_mark import HoldMark, MarkState, read_mark, with_mark
from relight.jobs import JobRecord, RefusalCode, SchedulerRefused, SchedulerUnreachable
from relight.types import AttemptState, ClusterId, Mode, NodeName, RecommendationId
from relight.watching import HangTerms

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
JOB = JobRecord(job_id="7", state=AttemptState.RUNNING, partition="gpu", user="ada", uid="1000", name="train",
                submit_at=NOON)  # fmt: skip
RULES = OptInRules(partitions={"gpu": Mode.APPROVE, "login": None})


@pytest.mark.parametrize(
    ("comment", "mode"),
    [
        ("", Mode.APPROVE), ("relight=act", Mode.ACT), ("a b relight=monitor; c", Mode.MONITOR), ("relight=off", None),
        ('{"relight": "act"}', Mode.ACT), ("norelight=act", Mode.APPROVE), ("relight=bold", Mode.APPROVE),
        ("relight:deciding/r/1/1/1/1", Mode.APPROVE), ("relight.max_restarts=3", Mode.APPROVE), ("relight = ACT", Mode.ACT),
    ],
)  # fmt: skip
def test_a_job_chooses_its_mode_in_its_comment(comment: str, mode: Mode | None) -> None:
    assert RULES.choose(replace(JOB, comment=comment)).mode is mode


def test_a_job_sets_its_own_limits_and_the_administrators_word_counts_over_it() -> None:
    job = replace(
        JOB, comment="relight=act relight.max_restarts=5 relight.workload=llm", admin_comment="relight=monitor"
    )
    said = RULES.choose(job)
    assert (said.mode, said.max_restarts, said.workload) == (Mode.MONITOR, 5, "llm")


@pytest.mark.parametrize(
    ("comment", "terms"),
    [
        ("relight=act relight.hang_at_most_s=600 relight.hang_start_s=7200", HangTerms(at_most_s=600, start_s=7_200)),
        ("relight.hang_at_least_s=5", HangTerms()),
        ("relight.hang_at_least_s=900 relight.hang_at_most_s=600", HangTerms()),
        ("relight.hang_at_most_s=soon", HangTerms()),
    ],
)
def test_a_job_says_how_long_its_pauses_may_last_and_nonsense_is_left_out(comment: str, terms: HangTerms) -> None:
    assert OptInRules().choose(replace(JOB, comment=comment)).hang == terms


def test_a_site_may_leave_jobs_no_choice_and_leave_partitions_out() -> None:
    strict = replace(RULES, jobs_may_choose=False)
    assert strict.choose(replace(JOB, comment="relight=act")).mode is Mode.APPROVE
    assert RULES.choose(replace(JOB, partition="login")).mode is None
    assert OptInRules().choose(JOB).mode is Mode.MONITOR


def test_an_attempt_has_one_name_for_ever() -> None:
    name = attempt_id(ClusterId("c"), "7", NOON, 0)
    assert name == "ac592639-a087-5a28-a613-2f19cccd12d8", "the audit log knows attempts by it"
    later = {attempt_id(ClusterId("c"), "7", NOON, 1), attempt_id(ClusterId("c"), "7", NOON + timedelta(days=9), 0),
             attempt_id(ClusterId("d"), "7", NOON, 0), attempt_id(ClusterId("c"), "8", NOON, 0)}  # fmt: skip
    assert name not in later
    assert len(later) == 4


def test_a_recycled_job_id_is_another_job_and_a_requeue_is_not() -> None:
    track = new_track(JOB, RULES.choose(JOB), (), NOON)
    requeued = replace(JOB, restart_count=1, submit_at=NOON + timedelta(minutes=5))
    assert is_same_job(track, requeued)
    assert is_same_job(replace(track, restart_count=1), JOB), "rolled back by a fail-over"
    assert not is_same_job(track, replace(JOB, submit_at=NOON + timedelta(days=40)))
    assert not is_same_job(track, replace(requeued, uid="1001"))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("slurm-%j.out", "/home/ada/slurm-7.out"), ("/logs/%x-%u-%j.log", "/logs/train-ada-7.log"),
        ("logs/%A_%a.out", "/home/ada/logs/5_2.out"), ("/l/%5j.out", "/l/00007.out"), ("/l/%N/%n/%t", "/l/n1/0/0"),
        ("/l/100%%", "/l/100%"), ("/l/%q", "/l/%q"), ("/dev/null", None), ("", None), ("../x", "/home/x"),
        ("/l/\\%j", "/l/%j"),
    ],
)  # fmt: skip
def test_log_paths_are_filled_in(pattern: str, path: str | None) -> None:
    owner = LogOwner(job_id="7", name="train", user="ada", node="n1", work_dir="/home/ada", array_job="5", array_task=2)
    assert log_path(pattern, owner) == path


# ------------------------------------------------------------------ marks and slips

MARK = HoldMark(recommendation=RecommendationId("0f-1"), generation=2, restart_count=1, placed_at=NOON,
                until=NOON + timedelta(seconds=60))  # fmt: skip


@given(st.text(alphabet=st.characters(exclude_categories=("C", "Z")), max_size=30))
def test_a_mark_is_read_back_from_among_other_words(words: str) -> None:
    text = with_mark(f"{words} kept", MARK)
    assert read_mark(text) == MARK
    assert with_mark(with_mark(text, replace(MARK, state=MarkState.STOPPED)), None) == with_mark(f"{words} kept", None)


@pytest.mark.parametrize("text", ["", "relight:deciding/x", "xrelight:deciding/r/1/1/1/1", "relight:held/r/1/1/1/1",
                                  "relight:deciding/r/1/1/1/1/1", "relight:deciding/r/-1/1/1/1"])  # fmt: skip
def test_what_is_no_mark_is_not_read_as_one(text: str) -> None:
    assert read_mark(text) is None


def test_slips_last_and_can_be_taken_back(tmp_path: Path) -> None:
    slips = FolderOfSlips(tmp_path / "slips")
    slips.put("7", MARK)
    slips.put("8", MARK)
    slips.drop("8")
    slips.drop("9")
    (tmp_path / "slips" / "10.part").write_text("half")
    (tmp_path / "slips" / "11.hold").write_text("garbage")
    assert FolderOfSlips(tmp_path / "slips").all() == {"7": MARK}


def test_the_store_keeps_what_it_was_told_and_rolls_back_as_one(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "c.db"))
    store.put("pursuit", "a", {"x": 1})
    with pytest.raises(KeyError), store.together():
        store.drop("pursuit", "a")
        raise KeyError
    store.log("t", "a", "release", "intent", {})
    store.close()
    again = Store(str(tmp_path / "c.db"))
    assert again.get("pursuit", "a") == {"x": 1}
    assert [entry[2:4] for entry in again.entries("a")] == [("release", "intent")]
    again.close()


# ------------------------------------------------------------------ the command line

SINFO = "n1|gpu*|idle|none\n"


@dataclass
class Canned:
    """Answers in turn; an exception is raised."""

    answers: list[Answer | Exception]
    asked: list[list[str]] = field(default_factory=list)

    def run(self, argv: Sequence[str], timeout_s: float) -> Answer:
        self.asked.append(list(argv))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def ok(text: str = "") -> Answer:
    return Answer(code=0, out=text)


def no(text: str) -> Answer:
    return Answer(code=1, out="", err=text)


@pytest.mark.parametrize(
    "answer",
    [ok(""), ok("\x00\x01 garbage"), no("slurm_load_jobs error: Unable to contact slurm controller (connect failure)"),
     no(""), SchedulerUnreachable("no answer within 20 s")],
)  # fmt: skip
def test_squeue_failing_hanging_or_answering_nothing_is_blind_and_not_no_jobs(answer: Answer | Exception) -> None:
    slurm = SlurmCommandLine(runner=Canned([answer, ok(SINFO)]))
    reading = slurm.survey(NOON)
    assert reading.is_blind
    assert reading.why_blind
    one = SlurmCommandLine(runner=Canned([answer])).show("7", NOON)
    assert one.is_blind
    assert not one.is_absent


def test_an_absent_job_is_slurms_own_word() -> None:
    reading = SlurmCommandLine(runner=Canned([no("slurm_load_jobs error: Invalid job id specified")])).show("7", NOON)
    assert reading.is_absent


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Job is pending execution for job 7", RefusalCode.ALREADY_PENDING),
        ("Requested operation is presently disabled for job 7", RefusalCode.NOT_REQUEUEABLE),
        ("Only batch jobs are accepted or processed for job 7", RefusalCode.NOT_BATCH),
        ("Job is no longer pending execution for job 7", RefusalCode.NOT_PENDING),
        ("Job has already finished for job 7", RefusalCode.NOT_PENDING),
        ("Invalid node name specified for job 7", RefusalCode.INVALID_NODE),
        ("Access/permission denied for job 7", RefusalCode.DENIED),
        ("Invalid job id specified for job 7", RefusalCode.NOT_FOUND),
        ("a word of 2031", RefusalCode.OTHER),
    ],
)
def test_refusals_are_told_apart(said: str, code: RefusalCode) -> None:
    with pytest.raises(SchedulerRefused) as refused:
        SlurmCommandLine(runner=Canned([no(said)])).requeue_hold("7")
    assert refused.value.code is code


def test_a_slurmctld_that_is_away_has_not_refused() -> None:
    with pytest.raises(SchedulerUnreachable):
        SlurmCommandLine(runner=Canned([no("Unable to contact slurm controller (connect failure)")])).release("7")


def test_verbs_are_fixed_argument_lists() -> None:
    runner = Canned([ok()] * 7)
    slurm = SlurmCommandLine(runner=runner)
    slurm.requeue_hold("7")
    slurm.set_exclusions("7", [NodeName("n2"), NodeName("n1")])
    slurm.release("7")
    slurm.start_after("7", 0)
    slurm.start_after("7", 90)
    slurm.mark("7", "a b relight:x")
    slurm.cancel("7")
    assert runner.asked == [
        ["scontrol", "requeuehold", "7"],
        ["scontrol", "update", "JobId=7", "ExcNodeList=n[1-2]"],
        ["scontrol", "release", "7"],
        ["scontrol", "update", "JobId=7", "StartTime=now"],
        ["scontrol", "update", "JobId=7", "StartTime=now+90"],
        ["scontrol", "update", "JobId=7", "AdminComment=a b relight:x"],
        ["scancel", "7"],
    ]


@pytest.mark.parametrize("job_id", ["", "7;x", "--help", "7 8", "7_1", "99999999999"])
def test_what_is_no_job_id_never_reaches_slurm(job_id: str) -> None:
    runner = Canned([])
    with pytest.raises(SchedulerRefused):
        SlurmCommandLine(runner=runner).cancel(job_id)
    assert runner.asked == []


def test_ssh_pins_the_host_key_and_quotes_every_word() -> None:
    runner = SshRunner(host="login", user="relight", key_file="/k", known_hosts="/kh", control_path="/run/s")
    argv = runner.argv(["scontrol", "update", "JobId=7", "AdminComment=a b; reboot"])
    assert argv[:2] == ["ssh", "-F"]
    assert "StrictHostKeyChecking=yes" in argv
    assert "UserKnownHostsFile=/kh" in argv
    assert argv[-3:] == ["--", "login", "scontrol update JobId=7 'AdminComment=a b; reboot'"]
