"""One host of an explored hand-over: its training processes, and a daemon, or what one has left.

The daemon is the product's: core, driver, holdings, links, performer and journal. The NIC is a stand-in
(:mod:`~inaproto.sim.explore.successors.nic`), and so is what waits for ranks that come back, which is part of
the daemon's tasks (``inaproto.daemon.host.successions``): it begins when all ranks are back that had not left
and the switch has welcomed the daemon. Processes do what the client library does: they come back with what
they have called and not heard the end of, and give up when the time is over in which they wait.

While an event is dealt with the host is *looked at* before each order and each store: there its daemon may
die. A copy into tensors is half done in between, too.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, NamedTuple

from inaproto.core.contract import fingerprint
from inaproto.core.host import events
from inaproto.core.host.driver import HostDriver
from inaproto.core.host.engines.two_paths import AskBinding
from inaproto.core.host.hearing import Hearing
from inaproto.core.host.holdings import Holdings, MemoryOrder
from inaproto.core.host.job import HostJob
from inaproto.core.host.journal import Past
from inaproto.core.host.operations import BoundPath, TakeResult, Woke
from inaproto.core.rdma.verbs import Completion, CompletionKind, QpAttributes, Status
from inaproto.errors import JOB_ERRORS, Blame, DaemonUnreachable, InvariantBroken, JobError
from inaproto.sim.explore.successors.config import FAR_NS, JOB, MTU, RECOVER_NS, SuccessorsConfig
from inaproto.sim.explore.successors.memory import ExploredArena, journal_of, read
from inaproto.sim.explore.successors.nic import ExploredNic, Sent
from inaproto.sim.explore.successors.remains import Process, Remains
from inaproto.sim.frames.host.tensors import HostTensors, RankTensors
from inaproto.units import Instant
from inaproto.wire.control_messages import Error, Hello, Message, Welcome
from inaproto.wire.messages.client import Join

CLOSED: Final = "closed"
LIVES: Final = 8
"""More daemons than a host has in a run."""
_LEFT_OUT: Final = frozenset({"config", "_config", "_out", "_ranks", "ranks"})
"""Of a core: what never changes, what each step begins with anew, and its ranks, which are looked at once."""


class Stage(Enum):
    DOWN = "down"
    """The daemon is dead."""
    WAITS = "waits"
    """Its successor is there, and waits for ranks, or for a switch."""
    UP = "up"


class Did(NamedTuple):
    """What a host did in a step, or before it died in the middle of one."""

    session: int
    """With the switch; 0: it has none."""
    said: tuple[Message, ...]
    """In that session."""
    sent: tuple[Sent, ...]


class Death(NamedTuple):
    """The daemon may die like that."""

    remains: Remains
    did: Did


Event = tuple[Any, ...]


class _Holdings(Holdings):
    def __init__(self, host: ExploredHost, core: HostJob, past: Past | None) -> None:
        super().__init__(
            core,
            allocate=lambda nbytes: memoryview(bytearray(nbytes)),
            first_psn=lambda: 0,
            attributes=QpAttributes(mtu=MTU),
            journal=journal_of(host.config, host.arena, past, host.look),
        )
        self._host = host

    def perform(self, order: MemoryOrder) -> None:
        self._host.look()
        if isinstance(order, TakeResult):
            self._host.note_take(order)
        super().perform(order)


class ExploredHost(HostDriver):
    holdings: _Holdings

    def __init__(self, config: SuccessorsConfig, number: int, remains: Remains | None = None) -> None:
        super().__init__(lambda: self.now)
        self.config, self.number = config, number
        self.numbers = config.ranks[number]
        self.now = Instant(0)
        self.remains = remains
        self.life = 0 if remains is None else remains.life
        self.stage = Stage.UP if remains is None else Stage.DOWN
        self.nic = ExploredNic(number, self.life)
        self.session = 0
        self.is_welcome = False
        self.is_refused = False
        """The switch took it for another than the daemon that it knew."""
        self.broken = ""
        """A rule, and how it was broken."""
        self.deaths: dict[Death, None] | None = None
        """None: nobody looks."""
        self._hearing = Hearing("")
        self._said: list[Message] = []
        self._seen: tuple[tuple[bytes, ...], ...] = ()
        """Tensors when the host was looked at last."""
        self._back: set[int] = set()
        self._past: Past | None = None
        self.arena = ExploredArena(None if remains is None else remains.arena)
        self.processes = [Process() for _ in self.numbers] if remains is None else list(remains.processes)
        sizes = [operation.nbytes for operation in config.operations]
        self._tensors_of = [RankTensors(sizes, self.nic) for _ in self.numbers]
        for at, rank in enumerate(self.numbers):
            for index, whole in enumerate(self._tensors_of[at].whole):
                whole[:] = config.input(rank, index) if remains is None else remains.tensors[at][index]
        if remains is None:
            self._begin_anew()

    def _begin_anew(self) -> None:
        """No daemon before this one has begun the job."""
        self.stage, self.arena = Stage.UP, ExploredArena()
        core = HostJob(self.config.host(self.number))
        self.begin(core, _Holdings(self, core, None))

    # --- what it is

    @property
    def is_over(self) -> bool:
        """For all its processes."""
        return all(process.ended for process in self.processes)

    @property
    def has_core(self) -> bool:
        return self.stage is Stage.UP

    @property
    def is_gathering(self) -> bool:
        return self.has_core and not self.core.has_started

    @property
    def until(self) -> int:
        """When its processes give up waiting; ``FAR_NS``: they do not."""
        if self.remains is None or self.is_over or not (self.stage is not Stage.UP or self.is_gathering):
            return FAR_NS
        return self.remains.until

    @property
    def due(self) -> int:
        """When something happens by the clock."""
        core = self.core.deadline if self.has_core and not self.core.has_ended else None
        return min(self.until, FAR_NS if core is None or core >= FAR_NS else core)

    @property
    def tensors(self) -> tuple[tuple[bytes, ...], ...]:
        return tuple(tuple(map(bytes, its.whole)) for its in self._tensors_of)

    @property
    def state(self) -> Any:
        """All that makes a difference later."""
        if self.is_over:
            return "over", self.session, tuple(self.processes), self.broken
        if self.stage is Stage.DOWN:
            return self.remains
        own = (
            self.stage,
            self.life,
            self.session,
            self.is_welcome,
            self.is_refused,
            self.until,
            tuple(self.processes),
            self.tensors,
            frozenset(self._back),
            self.broken,
        )
        if self.stage is Stage.WAITS:
            return own, self.arena.image
        core, holdings = self.core, self.holdings
        ranks = tuple(
            (rank.join, rank.id, rank.called, rank.done, rank.left_after, rank.has_ended)
            for rank in core.ranks
        )
        kept = tuple((key, bytes(data)) for key, data in holdings._kept._bytes.items())
        links = tuple(link.qpns for link in holdings.links.values())
        whole = fingerprint(core, _LEFT_OUT), fingerprint(self._hearing)
        return own, self.arena.image, ranks, kept, links, self.nic.state, whole

    # --- looked at

    def look(self) -> None:
        """Here its daemon may die."""
        if self.deaths is None:
            return
        now, seen = self.tensors, self._seen
        self._seen = now
        if now != seen:
            for at in range(len(now)):
                self._note_death((*now[:at], _half(seen[at], now[at]), *seen[at + 1 :]))
        self._note_death(now)

    def _note_death(self, tensors: tuple[tuple[bytes, ...], ...]) -> None:
        assert self.deaths is not None
        has_journal = any(process.is_in for process in self.processes)
        arena = self.arena.image if has_journal else None
        until = self.now + RECOVER_NS
        remains = Remains(self.life + 1, arena, tensors, tuple(self.processes), until)
        self.deaths[Death(remains, self._did())] = None

    def watched(self) -> None:
        """From now on it is looked at."""
        self.deaths, self._seen = {}, self.tensors

    def note_take(self, order: TakeResult) -> None:
        """It takes a result. Each is taken once, in order."""
        journal = self.holdings.journal
        assert journal is not None
        taken = journal._taken
        due = self.config.parts[taken] if taken < len(self.config.parts) else None
        if (order.op_index, order.offset, order.nbytes) != due:
            self._break(
                "each result is taken once, in order",
                f"h{self.number} has {taken}, and takes {order.nbytes} bytes at {order.offset} of all-reduce "
                f"{order.op_index}",
            )

    def _break(self, rule: str, how: str) -> None:
        self.broken = self.broken or f"{rule}: {how}"

    # --- what happens

    def handle(self, event: Event, now: int) -> Did:
        self.now = Instant(now)
        self._said.clear()
        self.nic.sent.clear()
        self.look()
        kind, *args = event
        getattr(self, f"_on_{kind}")(*args)
        self.look()
        self._check()
        return self._did()

    def _did(self) -> Did:
        return Did(self.session, tuple(self._said), tuple(self.nic.sent))

    def _on_nothing(self) -> None: ...

    def _on_calls(self, at: int) -> None:
        process = self.processes[at]
        self.processes[at] = process._replace(called=process.called + 1)
        self.feed(events.RankCalled(self.numbers[at], self.config.operations[process.called]))

    def _on_leaves(self, at: int) -> None:
        self.processes[at] = self.processes[at]._replace(has_left=True)
        self.feed(events.RankLeft(self.numbers[at]))

    def _on_lands(self, sent: Sent) -> None:
        completion = self.nic.lands(sent)
        self.look()
        self.completed_all([completion])

    def _on_acknowledged(self, qpn: int, wr_id: int) -> None:
        self.completed_all([Completion(qpn, CompletionKind.SEND, wr_id, Status.SUCCESS)])

    def _on_fails(self, qpn: int, wr_id: int) -> None:
        self.completed_all([Completion(qpn, CompletionKind.SEND, wr_id, Status.RETRY_EXCEEDED)])

    def _on_wakes(self) -> None:
        self.feed(Woke())

    def _on_gives_up(self) -> None:
        """Nobody has come in time who goes on with them."""
        for at, process in enumerate(self.processes):
            if not process.ended:
                self._end(at, DaemonUnreachable.code)
                if self.is_gathering and self.core.ranks.get(self.numbers[at]) is not None:
                    self.feed(events.RankGone(self.numbers[at], "it gave up"))

    def _on_connects(self) -> None:
        self.session, self.is_refused = 1 + self.number * LIVES + self.life, False
        host = self.number
        self._say(
            Hello(
                id=1,
                host=f"h{host}",
                mac=bytes([2, 0, 0, 0, 0, host + 1]),
                ip=bytes([10, 0, 0, host + 1]),
                instance=f"h{host}/{self.life}",
                overlays=True,
                succeeds=True,
            )
        )

    def _on_hears(self, message: Message) -> None:
        match message:
            case Welcome():
                self.is_welcome, self._hearing = True, Hearing(message.boot_id)
                self._go_on()
            case Error(code="hello_refused"):
                self.session, self.is_refused = 0, True
            case _ if self.has_core and not self.core.has_ended:
                for _, event in self._hearing.heard(message, [self.core]):
                    self.feed(event)

    # --- another daemon

    def _on_starts(self) -> None:
        assert self.remains is not None
        if self.remains.arena is None:
            self._begin_anew()
        else:
            self.stage = Stage.WAITS

    def _on_rejoins(self, at: int) -> None:
        """A rank is back, with what it has called. What the journal says was checked when the daemon died."""
        if self.stage is Stage.UP and not self.core.has_ended:  # it had left, and hears of the end
            self._back.add(at)
            return
        past = read(self.config, self.arena)
        if past is None:
            raise InvariantBroken("a rank brings the journal of a job that has not begun")
        if past.failure is not None:
            self._hear_of_end(at, past, *past.failure)
            return
        self._past = self._past or past
        self._back.add(at)
        self._go_on()

    def _hear_of_end(self, at: int, past: Past, code: str, words: str) -> None:
        is_closed = not words and self.numbers[at] in past.left
        self._end(at, CLOSED if is_closed else JOB_ERRORS.get(code, JobError).code)

    def _go_on(self) -> None:
        """If that can be."""
        if self.is_gathering and not self.core.has_ended:
            if not len(self.core.ranks):
                self._join()
        elif self.stage is Stage.WAITS and self._past is not None and self.is_welcome:
            past = self._past
            awaited = {its.rank for its in past.joins if its.rank not in past.left}
            if awaited <= {self.numbers[at] for at in self._back}:
                self._succeed(past)

    def _join(self) -> None:
        self._open(self.core.opening)
        for rank in self.numbers:
            id = self._request(rank)
            join = Join(
                id=id,
                job=JOB,
                rank=rank,
                size=self.config.size,
                key="key",
                pid=rank + 1,
                path="chain" if self.config.path == "chain" else "auto",
                life=f"{rank}",
            )
            self.feed(events.RankJoined(join, id))

    def _request(self, rank: int) -> int:
        return 100 * (self.life + 1) + rank

    def _succeed(self, past: Past) -> None:
        core = HostJob.of_successor(self.config.host(self.number), past, self.now)
        self.stage = Stage.UP
        self.begin(core, _Holdings(self, core, past))
        holdings, operations = self.holdings, self.config.operations
        for at in sorted(self._back):
            process = self.processes[at]
            for index in range(max(process.done, past.next_index), process.called):
                self.feed(events.RankCalled(self.numbers[at], operations[index]))
        holdings.tensors = self._tensors()
        holdings.restore(past)
        self.arena.keep_only(holdings.journal.nbytes if holdings.journal else 0)
        for at in sorted(self._back):
            for index in range(self.processes[at].done, past.next_index):
                self._done(at, index)
        self.look()
        self.feed(events.SwitchBack(tuple(self._request(rank.number) for rank in core.ranks)))
        for at in sorted(self._back):
            if self.processes[at].has_left and self.numbers[at] not in past.left:
                self.feed(events.RankLeft(self.numbers[at]))

    # --- what is ordered

    def _perform(self, action: events.ShellAction) -> None:
        self.look()
        match action:
            case events.Tell(message):
                self._say(message)
            case events.RanksBegun():
                self.processes = [process._replace(is_in=True) for process in self.processes]
            case events.AllReduceDone(op_index):
                for at in range(len(self.processes)):
                    self._done(at, op_index)
            case events.RankFailed(number, error):
                self._end(self.numbers.index(number), error.code)
            case events.RankClosed(number):
                at = self.numbers.index(number)
                if self.remains is None or self.remains.arena is None or at in self._back:
                    self._end(at, CLOSED)
            case Blame():
                self._break("nobody is to blame", f"h{self.number} blames {action}")
            case AskBinding() | events.AnnounceAgain() | events.LetGo():
                self._break("a host orders what it should", f"h{self.number}: {action}")
            case _:
                pass

    def _say(self, message: Message) -> None:
        self._said.append(message)

    def _done(self, at: int, index: int) -> None:
        process = self.processes[at]
        if process.done != index or index >= process.called:
            self._break(
                "an all-reduce ends once, in order", f"rank {self.numbers[at]} hears of {index} again"
            )
        self.processes[at] = process._replace(done=index + 1)

    def _end(self, at: int, how: str) -> None:
        process = self.processes[at]
        if process.ended:
            self._break("a job ends once", f"rank {self.numbers[at]}: {process.ended}, then {how}")
        if how == CLOSED and not (process.has_left and process.done == len(self.config.operations)):
            self._break("a job closes when all have left", f"rank {self.numbers[at]}")
        self.processes[at] = process._replace(ended=how)

    def _faulted(self, fault: Exception) -> None:
        self._break("no host has a fault", f"h{self.number}: {fault!r}")

    def _tensors(self) -> HostTensors:
        return HostTensors(self._tensors_of, lambda index: self.config.operations[index])

    def _nic_for(self, order: events.OpenLinks) -> ExploredNic:
        return self.nic

    def _begin_connecting(self, path: BoundPath) -> None:
        self.feed(events.LinkReady(path))

    def _closing(self, order: events.CloseLinks | events.CloseIna | events.KeepResults) -> None:
        self.look()

    # --- rules

    def _check(self) -> None:
        """Who has heard that an all-reduce has ended has its result, and keeps it."""
        for at, process in enumerate(self.processes):
            for index in range(process.done):
                if self._tensors_of[at].whole[index] != self.config.result(index):
                    rank = self.numbers[at]
                    self._break(
                        "all ranks have the same bytes", f"all-reduce {index} is another at rank {rank}"
                    )


def _half(before: tuple[bytes, ...], after: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Where they differ, half of it copied."""
    found = []
    for old, new in zip(before, after, strict=True):
        differing = [at for at in range(len(old)) if old[at] != new[at]]
        middle = differing[len(differing) // 2] if differing else 0
        found.append(new[:middle] + old[middle:])
    return tuple(found)
