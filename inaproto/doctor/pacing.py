"""Window and transport timeout that fit bandwidth and round trip (NetReduce section 3.2, "Flow control").

``N * MsgLen * pktSize >= (RTT + turnaround) * PortRate``, and at least 2; a power of two, as slots survive
the wrap of ``msg_id`` only then. The turnaround is the daemons': the paper's hosts poll, these are woken.
The NIC's timer has to be longer than the round trip and than what the slowest rank may be late, because the
accelerator holds ACKs back until all have sent (docs/protocol.md 4.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from inaproto.core.host.message_window import window_messages_for
from inaproto.core.switch.aggregator import bytes_needed
from inaproto.core.switch.ring_spec import FlowSpec, RingSpec
from inaproto.doctor.ethernet import DEFAULT_MTU, NET
from inaproto.doctor.findings import Check, Finding, ok, untestable, warning
from inaproto.doctor.site import Site
from inaproto.units import PSN_BITS

DEFAULT_MESSAGE_PACKETS: Final = 170
DEFAULT_TIMEOUT: Final = 14
TURNAROUND_NS: Final = 150_000
"""From a result until the daemon that it wakes, on a core of its own, has posted the next message."""
WINDOW_MAX: Final = 1024
TIMER_NS: Final = 4096
"""Unit of the transport timer: 4.096 us."""
TIMEOUT_MAX: Final = 31
HOSTS: Final = 8
"""Hosts of the ring whose memory is told."""
ROUND_TRIPS: Final = 4
"""A timer shorter than this many round trips fires when queues fill."""


def window_for(round_trip_ns: int, bits_per_s: int, message_packets: int, mtu: int) -> int:
    """Messages; a power of two of 2 to 1024, of which two windows fit half the PSN space."""
    message_bytes = message_packets * mtu
    least = window_messages_for(rtt_ns=round_trip_ns, rate_bps=bits_per_s, message_bytes=message_bytes)
    most = min(WINDOW_MAX, (1 << PSN_BITS - 2) // message_packets)
    return min(least, 1 << (most.bit_length() - 1))


def memory_for(window: int, message_packets: int, mtu: int, hosts: int) -> int:
    """Bytes that the accelerator takes for a ring of so many hosts."""
    flows = tuple(FlowSpec(rank, bytes([10, 0, 0, rank]), bytes(4), rank) for rank in range(hosts))
    return bytes_needed(RingSpec(0, 0, 0, window, message_packets, mtu, flows))


def timer_ns(exponent: int) -> int:
    """0: it never fires."""
    return TIMER_NS << exponent if exponent else 0


def timeout_for(round_trip_ns: int, skew_ns: int) -> int:
    """Exponent of the shortest timer that neither a round trip nor a late rank outlasts."""
    need = max(ROUND_TRIPS * round_trip_ns, skew_ns)
    return next((one for one in range(1, TIMEOUT_MAX) if timer_ns(one) >= need), TIMEOUT_MAX)


def _round_trip(site: Site) -> tuple[int, str]:
    """ns and how it is known; 0 and why it is not."""
    if site.asked.round_trip_ns:
        return site.asked.round_trip_ns, "given"
    if not site.asked.peer or not site.ips:
        return 0, "no round trip time: give --peer ADDRESS and --ip, or --rtt-us"
    measured = site.round_trip(site.ips[0], site.asked.peer)
    if measured is None:
        return 0, f"{site.asked.peer} answered no TCP connection attempt: give --rtt-us"
    return measured, "of a TCP handshake; that of the NICs is shorter"


def _bandwidth(site: Site) -> tuple[int, str]:
    """bit/s and how it is known; 0 and why it is not."""
    if site.asked.bandwidth:
        return site.asked.bandwidth, "given"
    speeds = [site.number(f"{NET}/{name}/speed") or 0 for name, _ in site.links()]
    if not any(speed > 0 for speed in speeds):
        return 0, "no bandwidth: give --bandwidth-gbit (the link's driver does not tell)"
    return max(speeds) * 1_000_000, "of the link"


def _look_at_window(site: Site) -> Iterator[Finding]:
    round_trip, known = _round_trip(site)
    bits, told = _bandwidth(site)
    if not round_trip or not bits:
        yield untestable(known if not round_trip else told)
        return
    packets = site.asked.message_packets or max(
        site.of_hosts("message_packets"), default=DEFAULT_MESSAGE_PACKETS
    )
    mtu = site.asked.mtu or max(site.of_hosts("mtu"), default=DEFAULT_MTU)
    window = window_for(round_trip + TURNAROUND_NS, bits, packets, mtu)
    used = [site.asked.window_messages] if site.asked.window_messages else site.of_hosts("window_messages")
    text = (
        f"{round_trip / 1000:.1f} us ({known}) and {TURNAROUND_NS / 1000:g} us of the daemons at "
        f"{bits / 1e9:g} Gbit/s ({told}), {packets} packets "
        f"of {mtu} bytes"
    )
    yield look_at_window(window, used, text, memory_for(window, packets, mtu, HOSTS))


def look_at_window(window: int, used: list[int], text: str, memory: int) -> Finding:
    """``used``: what the hosts have now; ``memory``: of the switch for the right window."""
    take = f"window_messages = {window} in host.toml of all hosts"
    room = f"{HOSTS} hosts then take {memory / (1 << 20):.1f} MiB of the switch (memory_kib)"
    if not used:
        return ok(f"{text}: {take}; {room}")
    if min(used) < window:
        return warning(f"{text}: a window of {min(used)} messages leaves the link idle", f"{take}; {room}")
    return ok(f"{text}: a window of {min(used)} is enough ({window})")


def _look_at_timeout(site: Site) -> Iterator[Finding]:
    round_trip, _ = _round_trip(site)
    needed = timeout_for(round_trip, site.asked.skew_ns)
    used = site.asked.transport_timeout
    told = site.of_hosts("transport_timeout")
    if used < 0 and told:
        used = min(told)
    yield look_at_timeout(needed, used, site.asked.skew_ns, wants_verbs=site.wants_verbs)


def look_at_timeout(needed: int, used: int, skew_ns: int, *, wants_verbs: bool) -> Finding:
    """``used``: -1 where nobody says."""
    take = f"transport_timeout = {needed} ({timer_ns(needed) / 1e6:.0f} ms) in host.toml of all hosts"
    late = f"ranks that may be {skew_ns / 1e6:g} ms late (--skew-ms)"
    if not wants_verbs:
        return ok(
            f"a softnic spreads and backs off its timers: {DEFAULT_TIMEOUT} does; on RoCE devices: {take}"
        )
    if used < 0:
        return ok(f"for {late}: {take}")
    if used == 0:
        return warning("the transport timer is off: a last packet that is lost stops the job", take)
    if used < needed:
        return warning(f"timeout {used} is {timer_ns(used) / 1e6:.0f} ms, too short for {late}", take)
    return ok(f"timeout {used} is {timer_ns(used) / 1e6:.0f} ms, enough for {late}")


WINDOW: Final = Check(
    "window", "a window smaller than the bandwidth-delay product leaves the link idle", _look_at_window
)
TIMEOUT: Final = Check(
    "timeout",
    "a timer shorter than a rank may be late sends whole windows again, and RoCE devices give up after some",
    _look_at_timeout,
)
