# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where a PyTorch module begins its first collective of a step, found without touching how it communicates."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any


class FirstCollective(StrEnum):
    """What the first collective of a step is, as far as the module shows."""

    FORWARD = "forward"  # it gathers parameters or broadcasts buffers before it computes
    GRADIENTS = "gradients"  # it reduces gradients during the backward pass
    NONE = "none"  # it is not wrapped for data parallel training


def first_collective(module: Any) -> FirstCollective:
    """Told by the wrapper's class, so that torch need not be imported to ask.

    Source: torch.nn.parallel.DistributedDataParallel broadcasts buffers inside forward unless
            broadcast_buffers=False; fully sharded modules gather parameters there.
    """
    for kind in type(module).__mro__:
        if kind.__name__ in {"FullyShardedDataParallel", "FSDPModule"}:
            return FirstCollective.FORWARD
        if kind.__name__ == "DistributedDataParallel":
            has_buffers = any(True for _ in module.buffers())
            broadcasts = bool(getattr(module, "broadcast_buffers", True)) and has_buffers
            return FirstCollective.FORWARD if broadcasts else FirstCollective.GRADIENTS
    return FirstCollective.NONE


def mark_collectives(module: Any, mark: Callable[[], None]) -> Callable[[], None]:
    """Call `mark` where the first collective of each step begins; returns what undoes it.

    Gradients are ready before they are reduced and the backward pass waits for none of them, so the
    moment of the first gradient is purely local work. A module that is not wrapped marks nothing.
    Errors: ValueError if no parameter needs a gradient.
    """
    where = first_collective(module)
    if where is FirstCollective.NONE:
        return lambda: None
    if where is FirstCollective.FORWARD:
        handle = module.register_forward_pre_hook(lambda *_: mark())
    else:
        # The last parameter is the first to get its gradient, as DDP itself assumes for its buckets.
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if not trained:
            raise ValueError(f"no parameter of {type(module).__name__} needs a gradient")
        # Torch before 2.1 knows only the hook of the gradient itself, which comes a moment sooner.
        last = trained[-1]
        hook = getattr(last, "register_post_accumulate_grad_hook", None) or last.register_hook
        handle = hook(lambda _: mark())

    def undo() -> None:
        handle.remove()

    return undo
