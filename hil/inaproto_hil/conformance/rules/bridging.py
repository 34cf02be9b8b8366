"""Rules of what is no gradient: an accelerator is a switch for everything else."""

from __future__ import annotations

from typing import Final

from inaproto.wire.ethernet import BROADCAST
from inaproto.wire.roce import SYNDROME_NAK
from inaproto_hil.conformance.bench import Bench
from inaproto_hil.conformance.ring import Ring, mac
from inaproto_hil.conformance.rules.rule import Rules

rule = Rules()

_STRANGER: Final = b"\x02\x1a\xff\0\0\x01"


@rule("protocol 6.11")
async def foreign_frames_pass_unchanged(b: Bench) -> None:
    """A foreign frame leaves by the port of its destination alone, unchanged."""
    for kind, size in ((b"\x88\xb5", 46), (b"\x08\x06", 60), (b"\x86\xdd", 333)):
        frame = mac(0) + mac(1) + kind + bytes(range(256)) * 2
        await b.frame(1, frame[: 14 + size], [(0, frame[: 14 + size])])


@rule("protocol 6.11")
async def unknown_destinations_are_flooded(b: Bench) -> None:
    """What is for everybody, or for nobody known, leaves by all ports but its own."""
    for target in (BROADCAST, _STRANGER, b"\x01\0\x5e\0\0\x01"):
        frame = target + mac(1) + b"\x88\xb5" + bytes(50)
        await b.frame(1, frame, [(port, frame) for port in range(b.limits.ports) if port != 1])


@rule("protocol 6.11")
async def what_is_for_bridges_stays(b: Bench) -> None:
    """Frames to 01:80:c2:00:00:0x are never forwarded, nor is one back to where it came from."""
    await b.frame(0, bytes.fromhex("0180c200000e") + mac(0) + b"\x88\xcc" + bytes(46))
    await b.frame(0, mac(0) + mac(0) + b"\x88\xb5" + bytes(46))


@rule("protocol 6.11, NetReduce 4")
async def foreign_roce_passes_unchanged(b: Bench) -> None:
    """RoCE packets of other connections pass unchanged, whatever their ICRC is."""
    stranger = Ring(0xF0, ranks=2)
    frames = [stranger.packet(0, 0, offset) for offset in (1, 2, 3)]
    for frame in frames:
        await b.frame(0, frame, [(1, frame)])
    damaged = frames[0][:-1] + bytes([frames[0][-1] ^ 1])
    await b.frame(0, damaged, [(1, damaged)])


@rule("protocol 6.11")
async def answers_pass_unchanged(b: Bench) -> None:
    """ACKs and NAKs of a ring's connections pass unchanged."""
    ring = await b.ring()
    for syndrome in (0x1F, SYNDROME_NAK, 0x20 | 5):
        port, frame = ring.answer(0, syndrome)
        await b.frame(port, frame, [(0, frame)])
    frame = ring.answer_under_its_own_name(0)
    await b.frame(0, frame, [(ring.after(0), frame)])


@rule("protocol 6.11")
async def one_damaged_address_moves_no_host(b: Bench) -> None:
    """A RoCE packet from another Ethernet address than its IP source had teaches nothing, but 4 in a row."""
    if b.limits.ports < 3:
        return
    stranger = Ring(0xF2, ranks=2)
    right, moved = (stranger.packet(0, 0, 1, source=source) for source in (mac(0), mac(2)))
    asks = mac(2) + mac(1) + b"\x88\xb5" + bytes(46)
    for before in (right, moved, moved, moved, right, moved, moved, moved):
        await b.frame(0, before, [(1, before)])
        await b.frame(1, asks, [(2, asks)])
    await b.frame(0, moved, [(1, moved)])
    await b.frame(1, asks, [(0, asks)])
    back = mac(1) + mac(2) + b"\x88\xb5" + bytes(46)
    await b.frame(2, back, [(1, back)])
    for _ in range(4):
        await b.frame(0, right, [(1, right)])
