# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Work in the background: it fails, says so, and goes on; rules are read again once they stand still."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.ports import ProbeSays
from relight.types import AttemptId
from rules.checked import Checked
from rules.match import RuleSet
from service.adapters.rule_files import fingerprint
from service.adapters.state_file import StateFile
from service.chores import Chore, started
from service.config import ConfigError, Follow, Topology
from service.following import LagProbe, Status
from service.places import places_of
from service.plugins import SHIPPED, Group, Plugin, PluginError, build, load
from service.rule_watch import RuleWatch
from service.rules_store import RuleStore

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
JOB = AttemptId("a-1")


def after(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


# ------------------------------------------------------------------ chores


def test_a_chore_that_fails_says_why_and_is_tried_again() -> None:
    outcomes, failed = [True, False, True], list[str]()

    def do() -> None:
        if not outcomes.pop():
            raise OSError("disk full")

    chore = Chore("saving", 1, do, failed.append)
    troubles = []
    for _ in range(3):
        chore.once()
        troubles.append(chore.trouble)
    assert troubles == ["", "OSError('disk full')", ""]
    assert failed == ["saving"]


def test_chores_run_until_they_are_told_to_stop() -> None:
    stop, done = threading.Event(), threading.Event()
    (thread,) = started([Chore("looking", 0.001, done.set)], stop)
    assert done.wait(10)
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


# ------------------------------------------------------------------ rules that change


class Folder:
    """A rule folder in memory, compiled without its tests."""

    def __init__(self) -> None:
        self.texts = {"a.yaml": "one"}
        self.swaps, self.refusals = 0, 0
        self.store = RuleStore(lambda: dict(self.texts), (), self.compiled)
        self.watch = RuleWatch(self.store, lambda: str(self.texts), timedelta(seconds=2), self.swapped, self.refused)

    def compiled(self, texts: Mapping[str, str], _: object) -> Checked:
        if "broken" in texts.values():
            from rules.problems import Problem, RulesInvalid

            raise RulesInvalid((Problem(file="a.yaml", line=1, column=1, signature="-", key="-", what="x", fix="y"),))
        return Checked(signatures=())

    def swapped(self) -> None:
        self.swaps += 1

    def refused(self, _: object) -> None:
        self.refusals += 1


def test_a_change_is_taken_up_once_it_stands_still() -> None:
    folder = Folder()
    before = folder.store.current.digest
    assert folder.watch.look(after(0)) is None
    folder.texts["a.yaml"] = "tw"
    assert folder.watch.look(after(1)) is None
    folder.texts["a.yaml"] = "two"
    assert folder.watch.look(after(2)) is None
    assert folder.watch.look(after(3.5)) is None
    assert folder.watch.is_pending
    done = folder.watch.look(after(4))
    assert done is not None
    assert done.is_swapped
    assert (folder.swaps, folder.store.current.digest != before, folder.watch.is_pending) == (1, True, False)
    assert folder.watch.look(after(60)) is None


def test_a_faulty_change_leaves_the_last_good_set_in_force_until_it_is_mended() -> None:
    folder = Folder()
    good = folder.store.current
    folder.texts["a.yaml"] = "broken"
    folder.watch.look(after(0))
    folder.watch.look(after(5))
    assert (folder.refusals, folder.swaps, folder.store.current) == (1, 0, good)
    folder.texts["a.yaml"] = "mended"
    folder.watch.look(after(6))
    folder.watch.look(after(9))
    assert (folder.refusals, folder.swaps) == (1, 1)


def test_a_change_that_is_taken_back_in_time_is_none() -> None:
    folder = Folder()
    folder.texts["a.yaml"] = "two"
    folder.watch.look(after(0))
    folder.texts["a.yaml"] = "one"
    folder.watch.look(after(1))
    assert folder.watch.look(after(9)) is None
    assert not folder.watch.is_pending


def test_the_fingerprint_tells_a_changed_an_added_and_a_removed_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("one")
    seen = {fingerprint([tmp_path])}
    file.write_text("other")
    seen.add(fingerprint([tmp_path]))
    (tmp_path / "b.yaml").write_text("more")
    seen.add(fingerprint([tmp_path]))
    assert len(seen) == 3
    assert fingerprint([tmp_path]) in seen
    with pytest.raises(FileNotFoundError, match="nowhere"):
        fingerprint([tmp_path / "nowhere"])


# ------------------------------------------------------------------ the state of detectors


def test_what_detectors_learnt_is_kept_and_a_damaged_file_is_no_reason_not_to_start(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "state.json")
    assert file.load() == {}
    file.save({"hang": {"version": 1}})
    assert file.load() == {"hang": {"version": 1}}
    (tmp_path / "state.json").write_text('{"hang": ')
    assert file.load() == {}


# ------------------------------------------------------------------ lag


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (Status(), ProbeSays.UNKNOWN),
        (Status(at=after(-3), followed=frozenset({AttemptId("other")})), ProbeSays.UNKNOWN),
        (Status(at=after(-3), followed=frozenset({JOB})), ProbeSays.UNKNOWN),
        (Status(at=after(-11), followed=frozenset({JOB})), ProbeSays.HOLD),
        (Status(at=after(-3), lag_s=11, followed=frozenset({JOB})), ProbeSays.HOLD),
        (Status(at=after(-3), followed=frozenset({JOB}), blind={JOB: "stale handle"}), ProbeSays.HOLD),
    ],
    ids=["never looked", "not followed", "in time", "stuck", "behind", "unreadable"],
)
def test_silence_is_held_against_nobody_while_it_is_ours(status: Status, says: ProbeSays) -> None:
    assert LagProbe(lambda: status, Follow()).read(JOB, NOW).says is says


# ------------------------------------------------------------------ plugins are made by one convention


def plugin(make: object) -> Plugin:
    return Plugin(Group.DETECTORS, "mine", "here:Mine", "a site", make)  # type: ignore[arg-type]


def test_a_plugin_is_handed_what_it_names_and_its_options() -> None:
    def make(signatures: str, *, probes: tuple[str, ...], patience: float = 1.0) -> tuple[object, ...]:
        return (signatures, probes, patience)

    offered = {"signatures": "s", "progress": "p", "probes": ("lag",)}
    assert build(plugin(make), offered, {"patience": 0.5}) == ("s", ("lag",), 0.5)
    assert build(plugin(lambda: "bare"), offered) == "bare"


def test_an_unknown_option_an_unmet_need_and_a_refused_value_stop_the_start() -> None:
    def needy(weather: str) -> str:
        return weather

    with pytest.raises(PluginError, match=r"takes no option 'patience'; its options: none"):
        build(plugin(lambda: "bare"), {}, {"patience": 1})
    with pytest.raises(PluginError, match=r"'mine' needs weather; offered are taxonomy"):
        build(plugin(needy), {"taxonomy": {}})
    (hang,) = load(Group.DETECTORS, ["hang"])
    with pytest.raises(PluginError, match=r"'hang' can't be made: need 0 < patience <= 10, got 0"):
        build(hang, {"signatures": None, "probes": ()}, {"patience": 0})


def test_every_shipped_detector_can_be_made_from_what_is_offered() -> None:
    offered = {"signatures": RuleSet(()), "progress": RuleSet(()), "taxonomy": {}, "probes": (), "attributor": None}
    names = list(SHIPPED[Group.DETECTORS])
    assert [build(one, offered).name for one in load(Group.DETECTORS, names)] == names


# ------------------------------------------------------------------ places


def test_host_lists_become_places_and_contradictions_are_errors() -> None:
    places = places_of(Topology(racks={"r1": ("n[1-2]", "n9"), "r2": ("n3",)}, domains={"d": ("n[1-3]",)}))
    assert places.racks == {"n1": "r1", "n2": "r1", "n9": "r1", "n3": "r2"}
    assert set(places.domains.values()) == {"d"}
    with pytest.raises(ConfigError, match=r"n2 is in both 'r1' and 'r2'"):
        places_of(Topology(racks={"r1": ("n[1-2]",), "r2": ("n2",)}))
    with pytest.raises(ConfigError, match=r"topology\.racks\.r1 = 'n\[1-' is no host list"):
        places_of(Topology(racks={"r1": ("n[1-",)}))
