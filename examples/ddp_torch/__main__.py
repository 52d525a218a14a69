# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`python -m examples.ddp_torch --rank R --world N --run DIR`, or under torchrun or Slurm without the first two."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from examples.ddp_torch.training import Training
from examples.job_log import open_log
from examples.job_options import read_options


def main() -> None:
    options = read_options()
    if find_spec("torch") is None:
        sys.exit("torch is not installed here (about 1 GB): pip install torch, or run examples.ddp_numpy")
    log = open_log(options)
    options.folder.announce(options.rank)
    Training(options, log).run()


if __name__ == "__main__":
    main()
