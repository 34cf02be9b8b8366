"""A job whose ring through the switches is moved from tree to tree, step by step."""

from __future__ import annotations

from typing import Any

from inaproto.core.rendezvous.events import MemberParked, RendezvousAction, RingStands, Send, TreesWished
from inaproto.core.rendezvous.tree_moves import stands
from inaproto.wire.messages.ina import InaParked
from inaproto.wire.messages.switch import PoolSpec
from inaproto.wire.messages.trees import FabricTree, TreeState, TreeWished
from tests.unit.rendezvous_hosts import World
from tests.unit.test_rendezvous_shared import joined

SPINE0 = FabricTree("spine0", (("leaf0", "spine0"), ("leaf1", "spine0")))
SPINE1 = FabricTree("spine1", (("leaf0", "spine1"), ("leaf1", "spine1")))
HOSTS = ("h0", "h1", "h2")
POOL = PoolSpec("shared", 2)
CONFIG: dict[str, Any] = {"pool": POOL, "root": "spine0"}


def wish(
    world: World, epoch: int, tree: FabricTree | None, job: str = "train", *, anew: bool = False
) -> list[RendezvousAction]:
    return world.step(TreesWished((TreeWished(job, epoch, tree, anew),)))


def stand(world: World, actions: list[RendezvousAction]) -> list[RendezvousAction]:
    """As the control plane does it, which has told the hosts."""
    told = {stands(action.message): None for action in actions if isinstance(action, Send)}
    return [action for ring in told if ring for action in world.step(RingStands(ring))]


def started(**config: Any) -> World:
    """Its ring stands, where nothing is wished on the fabric's own tree."""
    world, _ = joined(**CONFIG | config)
    stand(world, world.ready())
    return world


def parks(world: World, host: int, messages: int, epoch: int, **changes: Any) -> list[RendezvousAction]:
    ring_id = changes.pop("ring_id", world.job.ina_ring_id)
    told = InaParked(job="train", rank=world.ranks[host][-1], ring_id=ring_id, epoch=epoch, messages=messages)
    return world.step(MemberParked(world.session[host], told))


def park_all(world: World, messages: int, epoch: int) -> list[RendezvousAction]:
    return [action for host in world.ranks for action in parks(world, host, messages, epoch)]


def state(world: World) -> TreeState:
    [found] = world.core.tree_states()
    return found


def parked(world: World, messages: int = 40, epoch: int = 3) -> int:
    """Returns the id of the ring."""
    ring_id = world.job.ina_ring_id
    wish(world, epoch, None)
    park_all(world, messages, epoch)
    assert state(world) == TreeState("train", HOSTS, epoch, "parked")
    return ring_id
