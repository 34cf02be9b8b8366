"""A shard of a switch: an accelerator in a process of its own, with a port of its own on each interface.

It is a child of the switch daemon (:mod:`inaproto.daemon.switch.shard_keeper`), which tells it over a socket
which rings it has, and hears from there what comes of it. The kernel gives its ports the RoCE packets with
its UDP source port, and no others (docs/shards.md).

Invariants: it opens its ports when it is told that it has heard of all rings that were here before; it ends
when its parent does, and by nothing else: signals of a terminal or a service are for the parent.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, assert_never

import trio

from inaproto.core.switch.accelerator import (
    Accelerator,
    AcceleratorConfig,
    Action,
    EmitFrames,
    ForLink,
    InstallRing,
    RemoveRing,
    RingFault,
    RingRefused,
)
from inaproto.core.switch.moderation import Moderation
from inaproto.daemon.net.control_stream import ControlStream, EndOfChannel
from inaproto.daemon.settings.config import SwitchSettings
from inaproto.daemon.shell import current_instant
from inaproto.daemon.switch.blame_log import BlameLog
from inaproto.daemon.switch.link_ports import LinkPorts
from inaproto.daemon.switch.ports import PortBoard, WrapPort
from inaproto.daemon.switch.ring_orders import carry_out, message_of
from inaproto.errors import Blame, InvariantBroken
from inaproto.ports import Link
from inaproto.units import PortId
from inaproto.wire.control_messages import Message, Status, StatusReply
from inaproto.wire.messages.switch import (
    LinkPaused,
    RingInstall,
    RingRemove,
    SwitchAdmit,
    SwitchHello,
    SwitchOpened,
)

log = logging.getLogger("inaproto.switch")


class Shard:
    """Synchronous but for :meth:`run`; ``stream`` leads to the parent."""

    def __init__(
        self,
        name: str,
        settings: SwitchSettings,
        stream: ControlStream,
        links: Sequence[Link],
        *,
        wrap_port: WrapPort | None = None,
    ) -> None:
        self._name = name
        self._stream = stream
        self._accelerator = Accelerator(
            AcceleratorConfig(rings_max=settings.rings_max, memory_bytes_max=settings.memory_kib << 10)
        )
        rests = settings.moderation == "on"
        self._ports = PortBoard(
            self._accelerator.step,
            self._perform,
            wrap_port=wrap_port,
            ports_max=0,
            links=len(links),
            moderation=Moderation(self._accelerator.rings) if rests else None,
        )
        self._ports.is_open = False
        self._links = LinkPorts(links, self._ports)
        self._blames = BlameLog()

    async def run(self) -> None:
        """Until the parent is gone."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stream.run)
                nursery.start_soon(self._ports.keep_pauses)
                await self._stream.send(SwitchHello(switch=self._name, boot_id=self._name))
                while True:
                    message = await self._stream.receive()
                    self._heard(message)
                    if isinstance(message, SwitchAdmit):
                        nursery.start_soon(self._links.serve)
        except* EndOfChannel:
            log.info("ends: the switch has")

    def _heard(self, message: Message) -> None:
        match message:
            case RingInstall() | RingRemove():
                carry_out(message, self._ordered, self._tell)
            case SwitchAdmit(id=id):
                self._ports.is_open = True
                self._tell(SwitchOpened(id=id))
            case LinkPaused(link=link, priorities=priorities, silences_ns=silences_ns, frames=frames):
                silences = dict(zip(priorities, silences_ns, strict=False))
                self._ports.be_silent(PortId(self._ports.first_link + link), silences, frames)
            case Status(id=id):
                self._tell(StatusReply(id=id, body=self.status()))
            case _:
                raise InvariantBroken(f"a switch tells its shard {message}")

    def _ordered(self, order: InstallRing | RemoveRing) -> bool:
        actions = self._accelerator.step(order, current_instant())
        for action in actions:
            self._perform(action)
        return not any(isinstance(action, RingRefused) for action in actions)

    def _perform(self, action: Action) -> None:
        match action:
            case Blame():
                self._blames.add(action)
            case RingFault() | RingRefused():
                self._tell(message_of(action))
            case EmitFrames() | ForLink():
                raise InvariantBroken("frames are sent where they arrive, nowhere else")
            case _:
                assert_never(action)

    def _tell(self, message: Message) -> None:
        with suppress(EndOfChannel):  # the task that receives sees it, too
            self._stream.send_nowait(message)

    def status(self) -> dict[str, Any]:
        """As much of the status of a switch as a shard has of its own."""
        view = self._accelerator.view().as_dict()
        rings: Any = view["rings"]
        return {
            "totals": self._ports.totals(),
            "ports": self._ports.status(),
            "links": self._links.status(),
            "accelerator": view | {"rings": {str(ring_id): ring for ring_id, ring in rings.items()}},
            "blames": self._blames.counts(),
        }
