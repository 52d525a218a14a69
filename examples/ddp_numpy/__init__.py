# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Data parallel training in NumPy over TCP: no GPU, no download, and fails like the real thing."""
