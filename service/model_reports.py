# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What `relight models` shows of figures: one line a view, a comparison, the objections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.attribution_training import VIEWS, Comparison
from service.terminal import escaped, message, result


def show_views(views: Mapping[str, Mapping[str, Any]]) -> None:
    for view, (withheld, _) in VIEWS.items():
        if view in views:
            result(score_line(view, views[view]))
            result(f"{'':18}{withheld}")


def score_line(view: str, m: Mapping[str, Any]) -> str:
    return (
        f"{view:<16}  accuracy {m['accuracy']} (commonest class {m['majority_accuracy']})  among 3 {m['top3']}  "
        f"macro-F1 {m['macro_f1']}  failure among 3 {m['failure_top3']}"
    )


def show_comparison(champion: str, challenger: str, both: Comparison) -> None:
    result(f"{both.cases} cases that both were asked about unseen")
    result(score_line(champion, both.champion))
    result(score_line(challenger, both.challenger))
    result(f"won   {', '.join(map(escaped, both.won)) or '-'}")
    result(f"lost  {', '.join(map(escaped, both.lost)) or '-'}")


def show_objections(against: Sequence[str]) -> None:
    for one in against:
        message(f"relight: objection: {escaped(one)}")
