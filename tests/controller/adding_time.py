"""Adders that take time, in the world of frames: its switches add as fast as their capacities allow.

The deterministic world (``inaproto.sim.frames.world``) hands a frame to a switch when it arrives, and adding
takes no time. Here what comes to a switch from below waits in one line, whichever link it came by, and leaves
it for the accelerator when it has been served: tensor bytes for as long as the switch's capacity needs for
them, all else at once, in its place in the line. What comes from above, results, does not wait. A host's
own frames are held to its rate first. So the frames that a tree's switches really exchange, by the protocol
and its window, show at what rate the tree goes (PARING section III).

Times are integers, nanoseconds for each byte: whoever asks for rates that are none scales them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import lcm
from typing import Final

import pytest

from inaproto.core.host.engines import in_network
from inaproto.core.host.message_window import WindowConfig
from inaproto.core.rdma.verbs import QpAttributes
from inaproto.core.switch.message_packets import DATA_OPCODES
from inaproto.errors import InvariantBroken, LocalMisuse, Unsupported
from inaproto.sim.frames.checkers import all_checkers
from inaproto.sim.frames.draw.swarm import JobConfig, WorldConfig
from inaproto.sim.frames.world import World
from inaproto.units import Frames
from inaproto.wire.ina_header import INA_HEADER_BYTES, Dtype
from inaproto.wire.roce import Opcode
from inaproto.wire.vector import RoceRun, decode_runs
from inaproto_controller.planning.paring.model import (
    Accounting,
    PlacedTree,
    ProgrammableNetwork,
    Task,
    measure,
)
from inaproto_controller.simulate.paring_execution import FAST, MTU, Unfolded, adder_at
from inaproto_controller.simulate.timed.tree_rate import SteadyRate, period_of

OPENING = (Opcode.RC_WRITE_FIRST, Opcode.RC_WRITE_ONLY, Opcode.RC_WRITE_ONLY_IMM)


def tensor_bytes(frames: Frames) -> int:
    """Bytes of gradients, sums or results."""
    found = 0
    for run in decode_runs(frames):
        if isinstance(run, RoceRun) and run.opcode in DATA_OPCODES:
            header = INA_HEADER_BYTES if run.opcode in OPENING else 0
            found += len(run.frames) * (run.payload_bytes - header)
    return found


@dataclass(slots=True)
class Line:
    """Served in order of arrival."""

    world: World
    ns_per_byte: int
    free_at: int = 0

    def before(self, deliver: Callable[[list[Frames]], None]) -> Callable[[list[Frames]], None]:
        def arrive(blocks: list[Frames]) -> None:
            nbytes = sum(tensor_bytes(block) for block in blocks)
            now = int(self.world.agenda.now)
            self.free_at = max(self.free_at, now) + nbytes * self.ns_per_byte
            self.world.agenda.at(self.free_at, deliver, blocks)

        return arrive


@dataclass(slots=True)
class Watch:
    """When the results of each message begin to leave for a host."""

    world: World
    began: list[int] = field(default_factory=list)

    def see(self, link: str, frame: Frames) -> None:
        for run in decode_runs(frame):
            if isinstance(run, RoceRun) and run.opcode in OPENING and run.opcode in DATA_OPCODES:
                self.began.append(int(self.world.agenda.now))


def slow_down(world: World, adders: Mapping[str, int], host_ns_per_byte: int) -> None:
    """``adders``: nanoseconds for each byte, by name of the switches that add; before the world has run."""
    lines = {name: Line(world, pace) for name, pace in adders.items()}
    above = {switch.name: switch.trunk.above.name for switch in world.switches if switch.trunk is not None}
    for link in world.links:
        sender, _, receiver = link.name.partition(">")
        if receiver in lines and above.get(receiver) != sender:
            link.put_before_delivery(lines[receiver].before)
        if sender not in above and sender not in adders and receiver in above.keys() | adders.keys():
            link.put_before_delivery(Line(world, host_ns_per_byte).before)


def steady_gaps(began: Sequence[int], message_bytes: int, scale: int) -> SteadyRate:
    """The rate of a run whose messages began to come back then. ``scale``: nanoseconds for each byte, times
    Gbit/s. Raises ``Unsupported`` where it has not become steady."""
    if len(began) < 2:
        raise InvariantBroken("no results came back")
    gaps = [after - before for before, after in pairwise(began)]
    period = period_of(gaps[len(gaps) // 2 :])
    if not period:
        raise Unsupported(
            "a steady rate", f"{len(began)} messages of a tree: the times between them do not repeat"
        )
    took = began[-1] - began[-1 - period]
    return SteadyRate(Fraction(period * message_bytes * scale, took), period, len(began))


MESSAGE_PACKETS: Final = 1
WINDOW: Final = 16
ROUNDS: Final = (96, 192, 384, 768)
"""Messages of a run whose rate is measured; more, if it has not become steady."""


def carry_in_time(network: ProgrammableNetwork, task: Task, tree: PlacedTree) -> SteadyRate:
    """The rate at which frames go along the tree that is installed: in the world of frames, where switches
    take the time that their capacities need for adding. Links are far faster than any of them.

    Raises ``LocalMisuse`` for the accounting ``PAPER``, whose free input no real adder has, and
    ``Unsupported`` where the rate does not become steady.
    """
    if task.accounting is Accounting.PAPER:
        raise LocalMisuse("an input that takes no time is none of a real switch")
    measure(network, task, tree)
    unfolded = Unfolded.of(network, tree)
    adder = partial(adder_at, network, task, tree)
    capacities = {place.name: adder(place.node).capacity for place in unfolded.places if place.adds}
    known = [task.rate_cap, *(capacity for capacity in capacities.values() if capacity is not None)]
    scale = 8 * lcm(*(capacity.numerator for capacity in known))
    paces = {name: 0 if one is None else int(scale / one) for name, one in capacities.items()}
    for rounds in ROUNDS[:-1]:
        with suppress(Unsupported):
            return _timed(unfolded, paces, int(scale / task.rate_cap), scale, rounds)
    return _timed(unfolded, paces, int(scale / task.rate_cap), scale, ROUNDS[-1])


def _window_of_the_paper(window: int, id_bits: int, _: int) -> WindowConfig:
    """The model bounds messages in flight alone: it has no acknowledgements, so none are waited for."""
    return WindowConfig(window, id_bits, unacknowledged_messages=2 * window)


_FITTING: Final = QpAttributes.for_messages


def _for_all_slots(attributes: QpAttributes, messages: int, nbytes: int) -> QpAttributes:
    return _FITTING(attributes, 2 * messages, nbytes)


def _timed(unfolded: Unfolded, paces: Mapping[str, int], pace: int, scale: int, rounds: int) -> SteadyRate:
    """``paces``, ``pace``: nanoseconds for each byte, of adders and of hosts."""
    message_bytes = MESSAGE_PACKETS * MTU - INA_HEADER_BYTES
    ranks = len(unfolded.workers)
    job = JobConfig(
        "job",
        tuple(range(ranks)),
        (rounds * message_bytes // Dtype.F32.itemsize,),
        mtu=MTU,
        message_packets=MESSAGE_PACKETS,
        window_messages=WINDOW,
        transport_timeout=24,
    )
    config = WorldConfig("rate", (job,), (FAST,) * ranks, topology=unfolded.fabric(), to_root=True)
    # What waits in a line is delivered and not taken: the ledger would miss it.
    world = World(config, checkers=[one for one in all_checkers() if one.name != "ledger"])
    slow_down(world, paces, pace)
    watch = Watch(world)
    world.downlinks[0].tap = watch.see
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(in_network, "WindowConfig", _window_of_the_paper)
        patch.setattr(QpAttributes, "for_messages", _for_all_slots)
        result = world.run()
    if result.violation is not None:
        raise InvariantBroken(f"a planned tree broke a rule of the world: {result.violation}")
    return steady_gaps(watch.began[:-WINDOW], message_bytes, scale)  # nothing follows the last ones
