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

from inaproto.sim.campaign.kinds import WorldKind
from inaproto.sim.campaign.log import Log, say_node, say_record
from inaproto.sim.campaign.worlds import any_kind_of, draw_any
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, WorldConfig
from inaproto.sim.frames.faults import hit_by
from inaproto.sim.frames.recorder import Record, say_frame, say_time

HITS_MAX: Final = 12
LAST: Final = 12
_WAITS: Final = (": its timer is due",)
_PROGRESS: Final = (": result of message", ": message", ": calls all-reduce")
"""What is said of a rank that gets a result, an ACK for its message, or work."""
_QUIET_KINDS: Final = ("OperationStalled", "timer", "heal")
_WORD_FAULTS: Final = ("crashes", "clock jumps", "stands still", "is cut off")


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
    kind = any_kind_of(log.config)
    if log.config == draw_any(log.config.seed, kind):  # else it was made smaller
        lines.append(f"  rerun     inaproto soak{of_kind(kind)} --seed {log.config.seed}{variant}")
    if path is not None:
        drawing = " --svg out.svg" if log.of_frames else ""
        lines.append(f"  replay    inaproto replay {path}{drawing}{variant}")
    return "\n".join(lines)


def _say_befell(log: Log) -> list[str]:
    """Faults and what was hit, in order of time."""
    hit = "frame" if log.of_frames else "message"
    befell = sorted(_befell_frames(log) if log.of_frames else _befell_words(log), key=lambda one: one[0])
    if not befell:
        return [f"  befell    no fault, and no {hit} was hit"]
    more = len(befell) > HITS_MAX
    said = f"the last {HITS_MAX} of {len(befell)}" if more else "all"
    lines = [f"  befell    {said} faults and {hit}s that were hit:"]
    return lines + [f"    {say_time(at)}: {text}" for at, text in befell[-HITS_MAX:]]


def _befell_frames(log: Log) -> Iterator[tuple[int, str]]:
    end = max((record["at"] for record in log.records), default=0)
    if log.violation is not None:
        end = max(end, log.violation.at_ns)
    for fault in log.config.faults:
        if fault.at_ns <= end:
            yield fault.at_ns, say_fault(fault, log.config)
    for record in log.records:
        for send in filter(is_hit, record.get("sends", [])):
            yield send["at"], f"event {record['n']}, {say_hit(send)}"


def _befell_words(log: Log) -> Iterator[tuple[int, str]]:
    for record in log.records:
        if record["kind"] in _WORD_FAULTS or "partition" in record["kind"]:
            yield record["at"], f"{record['node']} {record['kind']} {record['detail']}"
        for send in filter(is_hit, record.get("sends", [])):
            yield record["at"], f"{send['path']}: {send['what']}  [{send['fate']}]"


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
    turn = last_turn(log) if log.of_frames else None
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
