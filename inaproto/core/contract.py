"""What all cores are made of, as far as it is the same in all, and what a core is to whoever drives it.

Facts in, orders out, a clock that is handed in: ``step`` does no I/O, looks at no clock and calls nobody
back; what a peer can do it answers by actions, a caller's mistake raises ``LocalMisuse`` and changes nothing;
whoever drives a core wakes it at its ``deadline``; ``view`` changes nothing. ``fork`` and ``fingerprint``
serve every core, for it is made of plain values: a search steps copies, and knows a state again.

A phased protocol is a complete table: for every phase and every event there is one handler, which gets the
subject (a job, a ring) and the event, and returns actions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Set
from copy import deepcopy
from enum import Enum
from functools import cache
from types import FunctionType
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from inaproto.errors import LocalMisuse
from inaproto.units import Instant

P = TypeVar("P")
S = TypeVar("S")
A = TypeVar("A")
E = TypeVar("E")
EventT_contra = TypeVar("EventT_contra", contravariant=True)
ActionT = TypeVar("ActionT")
ViewT_co = TypeVar("ViewT_co", covariant=True)

Handler = Callable[[S, E], list[A]]
"""Called with the subject and the event."""


class Core(Protocol[EventT_contra, ActionT, ViewT_co]):
    def step(self, event: EventT_contra, now: Instant) -> list[ActionT]:
        """Apply ``event``; the actions are to be performed in order, all of them, before the next step."""

    @property
    def deadline(self) -> Instant | None:
        """When it is to be woken at the latest; None: not by the clock."""

    def view(self) -> ViewT_co:
        """A frozen picture for checkers, statistics and people."""


_NOTHING: Final[Set[str]] = frozenset()


def fork(core: S, left_out: Set[str] = _NOTHING) -> S:
    """A copy that can step without touching ``core``. What cannot change is shared.

    ``left_out``: attributes, of ``core`` or of its parts, that make no difference; they are shared too.
    """
    copy: S = _forked(core, left_out, {})
    return copy


def fingerprint(core: object, left_out: Set[str] = _NOTHING, *, ordered: bool = True) -> Hashable:
    """Equal for two cores of which every attribute is equal, but for those ``left_out``.

    The order of dictionaries counts, for a core may go through them; not if ``ordered`` is false: then the
    caller knows that it decides no more than the order of the actions of one step.
    """
    kind: Any = type(core)
    if _is_value(kind):
        try:
            hash(core)
        except TypeError:  # a record that holds a list or an array
            return (
                kind,
                *(fingerprint(getattr(core, name), left_out, ordered=ordered) for name in _names(core)),
            )
        return core
    if isinstance(core, tuple | list | deque):
        return tuple([fingerprint(part, left_out, ordered=ordered) for part in core])
    if isinstance(core, dict):
        parts = [(key, fingerprint(part, left_out, ordered=ordered)) for key, part in core.items()]
        return tuple(parts) if ordered else frozenset(parts)
    if isinstance(core, set):
        return frozenset(core)
    if isinstance(core, np.ndarray):
        return core.shape, core.tobytes()
    return (
        kind,
        *[
            fingerprint(getattr(core, name), left_out, ordered=ordered)
            for name in _names(core)
            if name not in left_out
        ],
    )


def _forked(value: Any, left_out: Set[str], copies: dict[int, Any]) -> Any:
    kind: Any = type(value)
    if _is_value(kind):
        return value
    twin = copies.get(id(value))
    if twin is not None:
        return twin
    if isinstance(value, tuple):
        parts = [_forked(part, left_out, copies) for part in value]
        if all(part is old for part, old in zip(parts, value, strict=True)):
            return value
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    if isinstance(value, list | deque):
        twin = copies[id(value)] = value.copy()
        twin.clear()
        twin.extend(_forked(part, left_out, copies) for part in value)
    elif isinstance(value, dict):
        twin = copies[id(value)] = value.copy()
        for key, part in value.items():
            twin[key] = _forked(part, left_out, copies)
    elif hasattr(value, "__dict__") or _slots(kind):
        twin = copies[id(value)] = object.__new__(kind)
        for name in _names(value):
            part = getattr(value, name)
            object.__setattr__(twin, name, part if name in left_out else _forked(part, left_out, copies))
    else:
        twin = deepcopy(value, copies)
    return twin


@cache
def _is_value(kind: type) -> bool:
    """It never changes."""
    parameters = getattr(kind, "__dataclass_params__", None)
    is_record = parameters is not None and parameters.frozen
    return is_record or issubclass(
        kind, int | float | str | bytes | Enum | frozenset | FunctionType | type(None)
    )


def _names(value: object) -> tuple[str, ...]:
    kind: Any = type(value)
    slots = _slots(kind)
    return (*slots, *vars(value)) if hasattr(value, "__dict__") else slots


@cache
def _slots(kind: type) -> tuple[str, ...]:
    own = [vars(one).get("__slots__", ()) for one in kind.__mro__]
    names = [name for slots in own for name in ((slots,) if isinstance(slots, str) else slots)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


class Handlers(Generic[P, S, A]):
    """The table of a machine with phases ``P``, subjects ``S`` and actions ``A``."""

    def __init__(self) -> None:
        self._found: dict[tuple[P, type[Any]], Handler[S, Any, A]] = {}
        self._to: dict[tuple[P, type[Any]], tuple[P | None, ...]] = {}

    def on(
        self, event: type[E], handler: Handler[S, E, A], *phases: P, to: tuple[P | None, ...] = ()
    ) -> None:
        """Handle events of that type so in these phases. Raises ``LocalMisuse`` for a second handler.

        ``to``: the phases to which that may lead, None being the end; empty: it leads nowhere.
        """
        for phase in phases:
            if (phase, event) in self._found:
                raise LocalMisuse(f"{event.__name__} in {phase} has two handlers")
            self._found[phase, event] = handler
            self._to[phase, event] = to

    def leads_to(self, phase: P, event: type[Any]) -> tuple[P | None, ...]:
        """Where it may lead; None: to the end."""
        return self._to[phase, event]

    def step(self, phase: P, subject: S, event: object) -> list[A]:
        return self._found[phase, type(event)](subject, event)

    def __iter__(self) -> Iterator[tuple[P, type[Any]]]:
        """Every phase and event that has a handler."""
        return iter(self._found)
