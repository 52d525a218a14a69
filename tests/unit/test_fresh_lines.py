# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a program printed twice counts twice, what a sender sent twice counts once, whatever both look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from relight.types import AttemptId, LogLine, Rank, Stream
from service.dedup import SeenLately
from service.drafts import new_line
from service.fresh_lines import FreshLines

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
ONE, OTHER = AttemptId("a-1"), AttemptId("a-2")


def line(text: str, at: datetime | None = NOON, number: int = 0, attempt: AttemptId = ONE, rank: int = 0) -> LogLine:
    return LogLine(
        attempt=attempt, file="f", number=number, stream=Stream.APPLICATION, text=text, at=at, rank=Rank(rank)
    )


class Door:
    """What is remembered from batch to batch, and what got through."""

    def __init__(self) -> None:
        self.seen = SeenLately(timedelta(minutes=10), 100_000)
        self.numbers: dict[AttemptId, dict[str, int]] = {}
        self.taken: list[LogLine] = []

    def send(self, lines: Sequence[LogLine], batch: str) -> int:
        fresh = FreshLines(self.seen, self.numbers)
        fresh.take(lines, batch.encode())
        for key in fresh.keys:
            self.seen.add(key, NOON)
        for attempt, own in fresh.by_attempt.items():
            for one in own:
                files = self.numbers.setdefault(attempt, {})
                files[one.file] = max(one.number, files.get(one.file, 0))
            self.taken += own
        return fresh.count


def test_equal_lines_of_one_time_count_as_often_as_a_batch_holds_them() -> None:
    assert Door().send([line("NaN"), line("NaN"), line("NaN", rank=1)], "b") == 3


def test_the_batch_sent_again_adds_nothing_whole_or_in_parts() -> None:
    door, lines = Door(), [line("x"), line("x"), line("y")]
    assert door.send(lines, "b") == 3
    assert door.send(lines, "b") == 0
    assert door.send(lines[1:], "cut by the sender") == 0
    assert door.send([*lines, line("z")], "joined with the next") == 1


def test_a_third_one_is_new_where_two_were_known() -> None:
    door = Door()
    door.send([line("x"), line("x")], "b")
    assert door.send([line("x"), line("x"), line("x")], "c") == 1


def test_lines_without_number_and_time_are_known_by_their_batch_and_attempt() -> None:
    door = Door()
    bare = [line("x", at=None), line("x", at=None)]
    assert door.send(bare, "b") == 2
    assert door.send(bare, "b") == 0
    assert door.send(bare, "c") == 2
    assert door.send([line("x", at=None, attempt=OTHER)], "b") == 1, "what one attempt had, another did not"


def test_unnumbered_lines_get_the_numbers_in_which_they_came() -> None:
    door = Door()
    door.send([line("a", number=5), line("b"), line("c", at=None), line("d", number=6), line("e", number=9)], "b")
    assert [(one.text, one.number) for one in door.taken] == [("a", 5), ("b", 6), ("c", 7), ("e", 9)]


@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 2), st.integers(0, 1)), max_size=12),
    st.data(),
)
def test_any_cut_of_a_retry_leaves_what_the_largest_batch_held(
    printed: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    lines = [line(text, at=NOON + timedelta(seconds=at), rank=rank) for text, at, rank in printed]
    door = Door()
    door.send(lines, "whole")
    for retry in range(3):
        begin = data.draw(st.integers(0, len(lines)))
        end = data.draw(st.integers(begin, len(lines)))
        door.send(lines[begin:end], f"retry {retry}")
    said = Counter((one.text, one.at, one.rank) for one in door.taken)
    assert said == Counter((one.text, one.at, one.rank) for one in lines)


def test_a_line_made_quickly_is_the_same_line_and_as_frozen() -> None:
    quick = new_line(attempt=ONE, file="f", number=3, stream=Stream.APPLICATION, text="x", at=NOON, rank=Rank(2))
    slow = line("x", number=3, rank=2)
    assert (quick, hash(quick), type(quick), repr(quick)) == (slow, hash(slow), LogLine, repr(slow))
    try:
        quick.text = "y"  # type: ignore[misc]
    except AttributeError:
        return
    raise AssertionError("a line may not change")
