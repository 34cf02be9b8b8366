"""What the checker of resends lets pass of a NIC, and what it does not (docs/protocol.md 4.4, 6.14)."""

from __future__ import annotations

from inaproto.core.rdma.reliable_connection import ACK, NAK_SEQUENCE
from inaproto.core.rdma.selective_requester import SHORTEST_NS, TWICE_PACKETS_MAX
from inaproto.sim.frames.checkers.resends import Sender
from inaproto.wire.behind_gap import AtSwitch, BehindGap
from inaproto.wire.packet import PacketBuilder
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import FlowTemplate

BUILDER = PacketBuilder(
    FlowTemplate(
        src_mac=bytes(6),
        dst_mac=bytes(6),
        src_ip=bytes([10, 0, 0, 2]),
        dst_ip=bytes([10, 0, 0, 1]),
        udp_source_port=0xC000,
        dest_qp=7,
    )
)
FIRST_PSN = (1 << 24) - 2
TIMER_NS = 4096 << 14
NOTHING_HEARD = "asked 0 times, and heard nothing since"


def frame(opcode: Opcode, at: int, aeth: tuple[int, int] | None = None, payload: bytes = b"") -> bytes:
    psn = FIRST_PSN + at & 0xFFFFFF
    built = BUILDER.build(opcode=opcode, psn=psn, ack_requests=(False,), ip_id=0, payload=payload, aeth=aeth)
    return built.tobytes()


class Rank:
    """One that has sent so many packets, all of one message."""

    def __init__(self, packets: int) -> None:
        self.account = Sender("rank 0", FIRST_PSN, TIMER_NS, messages=2)
        self.now = 1_000
        assert not any(self.sends(*range(packets)))
        self.now += 1

    def sends(self, *positions: int) -> list[str]:
        """What is wrong with packets that leave now."""
        return [
            self.account.sends(frame(Opcode.RC_WRITE_MIDDLE, at, payload=bytes(4)), self.now)
            for at in positions
        ]

    def hears(self, at: int, *there: int, reach: int = 0) -> None:
        """The receiver lacks ``at`` and has others; none: it has all up to ``at``."""
        if not there:
            self.account.heard(frame(Opcode.RC_ACK, at, (ACK, 0)), self.now)
            return
        arrived = sum(1 << position - at - 1 for position in there)
        word = BehindGap(reach or max(there) - at, arrived)
        self.account.heard(frame(Opcode.RC_ACK, at, (NAK_SEQUENCE, 0), word.encode()), self.now)

    def hears_of_switch(self, at: int, *there: int) -> None:
        """The switch lacks ``at``, and has others."""
        word = AtSwitch(max(there) - at, sum(1 << position - at for position in there))
        self.account.heard(frame(Opcode.RC_ACK, at, (NAK_SEQUENCE, 0), word.encode()), self.now)

    def asks(self) -> None:
        """A timer passes."""
        self.now += SHORTEST_NS
        assert self.sends(self.account.una) == [""]


def test_what_is_missing_before_what_came_may_go_again_once() -> None:
    rank = Rank(8)
    rank.hears(0, 3)
    assert rank.sends(0, 1, 2) == [""] * 3
    assert rank.sends(1) == [NOTHING_HEARD]


def test_what_nothing_overtook_may_not_go_again() -> None:
    rank = Rank(8)
    rank.hears(0, 2)
    assert rank.sends(0, 1) == [""] * 2
    assert rank.sends(3) == [NOTHING_HEARD]


def test_each_of_several_answers_that_come_at_once_may_be_acted_on() -> None:
    """Of racks 1134: the second one shows that packet 3 is there after all (docs/protocol.md 4.4.3)."""
    rank = Rank(8)
    rank.hears(0, 6)
    rank.hears(1, 3, 6)
    assert rank.sends(0, 1, 2, 3, 4, 5) == [""] * 6


def test_what_such_an_answer_showed_to_be_lost_may_go_once() -> None:
    rank = Rank(8)
    rank.hears(0, 6)
    rank.hears(0, 3, 6)
    assert rank.sends(0, 1, 2, 3, 4, 5) == [""] * 6
    assert rank.sends(3) == [NOTHING_HEARD]


def test_what_is_there_may_go_at_once_or_never() -> None:
    rank = Rank(8)
    rank.hears(0, 6)
    rank.hears(0, 3, 6)
    rank.now += 1
    rank.hears(0, 3, 4, 6)
    assert rank.sends(0, 1, 2) == [""] * 3
    assert rank.sends(3) == [NOTHING_HEARD]


def test_what_was_acknowledged_before_may_not_go_again() -> None:
    rank = Rank(8)
    rank.hears(0, 6)
    rank.hears(1, 6)
    assert rank.sends(0, 1) == [""] * 2
    rank.now += 1
    assert rank.sends(0) == ["it was acknowledged before"]


def test_what_is_lost_may_wait() -> None:
    rank = Rank(8)
    rank.hears(0, 3)
    rank.now += 1
    rank.hears(0, 3, 4)
    assert rank.sends(0, 1, 2) == [""] * 3
    assert rank.sends(0)[0].startswith("asked 0 times, 0 ns after the timer was set")


def test_a_copy_may_go_again_when_something_that_was_sent_after_it_is_there() -> None:
    rank = Rank(4)
    rank.hears(0, 1)
    assert rank.sends(0, 4, 5) == [""] * 3
    rank.hears(0, 1, 3)
    assert rank.sends(2) == [""]
    rank.now += 1
    rank.hears(0, 1, 3, 4)
    assert rank.sends(0) == [""]
    assert rank.sends(2) == [NOTHING_HEARD]


def test_of_each_answer_few_lost_packets_may_go_twice() -> None:
    rank = Rank(30)
    rank.hears_of_switch(0, 2)
    rank.hears_of_switch(0, 2, 5)
    assert rank.sends(0, 1, 0, 1, 3, 4, 3, 4) == [""] * 8
    assert rank.sends(3) == [NOTHING_HEARD]


def test_it_counts_what_the_same_answer_showed_to_be_lost() -> None:
    """The first one came while two messages were on their way; nothing went twice then."""
    many = TWICE_PACKETS_MAX + 1
    rank = Rank(2 * many)
    rank.hears_of_switch(0, many)
    rank.hears_of_switch(0, many, many + 3)
    assert not any(rank.sends(*range(many), *(many + 1, many + 2) * 2))


def test_of_many_lost_packets_the_last_one_may_go_twice() -> None:
    many = TWICE_PACKETS_MAX + 1
    rank = Rank(2 * many)
    rank.hears_of_switch(0, many)
    assert not any(rank.sends(*range(many), many - 1))
    assert rank.sends(many - 2) == [NOTHING_HEARD]


def asking(packets: int) -> Rank:
    """One that hears of its losses from a switch and asks, lacking word of its last 2 packets."""
    rank = Rank(packets)
    rank.hears_of_switch(packets - 2, packets - 1)
    assert rank.sends(packets - 2, packets - 2) == [""] * 2
    rank.now += 1
    rank.hears(packets - 3)
    rank.asks()
    rank.now += 1
    return rank


def test_what_asks_is_no_second_copy() -> None:
    """Of recovery 1132: packets 4 to 6 ask at the instant at which they were sent first."""
    rank = asking(4)
    rank.hears(2)
    assert rank.sends(3, 4, 5, 6) == [""] * 4
    rank.hears(3)
    assert rank.sends(4, 5, 6, 7) == [""] * 4
    rank.now += 1
    rank.hears(6)
    assert rank.sends(7) == [""]


def test_what_may_be_a_second_copy_may_ask() -> None:
    """Two answers come at once: one lets packet 4 leave, the other lets it ask."""
    rank = asking(4)
    rank.hears(2)
    rank.hears(3)
    assert rank.sends(3, 4, 4, 5) == [""] * 4
    rank.now += 1
    rank.hears(4)
    assert rank.sends(5) == [""]


def test_asking_ends_when_more_is_heard_of() -> None:
    rank = asking(4)
    assert rank.sends(4) == [""]
    rank.hears(4)
    assert rank.sends(5) == [""]
    rank.now += 1
    assert rank.sends(5)[0].startswith("asked 0 times, 1 ns after the timer was set")
