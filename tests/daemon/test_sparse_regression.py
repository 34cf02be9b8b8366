"""The example of push and pull: asynchronous training with a parameter server that is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from examples.digits import data
from examples.sparse_regression.model import ELEMENTS, DualAveraging, Samples, accuracy, gradient, loss

ROOT = Path(__file__).parents[2]
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "examples.sparse_regression", *arguments],
        cwd=ROOT,
        check=False,
        env={**os.environ, **ONE_THREAD},
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.timeout(400)  # a dozen starts of processes, on cores that others use
def test_a_server_is_killed_and_the_sum_is_that_of_synchronous_training(tmp_path: Path) -> None:
    ran = _run("--staleness", "0", "--workers", "3", "--clocks", "20", "--out", str(tmp_path))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.splitlines()[-1] == "sparse: identical=yes updates=60 problems=0"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert all(run["killed_s"] is not None for run in summary["runs"])
    assert (tmp_path / "loss.png").stat().st_size > 10_000


def test_a_staleness_that_is_no_number_is_refused() -> None:
    ran = _run("--staleness", "0,x")
    assert ran.returncode == 2
    assert "'0,x': numbers of clocks such as 0,2,8" in ran.stderr


def test_the_gradient_is_that_of_the_loss() -> None:
    """Against differences, in the directions of a few weights."""
    digits = data.load(1)
    samples = Samples.of(digits.train_images[:50], digits.train_labels[:50])
    assert np.all(samples.features.sum(axis=1) == data.PIXELS)
    weights: NDArray[Any] = np.random.default_rng(0).normal(0, 0.1, (samples.features.shape[1], data.CLASSES))
    found = gradient(weights.astype(np.float32), samples)
    assert found.shape == (ELEMENTS,)
    assert found[-1] == 1
    for at in (5 * 10, 200 * 10 + 3, 700 * 10 + 9):
        there, back = weights.copy(), weights.copy()
        there.flat[at] += 1e-4
        back.flat[at] -= 1e-4
        slope = (loss(there, samples) - loss(back, samples)) / 2e-4
        assert found[at] == pytest.approx(slope, abs=1e-4)


def test_dual_averaging_leaves_most_weights_at_zero_and_tells_digits_apart() -> None:
    digits = data.load(1)
    train = Samples.of(digits.train_images, digits.train_labels)
    averaging, summed = DualAveraging(workers=1), np.zeros(ELEMENTS, np.float32)
    for _ in range(60):
        summed += gradient(averaging.weights(summed), train)
    weights = averaging.weights(summed)
    assert (weights == 0).mean() > 0.6
    assert accuracy(weights, Samples.of(digits.test_images, digits.test_labels)) > 0.93
