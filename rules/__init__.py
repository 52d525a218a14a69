# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Signatures and policy tables as data: read, check and match, without any I/O."""
