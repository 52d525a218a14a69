# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One script per figure in the README, each with the peer it is measured against in the same run."""
