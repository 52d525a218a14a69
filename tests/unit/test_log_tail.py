# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Following logs: what is delivered, in which order, over rotation, truncation, crashes and hostile paths."""

from __future__ import annotations

import gzip
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.types import AttemptId, LogLine, NodeName, Rank, Stream
from service.adapters.log_cursor import Cursor, CursorStore, CursorsUnreadable
from service.adapters.log_pieces import MAX_LINE_BYTES, SPLIT_MARK, lines_of
from service.adapters.log_roots import LogRoots, PathRefused
from service.adapters.log_tail import Followed, LogTail

T0 = datetime(2026, 1, 2, tzinfo=UTC)
JOB = AttemptId("job.0")


class Receiver:
    """Knows a line by its file and number, as the service does; may fail before or after it is durable."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int], str] = {}
        self.batches: list[list[LogLine]] = []
        self.fails_before = 0
        self.fails_after = 0

    def __call__(self, attempt: AttemptId, lines: Sequence[LogLine]) -> None:
        if self.fails_before:
            self.fails_before -= 1
            raise OSError("disk full")
        self.batches.append(list(lines))
        for line in lines:
            self.lines.setdefault((line.file, line.number), line.text)
        if self.fails_after:
            self.fails_after -= 1
            raise OSError("killed after the write")

    @property
    def texts(self) -> list[str]:
        return [text for _, text in sorted(self.lines.items())]


class Site:
    """A log folder, a cursor file and a clock."""

    def __init__(self, folder: Path) -> None:
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.log = self.logs / "job.out"
        self.store = CursorStore(folder / "cursors.json")
        self.receiver = Receiver()
        self.now = T0
        self.bytes_per_tick = 1 << 20
        self.start()

    def start(self) -> None:
        """As after a crash: nothing is known but the cursor file."""
        self.tail = LogTail(LogRoots([self.logs]), self.store, self.receiver, bytes_per_tick=self.bytes_per_tick)
        self.tail.follow(Followed(attempt=JOB, path=str(self.log), rank=Rank(3), node=NodeName("n1")))

    def write(self, data: bytes, path: Path | None = None) -> None:
        with (path or self.log).open("ab") as out:
            out.write(data)

    def tick(self, after_s: float = 2.0) -> list[str]:
        self.now += timedelta(seconds=after_s)
        self.tail.tick(self.now)
        return self.receiver.texts


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_lines_come_once_numbered_with_their_writer(site: Site) -> None:
    site.write(b"one\ntwo\n")
    site.tick()
    site.write(b"three\n")
    assert site.tick() == ["one", "two", "three"]
    site.tick()
    (first, second) = site.receiver.batches
    assert [(line.number, line.rank, line.node) for line in first + second] == [(n, 3, "n1") for n in (1, 2, 3)]


def test_a_file_that_does_not_exist_yet_is_waited_for(site: Site) -> None:
    assert site.tick() == []
    assert site.tail.troubles == {str(site.log): "not there"}
    site.write(b"begun\n")
    assert site.tick() == ["begun"]
    assert site.tail.troubles == {}


def test_a_partial_line_waits_for_its_end(site: Site) -> None:
    site.write(b"one\ntw")
    assert site.tick() == ["one"]
    site.write(b"o\r\n")
    assert site.tick() == ["one", "two"]


def test_a_line_without_an_end_comes_after_a_while(site: Site) -> None:
    site.write(b"Killed")
    assert site.tick() == []
    assert site.tick(after_s=40) == ["Killed"]


def test_rewrites_of_a_bar_show_progress_without_a_line_end(site: Site) -> None:
    site.write(b"\r 10%|#  | 10/100 [00:10<01:30, 1.0it/s]\r 11%|#  | 11/100 [00:11<01:29, 1.0it/s]\r")
    site.write(b" 12%|#  | 12/100")
    assert site.tick() == [" 11%|#  | 11/100 [00:11<01:29, 1.0it/s]"]
    site.write(b" [00:12<01:28, 1.0it/s]\r[rank1]:[E ProcessGroupNCCL.cpp:523] boom\n")
    assert site.tick()[-1] == "[rank1]:[E ProcessGroupNCCL.cpp:523] boom"
    assert len(site.receiver.texts) == 3


def test_rewrites_that_say_something_else_are_kept() -> None:
    pieces, used = lines_of(b"loading\r 1%| 1/9\r 2%| 2/9\rRuntimeError: x\n", is_complete=False)
    assert pieces == [b"loading", b" 2%| 2/9", b"RuntimeError: x"]
    assert used == 42


def test_a_renamed_file_is_read_to_its_end_before_the_new_one(site: Site) -> None:
    site.write(b"one\n")
    site.tick()
    site.write(b"two\nlast without end")
    site.log.rename(site.logs / "job.out.1")
    site.write(b"three\n")
    site.tick()
    assert site.tick() == ["one", "two", "last without end", "three"]


def test_a_rotated_file_that_was_packed_meanwhile_is_read_on(site: Site) -> None:
    site.write(b"one\ntwo\n")
    site.tick()
    whole = site.log.read_bytes() + b"three\n"
    (site.logs / "job.out.1.gz").write_bytes(gzip.compress(whole))
    site.log.unlink()
    site.write(b"four, of a new file\n")
    site.tick()
    assert site.tick() == ["one", "two", "three", "four, of a new file"]


def test_a_truncated_file_is_read_from_its_beginning_and_numbers_go_on(site: Site) -> None:
    site.write(b"one\ntwo\n")
    site.tick()
    site.log.write_bytes(b"new\n")
    assert site.tick() == ["one", "two", "new"]
    assert site.receiver.batches[-1][0].number == 3


def test_a_file_copied_over_in_place_is_known_by_its_head(site: Site) -> None:
    site.write(b"first run\nof the job\n")
    site.tick()
    site.log.write_bytes(b"second run, which is longer than the first\n")
    assert site.tick()[-1] == "second run, which is longer than the first"


def test_a_gzip_log_is_followed_while_members_are_added(site: Site) -> None:
    site.write(gzip.compress(b"one\ntwo\n"))
    assert site.tick() == ["one", "two"]
    site.write(gzip.compress(b"three\n"))
    assert site.tick() == ["one", "two", "three"]


def test_damaged_gzip_yields_what_could_be_read(site: Site) -> None:
    site.write(gzip.compress(b"one\ntwo\n" * 1000)[:-12])
    assert site.tick()[:2] == ["one", "two"]


def test_a_tick_reads_no_more_than_its_share_and_says_that_more_waits(site: Site) -> None:
    site.bytes_per_tick = 100
    site.start()
    site.write(b"".join(b"line %03d\n" % n for n in range(100)))
    assert len(site.tick()) == 11
    assert site.tail.lag_s(site.now + timedelta(seconds=30)) == 30.0
    for _ in range(12):
        site.tick()
    assert len(site.receiver.texts) == 100
    assert site.tail.lag_s(site.now + timedelta(seconds=30)) == 0.0


def test_a_line_beyond_measure_comes_in_marked_parts() -> None:
    pieces, _ = lines_of(b"x" * (MAX_LINE_BYTES + 5) + b"\nshort\n", is_complete=False)
    assert [len(p) for p in pieces] == [MAX_LINE_BYTES + len(SPLIT_MARK), 5, 5]
    assert pieces[0].endswith(SPLIT_MARK)


def test_bytes_that_a_file_system_has_not_shown_yet_are_waited_for() -> None:
    assert lines_of(b"one\n" + b"\0" * 20 + b"\nthree\n", is_complete=False) == ([b"one"], 4)


# ------------------------------------------------------------------ crashes


def test_a_restart_goes_on_where_the_last_durable_batch_ended(site: Site) -> None:
    site.write(b"one\n")
    site.tick()
    site.start()
    site.write(b"two\n")
    assert site.tick() == ["one", "two"]
    assert sum(map(len, site.receiver.batches)) == 2


@pytest.mark.parametrize("when", ["fails_before", "fails_after"])
def test_a_crash_in_the_middle_neither_loses_nor_doubles_a_line(site: Site, when: str) -> None:
    site.write(b"one\n\r 1%| 1/9\r 2%| 2/9\rtw")
    setattr(site.receiver, when, 1)
    with pytest.raises(OSError, match=r"disk full|killed"):
        site.tick(after_s=40)
    site.write(b"o\nthree\n")
    site.start()
    site.tick()
    texts = site.tick()
    assert texts[0] == "one"
    assert texts[-2:] == ["two", "three"] or texts[-3:] == ["tw", "o", "three"]
    assert len(site.receiver.lines) == len(texts)


def test_a_failed_delivery_is_tried_again_with_the_same_lines(site: Site) -> None:
    site.write(b"one\ntwo")
    site.receiver.fails_after = 1
    with pytest.raises(OSError, match="killed"):
        site.tick()
    site.write(b" and more\nthree\n")
    site.tick()
    assert site.tick() == ["one", "two and more", "three"]


def test_a_rotation_while_we_were_down_loses_nothing(site: Site) -> None:
    site.write(b"one\n")
    site.tick()
    site.write(b"two\n")
    site.log.rename(site.logs / "job.out.1")
    site.write(b"three\n")
    site.start()
    site.tick()
    assert site.tick() == ["one", "two", "three"]


def test_a_damaged_cursor_file_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "cursors.json"
    path.write_text('{"version": 7, "cursors": []}')
    with pytest.raises(CursorsUnreadable, match=r"cursors\.json: version 7"):
        CursorStore(path).load()


def test_cursors_survive_as_they_were(tmp_path: Path) -> None:
    store = CursorStore(tmp_path / "c.json")
    cursor = Cursor(path="/l/a", device=1, inode=2, head="h", head_bytes=3, offset=4, number=5, pending=6)
    store.save([cursor])
    assert list(store.load().values()) == [cursor]


def test_finished_attempts_leave_nothing_behind(site: Site) -> None:
    site.write(b"one\n")
    site.tick()
    site.tail.unfollow(JOB)
    assert site.store.load() == {}
    site.write(b"two\n")
    assert site.tick() == ["one"]


# ------------------------------------------------------------------ hostile paths


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "{logs}/../secret", "relative.log", "{logs}", "{logs}x/job.out", "{logs}/a\0b"]
)
def test_paths_outside_of_the_allowed_folders_are_refused(site: Site, path: str) -> None:
    with pytest.raises(PathRefused):
        site.tail.follow(Followed(attempt=JOB, path=path.format(logs=site.logs)))


def test_a_link_is_not_followed_wherever_it_stands(site: Site, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "job.out").write_text("secret\n")
    (site.logs / "inner").symlink_to(secret)
    (site.logs / "direct").symlink_to(secret / "job.out")
    roots = LogRoots([site.logs])
    for path in ("inner/job.out", "direct"):
        with pytest.raises(PathRefused, match="symbolic link"):
            roots.open(str(site.logs / path))


def test_a_log_that_is_swapped_for_a_link_is_no_longer_read(site: Site, tmp_path: Path) -> None:
    site.write(b"one\n")
    site.tick()
    (tmp_path / "secret").write_text("one\nsecret\n")
    site.log.unlink()
    site.log.symlink_to(tmp_path / "secret")
    assert site.tick() == ["one"]
    assert "symbolic link" in site.tail.troubles[str(site.log)]


def test_pipes_and_folders_are_no_logs(site: Site) -> None:
    os.mkfifo(site.logs / "pipe")
    (site.logs / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(PathRefused, match="no regular file"):
            LogRoots([site.logs]).open(str(site.logs / name))


def test_roots_must_be_named_and_absolute() -> None:
    with pytest.raises(ValueError, match="no allowed log folder"):
        LogRoots([])
    with pytest.raises(ValueError, match="relative"):
        LogRoots([Path("logs")])


def test_kernel_logs_keep_their_stream(site: Site) -> None:
    kernel = site.logs / "dmesg.txt"
    site.tail.follow(Followed(attempt=JOB, path=str(kernel), stream=Stream.KERNEL))
    site.write(b"NVRM: Xid (PCI:0000:1a:00): 79\n", kernel)
    site.tick()
    assert site.receiver.batches[0][0].stream is Stream.KERNEL
