# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The kinds of secrets that turn up in logs, and how each is told from what merely looks like one."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import re2

Keep = Callable[[str], bool]
_MIN_BITS: Final = 2.6


@dataclass(frozen=True, slots=True)
class Secret:
    """One kind of secret: `pattern` holds it in the group `secret`; `is_real` tells it from its look-alikes."""

    kind: str
    pattern: str
    is_real: Keep | None = None


def entropy_bits(text: str) -> float:
    """Shannon entropy in bits for each character."""
    counts = Counter(text).values()
    return -sum(n / len(text) * math.log2(n / len(text)) for n in counts) if text else 0.0


def _is_random(value: str) -> bool:
    """True for what a generator makes and no person or program calls a thing: letters and digits, well mixed."""
    has_both = any(c.isdigit() for c in value) and any(c.isalpha() for c in value)
    is_mixed = len(value) >= 12 and has_both and entropy_bits(value) >= _MIN_BITS
    return is_mixed and not _CODE.search(value) and not _PLAIN.fullmatch(value)


def _is_key(value: str) -> bool:
    """For names that hold nothing but secrets: also those without digits, but no paths and no code."""
    is_mixed = len(value) >= 8 and entropy_bits(value) >= 2.0 and _is_password(value)
    return is_mixed and not _CODE.search(value) and not _PATH.match(value)


def _is_password(value: str) -> bool:
    """Almost anything: people choose poor ones. Not what stands for "none given"."""
    return value.lower().strip("\"'") not in _NO_VALUE and not _MASKED.fullmatch(value)


_NO_VALUE: Final = frozenset(
    {"none", "null", "nil", "true", "false", "yes", "no", "on", "off", "unset", "empty", "required", "optional",
     "redacted", "[redacted]", "<redacted>", "secret", "password", "undefined", "str", "string", "optional[str]",
     "incorrect", "invalid", "wrong", "expired", "missing", "failed", "denied", "0", "1", ""}
)  # fmt: skip
_MASKED: Final = re2.compile(
    r"(?i)[*x.•#-]+|<[\w -]*>|\[redacted[^\]]*\]?|\$\{\w+\}|(?-i:\$[A-Z][A-Z_]*)|%\(\w+\)s|\{\w*\}"
)
_CODE: Final = re2.compile(r"[()\[\]{}<>|]")
_PATH: Final = re2.compile(r"(?:~|\.{0,2}|[a-z]:)/|[\w.-]+(?:/[\w.-]+)*/[\w-]+\.[a-z]{1,5}$|[a-z.]+\.(?:io|com|org)/")
_PART: Final = r"(?:[A-Za-z]+\d{0,3}|v?\d[\d.]{0,6}[A-Za-z]{0,2})"
_PLAIN: Final = re2.compile(
    rf"{_PART}(?:[-_./]{_PART})*"  # words and numbers, joined: what people call things
    r"|/.*|~.*"  # a path
    r"|[\d:.,xT+-]+Z?"  # a shape or a time
    r"|0x[0-9a-fA-F]+"  # an address
)
_VALUE = r"""(?:"(?P<secret>[^"]{1,400})"|'(?P<secret_>[^']{1,400})'|(?P<secret__>[^\s"',;&)\]}]+))"""
_SEP = r"""["']?\s{0,3}(?:=>|:=|[=:])\s{0,3}"""

SECRETS: Final[tuple[Secret, ...]] = (
    Secret("github_token", r"\b(?P<secret>gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,})"),
    Secret("gitlab_token", r"\b(?P<secret>gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[A-Za-z0-9_-]{18,})"),
    Secret("huggingface_token", r"\b(?P<secret>(?:hf|api_org)_[A-Za-z0-9]{30,60})\b"),
    Secret("aws_key_id", r"\b(?P<secret>(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16})\b"),
    Secret("openai_key", r"\b(?P<secret>sk-(?:proj-|svcacct-|admin-|ant-[a-z0-9]+-|or-v1-)?[A-Za-z0-9_-]{20,})",
           lambda value: any(c.isdigit() for c in value) and entropy_bits(value) >= 3.0),
    Secret("slack_token", r"\b(?P<secret>xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,})"),
    Secret("slack_webhook", r"hooks\.slack\.com/(?:services|workflows|triggers)/(?P<secret>[A-Za-z0-9/_-]{20,})"),
    Secret("google_key", r"\b(?P<secret>AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,})"),
    Secret("nvidia_key", r"\b(?P<secret>nvapi-[A-Za-z0-9_-]{20,})"),
    Secret("package_token", r"\b(?P<secret>npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{20,}"
                            r"|dckr_pat_[A-Za-z0-9_-]{20,})"),
    Secret("service_key", r"\b(?P<secret>[srp]k_(?:live|test)_[A-Za-z0-9]{16,}|SG\.[\w-]{16,}\.[\w-]{16,}"
                          r"|dop_v1_[a-f0-9]{64}|hvs\.[\w-]{20,}|glc_[\w+/=]{20,}|wandb_v1_[\w-]{20,})"),
    Secret("relight_token", r"\b(?P<secret>rlt_[a-z]+_[A-Za-z0-9]{20,})"),
    Secret("jwt", r"\b(?P<secret>eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"),
    Secret("private_key", r"(?P<secret>-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
                          r"[A-Za-z0-9+/=\\nr\s:,-]*?(?:-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----|$))"),
    Secret("url_userinfo", r"\b[A-Za-z][A-Za-z0-9+.-]{1,20}://(?P<secret>[^\s/@:\"'<>]{0,200}:[^\s/@\"'<>]{1,500})@",
           lambda value: _is_password(value.partition(":")[2])),
    Secret("authorization", rf"(?i)\bauthorization{_SEP}[\"']?(?:bearer|basic|token|negotiate|digest)?\s{{0,3}}"
                            r"(?P<secret>[A-Za-z0-9._~+/=-]{8,})", lambda value: _is_password(value)),
    Secret("authorization", r"(?i)\bbearer\s{1,3}(?P<secret>[A-Za-z0-9._~+/=-]{12,})", _is_random),
    Secret("password", rf"(?i)(?:\b|_|-)(?:pass(?:wd|word|phrase)?|[a-z]*passwd){_SEP}{_VALUE}", _is_password),
    Secret("password", rf"(?i)(?:\b|_|-)pwd{_SEP}{_VALUE}",
           lambda value: _is_password(value) and value[0] not in "/~."),
    Secret("password", r"(?i)(?:^|\s)--?(?:pass(?:wd|word)|pw)(?:=|\s{1,3})(?P<secret>[^\s\"']{3,})", _is_password),
    Secret("secret_value", r"(?i)(?:\b|_|-)(?:secret[_-]?(?:access[_-]?)?key|client[_-]?secret"
                           r"|api[_-]?(?:key|token|secret)|access[_-]?(?:key|token)|auth[_-]?(?:key|token)|refresh[_-]?token|session[_-]?token"
                           r"|private[_-]?token|account[_-]?key|encryption[_-]?key|signing[_-]?key|hf[_-]?token"
                           rf"|x-amz-(?:signature|credential|security-token)){_SEP}{_VALUE}", _is_key),
    Secret("secret_value", rf"(?i)(?:\b|_|-)(?:token|key|secret|sig|signature|credential){_SEP}{_VALUE}", _is_random),
)  # fmt: skip
