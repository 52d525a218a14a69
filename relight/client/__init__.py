# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What runs inside a training job: standard library only, and the one part of the kernel that does I/O."""

from relight.client.reporter import Reporter
from relight.client.settings import Settings, SettingsError

__all__ = ["Reporter", "Settings", "SettingsError"]
