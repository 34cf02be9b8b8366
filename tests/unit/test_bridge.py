"""The learning bridge."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inaproto.core.switch.bridge import CHANGE_SIGHTINGS, Bridge
from inaproto.units import PortId

A, B, C = (bytes([2, 0, 0, 0, 0, n]) for n in (1, 2, 3))
IP_A, IP_B = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
BROADCAST = b"\xff" * 6
MULTICAST = bytes([0x33, 0x33, 0, 0, 0, 1])


def bridge(ports: int = 3, *, addresses_max: int = 4096) -> Bridge:
    made = Bridge(addresses_max=addresses_max)
    for port in range(ports):
        made.port_up(port)
    return made


def test_unknown_destinations_are_flooded_to_all_other_ports_in_order() -> None:
    assert bridge().egress(A, 1) == (0, 2)


def test_a_learnt_address_gets_frames_on_its_port_only() -> None:
    made = bridge()
    made.learn(A, 2)
    assert made.egress(A, 0) == (2,)
    assert made.addresses == {A: 2}


def test_a_frame_never_leaves_on_the_port_it_came_from() -> None:
    made = bridge()
    made.learn(A, 2)
    assert made.egress(A, 2) == ()


def test_what_is_for_the_far_end_of_a_link_goes_no_further() -> None:
    """IEEE 802.1D, table 7-10."""
    made = bridge()
    assert made.egress(bytes.fromhex("0180c200000e"), 1) == ()
    assert made.egress(bytes.fromhex("0180c2000010"), 1) == (0, 2)


def test_group_addresses_are_flooded_and_never_learnt() -> None:
    made = bridge()
    for group in (BROADCAST, MULTICAST):
        made.learn(group, 0)
        assert made.egress(group, 0) == (1, 2)
    assert made.addresses == {}


def test_an_address_that_moves_is_found_at_its_new_port() -> None:
    made = bridge()
    made.learn(A, 0)
    made.learn(A, 1)
    assert made.egress(A, 2) == (1,)


def test_a_damaged_address_moves_nobody_and_is_not_learnt() -> None:
    made = bridge()
    made.learn(A, 0, IP_A)
    made.learn(B, 1)
    made.learn(B, 1, IP_B)
    for _ in range(3):
        for _ in range(CHANGE_SIGHTINGS - 1):
            made.learn(A, 1, IP_B)
            made.learn(C, 1, IP_B)
        for _ in range(CHANGE_SIGHTINGS - 1):
            made.learn(A, 1, IP_B)
        made.learn(A, 0, IP_A)
        made.learn(B, 1, IP_B)
    assert made.addresses == {A: 0, B: 1}
    made.learn(B, 2, IP_B)
    assert made.addresses == {A: 0, B: 2}


def test_a_host_may_move_with_its_address_or_have_another_one() -> None:
    made = bridge()
    made.learn(A, 0, IP_A)
    made.learn(A, 1, IP_A)
    assert made.addresses == {A: 1}
    for _ in range(CHANGE_SIGHTINGS):
        assert made.addresses == {A: 1}
        made.learn(B, 2, IP_A)
    assert made.addresses == {A: 1, B: 2}
    made.learn(A, 2, IP_A)
    assert made.addresses == {A: 1, B: 2}, "now that is the wrong one"


def test_ip_addresses_are_bounded_too() -> None:
    made = bridge(addresses_max=2)
    for number in range(5):
        made.learn(A, 0, bytes([10, 0, 0, number]))
    made.learn(B, 1, bytes([10, 0, 0, 4]))
    assert made.addresses == {A: 0}
    made.learn(B, 1, bytes([10, 0, 0, 3]))
    assert made.addresses == {A: 0}
    made.learn(B, 1, bytes([10, 0, 0, 2]))
    assert made.addresses == {A: 0, B: 1}, "that address was forgotten"


def test_an_empty_address_is_not_learnt() -> None:
    made = bridge()
    made.learn(b"", 0)
    assert made.addresses == {}


def test_a_port_that_goes_down_is_forgotten_with_its_addresses() -> None:
    made = bridge()
    made.learn(A, 1)
    made.learn(B, 2)
    made.port_down(1)
    assert made.ports == (0, 2)
    assert made.addresses == {B: 2}
    assert made.egress(A, 0) == (2,)
    assert made.egress(BROADCAST, 0) == (2,)


def test_a_port_may_go_down_twice_and_come_up_again() -> None:
    made = bridge()
    made.port_down(1)
    made.port_down(1)
    made.port_up(1)
    assert made.ports == (0, 2, 1)


def test_an_address_behind_a_port_that_is_not_up_is_flooded() -> None:
    made = bridge(2)
    made.learn(A, 7)
    assert made.egress(A, 0) == (1,)


def test_a_full_table_forgets_the_address_that_was_learnt_first() -> None:
    made = bridge(addresses_max=2)
    made.learn(A, 0)
    made.learn(B, 1)
    made.learn(A, 2)  # moved, not learnt anew
    made.learn(C, 1)
    assert made.addresses == {B: 1, C: 1}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.binary(min_size=6, max_size=6)), max_size=60),
    st.integers(1, 8),
)
def test_the_table_is_bounded_and_egress_is_sound(
    learnt: list[tuple[int, bytes]], addresses_max: int
) -> None:
    made = bridge(4, addresses_max=addresses_max)
    latest: dict[bytes, int] = {}
    for port, mac in learnt:
        made.learn(mac, port)
        if not mac[0] & 1:
            latest[mac] = port
        assert len(made.addresses) <= addresses_max
    assert made.addresses.items() <= latest.items()
    for port, mac in learnt:
        out = made.egress(mac, port)
        assert port not in out
        assert set(out) <= set(made.ports)


def test_doubts_about_hosts_that_are_forgotten_are_forgotten_too() -> None:
    """A stranger can name any number of IP addresses, each with two of Ethernet."""
    made = bridge(addresses_max=2)
    for host in range(100):
        for mac in (A, B):
            made.learn(mac, 0, bytes([10, 0, 1, host]))
    assert len(made._mac_of) == 2
    assert set(made._doubted) <= set(made._mac_of)


def test_nothing_is_forwarded_from_or_to_ports_that_stand_aside_and_nothing_learnt_there() -> None:
    made = Bridge(aside=frozenset({PortId(1)}))
    for port in range(3):
        made.port_up(port)
    assert list(made.ports) == [0, 1, 2], "they are up all the same"
    made.learn(A, 1)
    assert made.addresses == {}
    assert made.egress(A, 0) == made.egress(BROADCAST, 0) == (2,)
    made.learn(B, 2)
    assert made.egress(B, 1) == made.egress(BROADCAST, 1) == ()
    made.port_down(1)
    assert list(made.ports) == [0, 2]
