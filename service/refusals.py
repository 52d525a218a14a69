# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the application says no to, by the stable code that the API answers with."""

from __future__ import annotations


class Refused(Exception):
    """A command that the present state does not allow; `code` is one of `service.api.problems`."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail
