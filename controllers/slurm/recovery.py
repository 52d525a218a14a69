# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Takes one recovery as far as it can go now: settle, claim, act, verify, report."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from controllers.slurm.acting import Acting
from controllers.slurm.advice import Advice, Advisor, AdvisorRefused, AdvisorUnreachable
from controllers.slurm.plan import Do, Over, Reached, Verb, Wait, is_ours, lacks_capacity, next_step
from controllers.slurm.pursuit import Pursuit
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.store import Store
from relight.jobs import JobRecord, SchedulerNode
from relight.ports import Clock
from relight.types import Action, AttemptId, AttemptState, Mode
from relight.watching import SLOW

EXECUTION = timedelta(seconds=60)
PATIENCE = timedelta(minutes=10)
MAX_STEPS = 8
_DEMOTED = frozenset({"mode_monitor", "awaiting_approval", "breaker_open"})
_OTHERS_NOW = frozenset({"claimed", "stale_claim"})


class Recovery:
    """Level-triggered: every call reads everything afresh, so that a crash anywhere costs only time.

    Errors: those of `Acting`. After each of them the deadline still holds: what is due is let go even while
    the advisor is silent.
    """

    def __init__(
        self, settings: ControllerSettings, acting: Acting, advisor: Advisor, store: Store, clock: Clock,
        is_paused: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._settings, self._acting, self._advisor = settings, acting, advisor
        self._store, self._clock, self._is_paused = store, clock, is_paused
        self.nodes: tuple[SchedulerNode, ...] = ()

    def advance(self, pursuit: Pursuit) -> bool:
        """True when the recovery is over and forgotten."""
        try:
            return self._advance(pursuit)
        except AdvisorUnreachable:
            self._let_go_if_due(pursuit)
            raise

    def _advance(self, pursuit: Pursuit) -> bool:
        job = self._acting.look(pursuit)
        try:
            advice = self._advisor.recommendation(pursuit.id)
        except AdvisorRefused:  # an advisor that does not know it can't have it recorded
            return self._dropped(pursuit)
        if not pursuit.is_decided and not self._decide(pursuit, advice, job):
            return self._undecided(pursuit, advice)
        if not advice.is_open:
            return self._dropped(pursuit)
        if not self._has_lease(pursuit):
            return False
        self._acting.flush(pursuit)
        self._acting.resume(pursuit, job)
        if not pursuit.verdict:
            self._act(pursuit)
        return self._conclude(pursuit) if pursuit.verdict else False

    # -------------------------------------------------------------- deciding

    def _decide(self, pursuit: Pursuit, advice: Advice, job: JobRecord | None) -> bool:
        """Claim the newest generation, once its evidence has settled."""
        now = self._clock.now()
        if advice.generation > pursuit.generation:
            pursuit.take(advice)
        if not advice.is_open or not advice.is_actionable or self._is_demoted(advice, job):
            return False
        if pursuit.was_running and advice.failure == SLOW and not self._is_at_checkpoint(pursuit):
            return False
        is_settled = pursuit.was_running or advice.names_a_cause or now >= datetime.fromisoformat(pursuit.settle_until)
        if not is_settled:
            if self._settings.hold_first and advice.is_restart and not pursuit.held_at:
                self._hold_meanwhile(pursuit, advice, job, now)
            return False
        if not self._claim(pursuit):
            return False
        pursuit.is_decided = True
        if not pursuit.held_at:
            pursuit.hold_until = (now + EXECUTION).isoformat()
        if advice.action is Action.STOP:
            pursuit.cancel_at = (
                now + timedelta(seconds=advice.stop_grace_s or self._settings.stop_grace_s)
            ).isoformat()
        pursuit.times["claimed"] = now.isoformat()
        self._acting.save(pursuit)
        return True

    def _is_at_checkpoint(self, pursuit: Pursuit) -> bool:
        """A run that is merely slow is ended right after its next checkpoint, so that nothing is computed twice."""
        saved = self._advisor.attempt(AttemptId(pursuit.attempt)).get("last_checkpoint")
        if pursuit.checkpoint is None:
            pursuit.checkpoint = -1 if saved is None else int(saved)
        return saved is not None and int(saved) > pursuit.checkpoint

    def _hold_meanwhile(self, pursuit: Pursuit, advice: Advice, job: JobRecord | None, now: datetime) -> None:
        """Slurm's requeue delay runs while the log is still being read."""
        hold = Do(verb=Verb.REQUEUE_HOLD)
        if next_step(job, pursuit.wanted(now)) == hold:
            latest = now + timedelta(seconds=self._settings.hard_deadline_s)
            pursuit.hold_until = min(advice.decide_deadline, latest).isoformat()
            self._acting.perform(pursuit, hold, on_record=False)

    def _undecided(self, pursuit: Pursuit, advice: Advice) -> bool:
        """No claim now: wait, or let go of what is held for it."""
        self._acting.save(pursuit)
        is_hopeless = not advice.is_open or (not advice.is_actionable and "awaiting_approval" not in advice.blocked_by)
        if is_hopeless:
            reason = next((gate for gate in advice.blocked_by if gate in _REPORTED), "")
            if advice.is_open and reason:
                pursuit.verdict = {"disposition": "ABANDONED", "reason": _REPORTED[reason]}
                return self._conclude(pursuit)
            return self._dropped(pursuit)
        self._let_go_if_due(pursuit)
        return False

    def _is_demoted(self, advice: Advice, job: JobRecord | None) -> bool:
        """The mode is lower than what was advised under: by the advisor, by the job's own words, or by a pause."""
        own = self._settings.opt_in.choose(job).mode if job is not None else Mode.ACT
        return self._is_paused() or own in {None, Mode.MONITOR} or bool(_DEMOTED & set(advice.blocked_by))

    def _claim(self, pursuit: Pursuit) -> bool:
        try:
            claim = self._advisor.claim(
                pursuit.id, self._settings.controller_id, pursuit.generation, self._settings.lease_s
            )
        except AdvisorRefused as why:
            self._store.log(self._clock.now().isoformat(), pursuit.attempt, "claim", "refused", {"why": str(why)[:300]})
            return False
        pursuit.token, pursuit.lease_until = claim.token, claim.until.isoformat()
        self._acting.save(pursuit)
        return True

    def _has_lease(self, pursuit: Pursuit) -> bool:
        left = datetime.fromisoformat(pursuit.lease_until) - self._clock.now()
        return left > timedelta(seconds=self._settings.lease_s / 3) or self._claim(pursuit)

    # -------------------------------------------------------------- acting

    def _act(self, pursuit: Pursuit) -> None:
        for _ in range(MAX_STEPS):
            job, now = self._acting.look(pursuit), self._clock.now()
            match next_step(job, pursuit.wanted(now)):
                case Wait():
                    return
                case Over() as over:
                    pursuit.verdict = {"disposition": over.disposition, "reason": over.reason}
                    return
                case Reached() as reached:
                    self._verify(pursuit, job, reached, now)
                    return
                case Do() as do:
                    if not self._do(pursuit, do, job):
                        return

    def _do(self, pursuit: Pursuit, do: Do, job: JobRecord | None) -> bool:
        """One verb; false if the round ends here."""
        if do.verb is not Verb.RELEASE and self._is_demoted(self._advisor.recommendation(pursuit.id), job):
            pursuit.verdict = {"disposition": "ABANDONED", "reason": "mode_monitor"}
            return False
        if do.verb is Verb.SET_EXCLUSIONS and not pursuit.lacks_capacity and not self._leaves_enough(pursuit, job):
            pursuit.lacks_capacity = True
            self._acting.save(pursuit)
            return True
        tries = sum(pursuit.tries.values())
        pursuit.reached_at = ""  # what was reached before was lost again
        gone = self._acting.perform(pursuit, do, on_record=True)
        if gone is not None:
            pursuit.verdict = {"disposition": gone.disposition, "reason": gone.reason}
        return gone is None and sum(pursuit.tries.values()) == tries

    def _leaves_enough(self, pursuit: Pursuit, job: JobRecord | None) -> bool:
        """Whether the job's partition can still give it what it asks; unknown counts as yes, Slurm decides."""
        if job is None or not self.nodes or job.requested_nodes is None:
            return True
        own = [node for node in self.nodes if job.partition in node.partitions]
        barred = self._acting.target(pursuit, job)
        return not own or sum(node.is_usable and node.name not in barred for node in own) >= job.requested_nodes

    def _verify(self, pursuit: Pursuit, job: JobRecord | None, reached: Reached, now: datetime) -> None:
        """slurmctld may lose the last seconds in a fail-over: it counts when it still holds after a while."""
        if not pursuit.reached_at:
            pursuit.reached_at, pursuit.reached_reason = now.isoformat(), reached.reason
            pursuit.times.setdefault("executed", now.isoformat())
            self._acting.save(pursuit)
            if pursuit.held_at and not pursuit.released_at and pursuit.action != Action.STOP:
                self._acting.witness_release(pursuit, job)
            self._report(pursuit, "PENDING", reached.reason, job)
        if job is not None and job.state is AttemptState.RUNNING and job.start_at is not None:
            pursuit.times.setdefault("restarted", job.start_at.isoformat())
        due = datetime.fromisoformat(pursuit.reached_at) + timedelta(seconds=self._settings.verify_after_s)
        if now < due or (job is not None and pursuit.added and _is_unproven(job) and now < due + PATIENCE):
            return  # whether there are nodes left for it shows only when it may start
        if job is not None and lacks_capacity(job) and pursuit.added and not pursuit.lacks_capacity:
            pursuit.lacks_capacity, pursuit.reached_at = True, ""  # take them back, then say so
            self._acting.save(pursuit)
            return
        disposition = "FAILED" if pursuit.lacks_capacity else "CONVERGED"
        reason = "no_capacity" if pursuit.lacks_capacity else pursuit.reached_reason
        pursuit.verdict = {"disposition": disposition, "reason": reason}

    # -------------------------------------------------------------- ending

    def _let_go_if_due(self, pursuit: Pursuit) -> None:
        """The deadline holds whether or not the advisor answers."""
        now = self._clock.now()
        if pursuit.hold_until and pursuit.held_at and now >= datetime.fromisoformat(pursuit.hold_until):
            self._let_go(pursuit)

    def _let_go(self, pursuit: Pursuit) -> None:
        """End a hold of ours that awaits a decision; a stop that was decided is not undone here."""
        now = self._clock.now()
        job = self._acting.look(pursuit)
        wanted = pursuit.wanted(now)
        if job is None or not is_ours(job, wanted) or (wanted.stops and wanted.is_decided):
            return
        pursuit.hold_until = min(pursuit.hold_until or now.isoformat(), now.isoformat())
        if pursuit.open_step and pursuit.open_step != Verb.RELEASE:
            pursuit.open_step = ""
        self._acting.perform(pursuit, Do(verb=Verb.RELEASE), on_record=False)

    def _conclude(self, pursuit: Pursuit) -> bool:
        """Nothing of ours may hold the job once the recovery is given up; then the result goes on record."""
        self._acting.save(pursuit)
        disposition, reason = pursuit.verdict["disposition"], pursuit.verdict["reason"]
        job = self._acting.look(pursuit)
        if disposition != "CONVERGED" and job is not None:
            if is_ours(job, pursuit.wanted(self._clock.now())):
                self._let_go_of_anything(pursuit)
            job = self._acting.look(pursuit)
            if job is not None:
                self._acting.unmark(pursuit, job)
        if pursuit.token:
            self._acting.flush(pursuit)
        if self._report(pursuit, disposition, reason, job):
            self._forget(pursuit, disposition, reason)
            return True
        return False

    def _let_go_of_anything(self, pursuit: Pursuit) -> None:
        """Given up for good: a stop of ours is undone too, since demotion releases and never cancels."""
        if Action(pursuit.action) is Action.STOP and pursuit.is_decided:
            pursuit.action, pursuit.exclusions = str(Action.RESTART), []
        self._let_go(pursuit)

    def _report(self, pursuit: Pursuit, disposition: str, reason: str, job: JobRecord | None) -> bool:
        observation: dict[str, object] = {}
        if job is not None:
            observation = {"job_state": job.native_state, "restart_count": job.restart_count,
                           "exc_nodes": sorted(map(str, job.exc_nodes)), "held": job.is_held}  # fmt: skip
        try:
            self._advisor.reconcile(
                pursuit.id, pursuit.generation, disposition, reason, observation, pursuit.token or None
            )
        except AdvisorRefused as why:
            now = self._clock.now().isoformat()
            self._store.log(now, pursuit.attempt, "report", "refused", {"why": str(why)[:300]})
            return why.code not in _OTHERS_NOW or disposition != "PENDING"
        return True

    def _dropped(self, pursuit: Pursuit) -> bool:
        """Nobody wants it any more: no report, and no hold left behind."""
        job = self._acting.look(pursuit)
        if job is not None and is_ours(job, pursuit.wanted(self._clock.now())):
            self._let_go_of_anything(pursuit)
            job = self._acting.look(pursuit)
        if job is not None:
            self._acting.unmark(pursuit, job)
        self._forget(pursuit, "DROPPED", "")
        return True

    def _forget(self, pursuit: Pursuit, disposition: str, reason: str) -> None:
        ended = {**pursuit.stored(), "disposition": disposition, "reason": reason, "token": ""}
        with self._store.together():
            self._store.put("outcome", pursuit.attempt, ended)
            self._store.drop("pursuit", pursuit.attempt)


def _is_unproven(job: JobRecord) -> bool:
    return job.state is AttemptState.PENDING and job.reason in {"", "BeginTime", "Dependency"}


_REPORTED = {"not_requeueable": "not_requeueable", "expired": "expired"}
