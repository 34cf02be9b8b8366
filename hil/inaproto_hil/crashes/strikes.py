"""Who is killed, and that it comes to pass at the moment that was drawn; what agents hear goes by here."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio

from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentWelcome, AgentWishes
from inaproto.wire.messages.sharing import (
    Commit,
    Done,
    Drained,
    Prepare,
    Vote,
)
from inaproto_hil.crashes.cluster import DECOY, CrashCluster
from inaproto_hil.crashes.leader import Leader
from inaproto_hil.crashes.moments import NOT_SEEN, Aim, Gun, Moment
from inaproto_hil.crashes.relay import AgentRelay
from inaproto_hil.crashes.witness import Witness

UNSEEN_S: Final = 4.0
UNSEEN_STARTS: Final = 2.0
"""A moment aimed at what does not happen for so long, and so many starts of a controller, is any moment."""
POLL_S: Final = 0.0005
_AIM_OF: Final[dict[type[Message], Aim]] = {
    Prepare: Aim.PREPARE,
    Commit: Aim.COMMIT,
    AgentWishes: Aim.WISHES,
    Vote: Aim.VOTE,
    Done: Aim.DONE,
    Drained: Aim.DRAINED,
}


class Strikes:
    """A :class:`inaproto_hil.crashes.relay.Watch`. ``kill`` one; :meth:`CrashCluster.start_again` is next."""

    def __init__(self, cluster: CrashCluster, witness: Witness) -> None:
        self._cluster, self._witness = cluster, witness
        self.relays = [
            AgentRelay(name, cluster.relay_path(name), cluster.agents_path(name), self)
            for name in cluster.controllers
        ]
        self.counts: Counter[str] = Counter()
        """Counts of kills, by what they were aimed at, and whether that was seen."""
        self._gun = Gun(lambda: None)
        self._aimed_at = ""
        """The controller of which something is to be seen."""
        self._killed_at = trio.current_time()
        self._token = trio.lowlevel.current_trio_token()
        self._leader = Leader(cluster.controllers)

    # --- as a watch

    def told(self, controller: str, agent: str, message: Message) -> bool:
        if isinstance(message, AgentWelcome):
            self._leader.welcomed(controller, agent)
        moment = self._gun.moment
        if self._saw(controller, message) and moment is not None and moment.is_lost:
            return False
        self._witness.told(agent, self._cluster.life(controller), message, trio.current_time())
        return True

    def passed(self, controller: str, agent: str) -> None:
        self._gun.shoot_if_due()

    def heard(self, controller: str, agent: str, message: Message) -> None:
        self._witness.heard(agent, message)
        if self._saw(controller, message):
            self._gun.shoot_if_due()

    def disconnected(self, controller: str, agent: str) -> None:
        if self._leader.disconnected(controller, agent):
            self._witness.disconnected(agent, trio.current_time())

    def _saw(self, controller: str, message: Message) -> bool:
        aim = _AIM_OF.get(type(message))
        return aim is not None and controller == self._aimed_at and self._gun.saw(aim)

    def answered(self) -> None:
        """A client has an answer; in any thread."""
        if self._gun.saw(Aim.ANSWER):
            self._gun.shoot_if_due()

    # --- kills

    async def until_led(self) -> None:
        """An agent has found a controller since the last kill."""
        await self._leader.wait_found()

    async def kill(self, moment: Moment, *, decoy: bool) -> str:
        """When its moment has come; returns whom. ``decoy``: nobody's controller instead, all else alike."""
        leader = self._aimed_at = self._leader.name
        name = DECOY if decoy else leader
        moment = replace(moment, is_lost=moment.is_lost and not decoy)
        fire = partial(self._fire, name, self._cluster.life(name))
        if moment.aim is Aim.ANY:
            is_seen = True
            await trio.sleep_until(self._killed_at + moment.delay_s(self._cluster.start_s))
        else:
            await self.until_led()
            is_seen = moment.aim is Aim.AT_WORK or await self._see(moment, fire)
            await trio.sleep(moment.delay_s(self._cluster.start_s))
        fire()
        self._gun = Gun(lambda: None)
        self._killed_at = trio.current_time()
        self.counts[f"{moment.aim}{'' if is_seen else NOT_SEEN}"] += 1
        if not decoy:
            self._leader.killed(name)
        return name

    async def _see(self, moment: Moment, fire: Callable[[], None]) -> bool:
        """What it is aimed at; without a delay that has been its end."""
        seen = trio.Event()
        gun = self._gun = Gun(fire, on_seen=partial(self._in_trio, seen.set))
        gun.aim(moment)
        wait_s = UNSEEN_S + UNSEEN_STARTS * self._cluster.start_s
        with trio.move_on_after(wait_s):
            if moment.aim is Aim.DISK:
                log = self._cluster.store_path(self._aimed_at)
                await trio.to_thread.run_sync(_watch_file, log, gun, wait_s, abandon_on_cancel=True)
            await seen.wait()
        return gun.is_seen

    def _fire(self, name: str, life: int) -> None:
        """In any thread; what is on its way to and from it is lost."""
        if self._cluster.kill(name, life) and name != DECOY:
            self._in_trio(partial(self._cut, name))

    def _cut(self, name: str) -> None:
        for relay in self.relays:
            if relay.controller == name:
                relay.cut()

    def _in_trio(self, call: Callable[[], None]) -> None:
        if trio.lowlevel.in_trio_run():
            call()
        else:
            self._token.run_sync_soon(call)


def _watch_file(store: Path, gun: Gun, wait_s: float) -> None:
    """In a thread, until the store has been written so often, or for as long as anybody waits."""
    log = store.with_name(store.name + "-wal")
    pause, until, before = threading.Event(), time.monotonic() + wait_s, _written(log)
    while not gun.is_seen and time.monotonic() < until:
        pause.wait(POLL_S)
        now = _written(log)
        if now != before and gun.saw(Aim.DISK):
            gun.shoot_if_due()
        before = now


def _written(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
