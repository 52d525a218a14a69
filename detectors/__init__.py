# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From observations to anomalies and evidence."""
