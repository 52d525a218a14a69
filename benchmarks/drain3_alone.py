# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The peer: Drain3 as its own documentation sets it up, masks included, over one log file."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from drain3 import TemplateMiner
from drain3.masking import MaskingInstruction
from drain3.template_miner_config import TemplateMinerConfig

MASKS = (
    (r"((?<=[^A-Za-z0-9])|^)(([0-9a-f]{2,}:){3,}([0-9a-f]{2,}))((?=[^A-Za-z0-9])|$)", "ID"),
    (r"((?<=[^A-Za-z0-9])|^)(\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})((?=[^A-Za-z0-9])|$)", "IP"),
    (r"((?<=[^A-Za-z0-9])|^)(0x[a-f0-9A-F]+)((?=[^A-Za-z0-9])|$)", "HEX"),
    (r"((?<=[^A-Za-z0-9])|^)([\-\+]?\d+)((?=[^A-Za-z0-9])|$)", "NUM"),
)


def main(file: str) -> None:
    config = TemplateMinerConfig()
    config.masking_instructions = [MaskingInstruction(pattern, name) for pattern, name in MASKS]
    config.drain_max_clusters = 1_000
    miner = TemplateMiner(config=config)
    lines, began = 0, time.perf_counter()
    with Path(file).open(encoding="utf-8", errors="replace") as log:
        for line in log:
            miner.add_log_message(line.rstrip("\n"))
            lines += 1
    print(f"{lines} lines, {len(miner.drain.clusters)} templates, {time.perf_counter() - began:.6f} s")


if __name__ == "__main__":
    main(sys.argv[1])
