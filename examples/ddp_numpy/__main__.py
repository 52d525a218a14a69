# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`python -m examples.ddp_numpy --rank R --world N --run DIR`: one rank of the job."""

from __future__ import annotations

from examples.ddp_numpy.training import Training
from examples.job_log import open_log
from examples.job_options import read_options


def main() -> None:
    options = read_options()
    log = open_log(options)
    options.folder.announce(options.rank)
    Training(options, log).run()


if __name__ == "__main__":
    main()
