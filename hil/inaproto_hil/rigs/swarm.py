"""Agents of a whole cluster in one process, over real sockets: what a controller hears of a thousand hosts.

Links, seats, turns, slots and wishes of trees are those of the daemons, as they are. Two things stand in for
training: ranks take their seats and leave when they are told to, and a ring stands wherever it is wished, at
once. So what is measured is the controller, and the agents' own part of each conversation.
"""

from __future__ import annotations

import logging
import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import trio

from inaproto.core.grants.seats import HostSeats
from inaproto.daemon.host.turn_seats import JobSeat, TurnSeats
from inaproto.daemon.net.control_address import Door
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.shell import current_instant
from inaproto.daemon.switch.lent_slots import LentSlots
from inaproto.daemon.switch.tree_grants import TreeGrants
from inaproto.daemon.switch.wished_trees import WishedTrees
from inaproto.units import OpIndex, S
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome, GrantRecord, HoldRecord
from inaproto.wire.messages.sharing import Commit, CoordinatorMessage, PeerMessage, Prepare
from inaproto.wire.messages.trees import TreeState, TreeWished

RETRY_S: Final = (0.3, 0.7)
"""Agents try again at their own times, as those of different machines do; the default is between these."""
LEASE_NS: Final = 30 * S


@contextmanager
def quiet_agents() -> Iterator[None]:
    """Agents of this process do not tell of each controller that is killed."""
    log = logging.getLogger("inaproto")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@dataclass(slots=True)
class Rounds:
    """What seats have heard of one round of a turn; times are of the monotonic clock, seconds."""

    seated_at: float = 0.0
    """The last seat was told of."""
    began_at: float | None = None
    heard: int = 0
    last_at: float = 0.0
    done: trio.Event = field(default_factory=trio.Event)


class Connections:
    """How often an agent has found a controller: an :class:`AgentSide` that hears nothing."""

    hears: tuple[type[Message], ...] = ()

    def __init__(self) -> None:
        self.count = 0

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        self.count += 1

    def disconnected(self) -> None:
        """What was found counts."""

    def heard(self, message: Message) -> None:
        """Nothing."""


class HostAgent:
    """A host daemon's part towards its controller."""

    def __init__(self, name: str, doors: Sequence[Door], swarm: Swarm) -> None:
        self.name = name
        self._swarm = swarm
        self.seats = HostSeats()
        self.turns = TurnSeats(
            name, clock=current_instant, random_bits=secrets.randbits, tell_peer=swarm.to_peer
        )
        self.connections = Connections()
        self.link = ControllerLink(
            "host",
            name,
            self,
            doors,
            retry_s=random.uniform(*RETRY_S),
            sharing=self,
            sides=(self.connections,),
        )
        self.jobs: dict[str, JobSeat] = {}

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.run)
            nursery.start_soon(self.turns.run)

    # --- grants

    def want(self, grants: Sequence[GrantRecord]) -> None:
        for job, ranks, why in self.seats.want(grants):
            for rank in ranks:
                self.left(job, rank, failure=why)
        self._swarm.granted(self, grants)

    def holds(self) -> list[HoldRecord]:
        return self.seats.holds()

    def joined(self, job: str, rank: int, key: str) -> None:
        self.seats.joined(job, rank, key)
        self.link.changed()

    def left(self, job: str, rank: int, *, failure: str) -> None:
        self.seats.left(job, rank, failure=failure)
        self.link.changed()

    # --- turns

    def connected(self, send: Callable[[Message], None]) -> None:
        self.turns.connected(send)

    def disconnected(self) -> None:
        self.turns.disconnected()

    def heard(self, message: CoordinatorMessage) -> None:
        self.turns.heard(message)
        if isinstance(message, Prepare | Commit):
            self._swarm.heard_of_turn(message)

    def sit(self, job: str, ring_id: int, hosts: int) -> None:
        seat = self.jobs[job] = self.turns(job)
        seat.begin(ring_id=ring_id, hosts=hosts, next_operation=OpIndex(0), changed=lambda: None)

    def stand_up(self, job: str) -> None:
        self.jobs.pop(job).ring_ended()


class Rings:
    """The fabric's rings: each stands where it is wished, and parks when it is to be nowhere."""

    def __init__(self, root: str) -> None:
        self._root = root
        self.states: dict[str, TreeState] = {}
        self._wishes: dict[str, TreeWished] = {}
        self.changed: Callable[[], None] = lambda: None

    def begin(self, job: str, hosts: tuple[str, ...]) -> None:
        self.states[job] = TreeState(job, hosts, 0, "standing", "shared")
        self._follow()

    def end(self, job: str) -> None:
        del self.states[job]
        self.changed()

    def wish(self, wishes: tuple[TreeWished, ...]) -> None:
        self._wishes = {one.job: one for one in wishes}
        self._follow()

    def installed(self, switch: str) -> list[str]:
        return [job for job, state in self.states.items() if state.phase == "standing" and switch]

    def _follow(self) -> None:
        for job, state in list(self.states.items()):
            wish = self._wishes.get(job)
            if wish is None:
                continue
            if wish.tree is None:
                self.states[job] = replace(state, epoch=wish.epoch, phase="parked", pool="")
            else:
                root = wish.tree.root
                pool = "shared" if root == self._root else f"shared@{root}"
                self.states[job] = replace(state, epoch=wish.epoch, phase="standing", pool=pool)
        self.changed()


class SwitchAgent:
    """A switch's part towards its controller; the root's also says where rings are."""

    def __init__(self, name: str, doors: Sequence[Door], rings: Rings, *, is_root: bool) -> None:
        self.name = name
        boot = secrets.token_hex(8)
        self._slots = LentSlots(
            name, boot, rings=lambda: rings.installed(name), clock=current_instant, lease_ns=LEASE_NS
        )
        self.connections = Connections()
        sides: list[Any] = [self._slots, self.connections]
        if is_root:
            trees = WishedTrees(rings.wish, lambda: list(rings.states.values()))
            rings.changed = trees.changed
            sides.append(trees)
        self.link = ControllerLink(
            "switch", name, TreeGrants(), doors, retry_s=random.uniform(*RETRY_S), sides=sides, boot_id=boot
        )

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.link.run)
            nursery.start_soon(self._slots.run)


@dataclass(slots=True)
class _Placing:
    hosts: int
    seen: dict[str, GrantRecord] = field(default_factory=dict)
    at: float = 0.0
    done: trio.Event = field(default_factory=trio.Event)


class Swarm:
    """``hosts`` and ``switches``: their names, as in the cluster file; ``root``: the switch among them that
    is the fabric's, if one is."""

    def __init__(
        self, hosts: Sequence[str], switches: Sequence[str], doors: Sequence[Door], *, root: str = ""
    ) -> None:
        self.rings = Rings(root)
        self.hosts = {name: HostAgent(name, doors, self) for name in hosts}
        self.switches = {
            name: SwitchAgent(name, doors, self.rings, is_root=name == root) for name in switches
        }
        self._placing: dict[str, _Placing] = {}
        self.rounds = Rounds()
        self._say, self._said = trio.open_memory_channel[PeerMessage](math.inf)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._carry)
            for agent in self._agents():
                nursery.start_soon(agent.run)

    def connections(self) -> int:
        """How often the agent that has found a controller least often has done so."""
        return min(one.connections.count for one in self._agents())

    def _agents(self) -> Iterator[HostAgent | SwitchAgent]:
        yield from self.switches.values()
        yield from self.hosts.values()

    # --- jobs that are placed

    def expect(self, job: str, hosts: int) -> None:
        self._placing[job] = _Placing(hosts)

    def forget(self, job: str) -> None:
        """It is over without having run."""
        del self._placing[job]

    async def placed(self, job: str) -> float:
        """When the last of its hosts had heard of its seat there: monotonic clock, seconds."""
        placing = self._placing[job]
        await placing.done.wait()
        return placing.at

    def granted(self, agent: HostAgent, grants: Sequence[GrantRecord]) -> None:
        for grant in grants:
            placing = self._placing.get(grant.name)
            if placing is None or agent.name in placing.seen:
                continue
            placing.seen[agent.name] = grant
            if len(placing.seen) == placing.hosts:
                placing.at = trio.current_time()
                placing.done.set()

    def start_ranks(self, job: str, token: str) -> None:
        for host, grant in self._placing[job].seen.items():
            for rank in range(grant.first_rank, grant.first_rank + grant.ranks):
                self.hosts[host].joined(job, rank, token)

    def end_ranks(self, job: str) -> None:
        for host, grant in self._placing.pop(job).seen.items():
            for rank in range(grant.first_rank, grant.first_rank + grant.ranks):
                self.hosts[host].left(job, rank, failure="")

    # --- turns

    def to_peer(self, word: PeerMessage) -> None:
        """It arrives later, as by a network: an answer is not heard within the question."""
        self._say.send_nowait(word)

    async def _carry(self) -> None:
        async for word in self._said:
            self.hosts[word.seat.host].turns.heard_of_peer(word)

    def heard_of_turn(self, message: Prepare | Commit) -> None:
        now, rounds = trio.current_time(), self.rounds
        if isinstance(message, Prepare):
            rounds.began_at = rounds.began_at or now
        elif message.decision.granted is not None:
            rounds.heard += 1
            rounds.last_at = now
            if rounds.heard == len(self.hosts):
                rounds.done.set()

    def sit_all(self, job: str, ring_id: int) -> Rounds:
        """Every host has a ring of the job that stands: the controller gives it a turn."""
        rounds = self.rounds = Rounds()
        for agent in self.hosts.values():
            agent.sit(job, ring_id, len(self.hosts))
        rounds.seated_at = trio.current_time()
        return rounds

    def stand_all_up(self, job: str) -> None:
        for agent in self.hosts.values():
            agent.stand_up(job)
