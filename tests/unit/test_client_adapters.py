# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Frameworks and other meters as sources: Lightning, the Hugging Face Trainer, CUDA events, NVRx."""

from __future__ import annotations

import enum
import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from relight.client import Reporter, Settings, huggingface, lightning
from relight.client.cuda import CudaSteps
from relight.client.huggingface import TrainerHooks
from relight.client.lightning import LightningHooks
from relight.client.nvrx import MirroredClient, report_sections
from relight.client.sinks import Receipt
from relight.client.torch_module import FirstCollective, first_collective, mark_collectives


class Kept:
    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    def deliver(self, items: Sequence[str]) -> Receipt:
        self.items += map(json.loads, items)
        return Receipt()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item[kind] for item in self.items if kind in item]


def reporting() -> tuple[Reporter, Kept]:
    kept = Kept()
    settings = Settings(attempt="a1", url="http://h", timing_interval_s=0, flush_s=60)
    return Reporter(settings, kept), kept


# ------------------------------------------------------------------ modules that look like torch's


class Hook:
    def __init__(self, hooks: list[Callable[..., None]], call: Callable[..., None]) -> None:
        self.hooks, self.call = hooks, call
        hooks.append(call)

    def remove(self) -> None:
        self.hooks.remove(self.call)


class Parameter:
    def __init__(self, requires_grad: bool = True) -> None:
        self.requires_grad = requires_grad
        self.hooks: list[Callable[..., None]] = []

    def register_post_accumulate_grad_hook(self, call: Callable[..., None]) -> Hook:
        return Hook(self.hooks, call)


class OldParameter:
    """As torch before 2.1 has them."""

    requires_grad = True

    def __init__(self) -> None:
        self.hooks: list[Callable[..., None]] = []

    def register_hook(self, call: Callable[..., None]) -> Hook:
        return Hook(self.hooks, call)


class Module:
    def __init__(self, parameters: Sequence[object] = (), buffers: Sequence[object] = ()) -> None:
        self._parameters, self._buffers = parameters, buffers
        self.hooks: list[Callable[..., None]] = []

    def parameters(self) -> Iterator[Any]:
        return iter(self._parameters)

    def buffers(self) -> Iterator[object]:
        return iter(self._buffers)

    def register_forward_pre_hook(self, call: Callable[..., None]) -> Hook:
        return Hook(self.hooks, call)


class DistributedDataParallel(Module):
    broadcast_buffers = True


class FullyShardedDataParallel(Module):
    pass


def test_buffers_are_broadcast_before_anything_is_computed() -> None:
    assert first_collective(DistributedDataParallel(buffers=[object()])) is FirstCollective.FORWARD
    assert first_collective(DistributedDataParallel()) is FirstCollective.GRADIENTS
    assert first_collective(FullyShardedDataParallel()) is FirstCollective.FORWARD
    assert first_collective(Module()) is FirstCollective.NONE


def test_the_mark_is_set_at_the_first_gradient_and_taken_off_again() -> None:
    marks: list[str] = []
    frozen, trained = Parameter(requires_grad=False), Parameter()
    undo = mark_collectives(DistributedDataParallel([trained, frozen]), lambda: marks.append("mark"))
    assert frozen.hooks == []
    trained.hooks[0](trained)
    assert marks == ["mark"]
    undo()
    assert trained.hooks == []


def test_a_torch_without_hooks_behind_the_gradient_is_marked_by_the_gradients_own() -> None:
    marks: list[str] = []
    trained = OldParameter()
    undo = mark_collectives(DistributedDataParallel([trained]), lambda: marks.append("mark"))
    trained.hooks[0](trained)
    assert marks == ["mark"]
    undo()
    assert trained.hooks == []


def test_a_module_that_gathers_first_is_marked_before_its_forward() -> None:
    module = FullyShardedDataParallel([Parameter()])
    mark_collectives(module, lambda: None)
    assert len(module.hooks) == 1


def test_a_module_without_gradients_is_an_error_that_says_so() -> None:
    with pytest.raises(ValueError, match="no parameter of DistributedDataParallel"):
        mark_collectives(DistributedDataParallel(), lambda: None)


# ------------------------------------------------------------------ frameworks


def test_lightning_steps_are_optimizer_steps_over_accumulated_batches() -> None:
    reporter, kept = reporting()
    hooks = LightningHooks(reporter)
    module = DistributedDataParallel([Parameter()])
    trainer = SimpleNamespace(global_step=0, strategy=SimpleNamespace(model=module))
    hooks.on_train_start(trainer, None)
    for batch in range(4):
        hooks.on_train_batch_start(trainer, None, None, batch)
        next(module.parameters()).hooks[0](None)
        trainer.global_step += batch % 2
        hooks.on_train_batch_end(trainer, None, None, None, batch)
    hooks.on_train_end(trainer, None)
    hooks.teardown(trainer, None, "fit")
    timings = kept.of("step_timing")
    assert [said["step"] for said in timings] == [1, 2]
    assert all("compute_s" in said for said in timings)
    assert next(module.parameters()).hooks == []


@pytest.mark.parametrize(("ends_well", "kinds"), [(True, ["started", "completed"]), (False, ["started"])])
def test_a_checkpoint_of_lightning_is_completed_once_the_loop_goes_on(ends_well: bool, kinds: list[str]) -> None:
    reporter, kept = reporting()
    hooks = LightningHooks(reporter)
    trainer = SimpleNamespace(global_step=5, strategy=SimpleNamespace(model=Module(), checkpoint_io=None))
    hooks.on_save_checkpoint(trainer, None, {})
    if ends_well:
        hooks.on_train_batch_start(trainer, None, None, 0)
    else:
        hooks.on_exception(trainer, None, OSError())
    hooks.teardown(trainer, None, "fit")
    reporter.close()
    assert kept.of("progress") == [{"checkpoint_step": 5, "kind": kind} for kind in kinds]


class AsyncCheckpointIO:
    pass


def test_of_a_checkpoint_written_in_the_background_nothing_is_said() -> None:
    reporter, kept = reporting()
    strategy = SimpleNamespace(model=Module(), checkpoint_io=AsyncCheckpointIO())
    hooks = LightningHooks(reporter)
    hooks.on_save_checkpoint(SimpleNamespace(global_step=5, strategy=strategy), None, {})
    hooks.teardown(None, None, "fit")
    assert kept.of("progress") == []


def test_the_trainer_reports_steps_and_written_checkpoints() -> None:
    reporter, kept = reporting()
    hooks = TrainerHooks(reporter)
    state = SimpleNamespace(global_step=10)
    hooks.on_step_begin(None, state, None, model=None)
    state.global_step = 11
    hooks.on_step_end(None, state, None)
    hooks.on_save(None, state, None)
    hooks.on_train_end(None, state, None)
    assert [said["step"] for said in kept.of("step_timing")] == [11]
    assert {"checkpoint_step": 11, "kind": "completed"} in kept.of("progress")


@pytest.mark.parametrize("module", [lightning, huggingface])
def test_importing_a_callback_module_imports_no_framework(module: Any) -> None:
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = module.Other


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_the_callback_is_a_trainer_callback() -> None:
    from transformers import TrainerCallback  # type: ignore[import-not-found, unused-ignore]

    assert issubclass(huggingface.RelightCallback, TrainerCallback)


# ------------------------------------------------------------------ CUDA events, with a GPU of virtual time


class Gpu:
    """Work is enqueued in milliseconds; events are reached when `now` passes them."""

    def __init__(self) -> None:
        self.queued, self.now = 0.0, 0.0

    def __call__(self) -> GpuEvent:
        return GpuEvent(self)


class GpuEvent:
    def __init__(self, gpu: Gpu) -> None:
        self.gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = self.gpu.queued

    def query(self) -> bool:
        return self.gpu.now >= self.at

    def elapsed_time(self, end_event: GpuEvent) -> float:
        return end_event.at - self.at


def test_gpu_steps_are_reported_once_the_gpu_has_done_them_with_their_local_part() -> None:
    reporter, kept = reporting()
    gpu = Gpu()
    steps = CudaSteps(reporter, gpu)
    for number in (1, 2):
        with steps.step(number):
            gpu.queued += 30
            steps.collective()
            gpu.queued += 70
            steps.collective()
    gpu.now = 150
    with steps.step(3):
        pass
    reporter.close()
    assert kept.of("step_timing") == [{"rank": 0, "step": 1, "step_s": 0.1, "compute_s": 0.03}]


def test_a_gpu_that_never_finishes_holds_up_nothing() -> None:
    reporter, kept = reporting()
    gpu = Gpu()
    steps = CudaSteps(reporter, gpu)
    for number in range(1_000):
        with steps.step(number):
            gpu.queued += 1
    steps.report(within_s=0)
    reporter.close()
    assert len(kept.of("step_timing")) <= 1


# ------------------------------------------------------------------ NVRx


class Statistic(enum.Enum):
    """Prints as NVRx's own does."""

    MED = enum.auto()
    AVG = enum.auto()

    def __str__(self) -> str:
        return self.name


@pytest.mark.parametrize("median", [Statistic.MED, "MED", "Statistic.MED"])
def test_section_medians_become_a_timing_in_seconds(median: object) -> None:
    reporter, kept = reporting()
    summaries = {
        "load": {median: 5.0, Statistic.AVG: 9.0},
        "forward": {median: 95.0},
        "step": {median: 300.0},
    }
    report_sections(reporter, 40, summaries, local=["load", "forward"], whole="step")
    reporter.close()
    assert kept.of("step_timing") == [{"rank": 0, "step": 40, "step_s": 0.3, "compute_s": 0.1}]


def test_a_section_that_was_not_measured_is_named() -> None:
    reporter, _ = reporting()
    with pytest.raises(ValueError, match="no section 'fwd'; the report holds forward"):
        report_sections(reporter, 1, {"forward": {"MED": 1.0}}, local=["fwd"])
    with pytest.raises(ValueError, match="holds no median"):
        report_sections(reporter, 1, {"forward": {"AVG": 1.0}}, local=["forward"])
    reporter.close()


class MonitorClient:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def send_heartbeat(self) -> None:
        self.calls.append("heartbeat")

    def start_section(self, section: str) -> None:
        self.calls.append(f"start {section}")

    def end_section(self, section: str) -> None:
        self.calls.append(f"end {section}")

    def state_dict(self) -> dict[str, int]:
        return {"timeouts": 1}


def test_a_monitor_client_is_mirrored_and_still_does_its_own_work() -> None:
    reporter, kept = reporting()
    inner = MonitorClient()
    client = MirroredClient(inner, reporter, step_section="step")
    client.resume_at(100)
    client.start_section("setup")
    client.end_section("setup")
    client.start_section("step")
    client.send_heartbeat()
    client.end_section("step")
    reporter.close()
    assert inner.calls == ["start setup", "end setup", "start step", "heartbeat", "end step"]
    assert client.state_dict() == {"timeouts": 1}
    assert [said["step"] for said in kept.of("step_timing")] == [101]
    assert kept.of("heartbeat") != []


def test_frameworks_state_the_batch_of_an_optimizer_step_where_they_know_it() -> None:
    reporter, kept = reporting()
    hooks = TrainerHooks(reporter)
    args = SimpleNamespace(train_batch_size=8, gradient_accumulation_steps=4, world_size=16)
    hooks.on_train_begin(args, None, None)
    hooks.on_train_begin(args, None, None)
    hooks.on_train_begin(SimpleNamespace(train_batch_size=8), None, None)
    hooks.on_train_end(args, None, None)
    assert kept.of("shape") == [{"global_batch_size": 512}]
    reporter, kept = reporting()
    other = LightningHooks(reporter)
    loader = SimpleNamespace(batch_size=4)
    module = SimpleNamespace(model=DistributedDataParallel([Parameter()]))
    other.on_train_start(
        SimpleNamespace(train_dataloader=loader, accumulate_grad_batches=2, world_size=8, strategy=module), None
    )
    other.teardown(SimpleNamespace(), None, "fit")
    assert kept.of("shape") == [{"global_batch_size": 64}]
