"""To whom a node is attached: its parent, the next living ancestor, or the root (MLNet section 3.2).

An ancestor is dead when nothing was heard of it for ``dead_ns``. Its children then go to the next one of
their list; the last is the root, which they wait for. A node keeps dialling the ancestors that it has
skipped, and goes back when one has answered for ``return_ns``. In *direct* mode all nodes are children of the
root.
"""

from __future__ import annotations

from enum import Enum

from inaproto.core.models.events import Connect, Disconnect, Mark, NodeAction, NodeConfig, Noted, Tell
from inaproto.units import Instant
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import Detach, Heartbeat, HeartbeatAnswer, NodeId


class Bonding(Enum):
    APART = "apart"
    ASKING = "asking"
    """``Attach`` was said, and not answered."""
    ATTACHED = "attached"


class ParentLink:
    def __init__(self, config: NodeConfig, now: Instant) -> None:
        self._ancestors = config.ancestors
        self._patience = config.patience
        self._at = 0
        """Index of the parent among the ancestors."""
        self._dialled: list[NodeId] = []
        self._connected: set[NodeId] = set()
        self._silent_since: Instant | None = now
        """When the parent was last heard, with heartbeats; without, since when it is not connected."""
        self._answers_since: dict[NodeId, Instant] = {}
        """Since when ancestors before the parent answer that were dead."""
        self._last_answer: dict[NodeId, Instant] = {}
        self._met: set[NodeId] = set()
        """Ancestors that it was connected to."""
        self._start_ends = Instant(now + config.patience.start_ns)
        self._next_beat = now
        self._is_begun = False
        self._told: tuple[tuple[NodeId, ...], tuple[WorkerId, ...]] = (), ()
        """What the last heartbeat of this session told; what is new is told at once."""
        self.bonding = Bonding.APART
        self.session = 0
        self.is_direct = False

    @property
    def parent(self) -> NodeId:
        return self._ancestors[self._at]

    @property
    def is_attached(self) -> bool:
        return self.bonding is Bonding.ATTACHED

    @property
    def is_asking(self) -> bool:
        return self.bonding is Bonding.ASKING

    @property
    def may_ask(self) -> bool:
        """Whether the parent is there, and ``Attach`` is due."""
        return self.bonding is Bonding.APART and self.parent in self._connected

    @property
    def skipped(self) -> tuple[NodeId, ...]:
        """Ancestors that are taken for dead."""
        return () if self.is_direct else self._ancestors[: self._at]

    def connected(self, peer: NodeId, now: Instant) -> None:
        if peer not in self._dialled:
            return
        self._connected.add(peer)
        self._met.add(peer)
        if peer == self.parent:
            self.bonding = Bonding.APART
            self._silent_since = now if self._has_beats else None
        elif not self._has_beats:
            self._answers_since[peer] = now

    def disconnected(self, peer: NodeId, now: Instant) -> None:
        self._connected.discard(peer)
        self._answers_since.pop(peer, None)
        if peer == self.parent:
            self.bonding = Bonding.APART
            if not self._has_beats and self._silent_since is None:
                self._silent_since = now

    def heard(self, peer: NodeId, word: object, now: Instant) -> None:
        """Anything at all, from whoever it is."""
        if not self._has_beats or peer not in self._connected:
            return
        if peer == self.parent:
            self._silent_since = now
        elif isinstance(word, HeartbeatAnswer):
            self._last_answer[peer] = now
            if word.is_attached:
                self._answers_since.setdefault(peer, now)
            else:
                self._answers_since.pop(peer, None)

    def was_away(self, for_ns: int) -> None:
        """This process: no ancestor was silent meanwhile, nor answered."""
        self._start_ends = Instant(self._start_ends + for_ns)
        if self._silent_since is not None:
            self._silent_since = Instant(self._silent_since + for_ns)
        for times in (self._answers_since, self._last_answer):
            times.update({peer: Instant(time + for_ns) for peer, time in times.items()})

    def ask(self) -> int:
        """``Attach`` goes out; its session."""
        self.session += 1
        self.bonding = Bonding.ASKING
        return self.session

    def accepted(self) -> None:
        """The parent has answered; it knows of nobody who is dead or lost."""
        self.bonding = Bonding.ATTACHED
        self._told = (), ()

    def lose(self) -> None:
        """The session: ``Attach`` is due again."""
        self.bonding = Bonding.APART

    def set_mode(self, is_direct: bool, now: Instant) -> list[NodeAction]:
        if is_direct == self.is_direct:
            return []
        self.is_direct = is_direct
        mark = Mark.TORN_DOWN if is_direct else Mark.BUILT_UP
        at = len(self._ancestors) - 1 if is_direct else 0
        return [Noted(mark), *(self._go(at, now) if at != self._at else self._dial())]

    def reshape(self, ancestors: tuple[NodeId, ...], now: Instant) -> list[NodeAction]:
        """The tree is another one."""
        at = len(ancestors) - 1 if self.is_direct else 0
        if ancestors[at] != self.parent:
            return self._go(at, now, ancestors)
        self._ancestors, self._at = ancestors, at
        return self._dial()

    # --- time

    def tick(
        self, now: Instant, dead: tuple[NodeId, ...], lost: tuple[WorkerId, ...], load: int
    ) -> list[NodeAction]:
        """What is due: dialling at the start, heartbeats, another parent."""
        actions: list[NodeAction] = []
        if not self._is_begun:
            self._is_begun = True
            actions += self._dial()
        actions += self._leave_the_dead(now)
        actions += self._return(now)
        is_due = self._has_beats and now >= self._next_beat
        if is_due:
            self._next_beat = Instant(now + (self._patience.heartbeat_ns or 0))
            probed = [peer for peer in self._dialled if peer in self._connected and peer != self.parent]
            actions += [Tell(peer, Heartbeat()) for peer in probed]
        if self.parent in self._connected and (is_due or (self.is_attached and self._told != (dead, lost))):
            self._told = dead, lost
            actions.append(Tell(self.parent, Heartbeat(dead, lost, load)))
        return actions

    @property
    def deadline(self) -> Instant | None:
        if not self._is_begun:
            return self._next_beat
        times = [self._next_beat] if self._has_beats else []
        dies = self._dies
        if dies is not None and (self._has_beats or self._at < len(self._ancestors) - 1):
            times.append(dies)
        times += [Instant(since + self._patience.return_ns) for since in self._answers_since.values()]
        return min(times, default=None)

    @property
    def _dies(self) -> Instant | None:
        """When the parent is dead, if nothing is heard of it."""
        if self._silent_since is None:
            return None
        dies = Instant(self._silent_since + self._patience.dead_ns)
        return dies if self.parent in self._met else max(dies, self._start_ends)

    @property
    def _has_beats(self) -> bool:
        return self._patience.heartbeat_ns is not None

    def _leave_the_dead(self, now: Instant) -> list[NodeAction]:
        dies = self._dies
        if dies is None or now < dies:
            return []
        if self._at < len(self._ancestors) - 1:
            return [Noted(Mark.PARENT_DEAD, self.parent), *self._go(self._at + 1, now)]
        if not self._has_beats:
            return []
        # The root: it is waited for. A connection on which nothing comes may be one that only this end has.
        self._silent_since = now
        if self.parent not in self._connected:
            return []
        self._connected.discard(self.parent)
        self.bonding = Bonding.APART
        return [Noted(Mark.PARENT_DEAD, self.parent), Disconnect(self.parent), Connect(self.parent)]

    def _return(self, now: Instant) -> list[NodeAction]:
        for at, peer in enumerate(self._ancestors[: self._at]):
            since = self._answers_since.get(peer)
            if since is None or self.is_direct:
                continue
            if self._has_beats and now >= self._last_answer[peer] + self._patience.dead_ns:
                del self._answers_since[peer]
            elif now >= since + self._patience.return_ns:
                return [Noted(Mark.RETURNED, peer), *self._go(at, now)]
        return []

    def _go(self, at: int, now: Instant, ancestors: tuple[NodeId, ...] = ()) -> list[NodeAction]:
        """Go to another parent, perhaps of other ancestors."""
        actions: list[NodeAction] = []
        if self.bonding is not Bonding.APART:
            actions.append(Tell(self.parent, Detach(self.session)))
        self._ancestors = ancestors or self._ancestors
        self._at, self.bonding = at, Bonding.APART
        is_there = self.parent in self._connected
        self._silent_since = None if is_there and not self._has_beats else now
        return [*actions, *self._dial()]

    def _dial(self) -> list[NodeAction]:
        """The parent, and those that were skipped; nobody else any more."""
        wanted = [self.parent, *reversed(self.skipped)]
        actions: list[NodeAction] = [Disconnect(peer) for peer in self._dialled if peer not in wanted]
        self._connected.intersection_update(wanted)
        self._answers_since = {peer: t for peer, t in self._answers_since.items() if peer in self.skipped}
        actions += [Connect(peer) for peer in wanted if peer not in self._dialled]
        self._dialled = wanted
        return actions
