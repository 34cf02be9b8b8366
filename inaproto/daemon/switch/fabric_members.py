"""What the control plane of a fabric remembers of its switches, for people: who is here, and since when.

Also what each switch said last of its trunks, and who was not taken. What of it decides about rings is in
:mod:`inaproto.core.rendezvous.fabric.control`; whose hosts are welcome follows from ``is_open``.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import trio

from inaproto.core.rendezvous.fabric.events import TreeControlView
from inaproto.daemon.settings.fabric_file import FabricEntry, Place
from inaproto.wire.messages.trees import Link

log = logging.getLogger("inaproto.switch")

REFUSED_MAX: Final = 32
"""Names of switches that were not welcome; the one heard longest ago makes room."""


class FabricMembers:
    """The root, at ``place``, is here from the start."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._since_s: dict[str, float] = {place.name: trio.current_time()}
        """When each switch came or was lost."""
        self._trunk_since_s: dict[Link, float] = {}
        """When the lower switch of each last said whether it is up."""
        self._said_down: dict[Link, None] = {}
        """Trunks of which that has said last that they are not."""
        self._why_away: dict[str, str] = {}
        self._refused: dict[str, tuple[str, float]] = {}
        """Why switches were not welcome, by the name that they gave, and when they were last heard."""
        self._open: dict[str, None] = {place.name: None}
        """Switches whose ports are open."""

    # --- what happens

    def refused(self, name: str, reason: str) -> None:
        self._refused.pop(name, None)
        self._refused[name] = (reason, trio.current_time())
        while len(self._refused) > REFUSED_MAX:
            del self._refused[next(iter(self._refused))]

    def came(self, name: str) -> None:
        self._refused.pop(name, None)
        now = self._since_s[name] = trio.current_time()
        self._trunk_since_s |= {(name, above): now for above in self._above(name)}

    def opened(self, name: str) -> None:
        self._open[name] = None

    def gone(self, name: str, reason: str) -> None:
        for above in self._above(name):
            self._said_down.pop((name, above), None)
        self._open.pop(name, None)
        self._since_s[name] = trio.current_time()
        self._why_away[name] = reason

    def said_of_trunk(self, name: str, above: str, error: str) -> Link | None:
        """Takes what was said of a trunk; returns which one, None if there is none. ``above``: empty if it is
        that of the fabric's own tree."""
        others = self._above(name)
        link = name, above or next(iter(others), "")
        if link[1] not in others:
            log.warning("switch %s speaks of a trunk to %s, which it has not", name, above or "a root")
            return None
        if error:  # of one that stays down the reason may change from try to try
            level = logging.INFO if link in self._said_down else logging.WARNING
            log.log(level, "the trunk between %s and %s is down: %s", *link, error)
            self._said_down[link] = None
        else:
            log.info("the trunk between %s and %s is up", *link)
            self._said_down.pop(link, None)
        self._trunk_since_s[link] = trio.current_time()
        return link

    def _above(self, name: str) -> tuple[str, ...]:
        """Switches above, that of the fabric's own tree first."""
        return tuple(link.above for link in self._place.fabric.by_name[name].uplinks)

    # --- what is

    def is_open(self, name: str) -> bool:
        return name in self._open

    def why_away(self, name: str) -> str:
        """Why the last session of a switch ended; empty if none has."""
        return self._why_away.get(name, "")

    def status(self, view: TreeControlView) -> dict[str, Any]:
        """For ``inaproto status``."""
        now = trio.current_time()
        return {
            "switches": [self._status_of(entry, view) for entry in self._place.fabric.entries],
            "refused": [
                {"switch": name, "reason": reason, "since_s": round(now - heard_s, 3)}
                for name, (reason, heard_s) in self._refused.items()
            ],
            "rings": [
                {
                    "ring_id": ring.ring_id,
                    "phase": ring.phase,
                    "switches": list(ring.switches),
                    "missing": list(ring.missing),
                    "waits_for": ring.waits_for,
                }
                for ring in view.rings
            ],
            "counters": dict(view.counters),
        }

    def _status_of(self, entry: FabricEntry, view: TreeControlView) -> dict[str, Any]:
        name, since_s = entry.name, self._since_s.get(entry.name)
        return {
            "name": name,
            "above": entry.above,
            "dir": str(entry.dir),
            "aggregates": entry.aggregates,
            "is_present": name in view.present,
            "is_open": self.is_open(name),
            "since_s": None if since_s is None else round(trio.current_time() - since_s, 3),
            "error": "" if name in view.present else self.why_away(name),
            "trunk": self._trunk_status(name, entry.above, view),
            "is_further_root": Place(self._place.fabric, name).is_further_root,
            "further": [
                {"above": above, "trunk": self._trunk_status(name, above, view)} for above in entry.further
            ],
        }

    def _trunk_status(self, name: str, above: str | None, view: TreeControlView) -> dict[str, Any] | None:
        """State of its trunk to a switch above, as it says; None if there is none, or the switch is away."""
        if above is None or name not in view.present:
            return None
        link = name, above
        error = view.trunks_down.get(link, "")
        since_s = round(trio.current_time() - self._trunk_since_s[link], 3)
        return {"is_up": not error, "error": error, "since_s": since_s}
