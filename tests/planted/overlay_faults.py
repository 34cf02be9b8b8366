"""Faults of push, pull and clock over trees of hosts, which overlay worlds find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from inaproto.core.models import rules, staleness
from inaproto.core.models.cache import Cache
from inaproto.core.models.children import Children
from inaproto.core.models.failures import Failures
from inaproto.core.models.ledger import Ledger
from inaproto.core.models.local_worker import LocalWorker
from inaproto.core.models.node import ShardNode
from inaproto.core.models.parent_link import ParentLink
from inaproto.core.models.shard import ShardRoot
from inaproto.core.models.subtree import Subtree
from inaproto.core.models.tree.shape import _Place
from inaproto.core.models.updates import goes_on
from inaproto.wire.messages.models import Epoch
from tests.planted.planting import Change, PlantedFault, by_name, fault

_RULES: Final = "MLNet 3.1, 3.2"
_FAULTS: Final = "MLNet 3.2, fault tolerance"
_TUNING: Final = "MLNet 5, future work"


_ALL: Final = (
    PlantedFault(
        "nothing_kept",
        _FAULTS,
        "keeps nothing of what is forwarded: the parent has it",
        (
            Change(Ledger.forward, "self.log += sent", "pass"),
            Change(LocalWorker.prune, "if not root.covers(update.after)", "if False"),
        ),
    ),
    fault(
        "window_sent_in_parts",
        _RULES,
        "does not wait for all children of a window",
        Ledger.forward,
        "self._pending.first_window(sub_clock)",
        "self._pending.first_window(1 << 40)",
    ),
    fault(
        "root_merges_what_is_inside",
        _FAULTS,
        "the server merges whatever is pushed",
        ShardRoot._merge,
        "if not goes_on(self._merged, update):",
        "if False:",
    ),
    fault(
        "merges_what_is_inside",
        _FAULTS,
        "merges whatever a child pushes, also what came by another way",
        goes_on,
        "return all(vector.get(worker) == clock for worker, clock in update.before.items())",
        "return True",
    ),
    fault(
        "forwards_at_equal",
        _RULES,
        "forwards at every new clock",
        staleness.forwards,
        "sub_clock // (staleness + 1) > up_clock // (staleness + 1)",
        "sub_clock >= up_clock + 1",
    ),
    fault(
        "forwards_too_late",
        _RULES,
        "forwards when it is more than s clocks behind, counted from its last push",
        staleness.forwards,
        "sub_clock // (staleness + 1) > up_clock // (staleness + 1)",
        "sub_clock - up_clock > staleness + 1",
    ),
    fault(
        "answers_from_a_stale_cache",
        _RULES,
        "answers from weights that are one clock too old",
        staleness.is_legal,
        "return model_clock(root) >= needed_clock",
        "return model_clock(root) + 1 >= needed_clock",
    ),
    fault(
        "flush_forgotten",
        _RULES,
        "asks for weights and withholds what they wait for",
        Subtree.forward,
        "is_flush=is_flush, is_held=is_held",
        "is_flush=False, is_held=is_held",
    ),
    fault(
        "window_in_another_order",
        _RULES,
        "adds what is below a node from right to left",
        _Place.add,
        "in_order = [part for group in groups for part in group]",
        "in_order = [part for group in reversed(groups) for part in group]",
    ),
    fault(
        "acknowledges_before_durable",
        _FAULTS,
        "shows what is merged before it is on the disk",
        ShardRoot._write,
        "self._persisting = record",
        "self._apply(record)\n    self._persisting = RootRecord(Clocks(), None)",
    ),
    fault(
        "new_order_at_once",
        _TUNING,
        "adds a window in the order of the newest tree, whichever its clock",
        Epoch.tree_at,
        "if clock >= self.first else self.before",
        "",
    ),
    fault(
        "epoch_not_told_to_who_asks",
        _TUNING,
        "tells of another tree those who are its children then, and nobody who comes later",
        ShardNode._child_attaches,
        "if epoch.number else []",
        "if False else []",
    ),
    fault(
        "merged_told_too_soon",
        _FAULTS,
        "tells its children what it has merged, not what is on the disk",
        ShardRoot._settle,
        "children.tell_merged(self._clocks)",
        "children.tell_merged(self._merged)",
    ),
    fault(
        "records_forgotten",
        _FAULTS,
        "starts again from the snapshot and leaves the newest record out",
        ShardRoot.__init__,
        "for record in records:",
        "for record in records[:-1]:",
    ),
    fault(
        "multicast_to_one",
        _RULES,
        "answers the first child that waits, and forgets the others",
        Children.multicast,
        "actions.append(Tell(child.node, word))",
        "actions = actions or [Tell(child.node, word)]",
    ),
    fault(
        "blames_what_was_on_its_way",
        _FAULTS,
        "blames a child for words that it said before it knew that its session is over",
        rules.fault_from_below,
        "if child is None or child.bond is Bond.NONE:",
        "if child is None:",
    ),
    fault(
        "resumes_from_the_beginning",
        _FAULTS,
        "lets a worker whose host has crashed begin anew",
        ShardNode._resume,
        "worker.resume(min(known, base))\n"
        "    return [Noted(Mark.WORKER_RESUMED), Resumed(worker.worker, min(known, base))]",
        "worker.resume(0)\n    return [Noted(Mark.WORKER_RESUMED), Resumed(worker.worker, 0)]",
    ),
    fault(
        "never_goes_back",
        _FAULTS,
        "stays with the node that adopted it",
        ParentLink._return,
        "return [Noted(Mark.RETURNED, peer), *self._go(at, now)]",
        "return []",
    ),
    fault(
        "waits_for_the_dead",
        _FAULTS,
        "waits for its parent however long that is silent",
        ParentLink._leave_the_dead,
        "if dies is None or now < dies:",
        "if True:",
    ),
    fault(
        "dead_child_is_awaited",
        _FAULTS,
        "never takes a child for dead",
        Children.age,
        "if dies is None or now < dies:",
        "if True:",
    ),
    fault(
        "never_built_up",
        _FAULTS,
        "stays in direct mode",
        Failures.new_mode,
        "return self._change(dead, is_direct=False)",
        "return None",
    ),
    fault(
        "ahead_without_bound",
        _RULES,
        "lets a worker run ahead for as long as it likes",
        LocalWorker.finish,
        "self.clock - root >= self._shard.ahead_max",
        "False",
    ),
    fault(
        "cache_without_own_updates",
        _RULES,
        "puts new weights into the cache as they came, and says that all is in them",
        Cache.plus,
        "weights = added(weights, update.delta)",
        "pass",
    ),
)

FAULTS: Final[Mapping[str, PlantedFault]] = {fault.name: fault for fault in _ALL}

FINDS: Final[Mapping[str, tuple[int, str]]] = {
    "nothing_kept": (3, "staleness bound"),
    "window_sent_in_parts": (89, "few pushes"),
    "root_merges_what_is_inside": (59, "exactly once"),
    "merges_what_is_inside": (3, "exactly once"),
    "forwards_at_equal": (1, "few pushes"),
    "forwards_too_late": (8, "every worker ends"),
    "answers_from_a_stale_cache": (0, "staleness bound"),
    "flush_forgotten": (6, "every worker ends"),
    "window_in_another_order": (89, "no staleness is serial training"),
    "acknowledges_before_durable": (0, "acknowledged is durable"),
    "merged_told_too_soon": (0, "acknowledged is durable"),
    "records_forgotten": (3, "acknowledged is durable"),
    "multicast_to_one": (1, "every worker ends"),
    "blames_what_was_on_its_way": (7, "nobody is to blame"),
    "resumes_from_the_beginning": (0, "acknowledged is durable"),
    "never_goes_back": (0, "no deadline without work"),
    "waits_for_the_dead": (0, "no deadline without work"),
    "dead_child_is_awaited": (0, "no deadline without work"),
    "never_built_up": (0, "no deadline without work"),
    "ahead_without_bound": (2, "bounded"),
    "cache_without_own_updates": (0, "exactly once"),
    "new_order_at_once": (30, "no staleness is serial training"),
    "epoch_not_told_to_who_asks": (20, "the tree is whole again"),
}
"""Of each: the seed of a world (``draw_overlay(seed, has_processes=False)``), and the rule that it breaks."""


__getattr__ = by_name(FAULTS)
