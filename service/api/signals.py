# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/signals`: progress, timings, heartbeats, node and scheduler events, one result for each."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator

from relight.shape import StatedShape
from relight.types import (
    AttemptId,
    AttemptState,
    Heartbeat,
    LogLine,
    NodeEvent,
    NodeName,
    Observation,
    Rank,
    SchedulerState,
    StepProgress,
    StepTiming,
    Stream,
)
from service.api.access import App, cluster_of, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import Ask, Count, Identifier, Measure, Moment, Node, Told, Words
from service.observing import Fate, Signal
from service.tokens import Permission

router = resource("ingest")
MAX_BATCH = 1_000
_RUN_OF_JOB = re.compile(r"slurm:([0-9]{1,20}):([0-9]{1,6})")
RankNumber = Annotated[int, Field(ge=0, le=10_000_000)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


class LogSignal(Ask):
    file: str = Field(default="signal", max_length=1_000)
    stream: Stream = Stream.APPLICATION
    number: Count = 0
    text: str = Field(max_length=64_000)


class ProgressSignal(Ask):
    step: Count | None = None
    checkpoint_step: Count | None = None
    kind: Literal["started", "completed"] = "completed"


class StepTimingSignal(Ask):
    rank: RankNumber
    step: Count
    step_s: Seconds
    compute_s: Seconds | None = None


class HeartbeatSignal(Ask):
    rank: RankNumber


class ThroughputSignal(Ask):
    tokens_per_s: float | None = Field(default=None, ge=0)
    samples_per_s: float | None = Field(default=None, ge=0)


class ShapeSignal(Ask):
    """What the job trains with; what is left out stays as it was known."""

    global_batch_size: Measure | None = None
    sequence_length: Measure | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.global_batch_size is None and self.sequence_length is None:
            raise ValueError("a shape needs global_batch_size or sequence_length")
        return self


class NodeEventSignal(Ask):
    """NVSentinel's shape, in snake_case; `processing_strategy` STORE_ONLY makes it evidence only."""

    agent: str = Field(default="", max_length=200)
    component_class: str = Field(default="", max_length=200)
    check_name: str = Field(default="", max_length=200)
    is_fatal: bool
    is_healthy: bool = False
    error_code: list[Annotated[str, Field(max_length=100)]] = Field(default=[], max_length=32)
    recommended_action: str = Field(default="UNKNOWN", max_length=64)
    processing_strategy: Literal["EXECUTE_REMEDIATION", "STORE_ONLY"] = "EXECUTE_REMEDIATION"
    message: Words = ""


class SchedulerSignal(Ask):
    state: AttemptState
    reason: Words = ""
    exit_code: int | None = None
    signal: int | None = Field(default=None, ge=0, le=128)
    failed_nodes: list[Node] = Field(default=[], max_length=65_536)
    actor: str = Field(default="", max_length=256)


_PAYLOADS = ("log", "progress", "step_timing", "heartbeat", "throughput", "shape", "node_event", "scheduler_event")


class SignalAsk(Ask):
    """Who says it, when, about whom, and exactly one payload."""

    source: Identifier
    source_event_id: str = Field(min_length=1, max_length=255)
    event_time: Moment
    attempt_id: Identifier | None = None
    node: Node | None = None
    rank: RankNumber | None = None
    gpu: str | None = Field(default=None, max_length=64)
    log: LogSignal | None = None
    progress: ProgressSignal | None = None
    step_timing: StepTimingSignal | None = None
    heartbeat: HeartbeatSignal | None = None
    throughput: ThroughputSignal | None = None
    shape: ShapeSignal | None = None
    node_event: NodeEventSignal | None = None
    scheduler_event: SchedulerSignal | None = None

    @model_validator(mode="after")
    def _says_one_thing(self) -> Self:
        said = [name for name in _PAYLOADS if getattr(self, name) is not None]
        if len(said) != 1:
            raise ValueError(f"need exactly one of {', '.join(_PAYLOADS)}, got {', '.join(said) or 'none'}")
        if self.node_event is not None and self.node is None:
            raise ValueError("a node_event needs its node")
        if self.node_event is None and self.attempt_id is None:
            raise ValueError(f"{said[0]} needs its attempt_id")
        return self

    @property
    def kind(self) -> str:
        return next(name for name in _PAYLOADS if getattr(self, name) is not None)


class SignalBatch(Ask):
    """Each item is judged by itself, so a faulty one does not stop the others."""

    cluster_id: Identifier | None = None
    signals: list[Any] = Field(
        min_length=1, max_length=MAX_BATCH,
        json_schema_extra={"items": {"$ref": "#/components/schemas/SignalAsk"}},
    )  # fmt: skip


class SignalResult(Told):
    index: int
    source_event_id: str | None
    status: str = Field(examples=["accepted", "duplicate", "failed"])
    detail: str = ""


class SignalResults(Told):
    """Send again only what `failed`, after mending it."""

    accepted: int
    duplicates: int
    failed: int
    results: list[SignalResult]


_ITEM = TypeAdapter(SignalAsk)


@router.post("/signals", operation_id="sendSignals", responses=documented(413, 415))
@permits(Permission.INGEST)
def send_signals(body: SignalBatch, caller: Caller, app: App) -> SignalResults:
    """At most 1,000 signals; the key of each is (source, source_event_id)."""
    cluster = cluster_of(caller, app, body.cluster_id)
    results: list[SignalResult | None] = []
    signals, places = list[Signal](), list[int]()
    for index, raw in enumerate(body.signals):
        said = _read(index, raw)
        if isinstance(said, SignalResult):
            results.append(said)
            continue
        results.append(None)
        places.append(index)
        signals.append(_signal(_addressed(said, app, cluster), cluster))
    _refuse_foreign(app, signals, caller.cluster)
    for index, signal, item in zip(places, signals, app.intake.accept_signals(signals, caller.client), strict=True):
        results[index] = SignalResult(
            index=index, source_event_id=signal.source_event_id, status=item.fate, detail=item.detail
        )
    told = [one for one in results if one is not None]
    counts = {fate: sum(one.status == fate for one in told) for fate in Fate}
    for fate, count in counts.items():
        app.metrics.records.labels("signals", fate).inc(count)
    return SignalResults(
        accepted=counts[Fate.ACCEPTED],
        duplicates=counts[Fate.DUPLICATE],
        failed=counts[Fate.FAILED],
        results=told,
    )


def _read(index: int, raw: Any) -> SignalAsk | SignalResult:
    try:
        return _ITEM.validate_python(raw)
    except ValidationError as why:
        name = raw.get("source_event_id") if isinstance(raw, dict) else None
        fault = why.errors()[0]
        where = "/".join(map(str, fault["loc"]))
        return SignalResult(
            index=index,
            source_event_id=name if isinstance(name, str) else None,
            status=Fate.FAILED,
            detail=f"/{where}: {fault['msg']}",
        )


def _refuse_foreign(app: App, signals: list[Signal], cluster: str | None) -> None:
    """A token for one cluster can't speak of another's attempts."""
    if cluster is None:
        return
    with app.journal.view:
        for signal in signals:
            known = app.journal.state.attempts.get(signal.attempt) if signal.attempt else None
            if known is not None and known.seen.cluster != cluster:
                raise Problem("forbidden", f"attempt {signal.attempt!r} is not of cluster {cluster!r}")


def _addressed(said: SignalAsk, app: App, cluster: Any) -> SignalAsk:
    """A rank knows only the job and the restart that Slurm tells it: the attempt that those mean."""
    named = _RUN_OF_JOB.fullmatch(said.attempt_id or "")
    if named is None:
        return said
    with app.journal.view:
        state = app.journal.state
        known = None if said.attempt_id in state.attempts else state.attempt_of_job(cluster, named[1], int(named[2]))
    return said if known is None else said.model_copy(update={"attempt_id": known})


def _signal(said: SignalAsk, cluster: Any) -> Signal:
    return Signal(
        source=said.source,
        source_event_id=said.source_event_id,
        attempt=AttemptId(said.attempt_id) if said.attempt_id else None,
        cluster=cluster,
        observation=_observation(said),
        kind=said.kind,
        rate=_rate(said.throughput),
        shape=_shape(said),
    )


def _rate(said: ThroughputSignal | None) -> float | None:
    """Work per second, in the unit that the sender keeps to; tokens if it names both."""
    if said is None:
        return None
    return said.tokens_per_s if said.tokens_per_s is not None else said.samples_per_s


def _shape(said: SignalAsk) -> StatedShape | None:
    if said.shape is None or said.attempt_id is None:
        return None
    return StatedShape(
        attempt=AttemptId(said.attempt_id),
        batch=said.shape.global_batch_size,
        sequence_length=said.shape.sequence_length,
    )


def _observation(said: SignalAsk) -> Observation | None:
    """The kernel's type for a payload; a throughput has none: it joins the next completed step."""
    attempt, at = AttemptId(said.attempt_id or ""), said.event_time
    if said.log is not None:
        return LogLine(
            attempt=attempt, file=said.log.file, number=said.log.number, stream=said.log.stream,
            text=said.log.text, at=at, node=_node(said),
            rank=Rank(said.rank) if said.rank is not None else None,
        )  # fmt: skip
    if said.progress is not None:
        return StepProgress(
            attempt=attempt, at=at, step=said.progress.step, checkpoint_step=said.progress.checkpoint_step,
            is_completed=said.progress.kind == "completed",
        )  # fmt: skip
    if said.step_timing is not None:
        timing = said.step_timing
        return StepTiming(
            attempt=attempt, at=at, rank=Rank(timing.rank), step=timing.step, step_s=timing.step_s,
            compute_s=timing.compute_s,
        )  # fmt: skip
    if said.heartbeat is not None:
        return Heartbeat(attempt=attempt, at=at, rank=Rank(said.heartbeat.rank))
    if said.scheduler_event is not None:
        event = said.scheduler_event
        return SchedulerState(
            attempt=attempt, at=at, state=event.state, reason=event.reason, exit_code=event.exit_code,
            signal=event.signal, failed_nodes=tuple(map(NodeName, event.failed_nodes)), actor=event.actor,
        )  # fmt: skip
    return _node_event(said)


def _node_event(said: SignalAsk) -> NodeEvent | None:
    event, node = said.node_event, _node(said)
    if event is None or node is None:
        return None
    does_count = event.is_fatal and not event.is_healthy and event.processing_strategy != "STORE_ONLY"
    return NodeEvent(
        at=said.event_time,
        node=node,
        code=",".join(event.error_code) or event.check_name or "unknown",
        is_fatal=does_count,
        text=event.message,
        gpu=said.gpu,
    )


def _node(said: SignalAsk) -> NodeName | None:
    return NodeName(said.node) if said.node is not None else None
