# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The signature format: what a rule file may say, as pydantic models and as JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from relight.types import Action, Role, Severity, Stream

SCHEMA_VERSION = 1

INT_CAPTURES = frozenset(
    {
        "rank",
        "local_rank",
        "world_size",
        "xid",
        "sxid",
        "seq",
        "timeout_ms",
        "elapsed_ms",
        "step",
        "total",
        "signal",
        "exit_code",
        "pid",
        "port",
        "status",
        "gpu_index",
        "link",
        "count",
        "uid",
        "epoch",
        "last_enqueued",
        "last_completed",
        "previous_xid",
        "cpu",
        "seconds",
    }
)
TEXT_CAPTURES = frozenset(
    {
        "node",
        "nodes",
        "peer",
        "gpu",
        "pci",
        "op",
        "comm",
        "path",
        "device",
        "reason",
        "group",
        "ranks",
        "exception",
        "message",
        "job_id",
        "user",
        "host",
        "uuid",
        "image",
        "server",
        "version",
        "unit",
        "engine",
        "sm",
        "address",
        "tasks",
        "code",
        "resource",
        "pod",
        "container",
        "severity",
        "loss",
        "grad_norm",
        "step_s",
        "step_ms",
        "throughput",
        "tokens",
        "samples",
        "batch",
        "sequence_length",
        "rank_batch",
        "accumulation",
        "percent",
        "limit",
        "usage",
        "other_rank",
        "other_op",
        "kind",
    }
)
CAPTURES = INT_CAPTURES | TEXT_CAPTURES

SignatureName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+$", max_length=80)]
Maturity = Literal["sandbox", "test", "stable", "deprecated"]
Line = Annotated[str, StringConstraints(min_length=1, max_length=4000)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_enum_values=False)


class Pattern(_Strict):
    """One spelling: a regular expression (RE2) or a plain text that must occur in the line."""

    regex: str | None = Field(None, min_length=3, max_length=2000)
    text: str | None = Field(None, min_length=3, max_length=500)
    since: str | None = Field(None, description="which versions print it, e.g. 'torch 2.1 - 2.3'")

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.regex is None) == (self.text is None):
            raise ValueError("give either 'regex' or 'text'")
        return self


class Match(_Strict):
    any: list[Pattern] = Field(min_length=1, max_length=60)
    unless: list[Pattern] = Field(default_factory=list, max_length=40)


class Row(_Strict):
    """One row of a table signature; what it leaves out comes from the signature."""

    title: str = Field(min_length=3, max_length=200)
    failure: str
    role: Role | None = None
    severity: Severity | None = None
    action: Action | None = None
    does_not_prove: str | None = None
    dissent: str | None = Field(None, description="which sources would decide otherwise, and how")


class Table(_Strict):
    """Many codes behind one pattern: the capture named by 'by' picks the row."""

    by: str
    rows: dict[str, Row] = Field(min_length=1, max_length=1000)


class Repeats(_Strict):
    """What many of these lines by one writer mean, where one alone means something else."""

    at_least: int = Field(ge=2, le=10_000)
    failure: str
    role: Role = Role.SYMPTOM


class Fires(_Strict):
    line: Line
    captures: dict[str, str] = Field(default_factory=dict)
    failure: str | None = Field(None, description="expected failure, for table signatures")


class Silent(_Strict):
    line: Line


class Tests(_Strict):
    fires: list[Fires] = Field(min_length=1)
    silent: list[Silent] = Field(min_length=1)


class Signature(_Strict):
    """A mechanism seen in logs, with the patterns that several versions print for it."""

    id: SignatureName
    kind: Literal["signature", "progress"] = "signature"
    title: str = Field(min_length=3, max_length=200)
    failure: str = "none"
    role: Role = Role.SYMPTOM
    maturity: Maturity = "stable"
    severity: Severity = Severity.ERROR
    streams: list[Stream] = Field(min_length=1)
    source: list[str] = Field(min_length=1)
    does_not_prove: str = Field(min_length=3, max_length=400)
    match: Match
    table: Table | None = None
    action: Action | None = Field(None, description="default action of this spelling, where it differs")
    accuses: Literal["writer", "captured", "none"] = Field(
        "writer",
        description="which node a match points to: the line's host, the captured node or peer, or none",
    )
    excuses: list[str] = Field(default_factory=list, description="failures a benign match explains away")
    excuses_when: Literal["any", "earlier"] = Field(
        "any", description="which lines of the file it excuses: all, or only those before it"
    )
    repeats: Repeats | None = None
    supersedes: list[str] = Field(default_factory=list, description="signatures that lose on the same line")
    event: Literal[
        "",
        "step",
        "checkpoint_begun",
        "checkpoint_completed",
        "evaluation",
        "initialising",
        "data_stall",
        "completed",
        "shape",
    ] = ""
    tests: Tests

    def failures(self) -> Iterator[str]:
        """Every failure that a match can name."""
        if self.table is None:
            yield self.failure
        else:
            yield from (row.failure for row in self.table.rows.values())
        if self.repeats is not None:
            yield self.repeats.failure


def signature_json_schema() -> dict[str, Any]:
    """JSON Schema (draft-07) of a signature file, for editors."""
    schema = Signature.model_json_schema(ref_template="#/definitions/{model}")
    schema["definitions"] = schema.pop("$defs", {})
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": "signature.v1.json",
        **schema,
    }
