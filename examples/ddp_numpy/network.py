# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A small network that learns a fixed teacher, with its gradients by hand and its optimizer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Shapes = tuple[tuple[int, ...], ...]

INPUTS, HIDDEN, CLASSES = 32, 64, 16
SHAPES: Shapes = ((INPUTS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
SIZE = sum(int(np.prod(shape)) for shape in SHAPES)
LEARNING_RATE = 3e-3


def first_weights(seed: int) -> Array:
    """The same on every rank, as after a broadcast from rank 0."""
    return np.random.default_rng(seed).normal(0.0, 0.1, SIZE)


def samples(seed: int, step: int, rank: int, batch: int) -> tuple[Array, NDArray[np.int64]]:
    """This rank's batch of a step; the same again after a resume."""
    dice = np.random.default_rng((seed, step, rank))
    inputs = dice.normal(0.0, 1.0, (batch, INPUTS))
    teacher = np.random.default_rng((seed, 7)).normal(0.0, 1.0, (INPUTS, CLASSES))
    return inputs, np.argmax(inputs @ teacher, axis=1)


def loss_and_gradient(weights: Array, inputs: Array, labels: NDArray[np.int64]) -> tuple[float, Array]:
    """Mean cross-entropy of a two-layer network and its gradient, flat as the weights are."""
    w1, b1, w2, b2 = _parts(weights)
    hidden = np.tanh(inputs @ w1 + b1)
    logits = hidden @ w2 + b2
    logits -= logits.max(axis=1, keepdims=True)
    chances = np.exp(logits)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = float(-np.log(chances[rows, labels] + 1e-12).mean())
    chances[rows, labels] -= 1.0
    chances /= len(labels)
    inner = (chances @ w2.T) * (1.0 - hidden**2)
    parts = (inputs.T @ inner, inner.sum(axis=0), hidden.T @ chances, chances.sum(axis=0))
    return loss, np.concatenate([part.ravel() for part in parts])


class Adam:
    """Adam with its usual constants; `state` is what a checkpoint must hold."""

    def __init__(self, state: Array | None = None, count: int = 0) -> None:
        self.state = np.zeros((2, SIZE)) if state is None else state
        self.count = count

    def step(self, weights: Array, gradient: Array) -> None:
        self.count += 1
        mean, square = self.state
        mean += 0.1 * (gradient - mean)
        square += 0.001 * (gradient**2 - square)
        scale = LEARNING_RATE * np.sqrt(1 - 0.999**self.count) / (1 - 0.9**self.count)
        weights -= scale * mean / (np.sqrt(square) + 1e-8)


def _parts(weights: Array) -> list[Array]:
    parts, start = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        parts.append(weights[start : start + size].reshape(shape))
        start += size
    return parts
