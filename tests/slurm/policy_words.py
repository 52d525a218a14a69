# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The policy of a running advisor, changed as an operator changes it: by an audited request."""

from __future__ import annotations

import re
from typing import Any

import httpx


def rewrite_policy(client: httpx.Client, reason: str, **terms: Any) -> None:
    """Other values for numbers and words of the policy file, by their names. Errors: AssertionError."""
    told = client.get("/v1/policy")
    text = told.json()["text"]
    for name, value in terms.items():
        text, found = re.subn(rf"(?m)^  {name}: \S+", f"  {name}: {str(value).lower()}", text)
        assert found == 1, f"{name} stands {found} times in the policy"
    body = {"text": text, "actor": "ops", "reason": reason}
    answer = client.put("/v1/policy", json=body, headers={"If-Match": told.headers["ETag"]})
    assert answer.status_code == 200, answer.text


def lift_limits(client: httpx.Client) -> None:
    """So many failures at once would trip every breaker, as they should."""
    rewrite_policy(client, "many failures are made on purpose", breaker_workloads=0, cluster_restarts_per_hour=9999,
                   user_restarts_per_hour=9999, hourly_nodes=9999, standing_nodes=9999, correlated_nodes=9999,
                   scarce_spares=0)  # fmt: skip
