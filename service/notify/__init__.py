# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Telling people and other systems what was recorded: at least once, signed, retried, and never in the way."""
