"""What ranks do in tests of tensors on devices: on a GPU, or on a stand-in for one whose copies come late."""

from __future__ import annotations

import contextlib
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from inaproto.torch import groups, staging
from tests.torch import cases, trap_cases
from tests.torch.cases import OPS, TYPES, Place, carriers, in_order, inputs

LATE_S = 0.002
"""A copy of the stand-in begins so late at most."""


class StandIn:
    """Memory of the processor as a device's: copies back are made by a thread, some time after the call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies: deque[tuple[Callable[[], object], threading.Event]] = deque()
        self._asked = threading.Semaphore(0)
        self._last = threading.Event()
        self._last.set()
        self._lock = threading.Lock()
        threading.Thread(target=self._copy, daemon=True).start()

    def _copy(self) -> None:
        draw = random.Random(7)
        while True:
            self._asked.acquire()
            time.sleep(draw.random() * LATE_S)
            copy, done = self._copies.popleft()
            copy()
            done.set()

    def mark(self) -> threading.Event:
        over = threading.Event()
        over.set()
        return over

    def follow(self, mark: threading.Event) -> None:
        mark.wait()

    def is_over(self, mark: threading.Event) -> bool:
        return mark.is_set()

    def keep(self, tensor: torch.Tensor) -> None:
        """Whoever copies has it."""

    def copy_out(self, piece: torch.Tensor, slab: torch.Tensor, after: tuple[threading.Event, ...]) -> None:
        for mark in after:
            mark.wait()
        slab.copy_(piece)

    def copy_back(self, slab: torch.Tensor, piece: torch.Tensor) -> threading.Event:
        done = threading.Event()
        with self._lock:
            self._copies.append((lambda: piece.copy_(slab), done))
            self._last = done
        self._asked.release()
        return done

    @contextlib.contextmanager
    def in_the_back(self) -> Iterator[None]:
        with self._lock:
            last = self._last
        last.wait()
        yield

    def pin(self, slab: torch.Tensor) -> None:
        """Nothing is to be done."""

    def unpin(self, slab: torch.Tensor) -> None:
        """Nothing is to be done."""


def stand_in(place: Place, inner: str, **arguments: Any) -> Any:
    """A case of :mod:`tests.torch.cases` with tensors of the processor as a device's."""
    groups.DEVICES["cpu"] = StandIn
    found_in = cases if hasattr(cases, inner) else trap_cases
    return getattr(found_in, inner)(place, **arguments)


def in_small_pieces(place: Place, device: str, nbytes: int) -> list[str]:
    """Vectors of more pieces than there are slabs for, asked for at once, waited for backwards."""
    if device == "cpu":
        groups.DEVICES["cpu"] = StandIn
    staging.pieces.__defaults__ = (nbytes,)
    place.begin("gloo")
    draw = random.Random(3)
    asked = []
    for turn in range(12):
        name, op = draw.choice(list(TYPES)), draw.choice(list(OPS))
        elements = draw.randrange(1, 20 * nbytes // 8)
        tensor = inputs(name, place.rank, elements).to(device)
        work = dist.all_reduce(tensor, getattr(dist.ReduceOp, op), async_op=True)
        asked.append((turn, name, op, elements, tensor, work))
    for turn, name, op, elements, tensor, work in reversed(asked):
        if turn % 3 == 0:
            work.get_future().wait()
        else:
            work.wait()
        assert torch.equal(tensor.cpu(), in_order(name, op, place.size, elements)), (turn, name, op, elements)
    found = carriers()
    dist.destroy_process_group()
    return found


def fails_again_and_again(place: Place, times: int) -> list[str]:
    """Rank 1 is killed, and others call more often than there are slabs."""
    import os
    import signal

    groups.DEVICES["cpu"] = StandIn
    place.begin("gloo")
    dist.all_reduce(torch.ones(3))
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return [cases.error_of(lambda: dist.all_reduce(torch.ones(3))) for _ in range(times)]


# --- on a GPU


def every_type(place: Place, backend: str, elements: int) -> list[Any]:
    place.begin(backend)
    for name in TYPES:
        for op in OPS:
            tensor = inputs(name, place.rank, elements).cuda()
            dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            assert torch.equal(tensor.cpu(), in_order(name, op, place.size, elements)), (name, op)
    for name in ("float32", "float16", "bfloat16", "float64"):
        tensor = inputs(name, place.rank, elements).cuda()
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert torch.equal(tensor.cpu(), in_order(name, "SUM", place.size, elements).div_(place.size)), name
    found = [[group.carrier, group.elsewhere] for group in cases._status().groups]
    dist.destroy_process_group()
    return found


def both_devices(place: Place, backend: str) -> list[str]:
    """Tensors of both in turn: each device has a job of its own."""
    place.begin(backend)
    works = []
    for turn in range(20):
        for device in ("cpu", "cuda"):
            tensor = torch.full((1000,), float(turn), device=device)
            works.append((turn, tensor, dist.all_reduce(tensor, async_op=True)))
    for turn, tensor, work in works:
        work.wait()
        assert tensor.eq(turn * place.size).all()
    columns = torch.arange(12.0, device="cuda").reshape(3, 4).t()
    dist.all_reduce(columns)
    assert torch.equal(columns.cpu(), place.size * torch.arange(12.0).reshape(3, 4).t())
    found = carriers()
    dist.destroy_process_group()
    return found


def streams(place: Place) -> list[str]:
    """What is asked of a stream before the call is in the sum; what follows the wait has the sum."""
    place.begin("gloo")
    side = torch.cuda.Stream()
    weights = torch.randn(2048, 2048, device="cuda")
    for turn in range(10):
        with torch.cuda.stream(side if turn % 2 else torch.cuda.current_stream()):
            late = weights
            for _ in range(20):
                late = late @ weights
                late /= late.abs().max()
            tensor = late.mul_(0).add_(turn + 1.0)
            work = dist.all_reduce(tensor, async_op=True)
            if turn % 3 == 0:
                work.get_future().wait()
            else:
                work.wait()
            assert (2 * tensor).eq(2 * place.size * (turn + 1)).all(), turn
        # One that nobody waits for: its memory is not given to others before.
        dist.all_reduce(torch.ones(1 << 20, device="cuda"), async_op=True)
        assert torch.full((1 << 20,), 7.0, device="cuda").eq(7).all()
    found = carriers()
    dist.destroy_process_group()
    return found


def network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Linear(20, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 3)
    ).cuda()


def _loss(model: Any, rank: int, step: int) -> torch.Tensor:
    samples = cases.batch(rank, step).cuda()
    return torch.as_tensor((model(samples) - samples[:, :3]).square().mean())


def _digest(model: nn.Module) -> str:
    return cases.digest_of(model.cpu())


def _alone(size: int, steps: int) -> str:
    """Weights of one process that adds the ranks' gradients from rank 0 on, divided before as by DDP."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        sums: list[torch.Tensor] = []
        for rank in range(size):
            optimizer.zero_grad()
            _loss(model, rank, step).backward()
            for number, weights in enumerate(model.parameters()):
                assert weights.grad is not None
                part = weights.grad * (1 / size)
                if rank == 0:
                    sums.append(part)
                else:
                    sums[number] = sums[number] + part
        for weights, gradient in zip(model.parameters(), sums, strict=True):
            weights.grad = gradient
        optimizer.step()
    return _digest(model)


def train_on_gpu(place: Place, hook: str = "", steps: int = 6) -> dict[str, Any]:
    """DDP on the GPU that all ranks share, gradients summed by its own all-reduces or by a hook."""
    from inaproto.torch import hooks

    place.begin("gloo")
    torch.backends.cuda.matmul.allow_tf32 = False
    model = cases.ddp(network(), bucket_cap_mb=0.2)
    if hook:
        model.register_comm_hook(None, getattr(hooks, hook))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        _loss(model, place.rank, step).backward()
        optimizer.step()
    found = {"weights": _digest(model), "carriers": carriers()}
    if place.rank == 0:
        found["alone"] = _alone(place.size, steps)
    dist.destroy_process_group()
    return found


def killed_on_gpu(place: Place) -> list[str]:
    """Rank 1 is killed: others hear it from works, and from all that follow."""
    import os
    import signal

    place.begin("gloo")
    dist.all_reduce(torch.ones(3, device="cuda"))
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    work = dist.all_reduce(torch.ones(3 << 20, device="cuda"), async_op=True)
    found = [cases.error_of(work.get_future().wait), cases.error_of(work.wait)]
    found.append(cases.error_of(lambda: dist.all_reduce(torch.ones(3, device="cuda"))))
    return found


def gpu_without_daemons(place: Place, backend: str) -> dict[str, Any]:
    place.begin(backend)
    try:
        for turn in range(3):
            tensor = torch.full((1000,), place.rank + turn, device="cuda", dtype=torch.float32)
            dist.all_reduce(tensor)
            assert tensor.eq(sum(range(place.size)) + turn * place.size).all()
        error = ""
    except RuntimeError as raised:
        error = str(raised)
    (group,) = cases._status().groups
    dist.destroy_process_group()
    return {"carrier": group.carrier, "why": group.why, "error": error, "count": group.all_reduces}


def speed_on_gpu(place: Place, sizes: list[int], rounds: int) -> dict[str, list[list[float]]]:
    """Seconds of an all-reduce of bytes by inaproto and by gloo, interleaved, on one GPU."""
    place.begin("gloo")
    ours = dist.group.WORLD
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("peer", place.store("peer")), place.rank, place.size)
    found: dict[str, list[list[float]]] = {}
    for nbytes in sizes:
        tensor = torch.ones(nbytes // 4, device="cuda")
        rows = []
        for turn in range(rounds + 2):
            row = []
            for which in (ours, gloo):
                torch.cuda.synchronize()
                gloo.barrier().wait()
                began = time.perf_counter()
                if which is ours:
                    dist.all_reduce(tensor)
                else:
                    gloo.allreduce([tensor]).wait()
                torch.cuda.synchronize()
                row.append(time.perf_counter() - began)
            if turn >= 2:
                rows.append(row)
        found[str(nbytes)] = rows
    dist.destroy_process_group()
    return found


def overlap_on_gpu(place: Place, rounds: int) -> dict[str, float]:
    """Medians, in seconds: a backward pass about as long as its all-reduces, these, and both by DDP."""
    place.begin("gloo")
    torch.manual_seed(7)
    wide, layers = 2048, 12
    plain = nn.Sequential(*(nn.Linear(wide, wide, bias=False) for _ in range(layers))).cuda()
    model = cases.ddp(plain, bucket_cap_mb=16, broadcast_buffers=False, gradient_as_bucket_view=True)
    gradients = [torch.ones(wide * wide, device="cuda") for _ in range(layers)]

    def timed(what: Callable[[], object]) -> float:
        torch.cuda.synchronize()
        dist.barrier()
        began = time.perf_counter()
        what()
        torch.cuda.synchronize()
        return time.perf_counter() - began

    def reduces() -> None:
        for work in [dist.all_reduce(each, async_op=True) for each in gradients]:
            work.wait()

    def step(samples: torch.Tensor, *, synced: bool) -> float:
        """Of the backward pass."""
        with contextlib.nullcontext() if synced else model.no_sync():
            loss = model(samples).sum()
            return timed(loss.backward)

    few = torch.randn(1024, wide, device="cuda")
    for _ in range(3):
        step(few, synced=True)
    longer = statistics.median(timed(reduces) for _ in range(5)) / statistics.median(
        step(few, synced=False) for _ in range(5)
    )
    rows = torch.tensor([1024 * longer])
    dist.broadcast(rows, 0)
    samples = torch.randn(max(1, int(rows)), wide, device="cuda")
    found: dict[str, list[float]] = {"compute": [], "communication": [], "both": []}
    for _ in range(rounds + 2):
        found["compute"].append(step(samples, synced=False))
        found["communication"].append(timed(reduces))
        found["both"].append(step(samples, synced=True))
    dist.destroy_process_group()
    return {name: statistics.median(values[2:]) for name, values in found.items()}
