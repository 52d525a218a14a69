# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Reading taxonomy.yaml and policy.yaml, and what is said of their faults."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta

import pytest

from relight.policy import BackOff, BlackHole, Ceilings, Deadlines, Limits, PolicyEntry, PolicyTable, Terms
from relight.progress import UNCOUNTED
from relight.types import Action, FailureClass, FailureName, Mode
from rules.policy_table import load_policy, load_taxonomy
from rules.problems import RulesInvalid
from tests.unit.policy_cases import RULES, TABLE, TAXONOMY


def policy(text: str) -> PolicyTable:
    return load_policy("policy.yaml", "schema: 1\n" + text, TAXONOMY)


def faults(text: str) -> list[str]:
    with pytest.raises(RulesInvalid) as caught:
        policy(text)
    return [str(p) for p in caught.value.problems]


def test_every_failure_has_an_entry_and_keeps_the_word_of_the_taxonomy() -> None:
    assert set(TABLE.failures) == set(TAXONOMY)
    for name, failure in TAXONOMY.items():
        entry = TABLE.failures[name]
        assert (entry.action, entry.retries) == (failure.action, failure.retries)


def test_the_shipped_table_and_the_kernel_agree_on_what_counts_nothing() -> None:
    assert {n for n, e in TABLE.failures.items() if not e.counts} == UNCOUNTED


def test_the_shipped_figures_are_the_defaults_of_the_kernel() -> None:
    assert (TABLE.ceilings, TABLE.limits, TABLE.terms) == (Ceilings(), Limits(), Terms())
    assert (TABLE.black_hole, TABLE.deadlines, TABLE.back_off) == (BlackHole(), Deadlines(), BackOff())
    empty = policy("")
    assert (empty.ceilings, empty.limits, empty.terms) == (Ceilings(), Limits(), Terms())
    assert (empty.black_hole, empty.deadlines, empty.back_off) == (BlackHole(), Deadlines(), BackOff())


def test_the_shipped_file_explains_every_key_of_an_entry() -> None:
    text = (RULES / "policy.yaml").read_text("utf-8")
    for key in {f.name for f in fields(PolicyEntry)} - {"action", "retries"}:
        assert f"#   {key} " in text


def test_classes_go_over_the_taxonomy_and_failures_over_classes() -> None:
    table = policy("classes:\n  network: {retries: 0}\nfailures:\n  ib_port_error: {action: stop, retries: 3}\n")
    assert table.failures[FailureName("efa_error")].retries == 0
    entry = table.failures[FailureName("ib_port_error")]
    assert (entry.action, entry.retries) == (Action.STOP, 3)
    assert table.failures[FailureName("segfault")].retries == 1


def test_a_failure_that_the_table_does_not_know_follows_its_class_but_is_never_stopped() -> None:
    table = policy("classes:\n  network: {action: restart_excluding, retries: 1}\n  storage: {action: stop}\n")
    new = FailureName("invented")
    entry = table.entry(new, FailureClass.NETWORK)
    assert (entry.action, entry.retries) == (Action.RESTART_EXCLUDING, 1)
    assert table.entry(new, FailureClass.STORAGE).action is Action.RESTART


def test_settings_arrive() -> None:
    table = policy(
        "mode_caps: {stop: approve}\nexclusions: {ttl_h: 2, ttl_max_h: 8}\nlimits: {hourly_ratio: 0.5}\n"
        "back_off: {first_s: 10}\n"
    )
    assert table.mode_caps == {Action.STOP: Mode.APPROVE}
    assert table.terms.of(1) == timedelta(hours=4)
    assert table.limits.per_hour(10) == 5
    assert table.back_off.after(2) == 20


def test_the_version_is_that_of_the_text() -> None:
    assert policy("").version == policy("").version != policy("classes: {}\n").version


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "ceilings:\n  same_rot: 2\n",
            "policy.yaml:3:13 - ceilings.same_rot: unknown key 'same_rot', did you mean 'same_root'?",
        ),
        (
            "failures:\n  segfautl: {retries: 1}\n",
            "policy.yaml:3:13 - failures.segfautl: no failure is called 'segfautl', did you mean 'segfault'?",
        ),
        (
            "failures:\n  qqqq: {retries: 1}\n",
            "policy.yaml:3:9 - failures.qqqq: no failure is called 'qqqq', use a name of taxonomy.yaml",
        ),
        (
            "failures:\n  segfault:\n    retries: 4\n",
            "policy.yaml:4:14 - failures.segfault.retries: retries 4 exceed ceilings.same_root 3, "
            "use at most 3, or raise the ceiling",
        ),
        (
            "classes:\n  hardware: {retries: 5}\n",
            "policy.yaml:3:23 - classes.hardware.retries: retries 5 exceed ceilings.same_root 3, "
            "use at most 3, or raise the ceiling",
        ),
        (
            "failures:\n  segfault: {action: reboot}\n",
            "policy.yaml:3:22 - failures.segfault.action: 'reboot' is not allowed, use 'restart', "
            "'restart_excluding', 'stop', 'continue' or 'no_decision'",
        ),
        (
            "limits: {standing_ratio: 1.5}\n",
            "policy.yaml:2:26 - limits.standing_ratio: 1.5 is out of range, use a value less than or equal to 1",
        ),
        (
            "exclusions: {ttl_h: 48, ttl_max_h: 24}\n",
            "policy.yaml:2:21 - exclusions.ttl_h: ttl_h 48 is above ttl_max_h 24, lower it or raise ttl_max_h",
        ),
        (
            "deadlines: {decide_s: 500}\n",
            "policy.yaml:2:23 - deadlines.decide_s: decide_s 500 is above hard_s 240, lower it or raise hard_s",
        ),
        (
            "back_off: {first_s: 5000}\n",
            "policy.yaml:2:21 - back_off.first_s: first_s 5000 is above max_s 3600, lower it or raise max_s",
        ),
        (
            "failures:\n  Segfault: {}\n",
            "policy.yaml:3:13 - failures.Segfault: 'Segfault' is not a name, "
            "use lower-case letters, digits and underscores",
        ),
        (
            "failures:\n  segfault: {counts: no}\n",
            "policy.yaml:3:22 - failures.segfault.counts: unquoted 'no': YAML reads it as true or false, write 'no'",
        ),
    ],
)
def test_a_fault_is_named_with_its_place_and_the_way_out(text: str, said: str) -> None:
    assert said in faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "failures:\n  segfault: {retries: true}\n",
        "failures:\n  segfault: {counts: 1}\n",
        "limits: {hourly_nodes: 2.0}\n",
        "ceilings: {same_root: '3'}\n",
    ],
)
def test_a_value_of_another_kind_is_not_bent_into_shape(text: str) -> None:
    assert any("does not fit" in f for f in faults(text))


def test_every_fault_is_told_not_the_first() -> None:
    assert len(faults("limits: {nodes_per_decision: 99}\nfailures:\n  segfault: {action: x, retries: y}\n")) >= 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.yaml:1:1 - -: the file is empty"),
        ("- a\n", "p.yaml:1:1 - -: the file must be a mapping, start it with `schema: 1`"),
        ("schema: 2\n", "p.yaml:1:9 - schema: 2 is not allowed, use 1"),
        ("failures: {}\n", "p.yaml:1:1 - schema: 'schema' is missing, add it"),
        ("schema: 1\nfailures: [", "p.yaml:2:12"),
    ],
)
def test_a_file_that_is_no_policy_at_all_is_refused(text: str, said: str) -> None:
    with pytest.raises(RulesInvalid) as caught:
        load_policy("p.yaml", text, TAXONOMY)
    assert any(str(p).startswith(said) for p in caught.value.problems)


def test_a_taxonomy_explains_only_what_it_knows() -> None:
    entry = (
        "  {name}:\n    class: hardware\n    meaning: something breaks\n    action: restart\n"
        "    retries: 1\n    depth: 5\n    explains: [{explains}]\n"
    )
    good = "schema: 1\nfailures:\n" + entry.format(name="a_b", explains="a_b")
    assert load_taxonomy("t.yaml", good)[FailureName("a_b")].explains == ("a_b",)
    with pytest.raises(RulesInvalid, match=r"t\.yaml:9:16 .*no failure is called 'a_c', did you mean 'a_b'\?"):
        load_taxonomy("t.yaml", "schema: 1\nfailures:\n" + entry.format(name="a_b", explains="a_c"))


def test_a_failure_says_itself_whether_it_takes_a_place_waits_for_one_or_may_be_local() -> None:
    told = {
        flag: {str(name) for name, failure in TAXONOMY.items() if getattr(failure, flag)}
        for flag in ("takes_place", "waits_for_place", "may_be_local")
    }
    assert told["takes_place"] >= {"node_failure", "gpu_fell_off_bus", "gpu_missing", "node_not_responding"}
    assert told["waits_for_place"] == {"insufficient_gpu_capacity", "pod_evicted_by_taint"}
    assert told["may_be_local"] == {"input_missing", "python_exception"}
    assert not told["takes_place"] & told["waits_for_place"]


def test_a_flag_of_a_failure_is_true_or_false_and_nothing_that_resembles_it() -> None:
    text = (
        "schema: 1\nfailures:\n  a_b:\n    class: hardware\n    meaning: something breaks\n    action: restart\n"
        "    retries: 1\n    depth: 5\n    takes_place: 1\n"
    )
    with pytest.raises(RulesInvalid, match=r"t\.yaml:9:18 .*takes_place"):
        load_taxonomy("t.yaml", text)
