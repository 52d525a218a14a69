# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A whole recovery over HTTP: crash, advice, claim, action, restart, progress."""

from __future__ import annotations

from tests.api.conftest import Service


def test_a_crash_is_advised_on_acted_on_and_recovered_from(service: Service) -> None:
    service.crash()
    advice = service.advise()
    print(advice.text)
    assert advice.status_code == 201
