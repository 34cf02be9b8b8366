"""Makes UFM's reservations those that are promised, as long as this controller leads.

A look reads what UFM has, compares, changes, and reads again, until there is nothing to change; then it
reports as an agent does: which reservations stand, and up to which revision all is done. So the plan frees a
PKey and GUIDs only when UFM has been seen without them. Whatever fails is looked at again, later and later
while it goes on; nothing is remembered of what was asked.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import trio

from inaproto_controller.cluster.desired import Desired, Grant, GrantKind
from inaproto_controller.cluster.reserved import UFM, Pool, guids_of, pkey_of
from inaproto_controller.service.observed import Agent, Hold, Observed, Phase, Presence
from inaproto_controller.service.sharp.comparison import Comparison, Put, Take, compare
from inaproto_controller.service.sharp.http_client import NoAnswer
from inaproto_controller.service.sharp.ufm import UfmCalls, UfmRefused

log = logging.getLogger("inaproto.controller")

LOOK_S: Final = 10.0
"""UFM is looked at so often, if nothing is to change: others may have changed something there."""
AGAIN_S: Final = (0.5, 30.0)
"""After a failure: first, and at most; each time twice as long."""
STATES: Final = ("asked for", "stands", "not followed", "refused", "to be given back")
"""States of a reservation, for people."""
ROUNDS_MAX: Final = 4
"""Rounds of one look: takes, puts, and once more if somebody changed something meanwhile."""


@dataclass(slots=True)
class _Refusal:
    why: str
    again_at: float
    wait_s: float


class Reservations:
    """``changed`` is called when something new was observed."""

    def __init__(
        self, calls: UfmCalls, pool: Pool, *, where: str, look_s: float = LOOK_S, again_s: float = AGAIN_S[0]
    ) -> None:
        self.pool = pool
        self.changed: Callable[[], None] = lambda: None
        self._calls, self._where, self._look_s, self._again_s = calls, where, look_s, again_s
        self._desired = Desired()
        self._make_sure: Callable[[], Awaitable[None]] = trio.sleep_forever
        self._news = trio.Event()
        self._agent = Agent(Presence.UNKNOWN)
        self._seen: Comparison | None = None
        self._followed: frozenset[str] | None = None
        self._advice = ""
        self._problem = "UFM was not asked yet"
        self._refusals: dict[str, _Refusal] = {}
        """Changes that UFM has refused, by key."""
        self._looks = self._puts = self._takes = 0

    # -- the controller's side

    def lead(self, desired: Desired, make_sure: Callable[[], Awaitable[None]]) -> None:
        """Nothing is known of UFM yet in this term. ``make_sure`` is awaited before each change: it returns
        while this controller leads, so that one that hung changes nothing behind the next one's back."""
        self._make_sure = make_sure
        self._agent, self._seen, self._problem = Agent(Presence.UNKNOWN), None, "UFM was not asked yet"
        self._refusals.clear()
        self.wish(desired)

    def wish(self, desired: Desired) -> None:
        """This has been committed."""
        is_news = _reservations(desired) != _reservations(self._desired)
        self._desired = desired
        if is_news:
            self._news.set()

    def observed(self, observed: Observed) -> Observed:
        """With what is known of UFM."""
        barred = frozenset() if self._seen is None else frozenset(self._seen.barred)
        return replace(observed, agents={**observed.agents, UFM: self._agent}, barred_pkeys=barred)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        wait_s = self._again_s
        while True:
            self._news = trio.Event()
            try:
                await self._look()
            except NoAnswer as error:
                self._fail(str(error))
                await trio.sleep(wait_s)  # news does not shorten it: UFM may be overloaded
                wait_s = min(2 * wait_s, AGAIN_S[1])
                continue
            wait_s = self._again_s
            now = trio.current_time()
            again = min((one.again_at for one in self._refusals.values()), default=now + self._look_s)
            with trio.move_on_after(max(0.0, min(again - now, self._look_s))):
                await self._news.wait()

    def _fail(self, why: str) -> None:
        log.log(logging.DEBUG if why == self._problem else logging.WARNING, "reservations: %s", why)
        self._problem = why
        self._report(replace(self._agent, presence=Presence.UNKNOWN))

    def _report(self, agent: Agent) -> None:
        if agent != self._agent:
            self._agent = agent
            self.changed()

    # -- UFM's side

    async def _look(self) -> None:
        """Raises ``NoAnswer``."""
        self._looks += 1
        found, revision = Comparison(), 0
        for _ in range(ROUNDS_MAX):
            revision, grants = self._desired.revision, _reservations(self._desired)
            pkeys = {*self.pool.pkeys, *(pkey_of(one) for one in grants)}
            found = compare(grants, await self._calls.read(pkeys), self._calls.key, self.pool.known_guids())
            if not await self._change(found):
                break
        await self._ask_what_followed()
        holds = {
            number: Hold(Phase.RUNNING if number in found.standing else Phase.HELD) for number in found.held
        }
        known = {} if self._seen is None else self._seen.problems
        for number, why in found.problems.items():
            if known.get(number) != why:
                log.warning("reservations: grant %d: %s", number, why)
        is_news = self._seen is None or found.barred != self._seen.barred
        if self._problem:
            log.info("reservations: UFM answers")
        self._seen, self._problem = found, ""
        self._report(Agent(Presence.UP, revision, holds))
        if is_news:
            self.changed()

    async def _change(self, found: Comparison) -> bool:
        """Whether something was changed. Puts wait for takes, which may make room for them."""
        wanted = {take.key for take in found.takes} | {put.key for put in found.puts}
        self._refusals = {key: one for key, one in self._refusals.items() if key in wanted}
        is_changed = False
        for take in found.takes:
            is_changed |= await self._ask(take)
        if is_changed:
            return True
        for put in found.puts:
            is_changed |= await self._ask(put)
        return is_changed

    async def _ask(self, change: Take | Put) -> bool:
        """Whether UFM has done it. What it has refused is asked again later."""
        old = self._refusals.get(change.key)
        if old is not None and old.again_at > trio.current_time():
            return False
        await self._make_sure()
        try:
            if isinstance(change, Put):
                await self._calls.put(change)
            else:
                await self._calls.take(change)
        except UfmRefused as error:
            if old is None or old.why != str(error):
                log.warning("reservations: %s", error)
            wait_s = self._again_s if old is None else min(2 * old.wait_s, AGAIN_S[1])
            self._refusals[change.key] = _Refusal(str(error), trio.current_time() + wait_s, wait_s)
            return False
        if isinstance(change, Put):
            self._puts += 1
            log.info("reservations: %s is made, of %d GUIDs", change.key, len(change.entry.guids))
        else:
            self._takes += 1
            log.info("reservations: %s is given back", change.key)
        return True

    async def _ask_what_followed(self) -> None:
        """That it cannot be told is no failure: what was asked for is there."""
        try:
            self._followed, self._advice = await self._calls.reserved(), ""
        except NoAnswer as error:
            self._followed, self._advice = None, str(error)

    # -- status

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added."""
        seen = self._seen
        return {
            "ufm": self._where,
            "answers": self._agent.presence is Presence.UP,
            "problem": self._problem,
            "advice": self._advice,
            "pkeys": len(self.pool.pkeys),
            "pkeys_left_alone": [] if seen is None else sorted(seen.barred),
            "strangers": {} if seen is None else {key: sorted(own) for key, own in seen.strangers.items()},
            "counters": {"looks": self._looks, "puts": self._puts, "takes": self._takes},
            "without": self._without(),
            "reservations": [self._document(grant) for grant in _reservations(self._desired)],
        }

    def _without(self) -> dict[str, str]:
        """Why jobs with a tree have no reservation, by name."""
        having = {grant.job for grant in _reservations(self._desired) if grant.released is None}
        lacking = [job for job in self._desired.live() if job.tree is not None and job.number not in having]
        if self._agent.presence is not Presence.UP or self._seen is None:
            return {job.spec.name: "UFM does not answer" for job in lacking}
        taken, barred = self._desired.taken(), self._seen.barred
        reasons = {job.spec.name: self.pool.slots(job.hosts, taken, barred) for job in lacking}
        return {name: why if isinstance(why, str) else "soon" for name, why in reasons.items()}

    def _document(self, grant: Grant) -> Mapping[str, Any]:
        job = self._desired.jobs.get(grant.job)
        refusal = self._refusals.get(self._calls.key(grant))
        problem = "" if self._seen is None else self._seen.problems.get(grant.number, "")
        standing = self._seen is not None and grant.number in self._seen.standing
        state = "asked for"
        if grant.released is not None:
            state = "to be given back"
        elif standing:
            state = "stands" if self._followed is None or pkey_of(grant) in self._followed else "not followed"
        elif refusal is not None or problem:
            state = "refused"
        return {
            "job": "" if job is None else job.spec.name,
            "pkey": pkey_of(grant),
            "key": self._calls.key(grant),
            "guids": sorted(guids_of(grant)),
            "state": state,
            "why": problem if refusal is None else refusal.why,
        }


def _reservations(desired: Desired) -> list[Grant]:
    return [grant for grant in desired.grants.values() if grant.kind is GrantKind.RESERVATION]
