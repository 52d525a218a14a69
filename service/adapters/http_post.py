# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Outgoing requests that a forged address can't turn inwards: checked hosts, no redirects, short answers."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

import httpx

from service.notify.channels import Post
from service.notify.outbox import Reply

TIMEOUT_S = 10
_FINAL = frozenset({400, 405, 410, 413, 415, 422})  # a refused token may be in rotation: tried again


@dataclass(frozen=True, slots=True)
class Poster:
    """Posts to public addresses, and to private ones only if their host is named in `private_hosts`.

    A name is resolved once and the connection made to that very address, so that a second answer of the
    name service can't lead elsewhere.
    """

    private_hosts: Collection[str] = ()
    timeout_s: float = TIMEOUT_S

    def __call__(self, post: Post) -> Reply:
        parts = urlsplit(post.url)
        host = parts.hostname or ""
        if parts.scheme not in {"http", "https"} or not host:
            return Reply(is_delivered=False, is_final=True, why="not an address of http or https")
        try:
            address = self._address(host, parts.port or (443 if parts.scheme == "https" else 80))
        except OSError as why:
            return Reply(is_delivered=False, why=f"{host}: {why}")
        if address is None:
            return Reply(is_delivered=False, is_final=True, why=f"{host} is a private address; name it to allow it")
        return self._sent(post, host, address)

    def _address(self, host: str, port: int) -> str | None:
        found = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        if host in self.private_hosts:
            return found[0]
        return found[0] if all(ipaddress.ip_address(one.partition("%")[0]).is_global for one in found) else None

    def _sent(self, post: Post, host: str, address: str) -> Reply:
        parts = urlsplit(post.url)
        port = f":{parts.port}" if parts.port else ""
        literal = f"[{address}]" if ":" in address else address
        target = urlunsplit(parts._replace(netloc=f"{literal}{port}"))
        headers = {**post.headers, "Host": f"{host}{port}", "User-Agent": "relight"}
        try:
            with httpx.Client(timeout=self.timeout_s, follow_redirects=False, trust_env=False) as client:
                request = client.build_request(
                    "POST", target, content=post.body, headers=headers, extensions={"sni_hostname": host}
                )
                answer = client.send(request, stream=True)
                answer.close()  # nothing in the body is of use
        except httpx.HTTPError as why:
            return Reply(is_delivered=False, why=f"{host}: {type(why).__name__}")
        if answer.is_success:
            return Reply(is_delivered=True)
        return Reply(
            is_delivered=False,
            is_final=answer.status_code in _FINAL or answer.is_redirect,
            why=f"{host} answered {answer.status_code}",
            retry_after_s=_seconds(answer.headers.get("retry-after")),
        )


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isascii() and header.isdigit() and len(header) < 7 else None
