"""How a process gets, keeps and gives back its place in a library that does whole all-reduces (SHARP).

MINA section IV-A: a job that migrates releases its tree after its current operation and then acquires
another; release comes strictly before acquire, or two jobs that swap trees wait for each other for ever. The
paper is silent on failure. Ours: after each of the two collective calls, ``init`` and ``comm_init``, all
ranks tell each other what they have. Where one has nothing, all give back what they have and back off, and
each try has a new number of the job.

What the ranks tell each other goes by rounds in which all take part, and every rank sees the same words of a
round. A rank that failed votes while others are still in the call; their callbacks see its vote, answer with
a failure, and the round counts as the vote (``PeerFailed``). So all conclude the same from the same round.

A call cannot be interrupted. When it is late its callbacks are refused, so that it fails by itself; when it
is late even then the session is dead: nothing of the context is used again in this process.

Invariants: at most one call is under way; nothing is begun in a session that is dead; a job's number is used
for one try; ``Attached`` is said only after a vote of all ranks on both calls; at ``NotAttached`` and at a
clean ``Released`` neither a communicator nor a context is held. ``TABLE`` has every phase with every event.
"""

from __future__ import annotations

from typing import Final

from inaproto.core.collective.events import (
    FINE,
    Agree,
    Agreed,
    Attached,
    AttachWanted,
    Begin,
    Call,
    Died,
    Drain,
    Drained,
    ExchangeLost,
    NotAttached,
    OperationFailed,
    Outcome,
    PeerFailed,
    Phase,
    Redo,
    Refuse,
    Released,
    ReleaseWanted,
    Returned,
    SessionAction,
    SessionConfig,
    SessionEvent,
    SessionView,
    Vote,
    Voted,
    Weight,
    Woke,
)
from inaproto.core.contract import Handlers
from inaproto.errors import InvariantBroken, LocalMisuse
from inaproto.units import Instant

Actions = list[SessionAction]
_NEVER: Final = Instant(0)


class CollectiveSession:
    """Pure core; see the module."""

    def __init__(self, config: SessionConfig) -> None:
        self._config = config
        self._phase = Phase.DETACHED
        self._now = _NEVER
        self._deadline: Instant | None = None
        self._attempts = 0
        self._last_job_id: int | None = None
        self._call: Call | None = None
        """Under way, or, in VOTE, voted on."""
        self._has_context = False
        self._has_comm = False
        self._is_wanted = False
        """Attaching, and the caller has not been told how it ended."""
        self._is_leaving = False
        """The caller waits for ``Released``."""
        self._is_refused = False
        self._is_lost = False
        """The ranks do not reach each other: no later try."""
        self._last = FINE
        self._said = FINE

    @property
    def phase(self) -> Phase:
        """Where it is."""
        return self._phase

    @property
    def deadline(self) -> Instant | None:
        """When it is to be woken at the latest; None: not by the clock."""
        return self._deadline

    def view(self) -> SessionView:
        """A frozen picture."""
        is_waiting = self._phase is Phase.DETACHED and self._is_wanted
        return SessionView(
            phase=self._phase,
            attempts=self._attempts,
            has_context=self._has_context,
            has_comm=self._has_comm,
            last=self._last,
            retry_at=self._deadline if is_waiting else None,
        )

    def step(self, event: SessionEvent, now: Instant) -> list[SessionAction]:
        """Raises ``LocalMisuse`` where the caller wants what it has, and for a job's number used before."""
        self._now = now
        return TABLE.step(self._phase, self, event)

    # --- acquiring

    def _attach(self, event: AttachWanted) -> Actions:
        if self._is_wanted:
            raise LocalMisuse("this session is being attached")
        if self._is_lost:
            raise LocalMisuse("the ranks of this session do not reach each other; make another")
        self._is_wanted, self._attempts, self._last = True, 0, FINE
        return self._try()

    def _try(self) -> Actions:
        self._attempts += 1
        self._is_refused = False
        self._go(Phase.AGREE, self._config.exchange_ns)
        return [Agree(self._attempts)]

    def _agreed(self, event: Agreed) -> Actions:
        if event.job_id == self._last_job_id:
            raise LocalMisuse(f"job {event.job_id:#x} was that of the last try")
        self._last_job_id = event.job_id
        self._last = FINE
        self._call = Call.INIT
        self._go(Phase.INIT, self._config.call_ns)
        return [Begin(Call.INIT, event.job_id)]

    def _acquired(self, event: Returned) -> Actions:
        if event.call is not self._call:
            raise InvariantBroken(f"{event.call.value} returned, which was not under way")
        if event.outcome.weight is Weight.FINE:
            self._has_context = True
            self._has_comm = event.call is Call.COMM
        if self._last.weight is not Weight.FINE or self._is_leaving:
            self._call = None
            return self._give_back()
        self._go(Phase.VOTE, self._config.exchange_ns)
        self._said = event.outcome
        return [Vote(event.call, event.outcome)]

    def _peer_failed(self, event: PeerFailed) -> Actions:
        """Its own code counts less than the peer's: it says no more than that a callback failed."""
        self._last = event.outcome
        return self._refuse()

    def _exchange_lost_in_call(self, event: ExchangeLost) -> Actions:
        self._is_lost = True
        self._last = Outcome(0, Weight.ENVIRONMENT, event.why)
        return self._refuse()

    def _voted(self, event: Voted) -> Actions:
        call, self._call = self._call, None
        # Its own word counts whatever came back of it: without a context nothing can follow.
        worst = max((*event.outcomes, self._said), key=lambda its: its.weight)
        if worst.weight is not Weight.FINE:
            self._last = worst
            return self._give_back()
        if call is Call.INIT:
            self._call = Call.COMM
            self._go(Phase.COMM, self._config.call_ns)
            return [Begin(Call.COMM)]
        self._is_wanted = False
        self._go(Phase.ATTACHED)
        return [Attached(self._attempts)]

    def _exchange_lost(self, event: ExchangeLost) -> Actions:
        self._is_lost = True
        self._call = None
        self._last = Outcome(0, Weight.ENVIRONMENT, event.why)
        return self._give_back()

    def _late_exchange(self, event: Woke) -> Actions:
        if not self._is_due():
            return []
        what = "a number of the job" if self._call is None else f"what all have of {self._call.value}"
        return self._exchange_lost(ExchangeLost(f"not all ranks said {what} in time"))

    def _late_call(self, event: Woke) -> Actions:
        if not self._is_due() or self._call is None:
            return []
        if self._is_refused:
            return self._die(f"{self._call.value} has not returned after its callbacks were refused")
        self._is_lost = True
        self._last = Outcome(0, Weight.ENVIRONMENT, f"{self._call.value} took longer than its deadline")
        return self._refuse()

    def _refuse(self) -> Actions:
        if self._is_refused:
            return []
        self._is_refused = True
        self._deadline = Instant(self._now + self._config.unwind_ns)
        return [Refuse()]

    def _leave_call(self, event: ReleaseWanted) -> Actions:
        self._is_leaving = True
        return self._refuse()

    def _leave_exchange(self, event: ReleaseWanted) -> Actions:
        self._is_leaving = True
        self._call = None
        return self._give_back()

    def _leave_wait(self, event: ReleaseWanted) -> Actions:
        self._is_leaving = True
        return self._done()

    # --- attached

    def _operation_failed(self, event: OperationFailed) -> Actions:
        """One that is not fatal leaves the context as it was: it can be given back."""
        redo = Redo(event.index, event.outcome)
        if event.outcome.weight is not Weight.FATAL:
            return [redo]
        return [redo, *self._die_of(event.outcome)]

    def _release(self, event: ReleaseWanted) -> Actions:
        self._is_leaving = True
        self._go(Phase.DRAIN, self._config.drain_ns)
        return [Drain()]

    def _drained(self, event: Drained) -> Actions:
        return self._give_back()

    def _late_drain(self, event: Woke) -> Actions:
        return self._die("an operation has not completed") if self._is_due() else []

    # --- giving back

    def _give_back(self) -> Actions:
        """The next call of the release, in the one order that the library allows."""
        self._phase = Phase.RELEASE
        following = None
        if self._has_comm:
            following = Call.DESTROY if self._call is Call.DEREGISTER else Call.DEREGISTER
        elif self._has_context:
            following = Call.FINALIZE
        self._call = following
        if following is None:
            return self._done()
        self._is_refused = False
        self._go(Phase.RELEASE, self._config.call_ns)
        return [Begin(following)]

    def _given_back(self, event: Returned) -> Actions:
        """A failure to give back leaves the context in doubt: nothing of it is used again."""
        if event.outcome.weight is not Weight.FINE:
            return self._die_of(event.outcome)
        if event.call is Call.DESTROY:
            self._has_comm = False
        if event.call is Call.FINALIZE:
            self._has_context = False
        return self._give_back()

    def _late_release(self, event: Woke) -> Actions:
        if not self._is_due() or self._call is None:
            return []
        if self._is_refused:
            return self._die(f"{self._call.value} has not returned")
        return self._refuse()

    def _leave_release(self, event: ReleaseWanted) -> Actions:
        self._is_leaving = True
        return []

    def _done(self) -> Actions:
        """Nothing is held: another try, or the end."""
        self._phase, self._deadline, self._call = Phase.DETACHED, None, None
        if self._is_leaving:
            return self._end(is_clean=True)
        if self._may_retry():
            self._deadline = Instant(self._now + self._backoff_ns())
            return []
        self._is_wanted = False
        return [NotAttached(self._last, self._attempts)]

    def _may_retry(self) -> bool:
        is_worth_it = self._last.weight in (Weight.BUSY, Weight.ENVIRONMENT)
        return is_worth_it and not self._is_lost and self._attempts < self._config.tries_max

    def _backoff_ns(self) -> int:
        config = self._config
        longest = config.backoff_max_ns
        doublings = min(self._attempts - 1, 62)
        length = longest if self._last.weight is Weight.ENVIRONMENT else config.backoff_ns << doublings
        jitter = config.jitters[(self._attempts - 1) % len(config.jitters)]
        return min(length, longest) * (1000 + jitter) // 1000

    def _retry(self, event: Woke) -> Actions:
        return self._try() if self._is_wanted and self._is_due() else []

    # --- the end

    def _die(self, why: str) -> Actions:
        return self._die_of(Outcome(0, Weight.FATAL, why))

    def _die_of(self, outcome: Outcome) -> Actions:
        self._last = Outcome(outcome.code, Weight.FATAL, outcome.why)
        self._call = None
        self._go(Phase.DEAD)
        actions: Actions = [] if self._is_refused else [Refuse()]
        self._is_refused = True
        actions.append(Died(self._last))
        if self._is_leaving:
            actions += self._end(is_clean=False)
        elif self._is_wanted:
            self._is_wanted = False
            actions.append(NotAttached(self._last, self._attempts))
        return actions

    def _leave_dead(self, event: ReleaseWanted) -> Actions:
        return self._end(is_clean=False)

    def _leave_detached(self, event: ReleaseWanted) -> Actions:
        return self._leave_wait(event) if self._is_wanted else self._end(is_clean=True)

    def _end(self, *, is_clean: bool) -> Actions:
        if self._is_wanted and self._last.weight is Weight.FINE:
            self._last = Outcome(0, Weight.ENVIRONMENT, "the caller has left")
        actions: Actions = [NotAttached(self._last, self._attempts)] if self._is_wanted else []
        self._is_wanted = self._is_leaving = False
        return [*actions, Released(is_clean)]

    def _attach_refused(self, event: AttachWanted) -> Actions:
        raise LocalMisuse(f"a session that is {self._phase.value} cannot be attached")

    def _too_late(self, event: object) -> Actions:
        """What was true of a phase that is over."""
        return []

    def _impossible(self, event: Returned) -> Actions:
        raise InvariantBroken(f"{event.call.value} returned while {self._phase.value}")

    def _go(self, phase: Phase, within_ns: int | None = None) -> None:
        self._phase = phase
        self._deadline = None if within_ns is None else Instant(self._now + within_ns)

    def _is_due(self) -> bool:
        return self._deadline is not None and self._now >= self._deadline


def _table() -> Handlers[Phase, CollectiveSession, SessionAction]:
    table: Handlers[Phase, CollectiveSession, SessionAction] = Handlers()
    its = CollectiveSession
    exchanging = (Phase.AGREE, Phase.VOTE)
    calling = (Phase.INIT, Phase.COMM)
    rest = (Phase.DETACHED, Phase.ATTACHED, Phase.DRAIN)
    table.on(AttachWanted, its._attach, Phase.DETACHED, to=(Phase.AGREE,))
    table.on(AttachWanted, its._attach_refused, *(phase for phase in Phase if phase is not Phase.DETACHED))
    table.on(Agreed, its._agreed, Phase.AGREE, to=(Phase.INIT,))
    table.on(Agreed, its._too_late, *(phase for phase in Phase if phase is not Phase.AGREE))
    table.on(Returned, its._acquired, *calling, to=(Phase.VOTE, Phase.RELEASE, Phase.DETACHED))
    table.on(Returned, its._given_back, Phase.RELEASE, to=(Phase.DETACHED, Phase.DEAD))
    table.on(Returned, its._too_late, Phase.DEAD)
    table.on(Returned, its._impossible, *exchanging, *rest)
    table.on(Voted, its._voted, Phase.VOTE, to=(Phase.COMM, Phase.ATTACHED, Phase.RELEASE, Phase.DETACHED))
    table.on(Voted, its._too_late, *(phase for phase in Phase if phase is not Phase.VOTE))
    table.on(PeerFailed, its._peer_failed, *calling)
    table.on(PeerFailed, its._too_late, *exchanging, *rest, Phase.RELEASE, Phase.DEAD)
    table.on(ExchangeLost, its._exchange_lost_in_call, *calling)
    table.on(ExchangeLost, its._exchange_lost, *exchanging, to=(Phase.RELEASE, Phase.DETACHED))
    table.on(ExchangeLost, its._too_late, *rest, Phase.RELEASE, Phase.DEAD)
    table.on(OperationFailed, its._operation_failed, Phase.ATTACHED, Phase.DRAIN, to=(Phase.DEAD,))
    table.on(
        OperationFailed,
        its._too_late,
        *(phase for phase in Phase if phase not in (Phase.ATTACHED, Phase.DRAIN)),
    )
    table.on(ReleaseWanted, its._leave_detached, Phase.DETACHED)
    table.on(ReleaseWanted, its._leave_exchange, *exchanging, to=(Phase.RELEASE, Phase.DETACHED))
    table.on(ReleaseWanted, its._leave_call, *calling)
    table.on(ReleaseWanted, its._release, Phase.ATTACHED, to=(Phase.DRAIN,))
    table.on(ReleaseWanted, its._too_late, Phase.DRAIN)
    table.on(ReleaseWanted, its._leave_release, Phase.RELEASE)
    table.on(ReleaseWanted, its._leave_dead, Phase.DEAD)
    table.on(Drained, its._drained, Phase.DRAIN, to=(Phase.RELEASE,))
    table.on(Drained, its._too_late, *(phase for phase in Phase if phase is not Phase.DRAIN))
    table.on(Woke, its._retry, Phase.DETACHED, to=(Phase.AGREE,))
    table.on(Woke, its._late_exchange, *exchanging, to=(Phase.RELEASE, Phase.DETACHED))
    table.on(Woke, its._late_call, *calling, to=(Phase.DEAD,))
    table.on(Woke, its._late_drain, Phase.DRAIN, to=(Phase.DEAD,))
    table.on(Woke, its._late_release, Phase.RELEASE, to=(Phase.DEAD,))
    table.on(Woke, its._too_late, Phase.ATTACHED, Phase.DEAD)
    return table


TABLE: Final = _table()
"""Every phase with every event."""
