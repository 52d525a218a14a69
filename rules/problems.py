# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What is wrong with a rule file, where, and how to mend it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One fault in a rule file; `line` and `column` count from 1."""

    file: str
    line: int
    column: int
    signature: str
    key: str
    what: str
    fix: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column} {self.signature} {self.key}: {self.what}, {self.fix}"


class RulesInvalid(ValueError):
    """A rule set that must not be loaded; carries every problem found, not the first."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems))
