# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Rolling baselines on a simulated job
#
# The online models of `models/` on step times made here: noise, a checkpoint pause every 100 steps, and a lasting
# slowdown. The question is always the same: how many steps until it is told, and how often for nothing?

# %%
import math
import random

import pandas as pd
import river

from models.adwin_residual import AdwinResidual
from models.ar_cusum import ArCusum
from models.page_hinkley import PageHinkleyResidual
from models.rolling_quantile import RollingQuantileBaseline

print("river", river.__version__)
STEPS, ONSET, STEP_S = 2_400, 1_500, 10.0


# %%
def step_times(slowdown: float, noise: float, seed: int) -> list[float]:
    """Seconds a step; from ONSET on, longer by `slowdown`."""
    chance = random.Random(seed)
    return [
        STEP_S * math.exp(chance.gauss(0, noise)) * (1 + slowdown * (n >= ONSET)) + 60.0 * (n % 100 == 99)
        for n in range(STEPS)
    ]


# %% [markdown]
# A rolling median hardly moves for one long step, so the log-ratio to it is a residual that drift detectors may be
# fed: zero when all is well. Raw step times or a falling loss are not: a drift detector fires on every trend.


# %%
def told_at(model: AdwinResidual | PageHinkleyResidual | ArCusum, seconds: list[float]) -> list[int]:
    """The steps at which a model begins to say that the job is slower."""
    baseline = RollingQuantileBaseline(window=1_000, warmup=60)
    begun, is_told = [], False
    for step, value in enumerate(seconds):
        if isinstance(model, ArCusum):
            model.learn_one(math.log(value))
            is_now = model.rise() is not None
        else:
            residual = baseline.score_one(value)
            baseline.learn_one(value)
            if residual is None or residual > math.log(2.5):  # warming up, or a pause
                continue
            model.learn_one(residual)
            is_now = bool(model.score_one(residual))
        if is_now and not is_told:
            begun.append(step)
        is_told = is_now
    return begun


def cusum() -> ArCusum:
    model = ArCusum()
    model.interval_s = STEP_S
    return model


MODELS = {"ArCusum": cusum, "AdwinResidual": AdwinResidual, "PageHinkleyResidual": PageHinkleyResidual}

# %% [markdown]
# Each cell: the median delay in steps of 10 s over five jobs, how many of them were noticed at all, and how often
# something was told before the slowdown began.

# %%
rows = []
for noise in (0.004, 0.05):
    for slowdown in (0.05, 0.10, 0.30):
        for name, make in MODELS.items():
            delays, early = [], 0
            for seed in range(5):
                told = told_at(make(), step_times(slowdown, noise, seed))
                early += sum(step < ONSET for step in told)
                delays += [step - ONSET for step in told if step >= ONSET][:1]
            middle = sorted(delays)[len(delays) // 2] if delays else None
            rows.append({"noise": noise, "slowdown": slowdown, "model": name,
                         "delay": middle, "noticed of 5": len(delays), "for nothing": early})  # fmt: skip
print(pd.DataFrame(rows).to_string(index=False))

# %% [markdown]
# The state of each is versioned JSON: taken over in the middle, it goes on as if nothing had happened.

# %%
times = [math.log(value) for value in step_times(0.1, 0.02, 7)]
whole, first = cusum(), cusum()
for value in times:
    whole.learn_one(value)
for value in times[:1_600]:
    first.learn_one(value)
second = cusum()
second.restore(first.snapshot())
for value in times[1_600:]:
    second.learn_one(value)
assert second.snapshot() == whole.snapshot()
print("a job taken over at step 1,600 ends in the same state; the level is", round(math.exp(whole.level or 0), 2), "s")
