# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Overlays laid over signatures, in no order but the one they state, with every contradiction between them named."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rules.checked import Quiet, Touch
from rules.examples import example_faults, still_passes
from rules.match import compile_pattern
from rules.overlay import FIELDS, ROW_FIELDS, Change, ParsedOverlay
from rules.pattern_check import pattern_faults
from rules.problems import Problem
from rules.reading import Parsed
from rules.schema import Pattern, Signature
from rules.source import Source


@dataclass(frozen=True, slots=True)
class Said:
    """What one overlay says about one target."""

    source: Source
    order: int
    target: str
    change: Change

    @property
    def signature(self) -> str:
        return self.target.partition("#")[0]

    @property
    def row(self) -> str:
        return self.target.partition("#")[2]

    def touch(self, field: str, value: str, before: str, *index: int | str, is_in_force: bool = True) -> Touch:
        line, _ = self.source.place(("changes", self.target, *index) if index else ("changes", self.target, field))
        return Touch(
            target=self.target, field=field, value=value, before=before, file=self.source.file, line=line,
            reason=self.change.reason, is_in_force=is_in_force,
        )  # fmt: skip

    def problem(self, what: str, fix: str, *key: int | str) -> Problem:
        return self.source.problem(("changes", self.target, *key), what, fix, self.target)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layered:
    """Signatures with everything that overlays say of them, and who said it."""

    signatures: tuple[Signature, ...]
    touches: tuple[Touch, ...]
    silences: tuple[Quiet, ...]
    problems: tuple[Problem, ...]


def laid_over(parsed: Sequence[Parsed], overlays: Sequence[ParsedOverlay], known: Mapping[str, Signature]) -> Layered:
    """Apply every overlay at once; which file is read first changes nothing.

    Shapes: `parsed` are the faultless signatures; `known` also holds those with faults, so that a target is not
            called missing because its own file has to be mended first.
    Errors: none; problems are returned, and what they concern is left as it was.
    """
    problems: list[Problem] = []
    said = [
        Said(one.source, one.overlay.order, target, change)
        for one in sorted(overlays, key=lambda o: o.source.file)
        for target, change in one.overlay.changes.items()
    ]
    sound = []
    for one in said:
        faults = [*_target_faults(one.source, ("changes", one.target), one.target, known)]
        faults = faults or [*_form_faults(one, known[one.signature])]
        problems += faults
        if not faults:
            sound.append(one)
    silences = tuple(_silences(overlays, known, problems))
    touches: list[Touch] = []
    out = []
    for holder in parsed:
        mine = [one for one in sound if one.signature == holder.signature.id]
        if mine:
            signature, faults, made = _changed(holder.signature, mine)
            problems += faults
            touches += [] if faults else made
            out.append(holder.signature if faults else signature)
        else:
            out.append(holder.signature)
    return Layered(signatures=tuple(out), touches=tuple(touches), silences=silences, problems=tuple(problems))


def _silences(
    overlays: Sequence[ParsedOverlay], known: Mapping[str, Signature], problems: list[Problem]
) -> Iterator[Quiet]:
    for one in overlays:
        for index, silence in enumerate(one.overlay.silences):
            path = ("silences", index, "signature")
            faults = [*_target_faults(one.source, path, silence.signature, known)]
            problems += faults
            if not faults:
                yield Quiet(
                    target=silence.signature, since=silence.since, until=silence.until, reason=silence.reason,
                    author=silence.author, file=one.source.file, line=one.source.place(("silences", index))[0],
                )  # fmt: skip


def _target_faults(
    source: Source, path: tuple[str | int, ...], target: str, known: Mapping[str, Signature]
) -> Iterator[Problem]:
    name, _, row = target.partition("#")
    if name not in known:
        near = difflib.get_close_matches(name, sorted(known), 1)
        fix = f"did you mean {near[0]!r}?" if near else "remove it; see relight rules lint for what is loaded"
        yield source.problem(path, f"no signature {name!r}", fix, target)
        return
    table = known[name].table
    if row and (table is None or row not in table.rows):
        near = difflib.get_close_matches(row, sorted(table.rows), 1) if table is not None else []
        fix = f"did you mean '{name}#{near[0]}'?" if near else f"write {name!r}"
        yield source.problem(path, f"{name!r} has no row {row!r}", fix, target)


def _form_faults(said: Said, signature: Signature) -> Iterator[Problem]:
    change = said.change
    if said.row:
        given = [name for name in FIELDS if getattr(change, name) is not None and name not in ROW_FIELDS]
        for name in (*given, *(key for key in ("add", "tests") if key in change.model_fields_set)):
            yield said.problem(f"a row has no {name!r} of its own", f"set it on {said.signature!r}", name)
    elif signature.table is not None:
        for name in ("severity", "action"):
            rows = [key for key, row in signature.table.rows.items() if getattr(row, name) is not None]
            if getattr(change, name) is not None and rows:
                fix = f"name the row, as in '{signature.id}#{rows[0]}'"
                yield said.problem(f"{len(rows)} rows of this table have their own {name}", fix, name)
    for group in ("any", "unless"):
        for index, pattern in enumerate(getattr(change.add, group)):
            path = ("changes", said.target, "add", group, index)
            faults = pattern_faults(said.source, path, pattern, said.target)
            yield from faults
            if not faults:
                yield from _unproven(said, group, index, pattern)


def _unproven(said: Said, group: str, index: int, pattern: Pattern) -> Iterator[Problem]:
    """A spelling needs a line that it fires on, an exception one that it keeps silent."""
    tests = said.change.tests
    lines, name = (tests.fires, "fires") if group == "any" else (tests.silent, "silent")
    compiled = compile_pattern(pattern)
    if not any(compiled.search(one.line.encode()) for one in lines):
        yield said.problem("no example holds it", f"add a line with it to tests.{name}", "add", group, index)


def _changed(base: Signature, said: Sequence[Said]) -> tuple[Signature, list[Problem], list[Touch]]:
    """One signature with all that is said of it. Faults: contradictions, and examples that come out otherwise."""
    faults: list[Problem] = []
    touches: list[Touch] = []
    values: dict[tuple[str, str], object] = {}
    for field in FIELDS:
        for row in dict.fromkeys(one.row for one in said):
            ballots = [one for one in said if one.row == row and getattr(one.change, field) is not None]
            if ballots:
                winner = _elected(field, ballots, faults)
                values[row, field] = getattr(winner.change, field)
                touches += _scalar_touches(base, field, ballots, winner)
    additions = _added(base, said, touches)
    effective = base.model_copy(update={**additions, **_own(values), **_rows(base, values)})
    for one in said:
        faults += example_faults(
            effective, one.source, one.change.tests.fires, one.change.tests.silent, ("changes", one.target, "tests")
        )
    if additions:
        adding = next(one for one in said if one.change.add.any or one.change.add.unless or one.change.add.streams)
        for what in still_passes(effective, base.tests.fires, base.tests.silent):
            faults.append(adding.problem(f"{base.id} {what}, an example of its own", "narrow what is added", "add"))
    return effective, faults, touches


def _elected(field: str, ballots: Sequence[Said], faults: list[Problem]) -> Said:
    """The highest order wins; two that differ in the same order contradict each other."""
    top = max(one.order for one in ballots)
    leading = [one for one in ballots if one.order == top]
    first = leading[0]
    for other in leading[1:]:
        mine, theirs = getattr(first.change, field), getattr(other.change, field)
        if mine != theirs:
            line, _ = first.source.place(("changes", first.target, field))
            what = f"{_word(theirs)} contradicts {_word(mine)} in {first.source.file}:{line}, both in order {top}"
            faults.append(other.problem(what, f"remove one, or give its file an 'order' above {top}", field))
    return first


def _scalar_touches(base: Signature, field: str, ballots: Sequence[Said], winner: Said) -> Iterator[Touch]:
    row = base.table.rows.get(winner.row) if base.table is not None and winner.row else None
    own = getattr(row, field, None) if row is not None else None
    before = True if field == "enabled" else own if own is not None else getattr(base, field)
    for one in ballots:
        wins = getattr(one.change, field) == getattr(winner.change, field) and one.order == winner.order
        yield one.touch(field, _word(getattr(one.change, field)), _word(before), is_in_force=wins)


def _added(base: Signature, said: Sequence[Said], touches: list[Touch]) -> dict[str, object]:
    """New spellings, exceptions and streams; what the signature already has is noted and added once."""
    if not any("add" in one.change.model_fields_set for one in said):
        return {}
    lists: dict[str, list[Pattern]] = {"any": list(base.match.any), "unless": list(base.match.unless)}
    streams = list(base.streams)
    for one in said:
        for group, patterns in lists.items():
            for index, pattern in enumerate(getattr(one.change.add, group)):
                has = any((p.regex, p.text) == (pattern.regex, pattern.text) for p in patterns)
                shown = pattern.regex or pattern.text or ""
                where = ("add", group, index)
                touches.append(one.touch(group, shown, "has it already" if has else "", *where, is_in_force=not has))
                if not has:
                    patterns.append(pattern)
        for index, stream in enumerate(one.change.add.streams):
            has = stream in streams
            where = ("add", "streams", index)
            touches.append(one.touch("streams", stream, "has it already" if has else "", *where, is_in_force=not has))
            if not has:
                streams.append(stream)
    return {"match": base.match.model_copy(update=lists), "streams": streams}


def _own(values: Mapping[tuple[str, str], object]) -> dict[str, object]:
    return {field: value for (row, field), value in values.items() if not row and field != "enabled"}


def _rows(base: Signature, values: Mapping[tuple[str, str], object]) -> dict[str, object]:
    if base.table is None:
        return {}
    rows = dict(base.table.rows)
    for (row, field), value in values.items():
        if row and field != "enabled":
            rows[row] = rows[row].model_copy(update={field: value})
    return {"table": base.table.model_copy(update={"rows": rows})}


def _word(value: object) -> str:
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
