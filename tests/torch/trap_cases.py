"""What ranks do where something goes wrong: cases as those of :mod:`tests.torch.cases`."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import inaproto.torch
from tests.torch.cases import (
    Place,
    batch,
    ddp,
    digest_of,
    error_of,
    loss_of,
    network,
    train_steps,
    trained_alone,
)


def gloo_between(place: Place) -> None:
    """gloo's worker takes the interpreter's lock while it holds its own: nobody may call it with the lock
    held.
    """
    place.begin("gloo")
    works = []
    for turn in range(150):
        ours, others = torch.full((64,), float(turn)), torch.ones(64, dtype=torch.uint8)
        works.append(dist.all_reduce(ours, async_op=True))
        works.append(dist.all_reduce(others, async_op=True))
        works.append(dist.broadcast(torch.ones(8), 0, async_op=True))
        torch.ops._c10d_functional.wait_tensor(
            torch.ops._c10d_functional.all_reduce(others, "sum", dist.group.WORLD.group_name)
        )
    for work in works:
        work.wait()
    dist.destroy_process_group()


def works_that_nobody_holds(place: Place) -> None:
    """C++ alone holds them, and they end; those that Python holds tell when they have."""
    import gc

    place.begin("gloo")
    name = dist.group.WORLD.group_name
    tensors = []
    for turn in range(20):
        tensors.append(torch.ops._c10d_functional.all_reduce(torch.full((9,), float(turn)), "sum", name))
        gc.collect()
    for turn, tensor in enumerate(tensors):
        assert torch.ops._c10d_functional.wait_tensor(tensor)[0].item() == turn * place.size
    work = dist.all_reduce(torch.ones(5), async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    assert work.is_success()
    assert work.exception() is None
    assert work.get_future().wait()[0][0].item() == place.size
    assert work.result()[0][0].item() == place.size
    dist.destroy_process_group()


def callbacks_that_wait(place: Place, depth: int) -> float:
    """Each callback waits for another all-reduce, of which a callback waits for another."""
    place.begin("gloo")

    def further(left: int) -> float:
        tensor = torch.ones(3)
        future = dist.all_reduce(tensor, async_op=True).get_future()
        if left == 0:
            return float(future.wait()[0][0])
        return float(future.then(lambda _: further(left - 1)).wait())

    found = further(depth)
    dist.destroy_process_group()
    return found


def killed(place: Place, how: str) -> list[str]:
    """Rank 1 is killed: others hear it from a work, from a future, or from DDP; and from all that follow."""
    import os
    import signal

    place.begin("gloo")
    model = ddp(network())
    # Twice, for in the second DDP makes its buckets anew, and tells the others by gloo.
    train_steps(place, model, torch.optim.SGD(model.parameters(), lr=0.1), 2)
    if place.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    found = []
    if how == "ddp":
        found.append(error_of(lambda: loss_of(model, batch(place.rank, 1)).backward()))
    elif how == "future":
        future = dist.all_reduce(torch.ones(3), async_op=True).get_future()
        found.append(error_of(future.wait))
        found.append(error_of(future.then(lambda done: done.value()).wait))
    work = dist.all_reduce(torch.ones(3), async_op=True)
    found.append(error_of(work.wait))
    assert work.is_completed()
    assert not work.is_success()
    found.append(str(work.exception()))
    found.append(error_of(lambda: dist.all_reduce(torch.ones(3))))
    return found


def killed_at_random(place: Place, seed: int) -> dict[str, Any]:
    """One rank is killed at any moment of a training that would not end: the others hear it, and by whom."""
    import os
    import random
    import signal
    import threading

    place.begin("gloo")
    model = ddp(network(), bucket_cap_mb=0.01, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_steps(place, model, optimizer, 3)
    draw = random.Random(seed)
    victim, after_s = draw.randrange(place.size), draw.random() * 0.2
    if place.rank == victim:
        threading.Timer(after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
    try:
        while True:
            train_steps(place, model, optimizer, 1)
    except RuntimeError as error:
        return {"named": f"rank {victim}" in str(error), "error": str(error)[:1000]}


def daemon_killed(place: Place, seed: int, pid: int, steps: int) -> dict[str, Any]:
    """The daemon with ``pid`` is killed after a step that ``seed`` draws, or a moment later.

    What each rank has in the end: weights, and in rank 0 those of one process; or its error, and how many
    seconds after the kill it came.
    """
    import os
    import random
    import signal
    import threading

    place.begin("gloo")
    model = ddp(network(), bucket_cap_mb=0.01, broadcast_buffers=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draw = random.Random(seed)
    last, after_s = draw.randrange(2, steps - 20), draw.random() * 0.1
    killed = place.directory / "killed"

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        killed.with_suffix(".part").write_text(str(time.monotonic()))
        killed.with_suffix(".part").rename(killed)

    try:
        for step in range(steps):
            if step == last and place.rank == 0:
                threading.Timer(after_s, kill).start()
            optimizer.zero_grad()
            loss_of(model, batch(place.rank, step)).backward()
            optimizer.step()
    except RuntimeError as error:
        ended = time.monotonic()
        while not killed.exists():
            time.sleep(0.001)
        return {"weights": "", "error": str(error)[:1000], "late_s": ended - float(killed.read_text())}
    found: dict[str, Any] = {"weights": digest_of(model), "error": "", "late_s": 0.0}
    if place.rank == 0:
        found["alone"] = trained_alone(place.size, steps)
    return found


def different_calls(place: Place) -> list[str]:
    """Rank 1 calls a maximum where others sum; or two all-reduces in another order."""
    place.begin("gloo")
    op = dist.ReduceOp.MAX if place.rank == 1 else dist.ReduceOp.SUM
    found = [error_of(lambda: dist.all_reduce(torch.ones(3), op))]
    group = dist.new_group(list(range(place.size)))
    first, second = (3, 4) if place.rank else (4, 3)
    works = [dist.all_reduce(torch.ones(length), group=group, async_op=True) for length in (first, second)]
    found += [error_of(work.wait) for work in works]
    return found


def differ(place: Place, how: str, is_first: bool) -> list[str]:
    """Rank 1 calls something else than the others."""
    place.begin("gloo")
    if not is_first:
        dist.all_reduce(torch.ones(3))
    odd = place.rank == 1
    op = dist.ReduceOp.SUM
    tensor = torch.ones(3)
    if how == "average":
        op = dist.ReduceOp.AVG if odd else op
    elif how == "empty":
        tensor = torch.empty(0) if odd else tensor
    elif how == "integers":
        tensor = torch.ones(3, dtype=torch.int32) if odd else tensor
    found = [error_of(lambda: dist.all_reduce(tensor, op))]
    found.append(error_of(lambda: dist.all_reduce(torch.ones(3))))
    return found


def late(place: Place, elements: int) -> str:
    """Rank 1 never calls the second all-reduce; or, of 0 elements, none."""
    from datetime import timedelta

    place.begin("gloo")
    if elements:
        dist.all_reduce(torch.ones(elements))
    if place.rank == 1:
        while not (place.directory / "heard").exists():
            time.sleep(0.01)
        return ""
    group = dist.group.WORLD
    options = dist.AllreduceOptions()
    options.timeout = timedelta(seconds=0.5)
    found = error_of(lambda: group.allreduce([torch.ones(elements or 3)], options).wait())
    (place.directory / "heard").touch()
    return found


def until_there(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def shut_down_before_the_others_come(place: Place) -> list[Any]:
    """Rank 0 shuts a group down whose first all-reduce has begun at rank 0 alone: it ends everywhere."""
    engine: Any = import_module("inaproto.torch.engine")
    engine.DRAIN_S = 120.0
    place.begin("gloo")
    tensor = torch.full((3,), place.rank + 1.0)
    if place.rank:
        until_there(place.directory / "shuts down")
        dist.all_reduce(tensor)
    else:
        work = dist.all_reduce(tensor, async_op=True)
        (place.directory / "shuts down").touch()
        dist.destroy_process_group()
        work.wait()
    return [float(number) for number in tensor]


def shut_down_where_nobody_comes(place: Place) -> list[str]:
    """Rank 0 shuts a group down whose first all-reduce no other rank calls, and goes on calling it."""
    engine: Any = import_module("inaproto.torch.engine")
    engine.DRAIN_S = 0.05
    place.begin("gloo")
    found = []
    if place.rank == 0:
        group = dist.group.WORLD
        work = dist.all_reduce(torch.ones(3), async_op=True)
        dist.destroy_process_group()
        found.append(error_of(work.wait))
        found.append(error_of(lambda: group.allreduce([torch.ones(3)], dist.AllreduceOptions()).wait()))
        (place.directory / "heard").touch()
    until_there(place.directory / "heard")
    return found


def shut_down_while_joining(place: Place) -> str:
    """Rank 0 shuts a group down, does not wait for it, and joins its job only then."""
    import threading

    engine: Any = import_module("inaproto.torch.engine")
    engine.DRAIN_S = 0.05
    joins, is_shut_down = threading.Event(), threading.Event()
    connect = engine.connect_blocking

    def connect_late(*given: Any, **named: Any) -> Any:
        joins.set()
        is_shut_down.wait()
        return connect(*given, **named)

    place.begin("gloo")
    if place.rank == 0:
        engine.connect_blocking = connect_late
        work = dist.all_reduce(torch.ones(3), async_op=True)
        joins.wait()
        dist.destroy_process_group()
        is_shut_down.set()
        found = error_of(work.wait)
    else:
        found = error_of(lambda: dist.all_reduce(torch.ones(3)))
        (place.directory / "heard").touch()
    until_there(place.directory / "heard")
    return found


def aborted(place: Place, is_first: bool) -> list[str]:
    """Rank 0 aborts a group of which it waits for an all-reduce that rank 1 has yet to call."""
    import threading

    place.begin("gloo")
    group = dist.group.WORLD
    if not is_first:
        dist.all_reduce(torch.ones(3))
    found: list[str] = []
    if place.rank == 0:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        waiter = threading.Thread(target=lambda: found.append(error_of(work.wait)))
        waiter.start()
        group.abort()
        waiter.join()
        found.append(error_of(lambda: group.allreduce([torch.ones(3)], dist.AllreduceOptions()).wait()))
        (place.directory / "aborted").touch()
    until_there(place.directory / "aborted")
    if place.rank and not is_first:
        found.append(error_of(lambda: dist.all_reduce(torch.ones(3))))
        (place.directory / "heard").touch()
    if not is_first:
        until_there(place.directory / "heard")
    return found


def devices_of_makers(place: Place, devices: list[str]) -> list[bool]:
    """For which of them the maker of a backend takes itself to be called for a GPU."""
    from inaproto.torch import autoload

    store = place.store()
    return [autoload._is_for_cuda(dist.PrefixStore(f"{device}/", store)) for device in devices]


def forked(place: Place) -> list[str]:
    """What a process that a rank forks has of the rank's sockets, and what it may do with the group."""
    import os

    from inaproto.torch import groups as ours

    place.begin("gloo")
    dist.all_reduce(torch.ones(3))
    served = ours.served(dist.group.WORLD, "cpu")
    assert served is not None
    descriptors = served.engine.descriptors()
    assert descriptors
    path = place.directory / f"child{place.rank}"
    child = os.fork()
    if child == 0:
        lines = [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors]
        lines.append(error_of(lambda: dist.all_reduce(torch.ones(3))))
        path.write_text("\n".join(lines))
        os._exit(0)
    os.waitpid(child, 0)
    dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()
    return path.read_text().split("\n")


def ended_by_multiprocessing(place: Place, status: int | None) -> str:
    """Rank 1 is a process that was forked where an error is handled, and ends by that status, or without;
    what the others hear of it.
    """
    import multiprocessing

    def run() -> None:
        place.begin("gloo")
        dist.all_reduce(torch.ones(3))
        if status is not None:
            sys.exit(status)

    if place.rank == 1:
        sys.last_value = ValueError("of a cell before")
        try:
            raise ValueError("of this one")
        except ValueError:
            process = multiprocessing.get_context("fork").Process(target=run)
            process.start()
        process.join()
        return ""
    place.begin("gloo")
    dist.all_reduce(torch.ones(3))
    return error_of(lambda: dist.all_reduce(torch.ones(3)))


def fake(place: Place) -> None:
    """A fake tensor has no elements; nobody is asked for them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    place.begin("gloo")
    with FakeTensorMode():
        dist.all_reduce(torch.ones(3))
    dist.destroy_process_group()


def without_daemons(place: Place, backend: str) -> dict[str, Any]:
    """All-reduces beside gloo's own collectives, in an order that differs in time from rank to rank."""
    place.begin(backend)
    try:
        tensor = torch.full((3,), place.rank + 1.0)
        work = dist.all_reduce(tensor, async_op=True)
        if place.rank == 0:
            dist.send(torch.ones(1), 1)
        elif place.rank == 1:
            dist.recv(torch.ones(1), 0)
        dist.barrier()
        work.wait()
        assert tensor[0].item() == sum(range(1, place.size + 1))
        average = torch.full((3,), place.rank + 1.0)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        assert average[0].item() == (place.size + 1) / 2
        error = ""
    except RuntimeError as raised:
        error = str(raised)
    (group,) = inaproto.torch.status().groups
    dist.destroy_process_group()
    return {"carrier": group.carrier, "why": group.why, "error": error}


def another_version(place: Place, version: str) -> str:
    """What the name of inaproto is answered by a torch of another version."""
    torch.__version__ = version
    try:
        place.begin("inaproto")
    except Exception as error:  # noqa: BLE001  whatever it is
        return f"{type(error).__name__}: {error}"
    dist.destroy_process_group()
    return ""
