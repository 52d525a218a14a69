# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What touches the world: the audit store, log files, the clock."""
