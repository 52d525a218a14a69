# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Reloading rules: swapped whole, kept when the new set is faulty, patient with files that still move."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from relight.types import Stream
from rules.problems import RulesInvalid
from service.rules_store import RuleStore

SIGNATURE = """\
id: demo.{name}
title: Something is {name}
failure: gpu_fell_off_bus
role: root
streams: [application]
source: ['here']
does_not_prove: more than it says
match:
  any:
    - text: 'it is {name}'
tests:
  fires:
    - line: 'well, it is {name}'
  silent:
    - line: 'it is fine'
"""
LOST = SIGNATURE.format(name="lost")
GONE = SIGNATURE.format(name="gone")


class Folder:
    """Rule files whose next readings can be laid out in advance."""

    def __init__(self, **files: str) -> None:
        self.files: Mapping[str, str] = files
        self.coming: list[Mapping[str, str]] = []
        self.broken: OSError | None = None

    def __call__(self) -> Mapping[str, str]:
        if self.broken is not None:
            raise self.broken
        if self.coming:
            self.files = self.coming.pop(0)
        return dict(self.files)


def store(folder: Folder) -> RuleStore:
    return RuleStore(folder, ["gpu_fell_off_bus"])


def names(rules: RuleStore, line: bytes) -> list[str]:
    return [hit.name for hit in rules.current.signatures.match_line(line, Stream.APPLICATION)]


def test_a_reload_swaps_the_whole_set_and_the_old_one_still_serves_its_readers() -> None:
    folder = Folder(a=LOST)
    rules = store(folder)
    before = rules.current
    folder.files = {"a": GONE}
    outcome = rules.reload()
    assert (outcome.is_good, outcome.is_swapped, outcome.digest) == (True, True, rules.current.digest)
    assert names(rules, b"it is gone") == ["demo.gone"]
    assert names(rules, b"it is lost") == []
    assert [s.id for s in before.signatures.signatures] == ["demo.lost"]


@pytest.mark.parametrize(
    "faulty",
    [
        {"a": LOST, "b": "id: ["},
        {"a": LOST.replace("well, it is lost", "well, it is found")},
        {"a": LOST, "b": LOST},
        {},
    ],
)
def test_a_faulty_set_is_reported_and_the_last_good_one_stays(faulty: dict[str, str]) -> None:
    folder = Folder(a=LOST)
    rules = store(folder)
    before = rules.current
    folder.files = faulty
    outcome = rules.reload()
    assert outcome.problems
    assert (outcome.is_good, outcome.is_swapped, outcome.digest) == (False, False, before.digest)
    assert rules.current is before
    assert rules.last_reload is outcome


def test_a_mended_set_is_taken_after_a_faulty_one() -> None:
    folder = Folder(a=LOST)
    rules = store(folder)
    folder.files = {"a": "nonsense"}
    rules.reload()
    folder.files = {"a": GONE}
    assert rules.reload().is_good
    assert names(rules, b"it is gone") == ["demo.gone"]


def test_the_same_files_swap_nothing() -> None:
    rules = store(Folder(a=LOST))
    before = rules.current
    outcome = rules.reload()
    assert (outcome.is_good, outcome.is_swapped) == (True, False)
    assert rules.current is before


def test_half_a_change_is_read_again_until_two_readings_agree() -> None:
    folder = Folder(a=LOST)
    rules = store(folder)
    folder.coming = [{"a": LOST, "b": ""}, {"a": LOST, "b": GONE}, {"a": LOST, "b": GONE}]
    assert rules.reload().is_good
    assert len(rules.current.signatures.signatures) == 2


def test_files_that_never_stand_still_are_a_problem_and_not_half_a_set() -> None:
    folder = Folder(a=LOST)
    rules = store(folder)
    folder.coming = [{"a": LOST, "b": GONE + f"# {n}\n"} for n in range(20)]
    (problem,) = rules.reload().problems
    assert problem.what == "files change while they are read"
    assert names(rules, b"it is gone") == []


def test_an_unreadable_folder_is_a_problem_and_not_an_empty_set() -> None:
    folder = Folder(a=LOST)
    rules = store(folder)
    folder.broken = PermissionError(13, "Permission denied", "packs/a.yaml")
    (problem,) = rules.reload().problems
    assert (problem.file, problem.what) == ("packs/a.yaml", "Permission denied")
    assert names(rules, b"it is lost") == ["demo.lost"]


def test_without_a_first_good_set_there_is_no_store() -> None:
    with pytest.raises(RulesInvalid):
        store(Folder(a="nonsense"))


def test_the_digest_tells_apart_where_one_file_ends_and_the_next_begins() -> None:
    folder = Folder(a=LOST, b=GONE)
    first = store(folder).current.digest
    folder.files = {"a": LOST + "# x\n", "b": GONE}
    assert store(folder).current.digest != first
