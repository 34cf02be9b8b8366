"""What ranks do in tests of ``inaproto.torch``: each case is called in every rank, in a process of its own.

A case returns something that JSON has, which the test looks at; what must hold inside a rank is asserted
here.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import inaproto.torch

TYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
    "int64": torch.int64,
}
OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "MAX": torch.maximum,
    "MIN": torch.minimum,
}


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank this is, and a directory that all share."""

    rank: int
    size: int
    directory: Path

    def store(self, name: str = "port") -> dist.TCPStore:
        """A store as torchrun has it; rank 0 serves it."""
        path = self.directory / name
        if self.rank == 0:
            store = dist.TCPStore("127.0.0.1", 0, self.size, is_master=True, wait_for_workers=False)
            part = path.with_suffix(".part")
            part.write_text(str(store.port))
            part.rename(path)
            return store
        while not path.exists():
            time.sleep(0.01)
        return dist.TCPStore("127.0.0.1", int(path.read_text()), self.size, is_master=False)

    def begin(self, backend: str, store: Any = None) -> None:
        dist.init_process_group(backend, store=store or self.store(), rank=self.rank, world_size=self.size)


def inputs(name: str, rank: int, elements: int) -> torch.Tensor:
    """The same numbers wherever they are drawn."""
    draw = torch.Generator().manual_seed(1000 + rank)
    if name.startswith("int"):
        return torch.randint(-1000, 1000, (elements,), generator=draw, dtype=TYPES[name])
    return torch.randn(elements, generator=draw, dtype=torch.float64).to(TYPES[name])


def in_order(name: str, op: str, size: int, elements: int) -> torch.Tensor:
    """The sum, or what else, from rank 0 on, as inaproto has it; 16-bit floats are summed as float32."""
    parts = [inputs(name, rank, elements) for rank in range(size)]
    wide = torch.float32 if name.endswith("float16") else TYPES[name]
    found = parts[0].to(wide)
    for part in parts[1:]:
        found = OPS[op](found, part.to(wide))
    return found.to(TYPES[name])


def carriers() -> list[str]:
    return [group.carrier for group in inaproto.torch.status().groups]


def digest_of(model: nn.Module) -> str:
    found = hashlib.sha256()
    for weights in model.parameters():
        found.update(weights.detach().numpy().tobytes())
    return found.hexdigest()


# --- cases


def every_type_and_operation(place: Place, backend: str) -> list[str]:
    place.begin(backend)
    for name in TYPES:
        for op in OPS:
            tensor = inputs(name, place.rank, 1000)
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert torch.equal(tensor, in_order(name, op, place.size, 1000)), (name, op)
    found = carriers()
    dist.destroy_process_group()
    return found


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))


def batch(rank: int, step: int) -> torch.Tensor:
    return torch.randn(16, 20, generator=torch.Generator().manual_seed(100 * step + rank))


def loss_of(model: nn.Module, samples: torch.Tensor) -> torch.Tensor:
    return (model(samples) - samples[:, :3]).square().mean()


def trained_alone(size: int, steps: int) -> str:
    """Weights of one process that adds the ranks' gradients from rank 0 on, as DDP has them: divided
    before.
    """
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        sums = [torch.zeros_like(weights) for weights in model.parameters()]
        for rank in range(size):
            optimizer.zero_grad()
            loss_of(model, batch(rank, step)).backward()
            for number, weights in enumerate(model.parameters()):
                assert weights.grad is not None
                part = weights.grad / size
                sums[number] = part.clone() if rank == 0 else sums[number] + part
        for weights, gradient in zip(model.parameters(), sums, strict=True):
            weights.grad = gradient
        optimizer.step()
    return digest_of(model)


def train(place: Place, backend: str, steps: int = 4, **options: Any) -> dict[str, Any]:
    """DDP, of ``options``."""
    place.begin(backend)
    model = DistributedDataParallel(network(), **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(place.rank, step)).backward()
        optimizer.step()
    found = {"weights": digest_of(model), "carriers": carriers()}
    if place.rank == 0:
        found["alone"] = trained_alone(place.size, steps)
    dist.destroy_process_group()
    return found
