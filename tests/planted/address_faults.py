"""Faults that damage shows where no ICRC looks: in the addresses of a frame."""

from __future__ import annotations

from typing import Final

from inaproto.core.rdma.nic import SoftNicEngine
from inaproto.core.switch.lookup_table import Flow
from tests.planted.planting import Change, PlantedFault
from tests.planted.shapes import damaged_addresses, damaged_addresses_of_hosts_that_wait

LOOKUP: Final = "NetReduce 3.2, the lookup table; inaproto.core.switch.lookup_table"

ADDRESS_FAULTS: Final = (
    PlantedFault(
        "addresses_from_packets",
        LOOKUP,
        "believes the latest packet where a rank is, though the control plane knows its address",
        (
            Change(Flow.settle, "if not self.spec.src_mac:", "if True:"),
            Change(
                Flow.is_at,
                "src_mac in (self.spec.src_mac or src_mac, self.src_mac, *self.sources)",
                "src_mac == self.src_mac",
            ),
        ),
        shape=damaged_addresses,
    ),
    PlantedFault(
        "peer_never_asked_for",
        "RFC 1122 2.3.2.1; inaproto.core.rdma.arp",
        "sends again and again to where no ACK comes from, and asks nobody where its peer is",
        (Change(SoftNicEngine._unanswered, "% UNANSWERED_BEFORE_ARP == 0", "< 0"),),
        # Damage must make a frame look like one of a rank that has nothing to send from then on.
        shape=damaged_addresses_of_hosts_that_wait,
    ),
)
