# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A callback for PyTorch Lightning: `Trainer(callbacks=[RelightCallback()])`."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

from relight.client.reporter import Reporter
from relight.client.torch_module import mark_collectives


class LightningHooks:
    """What is said at Lightning's hooks. A step is an optimizer step, however many batches it accumulates."""

    def __init__(self, reporter: Reporter | None = None) -> None:
        super().__init__()
        self._reporter = reporter if reporter is not None else Reporter.from_env()
        self._is_open = False
        self._begun_at = 0
        self._saving: int | None = None
        self._unmark: Callable[[], None] = lambda: None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002 -- the framework's names
        self._reporter.shape(global_batch_size=_batch(trainer))
        self._unmark = mark_collectives(trainer.strategy.model, self._reporter.collective)

    def on_train_batch_start(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        self._saved()
        if not self._is_open:
            self._is_open = True
            self._begun_at = trainer.global_step
            self._reporter.step(trainer.global_step + 1).__enter__()

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,  # noqa: ARG002
        outputs: Any,  # noqa: ARG002
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        step = trainer.global_step
        if self._is_open and step > self._begun_at:
            self._is_open = False
            self._reporter.step(step).__exit__(None, None, None)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: Any) -> None:  # noqa: ARG002
        """The state is gathered here and written before the loop goes on, unless in the background.

        Lightning has no hook for a background write that ended, so of such checkpoints nothing is said.
        """
        writer = getattr(trainer.strategy, "checkpoint_io", None)
        if "Async" not in type(writer).__name__:
            self._saving = trainer.global_step
            self._reporter.progress(checkpoint_step=self._saving, kind="started")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        self._finish()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Not the end: a last checkpoint may be written by a callback that comes after this one."""
        self._take_off_mark()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        self._saved()
        self._finish()

    def _saved(self) -> None:
        if self._saving is not None:
            self._reporter.progress(checkpoint_step=self._saving)
            self._saving = None

    def _finish(self) -> None:
        self._saving = None
        self._take_off_mark()
        self._reporter.close()

    def _take_off_mark(self) -> None:
        unmark, self._unmark = self._unmark, lambda: None
        unmark()


def _batch(trainer: Any) -> int | None:
    """Samples of one optimizer step over all ranks; None with a loader that has no one batch size."""
    loader = getattr(trainer, "train_dataloader", None)
    parts: list[Any] = [getattr(loader, "batch_size", None)]
    parts += [getattr(trainer, name, None) for name in ("accumulate_grad_batches", "world_size")]
    return math.prod(parts) if all(isinstance(part, int) for part in parts) else None


def __getattr__(name: str) -> Any:
    """Lightning is imported only when its callback is asked for, under either of its two names."""
    if name != "RelightCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        callback = import_module("lightning.pytorch").Callback
    except ModuleNotFoundError:
        callback = import_module("pytorch_lightning").Callback
    return type("RelightCallback", (LightningHooks, callback), {"__doc__": LightningHooks.__doc__})
