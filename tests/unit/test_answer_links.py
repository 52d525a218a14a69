# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Links that answer: read back only as they were made, and the key that makes them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.types import RecommendationId
from service.adapters.key_file import KeyUnusable, key_from
from service.answer_links import AnswerLink, AnswerLinks, NotOurs, console_address

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
LINK = AnswerLink(
    recommendation=RecommendationId("5f0d2c0e-5a0b-5c5e-9b62-0c1c7a5b9f11"), generation=2, channel="on-call_2",
    expires_at=NOON,
)  # fmt: skip
LINKS = AnswerLinks(b"k" * 32, "https://relight.example.org")


def test_a_link_is_read_back_as_it_was_made() -> None:
    address = LINKS.address(LINK)
    assert address.startswith("https://relight.example.org/console/answer/1.5f0d2c0e-")
    assert LINKS.read(address.rpartition("/")[2]) == LINK
    assert LINK.actor == "link:on-call_2"


def test_every_part_of_a_link_is_under_its_signature() -> None:
    token = LINKS.token(LINK)
    for other in (
        replace(LINK, generation=3),
        replace(LINK, channel="other"),
        replace(LINK, expires_at=NOON + timedelta(seconds=1)),
        replace(LINK, recommendation=RecommendationId("5f0d2c0e-5a0b-5c5e-9b62-0c1c7a5b9f12")),
    ):
        forged = LINKS.token(other).rpartition(".")[0] + "." + token.rpartition(".")[2]
        with pytest.raises(NotOurs):
            LINKS.read(forged)


def test_every_single_changed_character_is_noticed() -> None:
    token = LINKS.token(LINK)
    for place in range(len(token) - 1):  # the last digit of base64 holds bits that nothing uses
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(NotOurs):
            LINKS.read(changed)


@pytest.mark.parametrize(
    "token", ["", ".", "1.r.1.1.c.", "nonsense", "1.a.1.1.c." + "A" * 43, "1.a.0.1.c." + "A" * 43, "1.a.1.1.C." + "A" * 43,
              "1.\u0430.1.1.c." + "A" * 43, "1.a.1.1.c." + "A" * 43 + "\n", "1.a.1." + "9" * 40 + ".c." + "A" * 43]
)  # fmt: skip
def test_what_is_no_link_is_refused_and_breaks_nothing(token: str) -> None:
    with pytest.raises(NotOurs):
        LINKS.read(token)


def test_another_services_links_are_not_ours() -> None:
    with pytest.raises(NotOurs):
        AnswerLinks(b"x" * 32, "").read(LINKS.token(LINK))


def test_a_short_key_keeps_no_secret() -> None:
    with pytest.raises(ValueError, match="at least 32 bytes"):
        AnswerLinks(b"short", "")


def test_console_url_may_name_the_server_or_the_console() -> None:
    for said in ("https://r.example", "https://r.example/", "https://r.example/console", "https://r.example/console/"):
        assert console_address(said) == "https://r.example/console"
    assert console_address("") == ""


# ------------------------------------------------------------------ the key


def test_a_key_is_made_once_and_for_us_alone(tmp_path: Path) -> None:
    path = tmp_path / "links.key"
    made = key_from(path)
    assert (len(made), path.stat().st_mode & 0o777) == (32, 0o600)
    assert key_from(path) == made
    assert key_from(tmp_path / "other.key") != made


@pytest.mark.parametrize("text", ["", "nonsense", "ab" * 31, "\u00fc"])
def test_a_file_that_holds_no_key_of_ours_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "links.key"
    path.write_text(text, "utf-8")
    path.chmod(0o600)
    with pytest.raises(KeyUnusable, match=r"links\.key"):
        key_from(path)


def test_a_key_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "links.key"
    key_from(path)
    path.chmod(0o640)
    with pytest.raises(KeyUnusable, match="chmod 600"):
        key_from(path)
