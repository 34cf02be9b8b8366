"""The RTL as a switch's accelerator: its answers to orders, and host daemons that sum through it."""

from __future__ import annotations

import pytest

pytest.importorskip("amaranth")

import numpy as np

from inaproto.core.switch.events import (
    AcceleratorConfig,
    EmitFrames,
    ForLink,
    FramesArrived,
    InstallRing,
    PortDown,
    PortUp,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.errors import Blame, LocalMisuse
from inaproto.units import MS, Instant, PortId, S
from inaproto.wire.path_probe import question, token_answered
from inaproto.wire.pause import pause_frame
from inaproto_adapters.fpga.register_map import PORTS
from inaproto_hil.rtl.equivalence.traffic import Campaign
from inaproto_hil.rtl.in_switch import DEFAULTS, RtlAccelerator
from inaproto_hil.rtl.parameters import Parameters, parameters_of
from tests.rtl.builds import SMALL, library
from tests.unit.switched_ring import SwitchedRing, block
from tests.unit.test_accelerator_switch import moved
from tests.unit.test_fpga_device import Board

NOW = Instant(0)


def made() -> RtlAccelerator:
    from inaproto_hil.rtl.verilated.model import Model

    return RtlAccelerator(Model(library(SMALL), SMALL), SMALL, AcceleratorConfig(retired_ns=S))


def test_sizes_are_read_from_text() -> None:
    assert parameters_of("ports=4,slots=512", DEFAULTS) == Parameters(
        **(DEFAULTS | {"ports": 4, "slots": 512})
    )
    for wrong in ("ports", "colour=3", "slots=many"):
        with pytest.raises(LocalMisuse, match="NAME=NUMBER"):
            parameters_of(wrong)


def test_a_port_that_came_when_all_places_were_taken_gets_one_that_is_free_later() -> None:
    board = Board()
    accelerator = RtlAccelerator(board, Parameters(ports=2), AcceleratorConfig())  # type: ignore[arg-type]

    def step(event: PortUp | PortDown) -> list[PortId | None]:
        """Who has which place."""
        assert accelerator.step(event, NOW) == []
        found = [accelerator._ports.get(index) for index in range(2)]
        assert board.words[PORTS] == sum(1 << at for at, port in enumerate(found) if port is not None)
        return found

    for port in range(5):
        step(PortUp(PortId(port)))
    assert step(PortDown(PortId(2))) == [0, 1], "it had none, and wants none any more"
    assert step(PortDown(PortId(0))) == [3, 1]
    assert step(PortDown(PortId(1))) == [3, 4]
    assert step(PortDown(PortId(3))) == [None, 4]


@pytest.mark.rtl
def test_rings_come_and_go_and_what_is_refused_has_a_reason() -> None:
    accelerator = made()
    first = Campaign(3, SMALL).specs[0]
    assert accelerator.step(InstallRing(first), NOW) == []
    (refused,) = accelerator.step(InstallRing(first), NOW)
    assert isinstance(refused, RingRefused)
    assert "installed already" in refused.reason
    accelerator.step(RemoveRing(first.ring_id), NOW)
    assert accelerator.step(InstallRing(first), NOW) == [], "its place is free again"
    assert accelerator.view().rings[first.ring_id]["failed"] is False


@pytest.mark.rtl
def test_what_comes_of_a_removed_ring_is_dropped_until_another_needs_its_place() -> None:
    """The oldest makes room first: this accelerator has two places."""
    accelerator, hosts = made(), SwitchedRing(2)
    for port in range(SMALL.ports):
        accelerator.step(PortUp(PortId(port)), NOW)
    specs = {number: moved(hosts.spec, number) for number in (1, 2, 3)}

    def passes(number: int) -> bool:
        frame = hosts.packet(0, 0, 1, dest_qp=specs[number].flows[0].dst_qp)
        return bool(accelerator.step(FramesArrived(PortId(0), [block(frame)]), NOW))

    for number in (1, 2):
        assert accelerator.step(InstallRing(specs[number]), NOW) == []
    for number in (2, 1):
        accelerator.step(RemoveRing(number), NOW)
    assert [number for number in specs if passes(number)] == [3]
    assert accelerator.step(InstallRing(specs[3]), NOW) == []
    assert [number for number in specs if passes(number)] == [2]


@pytest.mark.rtl
def test_who_is_to_blame_is_said_of_each_packet() -> None:
    accelerator, hosts = made(), SwitchedRing(2)
    for port in range(SMALL.ports):
        accelerator.step(PortUp(PortId(port)), NOW)
    accelerator.step(InstallRing(hosts.spec), NOW)
    wrong = block(*(hosts.packet(rank, 0, 0, key=1) for rank in (0, 1)))
    said = accelerator.step(FramesArrived(PortId(0), [wrong]), NOW)
    assert [(blame.peer, blame.rule) for blame in said if isinstance(blame, Blame)] == [
        ("10.0.0.0 to queue pair 513", "wrong key"),
        ("10.0.0.1 to queue pair 512", "wrong key"),
    ]


@pytest.mark.rtl
def test_frames_pass_between_ports_that_are_up() -> None:
    accelerator = made()
    for port in (7, 9):
        accelerator.step(PortUp(PortId(port)), NOW)
    frame = np.frombuffer(b"\xff" * 6 + b"\x02" + bytes(5) + b"\x08\x06" + bytes(46), np.uint8).reshape(1, -1)
    (sent,) = accelerator.step(FramesArrived(PortId(7), [frame]), NOW)
    assert isinstance(sent, EmitFrames)
    assert (sent.port, sent.frames.tobytes()) == (PortId(9), frame.tobytes())
    accelerator.step(PortDown(PortId(9)), NOW)
    assert accelerator.step(FramesArrived(PortId(7), [frame]), NOW) == []
    assert accelerator.view().counters.bridged == 2


@pytest.mark.rtl
def test_ranks_that_disagree_fault_their_ring() -> None:
    accelerator = made()
    for port in range(SMALL.ports):
        accelerator.step(PortUp(PortId(port)), NOW)
    found: set[str] = set()
    for seed in range(20):
        campaign = Campaign(seed, SMALL, 300, changes=False)
        own = made()
        for port in range(SMALL.ports):
            own.step(PortUp(PortId(port)), NOW)
        for spec in campaign.specs:
            own.step(InstallRing(spec), NOW)
        for port, data in campaign.arrivals():
            block = np.frombuffer(data, np.uint8).reshape(1, -1)
            actions = own.step(FramesArrived(PortId(port), [block]), NOW)
            campaign.heard([(int(a.port), a.frames.tobytes()) for a in actions if isinstance(a, EmitFrames)])
            found |= {action.rule for action in actions if isinstance(action, RingFault)}
        if found:
            break
    assert found <= {"operations differ", "packet layout"}
    assert found


@pytest.mark.rtl
def test_path_probes_are_answered_at_the_port_where_they_come_and_pass_no_further() -> None:
    accelerator = made()
    for port in (7, 9):
        accelerator.step(PortUp(PortId(port)), NOW)
    asked = [question(mac=b"\x02" + bytes(5), token=5, nbytes=nbytes) for nbytes in (60, 1500, 4200)]
    sent = [
        action for frames in asked for action in accelerator.step(FramesArrived(PortId(7), [frames]), NOW)
    ]
    assert all(isinstance(action, EmitFrames) and action.port == PortId(7) for action in sent)
    answers = [action.frames for action in sent if isinstance(action, EmitFrames)]
    assert [(token_answered(answer.tobytes()), answer.shape) for answer in answers] == [
        (5, (1, 60)),
        (5, (1, 1500)),
    ], "the hardware takes no frame of 4200 bytes"
    counters = accelerator.view().counters
    assert (counters.path_probes, counters.bridged) == (2, 0)
    assert counters.dropped == {"longer than the accelerator takes": 1}


@pytest.mark.rtl
def test_pauses_are_heeded_by_who_has_the_ports() -> None:
    """The hardware makes an end of them; a board's MAC would have heeded them before."""
    accelerator = made()
    for port in (7, 9):
        accelerator.step(PortUp(PortId(port)), NOW)
    asked = pause_frame(b"\x02" + bytes(5), MS)
    (told,) = accelerator.step(FramesArrived(PortId(7), [asked]), NOW)
    assert isinstance(told, ForLink)
    assert (told.port, told.frames.tobytes()) == (PortId(7), asked.tobytes())
    counters = accelerator.view().counters
    assert (counters.for_links, counters.bridged, counters.dropped) == (1, 1, {})
