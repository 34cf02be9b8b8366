"""Window and timer that ``inaproto doctor`` recommends (NetReduce section 3.2)."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from inaproto.core.rdma.reliable_connection import TIMEOUT_EXPONENT_MAX
from inaproto.doctor import pacing
from inaproto.doctor.findings import Outcome
from inaproto.doctor.round_trip import measure_round_trip
from inaproto.doctor.site import Asked, Ran, Site
from inaproto.errors import LocalMisuse


@pytest.mark.parametrize(
    ("round_trip_us", "gbit", "packets", "mtu", "window"),
    [
        (6.3, 100, 170, 1024, 2),  # the paper's testbed: N = 2, 170 packets of 1 KB
        (100, 100, 170, 1024, 8),  # 1.25 MB in flight, 7.2 messages
        (1000, 400, 170, 4096, 128),
        (0.001, 1, 1, 256, 2),
        (1_000_000, 800, 1, 256, 1024),
    ],
)
def test_window(round_trip_us: float, gbit: int, packets: int, mtu: int, window: int) -> None:
    found = pacing.window_for(round(round_trip_us * 1000), gbit * 10**9, packets, mtu)
    assert found == window
    if window < pacing.WINDOW_MAX:  # N * MsgLen * pktSize >= RTT * PortRate
        assert found * packets * mtu >= round_trip_us * 1e-6 * gbit * 1e9 / 8


def test_the_largest_window_is_one_that_a_ring_can_have() -> None:
    window = pacing.window_for(10**10, 400 * 10**9, 65535, 1024)
    assert pacing.memory_for(window, 65535, 1024, 2) > 0
    with pytest.raises(LocalMisuse):
        pacing.memory_for(2 * window, 65535, 1024, 2)


@pytest.mark.parametrize(
    ("round_trip_ns", "skew_ns", "exponent"),
    [(12_000, 500_000_000, 17), (12_000, 0, 4), (0, 60_000_000, 14), (10**12, 0, 30), (10**13, 0, 31)],
)
def test_timeout(round_trip_ns: int, skew_ns: int, exponent: int) -> None:
    assert pacing.timeout_for(round_trip_ns, skew_ns) == exponent <= TIMEOUT_EXPONENT_MAX


def test_a_window_in_use_that_is_too_small() -> None:
    assert pacing.look_at_window(8, [2], "text", 1).outcome is Outcome.WARNING
    assert pacing.look_at_window(2, [2, 4], "text", 1).outcome is Outcome.OK
    assert "window_messages = 8" in pacing.look_at_window(8, [], "text", 1).found


@pytest.mark.parametrize(("used", "outcome"), [(0, Outcome.WARNING), (14, Outcome.WARNING), (17, Outcome.OK)])
def test_a_timer_in_use(used: int, outcome: Outcome) -> None:
    assert pacing.look_at_timeout(17, used, 10**8, wants_verbs=True).outcome is outcome
    assert pacing.look_at_timeout(17, used, 10**8, wants_verbs=False).outcome is Outcome.OK


def test_what_is_known_of_the_network_is_used(tmp_path: Path) -> None:
    def run(argv: Sequence[str]) -> Ran | None:
        info = '[{"family": "inet", "local": "10.0.0.1", "prefixlen": 24}]'
        return (
            Ran(0, f'[{{"ifname": "eth1", "flags": [], "addr_info": {info}}}]') if "address" in argv else None
        )

    site = Site(Asked(ip="10.0.0.1", peer="10.0.0.2"), tmp_path, run)
    [found] = pacing.WINDOW.look(site)
    assert "answered no TCP connection attempt" in found.found
    site.round_trip = lambda own, peer: 100_000
    [found] = pacing.WINDOW.look(site)
    assert "give --bandwidth-gbit" in found.found
    speed = tmp_path / "sys/class/net/eth1/speed"
    speed.parent.mkdir(parents=True)
    speed.write_text("100000\n")
    site.hosts = [{"window_messages": 2, "mtu": 1024, "message_packets": 170}]
    [found] = pacing.WINDOW.look(site)
    assert found.outcome is Outcome.WARNING
    assert found.mend.startswith("window_messages = 32"), "250 us, of which 150 are the daemons'"
    assert (
        "100.0 us (of a TCP handshake; that of the NICs is shorter) and 150 us of the daemons" in found.found
    )


def test_a_round_trip_is_measured_without_rights() -> None:
    measured = measure_round_trip("127.0.0.1", "127.0.0.1")
    assert measured is not None
    assert 0 < measured < 500_000_000
    assert measure_round_trip("192.0.2.77", "127.0.0.1") is None
    assert (measure_round_trip("::1", "::1") is not None) == socket.has_dualstack_ipv6()
    assert measure_round_trip("2001:db8::77", "::1") is None
