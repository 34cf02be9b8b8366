"""``inaproto bench decision``: what a host pays to decide for one operation whether the network sums it.

MINA section IV-B decides on each host, with no round trip; the short paper measures 33.1 us to switch an
operation between SHARP and none, the paper 43.8 us for launching it late. Timed here are the core's part of
that, both calls that an operation makes to its seat, when it starts and when it has drained; the seat as a
host daemon has it, with all that it notes of an operation for the controller; the paper's own decision, its
score rule evaluated on the host; and the call that keeps the communication pattern.

A round times a batch of operations of each row, one row after the other; a row is the median over rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from inaproto.core.host.engines.two_paths import Binding
from inaproto.core.host.operations import INA
from inaproto.core.sharing.communication_pattern import (
    PatternConfig,
    PatternWatch,
    Submitted,
    WaitBegan,
    WaitEnded,
)
from inaproto.core.sharing.events import (
    FromCoordinator,
    OperationEnded,
    OperationStarting,
    ParticipantConfig,
    Path,
    StartOperation,
)
from inaproto.core.sharing.participant import SharingParticipant
from inaproto.daemon.host.turn_seats import TurnSeats
from inaproto.errors import InvariantBroken
from inaproto.option_types import ReportFile, write_report
from inaproto.units import Epoch, Instant, JobId, OpIndex, S
from inaproto.wire.messages.sharing import Commit, Decision, Prepare, Rule, Seat, Turn, Version
from inaproto_controller.cluster.model import EVALUATED, SHARING, measured
from inaproto_controller.cluster.step_times import StepTimes
from inaproto_controller.planning.turns.policy import NextOperation, may_use
from inaproto_hil.rigs import environment

GOAL_US: Final = 50.0
"""Goal for a decision, at most."""
PAPER_US: Final = {"switch between INA and none (short paper)": 33.1, "late launch (section V-D)": 43.8}
_SEAT: Final = Seat(JobId("bench"), "h0")


@dataclass(frozen=True, slots=True)
class Config:
    operations: int
    """In a batch."""
    rounds: int
    warmup: int


Batch = Callable[[int], None]
"""So many operations, one after the other."""


def _seat(*, turn: bool = False, voted: bool = False) -> Batch:
    """``voted``: a round is under way, and nothing but the coordinator's word is missing."""
    core = SharingParticipant(ParticipantConfig(_SEAT))
    if turn:
        granted = Turn(_SEAT.job, Epoch(1), OpIndex(0), None)
        commit = Commit(_SEAT, 1, Version(1, 1), Decision(granted=granted))
        core.step(FromCoordinator(commit), Instant(0))
    if voted:
        prepare = Prepare(
            seat=_SEAT,
            term=1,
            version=Version(1, 2),
            rule=Rule.BY_INDEX,
            granted=_SEAT.job,
            ended=None,
            over_below=Epoch(0),
            margin=1 << 40,
            lease_ns=3600 * S,
            peers=(),
        )
        core.step(FromCoordinator(prepare), Instant(0))
    started = core.step(OperationStarting(OpIndex(0)), Instant(1))
    path = Path.INA if turn else Path.FALLBACK
    if [one.path for one in started if isinstance(one, StartOperation)] != [path]:
        raise InvariantBroken(f"the first operation is to run on {path}: {started}")
    core.step(OperationEnded(OpIndex(0)), Instant(1))
    next_index = 1

    def run(count: int) -> None:
        nonlocal next_index
        for index in range(next_index, next_index + count):
            number = OpIndex(index)
            core.step(OperationStarting(number), Instant(1))
            core.step(OperationEnded(number), Instant(1))
        next_index += count

    return run


def _daemon_seat() -> Batch:
    """All calls of an operation that a host daemon's ring makes to the job's seat; a turn stands."""

    def clock() -> Instant:
        return Instant(time.monotonic_ns())

    seats = TurnSeats("h0", clock=clock, random_bits=lambda bits: 1)
    seat = seats("bench")
    seat.begin(ring_id=1, hosts=2, next_operation=OpIndex(0), changed=lambda: None)
    granted = Turn(_SEAT.job, Epoch(1), OpIndex(0), None)
    seat.ordered(Commit(Seat(_SEAT.job, "h0", 1), 1, Version(1, 1), Decision(granted=granted)))
    next_index = 0

    def run(count: int) -> None:
        nonlocal next_index
        for index in range(next_index, next_index + count):
            number = OpIndex(index)
            binding = seat.bind(number, clock())
            if not isinstance(binding, Binding) or binding.path != INA:
                raise InvariantBroken(f"operation {number} is to go by INA: {binding}")
            seat.bound(number, INA)
            seat.done(number)
            seat.drained(number)
        next_index += count

    return run


def _score_rule(others: int) -> Batch:
    """The paper's own: evaluated on each host, with the time of day."""
    kinds = [StepTimes(measured(name), SHARING, hosts=2) for name in EVALUATED]
    mine = kinds[0]
    rivals = [
        NextOperation(times, times.suffix % times.count, 0.0, 0.05 + 1e-4 * place)
        for place, times in enumerate((kinds[1:] + kinds)[:others])
    ]

    def run(count: int) -> None:
        for index in range(count):
            may_use(NextOperation(mine, index % mine.count, 0.0, 0.05), rivals, 0.05)

    return run


def _pattern() -> Batch:
    """Measure a job whose pattern is known: what each call costs, those that compare starts included."""
    trace = measured("opt-350m-4")
    core, now, place = PatternWatch(PatternConfig()), 0, 0

    def run(count: int) -> None:
        nonlocal now, place
        for _ in range(count):
            at = Instant(now + round(trace.ready[place] * S))
            core.step(Submitted(trace.nbytes[place]), at)
            place += 1
            if place == len(trace.nbytes):
                place, now = 0, now + round(trace.duration * S)
                core.step(WaitBegan(), Instant(now))
                core.step(WaitEnded(), Instant(now))

    return run


def rows() -> dict[str, Batch]:
    return {
        "seat, no turn": _seat(),
        "seat, in a turn": _seat(turn=True),
        "seat, a round under way": _seat(turn=True, voted=True),
        "seat of a daemon": _daemon_seat(),
        "score rule, 1 other job": _score_rule(1),
        "score rule, 7 other jobs": _score_rule(7),
        "communication pattern": _pattern(),
    }


def measure(config: Config) -> dict[str, Any]:
    """The whole measurement as the JSON document of the command."""
    batches = rows()
    samples: dict[str, list[float]] = {name: [] for name in batches}
    for turn in range(config.warmup + config.rounds):
        for name, batch in batches.items():
            begin = time.thread_time_ns()
            batch(config.operations)
            spent = time.thread_time_ns() - begin
            if turn >= config.warmup:
                samples[name].append(spent / config.operations / 1e3)
    return {
        "version": 1,
        "benchmark": "decision",
        "config": asdict(config),
        "env": environment.describe(),
        "goal_us": GOAL_US,
        "paper_us": PAPER_US,
        "rows": [
            {
                "row": name,
                "cpu_us": statistics.median(found),
                "cpu_us_spread": [min(found), max(found)],
                "within_goal": statistics.median(found) <= GOAL_US,
                "samples_us": found,
            }
            for name, found in samples.items()
        ],
    }


@click.command("decision")
@click.option("--operations", default=2000, show_default=True, type=click.IntRange(1), help="Of a batch.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(3, 1000), help="Timed batches.")
@click.option(
    "--warmup", default=2, show_default=True, type=click.IntRange(0, 100), help="Batches not timed."
)
@click.option(
    "--json",
    "json_at",
    type=ReportFile(),
    metavar="FILE",
    help="Report file; - is stdout (the table: stderr).",
)
def decision(operations: int, rounds: int, warmup: int, json_at: str | None) -> None:
    """Time what a host pays to decide for one operation: INA or the fallback.

    Example: inaproto bench decision --json -

    CPU time of one core for each operation, medians over interleaved batches with their spread.
    """
    report = measure(Config(operations, rounds, warmup))
    table = Table(title=f"CPU time of an operation's decision; the goal is {GOAL_US:g} us at most")
    for column in ("row", "us", "least", "most"):
        table.add_column(column, justify="left" if column == "row" else "right")
    for row in report["rows"]:
        figures = (row["cpu_us"], *row["cpu_us_spread"])
        table.add_row(row["row"], *(f"{value:.2f}" for value in figures))
    Console(stderr=json_at == "-").print(table)
    write_report(report, json_at)
