"""The ring of a job on one host, from its first rank's joining to its last one's leaving (NetReduce 3.1).

The members of a ring are hosts. The ranks that a host has of a job (:mod:`inaproto.daemon.host.local_rank`)
share one link; their operations are carried out by :mod:`inaproto.daemon.host.operations`.

The ring may end and be followed by another (:mod:`inaproto.core.host.recovery`): the queue pairs failed, a
switch restarted, an accelerator refused. The host is then halted, says how far it is, gets queue pairs for
the next ring, and its operations go on there, on the path that the switch names. A host that has lost the
switch altogether waits for it, and announces its ranks again with their progress.

Invariants: calls never block and never wait; whatever ends it ends it once, tells the owner of each rank
once, and gives queue pairs and memory back. Until the first ring connects ranks come and go by themselves;
from then on the loss of one is the end of all. A host whose ranks have left keeps everything until the ranks
of all hosts have (``Closed``): its transport may still have to repeat what a neighbour lacks, or to
acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inaproto.core.host.operations import Fail
from inaproto.core.switch.ring_spec import SHARED_POOL
from inaproto.daemon.host.links import HostLinks
from inaproto.daemon.host.local_rank import REASON_CHARACTERS_MAX, LocalRank
from inaproto.daemon.host.operations import IN_RING, OPERATIONS_MAX, Phase
from inaproto.daemon.host.totals import HostTotals
from inaproto.daemon.host.turns import Turns
from inaproto.daemon.settings.config import HostSettings
from inaproto.errors import (
    FabricError,
    JobError,
    JoinRefused,
    LocalMisuse,
    RankLost,
)
from inaproto.ports import (
    Nic,
    RandomBits,
)
from inaproto.units import MS, Instant
from inaproto.wire.control_messages import (
    Broken,
    Gone,
    Halt,
    Halted,
    Left,
    Member,
    Message,
    Ring,
)
from inaproto.wire.ina_messages import InaStands

HALTS_SHOWN = 5


class HostRing(HostLinks):
    """The ranks of job ``job`` on this host, and their ring; ``tell`` sends a message to the switch.

    Raises ``JoinRefused`` when memory or the NIC's resources are short.
    """

    def __init__(
        self,
        job: str,
        *,
        settings: HostSettings,
        nic: Nic,
        tell: Callable[[Message], None],
        clock: Callable[[], Instant],
        log: Callable[[str], None],
        random_bits: RandomBits,
        turns: Turns | None = None,
        hurry: Callable[[], None] | None = None,
        totals: HostTotals | None = None,
    ) -> None:
        super().__init__(job, settings=settings, tell=tell, clock=clock, log=log, totals=totals)
        self._turns = turns or self._turns
        self._hurry = hurry or self._hurry
        self._random_bits = random_bits
        self._answers: dict[int, Ring] = {}
        """By rank, of a ring that does not have the answers to all its ranks here yet."""
        self._boot_id = ""
        """Of the switch of its last ring."""
        self._prepared_for: int | None = None
        """Ring that it was told to make a link for, before its first one."""
        self.last_words: list[Gone] = []
        """Why its ranks ended while the host had no switch, which is to be told."""
        self._open_links(nic, "switch", "")
        self._to_await = []
        self._unready = []

    @property
    def ring_id(self) -> int | None:
        return self._prepared_for if self._ring is None else self._ring.ring_id

    def is_of(self, ring_id: int) -> bool:
        """Whether the end of that ring's job is the end of these ranks.

        Those that came back are of their job's present ring, though they may not have heard of that.
        """
        return self.ring_id == ring_id or self._came_back

    @property
    def has_come_back(self) -> bool:
        """Announced again after its host had lost the switch, and in no ring since."""
        return self._came_back

    @property
    def is_gathering(self) -> bool:
        """Its job has no ring yet: another rank may join it."""
        return self.phase is Phase.JOINING and not self._has_started

    @property
    def may_have_orphans(self) -> bool:
        """A process may have given up waiting for the others; nobody depends on it yet."""
        return self.phase in (Phase.JOINING, Phase.CONNECTING) or (
            self.phase is Phase.HALTED and not self._has_started
        )

    @property
    def is_elastic(self) -> bool:
        """The others may go on without a rank that is lost: then they fail in its name, not in their own."""
        return any(rank.join.elastic for rank in self.ranks.values())

    @property
    def is_away(self) -> bool:
        return self.phase is Phase.AWAY

    # --- joining

    def add(self, rank: LocalRank) -> None:
        """A rank joins while the job gathers."""
        rank.ring = self
        self.ranks = dict(sorted((self.ranks | {rank.number: rank}).items()))

    def _withdraw(self, rank: LocalRank) -> None:
        del self.ranks[rank.number]
        self._answers.pop(rank.number, None)
        if not self.ranks:
            self.close()

    def member_message(self, rank: LocalRank, id: int) -> Member:
        """What the switch is told of one of the ranks."""
        join, settings = rank.join, self._settings
        return Member(
            id=id,
            job=join.job,
            rank=join.rank,
            size=join.size,
            key=join.key,
            pid=join.pid,
            host=settings.name,
            mtu=settings.mtu,
            window_messages=settings.window_messages,
            message_packets=settings.message_packets,
            out=self._link.out,
            into=self._link.into,
            progress=self._progress if self._has_started else None,
            left_after=rank.left_after,
            boot_id=self._boot_id,
            path=join.path,
            exact_plan=join.exact_plan,
            elastic=join.elastic,
        )

    def answered(self, rank: LocalRank, ring: Ring, boot_id: str) -> list[LocalRank]:
        """The switch, of boot ``boot_id``, has taken ``rank`` into a ring: connect when it has all of them.

        Gives back the ranks here that the ring was made without: they are this object's no more.
        """
        if self.phase not in (Phase.JOINING, Phase.HALTED):
            return []
        here = ring.ranks[ring.position] if ring.position < len(ring.ranks) else ()
        if rank.number not in here:
            self.lose(
                JoinRefused(f"{self}: the switch's ring {here} cannot be used here: it is without them")
            )
            return []
        self._answers[rank.number] = ring
        # A rank that was lost meanwhile is not answered, nor one that came in its place: that ring will fail.
        if not all(other in self._answers and self._answers[other].ring_id == ring.ring_id for other in here):
            return []
        self._answers.clear()
        strangers = [other for other in self.ranks.values() if other.number not in here]
        for stranger in strangers:
            del self.ranks[stranger.number]
            stranger.ring = None
        self._connect(ring, boot_id)
        return strangers

    def _connect(self, ring: Ring, boot_id: str) -> None:
        """All ranks are there: post receives, connect the queue pairs; :meth:`connected` says so."""
        self._ring, self._boot_id = ring, boot_id
        self._is_broken = self._came_back = False
        try:
            self._engine = self._make_engine(ring)
            self._connect_links(ring)
        except (LocalMisuse, ValueError) as error:
            self.lose(JoinRefused(f"{self}: the switch's ring cannot be used here: {error}"))
            return
        except FabricError as error:
            self.phase = Phase.CONNECTING
            self._transport_failed(f"{self}: {error}")
            return
        self.phase = Phase.CONNECTING
        self._watch.ring_ended()
        self._to_await = [link for link in self._links if link.wait.is_under_way]
        self._unready = list(self._to_await)
        if not self._to_await:
            self.connected(self._link)

    def start(
        self, ina_ring_id: int = 0, *, parked: bool = False, pool: str = SHARED_POOL, stand: int = 0
    ) -> None:
        """All hosts are ready; the switches have that ring, for turns in ``pool``, or will have it."""
        engine = self._engine
        if self.phase is not Phase.CONNECTING or self._ring is None or engine is None:
            return
        stands = InaStands(job=self.job, ring_id=ina_ring_id, epoch=stand, pool=pool)
        self._attach_ina(self._ring, ina_ring_id, None if parked else stands)
        self.phase = Phase.LEFT if self._have_all_left else Phase.RUNNING
        if self._watch.ring_ended():
            self._ask_for_whom()
        if not self._has_started:
            self._has_started = True
            for rank in self.ranks.values():
                rank.owner.joined(self._ring.ring_id, OPERATIONS_MAX)
        if self._resumes:
            self._resumes = False
            self._guard(lambda: self._perform(engine.resume(self._clock())))

    # --- rings that end while the job goes on

    def halt(self, message: Halt) -> None:
        """The ring has ended: say how far this host is, with queue pairs for the next."""
        nic = self.nic
        if self.phase is Phase.JOINING:
            self._close_links()  # its job's path was chosen meanwhile, or asked for: it may need larger slots
            self._prepared_for = message.ring_id
            self._watch.ended()  # all ranks have joined
        elif message.ring_id == self.ring_id and self.phase in IN_RING:
            self._stop_ring(message.reason)
        else:
            return
        try:
            self._open_links(nic, message.path, message.plan, message.children)
        except JoinRefused as error:
            self.lose(error)
            return
        self.phase = Phase.HALTED
        self._tell(
            Halted(
                job=self.job,
                rank=self._lowest,
                ring_id=message.ring_id,
                progress=self._progress,
                out=self._link.out,
                into=self._link.into,
                ina_out=None if self._ina is None else self._ina.out,
                ina_into=None if self._ina is None else self._ina.into,
                below=self._link.below,
            )
        )

    def _stop_ring(self, reason: str) -> None:
        """Take nothing more of the ring, keep what others may lack, give the link back."""
        self.recoveries += 1
        self._totals.recoveries += 1
        self._halts = [*self._halts[1 - HALTS_SHOWN :], reason]
        self._answers.clear()
        if self._engine is not None and self._ring is not None:
            if self._ina_stands:
                self._turns.ring_ended()
            operations = self._engine.halt()
            beside = {} if self._ina is None else {self._ring.ina_ring_id: self._ina}
            self._kept.keep(operations.kept, self._link, self._began_at, beside)
            self._began_at = operations.progress
        self._close_links()

    def _break(self, reason: str) -> None:
        """The ring cannot go on here. The switch ends it for all."""
        if self._is_broken or self._ring is None or self._engine is None:
            return
        self._is_broken = True
        self._engine.halt()
        self._log(f"{self}: its ring broke, the job goes on by another: {reason}")
        self._tell(
            Broken(
                job=self.job,
                rank=self._lowest,
                ring_id=self._ring.ring_id,
                progress=self._progress,
                reason=reason[:REASON_CHARACTERS_MAX],
            )
        )

    def rejoin(self, nic: Nic, tell: Callable[[Message], None]) -> None:
        """The host has a switch again: be announced to it. Raises ``JoinRefused`` if there is no room."""
        self._tell = tell
        self._open_links(nic, "switch", "")
        try:
            for rank in self.ranks.values():
                rank.register(nic)
        except (LocalMisuse, FabricError) as error:
            self._close_links()
            raise self._no_room(error) from None
        self.phase = Phase.JOINING
        self._away_until = None
        self._came_back = True

    # --- ends

    def leave(self, rank: LocalRank) -> None:
        """A process has said that it is finished."""
        if not self._has_started or self._is_ended:
            self.gone(rank, "it left before the job had started")
        elif rank.tensors:
            self.gone(rank, f"it left while its all-reduce {min(rank.tensors)} was running")
        else:
            rank.leave()
            if self.phase is Phase.RUNNING and self._have_all_left:
                self.phase = Phase.LEFT
            self._tell(Left(job=self.job, rank=rank.number, operations=rank.left_after or 0))

    def gone(self, rank: LocalRank, reason: str) -> None:
        """A process is lost to the job: tell the switch, which tells the others. Those here hear it now."""
        if rank.has_left:
            return
        if rank.has_ended:
            if self.last_words:  # no switch has heard yet that the job has failed
                self.last_words.append(self.gone_after_end(rank, reason))
            return
        if self.is_gathering:
            self._tell(rank.gone_message(reason))
            rank.end()
            self._withdraw(rank)
            return
        error = RankLost(f"{rank.place} of job {self.job!r} is lost: {reason}")
        self._tell_gone(str(error), first=rank.gone_message(reason))
        rank.end()
        self.fail(error)

    def gone_after_end(self, rank: LocalRank, reason: str) -> Gone:
        """That a rank is lost whose job had failed: it cannot go on with the others."""
        return replace(rank.gone_message(reason), ring_id=self.ring_id or 0)

    def lose(self, error: JobError) -> None:
        """This host cannot go on, and found so itself."""
        if self.phase is not Phase.ENDED:
            self._tell_gone(str(error))
            self.fail(error)

    def stop(self, reason: str) -> None:
        """The host daemon ends, and says so to the processes itself."""
        if not self._have_all_left:
            for word in self.gone_messages(reason):
                self._tell(word)
            self.close()

    def _tell_gone(self, reason: str, *, first: Gone | None = None) -> None:
        """The first that it hears ends the job at the switch, with its words."""
        words = [] if first is None else [first]
        if first is None or not self.is_elastic:
            others = self.gone_messages(reason)
            words += [word for word in others if first is None or word.rank != first.rank]
        if self.is_away:
            self.last_words = words
        for word in words:
            self._tell(word)

    def gone_messages(self, reason: str) -> list[Gone]:
        """That its ranks are lost to their job."""
        return [rank.gone_message(reason) for rank in self.ranks.values() if not rank.has_left]

    def refused(self, rank: LocalRank, error: JobError) -> None:
        """The switch does not take a rank."""
        if self.is_gathering:
            rank.fail(error)
            self._withdraw(rank)
        elif self.is_elastic and isinstance(error, RankLost):
            self.fail(error)  # another is lost, while these were away
        else:
            self.lose(error)

    def fail_joining(self, ring_id: int, error: JobError) -> None:
        """The job of that ring has failed: its ranks here end, those that joined anew go on."""
        for number in [number for number, ring in self._answers.items() if ring.ring_id == ring_id]:
            rank = self.ranks[number]
            rank.fail(error)
            self._withdraw(rank)

    def fail(self, error: JobError) -> None:
        """The job has failed; the switch knows."""
        if self.phase is Phase.ENDED:
            return
        if self._engine is not None:
            self._perform(self._engine.step(Fail(error.code, str(error)), self._clock()))
        told = [rank for rank in self.ranks.values() if not rank.has_ended]
        if self.phase is Phase.HALTED and not self._has_started:
            # A process that joined anew is in the job's next life, with the link that is closed now.
            for word in self.gone_messages(str(error)):
                self._tell(word)
        self.close()
        for rank in told:
            rank.fail(error)

    def closed(self) -> None:
        """The ranks of all hosts have left: nobody needs these queue pairs any more."""
        if self._have_all_left and not self._is_ended:
            self.close()
            for rank in self.ranks.values():
                rank.owner.rank_closed()

    def lose_fabric(self, error: JobError) -> None:
        """The host has lost its switch: wait for the next, if it comes in time.

        Ranks that have not started yet are announced to it as if for the first time.
        """
        if self._is_ended or self.is_away:
            return
        if not self._has_started:
            self.close()
            for rank in self.ranks.values():
                rank.owner.announce_again()
        elif self._settings.recover_ms:
            self._stop_ring(str(error))
            for rank in self.ranks.values():
                rank.deregister()
            self._away_until = Instant(self._clock() + self._settings.recover_ms * MS)
            self.phase = Phase.AWAY
            self._tell = lambda message: None
        else:
            self.fail(error)

    def close(self) -> None:
        """Give queue pairs and memory back."""
        if self.phase is Phase.ENDED:
            return
        self.phase = Phase.ENDED
        if self._ina_stands:
            self._turns.ring_ended()
        self._close_links()
        self._sums.clear()
        for rank in self.ranks.values():
            rank.end()
