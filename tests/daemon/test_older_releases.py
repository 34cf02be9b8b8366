"""Ranks that call different collectives, where a daemon of the job is of a release that has no such words.

What an older release does not know is taken from daemons of this one: fields that they would not read or say,
messages that they would not take (docs/protocol.md 1.3, 10.2). Every test is one seeded run in virtual time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import trio

import inaproto
from inaproto.core.rendezvous.disputes import CALLS_NS
from inaproto.core.rendezvous.ring_ends import RingEnds
from inaproto.daemon.host.attachment import Fabric
from inaproto.daemon.host.session import ClientSession
from inaproto.errors import FabricLost, JobError, LocalMisuse, RankLost, TensorMismatch
from inaproto.wire.control_messages import AskCalls, Message
from inaproto.wire.messages.client import AllReduce, Joined
from tests.clusters.memory import MemoryCluster, run_world

PATHS = ("auto", "chain", "overlay", "ring")
SHORT, LONG = np.ones(6, np.float32), np.ones(7, np.float32)
Call = Callable[[inaproto.Communicator], Awaitable[Any]]


def as_before(message: Message, *unknown: str) -> Message:
    """What one who does not know these fields reads or says."""
    defaults: dict[str, Any] = {
        field.name: field.default for field in fields(message) if field.name in unknown
    }
    return replace(message, **defaults)


@pytest.fixture
def older_hosts(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Names of hosts whose daemons know no collective but an all-reduce, and no question about calls."""
    names: set[str] = set()
    takes, says, obeys = ClientSession._handle, ClientSession._send, Fabric._handle

    def is_older(session: ClientSession) -> bool:
        settings: Any = session._daemon
        return settings._settings.name in names

    def take(self: ClientSession, message: Message) -> None:
        unread = is_older(self) and isinstance(message, AllReduce)
        takes(self, as_before(message, "call") if unread else message)

    def say(self: ClientSession, message: Message, *descriptors: int) -> None:
        if is_older(self) and isinstance(message, Joined):
            says(self, as_before(message, "named", "successor_ms"))
        else:
            says(self, message, *descriptors)

    def obey(self: Fabric, message: Message) -> None:
        if not (self.settings.name in names and isinstance(message, AskCalls)):
            obeys(self, message)

    monkeypatch.setattr(ClientSession, "_handle", take)
    monkeypatch.setattr(ClientSession, "_send", say)
    monkeypatch.setattr(Fabric, "_handle", obey)
    return names


@pytest.fixture
def older_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control plane that takes ``broken`` with ``differs`` for any other."""
    breaks = RingEnds.broken

    def broken(self: RingEnds, job: Any, event: Any) -> Any:
        return breaks(self, job, replace(event, message=as_before(event.message, "differs")))

    monkeypatch.setattr(RingEnds, "broken", broken)


def ends(path: str, calls: Sequence[Call]) -> list[tuple[float, BaseException | None]]:
    """What each rank, one a host, gets of its call, and how many seconds after it."""
    found: dict[int, tuple[float, BaseException | None]] = {}

    async def scenario(cluster: MemoryCluster) -> None:
        comms = await cluster.job("train", len(calls), path=path)

        async def one(rank: int) -> None:
            began = trio.current_time()
            error: BaseException | None = None
            try:
                await calls[rank](comms[rank])
            except (JobError, LocalMisuse) as caught:
                error = caught
            found[rank] = trio.current_time() - began, error
            await comms[rank].aclose()

        async with trio.open_nursery() as nursery:
            for rank in range(len(calls)):
                nursery.start_soon(one, rank)

    run_world(f"older releases/{path}", scenario, hosts=len(calls))
    return [found[rank] for rank in sorted(found)]


async def sums(comm: inaproto.Communicator) -> Any:
    return await comm.all_reduce(SHORT)


async def sums_more(comm: inaproto.Communicator) -> Any:
    return await comm.all_reduce(LONG)


async def gives(comm: inaproto.Communicator) -> Any:
    return await comm.broadcast(SHORT, 0)


async def gathers(comm: inaproto.Communicator) -> Any:
    return await comm.all_gather(SHORT[:3])


@pytest.mark.parametrize("path", PATHS)
def test_a_host_that_does_not_tell_its_calls_delays_a_mismatch_and_no_more(
    path: str, older_hosts: set[str]
) -> None:
    """docs/protocol.md 12.6. Its rank knows its own call by itself, and reads those of the others."""
    older_hosts.add("h1")
    found = ends(path, (sums, sums_more, sums))
    for (after, error), shape in zip(found, ("(6,)", "(7,)", "(6,)"), strict=True):
        assert isinstance(error, TensorMismatch), error
        assert f"sum of float32 {shape}" in str(error)
        assert "sum of float32 (6,)" in str(error)
        assert after < 2 * CALLS_NS / 1e9


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("other", [gives, gathers])
def test_a_collective_is_refused_where_the_daemon_would_take_it_for_a_sum(
    path: str, other: Call, older_hosts: set[str]
) -> None:
    """docs/protocol.md 11. Two that differ would be added up, two that are the same taken for different."""
    older_hosts.add("h1")
    (_, first), (after, second) = ends(path, (gives, other))
    assert isinstance(second, LocalMisuse)
    assert "older release" in str(second)
    assert after == 0
    assert isinstance(first, RankLost)
    older_hosts.add("h0")
    assert [type(error) for _, error in ends(path, (gives, other))] == [LocalMisuse] * 2


def test_all_reduces_go_on_beside_an_older_daemon(older_hosts: set[str]) -> None:
    older_hosts.add("h1")
    assert [error for _, error in ends("auto", (sums, sums))] == [None, None]


@pytest.mark.parametrize("path", PATHS)
def test_a_control_plane_that_does_not_ask_ends_the_job_all_the_same(path: str, older_root: None) -> None:
    """A ring of hosts that breaks where it broke before is not made again."""
    for after, error in ends(path, (sums, sums_more)):
        assert isinstance(error, TensorMismatch if path == "auto" else FabricLost)
        assert path == "auto" or "tensors differ" in str(error)
        assert after < 1


@pytest.mark.parametrize("path", PATHS)
def test_ranks_of_this_release_are_told(path: str) -> None:
    """By the same scenario, all daemons being of this release."""
    for after, error in ends(path, (gives, gathers)):
        assert isinstance(error, TensorMismatch)
        assert "broadcast of float32 (6,) from rank 0" in str(error)
        assert "all_gather of float32 (3,)" in str(error)
        assert after < 1
