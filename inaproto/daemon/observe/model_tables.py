"""Trees of models for people: who is where in them, how far everybody is, and what has happened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from inaproto.plain_cells import plain


def show_server(status: Mapping[str, Any]) -> Iterable[RenderableType]:
    """Show ``ParameterServer.status``."""
    yield Text(f"server {status['name']}: pid {status['pid']}, up {status['uptime_s']:.0f} s")
    if status["refused"]:
        told = ", ".join(f"{reason} {count}" for reason, count in status["refused"].items())
        yield Text(f"  connections refused: {told}")
    yield from show_nic(status.get("nic"))
    if status["shards"]:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for column in ("shard", "elements", "clock", "fastest", "left", "log bytes", "snapshots"):
            table.add_column(column, overflow="fold")
        for shard in status["shards"]:
            table.add_row(*plain(*_root(shard)))
        yield table
    for shard in status["shards"]:
        name = f"{shard['model']}/{shard['shard']}"
        yield Text(f"    {name}: {_tree(shard)}")
        yield from _troubles(name, shard)


def show_models(models: Iterable[Mapping[str, Any]]) -> Iterable[RenderableType]:
    """Show ``HostModels.status``: part of a host's."""
    for model in models:
        worker = model["worker"]
        told = f"  model {model['model']}: worker {worker['worker']}, "
        if worker["has_left"]:
            told += "which has left"
        elif not worker["has_process"]:
            told += f"without a process for {worker['since_s']:.0f} s"
        else:
            told += f"at clock {worker['clock']}, {worker['pulls']} pulls"
            if worker["waits_for"]:
                told += (
                    f"; {worker['why']}" if worker["why"] else f", waits for {', '.join(worker['waits_for'])}"
                )
        yield Text(told)
        for shard in model["shards"]:
            state = "below" if shard["attached"] else "looks for"
            children = ", ".join(child["host"] for child in shard["children"] if child["attached"])
            yield Text(
                f"    shard {shard['shard']} at {shard['server']}: {state} {shard['parent']}"
                f"{' (tree torn down)' if shard['direct'] else ''}, above {children or 'nobody'}; the server "
                f"has the updates from here up to {_clock(shard['root']['slowest'])}"
            )
            yield from _troubles(f"{model['model']}/{shard['shard']}", shard)


def show_nic(nic: Mapping[str, Any] | None) -> Iterable[RenderableType]:
    """For words and arrays; None: nobody has named one."""
    if nic is None:
        return
    carried = ", ".join(f"{count / 1e6:.1f} MB by {by}" for by, count in sorted(nic["carried"].items()))
    told = f"{nic['name']} {nic['ip']}, {nic['queue_pairs']} queue pairs" if nic["name"] else "none now"
    if nic["trouble"]:
        told += f" ({nic['trouble']})"
    yield Text(f"  NIC of the trees: {told}; {carried or 'nothing has gone'}")


def _root(shard: Mapping[str, Any]) -> Iterable[object]:
    clocks = shard["clocks"]
    yield f"{shard['model']}/{shard['shard']}"
    yield f"{shard['elements']} {shard['dtype']}"
    yield _clock(clocks["slowest"])
    yield _clock(clocks["fastest"])
    yield f"{clocks['left']} of {clocks['workers']}"
    yield shard["log_bytes"]
    yield shard["snapshots"]


def _tree(shard: Mapping[str, Any]) -> str:
    """Of a server: who is attached to it."""
    attached = [child["host"] for child in shard["children"] if child["attached"]]
    degree = shard.get("in_degree")
    told = "tree torn down" if shard["direct"] else "tree stands"
    if degree is not None and not shard["direct"]:
        told += f", in-degree {degree['now']}"
    return f"{told}, above {', '.join(attached) or 'nobody'}"


def _clock(clock: int | None) -> str:
    return "-" if clock is None else str(clock)


def _troubles(name: str, shard: Mapping[str, Any]) -> Iterable[RenderableType]:
    """Failovers and fallbacks, the newest last."""
    if shard["dead"]:
        yield Text(f"    {name}: taken for dead: {', '.join(shard['dead'])}")
    if shard.get("fault"):
        yield Text(f"    {name}: NOTHING BECOMES DURABLE: {shard['fault']}")
    for link in shard["links"]:
        if link["error"]:
            yield Text(f"    {name}: to {link['peer']}: not connected: {link['error']}")
        if link.get("why"):
            yield Text(f"    {name}: edge to {link['peer']}: {link['by']}, because {link['why']}")
        for way, limit in (("from", link["limit_in"]), ("to", link["limit_out"])):
            if limit is not None:
                told = f"{limit / 1e6:.1f} MB/s, for more important models use the link"
                yield Text(f"    {name}: {way} {link['peer']}: at most {told}")
    degree = shard.get("in_degree")
    if degree is not None and degree["changes"]:
        before = f"{degree['before']} before it" if degree["before"] != degree["now"] else "as before"
        yield Text(f"    {name}: in-degree {degree['now']} from clock {degree['first_clock']} on, {before}")
    for decision in [] if degree is None else degree["decisions"]:
        yield Text(f"    {name}: {decision}")
    for note in shard["notes"]:
        yield Text(f"    {name}: {note}")
