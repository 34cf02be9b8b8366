"""A simulated host: a NIC, a control session with the switch, and the ranks that run there.

Its clock runs ahead of the world's after a jump; while it is paused nothing of it runs, and what comes
for it waits, frames only as long as the receive ring has room.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from inaproto.core.host.hearing import Hearing
from inaproto.core.host.job import HostJob
from inaproto.core.rdma.nic import SoftNicConfig, SoftNicEngine
from inaproto.core.rdma.verbs import Completion
from inaproto.errors import JobError, SwitchUnreachable
from inaproto.faults.announcement import announcement
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.ring import HostRing
from inaproto.sim.frames.link import SimLink
from inaproto.units import Frames, Instant
from inaproto.wire.control_messages import Error, Hello, Message, Regrouped, Welcome
from inaproto.wire.crc import crc32

if TYPE_CHECKING:
    from inaproto.sim.frames.control_plane import Session
    from inaproto.sim.frames.host.elastic_process import ElasticProcess
    from inaproto.sim.frames.host.plain_flow import PlainFlow
    from inaproto.sim.frames.routers import SimRouter
    from inaproto.sim.frames.switch import SimSwitch
    from inaproto.sim.frames.world import World

RECEIVE_RING_FRAMES: Final = 256
RECONNECT_NS: Final = 1_000_000


class SimHost:
    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.name = f"host{number}"
        self.mac = bytes([2, 0, 0, 0, 1, number + 1])
        self.ip = bytes([10, 0, 0, number + 1])
        topology = world.config.topology
        self.switch: SimSwitch = world.switches[0 if topology is None else topology.attached[number]]
        self.rings: list[HostRing] = []
        """One for each job that has ranks here."""
        self.is_up = False
        self.session: Session | None = None
        self.is_welcome = False
        self._hearing = Hearing("")
        """What the switch that welcomed it has told of jobs."""
        self.clock_ahead_ns = 0
        self._starts = 0
        self._without_daemon: int | None = None
        """The pause that lasts until there is another host daemon."""
        self.dies_after: int | None = None
        """The host daemon dies after so many orders."""
        self._dies_for_ns = 0
        self.uplink: SimLink
        self.router: SimRouter | None = None
        """What is between it and the switch."""
        self.frames_elsewhere = 0
        """Its router took them by links of others."""
        self.nic: SoftNicEngine
        self.frames_in = 0
        """Handed to this NIC."""
        self.frames_out = 0
        self.frames_taken = 0
        """Handed to any of the host's NICs."""
        self.lost_in: dict[str, int] = {}
        """Frames that arrived and were not handed to the NIC, by why; added to the ledger."""
        self._pauses: set[int] = set()
        self._pause_serial = 0
        self._waiting: deque[tuple[Callable[[Any], None], Any]] = deque()
        self.frames_waiting = 0
        """In the receive ring, while the host is paused."""
        self.has_unseen_nic = False
        """Its NIC is a new one, of which nothing here knows yet, for the host is paused."""
        self.regrouping: dict[int, ElasticProcess] = {}
        """Who waits to hear who goes on, by the id of its request."""
        self.flows: list[PlainFlow] = []
        """Of which it is an end, and which have queue pairs."""
        self._owners: dict[int, HostRing | PlainFlow] = {}
        self._nic_wake_at: int | None = None
        self._nic_is_due = False
        """Its timer passed while the host was paused."""

    def __str__(self) -> str:
        return self.name

    @property
    def link_mac(self) -> bytes:
        """The address at its link: its own, or that of its router there."""
        return self.mac if self.router is None else self.router.address_at(self)

    @property
    def sources(self) -> tuple[bytes, ...]:
        """Addresses from which its packets come at the switch."""
        return (self.mac,) if self.router is None else self.router.addresses

    @property
    def ranks(self) -> list[SimRank]:
        return [rank for ring in self.rings for rank in ring.ranks]

    @property
    def is_reachable(self) -> bool:
        """What it says reaches the switch, and the other way round."""
        return self.is_welcome and self.session is not None and self.session.is_open and not self._pauses

    # --- time

    @property
    def now(self) -> Instant:
        """The time by this host's clock."""
        ahead_ns = self.clock_ahead_ns
        now = self.world.agenda.now
        return Instant(now + ahead_ns) if ahead_ns else now

    def world_time(self, instant: Instant) -> int:
        return instant - self.clock_ahead_ns

    def jump(self, ahead_ns: int) -> None:
        """The clock jumps forward: whatever timer that passes is due at once."""
        self.clock_ahead_ns += ahead_ns
        if not self.is_up:
            return
        self._nic_wake_at = None
        self._arm_nic()
        for ring in self.rings:
            if ring.engine is not None:
                self.world.agenda.at(0, self.when_awake, partial(ring.woke, ring.core))

    def at(self, instant: Instant, act: Callable[[], None]) -> None:
        """Do it when its clock, as it goes now, shows that, or when it runs again after that."""
        self.world.agenda.at(self.world_time(instant), self.when_awake, act)

    def after(self, wait_ns: int, act: Callable[[], None]) -> None:
        """Do it after that, or when it runs again after that."""
        self.world.agenda.after(wait_ns, self.when_awake, act)

    def when_awake(self, act: Callable[[], None]) -> None:
        """Now, or when the host runs again."""
        if self._pauses:
            self._waiting.append((lambda _: act(), None))
        elif self.is_up:
            act()

    def pause(self) -> int:
        """Nothing runs here until this pause, by the number returned, and all others are over."""
        self._pause_serial += 1
        self._pauses.add(self._pause_serial)
        return self._pause_serial

    def resume(self, pause: int, _: Any = None) -> None:
        """Goes on; also after a pause that a crash has ended already."""
        self._pauses.discard(pause)
        if self._pauses:
            return
        self.has_unseen_nic = False
        waiting, self._waiting, self.frames_waiting = self._waiting, deque(), 0
        for act, argument in waiting:
            if self.is_up:
                act(argument)
        if self._nic_is_due and self.is_up and not self._pauses:  # what was received comes first
            self._nic_wake()

    # --- ups and downs

    def power_on(self, _: Any = None) -> None:
        self.new_nic()
        self.is_up = True
        self._starts += 1
        self._connect()
        for ring in self.rings:
            ring.start()

    def crash(self) -> None:
        """Everything stops; the switch notices that the session ended."""
        self.is_up = False
        self.world.places.begins_anew(self)
        self.world.seats.begins_anew(self)
        self._pauses.clear()
        self._without_daemon = self.dies_after = None
        self._lose_waiting_frames("host is down")
        self._waiting.clear()
        self.regrouping.clear()
        for ring in self.rings:
            ring.die()
        self._drop_nic()
        self.is_welcome = False
        if self.session is not None:
            self.session.break_off("the host crashed")
            self.session = None

    @property
    def is_without_daemon(self) -> bool:
        """It has died, and the next has not begun."""
        return self._without_daemon is not None

    @property
    def dies_now(self) -> bool:
        """What was done last was the last that its daemon did."""
        return self.is_without_daemon

    def lose_daemon(self, after_orders: int, for_ns: int) -> bool:
        """The host daemon dies after so many more of its orders; another one begins ``for_ns`` later.

        Training processes go on, and wait for it.
        """
        if not self.is_up or self._pauses or self.dies_after is not None:
            return False
        self._dies_for_ns = for_ns
        self.dies_after = after_orders or None
        if not after_orders:
            self.daemon_dies()
        return True

    def daemon_dies(self) -> None:
        self.dies_after = None
        self._without_daemon = self.pause()
        self.world.places.begins_anew(self)
        self.regrouping.clear()
        for ring in self.rings:
            ring.daemon_died()
        self._drop_nic()
        self._make_nic()
        if self.session is not None:
            self.session.break_off("the host daemon died")
            self.session = None
        self.is_welcome = False
        self.world.agenda.after(self._dies_for_ns, self._daemon_back, self._without_daemon)

    def _daemon_back(self, pause: int) -> None:
        if pause != self._without_daemon:  # the host has crashed, and is up again
            return
        self._without_daemon = None
        self._starts += 1
        self._lose_waiting_frames("the host daemon was down")
        self.new_nic()
        self.has_unseen_nic = False
        for ring in self.rings:
            ring.daemon_back()
        self._connect()
        self.resume(pause)

    def lose_process(self, number: int, until_ns: int) -> bool:
        """One of the training processes dies; whether any job depended on it."""
        ranks = self.ranks
        if not self.is_up or self._pauses or not ranks:
            return False
        rank = ranks[number % len(ranks)]
        return rank.ring.process_died(rank, until_ns)

    def new_nic(self) -> None:
        """Gets a new NIC, and attaches it to a new port of its switch as soon as that is up."""
        self._make_nic()
        self._attach(self.nic)

    def _make_nic(self) -> None:
        first_qpn = 17 + self.world.chance_draws.below(1 << 20)
        # Of some worlds no NIC is selective, of some a few are, and of most, or half with one switch, all.
        share = crc32(self.world.config.seed.encode()) & (3 if self.world.config.topology is None else 7)
        selective = share > 1 or (share == 1 and self.number % 2 == 0)
        # To some of the others a switch may not say what has come there.
        repaired = crc32(self.world.config.seed.encode()) >> 5 & 3 > 0 or self.number % 2 == 0
        config = SoftNicConfig(
            mac=self.mac,
            ip=self.ip,
            first_qpn=first_qpn,
            selective=selective,
            repaired=repaired,
            congestion=self.world.config.congestion,
        )
        self.nic = SoftNicEngine(config)
        self.has_unseen_nic = bool(self._pauses)
        self.frames_in = self.frames_out = 0
        self._owners = {}
        self._nic_wake_at = None
        self._nic_is_due = False

    def _attach(self, nic: SoftNicEngine) -> None:
        """The first switch's sessions attach their hosts; at any other one the host tries until it is up."""
        if self.switch.attach(self):
            if self.world.config.topology is not None:
                self.uplink.send(announcement(self.mac, self.ip))
        elif self.switch is not self.world.switch:
            self.world.agenda.after(RECONNECT_NS, self._attach_again, nic)

    def _attach_again(self, nic: SoftNicEngine) -> None:
        if nic is self.nic and self.is_up:
            self._attach(nic)

    def _drop_nic(self) -> None:
        self.world.nic_gone(self)
        self._owners = {}
        self.switch.detach(self)

    def lose_nic(self, error: JobError) -> None:
        """The NIC is gone, with its queue pairs; a new one takes its place.

        All that a host daemon has of its switch is lost with it, and made anew.
        """
        self._drop_nic()
        self._lose_waiting_frames("the NIC was reset")
        if self.session is not None:
            self.session.break_off(str(error))
            self.session = None
            self.is_welcome = False
            self.world.agenda.after(RECONNECT_NS, self._connect)
        for ring in self.rings:
            self.when_awake(partial(ring.lose_fabric, error))
        self.new_nic()

    def port_gone(self, nic: SoftNicEngine) -> None:
        """Its switch went down, not the first one: the session stands, the link does not."""
        if nic is self.nic and self.is_up:
            self.when_awake(lambda: self._lose_dead_nic(nic))

    def _lose_dead_nic(self, nic: SoftNicEngine) -> None:
        if nic is self.nic:
            self.lose_nic(SwitchUnreachable(f"{self}: {self.switch} is gone"))

    # --- control

    def _connect(self, _: Any = None) -> None:
        if not self.is_up or self.session is not None:
            return
        if not self.world.config.recover_ns or self.switch.is_admitted:  # a port comes first
            self.session = self.world.control.open_session(self)
        if self.session is None:
            self.world.agenda.after(RECONNECT_NS, self._connect)
            return
        self.is_welcome = False
        self.session.to_switch(self._hello)

    @property
    def _hello(self) -> Hello:
        instance = f"{self.name}/{self._starts}"
        return Hello(
            id=1,
            host=self.name,
            mac=self.mac,
            ip=self.ip,
            instance=instance,
            switch="" if self.world.fabric is None else self.switch.name,
            parks=True,
            overlays=True,
            succeeds=True,
            chooses_port=self.number not in self.world.config.unsteered,
        )

    def tell(self, message: Message) -> None:
        if self.session is not None:
            self.session.to_switch(message)

    def heard(self, message: Message) -> None:
        """From the switch."""
        if isinstance(message, Welcome):
            self.is_welcome = True
            self._hearing = Hearing(message.boot_id)
            for ring in self.rings:
                ring.welcomed()
            for process in list(self.regrouping.values()):
                process.ask()
            return
        if isinstance(message, Regrouped) or (isinstance(message, Error) and message.of in self.regrouping):
            asking = self.regrouping.pop(message.of if isinstance(message, Error) else message.id, None)
            if asking is not None:  # else its process has ended
                asking.answered(message)
            return
        if isinstance(message, Error) and message.code == "hello_refused":
            # The switch has not noticed yet that this host's last session is over.
            if self.session is not None:
                self.session.break_off("its hello was refused")
            self.session = None
            self.world.agenda.after(RECONNECT_NS, self._connect)
            return
        job = getattr(message, "job", None)
        rings: list[HostRing] = []
        jobs: list[HostJob] = []
        for ring in self.rings:
            if not ring.is_idle and job in (None, ring.job.name):
                rings.append(ring)
                jobs.append(ring.core)
        for number, event in self._hearing.heard(message, jobs):
            rings[number].feed(event)

    def session_ended(self, session: Session) -> None:
        """The switch is gone, and with it the link: a softnic dies with its port."""
        if session is not self.session:
            return
        self.session = None
        self.is_welcome = False
        self.lose_nic(SwitchUnreachable(f"{self}: the switch is gone"))
        self.world.agenda.after(RECONNECT_NS, self._connect)

    # --- the NIC

    def serve(self, qpn: int, owner: HostRing | PlainFlow) -> None:
        self._owners[qpn] = owner

    def forget(self, qpn: int) -> None:
        """The queue pair is gone; what it held has completed as flushed and is to be polled."""
        self._owners.pop(qpn, None)
        self.world.agenda.at(0, self._poll, self.nic)

    def _poll(self, nic: SoftNicEngine) -> None:
        if nic is self.nic:
            self.when_awake(self.nic_touched)

    def frames_arrived(self, blocks: list[Frames]) -> None:
        if self._pauses:
            count = sum(map(len, blocks))
            if self.frames_waiting + count > RECEIVE_RING_FRAMES:
                self.lose("receive ring full", blocks)
            else:
                self.frames_waiting += count
                self._waiting.append((self._frames, blocks))
        elif self.is_up:
            self._frames(blocks)
        else:
            self.lose("host is down", blocks)

    def lose(self, why: str, blocks: list[Frames]) -> None:
        """They arrived, and are not handed to the NIC."""
        self.lost_in[why] = self.lost_in.get(why, 0) + sum(map(len, blocks))

    def _lose_waiting_frames(self, why: str) -> None:
        """Those in the receive ring of a paused host."""
        for act, argument in self._waiting:
            if act == self._frames:
                self.lose(why, argument)
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0] != self._frames)
        self.frames_waiting = 0

    def _frames(self, blocks: list[Frames]) -> None:
        world = self.world
        for block in blocks:
            self.frames_in += len(block)
            self.frames_taken += len(block)
            world.note_frames(self.number, block)
        for received in world.hooks.nic_received:
            received(self, blocks)
        self.nic.handle_frames(blocks, self.now)
        self.nic_touched()

    def nic_touched(self) -> None:
        """Send what the NIC has to send, tell the ranks what completed, and see to its timer."""
        nic, send = self.nic, (self.router or self.uplink).send
        while True:
            for frames in nic.take_output():
                self.frames_out += len(frames)
                for sent in self.world.hooks.nic_sent:
                    sent(self, frames)
                send(frames)
            completions = nic.take_completions()
            if not completions:
                break
            by_owner: dict[HostRing | PlainFlow, list[Completion]] = {}
            for completion in completions:
                owner = self._owners.get(completion.qpn)
                if owner is not None:
                    by_owner.setdefault(owner, []).append(completion)
            for owner, its in by_owner.items():
                owner.completed_all(its)
                if nic is not self.nic:
                    return
        self._arm_nic()

    def _arm_nic(self) -> None:
        deadline = self.nic.deadline
        if deadline is None:
            return
        if self._nic_wake_at is None or deadline < self._nic_wake_at:
            self._nic_wake_at = deadline
            self.world.agenda.at(self.world_time(deadline), self._nic_due, (self.nic, deadline))

    def _nic_due(self, planned: tuple[SoftNicEngine, Instant]) -> None:
        if planned[0] is not self.nic or planned[1] != self._nic_wake_at:
            return
        if self._pauses:
            self._nic_is_due = True
        elif self.is_up:
            self._nic_wake()

    def _nic_wake(self) -> None:
        self._nic_wake_at = None
        self._nic_is_due = False
        deadline = self.nic.deadline
        if deadline is not None and deadline <= self.now:
            self.world.note(self.number, "timer", deadline & 0xFFFF_FFFF)
            self.nic.handle_timer(self.now)
            self.nic_touched()
        else:
            self._arm_nic()
