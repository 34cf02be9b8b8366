"""A multi-layer perceptron in plain numpy: ReLU, softmax cross-entropy, SGD with momentum, float32.

All parameters lie in one flat vector, and so do gradients: one all-reduce per step moves them, with
the loss and the number of right answers riding along in two more elements. Gradients are *sums*
over samples, not means, so that adding the shards' vectors gives the minibatch's and the division
by the number of samples is the caller's, after the all-reduce.

Bit-identity rests on each shard's gradient coming from the same numpy calls with the same shapes in
every process, and on one BLAS thread (``train.py`` sees to it): then only the order of the additions
across shards is left, and that is rank order, left to right, on the switch as in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
EXTRA = 2
"""Elements after the gradient in what ``gradient`` returns: the loss, the number of right answers."""


@dataclass(frozen=True, slots=True)
class _Layer:
    weights: NDArray[np.float32]
    bias: NDArray[np.float32]


def _views(vector: Vector, layers: Sequence[int]) -> list[_Layer]:
    """Each layer's weights (inputs, outputs) and bias (outputs,) as views of the flat vector."""
    views, at = [], 0
    for inputs, outputs in pairwise(layers):
        weights = vector[at : at + inputs * outputs].reshape(inputs, outputs)
        at += inputs * outputs
        views.append(_Layer(weights, vector[at : at + outputs]))
        at += outputs
    return views


def parameter_count(layers: Sequence[int]) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(layers))


class Mlp:
    """A perceptron with ``layers`` = (inputs, hidden ..., classes), e.g. (64, 128, 64, 10)."""

    def __init__(self, layers: Sequence[int], generator: np.random.Generator) -> None:
        self.layers = tuple(layers)
        self.parameters: Vector = np.zeros(parameter_count(layers), dtype=np.float32)
        self._velocity: Vector = np.zeros_like(self.parameters)
        self._layers = _views(self.parameters, self.layers)
        for layer in self._layers:
            scale = np.float32(np.sqrt(2.0 / layer.weights.shape[0]))  # He et al. 2015, for ReLU
            layer.weights[:] = generator.standard_normal(layer.weights.shape, dtype=np.float32) * scale

    def _forward(self, images: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        activations = [images]
        for index, layer in enumerate(self._layers):
            out = activations[-1] @ layer.weights + layer.bias
            if index < len(self._layers) - 1:
                np.maximum(out, np.float32(0), out=out)
            activations.append(out)
        return activations

    def gradient(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> Vector:
        """Gradient of the summed loss, then the summed loss and the number of right answers.

        Images float32 (n, inputs), labels (n,); the result is float32 (parameters + ``EXTRA``,).
        """
        result = np.empty(len(self.parameters) + EXTRA, dtype=np.float32)
        gradients = _views(result, self.layers)
        *activations, logits = self._forward(images)
        rows = np.arange(len(labels))
        shifted = logits - logits.max(axis=1, keepdims=True)
        exponentials = np.exp(shifted)
        totals = exponentials.sum(axis=1, keepdims=True)
        result[-2] = (np.log(totals[:, 0]) - shifted[rows, labels]).sum(dtype=np.float32)
        result[-1] = np.count_nonzero(logits.argmax(axis=1) == labels)
        delta = exponentials / totals
        delta[rows, labels] -= np.float32(1)
        for index in reversed(range(len(self._layers))):
            np.matmul(activations[index].T, delta, out=gradients[index].weights)
            delta.sum(axis=0, out=gradients[index].bias)
            if index:
                delta = (delta @ self._layers[index].weights.T) * (activations[index] > 0)
        return result

    def apply(self, gradient: Vector, *, rate: float, momentum: float) -> None:
        """One step of SGD with momentum; ``gradient`` is the minibatch's mean, (parameters,)."""
        self._velocity *= np.float32(momentum)
        self._velocity -= np.float32(rate) * gradient
        self.parameters += self._velocity

    def accuracy(self, images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
        """Share of right answers, 0..1."""
        return float(np.mean(self._forward(images)[-1].argmax(axis=1) == labels))
