# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Log lines made as quickly as intake needs them: hundreds of thousands a second."""

from __future__ import annotations

from relight.quick import quickly
from relight.types import AttemptId, LogLine, NodeName

new_line = quickly(LogLine)


def renumbered(line: LogLine, number: int) -> LogLine:
    """The line as the `number`th of its file."""
    return new_line(
        attempt=line.attempt, file=line.file, number=number, stream=line.stream, text=line.text, at=line.at,
        node=line.node, rank=line.rank,
    )  # fmt: skip


def readdressed(line: LogLine, attempt: AttemptId, node: NodeName | None) -> LogLine:
    """The line as one of an attempt that was not known when it was made."""
    return new_line(
        attempt=attempt, file=line.file, number=line.number, stream=line.stream, text=line.text, at=line.at,
        node=node, rank=line.rank,
    )  # fmt: skip
