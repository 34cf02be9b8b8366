"""What a person needs of a run that broke a rule: what, when, what befell it, the last events.

Two simple rules keep it short. Events in which nothing moves, such as timers that are due while nothing
comes, are folded into one line however many follow one another (``folded``). And if the last events do not
reach back to where things took their last turn (``last_turn``: a frame was hit, or a rank got on), that
event is told before them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Final

from inaproto.sim.campaign.kinds import WorldKind, draw_kind, kind_of
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.sim.frames.faults import hit_by
from inaproto.sim.frames.recorder import Record, say_frame, say_time
from inaproto.sim.frames.runs.log import Log, say_node, say_record

HITS_MAX: Final = 12
LAST: Final = 12
_WAITS: Final = (": its timer is due",)
_PROGRESS: Final = (": result of message", ": message", ": calls all-reduce")
"""What is said of a rank that gets a result, an ACK for its message, or work."""
_QUIET_KINDS: Final = ("OperationStalled", "timer", "heal")


def is_quiet(record: Record) -> bool:
    """Nothing moves: timers are due, and nobody gets or sends anything."""
    if "frames" in record or "sends" in record or record["kind"] not in _QUIET_KINDS:
        return False
    return all(said["text"].endswith(_WAITS) for said in record.get("said", []))


def folded(records: list[Record]) -> Iterator[list[Record]]:
    """Quiet events that follow one another together, every other one alone."""
    for quiet, run in groupby(records, is_quiet):
        if quiet:
            yield list(run)
        else:
            yield from ([record] for record in run)


def is_hit(send: Record) -> bool:
    """Whether the weather, a fault or a full queue did something to a frame."""
    return "fate" in send or "lost" in send


def last_turn(log: Log) -> int | None:
    """The last event with a frame that was hit, or with progress of a rank; None: there is none."""
    for record in reversed(log.records):
        got = any(word in said["text"] for said in record.get("said", []) for word in _PROGRESS)
        if got or any(map(is_hit, record.get("sends", []))):
            number: int = record["n"]
            return number
    return None


def say_failure(log: Log, *, path: str | None = None, last: int = LAST) -> str:
    violation = log.violation
    if violation is None:
        return f"seed {log.config.seed}: no rule was broken in {len(log.records)} events"
    program = log.program
    variant = f" --with {program.variant}" if program.variant else ""
    lines = [
        f"seed {log.config.seed}: broken rule: {violation.rule}",
        f"  evidence  {violation.evidence}",
        f"  where     event {violation.event}, at {say_time(violation.at_ns)}, found by {violation.checker}",
        f"  program   inaproto {program.version}, commit {program.commit or 'unknown'}"
        + (f", with {program.variant}" if program.variant else ""),
        *_say_befell(log),
        *_say_last(log, last),
    ]
    if log.config == draw_kind(log.config.seed, kind_of(log.config)):  # else it was made smaller
        lines.append(
            f"  rerun     inaproto soak{of_kind(kind_of(log.config))} --seed {log.config.seed}{variant}"
        )
    if path is not None:
        lines.append(f"  replay    inaproto replay {path} --svg out.svg{variant}")
    return "\n".join(lines)


def _say_befell(log: Log) -> list[str]:
    """Faults and frames that were hit, in order of time."""
    end = max((record["at"] for record in log.records), default=0)
    if log.violation is not None:
        end = max(end, log.violation.at_ns)
    befell = [(fault.at_ns, say_fault(fault, log.config)) for fault in log.config.faults]
    befell = [(at, said) for at, said in befell if at <= end]
    for record in log.records:
        for send in filter(is_hit, record.get("sends", [])):
            befell.append((send["at"], f"event {record['n']}, {say_hit(send)}"))
    if not befell:
        return ["  befell    no fault, and no frame was hit"]
    befell.sort(key=lambda entry: entry[0])
    more = len(befell) - HITS_MAX
    said = f"the last {HITS_MAX} of {len(befell)} faults and frames that were hit" if more > 0 else ""
    lines = [f"  befell    {said or 'all faults and frames that were hit'}:"]
    return lines + [f"    {say_time(at)}: {text}" for at, text in befell[-HITS_MAX:]]


def say_hit(send: Record) -> str:
    fate = [f"lost: {send['lost']}"] if "lost" in send and send.get("fate") != "lost" else []
    words = ", ".join(([send["fate"]] if "fate" in send else []) + fate)
    return f"{send['link']} frame {send['number']}: {say_frame(send['what'])}  [{words}]"


def of_kind(kind: WorldKind) -> str:
    """What a command line needs to draw such a world."""
    return "" if kind is WorldKind.SINGLE else f" --world {kind}"


def say_fault(fault: Fault, config: WorldConfig) -> str:
    at_once = fault.kind in (FaultKind.NIC_RESET, FaultKind.SESSION_LOSS)
    said = f"fault: {fault.kind} of {hit_by(fault, config)}"
    return said + ("" if at_once else f", {say_time(fault.duration_ns)}")


def _say_last(log: Log, last: int) -> list[str]:
    told = list(folded(log.records))[-last:]
    turn = last_turn(log)
    lines = [f"  last {sum(map(len, told))} events:"]
    if turn is not None and told and turn < told[0][0]["n"]:
        lines.insert(0, "  the last event with a frame that was hit, or with progress of a rank:")
        lines[1:1] = [f"    {line}" for line in say_record(log.records[turn - 1])]
    for group in told:
        lines += [f"    {line}" for line in (say_record(group[0]) if len(group) == 1 else _say_fold(group))]
    return lines


def _say_fold(group: list[Record]) -> list[str]:
    first, final = group[0], group[-1]
    counts: dict[str, int] = {}
    for record in group:
        for said in (f"{say_node(record)}: {record['kind']}", *_texts(record)):
            counts[said] = counts.get(said, 0) + 1
    span = f"events {first['n']} to {final['n']}, {say_time(first['at'])} to {say_time(final['at'])}:"
    return [
        f"{span} {len(group)} in which nothing moves",
        *(f"    {n} x {said}" for said, n in counts.items()),
    ]


def _texts(record: Record) -> list[str]:
    return [said["text"] for said in record.get("said", [])]
