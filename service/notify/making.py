# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Channels out of the settings; secrets are read from their files once, at the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.config import ConfigError, Notify, NotifyChannel
from service.notify.channels import PAGERDUTY_URL, Alertmanager, Channel, PagerDuty, Slack, Webhook

ReadText = Callable[[Path], str]


def make_channels(settings: Notify, read_text: ReadText) -> list[tuple[NotifyChannel, Channel]]:
    """Errors: ConfigError naming the channel and the file that can't be read."""
    return [(one, _made(one, settings.console_url, read_text)) for one in settings.channels]


def _made(said: NotifyChannel, console: str, read_text: ReadText) -> Channel:
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
            return Webhook(name=said.name, url=url, secret=secret(said.secret_file).encode(), console=console)
        case "slack":
            return Slack(name=said.name, url=url, console=console)
        case "pagerduty":
            return PagerDuty(
                name=said.name, routing_key=secret(said.secret_file), url=url or PAGERDUTY_URL, console=console
            )
        case "alertmanager":
            return Alertmanager(name=said.name, url=url, console=console)
