"""The server's choice between tree and direct mode, where no heartbeat makes it look again."""

from __future__ import annotations

from inaproto.core.models.events import (
    Connected,
    Disconnected,
    Heard,
    Patience,
    RootConfig,
    RootEvent,
    ShardSpec,
    Tell,
    Woke,
)
from inaproto.core.models.shard import ShardRoot
from inaproto.units import Instant
from inaproto.wire.messages.clocks import WorkerId
from inaproto.wire.messages.models import Attach, Mode, NodeId

WAIT = 5


def test_the_tree_is_built_up_after_the_last_node_that_was_missing_is_attached() -> None:
    """``inaproto explore --world overlay --variant torn-down`` ended in direct mode, for ever."""
    shard = ShardSpec(elements=2, dtype="int64")
    patience = Patience(heartbeat_ns=None, dead_ns=WAIT, return_ns=WAIT, start_ns=0)
    nodes = (NodeId(0), NodeId(1))
    workers = tuple(WorkerId(node) for node in nodes)
    root = ShardRoot(RootConfig(shard, NodeId(9), workers, nodes, nodes, patience, 1), None, (), Instant(0))

    def says(now: int, *events: RootEvent) -> list[bool]:
        """The modes that it tells."""
        actions = [action for event in events for action in root.step(event, Instant(now))]
        return [a.word.direct for a in actions if isinstance(a, Tell) and isinstance(a.word, Mode)]

    for node in nodes:
        says(1, Connected(node), Heard(node, Attach(1, (WorkerId(node),))))
    says(2, Disconnected(nodes[1]))
    assert says(2 + WAIT, Woke()) == [True]
    assert says(10, Connected(nodes[1]), Heard(nodes[1], Attach(2, (workers[1],)))) == []
    assert root.deadline is not None, "it waits for what it has seen to last"
    assert says(root.deadline, Woke()) == [False, False]
    assert not root.view().is_direct
