"""Which jobs may be attached to the collective library of a host (docs/protocol.md 9.8, 17).

A controller that plans the switches of such a library gives each host of a job a *place*, and takes it back
before the job's switches go to another one (MINA, section IV-A). A job that no controller has placed needs
none.

Invariant: a place is held from when it is wished until no attachment of its job is left, wished or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inaproto.core.rendezvous.rules import job_name
from inaproto.wire.messages.controller import GrantRecord, HoldRecord


@dataclass(eq=False, slots=True)
class Attaching:
    """An attachment of a job."""

    job: str
    is_attached: bool = False


class Places:
    """Grants of kind ``place``. After ``wish`` and ``connected`` a job may be allowed to attach that was not,
    or the other way round.

    ``has_job`` says whether a controller has placed a job here.
    """

    def __init__(self, has_job: Callable[[str], bool]) -> None:
        self.are_given = False
        """The controller that was there last gives places."""
        self._has_job = has_job
        self._wanted: dict[int, str] = {}
        """Jobs by number of the grant."""
        self._unwanted: dict[int, set[Attaching]] = {}
        """Those that are still used, and by which attachments. Another job may have the same name by now."""
        self._attaching: dict[Attaching, None] = {}
        """Attachments from when they are asked for until they are given back."""

    def may_attach(self, job: str) -> bool:
        """Whether that job, or the parallel ring of one, may be attached now."""
        name = job_name(job).job
        return not self.are_given or not self._has_job(name) or name in self._wanted.values()

    def wish(self, grants: Sequence[GrantRecord]) -> None:
        """These places are given, and no others."""
        wanted = {grant.grant: grant.name for grant in grants}
        gone = {number: job for number, job in self._wanted.items() if number not in wanted}
        for number, job in gone.items():
            users = {attaching for attaching in self._attaching if attaching.job == job}
            if users:
                self._unwanted[number] = users
        self._wanted = wanted
        for number in wanted:
            self._unwanted.pop(number, None)

    def connected(self, are_given: bool) -> None:
        """A controller is there."""
        self.are_given = are_given

    def holds(self) -> list[HoldRecord]:
        users: dict[int, Iterable[Attaching]] = {
            number: [attaching for attaching in self._attaching if attaching.job == job]
            for number, job in self._wanted.items()
        }
        return [
            HoldRecord(grant=number, phase="running" if any(one.is_attached for one in its) else "held")
            for number, its in sorted((users | self._unwanted).items())
        ]

    # --- attachments

    def begins(self, job: str) -> Attaching:
        """An attachment is asked for."""
        attaching = Attaching(job_name(job).job)
        self._attaching[attaching] = None
        return attaching

    def attached(self, attaching: Attaching) -> None:
        """It is had, which is news for the controller."""
        attaching.is_attached = True

    def ends(self, attaching: Attaching) -> bool:
        """It is given back, or was never had. Whether that is news: said again it changes nothing."""
        if attaching not in self._attaching:
            return False
        del self._attaching[attaching]
        for users in self._unwanted.values():
            users.discard(attaching)
        self._unwanted = {number: users for number, users in self._unwanted.items() if users}
        return True
