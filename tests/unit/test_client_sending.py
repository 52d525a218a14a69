# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How a rank's signals reach the service, or a file, when either fails; time is virtual in the sender."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from relight.client.__main__ import main as send_files
from relight.client.sender import Sender
from relight.client.settings import Settings
from relight.client.signals import Counts, Said, SignalQueue
from relight.client.sinks import FileSink, HttpSink, NotDelivered, Receipt, Refused


class Scripted:
    """A sink that answers as it is told, then takes everything."""

    def __init__(self, *answers: Receipt | Exception) -> None:
        self.answers = list(answers)
        self.batches: list[list[str]] = []

    def deliver(self, items: Sequence[str]) -> Receipt:
        self.batches.append(list(items))
        answer = self.answers.pop(0) if self.answers else Receipt()
        if isinstance(answer, Exception):
            raise answer
        return answer


class Bench:
    """A sender without its thread, whose clock is turned by hand."""

    def __init__(self, sink: Scripted, signals: int = 0) -> None:
        self.now, self.counts, self.sink = 0.0, Counts(), sink
        settings = Settings(attempt="a", url="http://h", batch=10)
        self.queue = SignalQueue(100, self.counts)
        self.sender = Sender(settings, sink, self.queue, self.counts, lambda: None, clock=lambda: self.now)
        for _ in range(signals):
            self.queue.put(Said("heartbeat", 0.0, {"rank": 0}))

    def turn(self, after_s: float = 0.0) -> None:
        self.now += after_s
        self.sender.turn()


def test_a_batch_that_failed_is_sent_again_with_the_same_keys() -> None:
    bench = Bench(Scripted(NotDelivered("down")), signals=3)
    bench.turn()
    bench.turn(60)
    first, second = bench.sink.batches
    assert first == second
    assert (bench.counts.sent, bench.counts.errors, bench.counts.dropped) == (3, 1, 0)


def test_a_failing_service_is_given_longer_and_longer_rests() -> None:
    bench = Bench(Scripted(*[NotDelivered("down")] * 1_000), signals=1)
    for _ in range(3_600):
        bench.turn(1)
    assert 3_600 / 60 <= len(bench.sink.batches) < 3_600 / 20


def test_the_service_says_when_to_come_back() -> None:
    bench = Bench(Scripted(NotDelivered("busy", retry_after_s=100)), signals=1)
    bench.turn()
    bench.turn(49)
    assert len(bench.sink.batches) == 1
    bench.turn(52)
    assert bench.counts.sent == 1


def test_a_refused_batch_does_not_block_the_next() -> None:
    bench = Bench(Scripted(Refused("400")), signals=15)
    bench.turn()
    assert (bench.counts.refused, bench.counts.sent) == (10, 5)


def test_signals_of_an_attempt_that_is_not_yet_known_are_sent_again_and_faulty_ones_are_not() -> None:
    answer = Receipt({0: "unknown attempt 'a': PUT it first", 1: "/rank: Input should be a valid integer"})
    bench = Bench(Scripted(answer), signals=3)
    bench.turn()
    bench.turn(60)
    assert bench.sink.batches[1] == bench.sink.batches[0][:1]
    assert (bench.counts.sent, bench.counts.refused) == (2, 1)


def test_an_attempt_that_never_becomes_known_is_given_up() -> None:
    bench = Bench(Scripted(*[Receipt({0: "unknown attempt 'a'"})] * 1_000), signals=1)
    for _ in range(100):
        bench.turn(60)
    assert bench.counts.refused == 1
    assert len(bench.sink.batches) < 30


# ------------------------------------------------------------------ over HTTP


class Service(BaseHTTPRequestHandler):
    """Answers each request with the next of `answers`: a status and a body."""

    answers: ClassVar[list[tuple[int, dict[str, str], bytes]]] = []
    seen: ClassVar[list[tuple[str, str | None, Any]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).seen.append((self.path, self.headers["Authorization"], json.loads(body)))
        status, headers, answer = type(self).answers.pop(0)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def service(*answers: tuple[int, dict[str, str], bytes]) -> Iterator[tuple[str, type[Service]]]:
    class Fresh(Service):
        pass

    Fresh.answers, Fresh.seen = list(answers), []
    server = HTTPServer(("127.0.0.1", 0), Fresh)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", Fresh
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def results(*statuses: str) -> bytes:
    told = [{"index": i, "status": status, "detail": "why"} for i, status in enumerate(statuses)]
    return json.dumps({"results": told}).encode()


def test_a_batch_is_posted_with_the_token_of_the_moment(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with service((200, {}, results("accepted", "failed", "duplicate")), (200, {}, results("accepted"))) as (url, seen):
        sink = HttpSink(url, token, "c1", 5)
        token.write_text("rlt_ingester_1\n")
        assert sink.deliver(['{"a":1}', '{"a":2}', '{"a":3}']) == Receipt({1: "why"})
        token.write_text("rlt_ingester_2\n")
        sink.deliver(['{"a":4}'])
    assert seen.seen == [
        ("/v1/signals", "Bearer rlt_ingester_1", {"cluster_id": "c1", "signals": [{"a": 1}, {"a": 2}, {"a": 3}]}),
        ("/v1/signals", "Bearer rlt_ingester_2", {"cluster_id": "c1", "signals": [{"a": 4}]}),
    ]


@pytest.mark.parametrize("status", [401, 403, 408, 429, 500, 502, 503, 302])
def test_these_answers_mean_try_again(status: int) -> None:
    headers = {"Retry-After": "7", "Location": "http://127.0.0.1:1/elsewhere"}
    with service((status, headers, b"")) as (url, _), pytest.raises(NotDelivered) as why:
        HttpSink(url, None, None, 5).deliver(["{}"])
    assert why.value.retry_after_s == 7


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_these_answers_mean_never_again(status: int) -> None:
    with service((status, {}, b"")) as (url, _), pytest.raises(Refused, match=str(status)):
        HttpSink(url, None, None, 5).deliver(["{}"])


@pytest.mark.parametrize("body", [b"<html>log in</html>", b"[]", b'{"results": 3}', b""])
def test_an_answer_that_is_none_of_ours_is_no_delivery(body: bytes) -> None:
    with service((200, {}, body)) as (url, _), pytest.raises(NotDelivered):
        HttpSink(url, None, None, 5).deliver(["{}"])


def test_nobody_at_home_and_a_missing_token_are_no_delivery(tmp_path: Path) -> None:
    with pytest.raises(NotDelivered, match=r"127\.0\.0\.1:1"):
        HttpSink("http://127.0.0.1:1", None, None, 5).deliver(["{}"])
    with pytest.raises(NotDelivered, match="no-token"):
        HttpSink("http://127.0.0.1:1", tmp_path / "no-token", None, 5).deliver(["{}"])


# ------------------------------------------------------------------ to a file


def test_a_file_takes_whole_lines_and_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "signals.ndjson"
    sink = FileSink(path, max_bytes=30)
    for number in range(10):
        sink.deliver([f'{{"number":{number}}}'])
    kept = [file.read_text() for file in (path.with_name("signals.ndjson.1"), path) if file.exists()]
    assert "".join(kept).endswith('{"number":9}\n')
    assert sum(map(len, kept)) <= 2 * (30 + 13)


def test_a_full_disk_is_no_delivery() -> None:
    with pytest.raises(NotDelivered, match="No space left"):
        FileSink(Path("/dev/full"), 1_000).deliver(["{}"])


def test_a_file_is_sent_later_by_its_whole_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "signals"
    file.write_text('{"a":1}\n{"a":2}\n{"a":')
    with service((200, {}, results("accepted", "failed"))) as (url, seen):
        assert send_files([str(file), "--url", url]) == 1
    assert [said for _, _, said in seen.seen] == [{"signals": [{"a": 1}, {"a": 2}]}]
    assert capsys.readouterr().out == "1 signals sent, 1 failed\n"
    assert send_files([str(file), "--url", "http://127.0.0.1:1"]) == 4
