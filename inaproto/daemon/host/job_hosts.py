"""Where a controller has placed jobs: asked when a process comes to a host that has no seat for its rank.

Its job may be one that no controller knows of, or one that was placed on other hosts; the controller says
which (docs/protocol.md 17). A controller that does not announce that it answers is not asked; one that is
away, or does not answer in time, is not waited for: the rank joins then, and who knows its job may refuse it.

Invariant: a process on this host cannot make it ask more often than its controller listens to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from inaproto.core.rendezvous.rules import job_name
from inaproto.daemon.net.session_rules import Allowance
from inaproto.wire.control_messages import Message
from inaproto.wire.messages.controller import AgentPlacement, AgentWelcome, AgentWhere

ANSWER_S: Final = 2.0
"""How long a rank waits for the controller's answer."""
ASKED_BURST: Final = 512
ASKED_PER_S: Final = 256.0
"""Questions of one host; the controller ends a session of more than 5,000 messages a second."""
HOSTS_NAMED_MAX: Final = 8
"""Hosts that a refusal names."""


@dataclass(slots=True)
class _Question:
    """One for all processes that ask it meanwhile."""

    answered: trio.Event = field(default_factory=trio.Event)
    answer: AgentPlacement | None = None


class JobHosts:
    """The part of a host daemon that asks (:class:`inaproto.daemon.net.controller_link.AgentSide`).

    ``host`` is its name, as the cluster file has it.
    """

    hears: type[Message] = AgentPlacement

    def __init__(self, host: str) -> None:
        self._host = host
        self._send: Callable[[Message], None] | None = None
        self._asked: dict[str, _Question] = {}
        self._allowance = Allowance(ASKED_BURST, ASKED_PER_S, trio.current_time())

    def connected(self, welcome: AgentWelcome, send: Callable[[Message], None]) -> None:
        """Ask this controller, if it has announced that it answers."""
        self._send = send if welcome.places else None

    def disconnected(self) -> None:
        """Nobody waits for an answer any more."""
        self._send = None
        for question in self._asked.values():
            question.answered.set()

    def heard(self, message: AgentPlacement) -> None:
        """An answer, perhaps to what nobody waits for any more."""
        question = self._asked.get(message.job)
        if question is not None:
            question.answer = message
            question.answered.set()

    async def why_not_here(self, job: str, rank: int) -> str:
        """Why that rank does not belong on this host; "": nobody says so."""
        name = job_name(job)
        if name.is_shrunk:  # it has other ranks than were placed, on hosts where it is at work already
            return ""
        placement = await self._ask(name.job)
        return "" if placement is None else _why_not_at(placement, rank, self._host)

    async def _ask(self, job: str) -> AgentPlacement | None:
        question = self._asked.get(job)
        if question is None:
            send = self._send
            if send is None or not self._may_ask():
                return None
            question = self._asked[job] = _Question()
            send(AgentWhere(job=job))
        with trio.move_on_after(ANSWER_S):
            await question.answered.wait()
        if self._asked.get(job) is question:
            del self._asked[job]
        return question.answer

    def _may_ask(self) -> bool:
        return self._allowance.take(trio.current_time())


def _why_not_at(placement: AgentPlacement, rank: int, host: str) -> str:
    hosts, each = placement.hosts, placement.ranks_per_host
    if not hosts or each == 0:  # the controller knows no such job, or has not placed it yet
        return ""
    if rank >= each * len(hosts):
        return f"the controller has placed it with ranks 0 to {each * len(hosts) - 1}, on {_named(hosts)}"
    right = hosts[rank // each]
    if right == host:
        return ""
    others = "" if len(hosts) == 1 else f", one of {_named(hosts)}"
    return f"the controller has placed it on {right}{others}, not on {host}; start it there"


def _named(hosts: tuple[str, ...]) -> str:
    more = len(hosts) - HOSTS_NAMED_MAX
    said = ", ".join(hosts[:HOSTS_NAMED_MAX])
    return said if more <= 0 else f"{said} and {more} more"
