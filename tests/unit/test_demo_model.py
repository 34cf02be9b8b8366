"""The demo's model: its gradient against finite differences, and its reference, which must not waver."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.digits import data, model, runs, train

LAYERS = (6, 9, 5, 3)


def loss64(parameters: NDArray[np.float64], images: NDArray[np.float64], labels: NDArray[np.int64]) -> float:
    """The summed loss, written again in float64, apart from the model's code."""
    out, at = images, 0
    for index, (inputs, outputs) in enumerate(pairwise(LAYERS)):
        weights = parameters[at : at + inputs * outputs].reshape(inputs, outputs)
        at += inputs * outputs
        out = out @ weights + parameters[at : at + outputs]
        at += outputs
        if index < len(LAYERS) - 2:
            out = np.where(out > 0, out, 0.0)
    chosen = out[np.arange(len(labels)), labels]
    return float(np.sum(np.log(np.sum(np.exp(out), axis=1)) - chosen))


def test_gradient_is_that_of_the_summed_loss() -> None:
    generator = np.random.default_rng(5)
    net = model.Mlp(LAYERS, generator)
    images = generator.standard_normal((7, 6), dtype=np.float32)
    labels = generator.integers(0, 3, size=7)
    result = net.gradient(images, labels)
    parameters = net.parameters.astype(np.float64)
    exact = images.astype(np.float64)
    differences = np.empty_like(parameters)
    for index in range(len(parameters)):
        step = np.zeros_like(parameters)
        step[index] = 1e-6
        differences[index] = (
            loss64(parameters + step, exact, labels) - loss64(parameters - step, exact, labels)
        ) / 2e-6
    np.testing.assert_allclose(result[: -model.EXTRA], differences, rtol=1e-4, atol=1e-5)
    assert result[-2] == pytest.approx(loss64(parameters, exact, labels), rel=1e-5)
    assert result[-1] == round(7 * net.accuracy(images, labels))


def test_shards_gradients_add_up_to_the_minibatchs() -> None:
    generator = np.random.default_rng(5)
    net = model.Mlp(LAYERS, generator)
    images = generator.standard_normal((8, 6), dtype=np.float32)
    labels = generator.integers(0, 3, size=8)
    whole = net.gradient(images, labels)
    parts = [data.shard(np.arange(8), rank, 4) for rank in range(4)]
    added = np.sum([net.gradient(images[part], labels[part]) for part in parts], axis=0)
    np.testing.assert_allclose(added, whole, rtol=1e-4, atol=1e-5)


def test_reference_adds_in_rank_order_left_to_right() -> None:
    gradients = [np.array([value], dtype=np.float32) for value in (1e8, 1.0, 1.0, -1e8)]
    assert train.OneProcess(4).sum(gradients)[0] == 0.0  # 1.0 is lost twice: no wider accumulator
    assert gradients[0][0] == np.float32(1e8)


def test_training_is_the_same_every_time_and_learns() -> None:
    plan = train.Plan(epochs=3)
    first = train.train(plan, train.OneProcess(4), lambda step: None)
    second = train.train(plan, train.OneProcess(4), lambda step: None)
    assert first.weights.tobytes() == second.weights.tobytes()
    assert first.digests == second.digests
    assert len(first.steps) == 3 * (first.train_samples // plan.batch)
    assert first.accuracy[-1] > 0.85


def test_another_seed_is_another_training() -> None:
    digests = {
        train.train(train.Plan(epochs=1, seed=seed), train.OneProcess(4), lambda step: None).digest
        for seed in (1, 7)
    }
    assert len(digests) == 2


def test_split_and_minibatches_cover_the_data_without_overlap() -> None:
    digits = data.load(1)
    assert len(digits.train_labels) + len(digits.test_labels) == 1797
    assert digits.train_images.min() == 0
    assert digits.train_images.max() == 1
    batches = data.minibatches(1, 0, 100, 32)
    assert [len(batch) for batch in batches] == [32, 32, 32]
    assert len(set(np.concatenate(batches).tolist())) == 96
    parts = [data.shard(batches[0], rank, 4) for rank in range(4)]
    assert np.array_equal(np.concatenate(parts), batches[0])
    with pytest.raises(ValueError, match="no 5 equal shards"):
        data.shard(batches[0], 0, 5)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [runs.percentile(values, percent) for percent in (50, 99, 100)] == [50.0, 99.0, 100.0]
    assert runs.percentile([3.0], 99) == 3.0


@pytest.mark.parametrize(
    ("share", "shown"), [(0.98607, "0.99"), (0.9666, "0.97"), (0.9999, "0.99"), (1.0, "1.00"), (0.5, "0.50")]
)
def test_an_accuracy_is_that_of_its_picture_and_never_1_before_it_is(share: float, shown: str) -> None:
    assert runs.two_digits(share) == shown
