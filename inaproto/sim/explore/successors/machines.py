"""Hosts and the control plane as finite machines: what a step leads to is computed once, by the real thing.

A core is copied to be stepped (:class:`~inaproto.sim.explore.machine.Machine`). A host has memory, views of
it and callbacks, which cannot be copied: it is made anew, from what a daemon before it has left or from
nothing, and goes through the steps again that first led to where it is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

from inaproto.core.contract import fingerprint, fork
from inaproto.core.rendezvous.control_plane import ControlAction, ControlEvent, ControlPlane
from inaproto.core.rendezvous.endings import ALL_LEFT
from inaproto.core.rendezvous.events import RendezvousConfig
from inaproto.sim.explore.machine import Local
from inaproto.sim.explore.successors.config import BOOT, FAR_NS, RECOVER_NS, SuccessorsConfig
from inaproto.sim.explore.successors.host import CLOSED, Did, Event, ExploredHost, Stage
from inaproto.sim.explore.successors.remains import Kept, Remains, kept_of, read_remains
from inaproto.units import Instant

LIVE_MAX: Final = 400
"""Hosts that are kept as they are, to go on from there."""


class Facts(NamedTuple):
    """What the world sees of a host in a local state."""

    stage: Stage
    is_over: bool
    has_session: int
    is_refused: bool
    options: tuple[Event, ...]
    """What its processes may do, or its daemon of itself."""
    due: int
    until: int
    peers: dict[int, int]
    """As ``ExploredNic.peers``."""
    broken: str
    lost: str
    """Which of its ranks has ended with an error, and how."""
    returns: bool
    may_die: bool
    kept: Kept


class HostMachine:
    def __init__(self, config: SuccessorsConfig, number: int) -> None:
        self.config, self.number = config, number
        self.facts: list[Facts] = []
        self._numbers: dict[Hashable, Local] = {}
        self._lefts: dict[Remains, Local] = {}
        self._alike: dict[Hashable, Local] = {}
        self._origins: list[tuple[Local, Event, int] | Remains | None] = []
        """The step that led there first; or what a daemon has left, None for the first one."""
        self._live: OrderedDict[Local, ExploredHost] = OrderedDict()
        self._steps: dict[tuple[Local, Event, int], tuple[Local, Did]] = {}
        self._deaths: dict[tuple[Local, Event, int], tuple[tuple[Local, Did], ...]] = {}
        self.start = self._enter(ExploredHost(config, number), None)

    def __len__(self) -> int:
        return len(self.facts)

    @property
    def dying(self) -> int:
        """Steps over which its daemon has died, somewhere."""
        return sum(map(bool, self._deaths.values()))

    @property
    def lefts(self) -> int:
        """What daemons have left, if not twice the same to the byte."""
        return len(self._lefts)

    def _enter(self, host: ExploredHost, origin: tuple[Local, Event, int] | Remains | None) -> Local:
        state = host.state
        number = self._numbers.get(state)
        if number is None:
            number = self._numbers[state] = len(self.facts)
            self.facts.append(self._facts_of(host))
            self._origins.append(origin)
        if origin is None or not isinstance(origin, Remains):
            self._live[number] = host
            self._live.move_to_end(number)
            while len(self._live) > LIVE_MAX:
                self._live.popitem(last=False)
        return number

    def at(self, local: Local) -> ExploredHost:
        """The host as it is there, to be stepped once."""
        host = self._live.pop(local, None)
        if host is not None:
            return host
        steps: list[tuple[Event, int]] = []
        origin = self._origins[local]
        while isinstance(origin, tuple) and not isinstance(origin, Remains):
            before, event, now = origin
            steps.append((event, now))
            origin = self._origins[before]
        host = ExploredHost(self.config, self.number, origin)
        for event, now in reversed(steps):
            host.handle(event, now)
        return host

    def step(self, local: Local, event: Event, now: int) -> tuple[Local, Did]:
        key = local, event, now
        known = self._steps.get(key)
        if known is None:
            host = self.at(local)
            if self.config.crashes:
                host.watched()
            did = host.handle(event, now)
            deaths, host.deaths = host.deaths, None
            known = self._steps[key] = self._enter(host, key), did
            found = {(self.left(death.remains), death.did): None for death in deaths or ()}
            self._deaths[key] = tuple(found)
        return known

    def deaths(self, local: Local, event: Event, now: int) -> tuple[tuple[Local, Did], ...]:
        """What may be left if its daemon dies over that step."""
        self.step(local, event, now)
        return self._deaths[local, event, now]

    def left(self, remains: Remains) -> Local:
        """Where nothing but that is left. Each is checked; reduced, one stands for all that read alike."""
        number = self._lefts.get(remains)
        if number is not None:
            return number
        past, broken = read_remains(self.config, self.number, remains)
        host = ExploredHost(self.config, self.number, remains)
        if not host.is_over:
            host.broken = broken
        alike = fingerprint(past), remains._replace(arena=None), host.broken
        if not self.config.reduced or alike not in self._alike:
            self._alike[alike] = self._enter(host, remains)
        number = self._lefts[remains] = self._alike[alike]
        return number

    def for_good(self, local: Local) -> Local:
        """The same as ``left`` led to, and no other daemon will come."""
        remains = self._origins[local]
        return self.left(remains._replace(returns=False)) if isinstance(remains, Remains) else local

    def _facts_of(self, host: ExploredHost) -> Facts:
        remains = host.remains
        if host.stage is Stage.UP:
            kept = Kept(host.core.progress)
        elif remains is None or host.broken:
            kept = Kept(0)
        else:
            kept = kept_of(self.config, read_remains(self.config, self.number, remains)[0])
        return Facts(
            stage=host.stage,
            is_over=host.is_over,
            has_session=host.session,
            is_refused=host.is_refused,
            options=() if host.is_over else tuple(self._options(host)),
            due=FAR_NS if host.is_over else host.due,
            until=FAR_NS if host.is_over else host.until,
            peers={} if host.is_over or host.stage is Stage.DOWN else host.nic.peers,
            broken=host.broken,
            lost=next(
                (
                    f"rank {rank} ends with {process.ended}"
                    for rank, process in zip(host.numbers, host.processes, strict=True)
                    if process.ended not in ("", CLOSED)
                ),
                "",
            ),
            returns=remains is None or remains.returns,
            may_die=host.stage is not Stage.DOWN and not host.is_over,
            kept=kept,
        )

    def _options(self, host: ExploredHost) -> list[Event]:
        found: list[Event] = []
        if host.stage is Stage.DOWN:
            remains = host.remains
            return [("starts",)] if remains is not None and remains.returns else []
        if not host.session:
            found.append(("connects",))
        all_done = len(self.config.operations)
        for at, process in enumerate(host.processes):
            if process.ended or not process.is_in:
                continue
            is_here = host.stage is Stage.UP and (
                host.life == 0 or at in host._back or host.remains is None or host.remains.arena is None
            )
            if not is_here:
                if at not in host._back:
                    found.append(("rejoins", at))
                continue
            if process.has_left or host.core.has_ended:
                continue
            ahead = process.called - process.done
            if process.called < all_done and ahead <= self.config.ahead:
                found.append(("calls", at))
            elif process.done == all_done:
                found.append(("leaves", at))
        return found


class ControlMachine:
    """The control plane of a switch that is alone."""

    _LEFT_OUT: Final = frozenset(
        {"handlers", "config", "_config", "counters", "_kept", "links", "now", "ended"}
    )

    def __init__(self) -> None:
        self.cores: list[ControlPlane] = []
        self.dues: list[int] = []
        """When something happens by the clock, by local state."""
        self._numbers: dict[Hashable, Local] = {}
        self._steps: dict[tuple[Local, Hashable, int], tuple[Local, tuple[ControlAction, ...]]] = {}
        self.start = self._enter(ControlPlane(RendezvousConfig(boot_id=BOOT, recover_ns=RECOVER_NS)))

    def __len__(self) -> int:
        return len(self.cores)

    def _enter(self, core: ControlPlane) -> Local:
        state = core._rendezvous._state
        ended = tuple((name, why == ALL_LEFT) for name, why in state.ended.items())  # else only words
        seen = fingerprint((state, core._switches, core._tree_states), self._LEFT_OUT), ended
        number = self._numbers.get(seen)
        if number is None:
            number = self._numbers[seen] = len(self.cores)
            self.cores.append(core)
            self.dues.append(FAR_NS if core.deadline is None else core.deadline)
        return number

    def step(self, local: Local, event: ControlEvent, now: int) -> tuple[Local, tuple[ControlAction, ...]]:
        key = local, event, now
        known = self._steps.get(key)
        if known is None:
            core = fork(self.cores[local], {"handlers"})
            core._rendezvous.handlers = core._rendezvous._table()
            actions = tuple(core.step(event, Instant(now)))
            known = self._steps[key] = self._enter(core), actions
        return known
