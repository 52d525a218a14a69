# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a site sets for its Slurm controller and watchdog."""

from __future__ import annotations

from dataclasses import dataclass, field

from controllers.slurm.opt_in import OptInRules
from relight.types import ClusterId

DEFAULT_CLUSTER = ClusterId("default")


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Times in seconds.

    `hold_first`: requeue and hold a failed job while its log is still being read, so that Slurm's requeue
    delay runs meanwhile. `settle_s`: how long to wait for late log lines while no cause is known.
    `verify_after_s`: when to look again, later than slurmctld's save interval of 5 s twice over.
    `stop_grace_s`: how long a stopped job is held before it is cancelled, where the advice says nothing.
    `start_at_once`: bring the begin time that Slurm sets after a requeue forward to the advised
    back-off, or to `max_delay_s` if that is less, but to no sooner than `rest_s` after the run was ended: a node
    that has not quite finished with a run may take the next one for it.
    """

    cluster: ClusterId = DEFAULT_CLUSTER
    controller_id: str = "slurm-controller"
    opt_in: OptInRules = field(default_factory=OptInRules)
    hold_first: bool = True
    settle_s: float = 4.0
    verify_after_s: float = 15.0
    lease_s: float = 60.0
    hard_deadline_s: float = 240.0
    stop_grace_s: float = 1800.0
    start_at_once: bool = True
    max_delay_s: float = 3600.0
    rest_s: float = 4.0
    max_tries: int = 4
    round_budget_s: float = 1.5
    forget_after_s: float = 7 * 86_400.0

    def __post_init__(self) -> None:
        if not 0 < self.hard_deadline_s <= 240:
            raise ValueError(f"need 0 < hard_deadline_s <= 240, got {self.hard_deadline_s}: Slurm purges at 300 s")
        if self.settle_s < 0 or self.settle_s >= self.hard_deadline_s:
            raise ValueError(f"need 0 <= settle_s < hard_deadline_s, got {self.settle_s}")
