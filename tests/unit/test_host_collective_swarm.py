"""Hosts with a collective that fails at random have one result, by one path (docs/protocol.md 9.8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from inaproto.core.host import collective as c
from inaproto.core.host.collective_terms import CollectiveTerms
from inaproto.core.host.operations import Operation
from inaproto.units import MS, Instant, OpIndex
from inaproto.wire.ina_header import Dtype, Op

TERMS = CollectiveTerms("sharp", frozenset({Dtype.F32}), frozenset({Op.SUM}), 64, 4096)
OPERATIONS = 40
STEPS_MAX = 40_000
MARKS = (
    "taken",
    "failed",
    "absent",
    "lost",
    "timed_out",
    "differs",
    "stood again",
    "small",
    "superseded",
    "left",
)


class Host:
    """One core, what it has given to the base in order, and its results."""

    def __init__(self, number: int) -> None:
        self.core = c.CollectiveCalls(TERMS, try_ns=800 * MS, steady_ns=number)
        self.base: list[tuple[Operation, int, bool]] = []
        self.base_done = 0
        self.trying: tuple[int, int] | None = None
        self.results: dict[int, str] = {}
        self.called = 0
        self.session: tuple[str, int] = ("", 0)


class Swarm:
    """The base ends an operation when all hosts have given the same; the collective is dice."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.hosts = [Host(number) for number in range(self.dice.randint(2, 4))]
        self.now = Instant(0)
        self.marks: Counter[str] = Counter()
        self.weather = self.dice.choice((0.0, 0.05, 0.3))
        self.places = True
        self.stood = 0

    def feed(self, host: Host, event: c.Event) -> None:
        for action in host.core.step(event, self.now):
            self.perform(host, action)

    def perform(self, host: Host, action: c.Action) -> None:
        match action:
            case c.Try(operation, attempt):
                assert host.session == ("attached", attempt)
                host.trying = (operation.index, attempt)
            case c.Vote(vote, said, stays):
                host.base.append((vote, said, stays))
            case c.ToBase(operation):
                host.base.append((operation, 0, True))
                self.marks["small"] += operation.nbytes < TERMS.bytes_min
            case c.TakeTried(operation):
                self.result(host, operation.index, "collective")
            case c.FellBack(_, code, reason):
                assert reason
                self.marks[code.name.lower()] += 1
            case c.Stands():
                self.stood += 1
                self.marks["stood again"] += self.stood > len(self.hosts)
            case c.Attach(attempt):
                assert host.session[0] == "", "released strictly before the next"
                host.session = ("attaching", attempt)
            case c.Release(attempt):
                assert host.session in (("attached", attempt), ("attaching", attempt))
                trying = [other.trying for other in self.hosts if other.trying is not None]
                assert self.weather or not trying, "nothing is under way in what is left"
                host.session = ("releasing", attempt)
                host.trying = None

    def result(self, host: Host, index: int, by: str) -> None:
        assert index == len(host.results), "in the order of calls, once"
        host.results[index] = by
        self.marks["taken"] += by == "collective"

    # --- one thing that can happen

    def base_ends(self) -> None:
        host = self.dice.choice(self.hosts)
        at = host.base_done
        given = [other.base[at] for other in self.hosts if len(other.base) > at]
        assert len({operation for operation, _, _ in given}) <= 1, "the base carries the same everywhere"
        if len(given) < len(self.hosts):
            return
        host.base_done += 1
        operation = given[0][0]
        if operation.index >> 31:
            said = [each[1] for each in given]
            stay = all(each[2] for each in given)
            self.marks["left"] += not stay and 0 <= min(said) == max(said)
            index = OpIndex(operation.index & ~(1 << 31))
            self.feed(host, c.Counted(index, min(said), max(said), stay))
        else:
            self.result(host, operation.index, "base")
            self.feed(host, c.BaseEnded(operation.index))

    def collective_ends(self) -> None:
        """All that try the same, at once; some of them may fail."""
        trying = {host.trying for host in self.hosts}
        found = next(iter(trying))
        if len(trying) > 1 or found is None:
            return
        kind = self.dice.randrange(1, 6) if self.dice.random() < self.weather else 0
        digest = self.dice.getrandbits(62)
        for host in self.hosts:
            host.trying = None
            self.feed(host, self.outcome(found, digest, kind if self.dice.random() < 0.5 else 0))

    def outcome(self, tried: tuple[int, int], digest: int, kind: int) -> c.Event:
        """At one host."""
        index, attempt = OpIndex(tried[0]), tried[1]
        match kind:
            case 1 | 2:
                return c.Tried(index, attempt, digest ^ 1)
            case 3:
                return c.TryFailed(index, attempt, "locked", False)
            case 4:
                return c.TryFailed(index, attempt, "dead", True)
            case 5:
                return c.Woke()  # it never ends here
            case _:
                return c.Tried(index, attempt, digest)

    def session_ends(self) -> None:
        host = self.dice.choice(self.hosts)
        state, attempt = host.session
        match state:
            case "attaching":
                others = [other.session for other in self.hosts]
                later = max(other.session[1] for other in self.hosts)
                if later > attempt:
                    host.session = ("", attempt)
                    self.feed(host, c.AttachFailed(attempt, "superseded"))
                elif all(other == ("attaching", attempt) for other in others):
                    fails = self.dice.random() < self.weather
                    for each in self.hosts:
                        missed = fails or self.dice.random() < self.weather / 4
                        each.session = ("" if missed else "attached", attempt)
                        event = c.AttachFailed(attempt, "busy") if missed else c.Attached(attempt)
                        self.feed(each, event)
            case "releasing":
                host.session = ("", attempt)
                self.feed(host, c.Released(attempt))
            case "attached" if self.dice.random() < self.weather / 4:
                self.feed(host, c.Lost(attempt, "idle"))

    def superseded(self) -> None:
        """Who has begun a later attempt is heard of."""
        host = self.dice.choice(self.hosts)
        latest = max(
            other.session[1]
            for other in self.hosts
            if other.session[0] == "attaching" or not other.session[1]
        )
        if latest > host.session[1]:
            self.marks["superseded"] += host.session[0] == "attached"
            self.feed(host, c.Superseded(latest))

    def allowed(self) -> None:
        """A controller gives or takes back the places of all, and some hear of it later."""
        if self.dice.random() < 0.1:
            self.places = self.dice.random() < 0.7
        self.feed(self.dice.choice(self.hosts), c.Allowed(self.places))

    def calls(self) -> None:
        host = self.dice.choice(self.hosts)
        if host.called < OPERATIONS and host.called < len(host.results) + 5:
            nbytes = 60 if host.called % 7 == 6 else 64
            operation = Operation(OpIndex(host.called), Dtype.F32, Op.SUM, nbytes, signature=host.called)
            host.called += 1
            self.feed(host, c.Called(operation))

    def time_passes(self) -> None:
        self.now = Instant(self.now + self.dice.randrange(20 * MS))
        for host in self.hosts:
            if host.core.deadline is not None and host.core.deadline <= self.now:
                self.feed(host, c.Woke())

    def run(self) -> None:
        moves: tuple[Callable[[], None], ...] = (
            self.base_ends,
            self.collective_ends,
            self.session_ends,
            self.calls,
            self.time_passes,
        )
        if self.dice.random() < 0.5:
            moves += (self.allowed,)
        for _ in range(STEPS_MAX):
            self.dice.choice((*moves, self.superseded) if self.attaching else moves)()
            if all(len(host.results) == OPERATIONS for host in self.hosts):
                break
        assert [len(host.results) for host in self.hosts] == [OPERATIONS] * len(self.hosts)
        assert len({tuple(host.results.values()) for host in self.hosts}) == 1, "one path for all"

    @property
    def attaching(self) -> bool:
        return any(host.session[0] == "attaching" for host in self.hosts)


def test_hosts_agree_whatever_the_collective_does() -> None:
    marks: Counter[str] = Counter()
    for seed in range(100):
        swarm = Swarm(seed)
        try:
            swarm.run()
        except AssertionError as error:
            pytest.fail(f"seed {seed}: {error}")
        marks += swarm.marks
    assert not [mark for mark in MARKS if not marks[mark]], marks
