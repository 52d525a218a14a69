# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Progress from log lines: each framework's own spellings, and lines that must not count."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.progress import ProgressReader, number
from relight.types import AttemptId, LogLine, Phase, Rank, StepProgress, Stream
from service.diagnosis import Diagnostician

AT = datetime(2026, 1, 2, tzinfo=UTC)
JOB = AttemptId("job.0")


def line(text: str, *, file: str = "job.out", rank: int | None = None) -> LogLine:
    return LogLine(
        attempt=JOB, file=file, number=1, stream=Stream.APPLICATION, text=text,
        rank=Rank(rank) if rank is not None else None,
    )  # fmt: skip


@pytest.fixture
def reader(shipped: Diagnostician) -> ProgressReader:
    return ProgressReader(shipped.progress)


def the_step(reader: ProgressReader, text: str, **more: int) -> StepProgress:
    (seen,) = [p for p in reader.read_all([line(text, **more)], AT) if p.phase is Phase.STEP]  # type: ignore[arg-type]
    return seen


@pytest.mark.parametrize(
    ("text", "step", "loss"),
    [
        (" iteration        5/     250 | consumed samples:          160 | elapsed time per iteration (ms): 239.3 | "
         "throughput per GPU (TFLOP/s/GPU): 0.0 | learning rate: 1.0E-03 | global batch size:    32 | "
         "lm loss: 3.759666E+00 | loss scale: 1.0 | grad norm: 0.804 | number of skipped iterations:   0 |", 5, 3.759666),
        ("[NeMo I 2025-01-01 10:00:00 nemo_logging:393] Training epoch 0, iteration 40/999 | lr: 3e-5 | "
         "global_batch_size: 16 | global_step: 40 | reduced_train_loss: 9.101 | train_step_timing in s: 2.011", 40, 9.101),
        ("Epoch 0: :   4%|4         | 40/999 [01:20<32:10, 2.01s/it, v_num=1, reduced_train_loss=9.120]", 40, 9.12),
        ("[2025-01-01 10:00:00,000] [INFO] [logging.py:96:log_dist] [Rank 0] step=440, skipped=3, lr=[0.001], mom=[0.9]",
         440, None),
        ("Epoch 2:  40%|####      | 40/100 [00:09<00:14,  4.21it/s, v_num=3, train_loss=1.20]", 240, 1.2),
        ("\r 31%|###1      | 310/1000 [05:10<11:30,  1.00s/it]\r 31%|###1      | 311/1000 [05:11<11:29,  1.00s/it]", 311, None),
        ("Steps:  31%|###1      | 310/1000 [05:10<11:30,  1.01it/s, lr=1e-5, step_loss=0.102]", 310, 0.102),
        ("{'loss': 1.9021, 'grad_norm': 0.77, 'learning_rate': 1.9e-05, 'epoch': 0.31}", None, 1.9021),
        ("[rank0]:[titan] 2025-01-01 10:00:00,000 - root - INFO - \x1b[31mstep: 40\x1b[32m  loss:  6.1121"
         "\x1b[33m  memory: 30.11GiB(31.7%)\x1b[34m  tps: 8,101", 40, 6.1121),
        ("1|211|Loss: 1.0311:  21%|##1       | 211/1000 [03:31<13:09,  1.00s/it]", 1211, 1.0311),
        ("Step 211 | loss:1.0311 lr:2e-05 tokens_per_second_per_gpu:811.2 ", 211, 1.0311),
        ("completed step: 12, seconds: 3.204, TFLOP/s/device: 211.9, Tokens/s/device: 3901.1, total_weights: 65536, "
         "loss: 8.011", 12, 8.011),
        ("97/391 ━━━━━━━━━━━━━━━━━━━━ 4s 14ms/step - accuracy: 0.33 - loss: 1.8011", 97, 1.8011),
        ("step=61/100 loss=1.3304 grad_norm=0.511 lr=1.0e-03 step_time=0.1501s", 61, 1.3304),
        ('{"step": 40, "loss": 2.31, "lr": 0.0003}', 40, 2.31),
        ("global_step=40 epoch=0 lr=0.0003 train/loss=2.31 tokens/s=8101", 40, 2.31),
    ],
)  # fmt: skip
def test_a_step_is_read(reader: ProgressReader, text: str, step: int | None, loss: float | None) -> None:
    seen = the_step(reader, text)
    assert (seen.step, seen.loss) == (step, loss)


@pytest.mark.parametrize(
    ("text", "phase", "is_completed"),
    [
        ("saving checkpoint at iteration     900 to /ck/gpt in torch_dist format", Phase.CHECKPOINT, False),
        ("  successfully saved checkpoint from iteration      50 to /ck [ t 1/1, p 1/1 ]", Phase.CHECKPOINT, True),
        ("Epoch 3, global step 500: 'val_loss' reached 1.2 (best 1.2), saving model to '/ck/e3.ckpt' as top 1", Phase.CHECKPOINT, True),
        ("***** Running Evaluation *****", Phase.EVALUATION, True),
        ("2026-11-29 16:21:59,303 [rank3] [node4] INFO data loader: refilling shuffle buffer", Phase.DATA, True),
        ("INFO training starts at step 100 of 400 params=1", Phase.START, True),
        ("`Trainer.fit` stopped: `max_steps=1000` reached.", Phase.END, True),
    ],
)  # fmt: skip
def test_other_phases_are_read_and_are_no_steps(
    reader: ProgressReader, text: str, phase: Phase, is_completed: bool
) -> None:
    (seen,) = reader.read_all([line(text)], AT)
    assert (seen.phase, seen.is_completed, seen.step) == (phase, is_completed, None)


@pytest.mark.parametrize(
    "text",
    [
        "Downloading model.safetensors:  50%|##### | 2/4 [00:05<00:05, 2.71it/s]",
        "Loading checkpoint shards:  50%|#####     | 2/4 [00:05<00:05,  2.71s/it]",
        "Map (num_proc=8):  10%|#         | 1000/10000 [00:01<00:09, 990.11it/s]",
        "Validation DataLoader 0:  50%|#####     | 20/40 [00:02<00:02,  9.0it/s]",
        "eval step=40 loss=2.31",
        "setting training iterations to 250000",
        "pip install step: 3 of 7",
        "",
    ],
)
def test_other_counters_are_no_steps(reader: ProgressReader, text: str) -> None:
    assert [p for p in reader.read_all([line(text)], AT) if p.phase is Phase.STEP] == []


def test_values_keep_their_units(reader: ProgressReader) -> None:
    seen = the_step(
        reader, " iteration 5/ 250 | elapsed time per iteration (ms): 239.5 | lm loss: 3.7E+00 | grad norm: 0.804 |"
    )
    assert (seen.step_s, seen.grad_norm) == (0.2395, 0.804)
    seen = the_step(
        reader,
        "completed step: 12, seconds: 3.204, TFLOP/s/device: 211.9, Tokens/s/device: 3901.1, total_weights: 65536, loss: 8.0",
    )
    assert (seen.tokens, seen.throughput, seen.step_s) == (65536, 3901.1, 3.204)


@pytest.mark.parametrize("word", ["nan", "NaN", "inf", "-inf"])
def test_a_job_that_trains_on_with_a_loss_that_is_no_number_makes_progress(reader: ProgressReader, word: str) -> None:
    seen = the_step(reader, f"step=61/100 loss={word} grad_norm={word} lr=1.0e-03")
    assert seen.step == 61
    assert seen.loss is not None
    assert seen.grad_norm is not None
    assert not math.isfinite(seen.loss)
    assert not math.isfinite(seen.grad_norm)


def test_a_megatron_line_with_nan_keeps_its_step(reader: ProgressReader) -> None:
    seen = the_step(
        reader,
        " iteration     5427/  250000 | consumed samples: 9 | loss scale: 1.0 | grad norm: nan | number of nan iterations:   0 |",
    )
    assert seen.step == 5427


def test_a_counter_that_starts_anew_each_epoch_goes_on(reader: ProgressReader) -> None:
    steps = [
        the_step(reader, f"Epoch: [{e}][ {s}/625]\tTime  0.41").step for e, s in ((0, 600), (1, 10), (1, 20), (2, 5))
    ]
    assert steps == sorted(steps)  # type: ignore[type-var]


def bar(step: int, total: int) -> str:
    return f" 31%|###1      | {step}/{total} [05:10<11:30,  1.00s/it]"


def test_a_nameless_bar_inside_the_training_bar_is_an_evaluation_whose_counter_is_none_of_training(
    reader: ProgressReader,
) -> None:
    texts = [bar(310, 1000), bar(1, 9000), bar(8999, 9000), bar(311, 1000), bar(1000, 1000), bar(1, 50)]
    seen = [p for text in texts for p in reader.read_all([line(text)], AT)]
    step, evaluation = Phase.STEP, Phase.EVALUATION
    assert [p.phase for p in seen] == [step, evaluation, evaluation, step, step, step]
    assert [p.step for p in seen] == [310, None, None, 311, 1000, 1]


def test_a_restart_may_bring_a_bar_of_another_length(reader: ProgressReader) -> None:
    reader.read(line(bar(310, 1000)), AT)
    reader.read(line("***** Running training *****"), AT)
    assert the_step(reader, bar(2, 2000)).step == 2


def test_the_writer_is_named_by_the_line_then_by_the_file(reader: ProgressReader) -> None:
    assert the_step(reader, "[rank2]: step=6 loss=1.0", rank=7).rank == 2
    assert the_step(reader, "2026-01-02 10:00:00,100 [rank5] [n3] INFO step=6/100 loss=1.33").rank == 5
    assert the_step(reader, "step=6 loss=1.0", rank=7).rank == 7
    assert the_step(reader, "3: step=6 loss=1.0").rank is None  # a launcher's task is no rank


def test_a_checkpoint_that_names_no_step_is_that_of_the_file_it_stands_in(reader: ProgressReader) -> None:
    reader.read(line("step=40 loss=1.0"), AT)
    reader.read(line("step=99 loss=1.0", file="other"), AT)
    (seen,) = reader.read_all([line("saving checkpoint to out")], AT)
    assert (seen.checkpoint_step, seen.is_completed) == (40, False)
    reader.read(line("step=41 loss=1.0"), AT)
    (seen,) = reader.read_all([line("Finished saving the checkpoint")], AT)
    assert (seen.checkpoint_step, seen.is_completed) == (40, True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8,101", 8101.0),
        ("8.15K", 8150.0),
        ("3.1E+00", 3.1),
        ("0.15s", 0.15),
        ("-2.5", -2.5),
        ("fast", None),
        (None, None),
        (7, 7.0),
    ],
)
def test_numbers_are_read_in_all_spellings(text: str | int | None, value: float | None) -> None:
    assert number(text) == value


@given(st.text(max_size=300))
@settings(max_examples=100, deadline=None)
def test_any_text_may_be_a_line(shipped: Diagnostician, text: str) -> None:
    for seen in ProgressReader(shipped.progress).read_all([line(text)], AT):
        assert seen.step is None or seen.step >= 0
