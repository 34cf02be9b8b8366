"""A board as a switch's accelerator: orders by its registers, what it says of them, a board that is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from inaproto.core.switch.events import (
    AcceleratorConfig,
    AcceleratorLost,
    AnswersLater,
    FramesArrived,
    InstallRing,
    PortUp,
    RemoveRing,
    RingFault,
    RingReady,
    RingRefused,
    SaidLater,
)
from inaproto.errors import Blame, FabricError, InvariantBroken, LocalMisuse
from inaproto.units import Instant, PortId, S
from inaproto.wire.messages.switch import PoolSpec
from inaproto_adapters.fpga.board import LINGER_S, RETRY_LAST_S, VIEW_S, BoardAccelerator
from inaproto_adapters.fpga.bus import RegisterBus
from inaproto_adapters.fpga.buses import bus_opener
from inaproto_adapters.fpga.register_map import (
    CONN_ROW,
    FAULT_COUNT,
    FAULT_RULE,
    RING_ROW,
    STATE_ROW,
    Counter,
    Table,
    pack,
    unpack,
)
from inaproto_adapters.fpga.simulated import InProcessBus
from tests.unit.test_fpga_device import CHILDREN, RINGS, Board, spec

NOW = Instant(0)
PORTS, FAULT = 0x020, 0x024
SOON_S = LINGER_S + 0.1


class Card:
    """A board in a slot, which may be empty."""

    def __init__(self) -> None:
        self.registers = Board()
        self.why_gone = ""
        self.said: list[SaidLater] = []
        self.accelerator = BoardAccelerator(self._open, "xdma:/dev/card", AcceleratorConfig(retired_ns=S))

    async def _open(self) -> RegisterBus:
        await trio.lowlevel.checkpoint()
        if self.why_gone:
            raise FabricError("open", "the card", "opening it", self.why_gone, retryable=True)
        return InProcessBus(self)

    def read32(self, address: int) -> int:
        if self.why_gone:
            raise OSError(self.why_gone)
        return self.registers.read32(address)

    def write32(self, address: int, value: int) -> None:
        if self.why_gone:
            raise OSError(self.why_gone)
        self.registers.write32(address, value)

    def fail(self, ring: int, rank: int, rule: Counter, *, failed: bool = True) -> None:
        """The fault register says it, and the state of the ring."""
        count = FAULT_COUNT.of(self.registers.words[FAULT]) + 1
        self.registers.words[FAULT] = FAULT_COUNT.at(count) | FAULT_RULE.at(rule)
        row = pack(STATE_ROW, failed=int(failed), fault_rule=int(rule), fault_child=rank)
        self.registers.tables[Table.STATE][ring] = row

    def in_tables(self) -> tuple[int, int]:
        """How many rings and connections are valid."""
        tables = self.registers.tables
        rings = sum(unpack(RING_ROW, row)["valid"] for row in tables[Table.RING].values())
        return rings, sum(unpack(CONN_ROW, row)["valid"] for row in tables[Table.CONN].values())


@asynccontextmanager
async def running(card: Card, *, wait_s: float = SOON_S) -> AsyncIterator[BoardAccelerator]:
    assert isinstance(card.accelerator, AnswersLater)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(card.accelerator.run, card.said.append)
        await trio.sleep(wait_s)
        yield card.accelerator
        nursery.cancel_scope.cancel()


async def test_a_ring_is_ready_when_it_is_in_the_tables(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    async with running(card) as board:
        assert board.status()["is_there"]
        assert board.step(InstallRing(spec(7)), NOW) == []
        assert card.said == []
        await trio.sleep(0.1)
        assert card.said == [RingReady(7)]
        assert card.in_tables() == (1, 2)
        board.step(RemoveRing(7), NOW)
        await trio.sleep(0.1)
        assert card.in_tables() == (0, 2), "its packets are dropped, not bridged"


async def test_its_ports_open_when_whatever_was_there_is_out(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    async with running(card) as board:
        board.step(InstallRing(spec(7)), NOW)
        await trio.sleep(0.1)
    card.registers.words[PORTS] = 0  # as after a reset that keeps the tables
    another = Card()
    another.registers = card.registers
    async with running(another, wait_s=LINGER_S / 2) as board:
        assert another.in_tables() == (0, 2)
        assert card.registers.words[PORTS] == 0
        await trio.sleep(LINGER_S)
        assert another.in_tables() == (0, 0)
        assert card.registers.words[PORTS] == 0b111111


async def test_what_does_not_fit_is_refused_with_the_reason(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    async with running(card) as board:
        board.step(InstallRing(spec(1, ranks=CHILDREN + 1)), NOW)
        await trio.sleep(0.1)
        (refused,) = card.said
        assert isinstance(refused, RingRefused)
        assert f"{CHILDREN + 1} ranks" in refused.reason


async def test_the_place_of_a_removed_ring_is_given_away_when_it_is_needed(
    autojump_clock: trio.abc.Clock,
) -> None:
    card = Card()
    async with running(card) as board:
        for ring_id in range(1, RINGS + 1):
            board.step(InstallRing(spec(ring_id, packets=1)), NOW)
        board.step(RemoveRing(2), NOW)
        board.step(RemoveRing(1), Instant(5))
        board.step(InstallRing(spec(9, packets=1)), NOW)
        await trio.sleep(0.1)
        assert card.said[-1] == RingReady(9)
        assert set(board._device.rings) == {1, 3, 9}, "the first that was removed made room"  # type: ignore[union-attr]


async def test_a_failed_ring_is_said_once_and_blame_as_well(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    async with running(card) as board:
        board.step(InstallRing(spec(7)), NOW)
        await trio.sleep(0.1)
        card.said.clear()
        card.fail(0, 1, Counter.DROP_WRONG_KEY, failed=False)
        await trio.sleep(0.1)
        card.fail(0, 1, Counter.DROP_OPERATIONS_DIFFER)
        await trio.sleep(0.2)
        blame, fault = card.said
        assert isinstance(blame, Blame)
        assert isinstance(fault, RingFault)
        assert (fault.ring_id, fault.rank, fault.rule) == (7, 1, "operations differ")


async def test_a_ring_that_fails_while_the_count_of_faults_comes_round_is_said(
    autojump_clock: trio.abc.Clock,
) -> None:
    """The register counts to 255: as many blames later it reads as before."""
    card = Card()
    async with running(card) as board:
        for ring_id in (7, 8):
            board.step(InstallRing(spec(ring_id)), NOW)
        await trio.sleep(0.1)
        card.fail(0, 1, Counter.DROP_WRONG_KEY, failed=False)
        await trio.sleep(0.1)
        card.said.clear()
        before = card.registers.words[FAULT]
        card.fail(1, 1, Counter.DROP_OPERATIONS_DIFFER)
        card.registers.words[FAULT] = before
        await trio.sleep(2 * VIEW_S)
        (fault,) = card.said
        assert isinstance(fault, RingFault)
        assert (fault.ring_id, fault.rank, fault.rule) == (8, 1, "operations differ")


async def test_without_a_board_rings_are_refused_and_it_is_tried_again(
    autojump_clock: trio.abc.Clock,
) -> None:
    card = Card()
    card.why_gone = "no such device"
    async with running(card) as board:
        (refused,) = board.step(InstallRing(spec(7)), NOW)
        assert isinstance(refused, RingRefused)
        assert "xdma:/dev/card" in refused.reason
        assert "no such device" in refused.reason
        assert not board.status()["is_there"]
        card.why_gone = ""
        await trio.sleep(RETRY_LAST_S + SOON_S)
        assert board.step(InstallRing(spec(7)), NOW) == []
        await trio.sleep(0.1)
        assert card.said == [RingReady(7)], "nothing was lost that had never been there"


@pytest.mark.parametrize("how", ["gone", "reset", "another one"])
async def test_a_board_that_is_lost_takes_all_rings_with_it(how: str, autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    async with running(card) as board:
        board.step(InstallRing(spec(7)), NOW)
        await trio.sleep(0.1)
        if how == "gone":
            card.why_gone = "Input/output error"
        elif how == "reset":
            card.registers.words[PORTS] = 0
        else:
            card.registers = Board()
        await trio.sleep(0.05)
        assert isinstance(card.said[-1], AcceleratorLost)
        assert board.step(InstallRing(spec(8)), NOW) != []
        card.why_gone = ""
        await trio.sleep(RETRY_LAST_S + SOON_S)
        assert board.step(InstallRing(spec(9)), NOW) == []
        await trio.sleep(0.1)
        assert card.said[2:] == [RingReady(9)]
        assert card.in_tables() == (1, 2), "ring 7 is out"
        assert board.status()["opened"] == 2


@pytest.mark.parametrize("ring", [0, 2])
async def test_a_board_that_somebody_else_drives_is_lost(ring: int, autojump_clock: trio.abc.Clock) -> None:
    """Whoever it is takes out the rings that are there, and has his ports as they were."""
    card, another = Card(), Card()
    another.registers = card.registers
    async with running(card) as board:
        for ring_id in (7, 8, 9)[: ring + 1]:
            board.step(InstallRing(spec(ring_id)), NOW)
        for ring_id in (7, 8)[:ring]:
            board.step(RemoveRing(ring_id), NOW)
        await trio.sleep(0.1)
        async with running(another, wait_s=0.1):
            assert isinstance(card.said[-1], AcceleratorLost)
            assert "somebody else drives it" in card.said[-1].reason
            assert not board.status()["is_there"]


async def test_turns_of_a_pool_are_nobody_elses(autojump_clock: trio.abc.Clock) -> None:
    """The board itself writes the turn in the row of its ring, and the slots that this has for it."""
    card = Card()
    async with running(card) as board:
        board.step(InstallRing(spec(7, pool=PoolSpec("shared", 2))), NOW)
        await trio.sleep(0.1)
        row = card.registers.tables[Table.RING][0]
        row[3], row[6] = 77, 32
        await trio.sleep(0.1)
        assert card.said == [RingReady(7)]


async def test_an_order_that_fails_is_the_end_of_the_board_for_now(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    async with running(card) as board:
        card.registers.refuses.append((Table.RING, 0))
        board.step(InstallRing(spec(7)), NOW)
        await trio.sleep(0.05)
        assert [type(said) for said in card.said] == [AcceleratorLost]


async def test_what_is_no_accelerator_is_said(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    card.registers.words[0x000] = 0
    async with running(card) as board:
        assert "register ID reads" in board.status()["error"]


async def test_a_board_that_claims_what_none_can_have_is_not_driven(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    card.registers.words[0x008] = 0xFFFF_FF28
    async with running(card) as board:
        assert "it says that it has 40 ports" in board.status()["error"]
        assert not board.status()["is_there"]


class Deaf(Board):
    """Its ports cannot be opened."""

    def write32(self, address: int, value: int) -> None:
        if address != PORTS:
            super().write32(address, value)


async def test_a_board_whose_ports_do_not_open_is_not_taken_for_one(autojump_clock: trio.abc.Clock) -> None:
    card = Card()
    card.registers = Deaf()
    async with running(card) as board:
        assert "its ports are not as they were set" in board.status()["error"]
        assert not board.status()["is_there"]
        assert board.step(InstallRing(spec(7)), NOW) != []


async def test_frames_and_ports_of_the_switch_are_not_for_it() -> None:
    board = Card().accelerator
    assert board.step(PortUp(PortId(1)), NOW) == []
    with pytest.raises(InvariantBroken):
        board.step(FramesArrived(PortId(1), ()), NOW)


@pytest.mark.parametrize(
    "text", ["", "xdma", "xdma:", "usb:/dev/x", "etherbone:board:tcp", "uart:/dev/x@fast"]
)
def test_what_names_no_bus(text: str) -> None:
    with pytest.raises(LocalMisuse, match=r"names no bus|is no number"):
        bus_opener(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("uart:/dev/x@1234", "1234 baud"),
        ("uart:/dev/x@0", "0 baud"),
        ("xdma:/dev/x@-4", "registers at -0x4"),
        ("xdma:/dev/x@3", "registers at 0x3"),
        ("xdma:/dev/x@0x10000000000000000", "registers at 0x1"),
        ("etherbone:board:99999", "UDP port 99999"),
        ("etherbone:board:-1", "UDP port -1"),
        ("etherbone:board:0", "UDP port 0"),
        ("etherbone::5", "names no bus"),
        ("xdma:@5", "names no bus"),
        ("uart:/dev/\0", "names no bus"),
    ],
)
def test_what_no_bus_can_be_at_is_said_before_one_is_opened(text: str, why: str) -> None:
    """Settings are refused for it; opened later, it would be tried again for ever."""
    with pytest.raises(LocalMisuse, match=why):
        bus_opener(text)


@pytest.mark.parametrize("host", ["a" * 70, "a..b"])
async def test_a_name_that_no_host_has_is_an_error_of_opening(host: str) -> None:
    with pytest.raises(FabricError, match="opening it"):
        await bus_opener(f"etherbone:{host}")()


@pytest.mark.parametrize("text", ["socket:/none/csr", "xdma:/none/x@0x1000", "uart:/none/tty@115200"])
async def test_a_bus_with_nothing_at_its_end(text: str) -> None:
    opener = bus_opener(text)
    with pytest.raises(FabricError, match="/none"):
        await opener()


async def test_what_the_system_has_no_number_for_is_said_all_the_same() -> None:
    with pytest.raises(FabricError, match="too long"):
        await bus_opener(f"socket:/{'a' * 200}")()


async def test_a_bus_by_ethernet_needs_nobody_there_to_be_opened() -> None:
    bus = await bus_opener("etherbone:127.0.0.1:0x4d2")()
    assert "127.0.0.1, UDP port 1234" in bus.peer
    await bus.aclose()
