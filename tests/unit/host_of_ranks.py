"""A host with several ranks of a job: how they join, how the switch answers them, and what it hears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from inaproto.core.host import events
from inaproto.core.host.config import HostConfig
from inaproto.core.host.job import HostJob
from inaproto.core.host.operations import BASE, UP, Operation
from inaproto.core.host.view import Phase
from inaproto.units import OpIndex
from inaproto.wire.control_messages import Gone, Halt, Start
from inaproto.wire.host_header import Kind
from inaproto.wire.ina_header import Dtype, Op
from tests.unit.host_arrivals import message_at
from tests.unit.test_host_job import CONFIG, JOIN, LINKS, Host, ring

Shown = list[object]


def host_of(*numbers: int, config: HostConfig = CONFIG, elastic: bool = False) -> Host:
    """Ranks of a job of four, of requests and processes 10, 11, ... in this order."""
    host = Host()
    if config is not CONFIG:
        host.job = HostJob(config)
        host.feed(LINKS)
    for request, number in enumerate(numbers, 10):
        join = replace(JOIN, rank=number, size=4, pid=request, elastic=elastic)
        host.feed(events.RankJoined(join, request))
    host.told.clear()
    return host


def answer(
    host: Host, here: Sequence[int], ring_id: int = 5, only: Sequence[int] | None = None, **fields: Any
) -> Shown:
    """The switch answers those ``here``, or ``only`` some; what follows of the last answer."""
    whole = replace(ring(ring_id), **({"ranks": (tuple(here), (9,))} | fields))
    actions: Shown = []
    for number in here if only is None else only:
        rank = host.job.ranks[number]
        actions = shown(host.feed(events.Answered(replace(whole, id=rank.id), "boot")))
    return actions


def alone(host: Host, here: Sequence[int], ring_id: int = 5) -> Shown:
    """As ``answer``, and their job has no other host."""
    return answer(host, here, ring_id, peers=("h0",), ranks=(tuple(here),))


def running_on(*numbers: int, elastic: bool = False, config: HostConfig = CONFIG, **fields: Any) -> Host:
    """In a ring in which all are ready."""
    host = host_of(*numbers, elastic=elastic, config=config)
    answer(host, numbers, **fields)
    host.feed(events.LinkReady(BASE))
    host.feed(events.Said(Start(job="j", ring_id=5)))
    assert host.phase() is Phase.RUNNING
    host.told.clear()
    return host


def call(host: Host, number: int, index: int = 0, nbytes: int = 400, signature: int = 1) -> Shown:
    operation = Operation(OpIndex(index), Dtype.F32, Op.SUM, nbytes, signature)
    return shown(host.feed(events.RankCalled(number, operation)))


def halt(ring_id: int = 5, path: Any = "switch", reason: str = "it broke", **fields: Any) -> events.Said:
    return events.Said(Halt(job="j", ring_id=ring_id, path=path, reason=reason, **fields))


def start(ring_id: int = 5, **fields: Any) -> events.Said:
    return events.Said(Start(job="j", ring_id=ring_id, **fields))


def result(
    host: Host, serial: int = 0, *, kind: Kind = Kind.RESULT, last: bool = True, nbytes: int = 400,
    **fields: Any,
) -> events.MessageArrived:  # fmt: skip
    """A result, or what a host has added up, on a ring of hosts: by receive 3."""
    engine = host.job.engine
    assert engine is not None
    fields = {"dtype": Dtype.F32, "signature": 1} | fields
    made = message_at(engine.config, kind, serial, nbytes, last=last, **fields)
    return events.MessageArrived(BASE, UP, 3, made.imm, made.nbytes, made.header)


def unacknowledged_by(host: Host) -> int:
    view = host.job.view().operations
    assert view is not None
    return view.unacknowledged


def shown(actions: Sequence[events.HostAction]) -> Shown:
    """With errors as what they say: two of one text are not equal."""
    return [
        failed(action.number, type(action.error), str(action.error))
        if isinstance(action, events.RankFailed)
        else action.message
        if isinstance(action, events.Tell)
        else action
        for action in actions
    ]


def failed(number: int, kind: type[Exception], text: str) -> tuple[object, ...]:
    return "failed", number, kind.__name__, text


def gone(number: int, reason: str, ring_id: int = 0) -> Gone:
    return Gone(job="j", rank=number, reason=reason, ring_id=ring_id)


ENDS: Shown = [events.CloseLinks(), events.Ended()]
