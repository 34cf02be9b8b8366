"""The exchange of processes that have no daemon: rounds, strangers, and who leaves half-way."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from inaproto.errors import ConfigError, FabricError
from inaproto_adapters.sharp.hub import HubMember, met

END_S = 60.0


async def test_all_hear_all_round_by_round(runtime_dir: Path) -> None:
    heard: dict[int, list[list[bytes]]] = {}

    async def one(rank: int) -> None:
        async with met(str(runtime_dir / "hub"), rank, 3, "key") as member:
            said = [f"{number} of {rank}".encode() * number for number in range(3)]
            heard[rank] = [list(await member.all_gather(words)) for words in said]
            await member.all_gather(b"")  # nobody leaves before all have heard

    with trio.fail_after(END_S):
        async with trio.open_nursery() as nursery:
            for rank in range(3):
                nursery.start_soon(one, rank)
    expected = [[f"{number} of {rank}".encode() * number for rank in range(3)] for number in range(3)]
    assert heard == dict.fromkeys(range(3), expected)


async def test_who_has_another_key_is_not_let_in(runtime_dir: Path) -> None:
    path = str(runtime_dir / "hub")
    outcomes: list[str] = []

    async def stranger() -> None:
        async with met(path, 1, 2, "guessed") as member:
            with pytest.raises(FabricError, match="gone"):
                await member.all_gather(b"hello")
            outcomes.append("refused")

    async def one(rank: int) -> None:
        async with met(path, rank, 2, "key") as member:
            await member.all_gather(b"hello")
            outcomes.append("heard")

    with trio.fail_after(END_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one, 0)
            await stranger()
            nursery.start_soon(one, 1)
    assert sorted(outcomes) == ["heard", "heard", "refused"]


async def test_who_leaves_half_way_is_in_no_round_any_more(runtime_dir: Path) -> None:
    async def waits(member: HubMember) -> None:
        with pytest.raises(FabricError, match="gone"):
            await member.all_gather(b"one")

    path = str(runtime_dir / "hub")
    with trio.fail_after(END_S):
        async with met(path, 0, 2, "key") as first:
            async with met(path, 1, 2, "key") as second:
                with trio.CancelScope() as scope:
                    scope.cancel()
                    await second.all_gather(b"two")
                with pytest.raises(FabricError, match="half-way"):
                    await second.all_gather(b"two")
            await waits(first)


async def test_an_address_that_is_none_is_named() -> None:
    for address in ("host", "host:port", ":7"):
        with pytest.RaisesGroup(pytest.RaisesExc(ConfigError, match="HOST:PORT")):
            async with met(address, 0, 1, "key"):
                pass
