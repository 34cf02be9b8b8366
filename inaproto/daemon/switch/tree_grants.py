"""Parts of trees that a controller has given to jobs at this switch.

A switch sums for every ring that its control plane installs, and takes no part in what slots are for; it says
which grants it has, so that the controller gives a slot to nobody else before it is given up here.
"""

from __future__ import annotations

from collections.abc import Sequence

from inaproto.wire.messages.controller import GrantRecord, HoldRecord


class TreeGrants:
    """:class:`inaproto.daemon.net.controller_link.GrantHolder`."""

    def __init__(self) -> None:
        self.grants: tuple[GrantRecord, ...] = ()

    def want(self, grants: Sequence[GrantRecord]) -> None:
        self.grants = tuple(grants)

    def holds(self) -> list[HoldRecord]:
        return [HoldRecord(grant=grant.grant, phase="held") for grant in self.grants]
