"""Several links to one neighbour as one port: flows keep their link, and outlive it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest
import trio
import trio.testing

from inaproto.daemon.settings.config import load_switch_settings
from inaproto.errors import ConfigError, FabricError
from inaproto.ports import FramePort, FramePortCapabilities, PortClosed, PortCounters, load_adapter
from inaproto.units import Frames
from inaproto.wire.path_probe import answers_to, question, token_answered
from inaproto.wire.vlan import with_tag
from inaproto_adapters.frames.lag import LagLink, LagPort, by_flow
from inaproto_adapters.frames.packet import PacketLink
from tests.unit.switched_ring import SwitchedRing, block
from tests.unit.test_accelerator_ipv6 import over_ipv6

MACS = bytes.fromhex("020000000001020000000002")


class Member:
    """A frame port whose far end is the test."""

    def __init__(self, name: str, longest: int = 1514) -> None:
        self.sent: list[bytes] = []
        self.capabilities = FramePortCapabilities("packet", longest, lossless=False, way="long segments")
        self.counters = PortCounters()
        self._in, self._out = trio.open_memory_channel[Sequence[Frames]](8)
        self.is_closed = False
        self.received = 0

    def send_nowait(self, frames: Frames) -> int:
        if self.is_closed:
            raise PortClosed("it is down")
        self.sent += [row.tobytes() for row in frames]
        self.counters.frames_out += len(frames)
        return len(frames)

    def come(self, *blocks: Frames) -> None:
        self._in.send_nowait(blocks)

    def down(self) -> None:
        self.is_closed = True
        self._in.close()

    async def receive(self) -> Sequence[Frames]:
        try:
            found = await self._out.receive()
        except trio.EndOfChannel:
            raise PortClosed("it is down") from None
        self.received += 1
        return found

    async def run(self) -> None:
        await trio.sleep_forever()

    async def aclose(self) -> None:
        self.down()
        await trio.lowlevel.checkpoint()


class Place:
    """A link where a member can be attached while ``is_up``."""

    def __init__(self, name: str) -> None:
        self.name = f"packet:{name}"
        self.is_up = True
        self.longest = 1514
        self.change = trio.Event()
        self.members: list[Member] = []

    @property
    def member(self) -> Member:
        return self.members[-1]

    def require(self) -> None: ...
    def require_stranger(self, mac: bytes, ip: bytes) -> None: ...

    async def attach(self) -> FramePort:
        await trio.lowlevel.checkpoint()
        if not self.is_up:
            raise FabricError("attach", self.name, "opening its port", "it is down", retryable=True)
        self.members.append(Member(self.name, self.longest))
        return self.member

    async def wait_usable(self) -> None:
        while not self.is_up:
            await self.change.wait()

    def set_up(self, is_up: bool) -> None:
        self.is_up = is_up
        if is_up:
            self.change.set()
            self.change = trio.Event()
        else:
            self.member.down()


@asynccontextmanager
async def port_of(*places: Place) -> AsyncIterator[LagPort]:
    port = await LagLink(places).attach()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(port.run)
        await trio.testing.wait_all_tasks_blocked()
        yield port
        await port.aclose()
        nursery.cancel_scope.cancel()


def flows(count: int) -> list[bytes]:
    """A frame of each of so many connections."""
    found = []
    for number in range(count):
        frame = bytearray(SwitchedRing(2).packet(0, 0, 1))
        frame[34:36] = (0xC000 + number).to_bytes(2, "big")
        found.append(bytes(frame))
    return found


FORMS: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda frame: frame,
    "tagged": lambda frame: with_tag(block(frame), b"\x81\0\x60\x64")[0].tobytes(),
    "IPv6": over_ipv6,
    "IPv6, tagged": lambda frame: over_ipv6(frame, tag=b"\x81\0\x60\x64"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("together", [False, True])
async def test_the_frames_of_a_flow_leave_by_one_link_in_order_and_flows_are_spread(
    form: str, *, together: bool
) -> None:
    frames = [FORMS[form](frame) for frame in flows(16)]
    places = [Place("eth1"), Place("eth2")]
    async with port_of(*places) as port:
        for _ in range(3):
            for group in [frames] if together else [[frame] for frame in frames]:
                assert port.send_blocks_nowait([block(*group)]) == 0
        sent = [place.member.sent for place in places]
    assert sorted(sent[0] + sent[1]) == sorted(frames * 3)
    assert not set(sent[0]) & set(sent[1])
    assert 3 <= len(set(sent[0])) <= 13
    assert all([frame for frame in its if frame == one] == [one] * 3 for its in sent for one in set(its))


def test_a_block_of_one_flow_is_not_taken_apart() -> None:
    """Its packets differ in IP identification, PSN and payload."""
    ring = SwitchedRing(2)
    frames = block(*(ring.packet(0, 0, offset, ip_id=offset) for offset in (1, 2)))
    ((_, rows),) = by_flow(frames)
    assert rows is frames


@pytest.mark.parametrize(
    "first",
    [
        MACS + b"\x08\x06",
        MACS + b"\x81\x00\x60\x64\x08\x06",
        flows(1)[0][:20] + b"\x00\xb9" + flows(1)[0][22:],
    ],
    ids=["ARP", "tagged ARP", "last fragment"],
)
def test_a_flow_has_its_link_whatever_comes_before_it_in_a_block(first: bytes) -> None:
    connections = [frame[:20] + bytes(2) + frame[22:] for frame in flows(8)]
    alone = {flow for frame in connections for flow, _ in by_flow(block(frame))}
    length = len(connections[0])
    behind = {flow for flow, _ in by_flow(block(first.ljust(length, b"\0")[:length], *connections))}
    assert len(alone) == 8
    assert alone < behind


async def test_a_probe_goes_by_the_link_that_it_names() -> None:
    places = [Place("eth1"), Place("eth2"), Place("eth3")]
    async with port_of(*places) as port:
        assert port.capabilities.links == 3
        asked = [question(mac=MACS[6:], token=way << 16 | 1024, nbytes=100) for way in range(4)]
        port.send_blocks_nowait([np.concatenate(asked)])
        answers = [answers_to(with_tag(frames, b"\x81\0\x60\x64")) for frames in asked]
        port.send_blocks_nowait([frames for frames in answers if frames is not None])
        sent = [[(token_answered(frame), len(frame)) for frame in place.member.sent] for place in places]
    tagged = [(way << 16 | 1024, 104) for way in range(4)]
    plain = (None, 100)
    assert sent == [[plain, plain, tagged[0], tagged[3]], [plain, tagged[1]], [plain, tagged[2]]]


async def test_a_link_that_takes_shorter_frames_than_the_port_promised_is_none_of_it(
    autojump_clock: object,
) -> None:
    places = [Place("eth1"), Place("eth2")]
    places[1].is_up = False
    async with port_of(*places) as port:
        assert port.capabilities.frame_bytes_max == 1514
        places[1].longest = 1000
        places[1].set_up(True)
        await trio.sleep(2)
        assert port.capabilities.frame_bytes_max == 1514
        assert "packet:eth2 is away: it takes frames of 1000 bytes" in port.capabilities.way
        assert all(member.is_closed for member in places[1].members)
        places[1].longest = 9000
        await trio.sleep(2)
        assert "2 of 2 links" in port.capabilities.way
        assert port.capabilities.frame_bytes_max == 1514


async def test_what_no_link_takes_is_counted_and_so_is_what_others_drop_there() -> None:
    places = [Place("eth1"), Place("eth2")]
    async with port_of(*places) as port:
        for_one, held = flows(16), port.counters
        places[0].member.is_closed = True  # its own task has not heard of it yet
        assert port.send_nowait(block(*for_one)) == 16
        assert len(places[1].member.sent) == 16
        places[1].member.is_closed = True
        assert port.send_nowait(block(*for_one)) == 0
        held.drop("held back", 3)
        assert port.counters.drops == {"link down": 16, "held back": 3}
        assert port.counters.drops == {"link down": 16, "held back": 3}, "looking changes nothing"


async def test_what_comes_by_any_link_comes_by_the_port_block_by_block() -> None:
    places = [Place("eth1"), Place("eth2")]
    async with port_of(*places) as port:
        places[0].member.come(np.full((1, 60), 1, np.uint8))
        places[0].member.come(np.full((1, 60), 2, np.uint8))
        places[1].member.come(np.full((1, 60), 3, np.uint8))
        await trio.testing.wait_all_tasks_blocked()
        assert places[0].member.received == 1, "what it gave is valid until the next call"
        found = [int((await port.receive())[0][0, 0]) for _ in range(3)]
        assert sorted(found) == [1, 2, 3]
        assert found.index(1) < found.index(2)


async def test_flows_of_a_link_that_goes_down_leave_by_another_and_return(autojump_clock: object) -> None:
    frames = flows(16)
    places = [Place("eth1"), Place("eth2")]
    async with port_of(*places) as port:
        port.send_nowait(block(*frames))
        first = [list(place.member.sent) for place in places]
        places[0].set_up(False)
        await trio.sleep(2)
        assert "1 of 2 links: packet:eth1 is away: it is down, packet:eth2" in port.capabilities.way
        assert port.send_nowait(block(*frames)) == 16
        assert sorted(places[1].member.sent) == sorted(first[0] + 2 * first[1])
        places[0].set_up(True)
        await trio.sleep(2)
        port.send_nowait(block(*frames))
        assert len(places[0].members) == 2
        assert places[0].member.sent == first[0]
        assert port.counters.frames_out == 48


async def test_a_link_that_is_away_from_the_start_says_why() -> None:
    places = [Place("eth1"), Place("eth2")]
    places[0].is_up = False
    port = await LagLink(tuple(places)).attach()
    assert "1 of 2 links: packet:eth1 is away: it is down, packet:eth2" in port.capabilities.way
    await port.aclose()


async def test_the_port_ends_with_its_last_link(autojump_clock: object) -> None:
    places = [Place("eth1"), Place("eth2")]
    async with port_of(*places) as port:
        for place in places:
            place.set_up(False)
        with pytest.raises(PortClosed, match="all its links are away: it is down"):
            await port.receive()
        with pytest.raises(PortClosed):
            port.send_nowait(block(flows(1)[0]))
    with pytest.raises(FabricError, match="it is down"):
        await LagLink(tuple(places)).attach()
    places[1].is_up = True
    async with port_of(*places) as port:
        assert "1 of 2 links" in port.capabilities.way


def test_links_are_joined_by_their_names() -> None:
    open_link = load_adapter("packet").open
    several = open_link("eth1+eth2")
    assert isinstance(several, LagLink)
    assert several.name == "packet:eth1+eth2"
    assert isinstance(open_link("eth1"), PacketLink)
    with pytest.raises(ConfigError, match="twice"):
        open_link("eth1+eth1")
    for kind in ("veth", "xdp"):
        assert load_adapter(kind).open("eth1+eth2").name == f"{kind}:eth1+eth2"


@pytest.mark.parametrize("port", ["packet:eth1+", "packet:+eth1", "packet:eth1+eth2 packet:eth2"])
def test_joined_links_that_cannot_be_are_refused(port: str) -> None:
    with pytest.raises(ConfigError):
        load_switch_settings({"port": port.split()}, None, {})
