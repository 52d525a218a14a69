# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Messages: at least once over restarts, in order, signed, given up after a day, and nowhere they may not go."""

from __future__ import annotations

import hashlib
import hmac
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relight.events import DetectorFailed, Event, IncidentAdvanced, IncidentOpened, RecommendationIssued
from relight.testing.audit import MemoryAuditLog
from relight.trace_ids import traceparent
from relight.types import (
    Action,
    AttemptId,
    ClusterId,
    EvidenceStatus,
    Exclusion,
    FailureClass,
    FailureName,
    IncidentId,
    Mode,
    NodeName,
    RecommendationId,
    WorkloadId,
)
from service.adapters.http_post import Poster
from service.adapters.notify_keeping import FileKeeping, KeepingUnreadable
from service.config import ConfigError, Notify, NotifyChannel
from service.notify.channels import SIGNATURE, Alertmanager, PagerDuty, Post, Slack, Webhook
from service.notify.dispatch import Dispatcher
from service.notify.making import make_channels
from service.notify.notice import Notice, Urgency, notice_of
from service.notify.outbox import GIVEN_UP_AFTER, Outbox, Reply
from tests.api.running import START, Service

DELIVERED = Reply(is_delivered=True)
DOWN = Reply(is_delivered=False, why="down")


def opened(name: str = "i-1", summary: str = "a GPU fell off the bus") -> IncidentOpened:
    return IncidentOpened(at=START, incident=IncidentId(name), attempt=AttemptId("a-1"), onset_at=START,
                          workload=WorkloadId("llm-7b"), cluster=ClusterId("east"), summary=summary)  # fmt: skip


def closed(name: str = "i-1") -> IncidentAdvanced:
    return IncidentAdvanced(at=START + timedelta(minutes=5), incident=IncidentId(name), previous="OPEN",
                            state="CLOSED_RECOVERED", reason="recovered", workload=WorkloadId("llm-7b"), cluster=ClusterId("east"))  # fmt: skip


def advice(**over: Any) -> RecommendationIssued:
    node = Exclusion(node=NodeName("n2"), reason="Xid 79", score=1.0, expires_at=START)
    said: dict[str, Any] = {
        "at": START, "recommendation": RecommendationId("r-1"), "attempt": AttemptId("a-1"), "generation": 1,
        "action": Action.RESTART_EXCLUDING, "mode": Mode.APPROVE, "is_actionable": False,
        "failure": FailureName("gpu_fell_off_bus"), "failure_class": FailureClass.HARDWARE,
        "evidence_status": EvidenceStatus.ESTABLISHED, "decide_deadline": START + timedelta(minutes=2),
        "expires_at": START + timedelta(minutes=15), "exclusions": (node,), "blocked_by": ("awaiting_approval",),
        "incident": IncidentId("i-1"), "workload": WorkloadId("llm-7b"),
    }  # fmt: skip
    return RecommendationIssued(**(said | over))


def notice(event: Event, position: int = 1) -> Notice:
    found = notice_of(position, event)
    assert found is not None
    return found


@dataclass
class Receiver:
    """A place to send to that answers as it is told."""

    replies: list[Reply] = field(default_factory=list)
    got: list[Post] = field(default_factory=list)

    def __call__(self, post: Post) -> Reply:
        self.got.append(post)
        return self.replies.pop(0) if self.replies else DELIVERED

    def titles(self) -> list[str]:
        return [json.loads(post.body)["data"]["title"] for post in self.got]


def dispatcher(audit: MemoryAuditLog, receiver: Receiver, folder: Path, **over: Any) -> Dispatcher:
    return Dispatcher(
        channel=Webhook(name="hook", url="https://example.org/x"), audit=audit,
        keeping=FileKeeping(folder / "notify.json"), send=receiver, told=lambda *_: None, **over,
    )  # fmt: skip


# ------------------------------------------------------------------ what is said


def test_an_approval_is_asked_for_with_its_deadline_and_its_default() -> None:
    said = notice(advice())
    assert said.title == "approve? llm-7b: restart_excluding without n2, since gpu_fell_off_bus"
    assert said.answer_by == START + timedelta(minutes=15)
    assert said.default == (
        "No answer until 12:15:00 UTC is a no: normal scheduling goes on. "
        "A job that is held for it waits until 12:02:00 UTC only."
    )
    assert notice(advice(blocked_by=())).default == ""


def test_what_asks_for_nobody_is_not_said() -> None:
    assert notice_of(1, advice(action=Action.NO_DECISION)) is None
    assert notice_of(1, DetectorFailed(at=START, detector="hang", error="x", failures=3)) is None
    assert (
        notice_of(1, IncidentAdvanced(at=START, incident=IncidentId("i"), previous="OPEN", state="RECOMMENDED")) is None
    )


def test_words_of_a_log_drive_neither_terminal_nor_chat() -> None:
    said = notice(opened(summary="\x1b[2J<!channel> & <https://evil|click>\u202e"))
    post = Slack(name="s", url="https://x").post(said, START)
    assert post is not None
    text = json.loads(post.body)["blocks"][0]["text"]["text"]
    assert "\x1b" not in text and "\u202e" not in text and "<!channel>" not in text and "<https" not in text
    assert "&lt;!channel&gt; &amp;" in text


def test_a_webhook_is_a_cloudevent_whose_signature_can_be_checked() -> None:
    post = Webhook(name="w", url="https://x", secret=b"s3cret", console="https://relight/").post(
        notice(advice()), START
    )
    assert post is not None
    said = json.loads(post.body)
    assert (said["specversion"], said["id"], said["type"]) == ("1.0", "1", "relight.recommendation.issued")
    assert said["data"]["link"] == "https://relight/console/incidents/i-1"
    assert said["traceparent"] == post.headers["traceparent"] == traceparent(IncidentId("i-1"))
    assert said["data"]["answer_by"] == "2026-11-02T12:15:00+00:00"
    seconds, made = (part.partition("=")[2] for part in post.headers[SIGNATURE].split(","))
    assert int(seconds) == int(START.timestamp())
    assert made == hmac.new(b"s3cret", f"{seconds}.".encode() + post.body, hashlib.sha256).hexdigest()


def test_pagerduty_opens_and_resolves_one_alert_for_a_matter() -> None:
    channel = PagerDuty(name="p", routing_key="k" * 32)
    first, last = (json.loads(channel.post(notice(one), START).body) for one in (opened(), closed()))  # type: ignore[union-attr]
    assert (first["event_action"], last["event_action"]) == ("trigger", "resolve")
    assert first["dedup_key"] == last["dedup_key"] == "relight/incident/i-1"
    assert first["payload"]["severity"] == "error" and "payload" not in last
    long = json.loads(channel.post(notice(opened("i" * 400)), START).body)  # type: ignore[union-attr]
    assert len(long["dedup_key"]) <= 255


def test_alertmanager_gets_the_end_of_the_very_alert_that_began() -> None:
    channel = Alertmanager(name="a", url="http://am:9093/")
    first, last = (json.loads(channel.post(notice(one), START).body)[0] for one in (opened(), closed()))  # type: ignore[union-attr]
    assert first["labels"] == last["labels"]
    assert first["endsAt"] == (START + timedelta(hours=4)).isoformat()
    assert last["endsAt"] == (START + timedelta(minutes=5)).isoformat() > last["startsAt"]
    assert channel.post(notice(opened()), START).url == "http://am:9093/api/v2/alerts"  # type: ignore[union-attr]


# ------------------------------------------------------------------ how it is delivered


def test_a_message_is_sent_once_when_all_is_well(tmp_path: Path) -> None:
    audit, receiver = MemoryAuditLog(), Receiver()
    sender = dispatcher(audit, receiver, tmp_path)
    audit.append([opened(), closed()])
    assert [sender.look(START) for _ in range(3)] == [2, 0, 0]


def test_what_was_recorded_while_the_service_was_down_is_told_after_a_restart(tmp_path: Path) -> None:
    audit, receiver = MemoryAuditLog(), Receiver()
    audit.append([opened("i-0")])
    dispatcher(audit, receiver, tmp_path).look(START)  # a new channel begins with what comes from now on
    audit.append([opened("i-1", "one")])
    dispatcher(audit, receiver, tmp_path).look(START)
    dispatcher(audit, receiver, tmp_path).look(START)
    assert receiver.titles() == ["llm-7b: one"]


def test_what_waits_for_a_retry_survives_a_restart(tmp_path: Path) -> None:
    audit, receiver = MemoryAuditLog(), Receiver([DOWN])
    sender = dispatcher(audit, receiver, tmp_path)
    audit.append([opened("i-1", "one"), opened("i-2", "two")])
    sender.look(START)
    dispatcher(audit, receiver, tmp_path).look(START + timedelta(seconds=1))
    assert receiver.titles() == ["llm-7b: one", "llm-7b: two", "llm-7b: one", "llm-7b: two"]  # at least once


def test_retries_wait_ever_longer_and_a_matters_messages_keep_their_order(tmp_path: Path) -> None:
    audit, receiver = MemoryAuditLog(), Receiver([DOWN, DELIVERED, DOWN])
    sender = dispatcher(audit, receiver, tmp_path)
    audit.append([opened("i-1", "one"), closed("i-1"), opened("i-2", "two")])
    sender.look(START)
    assert receiver.titles() == ["llm-7b: one", "llm-7b: two"]
    sender.look(START + timedelta(seconds=1))
    assert len(receiver.got) == 2
    sender.look(START + timedelta(seconds=3))
    sender.look(START + timedelta(seconds=5))
    assert len(receiver.got) == 3
    sender.look(START + timedelta(seconds=9))
    assert receiver.titles()[-2:] == ["llm-7b: one", "llm-7b: over, recovered"]


def test_a_receiver_that_says_when_is_asked_then() -> None:
    box = Outbox(dead=lambda _: None)
    box.add(notice(opened()), START)
    (one,) = box.due(START)
    box.settled(one, Reply(is_delivered=False, retry_after_s=120), START)
    assert not list(box.due(START + timedelta(seconds=119)))
    assert len(list(box.due(START + timedelta(seconds=121)))) == 1


def test_after_a_day_or_a_final_no_a_message_is_a_dead_letter(tmp_path: Path) -> None:
    audit = MemoryAuditLog()
    receiver = Receiver([DOWN, Reply(is_delivered=False, is_final=True, why="answered 410"), DOWN])
    sender = dispatcher(audit, receiver, tmp_path)
    audit.append([opened("i-1", "one"), opened("i-2", "two")])
    sender.look(START)
    sender.look(START + GIVEN_UP_AFTER)
    letters = [json.loads(line) for line in sender.keeping.dead_letters.read_text().splitlines()]  # type: ignore[attr-defined]
    assert [(one["title"], one["why"], one["tries"]) for one in letters] == [
        ("llm-7b: two", "answered 410", 1), ("llm-7b: one", "down", 2),
    ]  # fmt: skip
    assert sender.look(START + GIVEN_UP_AFTER) == 0 and len(sender.outbox) == 0


def test_less_urgent_messages_are_left_out_and_ends_never_are(tmp_path: Path) -> None:
    audit, receiver = MemoryAuditLog(), Receiver()
    sender = dispatcher(audit, receiver, tmp_path, least=Urgency.ERROR)
    audit.append([advice(blocked_by=()), opened(summary="one"), closed()])
    sender.look(START)
    assert receiver.titles() == ["llm-7b: one", "llm-7b: over, recovered"]


def test_a_file_of_positions_that_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
    for text in ("nonsense", "[1]", '{"a": "b"}'):
        (tmp_path / "notify.json").write_text(text)
        with pytest.raises(KeepingUnreadable, match="move it away"):
            FileKeeping(tmp_path / "notify.json")


# ------------------------------------------------------------------ where it may go


class _Handler(http.server.BaseHTTPRequestHandler):
    status, headers_out = 200, {"Retry-After": "7"}
    seen: list[tuple[str, str | None]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append((self.path, self.headers["Host"]))  # type: ignore[attr-defined]
        status = int(self.path.rsplit("/", 1)[-1])
        self.send_response(status)
        self.send_header("Retry-After", "7")
        self.send_header("Location", "/200")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@pytest.fixture
def receiver() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.seen = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "is_delivered", "is_final"),
    [(200, True, False), (202, True, False), (307, False, True), (400, False, True), (401, False, False),
     (410, False, True), (429, False, False), (500, False, False), (503, False, False)],
)  # fmt: skip
def test_answers_decide_and_redirects_are_not_followed(
    receiver: http.server.ThreadingHTTPServer, status: int, is_delivered: bool, is_final: bool
) -> None:
    url = f"http://localhost:{receiver.server_port}/{status}"
    reply = Poster(["localhost"])(Post(url=url, body=b"{}"))
    assert (reply.is_delivered, reply.is_final) == (is_delivered, is_final)
    assert receiver.seen == [(f"/{status}", f"localhost:{receiver.server_port}")]  # type: ignore[attr-defined]
    assert is_delivered or reply.retry_after_s == 7


@pytest.mark.parametrize(
    "url",
    ["http://127.0.0.1:{}/200", "http://localhost:{}/200", "http://[::1]:{}/200", "http://169.254.169.254/latest",
     "http://10.0.0.1/", "http://0.0.0.0:{}/200", "file:///etc/passwd", "ftp://example.org/", "http:///x"],
)  # fmt: skip
def test_private_addresses_and_other_schemes_are_refused_unless_named(
    receiver: http.server.ThreadingHTTPServer, url: str
) -> None:
    reply = Poster()(Post(url=url.format(receiver.server_port), body=b"{}"))
    assert not reply.is_delivered and reply.is_final
    assert receiver.seen == []  # type: ignore[attr-defined]


def test_a_host_that_does_not_answer_is_tried_again() -> None:
    reply = Poster(["127.0.0.1"], timeout_s=0.5)(Post(url="http://127.0.0.1:9/", body=b"{}"))
    assert (reply.is_delivered, reply.is_final) == (False, False)


# ------------------------------------------------------------------ settings


def test_channels_are_made_from_settings_and_their_secrets_from_files(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("r0uting\n")
    (tmp_path / "url").write_text("https://hooks.slack.com/services/T/B/x\n")
    said = Notify(
        channels=(
            NotifyChannel(name="pager", kind="pagerduty", secret_file=tmp_path / "key"),
            NotifyChannel(name="chat", kind="slack", url_file=tmp_path / "url"),
        )
    )
    pager, chat = (channel for _, channel in make_channels(said, Path.read_text))
    assert isinstance(pager, PagerDuty) and pager.routing_key == "r0uting"
    assert isinstance(chat, Slack) and chat.url.endswith("/x")
    assert "slack.com" not in str(NotifyChannel(name="c", kind="slack", url="https://hooks.slack.com/x"))
    with pytest.raises(ConfigError, match="pager"):
        make_channels(Notify(channels=(NotifyChannel(name="pager", kind="pagerduty", secret_file=tmp_path / "no"),)),
                      Path.read_text)  # fmt: skip


@pytest.mark.parametrize(
    "said",
    [{"kind": "slack"}, {"kind": "pagerduty"}, {"kind": "webhook", "url": "https://x", "url_file": "/x"},
     {"kind": "pigeon", "url": "https://x"}, {"kind": "slack", "url": "https://x", "name": "Not A Name"}],
)  # fmt: skip
def test_a_channel_that_cannot_work_is_an_error_of_the_settings(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        NotifyChannel(**({"name": "x"} | said))


def test_a_crash_in_a_service_is_told(service: Service, tmp_path: Path) -> None:
    receiver = Receiver()
    sender = dispatcher(service.audit, receiver, tmp_path)
    service.crash()
    service.advise()
    sender.look(service.clock.at)
    assert any("gpu_fell_off_bus" in title for title in receiver.titles())
