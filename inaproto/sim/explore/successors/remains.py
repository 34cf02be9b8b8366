"""What is left of an explored host when its daemon is dead, and whether that is as it should be."""

from __future__ import annotations

from typing import NamedTuple

from inaproto.core.host.journal import JournalRefused, Past
from inaproto.sim.explore.successors.config import SuccessorsConfig
from inaproto.sim.explore.successors.memory import ArenaImage, ExploredArena, read


class Process(NamedTuple):
    """A training process."""

    called: int = 0
    done: int = 0
    """All-reduces of which it has heard the end."""
    is_in: bool = False
    """It has heard that its job has begun."""
    has_left: bool = False
    ended: str = ""
    """How its job has ended for it: ``CLOSED``, or the code of an error."""


class Remains(NamedTuple):
    """What is left of a host when its daemon is dead."""

    life: int
    """Which of the daemons of the host is the next."""
    arena: ArenaImage | None
    """None: no process has it, for none has heard that the job has begun."""
    tensors: tuple[tuple[bytes, ...], ...]
    processes: tuple[Process, ...]
    until: int
    """When the processes give up."""
    returns: bool = True
    """There will be a successor."""


class Kept(NamedTuple):
    """How far a host is that has a journal, and which of the results that it is to keep it has not."""

    progress: int
    overwritten: tuple[int, ...] = ()


def read_remains(config: SuccessorsConfig, number: int, remains: Remains) -> tuple[Past | None, str]:
    """What the journal says, None if nothing; and how what is left breaks a rule, empty: it does not."""
    if remains.arena is None:
        are_left = _are_inputs(config, number, remains, 0)
        return None, "" if are_left else f"inputs are left alone: those of h{number} are not"
    try:
        past = read(config, ExploredArena(remains.arena))
    except JournalRefused as why:
        return None, f"no journal is half written: that of h{number} is refused: {why}"
    if past is None:
        return None, f"no journal is half written: that of h{number} has not begun"
    return past, "" if past.failure is not None else _wrong(config, number, remains, past)


def _wrong(config: SuccessorsConfig, number: int, remains: Remains, past: Past) -> str:
    taken = past.progress - (past.torn is not None)
    for serial, (index, offset, nbytes) in enumerate(config.parts[:taken]):
        here = slice(offset, offset + nbytes)
        if any(tensors[index][here] != config.result(index)[here] for tensors in remains.tensors):
            return f"what is counted is copied: result {serial} of h{number} is not"
    if not _are_inputs(config, number, remains, past.progress):
        has = f"h{number} has {past.progress} results, and more in its tensors"
        return f"what is not written down is not copied: {has}"
    if any(process.done > past.next_index for process in remains.processes):
        return f"what was told is written: a rank of h{number} has heard of more than {past.next_index}"
    return ""


def kept_of(config: SuccessorsConfig, past: Past | None) -> Kept:
    """By a journal that breaks no rule."""
    if past is None:
        return Kept(0)
    wrong = []
    for its, data in past.kept:
        index, offset, nbytes = config.parts[its.serial]
        if data != config.result(index)[offset : offset + nbytes]:
            wrong.append(its.serial)
    return Kept(past.progress, tuple(wrong))


def _are_inputs(config: SuccessorsConfig, number: int, remains: Remains, first: int) -> bool:
    """From the part of that serial on."""
    return all(
        remains.tensors[at][index][offset : offset + nbytes]
        == config.input(rank, index)[offset : offset + nbytes]
        for index, offset, nbytes in config.parts[first:]
        for at, rank in enumerate(config.ranks[number])
    )
