# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`python -m examples.ddp_torch --rank R --world N --run DIR`, or under torchrun or Slurm without the first two."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from examples.ddp_torch.training import Training
from examples.job_log import open_log
from examples.job_options import JobOptions, read_options


def main() -> None:
    options = read_options()
    if find_spec("torch") is None:
        sys.exit(
            "torch is not installed here: apt-get install python3-torch and use /usr/bin/python3, or pip install torch "
            "(about 1 GB), or run examples.ddp_numpy"
        )
    options = _listening_itself(options)
    log = open_log(options)
    options.folder.announce(options.rank)
    Training(options, log).run()


def _listening_itself(options: JobOptions) -> JobOptions:
    """Torch before 2.0 takes no listening socket over: it is closed before anybody has had time to knock."""
    try:
        takes_it = int(version("torch").partition(".")[0]) >= 2
    except (PackageNotFoundError, ValueError):
        takes_it = False
    if options.listen_fd is None or takes_it:
        return options
    os.close(options.listen_fd)
    return replace(options, listen_fd=None)


if __name__ == "__main__":
    main()
