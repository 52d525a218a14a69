# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The kernel of Relight: the nouns of workload recovery and the pure decisions over them."""
