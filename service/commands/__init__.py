# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One module per sub-command; each is imported only when it is called."""
