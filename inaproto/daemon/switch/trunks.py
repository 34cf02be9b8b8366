"""Trunks: the links between a switch and those next to it, as frame ports with fixed numbers.

Each switch listens for each one below it; the one below dials, and dials again when the trunk is lost. Each
says first who it is and which control plane has admitted it (:mod:`inaproto.wire.trunk_hello`), and the port
is up when both agree. A trunk that is down loses frames, as a cable does: rings ride it out by
retransmission. Each then announces the hosts on its side: what they send ends at their first switch, which
sums it, so those behind a new trunk would flood every ACK for them. Each says its hello again every
``ALIVE_S``, which no bridge passes on: a connection can stand though whatever carries it is stuck.
The control plane hears from the lower switch of each trunk whether it is up: at once when it is, and when it
has been down for ``DOWN_S``. On trunks that are for rings alone no hosts are announced: what is for them goes
along the fabric's own tree.

Invariants: no frame passes between switches that different control planes have admitted, or none; there is
one trunk for each pair, the one that was dialled last; one on which nothing comes for ``DEAD_S`` is dropped;
tries are never closer than ``RETRY_FIRST_S``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import trio

from inaproto.daemon.settings.fabric_file import Place
from inaproto.daemon.switch.ports import ACCEPT_RETRY_S, CLOSED_HERE, ConnectPort, PortBoard
from inaproto.errors import ConfigError, DecodeError, FabricError
from inaproto.faults.announcement import announcement
from inaproto.ports import FramePort, PortClosed, PortListener
from inaproto.units import Frames
from inaproto.wire.trunk_hello import TrunkHello

log = logging.getLogger("inaproto.switch")

DIAL_S = 5.0
HELLO_S = 1.0
ALIVE_S = 2.0
DEAD_S = 10.0
RETRY_FIRST_S = 0.05
RETRY_LAST_S = 1.0
DOWN_S = 1.0
"""Shorter breaks cost frames only, and are not reported: so one that flaps makes no storm."""
GREETINGS_MAX = 8
"""Connections from below that have not said yet who they are; others have to try again."""


@dataclass(slots=True)
class _Trunk:
    """What is known of one."""

    error: str = ""
    """Why it is down, or was last."""
    changed_s: float = 0.0
    ups: int = 0
    refused: str = ""
    """Why the last one that came for it and was another switch was not taken."""


class Trunks:
    """``control_boot`` is that of the control plane which has admitted this switch; empty: none has.

    ``addresses`` are those that the switch knows, with their ports.
    """

    def __init__(
        self,
        place: Place,
        board: PortBoard,
        control_boot: Callable[[], str],
        addresses: Callable[[], Mapping[bytes, int]],
    ) -> None:
        self._place = place
        self._board = board
        self._control_boot = control_boot
        self._addresses = addresses
        self._serial = 0
        self._greetings = 0
        self._ports = place.fabric.trunk_ports(place.name)
        self._for_rings = place.fabric.ring_ports(place.name)
        self._above = {link.above: link.trunk for link in place.entry.uplinks}
        """Where each switch above is dialled."""
        self._trunks = {
            name: _Trunk(
                "not tried yet" if name in self._above else f"{name} has not dialled; its log says why",
                changed_s=trio.current_time(),
            )
            for name in self._ports
        }
        self._admitted = trio.Event()
        self._changed = trio.Event()
        """The state of a trunk did, or the reason why it is down."""

    def admitted(self) -> None:
        """The switch has been: try now."""
        self._admitted.set()
        self._admitted = trio.Event()

    def drop(self, peer: str) -> None:
        """What the switch ``peer`` knew is gone: nothing more of it may come in."""
        if peer in self._ports:
            self._board.drop(self._ports[peer])

    async def accept(self, below: str, listener: PortListener) -> None:
        """Take the connections of the switch ``below``, until ``listener`` is closed."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    port = await listener.accept()
                except PortClosed:
                    return
                except FabricError as error:
                    log.warning("no new trunk: %s", error)
                    await trio.sleep(ACCEPT_RETRY_S)
                else:
                    if self._greetings < GREETINGS_MAX:
                        nursery.start_soon(self._serve, below, port, True)
                    else:
                        await port.aclose()

    async def dial(self, connect_port: ConnectPort) -> None:
        """Keep the trunks to the switches above, until cancelled."""
        async with trio.open_nursery() as nursery:
            for above in self._above:
                nursery.start_soon(self._dial, above, connect_port)

    async def _dial(self, above: str, connect_port: ConnectPort) -> None:
        path, trunk = self._above[above], self._trunks[above]
        retry_s = RETRY_FIRST_S
        while True:
            if not self._control_boot():
                await self._admitted.wait()
                retry_s = RETRY_FIRST_S
            ups = trunk.ups
            try:
                with trio.fail_after(DIAL_S):
                    port = await connect_port(path)
            except ConfigError:
                raise
            except trio.TooSlowError:
                late = f"nobody took the connection within {DIAL_S:g} s"
                self._down(above, f"cannot connect to {path}: {late}")
            except (FabricError, PortClosed, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                self._down(above, f"cannot connect to {path}: {why}")
            else:
                await self._serve(above, port, False)
            retry_s = RETRY_FIRST_S if trunk.ups > ups else min(2 * retry_s, RETRY_LAST_S)
            await trio.sleep(retry_s)

    async def keep_alive(self) -> None:
        """Say on each trunk that this side lives, and drop those whose far side does not; until cancelled."""
        heard = dict.fromkeys(self._ports, (0, 0, 0.0))
        while True:
            await trio.sleep(ALIVE_S)
            boot, now = self._control_boot(), trio.current_time()
            for peer, port_id in self._ports.items():
                frames = self._board.frames_in(port_id)
                if frames is None or not boot:
                    continue
                ups = self._trunks[peer].ups
                if heard[peer][:2] != (ups, frames):
                    heard[peer] = (ups, frames, now)
                if now - heard[peer][2] >= DEAD_S:
                    self._board.drop(port_id)
                    self._down(peer, f"nothing came on it for {DEAD_S:g} s")
                else:
                    self._board.send(port_id, self._hello(peer, boot))

    async def report_above(self, say: Callable[[str, str], None]) -> None:
        """Say of each trunk to a switch above why it is down, or nothing if it is up; until cancelled."""
        async with trio.open_nursery() as nursery:
            for above in self._above:
                nursery.start_soon(self._report, above, say)

    async def _report(self, above: str, say: Callable[[str, str], None]) -> None:
        trunk = self._trunks[above]
        said: str | None = None
        while True:
            with trio.move_on_after(DOWN_S):
                while trunk.error:
                    await self._changed.wait()
            if trunk.error != said:
                said = trunk.error
                say(above, said)
            while trunk.error == said:
                await self._changed.wait()

    def _has_changed(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _hello(self, peer: str, boot: str) -> Frames:
        hello = TrunkHello(mac=self._place.address.mac, switch=self._place.name, peer=peer, boot_id=boot)
        return np.frombuffer(hello.encode(), dtype=np.uint8).reshape(1, -1)

    async def _serve(self, peer: str, port: FramePort, answers: bool) -> None:
        self._serial += 1  # in the name, so that weather does not do the same to each hello
        name = f"trunk-{peer}.{self._serial}"
        reason = await self._board.serve(self._ports[peer], port, name, partial(self._greet, peer, answers))
        self._down(peer, reason)

    async def _greet(self, peer: str, answers: bool, port: FramePort) -> Sequence[Frames]:
        """Say who is here and hear who is there; ``answers``: the far side speaks first."""
        boot = self._control_boot()
        if not boot:
            raise PortClosed("this switch is not admitted")
        frame = self._hello(peer, boot)
        if not answers:
            port.send_nowait(frame)
        self._greetings += 1
        try:
            with trio.move_on_after(HELLO_S) as scope:
                blocks = await port.receive()
        finally:
            self._greetings -= 1
        if scope.cancelled_caught:
            raise PortClosed(f"{peer} said nothing for {HELLO_S:g} s")
        try:
            said = TrunkHello.decode(blocks[0][0].tobytes())
        except DecodeError as error:
            raise PortClosed(f"the far side is no switch of this fabric: {error}") from None
        name = self._place.name
        if (said.switch, said.peer) != (peer, name):
            if answers:
                port.send_nowait(frame)  # that it may say which socket it has dialled
            who = f"the far side is {said.switch}, which wants {said.peer}"
            wrong = f"{who}; {peer} was expected, wanting {name}"
            self._refuse(peer, wrong)
            raise PortClosed(wrong)
        if said.boot_id != boot or boot != self._control_boot():
            raise PortClosed(f"{peer} is admitted by control plane {said.boot_id}, this switch by {boot}")
        if answers:
            port.send_nowait(frame)
        self._announce(peer, port)
        self._up(peer)
        return [block for block in (blocks[0][1:], *blocks[1:]) if len(block)]

    def _refuse(self, peer: str, reason: str) -> None:
        trunk = self._trunks[peer]
        if trunk.refused != reason and self._board.is_up(self._ports[peer]):
            log.warning("a connection for the trunk to %s, which is up, is not taken: %s", peer, reason)
        trunk.refused = reason

    def _announce(self, peer: str, port: FramePort) -> None:
        """Say what is on this side: the switch, and all that it knows elsewhere than behind ``peer``."""
        own = self._place.address
        behind = self._ports[peer]
        if behind in self._for_rings:
            return
        known = [announcement(mac, bytes(4)) for mac, at in self._addresses().items() if at != behind]
        port.send_nowait(np.concatenate([announcement(own.mac, own.ip), *known]))

    def _up(self, peer: str) -> None:
        trunk = self._trunks[peer]
        trunk.error = ""
        trunk.ups += 1
        trunk.changed_s = trio.current_time()
        self._has_changed()

    def _down(self, peer: str, reason: str) -> None:
        if self._board.is_up(self._ports[peer]):
            return  # another connection has taken its place
        trunk = self._trunks[peer]
        if trunk.error and reason == CLOSED_HERE:
            return  # why was said when it was closed
        if trunk.error != reason:
            log.log(
                logging.INFO if not self._control_boot() else logging.WARNING,
                "no trunk to %s, it is tried again: %s",
                peer,
                reason,
            )
        if not trunk.error:
            trunk.changed_s = trio.current_time()
        trunk.error = reason
        self._has_changed()

    def status(self) -> list[dict[str, Any]]:
        """One record for each neighbour, the one above first."""
        return [
            {
                "switch": peer,
                "way": "up" if peer in self._above else "down",
                "rings_only": self._ports[peer] in self._for_rings,
                "port": int(self._ports[peer]),
                "is_up": self._board.is_up(self._ports[peer]),
                "since_s": round(trio.current_time() - trunk.changed_s, 3),
                "times_up": trunk.ups,
                "error": "" if self._board.is_up(self._ports[peer]) else trunk.error or "lost",
                "refused": trunk.refused,
            }
            for peer, trunk in self._trunks.items()
        ]
