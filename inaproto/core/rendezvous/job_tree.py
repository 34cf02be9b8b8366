"""Where the INA ring of a job is: through which switches, or parked between two trees (MINA section IV-A).

Of one generation of the job's rings (:mod:`inaproto.core.rendezvous.recovery`). The ring has the same queue
pairs, id and key from its beginning to its end, and numbers its messages on; what comes and goes is its place
in the switches:

- INSTALLING: they were told of it; when all have it its hosts hear that it stands;
- STANDING: its hosts may have turns on it;
- PARKING: its hosts were asked to have none, and to say when nothing of it is on its way, before
  ``park_until``;
- PARKED: all have said so, with how many messages it has carried, and no switch has it;
- ABSENT: it is not, or not any more: its job has no generation with two rings now.

Invariants: a switch has the ring only while it is INSTALLING, STANDING or PARKING; one that parks parks for
certain, whatever is wished meanwhile; its next message is ``messages`` where it is PARKED.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from inaproto.core.rendezvous.recovery import RETURN_FIRST_NS, RETURN_LAST_NS
from inaproto.units import Instant
from inaproto.wire.messages.switch import PoolSpec
from inaproto.wire.messages.trees import FabricTree


class TreeIs(Enum):
    ABSENT = "absent"
    INSTALLING = "installing"
    STANDING = "standing"
    PARKING = "parking"
    PARKED = "parked"


@dataclass(slots=True)
class JobTree:
    state: TreeIs = TreeIs.ABSENT
    tree: FabricTree | None = None
    """On which it is or was last; None: on the fabric's own."""
    pool: PoolSpec | None = None
    """Pool whose slots it has there by turns."""
    epoch: int = 0
    """Epoch of the wish that it follows; 0: none."""
    refused: str = ""
    """Why that wish cannot be followed; empty: it is."""
    retry_at: Instant | None = None
    """When the switches that refused it are asked again."""
    waits_for_room: bool = False
    """They are not asked again before that was made."""
    waits_for_switch: bool = False
    """Room by the end of another ring is of no use, as was said with the last refusal."""
    _retry_ns: int = RETURN_FIRST_NS
    tells_start: bool = False
    """While it is INSTALLING its hosts wait for the start of their generation, which says that it stands."""
    asked: int = 0
    """Epoch with which its hosts were asked to park."""
    park_until: Instant | None = None
    """They have so long."""
    parked: dict[str, int] = field(default_factory=dict)
    """Messages that it has carried, by the hosts that have parked it."""
    messages: int = 0
    """Messages that it had carried when it was parked last."""

    def parks(self, epoch: int, until: Instant | None) -> None:
        """Its hosts are asked to."""
        self.state, self.asked, self.park_until = TreeIs.PARKING, epoch, until
        self.parked.clear()

    def stands_for(self, epoch: int, tree: FabricTree | None, pool: PoolSpec | None) -> None:
        """The switches are told of it, for that wish."""
        self.state, self.tree, self.pool, self.epoch = TreeIs.INSTALLING, tree, pool, epoch
        self.park_until, self.tells_start = None, False
        self.is_settled()

    def is_standing(self) -> None:
        """All switches have it, and its hosts were told."""
        self.state, self.tells_start, self._retry_ns = TreeIs.STANDING, False, RETURN_FIRST_NS

    def is_refused(self, reason: str, now: Instant, *, until_room: bool, until_switch: bool) -> None:
        """Its switches have refused it, and have it no more; its hosts have not heard that it stands.

        They are asked again after a while, doubled each time, or when room was made; or only then.
        """
        self.state, self.refused, self.tells_start = TreeIs.PARKED, reason, False
        self.waits_for_room, self.waits_for_switch = until_room or until_switch, until_switch
        if not self.waits_for_room:
            self.retry_at = Instant(now + self._retry_ns)
            self._retry_ns = min(2 * self._retry_ns, RETURN_LAST_NS)

    def room_made(self, now: Instant, *, by_switch: bool) -> None:
        """The switches may take it now. ``by_switch``: one is there that was not, or a link of it."""
        if self.waits_for_switch and not by_switch:
            return
        if self.waits_for_room or self.retry_at is not None:
            self.retry_at, self._retry_ns = now, RETURN_FIRST_NS
        self.waits_for_room = False

    def is_settled(self) -> None:
        """The switches are asked no more."""
        self.refused, self.retry_at, self.waits_for_room = "", None, False

    def ends(self) -> None:
        """It ends with its generation. What was wished last is remembered, and why it was refused."""
        self.state, self.messages, self.park_until = TreeIs.ABSENT, 0, None
        self.retry_at, self.waits_for_room = None, False
        self.parked.clear()
