# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far each class of failures is trusted: its record beside the bar of the next stage, and the way up and down."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, TypeVar

from starlette.responses import RedirectResponse, Response

from relight.policy import lowest_mode
from relight.promotion import Stage
from relight.types import FailureClass, Mode
from service.api.access import cluster_of
from service.api.problems import Problem
from service.api.stages import standing_told
from service.application import Application
from service.promoting import DEMOTION, Standing
from service.tokens import Permission
from service.web import telling
from service.web.templating import address
from service.web.visits import View, Visit

Named = TypeVar("Named", bound=StrEnum)


def show_promotion(visit: Visit) -> View:
    app, settings = visit.app, visit.app.settings.promotion
    cluster = cluster_of(visit.caller, app, visit.asked("cluster") or None)
    standings = app.stages.standings(cluster)
    with app.journal.view:
        clusters = telling.clusters(app, visit.caller)
        classes = [_row(one, _mode(app, one)) for one in standings]
    return View(
        "promotion.html",
        "Promotion",
        {
            "filters": {"cluster": visit.asked("cluster")},
            "clusters": clusters,
            "cluster": cluster,
            "start": settings.start.value,
            "window_days": settings.window_days,
            "stages": [one.value for one in Stage],
            "bars": [
                {"stage": stage.value, "cases": bar.cases, "share": bar.share, "workloads": bar.workloads,
                 "false_stops": bar.false_stops}
                for stage, bar in settings.bars.items()
            ],
            "classes": classes,
            "may_set": visit.may(Permission.OPERATE),
            "done": visit.asked("done") == "set",
        },
    )  # fmt: skip


def set_stage(visit: Visit) -> Response:
    """A person's word on one class, on the stage that they looked at."""
    cluster = cluster_of(visit.caller, visit.app, visit.said("cluster") or None)
    failure_class = _one_of("class", visit.part("failure_class"), FailureClass)
    stage, reason = _one_of("stage", visit.said("stage"), Stage), visit.said("reason")
    if not reason:
        raise Problem("invalid", "a change of stage needs a reason: the next one who looks must know why")
    with visit.app.journal.lock:
        known = visit.app.stages.stage(cluster, failure_class)
        if visit.said("previous") != known.value:
            raise Problem("precondition_failed", f"it is {known} now: look at the page again")
        visit.app.stages.set(cluster, failure_class, stage, visit.caller.client, reason)
    target = address(visit.root, "/promotion", cluster=cluster, done="set")
    return RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})


def _mode(app: Application, one: Standing) -> Mode:
    """What counts on this cluster for this class now, before partition and workload have their say."""
    state = app.journal.state
    has_own = any(key[1:] == ("cluster", one.cluster) for key in state.modes)
    set_modes = state.mode_for(one.cluster, "", one.failure_class, "")
    return lowest_mode([one.stage.mode, *set_modes, *([] if has_own else [app.settings.recommend.mode])])


def _row(one: Standing, in_force: Mode) -> dict[str, Any]:
    told = standing_told(one).model_dump(mode="python", by_alias=True)
    below = [stage.value for stage in Stage if stage.rung < one.stage.rung]
    return told | {"choices": [*([told["following"]] if told["may_rise"] else []), *reversed(below)],
                   "was_demoted": told["actor"] == DEMOTION, "in_force": in_force.value}  # fmt: skip


def _one_of(name: str, said: str, known: type[Named]) -> Named:
    try:
        return known(said)
    except ValueError as why:
        raise Problem("invalid", f"no {name} {said!r}, choose from {', '.join(known)}") from why
