# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The training loop of one rank, in PyTorch DDP on gloo; torch is imported when a job begins."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from examples.job_faults import Faults
from examples.job_log import step_line
from examples.job_options import JobOptions
from examples.run_folder import replace_text
from relight.client import Reporter
from relight.client.torch_module import mark_collectives

_INPUTS, _HIDDEN, _CLASSES = 32, 64, 16
_LEARNING_RATE = 3e-3


class Training:
    """One rank of a DDP job, with the options, faults and log lines of the NumPy form."""

    def __init__(self, options: JobOptions, log: logging.Logger) -> None:
        self._options, self._log = options, log
        self._faults = Faults(options.folder.control(options.rank), options.rank)
        self._reporter = Reporter.from_env()
        self._torch: Any = import_module("torch")
        self._dist: Any = import_module("torch.distributed")
        self._torch.set_num_threads(1)
        self._torch.manual_seed(options.seed)

    def run(self) -> None:
        o, log, torch = self._options, self._log, self._torch
        log.info("initializing process group backend=gloo world_size=%d master=%s:%d", o.world, o.host, o.port)
        self._join()
        log.info("process group ready pid=%d torch=%s attempt=%d", os.getpid(), torch.__version__, o.attempt)
        module = torch.nn.Sequential(
            torch.nn.Linear(_INPUTS, _HIDDEN), torch.nn.Tanh(), torch.nn.Linear(_HIDDEN, _CLASSES)
        )
        self._model = torch.nn.parallel.DistributedDataParallel(module)
        self._adam = torch.optim.Adam(self._model.parameters(), lr=_LEARNING_RATE)
        mark_collectives(self._model, self._reporter.collective)
        first = self._resumed()
        size = sum(part.numel() for part in self._model.parameters())
        log.info("training starts at step %d of %d params=%d", first, o.steps, size)
        for step in range(first + 1, o.steps + 1):
            self._step(step)
            if o.checkpoint_every and step % o.checkpoint_every == 0:
                self._save(step)
        log.info("training finished at step %d", o.steps)
        self._reporter.close()
        self._dist.destroy_process_group()

    def _join(self) -> None:
        o, dist = self._options, self._dist
        start, silence = timedelta(seconds=o.start_timeout_s), timedelta(seconds=o.timeout_s)
        desk = {} if o.listen_fd is None else {"master_listen_fd": o.listen_fd}
        store = dist.TCPStore(o.host, o.port, o.world, is_master=o.rank == 0, timeout=start, **desk)
        dist.init_process_group("gloo", store=store, rank=o.rank, world_size=o.world, timeout=silence)

    def _step(self, step: int) -> None:
        o, torch = self._options, self._torch
        began = perf_counter()
        with self._reporter.step(step):
            inputs, labels = self._samples(step)
            time.sleep(o.step_s)
            factor = self._faults.before_collective(step)
            loss = torch.nn.functional.cross_entropy(self._model(inputs), labels) * factor
            self._adam.zero_grad()
            loss.backward()
            norm = float(torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1e9))
            self._adam.step()
            mean = loss.detach().reshape(1)
            self._dist.all_reduce(mean)
        value = float(mean) / o.world
        if o.speaks:
            took = perf_counter() - began
            line = step_line(step, o, loss=value, grad_norm=norm, lr=_LEARNING_RATE, step_s=took)
            self._log.info("%s", line)
        if o.checks_nan and not math.isfinite(value):
            raise FloatingPointError(f"loss is {value} at step {step}, stopping")

    def _samples(self, step: int) -> tuple[Any, Any]:
        torch, o = self._torch, self._options
        dice = torch.Generator().manual_seed(o.seed * 1_000_003 + step * 1_009 + o.rank)
        inputs = torch.randn(o.batch, _INPUTS, generator=dice)
        teacher = torch.randn(_INPUTS, _CLASSES, generator=torch.Generator().manual_seed(o.seed))
        return inputs, (inputs @ teacher).argmax(dim=1)

    def _save(self, step: int) -> None:
        o, root = self._options, self._options.folder.checkpoints
        began = perf_counter()
        path = _part(root, step, o.rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        if o.rank == 0:
            self._log.info("saving checkpoint at step %d to %s", step, root)
        with self._reporter.checkpoint(step):
            adam = self._adam.state_dict()["state"]  # its settings are in the code; safe loading came before floats
            state = {"model": self._model.module.state_dict(), "adam": adam, "step": step}
            self._torch.save(state, self._faults.disk(path, step))
            self._dist.barrier()
            if o.rank == 0:
                replace_text(root / "latest.json", json.dumps({"step": step}))
                for old in sorted(root.glob("step-*"))[:-2]:
                    shutil.rmtree(old, ignore_errors=True)
        if o.rank == 0:
            self._log.info("saved checkpoint step=%d path=%s took=%.3fs", step, path, perf_counter() - began)

    def _resumed(self) -> int:
        o, root = self._options, self._options.folder.checkpoints
        latest = root / "latest.json"
        if not o.resumes or not latest.exists():
            return 0
        step = int(json.loads(latest.read_text())["step"])
        path = _part(root, step, o.rank)
        state = self._torch.load(path, weights_only=True)
        self._model.module.load_state_dict(state["model"])
        self._adam.load_state_dict({**self._adam.state_dict(), "state": state["adam"]})
        self._log.info("resumed from checkpoint %s at step %d", path, step)
        return step


def _part(root: Path, step: int, rank: int) -> Path:
    return root / f"step-{step:08d}" / f"rank{rank}.pt"
