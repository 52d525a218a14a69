# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Figures for Prometheus: base units, few labels, and never a job or a user in one."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, generate_latest

from relight.events import (
    AnomalyDetected,
    DetectorFailed,
    Event,
    ModelPromoted,
    RecommendationExpired,
    RecommendationIssued,
    ReconciliationReported,
    WatchdogReleased,
)
from relight.types import Tier
from service.history import BREAKER
from service.holding import Holding
from service.journal import Journal

_LATENCIES = (0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 900)


class Metrics:
    """Counts what is recorded, and reads the state when asked; one registry for each application."""

    def __init__(self, journal: Journal, are_rules_good: Callable[[], bool], store_bytes: Callable[[], int]) -> None:
        self._journal = journal
        self._are_rules_good = are_rules_good
        self._store_bytes = store_bytes
        self.registry = CollectorRegistry()
        counter, histogram, gauge = self._makers()
        self.records = counter("relight_ingest_records", "Records by path and outcome", ["source", "outcome"])
        self.lag = histogram("relight_ingest_lag_seconds", "From a record's time to its receipt")
        self._held = counter(
            "relight_held_lines", "Lines of jobs not registered yet, by what became of them", ["outcome"]
        )
        self._held_bytes = gauge("relight_held_bytes", "What is held on disk for jobs not registered yet")
        self.redactions = counter("relight_redactions", "Secrets taken out of what arrived", ["kind"])
        self.notifications = counter("relight_notifications", "Notices by channel and outcome", ["channel", "outcome"])
        self.trace_spans = counter("relight_trace_spans", "Spans of recoveries by outcome", ["outcome"])
        self._detection = histogram("relight_detection_latency_seconds", "From onset to detection", ["kind"])
        self._anomalies = counter("relight_anomalies", "What detectors claimed", ["kind", "tier"])
        self._detectors = counter("relight_detector_failures", "Detectors that raised", ["detector"])
        self.rule_reloads = counter("relight_rules_reloads", "Rule folders read again after a change", ["outcome"])
        self.chores = counter("relight_chore_failures", "Background work that failed and is tried again", ["chore"])
        self._log_lag = gauge("relight_log_lag_seconds", "For how long followed logs have held more than was read")
        self._rule_folders = gauge("relight_rules_pending", "1 while changed rule files wait to stand still")
        self.log_lag: Callable[[], float] = lambda: 0.0
        self.rules_pending: Callable[[], bool] = lambda: False
        self._recommendation = histogram(
            "relight_recommendation_latency_seconds", "From an attempt's end to the advice on it"
        )
        self._decisions = counter("relight_decisions", "Verdicts", ["action", "mode"])
        self._actions = counter("relight_actions", "What controllers reported", ["outcome"])
        self._watchdog = counter("relight_watchdog_expirations", "Deadlines that passed without an action")
        self._circuit = gauge("relight_circuit_open", "1 while a breaker holds a cluster in monitor mode")
        self._rules = gauge("relight_rules_last_reload_successful", "1 if the newest rules are in force")
        self._chain = gauge("relight_audit_chain_length", "Events in the audit log")
        commit = histogram("relight_audit_fsync_seconds", "From an append to its being durable")
        self._store = gauge("relight_store_bytes", "Size of the audit log on disk; 0 for one in memory")
        self.skew = gauge("relight_clock_skew_seconds", "Our clock minus that of the last observer")
        self._head = Info("relight_audit_head", "The last hash of the chain", registry=self.registry)
        self._model = gauge("relight_model_info", "Models in force", ["version", "sha"])
        journal.listeners.append(self.recorded)
        journal.timers.append(commit.observe)

    def hold(self, holding: Holding) -> None:
        """Count what is held, handed over, expired and refused, from now on."""
        holding.told = lambda outcome, count: self._held.labels(outcome).inc(count)
        self._held_bytes.set_function(lambda: holding.bytes)

    def recorded(self, event: Event) -> None:
        """Called for every event once it is durable."""
        match event:
            case AnomalyDetected():
                said = event.anomaly
                self._anomalies.labels(said.kind, said.tier).inc()
                if said.tier is Tier.CONFIRMED:
                    self._detection.labels(said.kind).observe(said.latency_s)
            case DetectorFailed():
                self._detectors.labels(event.detector).inc()
            case RecommendationIssued():
                self._decisions.labels(event.action, event.mode).inc()
                attempt = self._journal.state.attempts.get(event.attempt)
                if event.generation == 1 and attempt is not None and attempt.ended_at is not None:
                    took = event.at - attempt.ended_at
                    self._recommendation.observe(max(took.total_seconds(), 0.0))
            case ReconciliationReported():
                self._actions.labels(event.disposition.lower()).inc()
            case RecommendationExpired() | WatchdogReleased():
                self._watchdog.inc()
            case ModelPromoted():
                self._model.labels(event.version, event.digest[:12]).set(1)
            case _:
                pass  # counted by the log itself

    def text(self) -> bytes:
        """The exposition format, with the gauges read now."""
        head = self._journal.audit.head()
        with self._journal.view:
            modes = tuple(self._journal.state.modes.values())
        self._circuit.set(any(entry.actor == BREAKER for entry in modes))
        self._rules.set(self._are_rules_good())
        self._rule_folders.set(self.rules_pending())
        self._log_lag.set(self.log_lag())
        self._chain.set(head.position)
        self._store.set(self._store_bytes())
        self._head.info({"hash": head.hash, "position": str(head.position)})
        return generate_latest(self.registry)

    def _makers(
        self,
    ) -> tuple[Callable[..., Counter], Callable[..., Histogram], Callable[..., Gauge]]:
        def counter(name: str, said: str, labels: list[str] | None = None) -> Counter:
            return Counter(name, said, labels or [], registry=self.registry)

        def histogram(name: str, said: str, labels: list[str] | None = None) -> Histogram:
            return Histogram(name, said, labels or [], buckets=_LATENCIES, registry=self.registry)

        def gauge(name: str, said: str, labels: list[str] | None = None) -> Gauge:
            return Gauge(name, said, labels or [], registry=self.registry)

        return counter, histogram, gauge
