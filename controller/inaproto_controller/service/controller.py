"""The controller: leads if it can, takes jobs in, and makes what is promised and what is seen agree.

All that it knows of promises is in the store; what it has in memory is what it last committed. Nobody hears
of a change that is not on disk. So it may be killed at any instant: the next one, or this one started anew,
goes on from the store and from what its agents report.

Invariants: one commit at a time; memory is that of the store as long as this controller leads; whatever goes
wrong with the store ends its leadership, after which it tries to lead again and reads everything anew.
"""

from __future__ import annotations

import hmac
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final, TypeVar

import trio

from inaproto.core.rendezvous.tokens import TokenIssuer, hash_of
from inaproto.daemon.observe.loop_watch import LoopWatch
from inaproto.errors import InaprotoError, InvariantBroken, LocalMisuse
from inaproto_controller.cluster import capacity
from inaproto_controller.cluster.desired import Change, Desired, Job, JobSpec, JobState, SetJob, applied
from inaproto_controller.cluster.graph_topology import GraphTopology
from inaproto_controller.planning.cluster_planner import ClusterPlanner
from inaproto_controller.service.agents import STARTED_JUST_NOW, Agents
from inaproto_controller.service.job_log import log_jobs
from inaproto_controller.service.job_spans import JobSpans
from inaproto_controller.service.live_history import LiveHistory
from inaproto_controller.service.plan import Planned, planned, rests_on
from inaproto_controller.service.sharp.places import Places
from inaproto_controller.service.sharp.service import Reservations
from inaproto_controller.service.store.records import Deposed, Store, StoreLost
from inaproto_controller.service.tokens import RECORD, IssuedTokens, new_secret
from inaproto_controller.service.trees.service import TreeService
from inaproto_controller.service.why_no_tree import wants_attention

if TYPE_CHECKING:
    from inaproto.tracing.spans import Tracing

log = logging.getLogger("inaproto.controller")

T = TypeVar("T")

LOOK_S: Final = 1.0
"""Everything is looked at so often, if nothing happens; leadership, too, is made sure of."""
HISTORY_S: Final = 1.0
"""A controller that is killed forgets as much of what people see of the past, and of nothing else."""
HISTORY_ROWS: Final = 64
"""Rows that are written at once. For so long a promise may have to wait."""
LEAD_RETRY_S: Final = 0.25
REST_S: Final = 0.02
"""Between two plans, at least, and as long as the one before took: what happens meanwhile has one plan for
all of it, and the time is left to those who are to be heard."""
PLANS_BESIDE: Final = 3
"""Plans in a row that may come to nothing because jobs were changed meanwhile."""
JOBS_MAX: Final = 4096
"""Most jobs that are not over."""
TOKEN_DAYS: Final = 365


class NotLeading(InaprotoError):
    """Another controller leads, or none does now. What was asked for may or may not have been done."""


class JobRefused(InaprotoError):
    """The job as asked for can never be taken."""


class NameTaken(InaprotoError):
    """A job of that name is there, and is not the one that was submitted."""


class QueueFull(InaprotoError):
    """Too many jobs are waiting."""


class NoSuchJob(InaprotoError):
    """The message has those that there are."""


@dataclass(frozen=True, slots=True)
class Submitted:
    job: Job
    token: str = field(repr=False)
    is_new: bool
    """False: the same was submitted before."""


@dataclass(eq=False, slots=True)
class _Asked:
    """A change that waits for a commit."""

    of: Callable[[Desired], tuple[Sequence[Change], Any]]
    answer: Any = None
    error: InaprotoError | None = None
    is_over: bool = False
    """It was committed, or it failed."""


class Controller:
    def __init__(
        self,
        store: Store,
        planner: ClusterPlanner,
        agents: Callable[[Callable[[], None]], Agents],
        *,
        jobs_max: int = JOBS_MAX,
        job_secret: TokenIssuer | None = None,
        token_days: int = TOKEN_DAYS,
        reservations: Reservations | None = None,
        wall_clock: Callable[[], float] = time.time,
        loop: LoopWatch | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """``agents``: makes the sessions, given what to call when something was observed.

        ``loop``: what watches the event loop; one that nobody has added to it counts nothing.
        ``reservations``: of SHARP resources in UFM, where there are some.
        ``job_secret``: the deployment's; without one the store has one of its own.
        """
        self._tracing = tracing
        self._spans = None if tracing is None else JobSpans(tracing)
        self._job_secret = job_secret
        self._token_days = token_days
        self._store = store
        self._planner = planner
        self._jobs_max = jobs_max
        self._wall_clock = wall_clock
        self._loop = loop or LoopWatch()
        self.history = LiveHistory(wall_clock)
        self._started = trio.current_time()
        self.agents = agents(self._look_soon)
        self.places: Final = Places(planner.sharp)
        self.without_trees: Mapping[int, str] = {}
        """Why jobs of several hosts have none, by number, as of the last look."""
        self.reservations = reservations
        if reservations is not None:
            reservations.changed = self._look_soon
        self.agents.sharing.acted = self.history.acted
        if self.agents.trees is not None:
            self.agents.trees.migrates = self.history.migrates
        self._desired = Desired()
        self.term = 0
        """0 while it does not lead."""
        self._led_until: float | None = None
        """What is known of jobs and agents is of then, where it does not lead; None: nothing is."""
        self.records: dict[str, bytes] = {}
        """Records of protocol cores, by owner, as they are on disk."""
        self.problem = STARTED_JUST_NOW
        """Why it does not lead."""
        self._store_works = True
        """Whether it did when it was used last."""
        self._one_commit = trio.Lock()
        self._asked: list[_Asked] = []
        """Changes that wait for a commit, and those of one that is under way."""
        self._store_calls = trio.CapacityLimiter(1)
        self._plans = trio.CapacityLimiter(1)
        """What the planner remembers is of one thread at a time."""
        self._look = trio.Event()
        self._unjudged: set[str] | None = None
        """Agents whose news no plan that was made knows; None: all are to be looked at."""
        self._all_judged_at = -math.inf
        self._lost = trio.Event()
        self._news = trio.Event()
        self._fault: InvariantBroken | None = None

    # -- leading

    async def run(self) -> None:
        """Until cancelled. Raises ``ConfigError`` for a store that can never be used."""
        try:
            await self._lead_again_and_again()
        finally:
            with trio.CancelScope(shield=True):
                await self._keep_history()
                async with self._one_commit:
                    self._follow("this controller is stopped")
                    await self._call(self._store.resign)

    async def _lead_again_and_again(self) -> None:
        while True:
            if await self._lead():
                await self._while_leading()
            await trio.sleep(LEAD_RETRY_S)

    async def _call(self, call: Callable[..., T], *given: Any) -> T:
        """Call the store, in a thread; what was begun is waited for, and its answer is had, come what may."""
        return await trio.to_thread.run_sync(call, *given, limiter=self._store_calls)

    async def _lead(self) -> bool:
        async with self._one_commit:
            try:
                found = await self._call(self._store.lead)
                if found is None:
                    self._store_works = True
                    self._wait("another controller leads")
                    return False
                self._desired = await self._call(self._store.load)
                self.records = dict(await self._call(self._store.records))
                self._tokens = IssuedTokens(await self._issuer(), self._token_days)
                events = await self._call(self._store.events)
            except StoreLost as error:
                await self._call(self._store.resign)
                self._store_works = False
                self._wait(str(error))
                return False
            self._store_works = True
            self.term, self.problem = found.term, ""
            self._unjudged, self._all_judged_at = None, -math.inf
            self._lost = trio.Event()
            self.history.led(found.term, events, self._desired)
            self._promise_trees()
            self.agents.lead(found.term, self._desired)
            self.places.lead()
            if self.reservations is not None:
                self.reservations.lead(self._desired, self._make_sure)
            self.agents.sharing.lead(self.records, self._keep_record)
            if self.agents.trees is not None:
                self.agents.trees.lead(found.term, self.records, self._keep_record)
        log.info("leads, term %d: %d jobs that are not over", found.term, len(self._desired.live()))
        self._look_soon()
        return True

    async def _issuer(self) -> TokenIssuer:
        """Issuer of tokens; each of a pair of controllers makes those that the other makes. Raises
        ``StoreLost``."""
        kept = self.records.pop(RECORD, None)
        if self._job_secret is not None:
            return self._job_secret
        if kept is None:
            kept = new_secret()
            await self._call(self._store.put_record, RECORD, kept)
        return TokenIssuer([kept])

    def _wait(self, why: str) -> None:
        log.log(logging.DEBUG if why == self.problem else logging.WARNING, "does not lead: %s", why)
        self.problem = self.agents.why_no_term = why

    def _lose_store(self, why: StoreLost) -> None:
        self._store_works = isinstance(why, Deposed)
        self._follow(str(why))

    def _follow(self, why: str) -> None:
        if self.term:
            log.warning("term %d is over: %s", self.term, why)
            self._led_until = trio.current_time()
        self.term, self.problem = 0, why
        self.agents.follow(why)
        self._lost.set()
        self._tell_watchers()

    async def _while_leading(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_looking)
            nursery.start_soon(self._keep_sure)
            nursery.start_soon(self._keep_keeping_history)
            nursery.start_soon(self.agents.run)
            nursery.start_soon(self.agents.sharing.run)
            if self.reservations is not None:
                nursery.start_soon(self.reservations.run)
            if self.agents.trees is not None:
                nursery.start_soon(self.agents.trees.run)
            await self._lost.wait()
            if self._fault is not None:  # whoever asked has been told that it failed
                raise self._fault
            nursery.cancel_scope.cancel()
        await self._call(self._store.resign)

    async def _keep_sure(self) -> None:
        while True:
            await trio.sleep(LOOK_S)
            try:
                async with self._one_commit:
                    await self._call(self._store.verify)
            except StoreLost as error:
                self._lose_store(error)
                return

    async def _make_sure(self) -> None:
        """Return if this controller leads now; else do not return, for all that waits is over."""
        try:
            async with self._one_commit:
                await self._call(self._store.verify)
        except StoreLost as error:
            self._lose_store(error)
            await trio.sleep_forever()

    async def _keep_keeping_history(self) -> None:
        while self.term:
            await trio.sleep(HISTORY_S)
            await self._keep_history()

    async def _keep_history(self) -> None:
        """What has happened since the last time goes to the store, behind what is promised: a few rows at a
        time, and in between whatever waits to be promised."""
        while True:
            async with self._one_commit:
                unsaved = self.history.unsaved(HISTORY_ROWS) if self.term else None
                if unsaved is None or not (unsaved.rows or unsaved.gone):
                    return
                try:
                    await self._call(self._store.keep_events, unsaved.rows, unsaved.gone)
                except StoreLost as error:
                    self._lose_store(error)

    async def _keep_looking(self) -> None:
        while True:
            with trio.move_on_after(LOOK_S):
                await self._look.wait()
            self._look = trio.Event()
            try:
                planned = await self._plan_beside()
            except NotLeading:
                return
            except InvariantBroken:
                if self._fault is None:
                    raise
                return  # it ends the controller, once
            self._see_places()
            if self.without_trees != planned.without_trees:
                self.without_trees = planned.without_trees
                self._tell_watchers()
            await trio.sleep(max(REST_S, planned.seconds))

    async def _plan_beside(self) -> Planned:
        """Plan in a thread, from what is promised and seen now, and commit that, if nobody has changed
        meanwhile what it rests on: else again, and in the end with the promises held."""
        now = trio.current_time()
        if now >= self._all_judged_at + LOOK_S:
            self._unjudged, self._all_judged_at = None, now
        for _ in range(PLANS_BESIDE):
            before = self._desired
            planned = await self._planned(before)
            if await self._change(
                lambda now, before=before, planned=planned: (  # type: ignore[misc]
                    (planned.changes, True) if rests_on(planned.changes, before, now) else ((), False)
                )
            ):
                break
        else:
            async with self._one_commit:
                self._require_leading()
                planned = await self._planned(self._desired)
                await self._commit(planned.changes)
        self._unjudged = set()
        return planned

    async def _planned(self, desired: Desired) -> Planned:
        observed, reservations = self.agents.observed(), self.reservations
        news = self.agents.news()
        if self._unjudged is not None:
            self._unjudged |= news
        pool = None if reservations is None else reservations.pool
        if reservations is not None:
            observed = reservations.observed(observed)
        return await trio.to_thread.run_sync(
            partial(
                planned,
                desired,
                observed,
                self._planner,
                pool=pool,
                news_of=None if self._unjudged is None else frozenset(self._unjudged),
            ),
            limiter=self._plans,
        )

    def _see_places(self) -> None:
        if not self._planner.sharp:
            return
        before = self.places.standings
        for move in self.places.heed(self._desired, self.agents.observed(), trio.current_time()):
            log.info(
                "job %s: its tree moved from %s to %s in %.3f s, of which %.3f s until all hosts had given "
                "their places back, and %.3f s until they were attached again",
                *(move.job, move.old, move.new, move.total_s, move.release_s, move.acquire_s),
            )
        if self.places.standings != before:
            self._tell_watchers()

    def _look_soon(self) -> None:
        self._look.set()

    # -- commits

    async def _change(self, of: Callable[[Desired], tuple[Sequence[Change], T]]) -> T:
        """What waits for a commit is in the next one together: with a slow disk, or many who ask, each waits
        for two commits at most. Raises ``NotLeading``; then it is not known whether it was done."""
        asked = _Asked(of)
        self._asked.append(asked)
        try:
            async with self._one_commit:
                if not asked.is_over:
                    await self._commit_asked()
        finally:
            if not asked.is_over:
                self._asked.remove(asked)
        if asked.error is not None:
            raise asked.error
        answer: T = asked.answer
        return answer

    async def _commit_asked(self) -> None:
        """Commit what all have asked for, each as if those before it had been committed."""
        together = tuple(self._asked)
        changes: list[Change] = []
        view = self._desired
        for asked in together:
            try:
                self._require_leading()
                own, asked.answer = asked.of(view)
                if own and asked is not together[-1]:
                    view = applied(view, own)
            except InvariantBroken as error:
                self._fault = asked.error = error
                self._lost.set()
            except InaprotoError as error:
                asked.error = error
            else:
                changes += own
        try:
            await self._commit(changes)
        except InaprotoError as error:
            for asked in together:
                asked.error = asked.error or error
        # Who is cancelled has begun nothing: the next one commits for all others.
        for asked in together:
            asked.is_over = True
        self._asked = [asked for asked in self._asked if not asked.is_over]

    async def _commit(self, changes: Sequence[Change]) -> None:
        """Raises ``NotLeading``; then it is not known whether it was done."""
        if not changes:
            return
        try:
            after = applied(self._desired, changes)
            await self._call(self._store.commit, tuple(changes), after)
        except InvariantBroken as error:
            self._fault = error
            self._lost.set()
            raise
        except StoreLost as error:
            self._lose_store(error)
            raise NotLeading(f"the store failed: {error}; ask again") from None
        self.history.committed(self._desired, after)
        log_jobs(self._desired, after, changes)
        if self._spans is not None:
            self._spans.committed(self._desired, after)
        self._desired = after
        self._promise_trees()
        self.agents.wish(after, changes)
        if self.reservations is not None:
            self.reservations.wish(after)
        self._tell_watchers()

    def _promise_trees(self) -> None:
        """Before agents hear of hosts: rings there are to have the trees that these were chosen for."""
        joint, trees = self._planner.joint, self.agents.trees
        if joint is not None and trees is not None:
            trees.promise(joint.promised(self._desired.live()))

    async def put_record(self, owner: str, body: bytes | None) -> None:
        """Write the record of a sharing group or of migration; on disk when this returns.

        Raises ``NotLeading``; then it is not known whether it was done.
        """
        async with self._one_commit:
            self._require_leading()
            try:
                await self._call(self._store.put_record, owner, body)
            except StoreLost as error:
                self._lose_store(error)
                raise NotLeading(f"the store failed: {error}") from None
            if body is None:
                self.records.pop(owner, None)
            else:
                self.records[owner] = body

    async def _keep_record(self, owner: str, body: bytes | None) -> None:
        """As :meth:`put_record`; where that cannot be it does not return, for all that waits is over."""
        try:
            await self.put_record(owner, body)
        except NotLeading:
            await trio.sleep_forever()

    def _require_leading(self) -> None:
        if not self.term:
            raise NotLeading(f"this controller does not lead: {self.problem}")

    def _tell_watchers(self) -> None:
        self._news.set()
        self._news = trio.Event()

    # -- jobs

    async def submit(self, spec: JobSpec, submission: str) -> Submitted:
        """On disk when this returns. The same again, by who knows ``submission``, is the same job.

        Raises ``JobRefused``, ``NameTaken``, ``QueueFull``, ``NotLeading``.
        """
        hosts = self._planner.topology.hosts
        if spec.hosts > hosts:
            raise JobRefused(f"job {spec.name!r}: wants {spec.hosts} hosts, the cluster has {hosts}")
        unknown = [name for name in spec.on if name not in self._planner.hosts]
        if unknown:
            raise JobRefused(f"job {spec.name!r}: the cluster file has no host {', '.join(unknown)}")
        submission_hash = hash_of(submission)

        def change(desired: Desired) -> tuple[Sequence[Change], Submitted]:
            # Another one may have had its name since: a repeat is late perhaps, and never a second job.
            for same in desired.all_named(spec.name):
                if same.spec == spec and hmac.compare_digest(same.submission_hash, submission_hash):
                    return (), Submitted(same, self._token(self._tokens.of, same), is_new=False)
            old = desired.named(spec.name)
            if old is not None and old.state.is_live:
                raise NameTaken(f"job {spec.name!r}: one of that name is {old.state}; choose another name")
            if len(desired.live()) >= self._jobs_max:
                raise QueueFull(f"job {spec.name!r}: {self._jobs_max} jobs are there, its limit; later")
            asked = Job(
                number=desired.next_job,
                spec=spec,
                submission_hash=submission_hash,
                submitted_at=self._wall_clock(),
            )
            job = self._token(self._tokens.admitted, asked)
            return (SetJob(job),), Submitted(job, self._tokens.of(job), is_new=True)

        found = await self._change(change)
        self._look_soon()
        return replace(found, job=self._desired.jobs.get(found.job.number, found.job))

    def _token(self, make: Callable[[Job], T], job: Job) -> T:
        """Raises ``JobRefused``."""
        try:
            return make(job)
        except LocalMisuse as error:
            raise JobRefused(f"job {job.spec.name!r}: {error}") from None

    async def cancel(self, name: str) -> Job:
        """On disk when this returns; a job that is over stays as it is.

        Raises ``NoSuchJob``, ``NotLeading``.
        """

        def change(desired: Desired) -> tuple[Sequence[Change], int]:
            job = self._named(desired, name)
            if not job.state.is_live:
                return (), job.number
            return (SetJob(replace(job, state=JobState.CANCELLED, why="by request")),), job.number

        number = await self._change(change)
        self._look_soon()
        return self._desired.jobs[number]

    def job(self, name: str) -> Job:
        """Raises ``NoSuchJob``, ``NotLeading``."""
        self._require_leading()
        return self._named(self._desired, name)

    def jobs(self, *, live: bool) -> list[Job]:
        """In order of submission; ``live``: only those that are not over. Raises ``NotLeading``."""
        self._require_leading()
        found = self._desired.jobs
        return self._desired.live() if live else [found[number] for number in sorted(found)]

    async def job_after(self, name: str, revision: int, wait_s: float) -> Job:
        """The job once it is newer than ``revision``, or as it is after ``wait_s`` seconds.

        Raises ``NoSuchJob``, ``NotLeading``.
        """
        with trio.move_on_after(wait_s):
            while self.job(name).revision <= revision:
                await self._news.wait()
        return self.job(name)

    def prediction(self, job: Job) -> dict[str, Any] | None:
        """What the planner has told of the tree of a job whose hosts and tree it chose together."""
        joint, route = self._planner.joint, job.route
        if joint is None or route is None:
            return None
        tree = joint.tree(job)
        measures = {} if tree is None else tree.document()
        return {"by": "roots" if route.why else "paring", "reason": route.why, **measures}

    # -- trees in SHARP

    def place_roots(self, name: str) -> list[str]:
        """Roots at which the job, if it is not over, may have a tree in SHARP. Raises ``NotLeading``."""
        self._require_leading()
        job = self._desired.named(name)
        return [] if job is None or not job.state.is_live else self._planner.sharp_roots(job.number)

    async def wish_root(self, name: str, root: str) -> None:
        """The job's tree in SHARP shall have this root; empty: any. On disk when this returns.

        Raises ``NoSuchJob``, ``NotLeading``.
        """

        def change(desired: Desired) -> tuple[Sequence[Change], None]:
            job = self._named(desired, name)
            if not job.state.is_live or job.root == root:
                return (), None
            return (SetJob(replace(job, root=root)),), None

        await self._change(change)
        self._look_soon()

    async def until_placed_at(self, name: str, root: str, wait_s: float) -> bool:
        """Whether the job is attached at all its hosts by a tree of this root, at the latest in ``wait_s``.

        Raises ``NoSuchJob``, ``NotLeading``.
        """
        with trio.move_on_after(wait_s):
            while not self.places.stands_at(self.job(name).number, root):
                await self._news.wait()
        return self.places.stands_at(self.job(name).number, root)

    def _named(self, desired: Desired, name: str) -> Job:
        job = desired.named(name)
        if job is None:
            some = ", ".join(one.spec.name for one in desired.live()[:10])
            raise NoSuchJob(f"no job {name!r}; there are: {some or 'none'}")
        return job

    # -- status

    @property
    def topology(self) -> GraphTopology:
        return self._planner.topology

    def trees(self) -> TreeService:
        """What moves the trees of jobs on the path ``shared``. Raises ``NotLeading``."""
        self._require_leading()
        if self.agents.trees is None:
            raise NotLeading("this controller moves no trees")
        return self.agents.trees

    def sharing(self) -> list[dict[str, Any]]:
        """Sharing of each pool that jobs share by turns. Raises ``NotLeading``."""
        self._require_leading()
        return self.agents.sharing.status()

    def _age_s(self) -> float | None:
        """Age of what is known of jobs and agents; None: nothing is."""
        if self.term:
            return 0.0
        return None if self._led_until is None else round(trio.current_time() - self._led_until, 3)

    def status(self) -> dict[str, Any]:
        """For people and their programs; fields may be added. ``as_of_s``: how old what follows it is."""
        observed = self.agents.observed()
        counts: Mapping[str, int] = {
            state.value: sum(job.state is state for job in self._desired.jobs.values()) for state in JobState
        }
        return {
            "role": "controller",
            "version": version("inaproto"),
            "uptime_s": round(trio.current_time() - self._started, 3),
            "leads": bool(self.term),
            "term": self.term,
            "problem": self.problem,
            "store_works": self._store_works,
            "as_of_s": self._age_s(),
            "revision": self._desired.revision,
            "jobs": counts,
            "jobs_without_tree": sum(wants_attention(why) for why in self.without_trees.values()),
            "grants": len(self._desired.grants),
            "grants_to_be_freed": sum(one.released is not None for one in self._desired.grants.values()),
            "capacity": capacity.said(self.topology),
            "placement": self._planner.placement,
            "sharing": self.agents.sharing.status(),
            "trees": {} if self.agents.trees is None else self.agents.trees.status(),
            "places": self.places.status(self._desired),
            "reservations": None if self.reservations is None else self.reservations.status(),
            "agents": {
                name: {"presence": agent.presence.value, "revision": agent.applied, "holds": len(agent.holds)}
                for name, agent in sorted(observed.agents.items())
            },
            "history": self.history.status(),
            "loop": self._loop.status(),
            "spans": None if self._tracing is None else self._tracing.status(),
        }
