# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The console as a browser asks for it: cookies, the proof of a form, and the tags of a page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx

from service.tokens import Role
from service.web.console import Entry
from tests.api.running import Service

VIEWS = ("/fleet", "/incidents", "/incidents/{incident}", "/workload?id=llm-7b", "/attempts/a-1/steps", "/goodput",
         "/nodes", "/nodes/n2", "/rules", "/shadow", "/promotion", "/silences", "/silences?over=1", "/audit", "/audit?verify=1")  # fmt: skip
HOSTILE = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>", "'-alert(1)-'", "{{7*7}}",
    "{% raw %}", "&lt;b&gt;", "\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H", "a\rb", "bell\x07", "\x9b31m", "\u202eevil\u202c",
    "\u2066x\u2069", "\u061cx", "zero\u200bwidth", "soft\u00adhyphen", "\U000e0041tag", "javascript:alert(1)",
    "[x](javascript:alert(1))", "![x](http://evil.example/x.png)", "`code` break", "``` fence", "| pipe |", "@channel",
    "<!-- comment -->", "</pre></code>", "]]>", "\ufeffbom", "\u2028line", "%0d%0aSet-Cookie:x=1",
)  # fmt: skip
DRIVING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


class Browser:
    """A cookie jar of one, and the proof read from the page, as a browser would hold them."""

    def __init__(self, service: Service, role: Role = Role.OPERATOR) -> None:
        self.service = service
        self.cookies: dict[str, str] = {}
        self.login(service.secrets[role])

    def login(self, secret: str, **form: str) -> httpx.Response:
        proof = self.proof(self.get("/console/login").text)
        return self.post("/console/login", proof=proof, token=secret, **form)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._kept(self.service.get(path, headers=self._headers() | headers))

    def post(self, path: str, site: str = "same-origin", **form: str) -> httpx.Response:
        headers = self._headers() | {"Sec-Fetch-Site": site}
        return self._kept(self.service.post(path, data=form, headers=headers))

    def send(self, page: str, path: str, **form: str) -> httpx.Response:
        """Fill in a form of a page: its proof, and the words given."""
        return self.post(path, proof=self.proof(self.get(page).text), **form)

    @staticmethod
    def proof(page: str) -> str:
        found = re.search(r'name="proof" value="([0-9a-f]{64})"', page)
        assert found is not None, page
        return found[1]

    def _headers(self) -> dict[str, str]:
        return {"Authorization": "", "Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}

    def _kept(self, answer: httpx.Response) -> httpx.Response:
        self.cookies |= dict(answer.cookies)
        return answer


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def addresses(advice: dict[str, Any]) -> Iterator[str]:
    for view in VIEWS:
        yield "/console" + view.format(incident=advice["incident_id"])


def path_of(entry: Entry, advice: dict[str, Any]) -> str:
    filled = entry.path.format(incident=advice["incident_id"], attempt="a-1", node="n2",
                               recommendation=advice["id"], failure_class="hardware", silence="s-1")  # fmt: skip
    return "/console" + filled + ("?id=llm-7b" if entry.path == "/workload" else "")
