"""What a rank waits for by its channel, and, where it waits in vain, what for: the daemon is asked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

from inaproto.client.channel import Channel, Clock, JobRank, Pumped, Steps, Wait, wait_until
from inaproto.client.protocol import PendingOperation
from inaproto.client.ring_names import parse_ring_job
from inaproto.errors import DaemonUnreachable, JobError, OperationTimeout, SwitchUnreachable

log = logging.getLogger("inaproto.client")

EXPLAIN_S = 3.0
"""A wait in vain may take this much longer, to learn what it was for."""
EXPLAIN_AGAIN_S = 0.05
LEAVE_S = 1.0


def until_joined(
    pumped: Pumped, is_over: Callable[[], bool], until: float | None, clock: Clock
) -> Steps[bool]:
    """Whether ``is_over`` became true in time. Refusals of ranks that are waited for are logged."""

    def is_over_now() -> bool:
        for channel in pumped.channels:
            refused, channel.protocol.refused = channel.protocol.refused, ""
            if refused:
                log.warning("%s waits for others: %s", channel.who, refused)
        return is_over()

    return (yield from wait_until(pumped, is_over_now, until, clock))


def leaving(channel: Channel, clock: Clock) -> Steps[None]:
    """Tell the daemon that this rank is finished, and close.

    The daemon confirms when all ranks have left and the job's name is free again; a rank that leaves
    long before the others does not wait for them.
    """
    try:
        if channel.protocol.failure is None:
            channel.leave()
            yield from until_left(channel, clock)
    finally:
        channel.close()


def until_left(pumped: Pumped, clock: Clock) -> Steps[None]:
    """Wait for the daemons to confirm it; of one that is gone, for its successor."""

    def have_left() -> bool:
        return all(channel.protocol.has_left for channel in pumped.channels)

    def is_returning() -> bool:
        return any(channel.is_returning for channel in pumped.channels)

    while not (yield from wait_until(pumped, have_left, clock() + LEAVE_S, clock)) and is_returning():
        yield from wait_until(pumped, lambda: not is_returning(), None, clock)


def ask_status(channel: Channel, until: float, clock: Clock) -> Steps[dict[str, Any] | None]:
    """The daemon's status; None if it does not answer in time."""
    protocol = channel.protocol
    channel.send(protocol.ask_status())
    yield from wait_until(
        channel,
        lambda: protocol.status is not None or protocol.failure is not None,
        until,
        clock,
    )
    return protocol.status


def my_ring(status: dict[str, Any], who: JobRank) -> dict[str, Any]:
    for ring in status.get("rings", []):
        if isinstance(ring, dict) and ring.get("job") == who.job:
            ranks = [rank.get("rank") for rank in ring.get("ranks", [])]
            if who.rank in ranks:
                return ring
    return {}


def _ranks(ring: dict[str, Any]) -> str:
    ranks = [str(rank) for rank in ring.get("waiting_for", [])]
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(ranks) if ranks else ""


def rings_of(status: dict[str, Any], job: str) -> Iterator[dict[str, Any]]:
    """The daemon's rings of ``job``, whatever their number."""
    for ring in status.get("rings", []):
        if isinstance(ring, dict) and parse_ring_job(str(ring.get("job"))).job == job:
            yield ring


def _elsewhere(status: dict[str, Any], who: JobRank) -> str:
    """Words for ranks of this host that do not agree on the number of rings, or may be unseen."""
    mine = parse_ring_job(who.job)
    for ring in rings_of(status, mine.job):
        rings = parse_ring_job(ring["job"]).rings
        if rings != mine.rings:
            names = ", ".join(str(rank.get("rank")) for rank in ring.get("ranks", []))
            return (
                f". Rank {names} of this host has another number of sockets ({rings}, here {mine.rings}): "
                "give all ranks a host daemon for each ring"
            )
    if mine.rings > 1:
        return f". Ranks with another number of sockets than {mine.rings} join other rings"
    return ""


def explain_join(channel: Channel, timeout: float | None, clock: Clock) -> Steps[JobError | None]:
    """None if the last rank came meanwhile."""
    who = channel.who
    if channel.is_returning:
        return DaemonUnreachable(
            f"{who}: the host daemon at {channel.path} is gone, and none has followed it within {timeout:g} s"
        )
    until = clock() + EXPLAIN_S
    status: dict[str, Any] | None = None
    while True:
        status = (yield from ask_status(channel, until, clock)) or status  # one that answered once is there
        if channel.protocol.joined is not None or channel.protocol.failure is not None:
            return channel.protocol.failure
        if status is None:
            text = f"{who}: the daemon at {channel.path} takes connections but does not answer"
            return DaemonUnreachable(text)
        ranks = _ranks(my_ring(status, who))
        if ranks or not status.get("switch", {}).get("connected") or clock() >= until:
            break
        yield Wait((), clock() + EXPLAIN_AGAIN_S)  # the switch has yet to say who is missing
    switch = status.get("switch", {})
    if not switch.get("connected"):
        return SwitchUnreachable(
            f"{who}: the host daemon {status.get('name')} has no switch: {switch.get('error')}. "
            f"{_start_switch(str(switch.get('path', '')))}"
        )
    ranks = ranks or "other ranks"
    refused = my_ring(status, who).get("refused")
    what = f": {refused}; each was told what to do" if refused else "; start them, or give a longer timeout"
    return OperationTimeout(
        f"{who}: joined on host {status.get('name')}, but {ranks} of {who.size} did not within "
        f"{timeout:g} s{what}{_elsewhere(status, who)}"
    )


def _start_switch(path: str) -> str:
    """What to do about a switch that is missing at ``path``, as its host daemon calls it."""
    if "://" in path:
        return f"Start it there, or give the host daemon the address where it is (--control; now {path})"
    return "Start one (`inaproto switch --help`) with the same --dir"


def explain_operation(
    channel: Channel, operation: PendingOperation, timeout: float | None, clock: Clock
) -> Steps[JobError | None]:
    """None if the operation ended meanwhile."""
    who = channel.who
    what = f"all-reduce {operation.op_index} of {who} did not end within {timeout:g} s"
    status = yield from ask_status(channel, clock() + EXPLAIN_S, clock)
    if operation.ended:
        return None
    if status is None:
        silent = (
            "is gone, and its successor is waited for" if channel.is_returning else "does not answer either"
        )
        return OperationTimeout(f"{what}: the host daemon {silent}")
    ring = my_ring(status, who)
    running = ring.get("operation") or {}
    if not ring:
        why = "the host daemon does not know the job any more"
    elif not running:
        why = "it has not started"
    elif running.get("op_index") != operation.op_index:
        why = f"it waits for all-reduce {running.get('op_index')}, submitted before"
    else:
        why = f"{running.get('results')} of {running.get('messages')} result messages are here"
    ranks = _ranks(ring)
    return OperationTimeout(f"{what}: {why}" + (f"; waits for {ranks}" if ranks else ""))
