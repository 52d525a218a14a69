# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The shell: HTTP, DuckDB, files and time."""
