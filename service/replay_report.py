# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A replay as one page of HTML: no script, nothing loaded, and every word of a log escaped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from service.terminal import escaped

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2330;--soft:#5b6678;--line:#d5dae3;--bar:#2f6f9f;--page:#fff}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf2;--soft:#a3adbd;--line:#3a4354;--bar:#7db7e0;--page:#14181f}}
body{font:15px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--page)}
body{max-width:72rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0 2rem}
th,td{border-bottom:1px solid var(--line);padding:.3rem .6rem;text-align:left;vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}caption{text-align:left;color:var(--soft)}
dl{display:flex;flex-wrap:wrap;gap:1rem 2.5rem}dt{color:var(--soft)}dd{margin:0;font-size:1.5rem}
svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg rect{fill:var(--bar)}
"""
_MAX_ROWS = 2_000


def page(said: Mapping[str, Any]) -> str:
    """The report of what `relight replay --out` writes as JSON."""
    cases: Sequence[Mapping[str, Any]] = said["cases"]
    parts = [
        "<h1>Replay</h1>",
        _facts(said),
        _figure("What would have been advised", Counter(str(one["action"]) for one in cases)),
        _figure("Failures named", Counter(str(one["failure"]) for one in cases).most_common(20)),
        _delays([one["delay_s"] for one in cases if one.get("delay_s") is not None]),
        _score(said.get("score")),
        _changes(said.get("changes")),
        _cases(cases),
    ]
    title = f"Replay of {_safe(said['source'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"{''.join(parts)}</body></html>\n"
    )


def _facts(said: Mapping[str, Any]) -> str:
    cases = said["cases"]
    facts = {
        "cases": len(cases),
        "would be stopped": sum(one["action"] == "stop" for one in cases),
        "nodes kept out": len({node for one in cases for node in one["nodes"]}),
    }
    total = (said.get("score") or {}).get("total")
    if total:
        low, high = total["precision_95"]
        facts |= {
            "labelled": total["cases"],
            "named rightly": f"{_percent(total['precision'])} ({_percent(low)} to {_percent(high)})",
            "false stops": total["false_stops"],
            "GPU-hours at stake in wrong advice": total["gpu_hours_lost"],
        }
    rows = "".join(f"<div><dt>{_safe(name)}</dt><dd>{_safe(value)}</dd></div>" for name, value in facts.items())
    judged_by = f"rules {_safe(said['rules'][:12])}, policy {_safe(said['policy'])}"
    return f"<p>{_safe(said['source'])}; {judged_by}</p><dl>{rows}</dl>"


def _figure(title: str, counts: Mapping[str, int] | Iterable[tuple[str, int]]) -> str:
    """Bars with their numbers; the same figures stand in the table of cases below."""
    rows = list(counts.items()) if isinstance(counts, Mapping) else list(counts)
    if not rows:
        return ""
    longest, height = max(n for _, n in rows), 22 * len(rows)
    bars = "".join(
        f'<text x="300" y="{22 * i + 15}" text-anchor="end">{_safe(name)}</text>'
        f'<rect x="310" y="{22 * i + 3}" width="{max(1, 380 * n // longest)}" height="15"></rect>'
        f'<text x="{316 + max(1, 380 * n // longest)}" y="{22 * i + 15}">{n}</text>'
        for i, (name, n) in enumerate(rows)
    )
    drawn = f'<svg viewBox="0 0 760 {height}" role="img" aria-label="{_safe(title)}">{bars}</svg>'
    return f"<h2>{_safe(title)}</h2>{drawn}"


def _delays(delays: Sequence[float]) -> str:
    edges = ((1, "≤ 1 s"), (10, "≤ 10 s"), (30, "≤ 30 s"), (60, "≤ 1 min"), (300, "≤ 5 min"), (1_800, "≤ 30 min"))
    counts = dict.fromkeys([name for _, name in edges] + ["longer"], 0)
    for delay in delays:
        counts[next((name for edge, name in edges if delay <= edge), "longer")] += 1
    return _figure("From the first sign to the detection", counts) if delays else ""


def _score(score: Mapping[str, Any] | None) -> str:
    if not score:
        return ""
    head = "<tr><th>Signature</th>" + "".join(
        f'<th class="n">{name}</th>'
        for name in ("Cases", "Right", "Precision", "95 %", "Advice fit", "False stops", "Missed stops",
                     "Wrong nodes", "Median delay, s", "GPU-hours")
    ) + "</tr>"  # fmt: skip
    rows = []
    for name, one in {"all": score["total"], **score["by_signature"]}.items():
        low, high = one["precision_95"]
        numbers = (one["cases"], one["right"], _percent(one["precision"]), f"{_percent(low)} to {_percent(high)}",
                   one["actions_right"], one["false_stops"], one["missed_stops"], one["false_exclusions"],
                   _number(one["delay_s_median"]), one["gpu_hours_lost"])  # fmt: skip
        cells = "".join(f'<td class="n">{_safe(number)}</td>' for number in numbers)
        rows.append(f"<tr><td>{_safe(name)}</td>{cells}</tr>")
    matrix = "".join(
        f'<tr><td>{_safe(one["labelled"])}</td><td>{_safe(one["said"])}</td><td class="n">{one["cases"]}</td></tr>'
        for one in score["actions"]
    )
    wrong = "".join(f"<tr><td>{_safe(one['name'])}</td><td>{_safe(one['what'])}</td></tr>" for one in score["wrong"])
    return (
        f"<h2>By signature</h2><table>{head}{''.join(rows)}</table>"
        f"<h2>Advice against labels</h2><table><tr><th>Labelled</th><th>Said</th>"
        f'<th class="n">Cases</th></tr>{matrix}</table>' + (f"<h2>Wrong</h2><table>{wrong}</table>" if wrong else "")
    )


def _changes(found: Sequence[Mapping[str, Any]] | None) -> str:
    if found is None:
        return ""
    rows = "".join(
        f"<tr><td>{_safe(one['name'])}</td><td>{_safe(one['before'])}</td><td>{_safe(one['after'])}</td></tr>"
        for one in found
    )
    head = "<tr><th>Case</th><th>Before</th><th>Now</th></tr>"
    return f"<h2>{len(found)} changed</h2>" + (f"<table>{head}{rows}</table>" if found else "")


def _cases(cases: Sequence[Mapping[str, Any]]) -> str:
    head = (
        "<tr><th>Case</th><th>Failure</th><th>Advice</th><th>Nodes</th><th>Root</th><th>Why</th><th>Delay, s</th></tr>"
    )
    rows = []
    for one in cases[:_MAX_ROWS]:
        root = f"{one['root_file']}:{one['root_line']}" if one.get("root_file") else ""
        cells = (one["name"], one["failure"], one["action"], ", ".join(one["nodes"]), root, one.get("reason", ""),
                 _number(one.get("delay_s")))  # fmt: skip
        rows.append("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in cells) + "</tr>")
    left = f"<caption>The first {_MAX_ROWS} of {len(cases)}</caption>" if len(cases) > _MAX_ROWS else ""
    return f"<h2>Cases</h2><table>{left}{head}{''.join(rows)}</table>"


def _safe(value: object) -> str:
    return escape(escaped(str(value)), quote=True)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.1f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
