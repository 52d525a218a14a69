# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The Slurm controller and its watchdog: clients of the advisor that act on jobs, safely and repeatably."""
