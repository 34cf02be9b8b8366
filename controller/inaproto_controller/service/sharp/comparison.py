"""What is to change in UFM, from what is promised and what it has: pure, level-triggered, idempotent.

``compare`` looks at all of both. Rules:

- A reservation stands if UFM has exactly its GUIDs. What is missing is put there.
- What is released is taken out, and what is taken out comes before what is put in: no GUID is in two.
- GUIDs of our hosts that are in one of our reservations or PKeys without a promise are what a controller has
  left that lost its store, or was killed as it asked: they are taken out.
- GUIDs that are nobody's here were put there by somebody else. They stay, their PKey is not given to a job,
  and whoever has it already is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from inaproto_controller.cluster.desired import Grant
from inaproto_controller.cluster.reserved import guids_of, pkey_of


@dataclass(frozen=True, slots=True)
class Entry:
    """What UFM has under one key."""

    pkey: str
    guids: frozenset[str]
    is_ours: bool = True
    """False: it has the name of somebody else, and nothing of it is touched."""


@dataclass(frozen=True, slots=True)
class Put:
    """The key is to have exactly these GUIDs."""

    grant: int
    key: str
    entry: Entry
    is_new: bool
    """Whether UFM has nothing under the key."""


@dataclass(frozen=True, slots=True)
class Take:
    """Our GUIDs are to go from under the key."""

    key: str
    pkey: str
    left: frozenset[str]
    """GUIDs of somebody else that stay."""


@dataclass(slots=True)
class Comparison:
    """``takes`` go before ``puts``, and these wait for another look after takes."""

    takes: list[Take] = field(default_factory=list)
    puts: list[Put] = field(default_factory=list)
    standing: set[int] = field(default_factory=set)
    """Grants that UFM has as they are promised."""
    held: set[int] = field(default_factory=set)
    """Grants of which UFM has something, the standing ones and the released ones included."""
    problems: dict[int, str] = field(default_factory=dict)
    """Why a grant cannot stand now, by number."""
    barred: set[str] = field(default_factory=set)
    """PKeys without a promise that have members."""
    strangers: dict[str, frozenset[str]] = field(default_factory=dict)
    """GUIDs of somebody else, by key."""


def compare(
    grants: Iterable[Grant],
    seen: Mapping[str, Entry],
    key_of: Callable[[Grant], str],
    known: Collection[str],
) -> Comparison:
    """``known``: GUIDs of our hosts. ``key_of``: of a reservation, unique."""
    found = Comparison()
    promised = {key_of(grant): grant for grant in grants}
    for key, grant in promised.items():
        entry = seen.get(key)
        if grant.released is not None:
            _released(found, key, grant, entry, known)
        else:
            _wanted(found, key, grant, seen, known)
    pkeys = {pkey_of(grant) for grant in promised.values()}
    for key, entry in seen.items():
        if key in promised or not entry.guids:
            continue
        left = entry.guids - frozenset(known)
        if not entry.is_ours or left == entry.guids:
            found.strangers[key] = left or entry.guids
        else:
            found.takes.append(Take(key, entry.pkey, left))
        if entry.pkey not in pkeys:
            found.barred.add(entry.pkey)
    return found


def _released(found: Comparison, key: str, grant: Grant, entry: Entry | None, known: Collection[str]) -> None:
    own = guids_of(grant) | frozenset(known)
    if entry is not None and entry.guids & own:
        found.held.add(grant.number)
        found.takes.append(Take(key, entry.pkey, entry.guids - own))


def _wanted(
    found: Comparison, key: str, grant: Grant, seen: Mapping[str, Entry], known: Collection[str]
) -> None:
    entry, wanted, pkey = seen.get(key), guids_of(grant), pkey_of(grant)
    if entry is not None and entry.guids & wanted:
        found.held.add(grant.number)
    if entry is not None and entry == Entry(pkey, wanted):
        found.standing.add(grant.number)
        return
    strangers = frozenset() if entry is None else entry.guids - wanted - frozenset(known)
    if strangers:
        found.strangers[key] = strangers
        found.problems[grant.number] = (
            f"{key} has GUIDs of somebody else ({_some(strangers)}): take them out in UFM, or leave the PKey "
            f"out of ufm_pkeys"
        )
        return
    for other, elsewhere in seen.items():
        both = elsewhere.guids & wanted
        if other != key and both:
            found.problems[grant.number] = f"{_some(both)}: still in {other} of UFM, and is to be in one only"
            return
    found.puts.append(Put(grant.number, key, Entry(pkey, wanted), entry is None))


def _some(guids: Collection[str], most: int = 3) -> str:
    said = ", ".join(sorted(guids)[:most])
    return f"{said} and {len(guids) - most} more" if len(guids) > most else said
