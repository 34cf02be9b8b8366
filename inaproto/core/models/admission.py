"""Who may use a host's access link, and how fast: priorities of models (MLNet 3.3; docs/protocol.md 18.11).

A host has one of these for each direction of its link: what comes in contends at a parameter server while
gradients are pushed, what goes out while weights are pulled. A *transfer* is one message with a body; its
priority is that of its connection, told in the connection's first byte.

The paper admits or rejects connections, and drops some of lower priority, which try again. Here a transfer
that has to wait keeps its connection, and what of it has arrived: it is told a *rate* instead, down to a
floor. So nothing is sent twice, and no capacity idles until somebody tries again. The rule is the paper's:

- The highest class that has transfers sends as it can, without a limit.
- A class below it gets what those above leave (work-conserving, all the way down): the capacity, less the
  most that they were *measured* to use of late, and some headroom, so that they can grow. A transfer that
  has just begun is taken to use everything, until it was measured for ``remembered_intervals``: who comes
  with a higher priority has the link at once, and so long TCP needs to find out how fast it can be.
- Within a class, max-min: who uses less than its share leaves the rest to the others.
- Each class has a *floor*, which nobody takes away: nobody starves.

Who goes without a limit and has grown into its headroom may want more than was measured: it is taken to use
everything once more, for as long. Of its intervals the one of most use counts, because what it uses in a
single one says little: it also falls when a class below takes too much, which would then be given more.

Invariants: a class below the highest has limits that together are no more than the capacity less what those
above it were measured to use, or its floor if that is more; a transfer of the highest class has none.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

from inaproto.errors import LocalMisuse
from inaproto.units import MS, Instant, S

PRIORITY_MAX: Final = 255
"""The most important; it is one byte."""
_IN_FULL_PERMILLE: Final = 960
"""Share of its limit, or of what it was thought to need at most, above which a transfer may need more."""


@dataclass(frozen=True, slots=True)
class AdmissionConfig:
    rate: int
    """Rate of the link in this direction, bytes/s."""
    interval_ns: int = 10 * MS
    """For which use is measured, before rates are told anew."""
    remembered_intervals: int = 10
    """So many of them, before what a transfer needs is believed to be less than all, or less than it was."""
    headroom_permille: int = 100
    """Share of what higher classes use that is left free, so that they can grow."""
    floor_permille: int = 10
    """Share of ``rate`` that each class below the highest may use, whatever those above it need."""
    transfers_max: int = 4096
    """At once; those beyond are ``Refused``."""

    def __post_init__(self) -> None:
        if min(self.rate, self.interval_ns, self.remembered_intervals, self.transfers_max) < 1:
            raise LocalMisuse(f"admission: a number that is too small: {self}")
        if self.headroom_permille < 0 or not 0 < self.floor_permille < 1000:
            raise LocalMisuse(f"admission: a headroom below 0, or a floor that is not in 1..999: {self}")


# --- events


@dataclass(frozen=True, slots=True)
class Began:
    """A transfer has bytes to move from now on."""

    transfer: Hashable
    priority: int


@dataclass(frozen=True, slots=True)
class Moved:
    """``nbytes`` more of the transfer went over the link."""

    transfer: Hashable
    nbytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """All of it has, or its connection is gone."""

    transfer: Hashable


@dataclass(frozen=True, slots=True)
class Woke:
    pass


AdmissionEvent = Began | Moved | Ended | Woke


# --- actions


@dataclass(frozen=True, slots=True)
class Limit:
    """The transfer may go at ``rate`` bytes/s; None: as fast as it can. One that was told nothing may too."""

    transfer: Hashable
    rate: int | None


@dataclass(frozen=True, slots=True)
class Refused:
    """There are ``transfers_max`` of them: to be begun again when one has ended."""

    transfer: Hashable


AdmissionAction = Limit | Refused


class AdmissionView(NamedTuple):
    transfers: int
    highest: int | None
    """Class that goes without a limit."""
    limited: int
    """Transfers with a limit."""
    at_floor: int
    """Those of them that have a part of the floor alone."""
    refused: int
    preempted: int
    """How often a class with transfers had to make way for a higher one that began."""


@dataclass(slots=True)
class _Transfer:
    name: Hashable
    priority: int
    since: Instant
    moved: int = 0
    """In this interval."""
    used: list[int] = field(default_factory=list)
    """Bytes/s in the intervals since it last seemed to need all; the newest ones that are remembered."""
    limit: int | None = None
    wish: int | None = None
    """Bytes/s that it was measured to use; None: more than any rate, as far as is known."""
    at_floor: bool = False


@dataclass(slots=True)
class _Class:
    transfers: list[_Transfer] = field(default_factory=list)

    def use(self) -> int | None:
        """Bytes/s that it needs; None: all."""
        wishes = [transfer.wish for transfer in self.transfers]
        return None if None in wishes else sum(wish for wish in wishes if wish is not None)


class Admission:
    """One direction of one host's link."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._config = config
        self._transfers: dict[Hashable, _Transfer] = {}
        self._classes: dict[int, _Class] = {}
        """Those that have transfers, in no order of rank."""
        self._measured_from = Instant(0)
        self._refused = self._preempted = 0

    @property
    def deadline(self) -> Instant | None:
        """End of the interval; none is measured while all transfers are of one class."""
        if len(self._classes) < 2:
            return None
        return Instant(self._measured_from + self._config.interval_ns)

    def view(self) -> AdmissionView:
        limited = [transfer for transfer in self._transfers.values() if transfer.limit is not None]
        return AdmissionView(
            transfers=len(self._transfers),
            highest=max(self._classes, default=None),
            limited=len(limited),
            at_floor=sum(transfer.at_floor for transfer in limited),
            refused=self._refused,
            preempted=self._preempted,
        )

    def step(self, event: AdmissionEvent, now: Instant) -> list[AdmissionAction]:
        """Apply ``event``; new limits. ``LocalMisuse`` for a transfer that is not there, or is."""
        match event:
            case Began(name, priority):
                return self._begin(name, priority, now)
            case Moved(name, nbytes):
                if nbytes < 0:
                    raise LocalMisuse(f"transfer {name!r} moved {nbytes} bytes")
                self._known(name).moved += nbytes
                return self._wake(now)
            case Ended(name):
                return self._end(self._known(name), now)
            case Woke():
                return self._wake(now)
            case _ as never:
                assert_never(never)

    def _known(self, name: Hashable) -> _Transfer:
        if name not in self._transfers:
            raise LocalMisuse(f"transfer {name!r} has not begun, or has ended, or was refused")
        return self._transfers[name]

    def _begin(self, name: Hashable, priority: int, now: Instant) -> list[AdmissionAction]:
        if name in self._transfers or not 0 <= priority <= PRIORITY_MAX:
            raise LocalMisuse(f"transfer {name!r} has begun, or its priority {priority} is not 0..255")
        if len(self._transfers) == self._config.transfers_max:
            self._refused += 1
            return [Refused(name)]
        if len(self._classes) < 2:
            self._measured_from = now
            for other in self._transfers.values():
                other.moved, other.since = 0, now
        if self._classes and priority > max(self._classes):
            self._preempted += 1
        transfer = _Transfer(name, priority, now)
        self._transfers[name] = transfer
        self._classes.setdefault(priority, _Class()).transfers.append(transfer)
        return self._share()

    def _end(self, transfer: _Transfer, now: Instant) -> list[AdmissionAction]:
        del self._transfers[transfer.name]
        of_class = self._classes[transfer.priority].transfers
        of_class.remove(transfer)
        if not of_class:
            del self._classes[transfer.priority]
        return [*self._wake(now), *self._share()]

    def _wake(self, now: Instant) -> list[AdmissionAction]:
        """If the interval is over: measure, and share the link anew."""
        if self.deadline is None or now < self.deadline:
            return []
        for transfer in self._transfers.values():
            lasted = now - max(transfer.since, self._measured_from)
            if lasted >= self._config.interval_ns:
                self._measure(transfer, transfer.moved * S // lasted)
            transfer.moved = 0
        self._measured_from = now
        return self._share()

    def _measure(self, transfer: _Transfer, used: int) -> None:
        """It used so many bytes/s in an interval: what it needs from now on."""
        bound, at_most = transfer.wish, self._config.remembered_intervals
        if transfer.limit is not None:
            bound = transfer.limit
        if bound and used < self._config.rate and used * 1000 >= bound * _IN_FULL_PERMILLE:
            transfer.used.clear()
            transfer.wish = None
            return
        transfer.used = [*transfer.used, used][-at_most:]
        if len(transfer.used) == at_most:
            most = max(transfer.used)
            transfer.wish = most + most * self._config.headroom_permille // 1000

    def _share(self) -> list[AdmissionAction]:
        """What each class gets of what those above it leave."""
        left = self._config.rate
        floor = max(1, self._config.rate * self._config.floor_permille // 1000)
        limits: list[AdmissionAction] = []
        for nth, priority in enumerate(sorted(self._classes, reverse=True)):
            of_class = self._classes[priority]
            if nth == 0:
                limits += [told for one in of_class.transfers for told in _told(one, None, is_floor=False)]
            else:
                shares = max_min(max(left, floor), [one.wish for one in of_class.transfers])
                for one, share in zip(of_class.transfers, shares, strict=True):
                    limits += _told(one, max(1, share), is_floor=left < floor)
            use = of_class.use()
            left = 0 if use is None else max(0, left - use)
        return limits


def _told(transfer: _Transfer, limit: int | None, *, is_floor: bool) -> list[AdmissionAction]:
    transfer.at_floor = is_floor
    if limit == transfer.limit:
        return []
    transfer.limit = limit
    return [Limit(transfer.name, limit)]


def max_min(capacity: int, wishes: Sequence[int | None]) -> list[int]:
    """Shares of ``capacity``, bytes/s: nobody has more than another who would need it.

    What nobody wishes is shared out evenly too: a wish is a measurement, and may have grown.
    """
    shares = [0] * len(wishes)
    order = sorted(range(len(wishes)), key=lambda nth: (wishes[nth] is None, wishes[nth] or 0))
    left = capacity
    for done, nth in enumerate(order):
        wish, even = wishes[nth], left // (len(order) - done)
        shares[nth] = even if wish is None else min(wish, even)
        left -= shares[nth]
    return [share + left // len(shares) for share in shares] if shares else []
