"""Whole messages by compiled kernels: what is taken at once, what is left, and that both ways do the same."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict
from itertools import permutations
from typing import Any

import pytest

from inaproto.core.switch.accelerator import InstallRing, PortDown, PortUp, RemoveRing
from inaproto.core.switch.bursts import Bursts
from inaproto.core.switch.ingest import Ingest
from inaproto.errors import DecodeError
from inaproto.units import PortId
from inaproto.wire import icrc
from inaproto.wire.ina_header import Dtype
from tests.unit.switched_ring import NOW, SwitchedRing, emitted, mac, others
from tests.unit.test_flow_order import as_blocks

UseKernels = Callable[[str], None]
PACKETS = 8


class Both:
    """The same ring at an accelerator with kernels and at one without; what comes is given to both."""

    def __init__(
        self, use_kernels: UseKernels, patch: pytest.MonkeyPatch, ranks: int = 2, **changes: Any
    ) -> None:
        self._use = use_kernels
        self.rings: dict[str, SwitchedRing] = {}
        for name in ("numpy", "compiled"):
            use_kernels(name)
            self.rings[name] = SwitchedRing(ranks, message_packets=PACKETS, **changes)
        self.ring = self.rings["compiled"]
        self.left = 0
        """Packets of rings that were not taken at once by the accelerator with kernels."""
        for method in ("general", "single", "middles"):
            self._count(patch, method)
        for rank in range(ranks):
            self.arrive(rank, self.ring.message(rank, 0))
        self.left = 0

    def _count(self, patch: pytest.MonkeyPatch, method: str) -> None:
        real = getattr(Ingest, method)

        def counting(ingest: Ingest, *rest: Any) -> Any:
            if ingest is self.ring.accelerator._ingest:
                self.left += 1
            return real(ingest, *rest)

        patch.setattr(Ingest, method, counting)

    def arrive(self, port: int, frames: list[bytes]) -> dict[int, list[bytes]]:
        """What leaves, by port."""
        found = []
        for name, ring in self.rings.items():
            self._use(name)
            actions = ring.arrive_blocks(port, *as_blocks(frames))
            found.append((emitted(actions), others(actions), asdict(ring.accelerator.view())))
        assert found[0] == found[1]
        out: dict[int, list[bytes]] = {}
        for egress, frame in found[1][0]:
            out.setdefault(egress, []).append(frame)
        return out


@pytest.fixture
def both(use_kernels: UseKernels, monkeypatch: pytest.MonkeyPatch) -> Both:
    return Both(use_kernels, monkeypatch)


def harmed(frame: bytes) -> bytes:
    return frame[:-7] + bytes([frame[-7] ^ 4]) + frame[-6:]


@pytest.mark.parametrize("layout", [{}, {"last_bytes": 24}, {"immediate": False}, {"packets": 2}])
@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.I32, Dtype.F16, Dtype.F64])
def test_messages_are_taken_whole(both: Both, dtype: Dtype, layout: dict[str, Any]) -> None:
    for serial in range(1, 7):
        changes = {**layout, "dtype": dtype}
        assert both.arrive(0, both.ring.message(0, serial, **changes)) == {}
        out = both.arrive(1, both.ring.message(1, serial, **changes))
        assert out == both.ring.results(serial, **changes)
    assert both.left == 0


def test_parts_of_messages_and_several_messages_are_taken_as_they_come(both: Both) -> None:
    one, two = ([*both.ring.message(rank, 1), *both.ring.message(rank, 2)] for rank in range(2))
    for begin, end in ((0, 3), (3, 11), (11, 16)):
        both.arrive(0, one[begin:end])
        both.arrive(1, two[begin:end])
    assert both.left == 0
    assert both.ring.accelerator.counters.results_out == 3 * 2 * PACKETS


@pytest.mark.parametrize("at", range(PACKETS))
def test_a_damaged_packet_is_as_if_it_had_not_come(both: Both, at: int) -> None:
    frames = both.ring.message(0, 1)
    both.arrive(0, [*frames[:at], harmed(frames[at]), *frames[at + 1 :]])
    both.arrive(1, both.ring.message(1, 1))
    assert both.ring.accelerator.counters.dropped["wrong ICRC"] >= 1
    both.arrive(0, frames)
    assert both.ring.accelerator.view().rings[both.ring.spec.ring_id]["next_message"] == 2


@pytest.mark.parametrize("column", [17, 39], ids=["IP length", "UDP length"])
def test_a_first_packet_whose_headers_are_of_another_length_opens_no_message(both: Both, column: int) -> None:
    """Its ICRC is right, as is that of whoever forges packets."""
    first, *behind = both.ring.message(0, 1)
    forged = bytearray(first)
    forged[column] ^= 0x10
    with contextlib.suppress(DecodeError):  # its headers do not say where it would be
        icrc.seal(forged)
    both.arrive(0, [bytes(forged), *behind])
    assert both.ring.accelerator.view().rings[both.ring.spec.ring_id]["next_message"] == 1
    assert both.ring.accelerator.waiting == len(behind)


def test_a_first_packet_that_opens_no_message_says_nothing_of_addresses(both: Both) -> None:
    """Results go to another address when two first packets in a row had it; one that is refused is none."""
    both.arrive(0, both.ring.message(0, 3))  # a window before it has not been sent
    shown = [ring.accelerator._rings[ring.spec.ring_id].flows[0].shown for ring in both.rings.values()]
    assert both.ring.accelerator.counters.dropped["window passed"]
    assert shown[0] == shown[1] == (mac(0), mac(1), both.ring.psn0)


@pytest.mark.parametrize("at", [0, 1, PACKETS - 1])
def test_a_packet_cut_off_anywhere_is_as_if_it_had_not_come(both: Both, at: int) -> None:
    """Its IP header still says how long it was."""
    frames = both.ring.message(0, 1)
    for length in range(len(frames[at])):
        both.arrive(0, [frames[at][:length], frames[at][:length], frames[at][: length // 2]])
    both.arrive(0, frames)
    assert both.arrive(1, both.ring.message(1, 1)) == both.ring.results(1)


@pytest.mark.parametrize("at", range(PACKETS))
def test_a_packet_that_is_missing_twice_there_or_of_another_layout_is_no_burst(both: Both, at: int) -> None:
    frames = both.ring.message(0, 1)
    both.arrive(1, both.ring.message(1, 1))
    both.arrive(0, [*frames[:at], *frames[at + 1 :]])
    both.arrive(0, [*frames[at:], *frames[at:]])
    both.arrive(0, frames)
    odd = both.ring.packet(1, 2, at, payload=bytes(44))
    second = both.ring.message(1, 2)
    both.arrive(1, [*second[:at], odd, *second[at + 1 :]])


def test_in_a_full_slot_nothing_is_replaced(both: Both) -> None:
    """A packet with another's number, and a right ICRC, that comes at once with those that fill the slots."""
    both.arrive(0, both.ring.message(0, 1))
    frames = both.ring.message(1, 1)
    forged = bytearray(frames[4])
    forged[50:54] = frames[3][50:54]
    icrc.seal(forged)
    out = both.arrive(1, [*frames[:4], bytes(forged), *frames[4:]])
    assert [len(of_port) for of_port in out.values()] == [PACKETS, PACKETS]
    assert out[0][3] != out[0][4]


@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.I32])
@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_ranks_are_added_in_their_order_in_whatever_order_they_come(
    use_kernels: UseKernels, monkeypatch: pytest.MonkeyPatch, order: tuple[int, ...], dtype: Dtype
) -> None:
    both = Both(use_kernels, monkeypatch, ranks=3)
    for serial in (1, 2):
        out: dict[int, list[bytes]] = {}
        for begin, end in ((0, 3), (3, PACKETS)):
            for rank in order:
                for port, frames in both.arrive(
                    rank, both.ring.message(rank, serial, dtype=dtype)[begin:end]
                ).items():
                    out.setdefault(port, []).extend(frames)
        assert out == both.ring.results(serial, dtype=dtype)
    assert both.left == 0


@pytest.mark.parametrize("rank", range(3))
def test_a_payload_that_is_there_stays_though_another_one_comes_for_it(
    use_kernels: UseKernels, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Whether it is in the sum already, or waits for the ranks before it."""
    both = Both(use_kernels, monkeypatch, ranks=3)
    frames = both.ring.message(rank, 1)
    both.arrive(rank, frames)
    changed = [bytearray(frame) for frame in frames[1:]]
    for frame in changed:
        frame[60] ^= 1
        icrc.seal(frame)
    both.arrive(rank, [bytes(frame) for frame in changed])
    second, third = {0, 1, 2} - {rank}
    both.arrive(second, both.ring.message(second, 1))
    out = both.arrive(third, both.ring.message(third, 1))
    assert [len(of_port) for of_port in out.values()] == [PACKETS] * 3
    for port, results in both.ring.results(1).items():
        bodies = [[frame[54:-4] for frame in found[1:-1]] for found in (out[port], results)]
        assert bodies[0] == bodies[1]


def test_a_header_like_the_last_one_opens_a_message_of_its_ring_and_epoch_alone(both: Both) -> None:
    both.arrive(0, both.ring.message(0, 1))
    both.arrive(1, both.ring.message(1, 1))
    # Type, flags, ring, epoch, rank, size of the ring, length, key.
    for changed in (5, 7, 8, 15, 24, 26, 29, 39):
        frames = [bytearray(frame) for frame in both.ring.message(0, 2)]
        frames[0][70 + changed] ^= 0x40
        icrc.seal(frames[0])
        both.arrive(0, [bytes(frame) for frame in frames])
    assert both.ring.accelerator.view().rings[both.ring.spec.ring_id]["next_message"] == 2
    both.arrive(0, both.ring.message(0, 2))
    assert both.arrive(1, both.ring.message(1, 2)) == both.ring.results(2)


def test_from_another_port_or_address_nothing_is_taken(both: Both) -> None:
    frames = both.ring.message(0, 1)
    assert both.arrive(2, frames[1:]) == {}
    both.arrive(0, [frame[:6] + mac(2) + frame[12:] for frame in frames[1:]])
    both.arrive(0, frames)
    assert both.ring.accelerator.counters.aggregated_in == 2 * PACKETS + PACKETS
    for ring in both.rings.values():
        ring.accelerator.step(PortDown(PortId(0)), NOW)
        ring.accelerator.step(PortUp(PortId(0)), NOW)
    both.arrive(0, both.ring.message(0, 2))
    assert both.left > 0


def test_two_rings_and_other_frames_that_alternate_are_taken_each_as_one(both: Both) -> None:
    mixed = [
        frame
        for pair in zip(both.ring.message(0, 1), [both.ring.ack(1)] * PACKETS, strict=True)
        for frame in pair
    ]
    both.arrive(0, mixed)
    assert both.left == 0, "acknowledgements are known by what they have in common"
    assert both.ring.accelerator.counters.aggregated_in == 3 * PACKETS


def test_a_ring_that_was_removed_or_came_later_is_not_remembered(both: Both) -> None:
    spec = both.ring.spec
    for ring in both.rings.values():
        ring.accelerator.step(RemoveRing(spec.ring_id), NOW)
    assert both.arrive(0, both.ring.message(0, 1)) == {}
    for name, ring in both.rings.items():
        both._use(name)
        assert ring.accelerator.step(InstallRing(spec), NOW) == []
    both.arrive(0, both.ring.message(0, 0))
    assert both.arrive(1, both.ring.message(1, 0)) == both.ring.results(0)


def test_more_flows_than_are_remembered_are_told_apart(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inaproto.core.switch.bursts._KNOWN_MAX", 2)
    for serial in range(1, 4):
        both.arrive(0, [*both.ring.message(0, serial), both.ring.ack(1), b"\xff" * 6 + mac(0) + bytes(48)])
        both.arrive(1, both.ring.message(1, serial))
    assert both.ring.accelerator.counters.results_out == 4 * 2 * PACKETS
    assert isinstance(both.ring.accelerator._bursts, Bursts)
