"""Waiting for a peer's MAC address without stopping the process, and what events of a device mean."""

from __future__ import annotations

from pathlib import Path

import trio
from trio.testing import MockClock

from inaproto_adapters.verbs import events, neighbours

OWN, PEER = b"\x7f\0\0\1", b"\x7f\0\0\2"
HEAD = "IP address       HW type     Flags       HW address            Mask     Device\n"


def line(flags: int, interface: str = "eth1") -> str:
    return f"127.0.0.2        0x1         0x{flags:x}         52:54:00:00:00:02     *        {interface}\n"


def test_what_the_kernel_s_table_says(tmp_path: Path) -> None:
    table = tmp_path / "arp"
    assert not neighbours.is_resolved(OWN, PEER, "eth1", table)
    for text, known in ((line(2), True), (line(0), False), (line(2, "eth2"), False), ("", False)):
        table.write_text(HEAD + text)
        assert neighbours.is_resolved(OWN, PEER, "eth1", table) is known
    assert neighbours.is_resolved(OWN, OWN, "eth1", table)


async def test_an_answer_that_comes_late_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    table = tmp_path / "arp"
    table.write_text(HEAD)
    found: list[bool] = []

    async def wait() -> None:
        found.append(await neighbours.resolve(OWN, PEER, "eth1", table))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(neighbours.WAIT_S / 2)
        assert found == []
        table.write_text(HEAD + line(2))
    assert found == [True]


async def test_a_peer_that_does_not_answer_is_given_up(tmp_path: Path, autojump_clock: MockClock) -> None:
    begun = trio.current_time()
    assert not await neighbours.resolve(OWN, PEER, "eth1", tmp_path / "arp")
    assert trio.current_time() - begun == neighbours.WAIT_S


def test_events_that_end_the_use_of_a_device() -> None:
    assert [one for one in range(20) if events.is_fatal(one)] == [0, 8]
    assert events.name(10) == "port is down"
    assert events.name(99) == "event 99"
    assert events.is_worth_a_warning(10)
    assert not events.is_worth_a_warning(9)
