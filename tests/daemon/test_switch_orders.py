"""Sessions at the control plane: what it has to say, however much that is, and what comes too late."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from inaproto.core.rendezvous.fabric.events import HostSeen, RingGone, RingWanted, SwitchArrived, SwitchLost
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.daemon.net.control_stream import OUTPUT_BYTES_MAX, ControlStream
from inaproto.daemon.net.unix_sockets import connect_unix, listen_unix
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.shell import current_instant
from inaproto.daemon.switch import control_server
from inaproto.daemon.switch.daemon import Switch
from inaproto.units import Rank
from inaproto.wire.control_messages import Welcome, encode_message
from inaproto.wire.messages.switch import RingInstall, RingRemove, SwitchAdmit, SwitchHello, SwitchWelcome
from tests.clusters.fabrics import spine_and_leaves
from tests.unit.rendezvous_members import hello

RANKS = 1000
RINGS = 150
ROUNDS = 20
DEADLINE_S = 600


def ring(ring_id: int) -> RingSpec:
    addresses = [bytes([10, 0, *divmod(rank, 256)]) for rank in range(RANKS)]
    flows = tuple(
        FlowSpec(Rank(rank), addresses[rank], addresses[(rank + 1) % RANKS], 16 + ring_id)
        for rank in range(RANKS)
    )
    return RingSpec(ring_id, 1, ring_id, 2, 4, 256, flows)


async def test_more_is_said_than_fits_in_a_queue(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        control_server, "DEAD_S", DEADLINE_S
    )  # this side reads all, and says nothing meanwhile
    fabric = spine_and_leaves(runtime_dir)
    switch = Switch(SwitchSettings(dir=runtime_dir, name="spine"), Place(fabric, "spine"))
    plane = switch.plane
    assert plane is not None
    plane.handle(SwitchArrived("leaf0"))
    trees, now = plane._core._switches, current_instant()  # jobs of so many ranks would take minutes to join
    for flow in ring(1).flows:
        trees.step(HostSeen(flow.src_ip, "leaf0"), now)
    for ring_id in range(1, 1 + RINGS):
        trees.step(RingWanted(ring(ring_id)), now)
        trees.step(RingGone(ring_id), now)
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


async def test_what_a_replaced_session_still_said_is_not_heard(runtime_dir: Path) -> None:
    """Which of two sessions is read first is chance, hence the rounds."""
    switch = Switch(SwitchSettings(dir=runtime_dir))
    path = runtime_dir / "control.sock"
    bound = await listen_unix(path, "test")
    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(switch.server.accept_sessions, bound)
            for _ in range(ROUNDS):
                old, new = [ControlStream(await connect_unix(path, "test")) for _ in range(2)]
                await old.send(hello(0))
                assert isinstance(await old.receive(), Welcome)
                await wait_all_tasks_blocked()
                new.send_nowait(hello(0))
                old.send_nowait(hello(5))
                old.close()
                assert isinstance(await new.receive(), Welcome)
                new.close()
                await wait_all_tasks_blocked()
                assert switch.status()["hosts"] == []
            bound.close()
            nursery.cancel_scope.cancel()
