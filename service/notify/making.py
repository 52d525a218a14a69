# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Channels out of the settings; secrets are read from their files once, at the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from relight.types import RecommendationId
from service.answer_links import AnswerLink, AnswerLinks
from service.config import ConfigError, Notify, NotifyChannel
from service.notify.channels import PAGERDUTY_URL, Alertmanager, Answering, Channel, PagerDuty, Slack, Webhook
from service.notify.notice import Notice

ReadText = Callable[[Path], str]


def make_channels(
    settings: Notify, read_text: ReadText, links: AnswerLinks | None = None
) -> list[tuple[NotifyChannel, Channel]]:
    """Errors: ConfigError naming the channel and the file that can't be read."""
    return [
        (one, _made(one, settings.console_url, read_text, answering(links if one.approve_links else None, one.name)))
        for one in settings.channels
    ]


def answering(links: AnswerLinks | None, channel: str) -> Answering:
    """What answers a message in the channel's name; "" for one that asks nothing, or where nobody was given a say."""

    def address(notice: Notice) -> str:
        asked, generation = notice.data.get("recommendation"), notice.data.get("generation")
        if links is None or notice.answer_by is None or asked is None or generation is None:
            return ""
        link = AnswerLink(
            recommendation=RecommendationId(str(asked)), generation=int(generation), channel=channel,
            expires_at=notice.answer_by,
        )  # fmt: skip
        return links.address(link)

    return address


def _made(said: NotifyChannel, console: str, read_text: ReadText, asks: Answering) -> Channel:
    def secret(path: Path | None) -> str:
        if path is None:
            return ""
        try:
            return read_text(path).strip()
        except OSError as why:
            raise ConfigError(f"notify channel {said.name!r}: {path}: {why.strerror or why}") from why

    url = said.url or secret(said.url_file)
    match said.kind:
        case "webhook":
            return Webhook(
                name=said.name, url=url, secret=secret(said.secret_file).encode(), console=console, answering=asks
            )
        case "slack":
            return Slack(name=said.name, url=url, console=console, answering=asks)
        case "pagerduty":
            return PagerDuty(
                name=said.name, routing_key=secret(said.secret_file), url=url or PAGERDUTY_URL, console=console,
                answering=asks,
            )  # fmt: skip
        case "alertmanager":
            return Alertmanager(name=said.name, url=url, console=console, answering=asks)
