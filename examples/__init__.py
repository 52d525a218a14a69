# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Small real training jobs that hang, die and resume; they run from a checkout and are not installed."""
