# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The advisor's HTTP resources, one small module each."""
