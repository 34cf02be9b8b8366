"""Whose MAC address a RoCE device needs, as real kernels tell it: the peer's, or that of the router before
it."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from inaproto_adapters.verbs import neighbours
from tests.namespaces import join, namespaces, require_namespaces

TABLE = Path("/proc/thread-self/net/arp")
OWN, ROUTER, NEAR, FAR = (
    ipaddress.IPv4Address(text).packed for text in ("10.0.1.1", "10.0.1.254", "10.0.1.2", "10.0.2.1")
)


@pytest.fixture(autouse=True)
def _where_namespaces_are() -> None:
    require_namespaces()


async def test_a_peer_behind_a_router_is_resolved_when_the_router_is() -> None:
    with namespaces("here", "router") as (here, router):
        join(here, "roce", router, "inner")
        router.ip("address", "add", "10.0.1.254/24", "dev", "inner")
        here.ip("address", "add", "10.0.1.1/24", "dev", "roce")
        with here.entered():
            assert neighbours.next_hop(OWN, FAR, "roce") == FAR  # nobody says how to get there
            here.ip("route", "add", "10.0.2.0/24", "via", "10.0.1.254", "table", "101")
            here.ip("rule", "add", "from", "10.0.1.1", "lookup", "101")  # as docs/operating.md has it
            assert neighbours.next_hop(OWN, FAR, "roce") == ROUTER
            assert neighbours.next_hop(OWN, NEAR, "roce") == NEAR
            assert not neighbours.is_resolved(OWN, FAR, "roce", TABLE)
            assert await neighbours.resolve(OWN, FAR, "roce", TABLE)
            assert neighbours.is_resolved(OWN, FAR, "roce", TABLE)
            assert not neighbours.is_resolved(OWN, NEAR, "roce", TABLE)


async def test_with_ipv6_neighbour_discovery_finds_both() -> None:
    own, router_ip, near, far = (
        ipaddress.IPv6Address(text).packed for text in ("fd00:1::1", "fd00:1::fe", "fd00:1::2", "fd00:2::1")
    )
    with namespaces("here", "router") as (here, router):
        join(here, "roce", router, "inner")
        for namespace, name in ((here, "roce"), (router, "inner")):
            namespace.write(f"ipv6/conf/{name}/disable_ipv6", "0")
        router.ip("address", "add", "fd00:1::fe/64", "dev", "inner", "nodad")
        here.ip("address", "add", "fd00:1::1/64", "dev", "roce", "nodad")
        with here.entered():
            assert neighbours.next_hop(own, far, "roce") == far
            here.ip("-6", "route", "add", "fd00:2::/64", "via", "fd00:1::fe", "dev", "roce")
            assert neighbours.next_hop(own, far, "roce") == router_ip
            assert neighbours.next_hop(own, near, "roce") == near
            assert not neighbours.is_resolved(own, far, "roce", TABLE)
            assert await neighbours.resolve(own, far, "roce", TABLE)
            assert neighbours.is_resolved(own, far, "roce", TABLE)
            assert not neighbours.is_resolved(own, near, "roce", TABLE)
