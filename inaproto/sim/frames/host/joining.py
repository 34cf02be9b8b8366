"""How the ranks of a simulated host join their job, each on its own, and get into a ring together.

As ``inaproto.daemon.host.ring`` does it: all share one link, which is there from the first rank on; the host
connects when the switch has answered all of them.
"""

from __future__ import annotations

from typing import Final

from inaproto.sim.frames.host.operations import RingOperations
from inaproto.sim.frames.host.rank import SimRank
from inaproto.sim.frames.host.state import Phase
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS
from inaproto.wire.control_messages import Error, Failed, Member, Ring

BACKOFF_NS: Final = 5 * MS


class RingJoining(RingOperations):
    """From nothing to the first ring of a life, and to those that follow it."""

    @property
    def is_gathering(self) -> bool:
        """It has no ring yet: another rank may join."""
        return self.phase is Phase.IDLE or (self.phase is Phase.JOINING and not self.has_started)

    def start(self) -> None:
        """New processes (or those that start anew) ask to join; several come up at times of their own."""
        if len(self.ranks) == 1:
            self._join(self.ranks[0])
            return
        for rank in self.ranks:
            self.host.world.agenda.after(rank.process.think_of_joining(), self._again, rank)

    def _join(self, rank: SimRank) -> None:
        if rank.has_joined or rank.is_dead or not self.is_gathering or not self.host.is_up:
            return
        if self.host.world.is_closed(self.job):  # it had left, and so had all others, when its job failed
            self.finish()
            return
        if not self.host.is_welcome:  # the host daemon keeps the request until the switch knows it
            return
        rank.pid = self._pid_of(rank)
        rank.has_joined = True
        if self.phase is Phase.IDLE:
            self._open("switch", "")
            self.phase = Phase.JOINING
        self._announce(rank)

    def _pid_of(self, rank: SimRank) -> int:
        """Of the process that joins."""
        return self.host.world.new_pid()

    def _announce(self, rank: SimRank) -> None:
        job, link = self.job, self._link
        assert link is not None
        self.host.tell(
            Member(
                id=rank.pid,
                job=job.name,
                rank=rank.index,
                size=len(job.hosts),
                key="simulated",
                pid=rank.pid,
                host=self.host.name,
                mtu=job.mtu,
                window_messages=job.window_messages,
                message_packets=job.message_packets,
                out=link.out,
                into=link.into,
                progress=self._progress if self.has_started else None,
                left_after=rank.process.called if rank.has_left else None,
                boot_id=self._boot_id,
                path=job.path,
                exact_plan=job.exact_plan,
                elastic=job.elastic,
            )
        )

    def _again(self, rank: SimRank) -> None:
        self.host.when_awake(lambda: self._join(rank))

    def _start_anew(self, rank: SimRank) -> None:
        """After a while."""
        wait_ns = BACKOFF_NS
        if len(self.ranks) > 1:
            wait_ns += rank.process.think_of_joining()
        self.host.world.agenda.after(wait_ns, self._again, rank)

    def _withdraw(self, rank: SimRank) -> None:
        """It is not taken, or lost, while its job has no ring."""
        self._answers.pop(rank.index, None)
        rank.begin()
        if not any(other.has_joined for other in self.ranks):
            self._give_up()

    def _rank_of(self, id: int) -> SimRank | None:
        """Whose ``Member`` had that id."""
        return next((rank for rank in self.ranks if rank.has_joined and rank.pid == id), None)

    def _refused(self, message: Error) -> None:
        """The switch does not take a rank."""
        rank = self._rank_of(message.of)
        if rank is None:
            return
        self.host.world.mark("a join was refused")
        if self.has_started:
            self._fail(message.code, message.message)
            return
        self._withdraw(rank)
        self._start_anew(rank)

    def _fail_joining(self, message: Failed) -> None:
        """The job of that ring has failed: its ranks here end, those that joined anew go on."""
        for rank in self.ranks:
            if rank.index in self._answers and self._answers[rank.index].ring_id == message.ring_id:
                self.host.world.mark("a ring failed before all ranks of a host were in it")
                self._withdraw(rank)
                self._start_anew(rank)

    def _answered(self, ring: Ring) -> None:
        """The switch has taken a rank into a ring: connect when it has all of this host."""
        rank = self._rank_of(ring.id)
        if rank is None:
            return
        here = ring.ranks[ring.position]
        if here != tuple(each.index for each in self.ranks) or ring.position != self.position:
            raise Violated("a ring is of all ranks", f"{self}: its ring is of {ring.ranks}")
        self._answers[rank.index] = ring
        # One that was lost meanwhile is not answered, nor one that came in its place: that ring will fail.
        if all(index in self._answers and self._answers[index].ring_id == ring.ring_id for index in here):
            self._answers.clear()
            self._connect(ring)

    # --- what is for the ring's life to do

    def finish(self) -> None:
        """All ranks of the job have left in good order."""
        raise NotImplementedError

    def _connect(self, ring: Ring) -> None:
        """All ranks are there."""
        raise NotImplementedError

    def _give_up(self) -> None:
        """Nothing is left of this life."""
        raise NotImplementedError
