"""All-reduces of one job that a collective library does: when it is tried, and when its result holds.

The library (SHARP) sums in an order of its own, may be refused or lost at any time, and tells a host nothing
of what the other hosts have. So an operation is *tried*: the library sums into memory that is no tensor. Then
the hosts *vote*, by an all-reduce of three integers on the path of the job (the base), which gives all hosts
one answer whatever fails. All have the same bytes: each copies what it has into its tensors. Else all redo
the operation by the base, from inputs that nobody has touched (docs/protocol.md 9.8).

Whether an operation is tried is agreed, too. The collective *stands* once a vote has shown that all hosts
are attached by the same attempt; a vote that shows that one of them is not any more ends that. While it does
not stand operations go by the base, and are preceded by a question at distances that double up to
``ASK_EVERY_MAX``; so a return needs no word of its own, and its absence costs next to nothing.

Who gives out the library's places, a controller say, may take that of a host back (MINA, section IV-A). The
host then goes on as before up to the next vote on an operation that was tried; with that it says that it
leaves, and all hosts leave with the operation that they have voted on. So nothing is under way in the library
when it is left, and no operation is lost.

Invariants: of each operation that is tried there is one vote, whatever becomes of attachments and rings; what
goes to the base, and in which order, follows from the terms and from results of votes alone, so it is equal
on all hosts; at most one operation is tried at a time; a tensor is read when it is tried only if no earlier
operation that has not ended uses its memory; an attachment is released before the next is asked for; nothing
is waited for longer than ``try_ns``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple, assert_never

from inaproto.core.host.collective_terms import Code, CollectiveTerms, vote_on
from inaproto.core.host.operations import Operation
from inaproto.errors import LocalMisuse
from inaproto.units import MS, Instant, OpIndex, S

ASK_EVERY_MAX: Final = 64
"""While the collective does not stand at least every so many operations that it would take ask for it."""
FAILURES_MAX: Final = 3
"""So many operations in a row that failed alone end an attachment."""
ATTACH_FIRST_NS: Final = 100 * MS
ATTACH_LAST_NS: Final = 5 * S


# --- what happens


class Called(NamedTuple):
    """All ranks here have called it. Its tensors are there as a whole."""

    operation: Operation


class Tried(NamedTuple):
    """The collective has done it here; ``digest`` is of the bytes, from 0 to 2^31."""

    op_index: OpIndex
    attempt: int
    digest: int


class TryFailed(NamedTuple):
    op_index: OpIndex
    attempt: int
    reason: str
    is_lost: bool
    """The attachment is, not this operation alone."""


class Counted(NamedTuple):
    """The vote on an operation has its result: the least and the most that hosts have said."""

    op_index: OpIndex
    least: int
    most: int
    stays: bool = True
    """No host has said that it leaves."""


class BaseEnded(NamedTuple):
    """The base has ended an operation that went there."""

    op_index: OpIndex


class Attached(NamedTuple):
    """All hosts are, as far as this one knows."""

    attempt: int


class AttachFailed(NamedTuple):
    attempt: int
    reason: str


class Lost(NamedTuple):
    """An attachment is of no use any more."""

    attempt: int
    reason: str


class Superseded(NamedTuple):
    """A host has begun that attempt: it is not attached by an earlier one."""

    attempt: int


class Released(NamedTuple):
    attempt: int


class Allowed(NamedTuple):
    """Whether this host may be attached; said again it changes nothing."""

    is_allowed: bool


class Woke(NamedTuple):
    """The deadline may have passed."""


class Closing(NamedTuple):
    """The job is over here."""


FromShell = Tried | TryFailed | Counted | Attached | AttachFailed | Lost | Superseded | Released | Allowed
"""What happens outside the host's own core."""
Event = (
    Called
    | Tried
    | TryFailed
    | Counted
    | BaseEnded
    | Attached
    | AttachFailed
    | Lost
    | Superseded
    | Released
    | Allowed
    | Woke
    | Closing
)

# --- what is ordered


class Try(NamedTuple):
    """Add the tensors here and hand the sum to the attachment; the result is to lie in memory apart."""

    operation: Operation
    attempt: int


class Vote(NamedTuple):
    """Let the base all-reduce ``said`` (:func:`inaproto.core.host.collective_terms.words_of`) as ``vote``."""

    vote: Operation
    said: int
    stays: bool = True
    """This host stays attached after the operation."""


class ToBase(NamedTuple):
    """The base carries this operation."""

    operation: Operation


class TakeTried(NamedTuple):
    """Copy what was tried into the tensors: that is the operation's result."""

    operation: Operation


class FellBack(NamedTuple):
    """An operation that was tried is redone by the base, on all hosts."""

    operation: Operation
    code: Code
    reason: str
    """As this host knows it."""


class Stands(NamedTuple):
    """From this operation on the collective does what it takes."""

    op_index: OpIndex
    attempt: int


class Attach(NamedTuple):
    """Answered by ``Attached`` or ``AttachFailed``."""

    attempt: int


class Release(NamedTuple):
    """Give the attachment back; answered by ``Released``. What is tried by it has no result."""

    attempt: int


Action = Try | Vote | ToBase | TakeTried | FellBack | Stands | Attach | Release


class Session(Enum):
    """How a host stands with the library."""

    DETACHED = "detached"
    ATTACHING = "attaching"
    ATTACHED = "attached"
    RELEASING = "releasing"
    CLOSED = "closed"


class _Stage(Enum):
    """How far the first operation is that neither the base nor this host has ended."""

    NEW = "new"
    ASKED = "asked"
    TRYING = "trying"
    VOTED = "voted"


@dataclass(frozen=True, slots=True)
class CollectiveView:
    session: Session
    attempt: int
    stands: bool
    tried: int
    taken: int
    redone: Mapping[Code, int]
    without: int
    """Operations that it would have taken, and that went by the base because it did not stand."""
    reason: str
    """Why the last one fell back, or the last attachment failed; empty: neither has."""
    is_allowed: bool = True
    attach_ns: int | None = None
    """How long the last attachment has taken; None: there was none."""
    release_ns: int | None = None
    """How long it has taken to give the last one back."""


class CollectiveCalls:
    """Operations of one host in one job that has a collective; see the module for its invariants.

    ``try_ns``: how long the collective may take for one, the lateness of other hosts included. ``steady_ns``
    spreads attempts: it is added to each back-off, and differs from host to host.
    """

    def __init__(self, terms: CollectiveTerms, *, try_ns: int, steady_ns: int = 0) -> None:
        self.terms = terms
        self._try_ns = try_ns
        self._steady_ns = steady_ns
        self._calls: deque[Operation] = deque()
        """Those that have not been given to the base, or taken."""
        self._stage = _Stage.NEW
        self._with_base: deque[Operation] = deque()
        """Those that the base has, and has not ended."""
        self._try_until: Instant | None = None
        # agreed: all hosts have the same here when they are at the same operation
        self._standing: int | None = None
        self._ask_in = 0
        self._ask_every = 1
        self._failures = 0
        # of this host
        self._session = Session.DETACHED
        self._attempt = 0
        self._next = 0
        """Another host is at this attempt."""
        self._attach_at: Instant | None = Instant(0)
        self._backoff_ns = ATTACH_FIRST_NS
        self._tried = self._taken = self._without = 0
        self._redone: Counter[Code] = Counter()
        self._reason = ""
        self._is_allowed = True
        self._since = Instant(0)
        """When the session came to where it is."""
        self._attach_ns: int | None = None
        self._release_ns: int | None = None
        self._why = ""
        """Why this host voted as it did."""
        self._is_named = False
        """The last question was answered with this host's attempt."""
        self._now = Instant(0)
        self._out: list[Action] = []

    def __len__(self) -> int:
        """Operations that neither the base has nor this host has ended."""
        return len(self._calls)

    @property
    def head(self) -> Operation | None:
        """The operation that has to make progress here, rather than at the base."""
        return self._calls[0] if self._calls else None

    @property
    def calls(self) -> list[Operation]:
        """Those that neither the base has nor this host has ended, in order."""
        return [*self._calls]

    @property
    def stands(self) -> bool:
        """What the terms take is tried."""
        return self._standing is not None

    @property
    def deadline(self) -> Instant | None:
        found = self._try_until, self._attach_at
        return min((at for at in found if at is not None), default=None)

    def view(self) -> CollectiveView:
        return CollectiveView(
            session=self._session,
            attempt=self._attempt,
            stands=self._standing is not None,
            tried=self._tried,
            taken=self._taken,
            redone=dict(sorted(self._redone.items())),
            without=self._without,
            reason=self._reason,
            is_allowed=self._is_allowed,
            attach_ns=self._attach_ns,
            release_ns=self._release_ns,
        )

    def step(self, event: Event, now: Instant) -> list[Action]:
        """Apply ``event``; the actions are to be performed in order."""
        self._now, self._out = now, []
        match event:
            case Called(operation):
                if operation.filled is not None and operation.filled < operation.nbytes:
                    raise LocalMisuse(f"{operation} is called before its tensor is there")
                self._calls.append(operation)
            case Tried(op_index, attempt, digest):
                if self._is_tried(op_index, attempt):
                    self._vote(digest)
            case TryFailed(op_index, attempt, reason, is_lost):
                if self._is_tried(op_index, attempt):
                    self._fails(Code.LOST if is_lost else Code.FAILED, reason)
            case Counted(op_index, least, most, stays):
                self._counted(op_index, least, most, stays)
            case BaseEnded(op_index):
                if self._with_base and self._with_base[0].index == op_index:
                    self._with_base.popleft()
            case Attached() | AttachFailed() | Lost() | Superseded() | Released():
                self._of_session(event)
            case Allowed(is_allowed):
                self._allowed(is_allowed)
            case Woke():
                self._woke()
            case Closing():
                self._close()
            case _:
                assert_never(event)
        self._go_on()
        return self._out

    # --- operations

    def _go_on(self) -> None:
        """Give operations away from the first on, until one has to be waited for."""
        while self._calls and self._stage is _Stage.NEW and self._session is not Session.CLOSED:
            operation = self._calls[0]
            if not self.terms.take(operation):
                self._to_base()
            elif self._standing is not None:
                if any(it.shares_memory_with(operation) for it in self._with_base):
                    return  # its input is still to be written
                self._try(operation, self._standing)
            elif self._ask_in > 0:
                self._ask_in -= 1
                self._without += 1
                self._to_base()
            else:
                self._is_named = self._session is Session.ATTACHED and self._is_allowed
                self._stage = _Stage.ASKED
                said = self._attempt if self._is_named else -Code.ABSENT
                self._out.append(Vote(vote_on(operation), said))

    def _to_base(self) -> None:
        operation = self._calls.popleft()
        self._stage = _Stage.NEW
        self._with_base.append(operation)
        self._out.append(ToBase(operation))

    def _try(self, operation: Operation, attempt: int) -> None:
        self._stage = _Stage.TRYING
        if self._session is Session.ATTACHED and self._attempt == attempt:
            self._tried += 1
            self._try_until = Instant(self._now + self._try_ns)
            self._out.append(Try(operation, attempt))
        else:
            self._vote(-Code.ABSENT, self._reason or "this host is not attached")

    def _is_tried(self, op_index: OpIndex, attempt: int) -> bool:
        """Else it comes too late."""
        is_head = bool(self._calls) and self._calls[0].index == op_index
        return is_head and self._stage is _Stage.TRYING and attempt == self._attempt

    def _fails(self, code: Code, reason: str) -> None:
        self._vote(-code, reason)
        if code is not Code.FAILED:
            self._release(reason)

    def _vote(self, said: int, why: str = "") -> None:
        self._stage, self._try_until, self._why = _Stage.VOTED, None, why
        self._out.append(Vote(vote_on(self._calls[0]), said, self._is_allowed))

    def _counted(self, op_index: OpIndex, least: int, most: int, stays: bool) -> None:
        if self._session is Session.CLOSED:
            return
        if not self._calls or self._calls[0].index != op_index:
            raise LocalMisuse(f"a vote on all-reduce {op_index} that nobody waits for")
        if self._stage is _Stage.ASKED:
            self._answered(self._calls[0], least, most)
        elif self._stage is _Stage.VOTED:
            self._decided(self._calls[0], least, most, stays)
        else:
            raise LocalMisuse(f"the vote on all-reduce {op_index} is counted before this host has voted")

    def _answered(self, operation: Operation, least: int, most: int) -> None:
        """Whether all hosts are attached by one attempt."""
        self._stage = _Stage.NEW
        if 0 <= least == most:
            self._standing, self._failures = least, 0
            self._ask_every, self._ask_in = 1, 0
            self._out.append(Stands(operation.index, least))
        else:
            self._ask_in = self._ask_every
            self._ask_every = min(2 * self._ask_every, ASK_EVERY_MAX)
            if not self._is_allowed:
                self._leave()

    def _decided(self, operation: Operation, least: int, most: int, stays: bool) -> None:
        """Whether all hosts have the same result, and whether they all go on."""
        stood = self._standing
        if 0 <= least == most:
            self._calls.popleft()
            self._stage, self._failures = _Stage.NEW, 0
            self._taken += 1
            self._out.append(TakeTried(operation))
            if not stays:
                self._standing, self._ask_in = None, 1
                if self._attempt == stood:
                    self._leave()
            return
        code = Code.DIFFERS if least >= 0 else Code(min(-least, Code.TIMED_OUT))
        self._failures += 1
        if code is not Code.FAILED or self._failures >= FAILURES_MAX or not stays:
            self._standing, self._ask_in = None, 1
        reason = self._why or (
            "hosts have different results" if code is Code.DIFFERS else f"another host: {code.name.lower()}"
        )
        self._reason = reason
        self._redone[code] += 1
        self._out.append(FellBack(operation, code, reason))
        self._to_base()
        if self._standing is None and self._attempt == stood:  # else the next has been begun meanwhile
            self._release(reason)

    # --- attachments

    def _of_session(self, event: Attached | AttachFailed | Lost | Superseded | Released) -> None:
        if isinstance(event, Superseded):
            self._superseded(event.attempt)
        elif event.attempt != self._attempt or self._session is Session.CLOSED:
            return
        elif isinstance(event, Attached) and self._session is Session.ATTACHING:
            self._attach_ns, self._backoff_ns = self._now - self._since, ATTACH_FIRST_NS
            self._go(Session.ATTACHED)
        elif isinstance(event, AttachFailed) and self._session is Session.ATTACHING:
            self._reason = event.reason
            self._detached()
        elif isinstance(event, Lost) and self._session is Session.ATTACHED:
            self._lose(Code.LOST, event.reason)
        elif isinstance(event, Released) and self._session is Session.RELEASING:
            self._release_ns = self._now - self._since
            self._detached()

    def _superseded(self, attempt: int) -> None:
        """Go to that attempt next. One that is under way fails by itself: a host is not in it."""
        if attempt <= self._attempt or self._session is Session.CLOSED:
            return
        self._next = max(self._next, attempt)
        if self._session is Session.ATTACHED:
            self._lose(Code.LOST, f"another host has begun attempt {attempt}")
        elif self._session is Session.DETACHED and self._is_allowed:
            self._attach_at = self._now

    def _allowed(self, is_allowed: bool) -> None:
        if is_allowed is self._is_allowed or self._session is Session.CLOSED:
            return
        self._is_allowed = is_allowed
        if is_allowed:
            self._backoff_ns = ATTACH_FIRST_NS
            if self._session is Session.DETACHED:
                self._attach_at = self._now
            return
        self._attach_at = None
        is_awaited = self._standing == self._attempt or (self._stage is _Stage.ASKED and self._is_named)
        if self._session is Session.ATTACHING or not is_awaited:
            self._leave()

    def _lose(self, code: Code, reason: str) -> None:
        if self._stage is _Stage.TRYING:
            self._fails(code, reason)
        else:
            self._release(reason)

    def _release(self, reason: str) -> None:
        self._reason = reason
        if self._session in (Session.ATTACHED, Session.ATTACHING):
            self._go(Session.RELEASING)
            self._out.append(Release(self._attempt))

    def _leave(self) -> None:
        """Without a place; who has none yet has lost none."""
        if self._session in (Session.ATTACHED, Session.ATTACHING):
            self._release("a place in it was taken back")

    def _go(self, session: Session) -> None:
        self._session, self._since = session, self._now

    def _detached(self) -> None:
        self._go(Session.DETACHED)
        if not self._is_allowed:
            return
        self._attach_at = Instant(self._now + self._backoff_ns + self._steady_ns)
        self._backoff_ns = min(2 * self._backoff_ns, ATTACH_LAST_NS)

    def _woke(self) -> None:
        if self._try_until is not None and self._now >= self._try_until:
            self._fails(Code.TIMED_OUT, f"the collective did not end within {self._try_ns / S:.3g} s")
        if self._attach_at is not None and self._now >= self._attach_at:
            self._attach_at = None
            self._attempt = max(self._attempt + 1, self._next)
            self._go(Session.ATTACHING)
            self._out.append(Attach(self._attempt))

    def _close(self) -> None:
        self._release("the job is over")
        self._session = Session.CLOSED
        self._calls.clear()
        self._with_base.clear()
        self._try_until = self._attach_at = None
