"""What a host knows of the wait for an all-reduce of its ranks, and when it gives the wait up.

Invariants: nothing waits for ever: an operation that is overdue (``operation_timeout_ms``) fails its job,
at once if the switch has said for whom the operation waits, else when it says so, and at the latest
``ANSWER_NS`` after it was asked; what was said of one operation is never said of another.
"""

from __future__ import annotations

from collections.abc import Container

from inaproto.core.host.engines.in_network import Overdue
from inaproto.units import MS, Instant, S
from inaproto.wire.control_messages import JobStatus

ANSWER_NS = 1000 * MS
"""The switch gets this long to say for whom an overdue operation waits."""


class OperationWatch:
    """Watches the operations of the ranks of one job; it is told of events and asked for what follows."""

    def __init__(self) -> None:
        self.waiting_for: tuple[int, ...] = ()
        """Ranks; while joining, those that are missing."""
        self.refused = ""
        """While joining, those of them that were refused, and why."""
        self.stall = ""
        """For people; empty while there is progress."""
        self._has_heard = False
        self._overdue: Overdue | None = None
        self._give_up_at: Instant | None = None

    @property
    def deadline(self) -> Instant | None:
        """When the operation is to be given up without an answer."""
        return self._give_up_at

    def ended(self) -> None:
        """The wait is over, with a result or because another one begins."""
        self.waiting_for, self.stall = (), ""
        self._has_heard, self._overdue, self._give_up_at = False, None, None

    def ring_ended(self) -> bool:
        """Another ring begins; whether to ask the switch anew for whom an overdue operation waits."""
        self.waiting_for, self.stall, self._has_heard = (), "", False
        return self._overdue is not None

    def stalled(self, results: int, messages: int, for_ns: int) -> None:
        self.stall = self.stall or f"{results} of {messages} results, no progress for {for_ns // MS} ms"

    def heard(self, status: JobStatus, *, without: Container[int] = ()) -> bool:
        """The switch has said for whom the operation waits; whether that is news.

        Of several ranks that wait here, ``without``, it may not have heard yet.
        """
        self.waiting_for = tuple(rank for rank in status.waiting_for if rank not in without)
        self._has_heard = True
        text = status.mismatch or self._whom()
        is_news, self.stall = text != self.stall, text  # said again every stall_ms
        return is_news

    def gathers(self, status: JobStatus) -> bool:
        """The switch has said for whom the job waits that gathers; whether that has news of a refusal."""
        is_news = status.refused not in ("", self.refused)
        self.waiting_for, self.refused = status.waiting_for, status.refused
        return is_news

    def overdue(self, overdue: Overdue, now: Instant) -> bool:
        """Whether the switch has to be asked for whom the operation waits."""
        self._overdue = overdue
        self._give_up_at = now if self._has_heard else Instant(now + ANSWER_NS)
        return not self._has_heard

    def why_give_up(self, now: Instant) -> str:
        """Empty as long as the operation may go on."""
        overdue, at = self._overdue, self._give_up_at
        if overdue is None or at is None or (now < at and not self._has_heard):
            return ""
        whom = self._whom() if self._has_heard else "the switch does not say for which ranks it waits"
        return (
            f"all-reduce {overdue.operation.index} did not end within {overdue.for_ns / S:.3g} s "
            f"(host daemon: --operation-timeout-ms): {overdue.results} of {overdue.messages} result messages "
            f"are here, {whom}"
        )

    def _whom(self) -> str:
        ranks = ", ".join(map(str, self.waiting_for))
        if not ranks:
            return "all ranks are in it"
        return f"waits for rank{'s' * (len(self.waiting_for) > 1)} {ranks}"
