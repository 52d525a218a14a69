# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A callback for the Hugging Face Trainer: `Trainer(..., callbacks=[RelightCallback()])`."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from relight.client.reporter import Reporter


class TrainerHooks:
    """What is said at the Trainer's hooks; steps are optimizer steps, as `state.global_step` counts them.

    The Trainer hides its wrapped model from callbacks, so steps have no local part unless
    `mark_collectives(trainer.model_wrapped, reporter.collective)` is called once training has begun.
    """

    def __init__(self, reporter: Reporter | None = None) -> None:
        super().__init__()
        self._reporter = reporter if reporter is not None else Reporter.from_env()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._reporter.shape(global_batch_size=_batch(args))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._reporter.step(state.global_step + 1).__enter__()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._reporter.step(state.global_step).__exit__(None, None, None)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Called once the checkpoint is written."""
        self._reporter.progress(checkpoint_step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        self._reporter.close()


def _batch(args: Any) -> int | None:
    """Samples of one optimizer step over all ranks, as the Trainer prints it; None where the arguments lack a part."""
    parts: list[Any] = [
        getattr(args, name, None) for name in ("train_batch_size", "gradient_accumulation_steps", "world_size")
    ]
    return math.prod(parts) if all(isinstance(part, int) for part in parts) else None


def __getattr__(name: str) -> Any:
    """transformers is imported only when its callback is asked for."""
    if name != "RelightCallback":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    callback = import_module("transformers").TrainerCallback
    return type("RelightCallback", (TrainerHooks, callback), {"__doc__": TrainerHooks.__doc__})
