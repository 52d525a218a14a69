# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How a rank writes its log: a line for each step, and tracebacks that say which rank speaks."""

from __future__ import annotations

import logging
import sys
import time
import traceback
from types import TracebackType

from examples.job_options import JobOptions


def open_log(options: JobOptions) -> logging.Logger:
    """The log of a rank on standard output; uncaught exceptions go to standard error, as torch writes them."""
    handler = logging.StreamHandler(sys.stdout)
    formatter = logging.Formatter(f"%(asctime)s [rank{options.rank}] [{options.node}] %(levelname)s %(message)s")
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    log = logging.getLogger("job")
    log.setLevel(logging.INFO)
    log.handlers[:] = [handler]
    log.propagate = False
    prefix = f"[rank{options.rank}]: "

    def say(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        text = "".join(traceback.format_exception(kind, error, trace))
        sys.stderr.write("".join(f"{prefix}{line}\n" for line in text.splitlines()))

    sys.excepthook = say
    return log


def step_line(step: int, options: JobOptions, *, loss: float, grad_norm: float, lr: float, step_s: float) -> str:
    samples = options.batch * options.world / step_s
    return (
        f"step={step}/{options.steps} loss={loss:.4f} grad_norm={grad_norm:.3f} lr={lr:.1e} "
        f"step_time={step_s:.4f}s samples/s={samples:.1f}"
    )
