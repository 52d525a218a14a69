# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What collectors and health services send, decoded from their wire formats into our observations; no I/O."""
