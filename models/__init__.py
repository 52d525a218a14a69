# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Online and trained models: one a file, with versioned JSON state."""
