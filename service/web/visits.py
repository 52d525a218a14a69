# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A request to the console with who makes it, and what a page hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from service.api.problems import Problem
from service.application import Application
from service.tokens import Permission, Principal
from service.web.step_board import StepBoard
from service.web.time_used import TimeUsed

PER_PAGE = 100


@dataclass(frozen=True, slots=True)
class View:
    """The data of a page: the template shows it, the JSON twin is it."""

    template: str
    title: str
    data: Mapping[str, Any]
    watch: bool = True
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """What a page may ask for: the application, the caller, and the request's own words."""

    request: Request
    app: Application
    caller: Principal
    steps: StepBoard
    time_used: TimeUsed
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def root(self) -> str:
        return str(self.request.scope.get("root_path", ""))

    @property
    def now(self) -> datetime:
        return self.app.journal.now()

    def part(self, name: str) -> str:
        return str(self.request.path_params[name])

    def may(self, permission: Permission) -> bool:
        return self.caller.may(permission)

    def sees(self, cluster: str | None) -> bool:
        return self.caller.may_see(cluster or "")

    def asked(self, name: str, limit: int = 200) -> str:
        """A parameter of the address, "" if absent. Errors: Problem malformed_parameter if too long."""
        return _short(name, self.request.query_params.get(name, ""), limit)

    def number(self, name: str, default: int | None = None) -> int | None:
        """Errors: Problem malformed_parameter unless it is a whole number from 0 on."""
        said = self.asked(name, 20)
        if not said:
            return default
        if not (said.isascii() and said.isdigit()):
            raise Problem("malformed_parameter", f"{name}={said!r}: write a whole number from 0 on")
        return int(said)

    def choice(self, name: str, known: type[Any]) -> Any:
        """One of an enumeration, or None if absent. Errors: Problem malformed_parameter, with the choices."""
        said = self.asked(name)
        if not said:
            return None
        try:
            return known(said)
        except ValueError as why:
            choices = ", ".join(str(one) for one in known)
            raise Problem("malformed_parameter", f"{name}={said!r}: choose from {choices}") from why

    def moment(self, name: str) -> datetime | None:
        """A time; without a zone it is UTC, as the form fields of browsers have none."""
        said = self.asked(name, 40)
        if not said:
            return None
        try:
            found = datetime.fromisoformat(said)
        except ValueError as why:
            raise Problem("malformed_parameter", f"{name}={said!r}: write it as 2026-11-02T12:00Z") from why
        return found if found.tzinfo is not None else found.replace(tzinfo=UTC)

    def said(self, name: str, limit: int = 2_000) -> str:
        """A field of the form, "" if absent."""
        return _short(name, self.form.get(name, "").strip(), limit)


Page = Callable[[Visit], "View | Response"]


def _short(name: str, said: str, limit: int) -> str:
    if len(said) > limit:
        raise Problem("malformed_parameter", f"{name} is longer than {limit} characters")
    return said
