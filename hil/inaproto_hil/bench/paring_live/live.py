"""Jobs that come and go on daemons: what was planned for each, and what its links then carried.

One job after the other calls all-reduces, while those that came before it are still there; each result is
compared, byte for byte, with what the plan of its tree gives.
"""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Final

import numpy as np
import trio

import inaproto
from inaproto.core.plan.reduction_plan import ReductionPlan
from inaproto.errors import InvariantBroken
from inaproto.wire.ina_header import Dtype, Op
from inaproto.wire.messages.trees import FabricTree
from inaproto_hil.bench.paring_live.drawn import Arrival
from inaproto_hil.bench.paring_live.replay import Turnover
from inaproto_hil.rigs.irregular_network import RunningNetwork

ELEMENTS: Final = 1000
COUNTED: Final = 3
"""All-reduces of which the bytes are counted."""
EACH_BYTES: Final = COUNTED * ELEMENTS * Dtype.F32.itemsize
WAIT_S: Final = 20.0
PATIENCE_S: Final = 600.0
"""Until the ring is on its tree, and again until all that are counted were summed there: a job may have to
wait for its turn meanwhile."""

Carried = dict[tuple[str, str], int]
"""Bytes towards the root, by link."""


@dataclass
class Played:
    """What became of one job."""

    name: str
    hosts: tuple[str, ...]
    planned: dict[str, Any]
    """Document of its tree by the plan that chose the hosts; without a root there was none."""
    measured: Carried | None = None
    """None: it has no tree of the planner's, or its ring was not brought there."""
    strays: int = 0
    """Bytes on links that are none of its tree's, in either direction."""
    ring_differs: bool = False
    """Its ring got another tree than was planned with its hosts."""
    wrong: int = 0
    """All-reduces whose result was not that of the plan."""
    why: str = ""
    """Why it was not measured."""

    @property
    def has_tree(self) -> bool:
        return "root" in self.planned

    @property
    def rate(self) -> Fraction | None:
        return Fraction(self.planned["rate_gbit_s"]) if self.has_tree else None

    @property
    def expected(self) -> Carried:
        return {
            (one["from"], one["to"]): one["per_byte"] * EACH_BYTES for one in self.planned.get("carried", ())
        }

    @property
    def is_as_planned(self) -> bool:
        """On every link, byte for byte."""
        return self.measured == self.expected and not (self.strays or self.ring_differs or self.wrong)

    def document(self) -> dict[str, Any]:
        measured = self.measured or {}
        links = [
            {"from": link[0], "to": link[1], "planned_bytes": nbytes, "measured_bytes": measured.get(link)}
            for link, nbytes in self.expected.items()
        ]
        return {
            "name": self.name,
            "hosts": list(self.hosts),
            "root": self.planned.get("root"),
            "rate_gbit_s": self.planned.get("rate_gbit_s"),
            "reason": self.planned["reason"],
            "links": links,
            "is_as_planned": self.is_as_planned if self.has_tree else None,
            "stray_bytes": self.strays,
            "ring_differs": self.ring_differs,
            "wrong": self.wrong,
            "why_not_measured": self.why,
        }


@dataclass
class Campaign:
    jobs: list[Played] = field(default_factory=list)
    looks: int = 0
    """Looks at what all trees take of each switch."""
    over: list[str] = field(default_factory=list)
    """Switches of which more was taken than they have, at which look."""
    waited: int = 0
    """Jobs that had to wait for hosts."""


class _Job:
    """A job with ranks at all its hosts."""

    def __init__(self, played: Played, comms: Sequence[inaproto.Communicator]) -> None:
        self.played, self._comms = played, comms
        self._draws = np.random.default_rng(len(played.name))

    @classmethod
    async def connected(cls, on: RunningNetwork, played: Played, token: str) -> _Job:
        found: dict[int, inaproto.Communicator] = {}

        async def one(rank: int, host: str) -> None:
            found[rank] = await inaproto.connect(
                played.name, rank, size=len(played.hosts), key=token, socket=on.socket(host), path="shared"
            )

        async with trio.open_nursery() as nursery:
            for rank, host in enumerate(played.hosts):
                nursery.start_soon(one, rank, host)
        return cls(played, [found[rank] for rank in range(len(played.hosts))])

    async def step(self, plan: ReductionPlan | None) -> str:
        """One all-reduce, by that plan if there is one; the path that it took."""
        arrays = [self._draws.standard_normal(ELEMENTS).astype(np.float32) for _ in self._comms]
        results: dict[int, bytes] = {}

        async def one(rank: int) -> None:
            results[rank] = (await self._comms[rank].all_reduce(arrays[rank])).tobytes()

        async with trio.open_nursery() as nursery:
            for rank in range(len(self._comms)):
                nursery.start_soon(one, rank)
        is_right = len(set(results.values())) == 1
        if plan is not None and is_right:
            inputs = [array.view(np.uint8) for array in arrays]
            is_right = results[0] == plan.reduce(inputs, Dtype.F32, Op.SUM).tobytes()
        self.played.wrong += not is_right
        return self._comms[0].statistics().recent[-1].path

    async def close(self) -> None:
        for comm in self._comms:
            await comm.aclose()


async def play(
    on: RunningNetwork, arrivals: Sequence[Arrival], *, tell: Callable[[Played], None] = lambda job: None
) -> Campaign:
    """All of them, one after the other. ``tell`` hears of each that has been measured."""
    await _all_up(on)
    campaign, turnover = Campaign(), Turnover(arrivals)
    running: dict[str, _Job] = {}
    waiting: deque[tuple[Arrival, str]] = deque()
    for leaving, coming in turnover.steps():
        for name in leaving:
            job = running.pop(name)
            await job.step(None)
            await job.close()
            await _until(on, name, lambda told: told["state"] == "ended")
        if coming is not None:
            waiting.append((coming, await _submitted(on, coming)))
            campaign.waited += len(waiting) > 1 or not _fits(on, running, coming)
        while waiting and _fits(on, running, waiting[0][0]):
            arrival, token = waiting.popleft()
            told = await _until(on, arrival.name, lambda told: bool(told["hosts"]))
            turnover.placed(arrival)
            played = Played(arrival.name, tuple(told["hosts"]), told["planned"])
            job = running[arrival.name] = await _Job.connected(on, played, token)
            await _measure(on, job)
            await _check_capacities(on, campaign)
            campaign.jobs.append(played)
            tell(played)
    return campaign


def _fits(on: RunningNetwork, running: Mapping[str, _Job], arrival: Arrival) -> bool:
    taken = sum(len(job.played.hosts) for job in running.values())
    return taken + arrival.hosts <= len(on.network.hosts)


async def _all_up(on: RunningNetwork) -> None:
    names = {*on.network.hosts, *on.network.capacities}
    while True:
        agents = (await on.status())["agents"]
        if all(agents.get(name, {}).get("presence") == "up" for name in names):
            return


async def _submitted(on: RunningNetwork, arrival: Arrival) -> str:
    submission = secrets.token_hex(16)
    ask = partial(on.client.submit, arrival.name, arrival.hosts, submission=submission)
    token: str = (await trio.to_thread.run_sync(ask))["token"]
    return token


async def _until(on: RunningNetwork, name: str, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    told: dict[str, Any] = await trio.to_thread.run_sync(on.client.job, name)
    while not is_so(told):
        ask = partial(on.client.job, name, after=told["revision"], wait_s=WAIT_S)
        told = await trio.to_thread.run_sync(ask)
    return told


async def _measure(on: RunningNetwork, job: _Job) -> None:
    played = job.played
    if not played.has_tree:
        played.why = played.planned["reason"]
        await job.step(None)
        return
    tree = FabricTree(
        played.planned["root"],
        tuple((lower, upper) for lower, upper in played.planned["above"]),
        tuple(played.planned["passing"]),
    )
    on.seen.begin_anew()
    told: dict[str, Any] = {}
    until = trio.current_time() + PATIENCE_S
    while told.get("ring") != "standing" or not told.get("epoch"):
        if trio.current_time() > until:
            played.why = f"its ring is not on a tree of the planner's: {told}"
            return
        await job.step(None)
        told = await on.told(played.name)
    played.ring_differs = told["planned"] != played.planned
    plan = on.plan_of(tree, played.hosts)
    until = trio.current_time() + PATIENCE_S
    paths: list[str] = []
    while paths != ["switch"] * COUNTED:
        if trio.current_time() > until:
            played.why = f"it was not summed in the switches: {paths}"
            return
        on.seen.forget()
        paths = [await job.step(plan) for _ in range(COUNTED)]
    carried = Counter({(lower, upper): nbytes for (upper, lower), nbytes in on.seen.nbytes.items()})
    up = played.expected.keys()
    played.measured = {link: carried[link] for link in up}
    played.strays = sum(
        nbytes for (lower, upper), nbytes in carried.items() if not up & {(lower, upper), (upper, lower)}
    )


async def _check_capacities(on: RunningNetwork, campaign: Campaign) -> None:
    """By what the controller says of all rings."""
    held: dict[str, Fraction] = {}
    for told in (await on.status())["trees"]["jobs"].values():
        planned = told["planned"]
        for name, load in planned.get("loads", {}).items():
            held[name] = held.get(name, Fraction(0)) + Fraction(planned["rate_gbit_s"]) * load
    campaign.looks += 1
    for name, rate in held.items():
        if name not in on.network.capacities:
            raise InvariantBroken(f"{name} adds up, and has no capacity")
        if rate > Fraction(on.network.capacities[name]):
            campaign.over.append(f"{name}, look {campaign.looks}: {rate} of {on.network.capacities[name]}")
