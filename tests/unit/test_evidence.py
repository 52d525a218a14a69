# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Evidence out of one log: matches, tracebacks, repeats, and whether training went on."""

from __future__ import annotations

from detectors.evidence import LogEvidence, read_evidence
from detectors.log_text import read_log
from relight.types import NodeName, Role, Stream
from rules.match import RuleSet
from rules.schema import Signature


def signature(name: str, regex: str, failure: str, role: str = "root", **more: object) -> Signature:
    return Signature.model_validate(
        {
            "id": f"test.{name}", "title": name, "failure": failure, "role": role, "severity": "error",
            "streams": ["application", "kernel"], "source": ["here"], "does_not_prove": "anything",
            "match": {"any": [{"regex": regex}]},
            "tests": {"fires": [{"line": "x"}], "silent": [{"line": "y"}]}, **more,
        }
    )  # fmt: skip


SIGNATURES = RuleSet(
    [
        signature("oom", r"out of memory. Tried to allocate", "cuda_oom"),
        signature("port", r"Got async event : port error", "ib_port_error", "symptom"),
    ]
)
PROGRESS = RuleSet([signature("step", r"step=(?P<step>\d+)", "none", "benign", kind="progress", event="step")])


def read(text: str, node: NodeName | None = None) -> LogEvidence:
    return read_evidence(read_log("job.log", text.encode(), Stream.APPLICATION, node=node), SIGNATURES, PROGRESS)


def steps(first: int, last: int) -> str:
    return "".join(f"step={n} loss=2.0\n" for n in range(first, last + 1))


TRACEBACK = """Traceback (most recent call last):
  File "/srv/train.py", line 10, in main
    step()
ValueError: bad batch
"""


def test_a_match_carries_its_place_writer_and_words() -> None:
    (e,) = read("hello\n[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n").evidence
    assert (e.where.file, e.where.line, e.rank, e.failure) == ("job.log", 2, 3, "cuda_oom")
    assert "Tried to allocate" in e.text


def test_a_line_glued_to_a_progress_bar_still_names_its_rank() -> None:
    (e,) = read(
        " 33%|###   | 575/1725 [3:03<6:06, 19s/it[rank1]: CUDA out of memory. Tried to allocate 1 GiB\n"
    ).evidence
    assert e.rank == 1


def test_the_host_of_a_file_is_the_writer_where_the_line_names_none() -> None:
    (e,) = read("NET/IB : Got async event : port error\n", node=NodeName("n9")).evidence
    assert e.node == "n9"


def test_repeats_of_one_claim_are_counted_and_not_listed() -> None:
    (e,) = read("n1:1:2 [0] NET/IB : Got async event : port error\n" * 8).evidence
    assert e.count == 8


def test_a_traceback_without_a_signature_is_a_python_exception() -> None:
    (e,) = read(TRACEBACK).evidence
    assert (e.signature, e.failure, e.role, e.where.line) == (
        "python.exception",
        "python_exception",
        Role.ROOT,
        4,
    )
    assert e.title == "ValueError: bad batch"


def test_a_traceback_whose_message_a_signature_knows_is_that_failure_only() -> None:
    text = TRACEBACK.replace("ValueError: bad batch", "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB")
    assert [e.failure for e in read(text).evidence] == ["cuda_oom"]


def test_a_wrapping_exception_is_only_a_symptom() -> None:
    text = (
        TRACEBACK
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + TRACEBACK.replace("ValueError: bad batch", "RuntimeError: while stepping")
    )
    assert [(e.title, e.role) for e in read(text).evidence] == [
        ("ValueError: bad batch", Role.ROOT),
        ("RuntimeError: while stepping", Role.SYMPTOM),
    ]


def test_training_that_goes_on_survived_the_line() -> None:
    gone_on = read(steps(1, 5) + TRACEBACK + steps(6, 12)).evidence
    ended = read(steps(1, 5) + TRACEBACK).evidence
    assert [e.is_survived for e in (*gone_on, *ended)] == [True, False]


def test_one_more_step_of_another_rank_is_no_survival() -> None:
    (e,) = read(steps(1, 5) + TRACEBACK + steps(6, 6)).evidence
    assert not e.is_survived


def test_steps_before_a_line_are_known() -> None:
    (e,) = read(steps(100, 160) + TRACEBACK).evidence
    assert e.steps_before == 160


def test_a_traceback_cut_off_at_the_end_says_so() -> None:
    (e,) = read("\n".join(TRACEBACK.splitlines()[:3]) + "\n").evidence
    assert (e.signature, e.role) == ("python.traceback_cut", Role.CONFIRMATION)


def test_a_cut_traceback_inside_checkpoint_loading_is_a_failed_load() -> None:
    text = 'Traceback (most recent call last):\n  File "/srv/nemo/io.py", line 9, in load_checkpoint\n    x = load()\n'
    (e,) = read(text).evidence
    assert e.failure == "checkpoint_load_failed"


def test_lines_before_the_judged_attempt_are_left_out() -> None:
    log = read_log("job.log", (TRACEBACK + "quiet\n").encode(), Stream.APPLICATION)
    assert read_evidence(log, SIGNATURES, PROGRESS, first=4).evidence == []


def test_a_host_list_in_a_line_is_taken_apart() -> None:
    rules = RuleSet([signature("nodes", r"Node failure on (?P<nodes>\S+)", "node_failure", accuses="captured")])
    log = read_log("x", b"srun: error: Node failure on gpu-a[03-04],b7\n", Stream.APPLICATION)
    (e,) = read_evidence(log, rules, PROGRESS).evidence
    assert e.captures["nodes"] == "gpu-a03,gpu-a04,b7"
