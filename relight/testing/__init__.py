# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Contract suites that plugins inherit."""
