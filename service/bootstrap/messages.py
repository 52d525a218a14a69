# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Messages to people, and the links in them that answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.adapters.rule_files import read_text
from service.bootstrap.kit import beside
from service.config import ConfigError, Settings

if TYPE_CHECKING:
    from service.answer_links import AnswerLinks
    from service.chores import Chore
    from service.config import NotifyChannel
    from service.journal import Journal
    from service.metrics import Metrics
    from service.notify.channels import Channel


def answer_links(settings: Settings) -> AnswerLinks | None:
    """Links that answer, where some channel's readers were given a say.

    Errors: ConfigError for a key file that is not ours or that others may read.
    """
    if not settings.notify.has_links:
        return None
    from service.adapters.key_file import KeyUnusable, key_from
    from service.answer_links import AnswerLinks

    chosen = settings.notify.link_key_file
    audit = settings.audit.path
    try:
        return AnswerLinks(key_from(chosen or audit.with_name(f"{audit.stem}.links.key")), settings.notify.console_url)
    except (KeyUnusable, OSError) as why:
        raise ConfigError(f"notify.link_key_file: {why}") from why


def notifying(settings: Settings, journal: Journal, metrics: Metrics, links: AnswerLinks | None) -> list[Chore]:
    """One chore for each channel, so that a receiver that hangs delays nobody else's messages.

    Errors: ConfigError for a secret that can't be read, KeepingUnreadable.
    """
    if not settings.notify.channels:
        return []
    import random

    from service.adapters.http_post import Poster
    from service.adapters.notify_keeping import FileKeeping
    from service.chores import Chore
    from service.notify.dispatch import Dispatcher
    from service.notify.making import make_channels
    from service.notify.muting import Muting
    from service.notify.notice import Urgency

    keeping = FileKeeping(beside(settings.audit.path, settings.notify.state_file, "notify"))
    poster = Poster(settings.notify.private_hosts)
    muted = Muting(journal, settings.promotion.start)

    def chore(said: NotifyChannel, channel: Channel) -> Chore:
        sender = Dispatcher(
            channel=channel, audit=journal.audit, keeping=keeping, send=poster, least=Urgency(said.least),
            told=lambda name, outcome: metrics.notifications.labels(name, outcome).inc(), jitter=random.random,
            muted=muted, folded=lambda: journal.state.position,
        )  # fmt: skip
        return Chore(f"messages to {said.name}", settings.notify.every_s, lambda: sender.look(journal.now()))

    return [chore(said, channel) for said, channel in make_channels(settings.notify, read_text, links)]
