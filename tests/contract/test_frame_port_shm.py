"""The frame port contract over shared memory: with compiled rings, and with those of Python at either end."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from inaproto_adapters.frames import ShmAdapter, ShmConfig
from tests.contract.frame_port_contract import LosslessFramePortContract, Pair


class _Shm(LosslessFramePortContract):
    kernels = ("compiled", "compiled")
    """Of whoever connects, and of whoever accepts."""

    @pytest.fixture(autouse=True)
    def _with_kernels(self, use_kernels: Callable[[str], None]) -> None:
        self.use = use_kernels

    @asynccontextmanager
    async def pair(self, queue_bytes_max: int) -> AsyncIterator[Pair]:
        adapter = ShmAdapter(ShmConfig(queue_bytes_max=queue_bytes_max))
        with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as directory:
            path = Path(directory) / "ports.sock"
            listener = await adapter.listen(path)
            self.use(self.kernels[0])
            left = await adapter.connect(path)
            self.use(self.kernels[1])
            right = await listener.accept()
            yield left, right
            await left.aclose()
            await right.aclose()
            await listener.aclose()


class TestCompiled(_Shm):
    pass


class TestPython(_Shm):
    kernels = ("numpy", "numpy")


class TestCompiledToPython(_Shm):
    kernels = ("compiled", "numpy")


class TestPythonToCompiled(_Shm):
    kernels = ("numpy", "compiled")
