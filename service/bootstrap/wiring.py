# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Settings in, a wired application out: no thread started, nothing listening."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from relight.events import ServiceStarted
from relight.ports import AuditLog, Clock
from relight.types import AttemptId, ClusterId, Stream
from rules.policy_table import load_policy
from service import rule_records
from service.adapters.rule_files import fingerprint
from service.adapters.state_file import StateFile
from service.bootstrap.kit import (
    beside,
    clock,
    held_folder,
    model_store,
    open_audit,
    open_tokens,
    policy_text,
    rule_store,
    taxonomy,
)
from service.bootstrap.messages import answer_links, notifying
from service.bootstrap.tracing import tracing
from service.config import Settings
from service.plugins import Plugin
from service.tokens import TokenBook

if TYPE_CHECKING:
    from service.application import Application
    from service.following import FollowedLogs
    from service.holding import Holding
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
    from service.background import background, tending, watch_rules
    from service.enabling import enable
    from service.following import FollowedLogs, LagProbe
    from service.gates import Gates
    from service.journal import Journal
    from service.loop import Loop
    from service.metrics import Metrics
    from service.models_in_use import ModelsInUse
    from service.operating import Operation, Policies
    from service.places import places_of
    from service.promoting import Stages
    from service.reconciling import Reconciliation
    from service.redacted_intake import RedactedIntake
    from service.redaction import Redactor
    from service.repairs import Repairs
    from service.silencing import Silences
    from service.verdicts import Grounds, Verdicts

    given = parts or Parts()
    the_clock = given.clock or clock()
    rules = given.rules or rule_store(settings, the_clock)
    opened_at = the_clock.now()
    journal = Journal(given.audit or open_audit(settings, the_clock), the_clock)
    repairs = Repairs(journal.audit, opened_at)
    journal.replay()
    policies = Policies(journal, policy_text(settings), lambda text: load_policy("policy", text, taxonomy()))
    following = FollowedLogs(journal, settings.follow)
    enabled = enable(settings, rules, taxonomy(), [LagProbe(lambda: following.status, settings.follow)])
    reader = ProgressReader(rules.current.progress)
    loop = Loop(journal, enabled.collector, enabled.detectors, reader, lambda: policies.table().hangs)
    verdicts = Verdicts(
        journal,
        settings.recommend,
        lambda: Grounds(policies.table(), rules.current.digest),
        places_of(settings.topology),
        settings.promotion.start,
    )
    advisor = Advisor(journal, verdicts, loop, enabled.attributor.name)
    state = StateFile(beside(settings.audit.path, settings.detect.state_file, "detectors"))
    if given.audit is None:
        loop.restore(state.load())
    loop.remember(journal.state.attempts.values(), the_clock.now())
    loop.serve(advisor)
    gates = Gates(journal, settings.recommend, settings.promotion.start)
    metrics = Metrics(journal, lambda: rules.last_reload.is_good, lambda: _size(settings.audit.path))
    redactor = Redactor(lambda kind: metrics.redactions.labels(kind).inc())
    holding = _holding(settings, is_lasting=given.audit is None)
    metrics.hold(holding)
    intake = RedactedIntake(journal, loop, settings.ingest, redactor, holding)
    _follow_logs(settings, following, intake)
    watch = watch_rules(
        settings, rules, loop, metrics,
        fingerprint=lambda: fingerprint(settings.rules.folders),
        swapped=lambda: journal.record(rule_records.loaded(settings, rules, journal.now())),
        kept=lambda why: journal.record(rule_records.refused(settings, why, journal.now())),
    )  # fmt: skip
    metrics.log_lag, metrics.rules_pending = lambda: following.status.lag_s, lambda: watch.is_pending
    links = answer_links(settings)
    chores = (
        *background(settings, journal, following, watch, lambda: state.save(loop.snapshot()), metrics),
        tending(intake.lines, metrics),
        *notifying(settings, journal, metrics, links),
        *tracing(settings, journal, metrics, running_version()),
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
        stages=Stages(journal, settings.promotion),
        silences=Silences(journal),
        links=links,
        intake=intake,
        allocations=Allocations(journal),
        loop=loop,
        metrics=metrics,
        repairs=repairs,
        tokens=given.tokens or open_tokens(settings),
        rules_digest=lambda: rules.current.digest,
        rules=rules,
        models=ModelsInUse(journal, loop, lambda: model_store(settings), taxonomy()),
        degraded=lambda: [
            *(f"detector {name} failed" for name in loop.failing),
            *(f"attributor {name} failed" for name in enabled.attributor.failing),
            *(f"{chore.name}: {chore.trouble}" for chore in chores if chore.trouble),
            *following.troubles,
            *rule_records.troubles(rules.last_reload),
            *(f"audit log: {one.summary}" for one in repairs.serious()),
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
            version=running_version(),
            config_digest=hashlib.sha256(settings.model_dump_json().encode()).hexdigest(),
            loaded={
                "rules": rules.current.digest,
                "policy": application.policies.current().version,
                "plugins": {f"{one.group}:{one.name}": f"{one.target} from {one.origin}" for one in plugins},
            },
            cluster=ClusterId(settings.recommend.cluster),
        ),
        rule_records.loaded(settings, rules, now),
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


def _holding(settings: Settings, *, is_lasting: bool) -> Holding:
    """What waits for its job, on disk beside an audit log that is there. Errors: OSError if it can't be read."""
    from service.adapters.held_segments import HeldSegments
    from service.held_memory import HeldInMemory
    from service.holding import Holding, bounds_of

    store = HeldSegments(held_folder(settings)) if is_lasting else HeldInMemory()
    return Holding(store, bounds_of(settings.ingest))


def running_version() -> str:
    try:
        return version("relight")
    except PackageNotFoundError:
        return "source tree"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
