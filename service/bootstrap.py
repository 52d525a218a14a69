# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The only place that constructs anything: settings in, a running service out."""

from __future__ import annotations

import hashlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detectors.log_text import LogText
from relight.events import PackLoaded, ServiceStarted, ServiceStopped
from relight.ports import AuditLog, AuditUnavailable, Clock
from relight.types import AttemptId, ClusterId, Stream, Taxonomy
from rules.match import RuleSet
from rules.policy_table import load_policy, load_taxonomy
from service.adapters import log_files
from service.adapters.clock import SystemClock
from service.adapters.diagnosis_kit import build_diagnostician
from service.adapters.log_files import Case, LogUnreadable
from service.adapters.rule_cache import load_cached
from service.adapters.rule_files import POLICY_FILE, TAXONOMY_FILE, fingerprint, read_packs, read_text
from service.adapters.state_file import StateFile
from service.config import ConfigError, Settings, cache_folder
from service.diagnosis import Diagnosis, Diagnostician
from service.plugins import Group, Plugin, load
from service.tokens import Role, TokenBook

if TYPE_CHECKING:  # the command line must not pay for HTTP and DuckDB when it lints a rule
    from datetime import datetime

    from fastapi import FastAPI

    from models.attribution_model import Example
    from relight.events import Event
    from relight.policy import PolicyTable
    from service.adapters.model_store import ModelStore
    from service.application import Application
    from service.chores import Chore
    from service.config import NotifyChannel
    from service.following import FollowedLogs
    from service.journal import Journal
    from service.metrics import Metrics
    from service.model_hints import ModelHints
    from service.notify.channels import Channel
    from service.observing import Intake
    from service.replay_audit import AuditReplay
    from service.rules_store import RuleStore

__all__ = [
    "DiagnosisTools",
    "LogUnreadable",
    "Parts",
    "ReplayKit",
    "Running",
    "build_app",
    "build_application",
    "clock",
    "demo_cases",
    "diagnosis_tools",
    "failures",
    "first_token",
    "labelled_examples",
    "model_hints",
    "model_store",
    "open_audit",
    "open_tokens",
    "read_rule_files",
    "replay_kit",
    "rule_store",
    "rule_texts",
    "running",
    "serve",
    "taxonomy",
]  # fmt: skip

CONSOLE_CLIENT = "local-console"
DRAIN_S = 25
CHORE_DRAIN_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What tests put in the place of the real world; None means the real one."""

    clock: Clock | None = None
    audit: AuditLog | None = None
    tokens: TokenBook | None = None
    rules: RuleStore | None = None


# ------------------------------------------------------------------ for the command line


def clock() -> Clock:
    return SystemClock()


@cache
def taxonomy() -> Taxonomy:
    return load_taxonomy("rules/taxonomy.yaml", read_text(TAXONOMY_FILE))


def failures() -> frozenset[str]:
    """The names that signatures may use."""
    return frozenset(taxonomy())


def rule_texts(settings: Settings) -> dict[str, str]:
    """Every rule file, of the shipped packs and of the site's folders, by a readable name."""
    return read_packs(settings.rules.folders)


def read_rule_files(paths: Iterable[Path]) -> dict[str, str]:
    """Rule files and whole folders of them, by path. Errors: OSError if one can't be read."""
    found: dict[str, str] = {}
    for path in paths:
        files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
        found.update({str(file): read_text(file) for file in files if file.name != "pack.yaml"})
    return found


def rule_store(settings: Settings) -> RuleStore:
    from service.rules_store import RuleStore

    def checked(texts: Mapping[str, str], known: Iterable[str]) -> tuple[RuleSet, RuleSet]:
        return load_cached(texts, known, cache_folder())

    return RuleStore(lambda: rule_texts(settings), failures(), checked)


def open_audit(settings: Settings, the_clock: Clock | None = None) -> AuditLog:
    """The audit log that the settings name. Errors: PluginError, or what the log itself raises."""
    (plugin,) = load(Group.AUDIT_LOGS, [settings.audit.log])
    log: AuditLog = plugin.make(settings.audit.path, the_clock or clock())
    return log


def open_tokens(settings: Settings) -> TokenBook:
    """Errors: TokenError if the file is not ours."""
    return TokenBook(settings.auth.tokens_file, max_days=settings.auth.max_token_days)


@dataclass(frozen=True, slots=True)
class DiagnosisTools:
    """What `relight diagnose` needs: files in, verdicts out, nothing remembered."""

    diagnostician: Diagnostician
    clock: Clock

    def read_files(self, paths: Sequence[str], streams: Mapping[str, Stream], nodes: Mapping[str, str]) -> Case:
        return log_files.read_files(paths, streams, nodes)

    def read_folder(self, folder: Path) -> Case:
        return log_files.read_folder(folder)

    def case_folders(self, root: Path) -> Iterator[Path]:
        return log_files.case_folders(root)

    def judge(self, case: Case) -> Diagnosis:
        return self.diagnostician.judge(case.logs, at=self.clock.now())


def diagnosis_tools(
    folders: Iterable[Path] = (), policy: Path | None = None, hints: ModelHints | None = None
) -> DiagnosisTools:
    """Errors: RulesInvalid with every problem of packs or policy; OSError if a file or folder is missing."""
    return DiagnosisTools(replace(build_diagnostician(folders, policy, cache_folder()), hints=hints), clock())


def model_store(settings: Settings, folder: Path | None = None) -> ModelStore:
    """Trained models: in `folder`, else beside the audit log that records their promotions."""
    from service.adapters.model_store import ModelStore

    return ModelStore(folder or settings.audit.path.with_name(f"{settings.audit.path.stem}-models"))


def labelled_examples(root: Path | None = None, rules: Iterable[Path] = ()) -> list[Example]:
    """What the attribution model is taught with: labelled cases, the shipped ones by default, and signatures' lines.

    Errors: LogUnreadable for cases that can't be read; RulesInvalid as in `diagnosis_tools`.
    """
    from service.adapters.labelled_cases import SHIPPED, labelled_cases
    from service.model_lessons import examples_from

    return examples_from(labelled_cases(root or SHIPPED), build_diagnostician(rules, None, cache_folder()))


def model_hints(settings: Settings, log: AuditLog | None = None) -> ModelHints:
    """The promoted attribution model, or why there is none: then the rules speak alone.

    Errors: what the audit log raises when it can't be opened or read.
    """
    from service.model_hints import ModelHints, promotions

    if log is not None:
        return ModelHints.of(model_store(settings), promotions(log))
    if settings.audit.log == "duckdb" and not settings.audit.path.exists():
        return ModelHints(reason=f"no audit log at {settings.audit.path}, so no model was promoted")
    opened = open_audit(settings)
    try:
        return ModelHints.of(model_store(settings), promotions(opened))
    finally:
        opened.close()


# ------------------------------------------------------------------ the service


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
    policies = Policies(journal, _policy_text(settings), lambda text: load_policy("policy", text, taxonomy()))
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
    state = StateFile(_beside(settings.audit.path, settings.detect.state_file, "detectors"))
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


@dataclass(frozen=True, slots=True)
class ReplayKit:
    """What `relight replay` needs: cases and events from disk, and services that know nothing yet."""

    start: Callable[[Clock], Application]
    settings: Settings
    policy: PolicyTable
    rules_digest: str
    policy_version: str

    def cases(self, source: Path) -> list[tuple[str, Path]]:
        """Case folders below a folder by name; a single folder or file is a case itself."""
        below = list(log_files.case_folders(source)) if source.is_dir() else []
        if not below or below == [source]:
            return [(source.name, source)]
        return [(str(folder.relative_to(source)), folder) for folder in below]

    def read(self, case: Path) -> Case:
        return log_files.read_folder(case) if case.is_dir() else log_files.read_files([str(case)])

    def redecide(self) -> AuditReplay:
        from relight.testing.audit import MemoryAuditLog
        from service.replay_audit import AuditReplay

        return AuditReplay(MemoryAuditLog(), self.policy, self.settings.recommend)

    def events(self, source: Path) -> Iterator[list[Event]]:
        """The events of an audit log or of its export, in order. Errors: OSError, AuditUnavailable."""
        from service.adapters.audit_reading import recorded_events

        return recorded_events(source, lambda path: open_audit(self._audit_at(path)))

    def _audit_at(self, path: Path) -> Settings:
        return self.settings.model_copy(update={"audit": self.settings.audit.model_copy(update={"path": path})})


def replay_kit(settings: Settings) -> ReplayKit:
    """Services for a replay keep nothing and judge by one rule set.

    Errors: RulesInvalid, ConfigError or OSError now rather than at the first case.
    """
    from relight.testing.audit import MemoryAuditLog

    rules = rule_store(settings)
    policy = load_policy(str(settings.rules.policy_file or "rules/policy.yaml"), _policy_text(settings), taxonomy())

    def start(the_clock: Clock) -> Application:
        return build_application(
            settings, Parts(clock=the_clock, audit=MemoryAuditLog(), tokens=TokenBook(), rules=rules)
        )

    return ReplayKit(start, settings, policy, rules.current.digest, policy.version)


def build_app(settings: Settings, parts: Parts | None = None) -> FastAPI:
    """The API over a freshly built application; its lifespan runs the loop and closes the log."""
    from service.api.app import create

    application = build_application(settings, parts)
    return create(application, _lifespan(application))


def described_app() -> FastAPI:
    """The API with default settings and a log in memory, for its description alone."""
    from relight.testing.audit import MemoryAuditLog

    return build_app(Settings(), Parts(audit=MemoryAuditLog(), tokens=TokenBook()))


def serve(settings: Settings, announce: Callable[[str], object] = sys.stderr.write) -> None:
    """Listen until told to stop; `announce` shows a token that was made for this machine.

    Errors: ConfigError for an address beyond this machine without tokens.
    """
    import uvicorn

    tokens = open_tokens(settings)
    secret = first_token(settings, tokens, clock())
    app = build_app(settings, Parts(tokens=tokens))
    if secret is not None:
        announce(f"no tokens are configured; this one is for you, as admin, for a day:\n{secret}\n")
    uvicorn.run(
        app,
        host=settings.server.host,
        port=settings.server.port,
        workers=1,
        timeout_graceful_shutdown=DRAIN_S,
        server_header=False,
        log_level="warning",
    )


@dataclass(slots=True)
class Running:
    """A service that listens in a thread of this process, with a token for whoever started it."""

    url: str
    token: str
    thread: threading.Thread

    def wait(self) -> None:
        while self.thread.is_alive():
            self.thread.join(1)


@contextmanager
def running(settings: Settings, the_clock: Clock | None = None) -> Iterator[Running]:
    """The service on loopback for as long as the block runs; port 0 takes a free one.

    Errors: OSError if the port is taken; RuntimeError if the service does not come up.
    """
    import socket

    import uvicorn

    tokens = open_tokens(settings)
    secret, _ = tokens.issue(Role.ADMIN, CONSOLE_CLIENT, at=(the_clock or clock()).now(), days=1)
    app = build_app(settings, Parts(tokens=tokens, clock=the_clock))
    listener = socket.create_server((settings.server.host, settings.server.port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="service", daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
        if not thread.is_alive():
            listener.close()
            raise RuntimeError("the service ended while it started; run `relight serve` to see why")
    host, port = listener.getsockname()[:2]
    try:
        yield Running(f"http://{host}:{port}", secret, thread)
    finally:
        server.should_exit = True
        thread.join(DRAIN_S)
        listener.close()


def demo_cases(names: Iterable[str]) -> dict[str, tuple[LogText, ...]]:
    """Cases of the shipped data set, by name. Errors: FileNotFoundError outside a source tree."""
    root = Path(__file__).parent.parent / "datasets" / "failures"
    if not root.is_dir():
        raise FileNotFoundError(f"{root} does not exist")
    return {name: log_files.read_folder(root / name).logs for name in names}


def first_token(settings: Settings, tokens: TokenBook, the_clock: Clock) -> str | None:
    """A token for whoever sits at this machine, if none is live; elsewhere there is no way in without one.

    Errors: ConfigError if the address is beyond this machine and no token is live.
    """
    now = the_clock.now()
    if any(token.is_live(now) for token in tokens.tokens()):
        return None
    if not settings.server.is_loopback:
        raise ConfigError(
            f"server.host = {settings.server.host!r} is not this machine alone and no token is live; "
            "issue one: relight token new NAME --role admin (needs auth.tokens_file)"
        )
    secret, _ = tokens.issue(Role.ADMIN, CONSOLE_CLIENT, at=now, days=1)
    return secret


# ------------------------------------------------------------------ the pieces


def _lifespan(application: Application) -> Callable[[FastAPI], Any]:
    from service.chores import started

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        journal, every_s = application.journal, application.settings.recommend.sweep_every_s
        chores = (application.advisor.sweep, application.operation.sweep)
        thread = threading.Thread(target=application.loop.run, args=(stop, every_s, chores), name="loop", daemon=True)
        thread.start()
        others = started(application.chores, stop)
        try:
            yield
        finally:
            app.state.is_stopping = True
            stop.set()
            thread.join(DRAIN_S)
            for other in others:
                other.join(CHORE_DRAIN_S)  # one that hangs in a file system must not hold us
            _record_stop(application)
            journal.audit.close()

    return lifespan


def _record_stop(application: Application) -> None:
    """Correctness does not depend on it: a killed service starts from the same log."""
    from service.background import SAVING

    journal = application.journal
    try:
        application.loop.tick(journal.now())
        for chore in application.chores:
            if chore.name == SAVING:
                chore.once()
        journal.record(ServiceStopped(at=journal.now(), reason="asked to stop"))
    except AuditUnavailable:
        return


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

    cursors = CursorStore(_beside(settings.audit.path, settings.follow.cursors_file, "cursors"))
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

    keeping = FileKeeping(_beside(settings.audit.path, settings.notify.state_file, "notify"))
    poster = Poster(settings.notify.private_hosts)

    def chore(said: NotifyChannel, channel: Channel) -> Chore:
        sender = Dispatcher(
            channel=channel, audit=journal.audit, keeping=keeping, send=poster, least=Urgency(said.least),
            told=lambda name, outcome: metrics.notifications.labels(name, outcome).inc(), jitter=random.random,
        )  # fmt: skip
        return Chore(f"messages to {said.name}", settings.notify.every_s, lambda: sender.look(journal.now()))

    return [chore(said, channel) for said, channel in make_channels(settings.notify, read_text)]


def _beside(audit: Path, chosen: Path | None, name: str) -> Path:
    return chosen or audit.with_name(f"{audit.stem}.{name}.json")


def _policy_text(settings: Settings) -> str:
    return read_text(settings.rules.policy_file or POLICY_FILE)


def _version() -> str:
    try:
        return version("relight")
    except PackageNotFoundError:
        return "source tree"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
