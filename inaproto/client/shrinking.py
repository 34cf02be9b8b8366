"""Going on without a rank that is lost: the survivors of an elastic job find each other and join anew."""

from __future__ import annotations

from dataclasses import dataclass, replace

from inaproto.client.channel import Channel, Clock, Steps, wait_until
from inaproto.client.joining import joining, reach_daemon
from inaproto.client.parallel_rings import ParallelRings, RankChannel
from inaproto.errors import JobError, JoinRefused, LocalMisuse, OperationTimeout, RankLost
from inaproto.ports import Dial
from inaproto.wire.control_messages import Regrouped


@dataclass(frozen=True, slots=True)
class Survivors:
    """What those that go on have agreed on; of a first communicator there is nothing to agree on."""

    former_ranks: tuple[int, ...] = ()
    agreed_operations: int = 0


FIRST = Survivors()


def shrinking(
    channel: RankChannel, *, timeout: float | None, clock: Clock, dial: Dial
) -> Steps[tuple[Channel, Survivors]]:
    """Ask who goes on, and join the next job with them. Closes ``channel`` unless it raises ``LocalMisuse``.

    The question goes by the old connection: while that is open the host daemon vouches that this process is
    there. It is closed when the next job has begun.
    """
    who = channel.who
    if not who.wishes.elastic or isinstance(channel, ParallelRings):
        raise LocalMisuse(f"shrink: {who} was joined without elastic=True")
    protocol = channel.protocol
    channel.pump()
    if not isinstance(protocol.failure, RankLost):
        has = "has not failed" if protocol.failure is None else f"has failed otherwise: {protocol.failure}"
        raise LocalMisuse(f"shrink: {who} {has}; only a job that has lost a rank can shrink")
    until = None if timeout is None else clock() + timeout
    held, following = channel, None
    before = pending = Survivors(tuple(range(who.size)), 0)
    try:
        while True:
            outcome = yield from _asking_twice(held, following, until, timeout, clock)
            if following is not None and not following.is_closed:
                held.close()
                held, before = following, pending
            pending = Survivors(
                tuple(before.former_ranks[rank] for rank in outcome.ranks),
                before.agreed_operations + outcome.agreed,
            )
            left = None if until is None else max(0.0, until - clock())
            rank, size = outcome.ranks.index(held.who.rank), len(outcome.ranks)
            place = replace(who, job=outcome.job, rank=rank, size=size)
            following = yield from reach_daemon(channel.path, place, until, left, clock, dial)
            try:
                yield from joining(following, until, left, clock)
            except RankLost:  # as well: the others agree again
                if until is not None and clock() >= until:
                    raise
            else:
                joined, following = following, None
                return joined, pending
    finally:
        held.close()
        if following is not None:
            following.close()


def _asking_twice(
    held: Channel, following: Channel | None, until: float | None, timeout: float | None, clock: Clock
) -> Steps[Regrouped]:
    """Whether the job that was to follow had begun, for the others, only the switch knows.

    If it had not, ``following`` is closed, and the answer is about the job before.
    """
    if following is not None:
        try:
            return (yield from _asking(following, until, timeout, clock))
        except JoinRefused:
            following.close()
    return (yield from _asking(held, until, timeout, clock))


def _asking(channel: Channel, until: float | None, timeout: float | None, clock: Clock) -> Steps[Regrouped]:
    who, protocol = channel.who, channel.protocol
    channel.send(protocol.regroup(job=who.job, rank=who.rank))
    yield from wait_until(channel, lambda: protocol.regrouped is not None or channel.is_closed, until, clock)
    match protocol.regrouped:
        case Regrouped() as outcome if who.rank in outcome.ranks:
            return outcome
        case JobError() as refusal:
            raise refusal
        case None if channel.is_closed:
            raise JobError(f"shrink: {who} has lost its host daemon; look at its log, and start the job anew")
        case _:
            raise OperationTimeout(
                f"shrink: {who} was not told within {timeout:g} s who goes on; the switch waits until every "
                "other survivor has called shrink or ended, at most its --recover-ms"
            )
