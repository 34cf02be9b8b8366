"""torch's own distributed tests, with a backend of our choice: ``python -m pytest
tests/torch/peer_suite.py``.

Not collected by itself (its name does not begin with ``test``): :mod:`tests.torch.test_peer_suite` runs it in
the environment that has torch, with ``BACKEND``, ``WORLD_SIZE`` and ``TEMP_DIR`` as torch's tests want them.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.testing._internal import common_distributed
from torch.testing._internal.distributed import distributed_test

for kinds in ("ddp", "subgroup", "cuda"):
    common_distributed.DistTestCases.backend_feature[kinds].add("inaproto")
# Works of ours leave no events with gloo's name and shapes.
distributed_test.PROFILING_SUPPORTED_BACKENDS = []
Ranks: Any = distributed_test.TestDistBackend
Tests: Any = distributed_test.DistributedTest._DistTestBase


class TestWithRanks(Ranks, Tests):  # type: ignore[misc]
    """Each test forks its ranks."""

    def setUp(self) -> None:
        super().setUp()
        for name in ("barrier", "test_dir", "init_dir"):
            os.makedirs(os.path.join(os.environ["TEMP_DIR"], name), exist_ok=True)
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


del Ranks, Tests
