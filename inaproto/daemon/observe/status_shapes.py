"""What of a daemon's status is read by those who show it or judge by it; a status may have more.

Fields that a release has added are missing from the statuses of older ones, and may be missing here: who
reads them does without.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from inaproto.daemon.observe.shapes import Each, Maybe, misfit

_Fields = dict[str, Any]
_ANY: Final = object
_SINCE: Final = Maybe(float)
_COUNTS: Final = Each(_ANY)


def _has(*names: str) -> _Fields:
    """Fields that are shown as they are."""
    return dict.fromkeys(names, _ANY)


_CONTROLLER: Final[_Fields] = {"paths?": [str], "since_s?": _SINCE}
_REFUSED: Final = Maybe({"refused?": _COUNTS})
_NIC: Final = Maybe(_has("name", "ip", "queue_pairs", "trouble") | {"carried": Each(float)})
_CHILDREN: Final = [_has("attached") | {"host": str}]
_TROUBLES: Final[_Fields] = {
    "dead": [str],
    "notes": [_ANY],
    "links": [_has("peer", "error") | {"limit_in": _SINCE, "limit_out": _SINCE}],
    "in_degree?": Maybe(_has("now", "changes", "before", "first_clock") | {"decisions": [_ANY]}),
}

# --- hosts and parameter servers

_RING: Final[_Fields] = _has("size", "phase") | {
    "job": str,
    "ranks": [_has("pid") | {"rank": int}],
    "waiting_for": [_ANY],
    "ring_id?": Maybe(int),
    "ina_ring_id?": Maybe(int),
    "halted_because?": [_ANY],
    "operations_by_path?": _COUNTS,
    "collective?": Maybe(
        _has("taken", "without", "stands", "session", "reason") | {"redone_by_code": _COUNTS}
    ),
}
_WORKER: Final[_Fields] = _has("worker", "has_left", "has_process", "clock", "pulls", "why") | {
    "since_s": float,
    "waits_for": [str],
}
_NODE: Final[_Fields] = (
    _has("shard", "server", "parent", "attached", "direct")
    | {"children": _CHILDREN, "root": _has("slowest")}
    | _TROUBLES
)
_HOST: Final[_Fields] = {
    "name": str,
    "switch": {"path?": Maybe(str)},
    "controller?": _CONTROLLER,
    "path?": Maybe(_has("problem", "unknown", "asked") | {"carries": Maybe(int), "largest": Maybe(int)}),
    "rings": [_RING],
    "rank_processes?": [{"session": int, "joined_s_ago": float, "told": str, "gone": bool}],
    "models?": [_has("model") | {"worker": _WORKER, "shards": [_NODE]}],
    "models_nic?": _NIC,
    "placement?": _COUNTS,
    "nic?": _COUNTS,
}
_ROOT: Final[_Fields] = (
    _has("model", "shard", "elements", "dtype", "direct", "log_bytes", "snapshots")
    | {"clocks": _has("slowest", "fastest", "left", "workers"), "children": _CHILDREN}
    | _TROUBLES
)
_SERVER: Final[_Fields] = _has("name", "pid") | {
    "uptime_s": float,
    "refused": _COUNTS,
    "nic?": _NIC,
    "shards": [_ROOT],
}

# --- switches

_PORT: Final[_Fields] = _has("port", "kind", "frames_in", "frames_out") | {
    "drops": _COUNTS,
    "paused_ms?": float,
}
_JOB: Final[_Fields] = _has("phase", "recoveries", "fallback", "last_recovery") | {
    "name": str,
    "path": str,
    "ring_id": int,
    "ina_ring_id?": int,
    "ranks": [_has("rank", "host")],
    "missing": [_ANY],
}
_POOL: Final[_Fields] = _has("memory_bytes", "takeovers", "conflicts", "stale") | {
    "rings": [int],
    "holders": [Maybe(int)],
    "epochs": [int],
}
_TRUNK: Final[_Fields] = _has("switch", "port", "is_up", "times_up", "error") | {
    "way": str,
    "since_s": _SINCE,
}
_SHARD: Final[_Fields] = _has("shard", "udp_source_port", "pid", "is_up", "starts", "error") | {
    "accelerator": Each(_ANY),
    "ports": [{"frames_in": int, "frames_out": int}],
}
_ITS_TRUNK: Final = Maybe(_has("is_up", "error"))
_MEMBER: Final[_Fields] = _has("name", "is_open", "is_present", "aggregates", "error") | {
    "above": Maybe(str),
    "dir": str,
    "since_s": _SINCE,
    "trunk?": _ITS_TRUNK,
    "further?": [{"above": str, "trunk?": _ITS_TRUNK}],
}
_FABRIC: Final[_Fields] = {
    "counters": _COUNTS,
    "switches": [_MEMBER],
    "rings": [_has("phase") | {"ring_id": int, "switches": [str], "missing": [str]}],
    "refused?": [_has("reason") | {"since_s": float}],
}
_SWITCH: Final[_Fields] = _has("pid", "boot_id", "weather") | {
    "dir": str,
    "uptime_s": float,
    "totals": _has("frames_in", "frames_out", "frames_lost", "frames_duplicated", "frames_reordered"),
    "control?": _has("connected", "path") | {"since_s": _SINCE},
    "hosts": [str],
    "controller?": _CONTROLLER,
    "control_listen?": _REFUSED,
    "control_sessions?": _REFUSED,
    "fabric?": _FABRIC,
    "trunks?": [_TRUNK],
    "ports": [_PORT],
    "shards?": [_SHARD],
    "links?": [_has("link", "port", "is_attached", "error") | {"since_s": _SINCE}],
    "narrow_ports?": [_has("port", "job", "carries") | {"mtu": int}],
    "captures?": [_has("to", "frames", "lost", "ended")],
    "trees?": [_has("job", "phase", "epoch", "pool", "reason")],
    "jobs": [_JOB],
    "accelerator": {"counters": Each(_ANY), "pools?": Each(_POOL)},
    "blames": _COUNTS,
    "board?": Maybe(_has("is_there")),
}
_BY_ROLE: Final[Mapping[str, _Fields]] = {"host": _HOST, "switch": _SWITCH, "server": _SERVER}


def status_misfit(status: object) -> str:
    """Why it is no status of a daemon as this release reads it; empty: it is one."""
    wrong = misfit(status, {"role": str})
    if wrong:
        return wrong
    assert isinstance(status, dict), "it fits"
    shape = _BY_ROLE.get(status["role"])
    return f"there is no role {status['role']!r}" if shape is None else misfit(status, shape)
