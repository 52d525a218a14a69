# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The training loop of one rank."""

from __future__ import annotations

import logging
import math
import os
import time
from time import perf_counter

import numpy as np

from examples.ddp_numpy import checkpoint, network
from examples.ddp_numpy.network import Adam, Array
from examples.ddp_numpy.rendezvous import join_ring
from examples.ddp_numpy.ring import Ring
from examples.job_faults import Faults
from examples.job_log import step_line
from examples.job_options import JobOptions
from relight.client import Reporter


class Training:
    """One rank of a data parallel job. Every rank holds the same weights after every step."""

    def __init__(self, options: JobOptions, log: logging.Logger) -> None:
        self._options, self._log = options, log
        self._faults = Faults(options.folder.control(options.rank), options.rank)
        self._reporter = Reporter.from_env()
        self._weights = network.first_weights(options.seed)
        self._adam = Adam()
        self._ring: Ring | None = None

    def run(self) -> None:
        o, log = self._options, self._log
        address = f"master={o.host}:{o.port}"
        log.info("initializing process group backend=tcp-ring world_size=%d %s", o.world, address)
        self._ring = join_ring(o)
        log.info("process group ready pid=%d numpy=%s attempt=%d", os.getpid(), np.__version__, o.attempt)
        first = self._resumed()
        log.info("training starts at step %d of %d params=%d", first, o.steps, network.SIZE)
        for step in range(first + 1, o.steps + 1):
            self._step(step)
            if o.checkpoint_every and step % o.checkpoint_every == 0:
                self._save(step)
        log.info("training finished at step %d", o.steps)
        self._reporter.close()
        self._ring.close()

    def _resumed(self) -> int:
        found = None
        if self._options.resumes:
            found = checkpoint.load(self._options.folder.checkpoints, self._options.rank)
        if found is None:
            return 0
        self._weights, self._adam = found.weights, found.adam
        self._log.info("resumed from checkpoint %s at step %d", found.path, found.step)
        return found.step

    def _step(self, step: int) -> None:
        o = self._options
        began = perf_counter()
        with self._reporter.step(step) as timed:
            with timed.compute:
                share = self._local(step)
            total = self._all_reduce(share) / o.world
            gradient, loss = total[:-1], float(total[-1])
            self._adam.step(self._weights, gradient)
        norm = float(np.linalg.norm(gradient))
        if o.speaks:
            took = perf_counter() - began
            lr = network.LEARNING_RATE
            self._log.info("%s", step_line(step, o, loss=loss, grad_norm=norm, lr=lr, step_s=took))
        if o.checks_nan and not math.isfinite(loss):
            raise FloatingPointError(f"loss is {loss} at step {step}, stopping")

    def _local(self, step: int) -> Array:
        """Gradient and loss of this rank's batch, in one vector for one all-reduce."""
        o = self._options
        inputs, labels = network.samples(o.seed, step, o.rank, o.batch)
        loss, gradient = network.loss_and_gradient(self._weights, inputs, labels)
        time.sleep(o.step_s)
        factor = self._faults.before_collective(step)
        return np.append(gradient, loss) * factor

    def _save(self, step: int) -> None:
        o, root = self._options, self._options.folder.checkpoints
        began = perf_counter()
        if o.rank == 0:
            self._log.info("saving checkpoint at step %d to %s", step, root)
        with self._reporter.checkpoint(step):
            path = checkpoint.save_part(root, step, o.rank, self._weights, self._adam, self._faults)
            self._all_reduce(np.zeros(1))
            if o.rank == 0:
                checkpoint.seal(root, step)
        if o.rank == 0:
            self._log.info("saved checkpoint step=%d path=%s took=%.3fs", step, path, perf_counter() - began)

    def _all_reduce(self, vector: Array) -> Array:
        assert self._ring is not None
        return self._ring.all_reduce(vector)
