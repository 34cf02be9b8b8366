"""Sparse logistic regression by regularised dual averaging, in plain numpy.

An image of 64 pixels with 17 levels becomes 1,088 features of which 64 are set: one for each pixel, by its
level. Classes are told apart by a linear function of them each, so there are 10,880 weights, of which an L1
penalty leaves few.

What is pushed is the *gradient*, and what the parameter servers hold is the sum of all gradients: they only
add. The weights follow from that sum, at each worker (L. Xiao, *Dual Averaging Methods for Regularized
Stochastic Learning and Online Optimization*, JMLR 11, 2010, section 3.2, its strongly convex term being the
square of the weights): with the mean gradient g of n updates, t = n / workers clocks,

    weights = -sqrt(t) / gamma * sign(g) * max(|g| - penalty, 0)

so weights are exactly 0 wherever the mean gradient is within the penalty. One more element counts updates: n
is then of the very sum that was pulled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.digits import data

LEVELS = 17
FEATURES = data.PIXELS * LEVELS
ELEMENTS = FEATURES * data.CLASSES + 1
"""Length of the model: the sum of gradients, and the number of updates in it."""
Vector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Samples:
    """Features float32 (n, 1088) of 0 and 1, labels int64 (n,)."""

    features: Vector
    labels: NDArray[np.int64]

    @classmethod
    def of(cls, images: NDArray[np.float32], labels: NDArray[np.int64]) -> Samples:
        """Images (n, 64) in 0..1, as ``examples.digits.data`` has them."""
        levels = np.rint(images * (LEVELS - 1)).astype(np.int64)
        features = np.zeros((len(images), FEATURES), np.float32)
        features[np.arange(len(images))[:, None], np.arange(data.PIXELS) * LEVELS + levels] = 1
        return cls(features, labels)

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, rows: NDArray[np.int64]) -> Samples:
        return Samples(self.features[rows], self.labels[rows])


@dataclass(frozen=True, slots=True)
class DualAveraging:
    """What turns the sum of gradients into weights; equal at all workers."""

    workers: int
    gamma: float = 0.1
    penalty: float = 0.001

    def weights(self, summed: Vector) -> Vector:
        """(1088, 10), from what was pulled (10,881)."""
        updates = float(summed[-1])
        if updates < 1:
            return np.zeros((FEATURES, data.CLASSES), np.float32)
        mean = summed[:-1].reshape(FEATURES, data.CLASSES) / np.float32(updates)
        beyond = np.maximum(np.abs(mean) - np.float32(self.penalty), np.float32(0))
        scale = np.float32(-np.sqrt(updates / self.workers) / self.gamma)
        weights: Vector = scale * np.sign(mean) * beyond
        return weights


def _softmax(logits: Vector) -> tuple[Vector, Vector]:
    """Probabilities, and the logarithm of each row's sum beside its greatest logit."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    exponentials = np.exp(shifted)
    totals = exponentials.sum(axis=1, keepdims=True)
    return exponentials / totals, np.log(totals) - shifted


def gradient(weights: Vector, samples: Samples) -> Vector:
    """Gradient of the mean loss of the samples, and a 1 that counts the update: (10,881)."""
    error, _ = _softmax(samples.features @ weights)
    error[np.arange(len(samples)), samples.labels] -= np.float32(1)
    pushed = np.ones(ELEMENTS, np.float32)
    pushed[:-1] = (samples.features.T @ error).reshape(-1) / np.float32(len(samples))
    return pushed


def loss(weights: Vector, samples: Samples) -> float:
    """Mean cross-entropy, nats; without the penalty."""
    _, surprise = _softmax(samples.features @ weights)
    return float(surprise[np.arange(len(samples)), samples.labels].mean())


def accuracy(weights: Vector, samples: Samples) -> float:
    """Share of right answers, 0..1."""
    return float(np.mean((samples.features @ weights).argmax(axis=1) == samples.labels))
