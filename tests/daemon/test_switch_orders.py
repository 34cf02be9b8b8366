"""A switch that returns hears of every ring that it may have had, however much that is to say."""

from __future__ import annotations

from pathlib import Path

import trio

from inaproto.core.ring_spec import FlowSpec, RingSpec
from inaproto.core.tree_control_types import HostSeen, RingGone, RingWanted, SwitchArrived, SwitchLost
from inaproto.daemon.config import SwitchSettings
from inaproto.daemon.control_stream import OUTPUT_BYTES_MAX, ControlStream
from inaproto.daemon.fabric_file import Place
from inaproto.daemon.switch import Switch
from inaproto.daemon.unix_sockets import connect_unix, listen_unix
from inaproto.units import Rank
from inaproto.wire.control_messages import encode_message
from inaproto.wire.switch_messages import RingInstall, RingRemove, SwitchAdmit, SwitchHello, SwitchWelcome
from tests.daemon.fabrics import spine_and_leaves

RANKS = 1000
RINGS = 150
DEADLINE_S = 60


def ring(ring_id: int) -> RingSpec:
    addresses = [bytes([10, 0, *divmod(rank, 256)]) for rank in range(RANKS)]
    flows = tuple(
        FlowSpec(Rank(rank), addresses[rank], addresses[(rank + 1) % RANKS], 16 + ring_id)
        for rank in range(RANKS)
    )
    return RingSpec(ring_id, 1, ring_id, 2, 4, 256, flows)


async def test_more_is_said_than_fits_in_a_queue(runtime_dir: Path) -> None:
    fabric = spine_and_leaves(runtime_dir)
    switch = Switch(SwitchSettings(dir=runtime_dir, name="spine"), Place(fabric, "spine"))
    plane = switch.plane
    assert plane is not None
    for flow in ring(1).flows:
        plane.handle(HostSeen(flow.src_ip, "leaf0"))
    plane.handle(SwitchArrived("leaf0"))
    for ring_id in range(1, 1 + RINGS):
        plane.handle(RingWanted(ring(ring_id)))
        plane.handle(RingGone(ring_id))
    plane.handle(SwitchLost("leaf0", "it is gone"))
    bound = await listen_unix(runtime_dir / "control.sock", "test")
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(plane.server.accept_sessions, bound)
            stream = ControlStream(await connect_unix(runtime_dir / "control.sock", "test"))
            await stream.send(SwitchHello(id=1, switch="leaf0", boot_id="b", fabric=fabric.digest))
            assert isinstance(await stream.receive(), SwitchWelcome)
            size = 0
            for ring_id in range(1, 1 + RINGS):
                install = await stream.receive()
                assert isinstance(install, RingInstall)
                assert install.ring_id == ring_id
                size += len(encode_message(install))
                assert await stream.receive() == RingRemove(ring_id=ring_id)
            assert isinstance(await stream.receive(), SwitchAdmit)
            assert size > OUTPUT_BYTES_MAX
            stream.close()
            bound.close()
            nursery.cancel_scope.cancel()
