"""Switches that lend slots and the root of a fabric, at a controller's agents' socket.

Links, ledgers and what is said of trees are those of switch daemons. What becomes of rings is scripted:
a ring parks, and stands where it is wished, when the test lets it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from inaproto.daemon.net.control_address import UnixDoor
from inaproto.daemon.net.controller_link import ControllerLink
from inaproto.daemon.net.names import AGENTS_SOCKET
from inaproto.daemon.net.unix_sockets import UNIX
from inaproto.daemon.shell import current_instant
from inaproto.daemon.switch.lent_slots import LentSlots
from inaproto.daemon.switch.tree_grants import TreeGrants
from inaproto.daemon.switch.wished_trees import WishedTrees
from inaproto.units import S
from inaproto.wire.messages.trees import TreeState, TreeWished

ROOT: Final = "spine0"
HOSTS: Final = ("h0", "h1", "h2", "h3")
CLUSTER: Final[dict[str, Any]] = {
    "hosts": list(HOSTS),
    "switches": [{"name": name, "jobs": 1} for name in ("spine0", "spine1", "leaf0", "leaf1")],
    "links": [
        *({"between": [host, f"leaf{number // 2}"]} for number, host in enumerate(HOSTS)),
        *({"between": [f"leaf{rack}", f"spine{spine}"]} for rack in range(2) for spine in range(2)),
    ],
}
SWITCHES: Final = tuple(one["name"] for one in CLUSTER["switches"])


class Rings:
    """The fabric's: ``states`` by job. A wish is followed at once, unless ``holds`` names the job."""

    def __init__(self) -> None:
        self.states: dict[str, TreeState] = {}
        self.wishes: dict[str, TreeWished] = {}
        self.holds: set[str] = set()
        self.refuses: set[str] = set()
        """Roots where no ring can be."""
        self.moves: list[tuple[str, str]] = []
        """Job and pool, of each ring that came to stand somewhere."""
        self.changed: Callable[[], None] = lambda: None

    def begins(self, job: str, hosts: tuple[str, ...] = HOSTS) -> None:
        self.states[job] = TreeState(job, hosts, 0, "standing", "shared")
        self._follow()

    def ends(self, job: str) -> None:
        del self.states[job]
        self.changed()

    def wish(self, wishes: tuple[TreeWished, ...]) -> None:
        self.wishes = {one.job: one for one in wishes}
        self._follow()

    def let_go(self, job: str) -> None:
        self.holds.discard(job)
        self._follow()

    def installed(self, switch: str) -> list[str]:
        return [
            job
            for job, state in self.states.items()
            if state.phase == "standing" and switch in ("leaf0", "leaf1", root_of(state.pool))
        ]

    def _follow(self) -> None:
        for job, state in list(self.states.items()):
            wish = self.wishes.get(job)
            if wish is None or job in self.holds:
                if wish is not None and state.epoch != wish.epoch:
                    self.states[job] = replace(state, phase="parking")
                continue
            if wish.tree is None:
                self.states[job] = TreeState(job, state.hosts, wish.epoch, "parked")
            elif wish.tree.root in self.refuses:
                self.states[job] = TreeState(job, state.hosts, wish.epoch, "refused", "", "no way")
            else:
                root = wish.tree.root
                pool = "shared" if root == ROOT else f"shared@{root}"
                if pool != state.pool:
                    self.moves.append((job, pool))
                self.states[job] = TreeState(job, state.hosts, wish.epoch, "standing", pool)
        self.changed()


def root_of(pool: str) -> str:
    return pool.partition("@")[2] or ROOT


class SwitchAgent:
    def __init__(self, name: str, boot: str, directory: Path, rings: Rings, lease_ns: int) -> None:
        self.slots = LentSlots(
            name, boot, rings=lambda: rings.installed(name), clock=current_instant, lease_ns=lease_ns
        )
        sides: list[Any] = [self.slots]
        if name == ROOT:
            trees = WishedTrees(rings.wish, lambda: list(rings.states.values()))
            rings.changed = trees.changed
            sides.append(trees)
        door = UnixDoor(directory / AGENTS_SOCKET, UNIX)
        self.link = ControllerLink(
            "switch", name, TreeGrants(), [door], retry_s=0.01, sides=sides, boot_id=boot
        )
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.link.run)
                nursery.start_soon(self.slots.run)

    def kill(self) -> None:
        self._scope.cancel()

    @property
    def held(self) -> dict[str, int]:
        """Epoch by job."""
        return {one["job"]: one["epoch"] for one in self.slots.status()["held"]}


class Fabric:
    def __init__(self, directory: Path, nursery: trio.Nursery, lease_ns: int) -> None:
        self.rings = Rings()
        self.agents: dict[str, SwitchAgent] = {}
        self._directory, self._nursery, self._lease_ns = directory, nursery, lease_ns
        self._boots = 0

    def start(self, name: str) -> None:
        self._boots += 1
        agent = SwitchAgent(name, f"boot{self._boots}", self._directory, self.rings, self._lease_ns)
        self.agents[name] = agent
        self._nursery.start_soon(agent.run)

    def held(self, job: str) -> dict[str, int]:
        """Epoch of the job's lease, by switch."""
        return {name: agent.held[job] for name, agent in self.agents.items() if job in agent.held}

    def pool(self, job: str) -> str:
        return self.rings.states[job].pool


@asynccontextmanager
async def fabric(directory: Path, *, lease_s: int = 30) -> AsyncIterator[Fabric]:
    async with trio.open_nursery() as nursery:
        its = Fabric(directory, nursery, lease_s * S)
        for name in SWITCHES:
            its.start(name)
        yield its
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110  what is waited for is in other tasks and processes
        await trio.sleep(0.005)
