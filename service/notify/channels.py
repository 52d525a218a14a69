# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A message in the words of each channel: signed CloudEvents, Slack, PagerDuty, Alertmanager."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol

import orjson

from relight.trace_ids import traceparent
from relight.types import IncidentId
from service.answer_links import console_address
from service.notify.notice import Notice, Urgency

SIGNATURE = "Relight-Signature"
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
ALERT_LASTS = timedelta(hours=4)
_MAX_DEDUP = 255
_SLACK = re.compile(r"[&<>]")
_SLACK_SPELLED = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


Answering = Callable[[Notice], str]


def no_link(_: Notice) -> str:
    """A channel whose readers were given no say."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """One HTTP request to be made."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Channel(Protocol):
    """Where messages go. `post` is asked anew for every attempt, since a signature holds the time."""

    @property
    def name(self) -> str: ...

    def post(self, notice: Notice, now: datetime) -> Post | None:
        """The request for a message, None if this channel has no use for it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """CloudEvents 1.0 in structured mode, signed: `t=<seconds>,v1=<HMAC-SHA256 of "seconds.body">`."""

    name: str
    url: str
    secret: bytes = b""
    console: str = ""
    answering: Answering = no_link

    def post(self, notice: Notice, now: datetime) -> Post | None:
        said = {
            "specversion": "1.0", "id": notice.key, "source": "relight", "type": f"relight.{notice.kind}",
            "subject": notice.subject, "time": notice.at.isoformat(), "datacontenttype": "application/json",
            "data": {"title": notice.title, "text": notice.text, "urgency": notice.urgency, "is_over": notice.is_over,
                     "link": link(self.console, notice), "answer_link": self.answering(notice),
                     "answer_by": _shown(notice.answer_by), "default": notice.default, "event": notice.data},
        }  # fmt: skip
        headers = {"Content-Type": "application/cloudevents+json"}
        if notice.incident:  # the CloudEvents extension for distributed tracing
            said["traceparent"] = headers["traceparent"] = traceparent(IncidentId(notice.incident))
        body = orjson.dumps(said)
        if self.secret:
            headers[SIGNATURE] = signature(self.secret, body, now)
        return Post(url=self.url, body=body, headers=headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slack:
    """An incoming webhook; a message that asks for an answer says until when, and what happens without one.

    What a chat looks at by itself to draw a preview answers nothing: a link opens a page that asks once more.
    """

    name: str
    url: str
    console: str = ""
    answering: Answering = no_link

    def post(self, notice: Notice, now: datetime) -> Post | None:  # noqa: ARG002 -- nothing here depends on the time
        lines = [f"*{_slack(notice.title)}*", _slack(notice.text), _slack(notice.default)]
        answer, where = self.answering(notice), link(self.console, notice)
        if answer:
            lines.append(f"<{answer}|Approve or reject>")
        if where:
            words = "Approve or reject" if notice.answer_by is not None and not answer else "Open"
            lines.append(f"<{where}|{words}>")
        text = "\n".join(line for line in lines if line and line != "**")
        block = {"type": "section", "text": {"type": "mrkdwn", "text": text[:2_900]}}
        return Post(
            url=self.url,
            body=orjson.dumps({"text": _slack(notice.title), "blocks": [block]}),
            headers={"Content-Type": "application/json"},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerDuty:
    """Events v2: one alert for a matter, triggered by its first message and resolved by its last."""

    name: str
    routing_key: str
    url: str = PAGERDUTY_URL
    console: str = ""
    answering: Answering = no_link

    def post(self, notice: Notice, now: datetime) -> Post | None:  # noqa: ARG002
        key = f"relight/{notice.subject}"
        said: dict[str, Any] = {
            "routing_key": self.routing_key,
            "event_action": "resolve" if notice.is_over else "trigger",
            "dedup_key": key if len(key) <= _MAX_DEDUP else hashlib.sha256(key.encode()).hexdigest(),
        }
        if not notice.is_over:
            said["payload"] = {
                "summary": notice.title[:1_024], "source": notice.cluster or "relight", "severity": notice.urgency,
                "timestamp": notice.at.isoformat(), "component": notice.subject, "class": notice.kind,
                "custom_details": {"text": notice.text, "default": notice.default, **notice.data},
            }  # fmt: skip
            named = ((self.answering(notice), "Approve or reject"), (link(self.console, notice), "Relight"))
            said["links"] = [{"href": where, "text": words} for where, words in named if where]
        return Post(url=self.url, body=orjson.dumps(said), headers={"Content-Type": "application/json"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Alertmanager:
    """Alerts for a site's own routing; one that is never resolved ends by itself after four hours."""

    name: str
    url: str
    console: str = ""
    answering: Answering = no_link

    def post(self, notice: Notice, now: datetime) -> Post | None:
        ends = notice.at if notice.is_over else now + ALERT_LASTS
        alert = {
            "labels": {"alertname": "Relight", "subject": notice.subject, "cluster": notice.cluster,
                       "severity": _SEVERITY[Urgency.ERROR if notice.is_over else notice.urgency]},
            "annotations": {"summary": notice.title, "description": f"{notice.text} {notice.default}".strip(),
                            **({"answer": answer} if (answer := self.answering(notice)) else {})},
            "startsAt": (notice.at - timedelta(seconds=1) if notice.is_over else notice.at).isoformat(),
            "endsAt": ends.isoformat(),
            "generatorURL": link(self.console, notice),
        }  # fmt: skip
        url = f"{self.url.rstrip('/')}/api/v2/alerts"
        return Post(url=url, body=orjson.dumps([alert]), headers={"Content-Type": "application/json"})


# A matter keeps its labels, or Alertmanager would take its end for another matter's.
_SEVERITY = {
    Urgency.CRITICAL: "critical", Urgency.ERROR: "warning", Urgency.WARNING: "warning", Urgency.INFO: "warning",
}  # fmt: skip


def signature(secret: bytes, body: bytes, now: datetime) -> str:
    """The header's value; a receiver refuses a time that is minutes old, so that none can be sent again."""
    seconds = str(int(now.timestamp()))
    made = hmac.new(secret, f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={seconds},v1={made}"


def link(console: str, notice: Notice) -> str:
    return f"{console_address(console)}/incidents/{notice.incident}" if console and notice.incident else ""


def _slack(text: str) -> str:
    return _SLACK.sub(lambda found: _SLACK_SPELLED[found[0]], text)


def _shown(at: datetime | None) -> str | None:
    return at.isoformat() if at is not None else None
