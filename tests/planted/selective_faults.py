"""Faults of selective connections: what is kept behind a gap."""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.behind_gap import PacketsBehind
from inaproto.core.rdma.selective_responder import SelectiveResponder
from tests.planted.planting import fault

SELECTIVE: Final = "docs/protocol.md 4.4, selective connections"

SELECTIVE_FAULTS: Final = (
    fault(
        "one_too_many_kept_behind_a_gap",
        SELECTIVE,
        "remembers one packet more than those that it has placed behind a gap",
        SelectiveResponder._keep,
        "behind.mark(distance, rows)",
        "behind.mark(distance, rows + 1)",
    ),
    fault(
        "kept_where_the_gap_is_counted_in",
        SELECTIVE,
        "counts where a kept packet goes from the gap, not from the beginning of its message",
        PacketsBehind.place_of,
        "(distance - begun.at) * self.mtu",
        "distance * self.mtu",
    ),
)
