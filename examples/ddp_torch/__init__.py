# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The same job with PyTorch DDP on gloo: no GPU, but the messages and hangs of the real library."""
