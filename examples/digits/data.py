"""Handwritten digits: loading, and a split and an order of minibatches that follow from a seed.

Every process draws the same split and the same order from the same seed, so nothing but gradients
has to travel. The images are the test set of the UCI repository's *Optical Recognition of
Handwritten Digits* (DATA-SOURCE.md has source and licence).
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("digits.csv.gz")
SHA256 = "09f66e6debdee2cd2b5ae59e0d6abbb73fc2b0e0185d2e1957e9ebb51e23aa22"
PIXELS = 64
CLASSES = 10
TEST_FRACTION = 0.2


@dataclass(frozen=True, slots=True)
class Digits:
    """Images float32 (n, 64) in 0..1, labels int64 (n,)."""

    train_images: NDArray[np.float32]
    train_labels: NDArray[np.int64]
    test_images: NDArray[np.float32]
    test_labels: NDArray[np.int64]


def stream(seed: int, purpose: str) -> np.random.Generator:
    """The random stream of one purpose: no draw made for one thing shifts the draws of another."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def load(seed: int) -> Digits:
    """Read the data set and split it by the seed. Raises ``ValueError`` when the file was altered."""
    packed = FILE.read_bytes()
    if (found := hashlib.sha256(packed).hexdigest()) != SHA256:
        raise ValueError(f"{FILE} has SHA-256 {found}, expected {SHA256}: restore it from the repository")
    table = np.loadtxt(gzip.decompress(packed).decode().splitlines(), delimiter=",", dtype=np.uint8)
    table = table[stream(seed, "split").permutation(len(table))]
    images = table[:, :PIXELS].astype(np.float32) / np.float32(16)
    labels = table[:, PIXELS].astype(np.int64)
    tests = round(len(table) * TEST_FRACTION)
    return Digits(
        train_images=images[tests:],
        train_labels=labels[tests:],
        test_images=images[:tests],
        test_labels=labels[:tests],
    )


def minibatches(seed: int, epoch: int, samples: int, batch: int) -> list[NDArray[np.int64]]:
    """Index vectors of the epoch's whole minibatches; the samples left over sit this epoch out."""
    order = stream(seed, f"order of epoch {epoch}").permutation(samples)
    return [order[first : first + batch] for first in range(0, samples - batch + 1, batch)]


def shard(indices: NDArray[np.int64], rank: int, size: int) -> NDArray[np.int64]:
    """The part of a minibatch that ``rank`` of ``size`` computes; all parts are equally long."""
    if len(indices) % size:
        raise ValueError(f"a minibatch of {len(indices)} samples has no {size} equal shards")
    each = len(indices) // size
    return indices[rank * each : (rank + 1) * each]
