"""The status of the daemons as tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from inaproto.client.ring_names import parse_ring_job
from inaproto.core.host.ring_words import name_ranks
from inaproto.daemon.observe.model_tables import show_models, show_nic, show_server
from inaproto.daemon.observe.status import Report, needs_no_switch
from inaproto.plain_cells import plain

_RANKS_SHOWN: Final = 16
_NIC_ORDINARY: Final = frozenset(
    {"packets_sent", "packets_received", "bytes_sent", "bytes_received", "messages_received", "acks_sent"}
    | {"arp_replies", "arp_questions", "other_frames", "not_for_us"}
)


def show_report(report: Report) -> RenderableType:
    """Everything in ``report`` but its problems."""
    parts: list[RenderableType] = []
    names = ring_names(report)
    for switch in switches_of(report):
        parts += _switch(switch, names)
    for host in report.hosts:
        parts += _host(host)
    for server in report.servers:
        parts += show_server(server)
    return Group(*parts)


def switches_of(report: Report) -> list[dict[str, Any]]:
    return [one for one in (report.switch, *report.other_switches) if one is not None]


def ring_names(report: Report) -> dict[int, str]:
    """What jobs of rings are called, as far as anybody says, by the numbers that switches have for rings."""
    known = [(job["name"], job) for switch in switches_of(report) for job in switch.get("jobs", ())]
    known += [(ring["job"], ring) for host in report.hosts for ring in host.get("rings", ())]
    keys = ("ring_id", "ina_ring_id")
    return {told[key]: name for name, told in known for key in keys if told.get(key) is not None}


def _parallel_rings(jobs: Iterable[Mapping[str, Any]]) -> Iterable[RenderableType]:
    """A line for each job that has several rings, each of which the switch knows as a job."""
    found: dict[tuple[str, int], dict[int, str]] = {}
    for job in jobs:
        name = parse_ring_job(job["name"])
        if name.rings > 1:
            found.setdefault((name.job, name.rings), {})[name.ring] = _summed_by(job["path"])
    for (title, rings), paths in found.items():
        told = (f"{ring} {paths.get(ring, 'not there')}" for ring in range(rings))
        yield Text(f"  {title} has {rings} parallel rings, summed by: {', '.join(told)}")


def _refused(told: Mapping[str, Any] | None) -> str:
    """Peers that were turned away, by reason; nothing if there were none."""
    counts = (told or {}).get("refused", {})
    where = f" at {told['address']}" if told and "address" in told else ", of those that had a session"
    return f"refused{where}: " + ", ".join(f"{code} {n}" for code, n in counts.items()) if counts else ""


def _switch(status: Mapping[str, Any], names: Mapping[int, str]) -> Iterable[RenderableType]:
    totals = status["totals"]
    name = f" {status['name']}" if status.get("name") else ""
    yield Text(
        f"switch{name} in {status['dir']}: pid {status['pid']}, up {status['uptime_s']:.0f} s, "
        f"boot {status['boot_id']}, weather {status['weather']}"
    )
    yield Text(
        f"  frames in {totals['frames_in']}, out {totals['frames_out']}, lost {totals['frames_lost']}, "
        f"duplicated {totals['frames_duplicated']}, reordered {totals['frames_reordered']}"
    )
    if "control" in status:
        yield Text(f"  {_control(status['control'])}")
    else:
        yield Text(f"  hosts: {', '.join(status['hosts']) or 'none'}")
    yield from _controller(status)
    for refused in filter(
        None, map(_refused, (status.get("control_listen"), status.get("control_sessions")))
    ):
        yield Text(f"  {refused}")
    if "fabric" in status:
        yield from _fabric(status["fabric"], names)
    if status.get("trunks"):
        ways = ("trunk", "way", "port", "state", "for", "times up")
        yield _table("trunks", ways, map(_trunk, status["trunks"]))
        for trunk in status["trunks"]:
            if trunk["error"]:
                yield Text(f"  trunk to {trunk['switch']}: {trunk['error']}")
            if trunk.get("refused") and trunk["refused"] != trunk["error"]:
                yield Text(f"  trunk to {trunk['switch']}, not taken: {trunk['refused']}")
    if status["ports"]:
        yield _table(
            "ports",
            ("port", "name", "kind", "frames in", "frames out", "drops"),
            (_port(port) for port in status["ports"]),
        )
        for port in status["ports"]:
            if port.get("way"):
                yield Text(f"  {port['name']}: {port['way']}")
            if port.get("pauses"):
                told = f"{port['pauses']} frames asked for silence, {port['paused_ms']:g} ms in all"
                yield Text(f"  {port['name']}: {told}")
    if status.get("shards"):
        heads = ("shard", "UDP port", "pid", "state", "starts", "rings", "frames in", "frames out")
        yield _table("shards", heads, map(_shard, status["shards"]))
        for shard in status["shards"]:
            if shard["error"]:
                yield Text(f"  shard {shard['shard']}: {shard['error']}")
    yield from _links_away(status.get("links", ()))
    for narrow in status.get("narrow_ports", ()):
        yield Text(f"  {narrow_port_note(narrow)}", style="red")
    for one in status.get("captures", ()):
        yield Text(f"  {_capture(one)}")
    for tree in status.get("trees", ()):
        if tree["phase"] != "standing" or tree["epoch"]:
            yield Text(f"  {_tree(tree)}")
    if status["jobs"]:
        columns = ("job", "phase", "ring", "summed by", "recoveries", "ranks", "waiting for")
        yield _table("jobs", columns, map(_job, status["jobs"]))
        for job in status["jobs"]:
            for note in filter(None, (fallback_note(job), costs_note(job), recovery_note(job))):
                yield Text(f"  {note}")
        yield from _parallel_rings(status["jobs"])
    yield from _pools(status["accelerator"].get("pools", {}), names)
    counters = dict(status["accelerator"]["counters"])
    dropped = counters.pop("dropped", {})
    yield from _board(status.get("board"))
    yield Text(f"  accelerator: {_counts(counters)}")
    for what, counts in (("dropped", dropped), ("blamed", status["blames"])):
        if counts:
            yield Text(f"  {what}: {_counts(counts)}")


def _board(board: Mapping[str, Any] | None) -> Iterable[Text]:
    """Of a switch whose accelerator is elsewhere."""
    if board is None:
        return
    if not board["is_there"]:
        yield Text(f"  board: {board.get('bus', '')} does not answer: {board['error']}", style="red")
    else:
        rings = f"{board['rings']} rings of {board['ranks']} ranks, {board['slots']} slots"
        yield Text(f"  board: {board['peer']}: {board['ports']} ports, {rings}, MTU {board['mtu']}")


def _pools(pools: Mapping[str, Any], names: Mapping[int, str]) -> Iterable[RenderableType]:
    if pools:
        columns = ("pool", "jobs", "its turn", "epoch", "bytes", "turns", "conflicts", "stale")
        yield _table("pools", columns, (_pool(name, pool, names) for name, pool in pools.items()))


def _pool(name: str, pool: Mapping[str, Any], names: Mapping[int, str]) -> tuple[object, ...]:
    return (
        name,
        ", ".join(str(names.get(ring, ring)) for ring in pool["rings"]),
        *whose_turn(pool, names),
        pool["memory_bytes"],
        pool["takeovers"],
        pool["conflicts"],
        pool["stale"],
    )


def whose_turn(pool: Mapping[str, Any], names: Mapping[int, str]) -> tuple[str, str]:
    """At a pool, by a switch's status, and the epoch; ``names``: of rings."""
    holders = ("nobody's" if ring is None else str(names.get(ring, ring)) for ring in pool["holders"])
    epochs = ("-" if epoch < 0 else str(epoch) for epoch in pool["epochs"])
    return ", ".join(holders), ", ".join(epochs)


def _port(port: Mapping[str, Any]) -> tuple[object, ...]:
    frames = port["frames_in"], port["frames_out"]
    return port["port"], port.get("name", ""), port["kind"], *frames, _counts(port["drops"])


def _shard(shard: Mapping[str, Any]) -> tuple[object, ...]:
    ports = shard["ports"]
    return (
        shard["shard"],
        shard["udp_source_port"],
        shard["pid"] or "-",
        "up" if shard["is_up"] else "away",
        shard["starts"],
        len(shard["accelerator"].get("rings", ())),
        sum(port["frames_in"] for port in ports),
        sum(port["frames_out"] for port in ports),
    )


def narrow_port_note(narrow: Mapping[str, Any]) -> str:
    """A port that is too small for a ring, by a switch's status."""
    return (
        f"{narrow['port']} carries RoCE packets of {narrow['carries']} bytes at most, and job "
        f"{narrow['job']} has {narrow['mtu']}: what goes there is dropped, and the job stands still"
    )


def path_note(path: Mapping[str, Any] | None) -> str:
    """What a host has found of its path that somebody should know, by its status."""
    if not path:
        return ""
    if path["problem"] or path["unknown"]:
        return str(path["problem"] or f"its path to the switch is not known: {path['unknown']}")
    if path["asked"] == "auto" and path["carries"] < path["largest"]:
        could = f"NIC and switch could {path['largest']}"
        return f"its path carries RoCE packets of {path['carries']} bytes; {could}"
    return ""


def _links_away(links: Iterable[Mapping[str, Any]]) -> Iterable[RenderableType]:
    for link in links:
        if not link["is_attached"]:
            away = f"{link['link']}, port {link['port']}, is away for {_seconds(link['since_s'])}"
            yield Text(f"  {away}: {link['error']}")


def _capture(capture: Mapping[str, Any]) -> str:
    lost = f", {capture['lost']} are not" if capture["lost"] else ""
    end = f"; it ended: {capture['ended']}" if capture["ended"] else ""
    return f"captured for {capture['to']}: {capture['frames']} frames{lost}{end}"


def _control(control: Mapping[str, Any]) -> str:
    """Control of a switch that is not the root."""
    since = _seconds(control["since_s"])
    if not control["connected"]:
        return f"no control plane at {control['path']} for {since}, its ports are closed: {control['error']}"
    state = "admitted" if control["is_admitted"] else "not admitted yet"
    return f"{state} by control plane {control['control_boot']} at {control['path']}, {since} ago"


def _controller(status: Mapping[str, Any]) -> Iterable[RenderableType]:
    """Controller of a host or switch; nothing of one that has not been given any, or is of a version
    without."""
    told = status.get("controller", {})
    if not told.get("paths"):
        return
    if told.get("connected"):
        since, grants = _seconds(told["since_s"]), told["grants"]
        yield Text(f"  controller at {told['at']} for {since}, term {told['term']}; {grants} grants")
    elif told.get("error"):
        yield Text(f"  no controller for {_seconds(told['since_s'])}, jobs go on without: {told['error']}")


def _fabric(fabric: Mapping[str, Any], names: Mapping[int, str]) -> Iterable[RenderableType]:
    counters = fabric["counters"]
    yield _table("fabric", ("switch", "above", "state", "for", "directory"), map(_member, fabric["switches"]))
    for switch in fabric.get("refused", ()):
        yield Text(f"  refused {switch['since_s']:.0f} s ago: {switch['reason']}")
    for switch in fabric["switches"]:
        if switch["error"]:
            yield Text(f"  {switch['name']} is away: {switch['error']}")
        if _lacks_trunk(switch):
            yield Text(
                f"  {switch['name']} sums for no other switch, its trunk to {switch['above']} is down: "
                f"{switch['trunk']['error']}"
            )
        for link in switch.get("further", ()):
            if _lacks_trunk(link):
                yield Text(
                    f"  {switch['name']} is in no tree of {link['above']}, its trunk there is down: "
                    f"{link['trunk']['error']}"
                )
    if fabric["rings"]:
        rings = (
            (
                names.get(ring["ring_id"], ring["ring_id"]),
                ring["phase"],
                ", ".join(ring["switches"]),
                ", ".join(ring["missing"]) or "-",
            )
            for ring in fabric["rings"]
        )
        yield _table("trees", ("ring", "phase", "switches", "waiting for"), rings)
        for ring in fabric["rings"]:
            if ring.get("waits_for"):
                yield Text(f"  ring {ring['ring_id']} waits: {ring['waits_for']}")
    yield Text(f"  trees: {_counts(counters)}")


def _member(switch: Mapping[str, Any]) -> tuple[object, ...]:
    state = "here" if switch["is_open"] else "starting" if switch["is_present"] else "away"
    if switch["is_open"] and _lacks_trunk(switch):
        state = "no trunk"
    if not switch["aggregates"]:
        state += ", steers"
    if switch.get("is_further_root"):
        state += ", for rings alone"
    above = [switch["above"] or "-", *(link["above"] for link in switch.get("further", ()))]
    return (
        switch["name"],
        ", ".join(above),
        state,
        _seconds(switch["since_s"]),
        switch["dir"],
    )


def _lacks_trunk(switch: Mapping[str, Any]) -> bool:
    """As the switch has told the root; of one that is away nothing is known."""
    trunk = switch.get("trunk")
    return trunk is not None and not trunk["is_up"]


def _trunk(trunk: Mapping[str, Any]) -> tuple[object, ...]:
    state = "up" if trunk["is_up"] else "down"
    since = _seconds(trunk["since_s"])
    way = trunk["way"] + (", rings" if trunk.get("rings_only") else "")
    return (trunk["switch"], way, trunk["port"], state, since, trunk["times_up"])


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} s"


def _job(job: Mapping[str, Any]) -> tuple[object, ...]:
    ranks = ", ".join(f"{rank['rank']}: {rank['host']}" for rank in job["ranks"][:_RANKS_SHOWN])
    if len(job["ranks"]) > _RANKS_SHOWN:
        ranks += f" and {len(job['ranks']) - _RANKS_SHOWN} more"
    waiting = ", ".join(f"rank {rank}" for rank in job["missing"])
    return (
        job["name"],
        job["phase"],
        job["ring_id"] or "-",
        _summed_by(job["path"]),
        job["recoveries"] or "-",
        ranks,
        waiting or "-",
    )


def _host(status: Mapping[str, Any]) -> Iterable[RenderableType]:
    switch = status.get("switch", {})
    who = f"host {status.get('name')} ({status.get('ip')})"
    if switch.get("connected"):
        yield Text(f"{who}: connected, switch at {switch.get('path')}")
    elif needs_no_switch(status):
        yield Text(f"{who}: no switch at {switch.get('path')}; its models need none")
    else:
        link = f"not connected: {switch.get('error', '')}"
        yield Text(f"{who}: {link}, switch at {switch.get('path')}")
    yield from _controller(status)
    if switch.get("connected") and (note := path_note(status.get("path"))):
        yield Text(f"  {note}", style="red" if status["path"]["problem"] else "")
    rings = status.get("rings", [])
    if rings:
        yield _table(
            "rings",
            ("job", "ranks", "pids", "phase", "summed by", "recoveries", "done", "queued", "waits for"),
            map(_ring, rings),
        )
        for ring in rings:
            who = f"{name_ranks(rank['rank'] for rank in ring['ranks'])} of {ring['job']}"
            if ring.get("halted_because"):
                yield Text(f"  {who}, the last ring ended: {ring['halted_because'][-1]}")
            by_path = ring.get("operations_by_path", {})
            if len(by_path) > 1:
                yield Text(f"  {who}, all-reduces by path: {_counts(by_path)}")
            if ring.get("collective"):
                yield Text(f"  {who}, {_collective(ring['collective'])}")
            if ring.get("is_parked"):
                yield Text(f"  {who}, its ring through the switches is parked: its tree moves")
            if ring.get("stall"):
                yield Text(f"  {who}: {ring['stall']}")
    yield from show_nic(status.get("models_nic"))
    yield from show_models(status.get("models", []))
    placement = status.get("placement", {})
    if placement.get("why"):
        yield Text(f"  runs on CPUs {placement['cpus']}, {placement['why']}")
    if status.get("nic"):
        yield from _nic(status["nic"])
        if status.get("nic_way"):
            yield Text(f"  nic, its port: {status['nic_way']}")


def _nic(counters: Mapping[str, int]) -> Iterable[RenderableType]:
    """What it moved, and what was not as it should be; all that it counts is in the JSON."""
    ways = (
        f"{counters.get(f'packets_{way}', 0)} packets {way}, {counters.get(f'bytes_{way}', 0)} bytes"
        for way in ("sent", "received")
    )
    yield Text(f"  nic: {'; '.join(ways)}")
    amiss = {name: count for name, count in counters.items() if count and name not in _NIC_ORDINARY}
    if amiss:
        yield Text(f"  nic, out of the ordinary: {_counts(amiss)}")


def _ring(ring: Mapping[str, Any]) -> tuple[object, ...]:
    """One ring with the ranks that it has here; all that is known of them is in the JSON."""
    waiting = ", ".join(f"rank {rank}" for rank in ring["waiting_for"])
    return (
        ring["job"],
        f"{', '.join(str(rank['rank']) for rank in ring['ranks'])} of {ring['size']}",
        ", ".join(str(rank["pid"]) for rank in ring["ranks"]),
        ring["phase"],
        _summed_by(ring.get("path", "-")),
        ring.get("recoveries") or "-",
        ring.get("operations_done", "-"),
        ring.get("operations_queued", "-"),
        waiting or "-",
    )


def _tree(tree: Mapping[str, Any]) -> str:
    """Tree of a job on the path ``shared`` that was wished, or is not there."""
    where = f" in pool {tree['pool']}" if tree["pool"] else ""
    why = f": {tree['reason']}" if tree["reason"] else ""
    return f"the tree of job {tree['job']} is {tree['phase']}{where} (wish {tree['epoch']}){why}"


def _summed_by(path: str) -> str:
    if path == "sharp":
        return "sharp (exact_plan=False)"
    return f"hosts ({path})" if path in ("chain", "overlay", "ring") else path


def _collective(beside: Mapping[str, Any]) -> str:
    """What a collective library has done for a job."""
    counts = beside["redone_by_code"]
    told = f"{beside['taken']} all-reduces are its sums, {beside['without']} went without it"
    told += f", redone: {_counts(counts)}" if counts else ""
    state = "stands" if beside["stands"] else f"does not stand ({beside['session']})"
    state += "" if beside.get("may_attach", True) else ", for the controller has given the job no place in it"
    why = f"; last: {beside['reason']}" if beside["reason"] else ""
    return f"the collective library {state}: {told}{why}"


def _table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Nothing of it is cut off: what has no room goes on in the next line. A column that says nothing at all
    is left out."""
    texts = [[str(value) for value in row] for row in rows]
    told = [
        (column, cells)
        for column, *cells in zip(columns, *texts, strict=True)
        if any(cell not in ("", "-") for cell in cells)
    ]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column, _ in told:
        table.add_column(column, overflow="fold")
    for row in zip(*(cells for _, cells in told), strict=True):
        table.add_row(*plain(*row))
    return table


def _counts(counts: Mapping[str, Any]) -> str:
    """Counters that are not zero."""
    return ", ".join(f"{name} {value}" for name, value in counts.items() if value) or "-"


def fallback_note(job: Mapping[str, Any]) -> str:
    """Why the job, one of the switch's status, is not summed there; empty while it is."""
    return f"{job['name']} is not summed in the switch: {job['fallback']}" if job["fallback"] else ""


def costs_note(job: Mapping[str, Any]) -> str:
    """What the path of the job, one of the switch's status, is predicted to take; empty if nobody knows."""
    if not job.get("costs"):
        return ""
    return f"{job['name']} by {job['costs']}" + (f"; links {job['links']}" if job.get("links") else "")


def recovery_note(job: Mapping[str, Any]) -> str:
    """Why the job, one of the switch's status, had to get another ring; empty if it still has its first."""
    return f"{job['name']}, its last ring ended: {job['last_recovery']}" if job["last_recovery"] else ""
