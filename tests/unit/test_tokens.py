# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Tokens: recognisable, kept as digests, expiring, two for each client."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bootstrap import first_token
from service.config import ConfigError, Server, Settings
from service.tokens import Principal, Role, TokenBook, TokenError, checksum, is_well_formed

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


class At:
    def now(self) -> datetime:
        return NOW


def test_a_secret_shows_its_role_and_carries_a_checksum() -> None:
    secret, _ = TokenBook().issue(Role.VIEWER, "ada", at=NOW)
    assert secret.startswith("rlt_viewer_")
    assert is_well_formed(secret)
    assert secret.endswith(checksum(secret[:-6]))


@given(place=st.integers(0, 48), letter=st.sampled_from("0Aa_x"))
def test_one_wrong_letter_is_seen_without_asking_anybody(place: int, letter: str) -> None:
    secret, _ = TokenBook().issue(Role.VIEWER, "ada", at=NOW)
    index = place % len(secret)
    changed = secret[:index] + letter + secret[index + 1 :]
    assert is_well_formed(changed) == (changed == secret)


def test_a_token_opens_until_it_expires() -> None:
    book = TokenBook()
    secret, token = book.issue(Role.CONTROLLER, "c", at=NOW, days=1, cluster="one")
    assert book.verify(secret, at=NOW) == Principal("c", Role.CONTROLLER, "one")
    assert book.verify(secret, at=token.expires_at) is None
    assert book.verify(secret, at=NOW - timedelta(seconds=1)) is None


def test_a_well_formed_stranger_is_nobody() -> None:
    secret, _ = TokenBook().issue(Role.ADMIN, "ada", at=NOW)
    assert TokenBook().verify(secret, at=NOW) is None


def test_only_digests_are_written(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    secret, token = TokenBook(file).issue(Role.ADMIN, "ada", at=NOW)
    text = file.read_text()
    assert secret not in text and secret[10:40] not in text and token.sha256 in text
    assert file.stat().st_mode & 0o077 == 0


def test_a_client_has_two_live_tokens_so_that_it_can_rotate() -> None:
    book = TokenBook()
    for _ in range(2):
        book.issue(Role.VIEWER, "ada", at=NOW, days=1)
    with pytest.raises(TokenError, match="2 live tokens"):
        book.issue(Role.VIEWER, "ada", at=NOW)
    book.issue(Role.VIEWER, "ada", at=NOW + timedelta(days=1))


def test_another_process_may_issue_and_revoke_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    server = TokenBook(file)
    secret, token = TokenBook(file).issue(Role.VIEWER, "ada", at=NOW)
    assert server.verify(secret, at=NOW) is not None
    TokenBook(file).revoke(token.sha256[:12])
    assert server.verify(secret, at=NOW) is None


def test_a_controller_names_its_one_cluster() -> None:
    with pytest.raises(TokenError, match="--cluster"):
        TokenBook().issue(Role.CONTROLLER, "c", at=NOW)


def test_no_token_lives_longer_than_a_year() -> None:
    with pytest.raises(TokenError, match="days"):
        TokenBook().issue(Role.VIEWER, "ada", at=NOW, days=366)


@pytest.mark.parametrize("text", ["", "[]", '{"tokens": [{}]}', '{"tokens": 5}'])
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "tokens.json"
    file.write_text(text)
    with pytest.raises(TokenError, match="not a token file"):
        TokenBook(file)


def test_a_digest_that_is_not_unique_revokes_nothing() -> None:
    book = TokenBook()
    book.issue(Role.VIEWER, "ada", at=NOW)
    for wrong in ("", "zz"):
        with pytest.raises(TokenError):
            book.revoke(wrong)


def test_the_first_token_is_made_on_this_machine_only() -> None:
    book = TokenBook()
    secret = first_token(Settings(), book, At())
    assert secret is not None
    assert book.verify(secret, at=NOW) == Principal("local-console", Role.ADMIN)
    assert first_token(Settings(), book, At()) is None
    with pytest.raises(ConfigError, match="relight token new"):
        first_token(Settings(server=Server(host="0.0.0.0")), TokenBook(), At())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away, so this is NOT tested here")
def test_a_token_that_root_issues_leaves_the_file_to_its_owner(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    TokenBook(file).issue(Role.ADMIN, "ada", at=NOW)
    os.chown(file, 10_001, 10_002)
    TokenBook(file).issue(Role.VIEWER, "bob", at=NOW)
    kept = file.stat()
    assert (kept.st_uid, kept.st_gid, kept.st_mode & 0o777) == (10_001, 10_002, 0o600)
