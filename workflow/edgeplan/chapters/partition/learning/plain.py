"""Two simpler predictors stand beside boosted trees in the paper's Figure 3: a linear regression, and a small network."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from edgeplan.chapters.partition.learning.features import SHAPE, Floats, fit

Predict = Callable[[Floats], Floats]
_TERMS = tuple(SHAPE.index(name) for name in ("flops", "input_elements", "output_elements", "weight_elements"))
_WIDTH, _DEPTHS, _EPOCHS, _BATCH = 64, (1, 2, 3), 150, 64
_RATE, _DECAY, _FIRST, _SECOND, _TINY = 3e-3, 1e-4, 0.9, 0.999, 1e-8  # Adam
_VALIDATED = 5


def linear_regression(matrix: Floats, latency_us: Floats) -> Predict:
    """Work and bytes with the non-negative factors of the least relative squared error."""

    def terms(rows: Floats) -> Floats:
        return np.column_stack([np.ones(len(rows)), rows[:, _TERMS]])

    factors = fit(terms(matrix), latency_us)
    return lambda rows: np.asarray(np.einsum("ij,j->i", terms(rows), factors))


def network(matrix: Floats, latency_us: Floats, seed: int) -> Predict:
    """A perceptron of one to three layers of 64 neurons on logarithms; the depth by one held-out share of the rows."""
    held = np.random.default_rng(seed).permutation(len(latency_us)) % _VALIDATED == 0

    def error(depth: int) -> float:
        predict = _trained(matrix[~held], latency_us[~held], depth, seed)
        return float(np.mean(np.abs(predict(matrix[held]) / latency_us[held] - 1)))

    return _trained(matrix, latency_us, min(_DEPTHS, key=error), seed)


def _trained(matrix: Floats, latency_us: Floats, depth: int, seed: int) -> Predict:
    rng = np.random.default_rng(seed)
    inputs, target = np.log(matrix), np.log(latency_us)
    mean, spread = inputs.mean(axis=0), inputs.std(axis=0) + _TINY
    centre, scale = float(target.mean()), float(target.std()) + _TINY
    sizes = [matrix.shape[1], *[_WIDTH] * depth, 1]
    weights = [rng.normal(0.0, np.sqrt(2 / a), (a, b)) for a, b in pairwise(sizes)]
    values = [*weights, *(np.zeros(b) for b in sizes[1:])]
    layers = len(weights)
    first, second = [np.zeros_like(v) for v in values], [np.zeros_like(v) for v in values]

    def forward(rows: Floats) -> list[Floats]:
        found = [rows]
        for k in range(layers):
            out = found[-1] @ values[k] + values[layers + k]
            found.append(np.maximum(out, 0.0) if k + 1 < layers else out)
        return found

    rows, wanted = (inputs - mean) / spread, ((target - centre) / scale)[:, None]
    step = 0
    for epoch in range(_EPOCHS):
        rate = _RATE * 0.5 * (1 + np.cos(np.pi * epoch / _EPOCHS))
        order = rng.permutation(len(rows))
        for batch in np.array_split(order, max(1, len(order) // _BATCH)):
            step += 1
            outs = forward(rows[batch])
            slope = 2 * (outs[-1] - wanted[batch]) / len(batch)
            slopes = [np.zeros(0)] * len(values)
            for k in reversed(range(layers)):
                slopes[k], slopes[layers + k] = outs[k].T @ slope + _DECAY * values[k], slope.sum(axis=0)
                slope = (slope @ values[k].T) * (outs[k] > 0)
            for k, found in enumerate(slopes):
                first[k] = _FIRST * first[k] + (1 - _FIRST) * found
                second[k] = _SECOND * second[k] + (1 - _SECOND) * found**2
                moved = first[k] / (1 - _FIRST**step) / (np.sqrt(second[k] / (1 - _SECOND**step)) + _TINY)
                values[k] = values[k] - rate * moved

    def predict(given: Floats) -> Floats:
        return np.asarray(np.exp(forward((np.log(given) - mean) / spread)[-1][:, 0] * scale + centre))

    return predict
