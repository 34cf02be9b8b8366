"""Counters of a NIC; monotonic, also over queue pairs that are gone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Final

from inaproto.core.rdma.queue_pair import Connection

_OF_CONNECTION: Final = {
    "retransmits": attrgetter("requester.counters.retransmits"),
    "timeouts": attrgetter("requester.counters.timeouts"),
    "timers_late": attrgetter("requester.counters.timers_late"),
    "naks_received": attrgetter("requester.counters.naks"),
    "naks_ignored": attrgetter("requester.counters.naks_ignored"),
    "rnr_naks_received": attrgetter("requester.counters.rnr_naks"),
    "acks_ignored": attrgetter("requester.counters.acks_ignored"),
    "naks_sent": attrgetter("responder.counters.naks"),
    "rnr_naks_sent": attrgetter("responder.counters.rnr_naks"),
    "duplicates": attrgetter("responder.counters.duplicates"),
    "out_of_sequence": attrgetter("responder.counters.out_of_sequence"),
    "kept_behind_gap": attrgetter("responder.counters.behind_gap"),
    "messages_received": attrgetter("responder.counters.messages"),
    "after_failure": attrgetter("responder.counters.ignored"),
}


@dataclass(slots=True)
class NicCounters:
    packets_sent: int = 0
    packets_received: int = 0
    """RoCE packets for a connected queue pair, with the right ICRC."""
    acks_sent: int = 0
    """Acknowledge packets of every kind."""
    marks_received: int = 0
    """Data packets with a congestion mark, where there is congestion control."""
    cnps_sent: int = 0
    cnps_received: int = 0
    """Congestion notifications, obeyed or not."""
    icrc_errors: int = 0
    not_for_us: int = 0
    unknown_qp: int = 0
    wrong_source: int = 0
    other_frames: int = 0
    pauses: int = 0
    """Frames that asked for silence on the link, or ended it."""
    arp_replies: int = 0
    arp_questions: int = 0
    output_lost: int = 0
    blames: int = 0
    _retired: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_OF_CONNECTION, 0))

    def retire(self, connection: Connection) -> None:
        """Keep what a connection counted when it goes."""
        _add(self._retired, connection)

    def as_dict(self, connections: Iterable[Connection]) -> dict[str, int]:
        total = {name: getattr(self, name) for name in _OWN}
        total.update(self._retired)
        for connection in connections:
            _add(total, connection)
        return total


_OWN: Final = tuple(item.name for item in fields(NicCounters) if item.name != "_retired")


def _add(total: dict[str, int], connection: Connection) -> None:
    for name, count in _OF_CONNECTION.items():
        total[name] += count(connection)
