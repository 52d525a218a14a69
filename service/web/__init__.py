# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The operators' console: server-rendered pages, each with a JSON twin, and no script but our own."""
