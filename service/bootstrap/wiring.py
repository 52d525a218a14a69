# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Settings in, a wired application out: no thread started, nothing listening."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from relight.events import PackLoaded, ServiceStarted
from relight.ports import AuditLog, Clock
from relight.types import AttemptId, ClusterId, Stream
from rules.policy_table import load_policy
from service.adapters.rule_files import fingerprint, read_text
from service.adapters.state_file import StateFile
from service.bootstrap.kit import beside, clock, open_audit, open_tokens, policy_text, rule_store, taxonomy
from service.config import Settings
from service.plugins import Plugin
from service.tokens import TokenBook

if TYPE_CHECKING:
    from datetime import datetime

    from service.application import Application
    from service.chores import Chore
    from service.config import NotifyChannel
    from service.following import FollowedLogs
    from service.journal import Journal
    from service.metrics import Metrics
    from service.notify.channels import Channel
    from service.observing import Intake
    from service.rules_store import RuleStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What tests put in the place of the real world; None means the real one."""

    clock: Clock | None = None
    audit: AuditLog | None = None
    tokens: TokenBook | None = None
    rules: RuleStore | None = None


def build_application(settings: Settings, parts: Parts | None = None) -> Application:
    """Everything wired, the state folded from the log; no thread started, nothing listening."""
    from detectors.progress import ProgressReader
    from service.advisor import Advisor
    from service.allocations import Allocations
    from service.application import Application
    from service.approval import Approval
    from service.background import background, watch_rules
    from service.enabling import enable
    from service.following import FollowedLogs, LagProbe
    from service.gates import Gates
    from service.journal import Journal
    from service.loop import Loop
    from service.metrics import Metrics
    from service.operating import Operation, Policies
    from service.places import places_of
    from service.reconciling import Reconciliation
    from service.redacted_intake import RedactedIntake
    from service.redaction import Redactor
    from service.verdicts import Grounds, Verdicts

    given = parts or Parts()
    the_clock = given.clock or clock()
    rules = given.rules or rule_store(settings)
    journal = Journal(given.audit or open_audit(settings, the_clock), the_clock)
    journal.replay()
    policies = Policies(journal, policy_text(settings), lambda text: load_policy("policy", text, taxonomy()))
    following = FollowedLogs(journal, settings.follow)
    enabled = enable(settings, rules, taxonomy(), [LagProbe(lambda: following.status, settings.follow)])
    loop = Loop(journal, enabled.collector, enabled.detectors, ProgressReader(rules.current.progress))
    verdicts = Verdicts(
        journal,
        settings.recommend,
        lambda: Grounds(policies.table(), rules.current.digest),
        places_of(settings.topology),
    )
    advisor = Advisor(journal, verdicts, loop, enabled.attributor.name)
    state = StateFile(beside(settings.audit.path, settings.detect.state_file, "detectors"))
    if given.audit is None:
        loop.restore(state.load())
    loop.remember(journal.state.attempts.values(), the_clock.now())
    loop.serve(advisor)
    gates = Gates(journal, settings.recommend)
    metrics = Metrics(journal, lambda: rules.last_reload.is_good, lambda: _size(settings.audit.path))
    redactor = Redactor(lambda kind: metrics.redactions.labels(kind).inc())
    intake = RedactedIntake(journal, loop, settings.ingest, redactor)
    _follow_logs(settings, following, intake)
    watch = watch_rules(
        settings, rules, loop, metrics,
        fingerprint=lambda: fingerprint(settings.rules.folders),
        swapped=lambda: journal.record(_loaded(settings, rules, journal.now())),
    )  # fmt: skip
    metrics.log_lag, metrics.rules_pending = lambda: following.status.lag_s, lambda: watch.is_pending
    chores = (
        *background(settings, journal, following, watch, lambda: state.save(loop.snapshot()), metrics),
        *_notifying(settings, journal, metrics),
    )
    application = Application(
        settings=settings,
        journal=journal,
        advisor=advisor,
        gates=gates,
        reconciliation=Reconciliation(journal, gates, settings.recommend),
        approval=Approval(journal, gates),
        operation=Operation(journal),
        policies=policies,
        intake=intake,
        allocations=Allocations(journal),
        loop=loop,
        metrics=metrics,
        tokens=given.tokens or open_tokens(settings),
        rules_digest=lambda: rules.current.digest,
        degraded=lambda: [
            *(f"detector {name} failed" for name in loop.failing),
            *(f"attributor {name} failed" for name in enabled.attributor.failing),
            *(f"{chore.name}: {chore.trouble}" for chore in chores if chore.trouble),
            *following.troubles,
        ],
        chores=chores,
    )
    enabled.attributor.failed = loop.attributor_failed
    _record_start(application, rules, enabled.plugins)
    return application


def _record_start(application: Application, rules: RuleStore, plugins: Iterable[Plugin]) -> None:
    """What runs, by digest, so that a verdict can be traced to the code and rules that gave it."""
    journal, settings = application.journal, application.settings
    now = journal.now()
    journal.record(
        ServiceStarted(
            at=now,
            version=_version(),
            config_digest=hashlib.sha256(settings.model_dump_json().encode()).hexdigest(),
            loaded={
                "rules": rules.current.digest,
                "policy": application.policies.current().version,
                "plugins": {f"{one.group}:{one.name}": f"{one.target} from {one.origin}" for one in plugins},
            },
            cluster=ClusterId(settings.recommend.cluster),
        ),
        _loaded(settings, rules, now),
    )


def _loaded(settings: Settings, rules: RuleStore, now: datetime) -> PackLoaded:
    return PackLoaded(
        at=now,
        pack="all",
        digest=rules.current.digest,
        signatures=len(rules.current.signatures.signatures),
        source=", ".join(["shipped", *map(str, settings.rules.folders)]),
    )


def _follow_logs(settings: Settings, following: FollowedLogs, intake: Intake) -> None:
    """Read logs below the allowed folders; without any, none is read. Errors: CursorsUnreadable, OSError."""
    if not settings.follow.roots:
        return
    from detectors.log_names import read_name
    from service.adapters.log_cursor import CursorStore
    from service.adapters.log_roots import LogRoots
    from service.adapters.log_tail import Followed, LogTail
    from service.following import delivery

    cursors = CursorStore(beside(settings.audit.path, settings.follow.cursors_file, "cursors"))
    tail = LogTail(LogRoots(settings.follow.roots), cursors, delivery(intake))

    def follow(attempt: AttemptId, path: str) -> None:
        named = read_name(path)
        stream, node, rank = (named.stream, named.node, named.rank) if named else (Stream.APPLICATION, None, None)
        tail.follow(Followed(attempt=attempt, path=path, stream=stream, node=node, rank=rank))

    following.use(tail, follow)


def _notifying(settings: Settings, journal: Journal, metrics: Metrics) -> list[Chore]:
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
    from service.notify.notice import Urgency

    keeping = FileKeeping(beside(settings.audit.path, settings.notify.state_file, "notify"))
    poster = Poster(settings.notify.private_hosts)

    def chore(said: NotifyChannel, channel: Channel) -> Chore:
        sender = Dispatcher(
            channel=channel, audit=journal.audit, keeping=keeping, send=poster, least=Urgency(said.least),
            told=lambda name, outcome: metrics.notifications.labels(name, outcome).inc(), jitter=random.random,
        )  # fmt: skip
        return Chore(f"messages to {said.name}", settings.notify.every_s, lambda: sender.look(journal.now()))

    return [chore(said, channel) for said, channel in make_channels(settings.notify, read_text)]


def _version() -> str:
    try:
        return version("relight")
    except PackageNotFoundError:
        return "source tree"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
