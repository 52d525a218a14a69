# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What goes on beside requests: logs are followed, rules read again, and what was learnt is saved."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from service.chores import Chore
from service.config import Settings
from service.following import FollowedLogs
from service.journal import Journal
from service.line_intake import LineIntake
from service.loop import Loop
from service.metrics import Metrics
from service.rule_watch import RuleWatch
from service.rules_store import Reload, RuleStore

SAVING = "saving of detectors"
_TENDED_EVERY_S = 5.0


def watch_rules(
    settings: Settings,
    rules: RuleStore,
    loop: Loop,
    metrics: Metrics,
    *,
    fingerprint: Callable[[], str],
    swapped: Callable[[], object],
    kept: Callable[[Reload], object],
) -> RuleWatch:
    """Rules that change while we run: judged by from then on and told to `swapped`, or refused and told to `kept`."""

    def taken_up() -> None:
        loop.use_rules(*rules.current.pair)
        swapped()
        metrics.rule_reloads.labels("swapped").inc()

    def refused(why: Reload) -> None:
        kept(why)
        metrics.rule_reloads.labels("refused").inc()

    settle = timedelta(seconds=settings.detect.rules_settle_s)
    return RuleWatch(rules, fingerprint, settle, taken_up, refused)


def background(
    settings: Settings,
    journal: Journal,
    following: FollowedLogs,
    watch: RuleWatch,
    save: Callable[[], object],
    metrics: Metrics,
) -> tuple[Chore, ...]:
    """What goes on beside the loop, each in a thread of its own."""

    def failed(name: str) -> None:
        metrics.chores.labels(name).inc()

    chores = [
        Chore("reload of rules", settings.detect.rules_every_s, lambda: watch.look(journal.now()), failed),
        Chore(SAVING, settings.detect.save_every_s, save, failed),
    ]
    if settings.follow.roots:
        chores.append(Chore("following of logs", settings.follow.poll_every_s, following.look, failed))
    return tuple(chores)


def tending(lines: LineIntake, metrics: Metrics) -> Chore:
    """Lines that wait for their job: handed over if that was missed, let go once their time is up."""
    return Chore(
        "lines that wait for their job", _TENDED_EVERY_S, lines.tend, lambda name: metrics.chores.labels(name).inc()
    )
