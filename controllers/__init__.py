# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Reference clients of /v1/recommendations; they import the kernel only."""
