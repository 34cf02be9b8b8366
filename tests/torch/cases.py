"""What ranks do in tests of ``inaproto.torch``: each case is called in every rank, in a process of its own.

A case returns something that JSON has, which the test looks at; what must hold inside a rank is asserted
here.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
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


def error_of(what: Callable[[], Any]) -> str:
    try:
        what()
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError("no error")


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


_KEPT: list[torch.nn.Module] = []


def ddp(*given: Any, **options: Any) -> Any:
    """DDP for the life of the process. Where the last reference to a gloo group goes while an all-reduce of
    it ends, torch waits with the GIL held for a thread that wants it (seen with torch alone)."""
    model = DistributedDataParallel(*given, **options)
    _KEPT.append(model)
    return model


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
                part = weights.grad * (1 / size)  # as DDP divides
                sums[number] = part.clone() if rank == 0 else sums[number] + part
        for weights, gradient in zip(model.parameters(), sums, strict=True):
            weights.grad = gradient
        optimizer.step()
    return digest_of(model)


def train(place: Place, backend: str, steps: int = 4, **options: Any) -> dict[str, Any]:
    """DDP, of ``options``."""
    place.begin(backend)
    model = ddp(network(), **options)
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


def whatever_is_reduced(place: Place) -> dict[str, int]:
    """Kinds of all-reduces that are ours, and kinds that are not: all have the right result."""
    place.begin("gloo")
    size, ranks = place.size, torch.arange(place.size)
    here = place.rank + 1.0
    for group in (None, dist.new_group(list(range(size)))):
        average = torch.full((5,), here)
        dist.all_reduce(average, dist.ReduceOp.AVG, group=group)
        assert torch.equal(average, torch.full((5,), (size + 1) / 2))
        whole = torch.full((5,), -3 - place.rank)
        dist.all_reduce(whole, dist.ReduceOp.AVG, group=group)
        assert whole.tolist() == [int(sum(-3 - rank for rank in range(size)) / size)] * 5
        number = torch.full((3, 2), complex(here, -here))
        dist.all_reduce(number, group=group)
        assert torch.equal(number, torch.full((3, 2), complex(sum(ranks + 1.0), -sum(ranks + 1.0))))
        columns = torch.arange(12.0).reshape(3, 4).t()
        dist.all_reduce(columns, group=group)
        assert torch.equal(columns, size * torch.arange(12.0).reshape(3, 4).t())
        strided = torch.full((10,), here)
        dist.all_reduce(strided[::2], group=group)
        assert strided.tolist() == [float(sum(ranks + 1)), here] * 5
        scalar = torch.tensor(here, requires_grad=True)
        dist.all_reduce(scalar.detach(), group=group)
        assert scalar.item() == sum(ranks + 1)
        dist.all_reduce(torch.empty(0), group=group)
        several = [torch.full((3,), here), torch.full((2, 2), 2 * here)]
        dist.all_reduce_coalesced(several, group=group)
        assert [each.flatten()[0].item() for each in several] == [sum(ranks + 1), 2 * sum(ranks + 1)]
        # Not ours:
        small = torch.full((4,), 2, dtype=torch.uint8)
        dist.all_reduce(small, group=group)
        assert small.tolist() == [2 * size] * 4
        product = torch.full((4,), 2.0)
        dist.all_reduce(product, dist.ReduceOp.PRODUCT, group=group)
        assert product.tolist() == [2.0**size] * 4
        sparse = torch.sparse_coo_tensor([[place.rank]], [1.0], (size,))
        dist.all_reduce(sparse, group=group)
        assert sparse.to_dense().tolist() == [1.0] * size
    found = dict(inaproto.torch.status().groups[0].elsewhere)
    dist.destroy_process_group()
    return found


def negated(place: Place) -> list[str]:
    """Views that are negated lazily, on rank 0 alone, too: imaginary parts of conjugates are, and others."""
    place.begin("gloo")
    total = float(sum(range(1, place.size + 1)))
    for name in ("float32", "bfloat16", "int64"):
        for op, expected in (("SUM", -total), ("MAX", -1.0), ("AVG", -total / place.size)):
            memory = torch.full((4,), place.rank + 1, dtype=TYPES[name])
            view = torch._neg_view(memory)
            dist.all_reduce(view, getattr(dist.ReduceOp, op))
            assert view.tolist() == [expected] * 4, (name, op)
            assert torch.equal(memory, -view)
    imaginary = torch.full((3,), complex(1, place.rank + 1)).conj().imag
    dist.all_reduce(imaginary)
    assert imaginary.tolist() == [-total] * 3
    one_negated = -torch.ones(3) if place.rank else torch._neg_view(torch.ones(3))
    dist.all_reduce(one_negated)
    assert one_negated.tolist() == [-place.size] * 3
    found = carriers()
    dist.destroy_process_group()
    return found


def resized(place: Place) -> None:
    """As PowerSGD's batched hook resizes a bucket that was reduced before."""
    place.begin("gloo")
    for kind in TYPES.values():
        tensor = torch.ones(5, dtype=kind)
        dist.all_reduce(tensor)
        tensor.resize_(4096)
        assert tensor[:5].tolist() == [place.size] * 5
        tensor.untyped_storage().resize_(0)
    dist.destroy_process_group()


def sums_of_multiples(place: Place, backend: str) -> dict[str, Any]:
    """What calls with PREMUL_SUM, which gloo does not do, are told: by all forms of a call."""
    from torch.distributed.distributed_c10d import _coalescing_manager

    place.begin(backend)
    op = dist._make_nccl_premul_sum(0.5)

    def in_one() -> None:
        with _coalescing_manager():
            dist.all_reduce(torch.ones(3), op)
            dist.all_reduce(torch.ones(3), op)

    forms: dict[str, Callable[[], Any]] = {
        "plain": lambda: dist.all_reduce(torch.ones(3), op),
        "coalesced": lambda: dist.all_reduce_coalesced([torch.ones(3), torch.ones(2)], op),
        "in one": in_one,
    }
    found: dict[str, Any] = {name: error_of(call) for name, call in forms.items()}
    found["kernel"] = error_of(lambda: dist.group.WORLD.allreduce([torch.ones(3)], op).wait())
    after = torch.ones(3)
    dist.all_reduce(after)
    assert after.tolist() == [place.size] * 3
    found["elsewhere"] = [dict(group.elsewhere) for group in inaproto.torch.status().groups]
    dist.destroy_process_group()
    return found


def groups(place: Place) -> list[str]:
    """Groups in groups, groups of one, a mesh: each a job of its own."""
    place.begin("gloo")
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = halves[place.rank // 2]
    tensor = torch.tensor([place.rank + 1.0])
    dist.all_reduce(tensor, group=mine)
    assert tensor.item() == (3.0 if place.rank < 2 else 7.0)
    alone = [dist.new_group([rank]) for rank in range(place.size)][place.rank]
    dist.all_reduce(tensor, dist.ReduceOp.MAX, group=alone)
    assert tensor.item() == (3.0 if place.rank < 2 else 7.0)
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    for name, expected in (("outer", (0, 2) if place.rank % 2 == 0 else (1, 3)), ("inner", None)):
        tensor = torch.tensor([float(place.rank)])
        dist.all_reduce(tensor, group=mesh[name].get_group())
        ranks = expected or ((0, 1) if place.rank < 2 else (2, 3))
        assert tensor.item() == sum(ranks)
    dist.all_reduce(tensor)
    found = carriers()
    dist.destroy_process_group()
    return found


def hooks_and_forms(place: Place, form: str) -> dict[str, Any]:
    """A form of data-parallel training, twice: behind gloo's name by inaproto, and its weights on all
    ranks.
    """
    place.begin("gloo")
    torch.manual_seed(0)
    buckets = {} if form in {"compile", "powersgd"} else {"bucket_cap_mb": 0.01}
    model: Any = ddp(network(), gradient_as_bucket_view=True, **buckets)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    FORMS[form](place, model, optimizer)
    found = {"weights": digest_of(model), "carriers": carriers()}
    dist.destroy_process_group()
    return found


def train_steps(place: Place, model: Any, optimizer: Any, steps: int = 3) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, batch(place.rank, step)).backward()
        optimizer.step()


def _no_sync(place: Place, model: Any, optimizer: Any) -> None:
    with model.no_sync():
        loss_of(model, batch(place.rank, 0)).backward()
    loss_of(model, batch(place.rank, 1)).backward()
    optimizer.step()


def _join(place: Place, model: Any, optimizer: Any) -> None:
    with model.join():
        train_steps(place, model, optimizer, 2 + place.rank)


def _autocast(place: Place, model: Any, optimizer: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        train_steps(place, model, optimizer)


def _half(place: Place, model: Any, optimizer: Any) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook

    model.register_comm_hook(None, fp16_compress_hook)
    train_steps(place, model, optimizer)


def _power_sgd(place: Place, model: Any, optimizer: Any) -> None:
    """Its hook starts one all-reduce in a callback of another: in no order, where there are several
    buckets.
    """
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    state = power.PowerSGDState(None, 1, start_powerSGD_iter=2)
    model.register_comm_hook(state, power.powerSGD_hook)
    train_steps(place, model, optimizer, 5)


def _zero_redundancy(place: Place, model: Any, optimizer: Any) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    train_steps(place, model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, lr=0.1))


def _compiled(place: Place, model: Any, optimizer: Any) -> None:
    train_steps(place, torch.compile(model, backend="aot_eager"), optimizer)


FORMS: dict[str, Callable[[Place, Any, Any], None]] = {
    "plain": train_steps,
    "no_sync": _no_sync,
    "join": _join,
    "autocast": _autocast,
    "fp16": _half,
    "powersgd": _power_sgd,
    "zero": _zero_redundancy,
    "compile": _compiled,
}


def fully_sharded(place: Place, replicas: int) -> dict[str, Any]:
    """FSDP2; with replicas, whose all-reduce is ours: the losses, and who carries."""
    from torch.distributed.fsdp import fully_shard

    place.begin("gloo")
    shape = (place.size,) if replicas == 1 else (replicas, place.size // replicas)
    mesh = dist.init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])
    model: Any = network()
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(3):
        optimizer.zero_grad()
        loss = loss_of(model, batch(place.rank, step))
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach())
        losses.append(loss.item())
    found = {"losses": losses, "carriers": carriers()}
    dist.destroy_process_group()
    return found


def functional(place: Place) -> list[str]:
    """Functional collectives, compiled or not, and distributed tensors."""
    from torch.distributed import _functional_collectives as collectives
    from torch.distributed.tensor import DTensor, Partial, Replicate

    place.begin("gloo")
    world = dist.group.WORLD

    def doubled(tensor: torch.Tensor) -> torch.Tensor:
        return 2 * collectives.all_reduce(tensor + 1, "sum", world)

    expected = torch.full((4,), 2.0 * sum(range(1, place.size + 1)))
    tensor = torch.full((4,), float(place.rank))
    assert torch.equal(doubled(tensor), expected)
    assert torch.equal(torch.compile(doubled, backend="aot_eager", fullgraph=True)(tensor), expected)
    many = collectives.all_reduce_coalesced([tensor, 2 * tensor], "max", world)
    assert [each[0].item() for each in many] == [place.size - 1, 2 * (place.size - 1)]
    mesh = dist.init_device_mesh("cpu", (place.size,))
    parts = DTensor.from_local(tensor + 1, mesh, [Partial()]).redistribute(placements=[Replicate()])
    assert torch.equal(2 * parts.to_local(), expected)
    found = carriers()
    dist.destroy_process_group()
    return found


def hooks_of_ours(place: Place, hook: str) -> dict[str, Any]:
    """A script that keeps its backend, and has its gradients summed by a hook."""
    from inaproto.torch import hooks

    place.begin("gloo")
    model = ddp(network(), bucket_cap_mb=0.01)
    model.register_comm_hook(None, getattr(hooks, hook))
    train_steps(place, model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), 4)
    odd = torch.ones(3)
    dist.all_reduce(odd)
    found = {"weights": digest_of(model), "groups": [group.all_reduces for group in _status().groups]}
    if place.rank == 0:
        found["alone"] = trained_alone(place.size, 4)
    dist.destroy_process_group()
    return found


def fixed_points_of_odd_numbers(place: Place) -> list[list[float]]:
    """What the hook makes of gradients among which there is an infinity, or NaN, at the first rank."""
    from inaproto.torch import hooks

    place.begin("gloo")
    found = []
    for odd in (math.inf, -math.inf, math.nan, 3.0):
        tensor = torch.ones(3)
        if place.rank == 0:
            tensor[1] = odd
        bucket: Any = SimpleNamespace(buffer=lambda tensor=tensor: tensor)
        hooks.fixed_point(None, bucket).wait()
        found.append(tensor.tolist())
    dist.destroy_process_group()
    return found


def _status() -> Any:
    return inaproto.torch.status()


def profiled(place: Place) -> list[list[Any]]:
    """Events of all-reduces: name, and whether they may end in another thread than they began in."""
    place.begin("gloo")
    dist.all_reduce(torch.ones(3))
    with torch.autograd.profiler.profile(use_cpu=True) as profile:
        dist.all_reduce(torch.ones(3))
        dist.all_reduce(torch.ones(4), async_op=True).get_future().wait()
    dist.destroy_process_group()
    return [[event.name, event.is_async] for event in profile.function_events if "all_reduce" in event.name]


def profiled_again_and_again(place: Place, times: int) -> list[int]:
    """Events in profiles that end as soon as their all-reduce was waited for."""
    place.begin("gloo")
    counts = []
    for turn in range(times):
        with torch.autograd.profiler.profile(use_cpu=True, record_shapes=True) as profile:
            work = dist.all_reduce(torch.ones(3), async_op=bool(turn % 2))
            if work is not None:
                work.wait()
        counts.append(sum(event.name == "inaproto:all_reduce" for event in profile.function_events))
    dist.destroy_process_group()
    return counts


def threads_of_ours(place: Place) -> list[list[str]]:
    """After all-reduces that are waited for at once, and after one whose future was asked for."""
    import threading

    place.begin("gloo")
    found = []
    for asks in (False, True):
        dist.all_reduce(torch.ones(3))
        work = dist.all_reduce(torch.ones(3), async_op=asks)
        if asks:
            work.get_future().wait()
        else:
            dist.all_reduce(torch.ones(8, 2).t())
        found.append(sorted({thread.name.split()[0] for thread in threading.enumerate()}))
    dist.destroy_process_group()
    return found
