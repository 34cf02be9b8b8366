"""RDMA writes from one simulated host to another that no switch sums, as any program may have them.

They are there for what they do to others on the same links. A flow begins as soon as both hosts have their
links; it has as many messages on the way as its window holds, and when its time is over it ends with the last
of these. What arrives must be what was sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from inaproto.core.rdma.verbs import Completion, CompletionKind, QpAttributes, Segment, Status
from inaproto.faults.announcement import announcement
from inaproto.faults.streams import Draws
from inaproto.sim.frames.draw.swarm import FlowConfig
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS, US

if TYPE_CHECKING:
    from inaproto.sim.frames.world import World

_TRY_AGAIN_NS: Final = 100 * US
_ANNOUNCED_NS: Final = 1 * MS
"""After so long switches know where both hosts are, and flood nothing."""


class PlainFlow:
    def __init__(self, world: World, config: FlowConfig) -> None:
        self.config: Final = config
        self.is_finished = False
        self.messages_done = 0
        self._world = world
        self._sender, self._receiver = world.hosts[config.sender], world.hosts[config.receiver]
        self._under_way = 0
        self._sent = 0

    def __str__(self) -> str:
        return f"the flow from {self._sender} to {self._receiver}, {self._under_way} messages on the way"

    @property
    def work_requests_max(self) -> int:
        """At either end."""
        return self.config.window_messages + 1

    def begin(self, _: Any = None) -> None:
        """Now, or when both hosts have their links."""
        ends = (self._sender, self._receiver)
        if any(host.switch.port_of_mac(host.mac) is None for host in ends):
            self._world.agenda.after(_TRY_AGAIN_NS, self.begin)
            return
        for host in ends:
            host.flows.append(self)
            host.uplink.send(announcement(host.mac, host.ip))
        self._open()
        self._world.agenda.after(_ANNOUNCED_NS, self._go_on)

    def _open(self) -> None:
        config, world = self.config, self._world
        here, there = self._sender.nic, self._receiver.nic
        draws = Draws(world.config.seed, f"flow/{config.sender}/{config.receiver}/{config.begin_ns}")
        words = -(-config.message_bytes // 8)
        self._source = b"".join(draws.raw().to_bytes(8, "big") for _ in range(words))[: config.message_bytes]
        self._target = bytearray(config.message_bytes)
        self._from = here.register_memory(memoryview(bytearray(self._source)))
        self._to = there.register_memory(memoryview(self._target))
        self._here = here.create_qp(psn=world.first_psn())
        self._there = there.create_qp(psn=world.first_psn())
        window = config.window_messages
        attributes = QpAttributes(mtu=config.mtu).for_messages(window, config.message_bytes)
        here.connect_qp(self._here.qpn, self._there, attributes)
        there.connect_qp(self._there.qpn, self._here, attributes)
        self._sender.serve(self._here.qpn, self)
        self._receiver.serve(self._there.qpn, self)
        for _ in range(self.work_requests_max):
            there.post_receive(self._there.qpn, 0)

    def _go_on(self, _: Any = None) -> None:
        while self._under_way < self.config.window_messages and self._world.agenda.now < self.config.until_ns:
            self._under_way += 1
            self._sent += 1
            nbytes = self.config.message_bytes
            self._sender.nic.post_write_imm(
                self._here.qpn,
                self._sent,
                [Segment(self._from.key, self._from.va, nbytes)],
                remote_va=self._to.va,
                rkey=self._to.key,
                imm=0,
                now=self._sender.now,
            )
        if not self._under_way:
            self._end()
            return
        self._world.agenda.at(0, self._send)

    def _send(self, _: Any) -> None:
        if not self.is_finished:
            self._sender.nic_touched()

    def completed_all(self, completions: list[Completion]) -> None:
        """At either end."""
        for completion in completions:
            if completion.status is not Status.SUCCESS:
                raise Violated("a plain flow arrives", f"{self}: {completion}")
            if completion.kind is CompletionKind.RECEIVE_IMM:
                self.messages_done += 1
                self._receiver.nic.post_receive(self._there.qpn, 0)
            else:
                self._under_way -= 1
        if completions[0].kind is CompletionKind.SEND:
            self._go_on()

    def _end(self) -> None:
        if self.messages_done != self._sent or (self._sent and self._target != self._source):
            raise Violated("a plain flow arrives", f"{self}: {self._sent} sent, {self.messages_done} arrived")
        self.is_finished = True
        ends = ((self._sender, self._here, self._from), (self._receiver, self._there, self._to))
        for host, address, region in ends:
            host.nic.destroy_qp(address.qpn)
            host.nic.deregister_memory(region)
            host.flows.remove(self)
            host.forget(address.qpn)
        self._world.flow_finished()
