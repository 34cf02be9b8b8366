"""What ``inaproto status`` and Prometheus are told of nodes and roots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from inaproto.core.models.events import ChildView
from inaproto.wire.messages.clocks import FOREVER, Clocks

if TYPE_CHECKING:
    from inaproto.daemon.models.shells import NodeShell, RootShell
    from inaproto.daemon.settings.models_file import Shard


def clocks_status(clocks: Clocks) -> dict[str, Any]:
    """``slowest`` and ``fastest`` of those who have not left; None: there are none."""
    running = [clock for _, clock in clocks.items() if clock < FOREVER]
    return {
        "slowest": min(running, default=None),
        "fastest": max(running, default=None),
        "workers": len(clocks),
        "left": len(clocks) - len(running),
    }


def node_status(shard: Shard, shell: NodeShell, links: Sequence[dict[str, Any]]) -> dict[str, Any]:
    view, model = shell.core.view(), shard.model
    return {
        "shard": shard.number,
        "server": shard.server,
        "parent": model.process_of(view.parent),
        "attached": view.is_attached,
        "direct": view.is_direct,
        "children": _children(shard, view.children),
        "dead": [model.process_of(node) for node in view.dead],
        "merged": clocks_status(view.merged),
        "root": clocks_status(view.root),
        "cache": view.model_clock if (view.model_clock or 0) < FOREVER else None,
        "logged": view.logged,
        "marks": dict(sorted(shell.marks.items())),
        "notes": list(shell.notes)[-8:],
        "links": list(links),
    }


def root_status(shard: Shard, shell: RootShell, links: Sequence[dict[str, Any]]) -> dict[str, Any]:
    view, model = shell.core.view(), shard.model
    return {
        "model": model.name,
        "shard": shard.number,
        "elements": shard.elements,
        "dtype": model.settings.dtype,
        "staleness": model.settings.staleness,
        "clocks": clocks_status(view.clocks),
        "by_worker": {
            model.workers[worker]: None if clock >= FOREVER else clock
            for worker, clock in view.clocks.items()
        },
        "direct": view.is_direct,
        "in_degree": _in_degree(shard, shell),
        "children": _children(shard, view.children),
        "dead": [model.process_of(node) for node in view.dead],
        "lost": [model.workers[worker] for worker in view.lost],
        "fault": shell.fault,
        "records": shell.records,
        "log_bytes": shell.store.log_bytes,
        "snapshots": shell.store.number,
        "marks": dict(sorted(shell.marks.items())),
        "notes": list(shell.notes)[-8:],
        "links": list(links),
    }


def _in_degree(shard: Shard, shell: RootShell) -> dict[str, Any] | None:
    """None: it stays as the models file has it."""
    if shell.choice is None:
        return None
    epoch = shell.core.view().epoch
    return {
        "now": shard.model.degrees[epoch.tree],
        "before": shard.model.degrees[epoch.before],
        "first_clock": epoch.first,
        "changes": epoch.number,
        **shell.choice.status(),
    }


# Control messages have at most eight levels: what is within a child is no list.
def _children(shard: Shard, children: Sequence[ChildView]) -> list[dict[str, Any]]:
    return [
        {
            "host": shard.model.process_of(child.node),
            "attached": child.is_attached,
            "workers": " ".join(shard.model.workers[worker] for worker in child.workers),
            "waits": len(child.waiting),
        }
        for child in children
    ]
