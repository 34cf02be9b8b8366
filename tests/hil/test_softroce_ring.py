"""Kernel RoCE hosts whose frames the switch daemon sums: transport transparency, judged by Linux itself."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest

from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, load_adapter
from inaproto.units import Frames
from inaproto_hil.softroce.image import Image
from inaproto_hil.softroce.switched import SwitchedConfig, run_switched
from tests.hil import HANG_S
from tests.hil.softroce.congestion import Congestion
from tests.hil.softroce.cut import Cut
from tests.hil.softroce.filtered_port import FilteredPort

pytestmark = [pytest.mark.hil, pytest.mark.timeout(HANG_S)]

_TAGGED, _IPV4, _IPV6, _ROCE = b"\x81\0", b"\x08\0", b"\x86\xdd", (4791).to_bytes(2, "big")
_PATH_PROBE = b"\x88\xb5"
_ARP, _ARP_REQUEST = b"\x08\x06", b"\0\1"


async def test_three_kernel_hosts_are_summed(softroce: Image) -> None:
    config = SwitchedConfig(
        hosts=3, mtu=1024, rows=[("float32", 64 << 10), ("bfloat16", 100_000), ("int32", 1 << 18)]
    )
    found = await run_switched(softroce, config)
    assert [row["wrong"] for row in found.rows] == [0, 0, 0]
    assert all(row["paths"] == ["switch"] for row in found.rows)
    assert sum(one["retry_exceeded"] for one in found.devices) == 0


class Forms:
    """Counts RoCE packets at the ports of the switch by IP version, and the VLAN in which they are."""

    def __init__(self) -> None:
        self.counted: Counter[tuple[str, str]] = Counter()

    def wrap(self, port: FramePort, name: str) -> FramePort:
        return FilteredPort(port, name, self._look)

    def _look(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        for frame in map(bytes, frames):
            vlan = (
                f" in VLAN {int.from_bytes(frame[14:16], 'big') & 0xFFF}" if frame[12:14] == _TAGGED else ""
            )
            kind, headers = (frame[16:18], frame[18:]) if vlan else (frame[12:14], frame[14:])
            form = "IPv4" if kind == _IPV4 and headers[22:24] == _ROCE else ""
            form = form or ("IPv6" if kind == _IPV6 and headers[42:44] == _ROCE else "")
            if form:
                self.counted["out" if is_result else "in", form + vlan] += 1
        return frames


async def test_kernel_hosts_in_a_vlan_are_summed(softroce: Image) -> None:
    forms = Forms()
    config = SwitchedConfig(hosts=2, mtu=1024, rows=[("float32", 64 << 10)], vlan=5)
    found = await run_switched(softroce, config, forms.wrap)
    assert [(row["wrong"], row["paths"]) for row in found.rows] == [(0, ["switch"])]
    assert set(forms.counted) == {("in", "IPv4 in VLAN 5"), ("out", "IPv4 in VLAN 5")}, forms.counted
    assert sum(one["retry_exceeded"] for one in found.devices) == 0


async def test_congestion_of_one_host_is_told_to_it_alone(softroce: Image) -> None:
    """What is marked on its way in is marked on its way out, nothing else is; notifications go back to it."""
    host = bytes([10, 0, 0, 2])
    congestion = Congestion(host, nth=5)
    config = SwitchedConfig(hosts=3, mtu=1024, rows=[("float32", 64 << 10)], timeout=19)
    found = await run_switched(softroce, config, congestion.wrap)
    assert [(row["wrong"], row["paths"]) for row in found.rows] == [(0, ["switch"])]
    assert sum(one["retry_exceeded"] for one in found.devices) == 0
    assert congestion.marked_in >= 192 // 5
    assert set(congestion.marked_out) == {host}
    again = found.devices[1]["retransmits"]
    assert abs(congestion.marked_out[host] - congestion.marked_in) <= again
    assert congestion.said
    place = congestion.places[congestion.said[0][:6]]
    assert congestion.heard == [(place, frame) for frame in congestion.said]


class Links:
    """One of them carries frames of ``narrow`` bytes at most; ``longest`` is of those that are no path probes
    and came through any."""

    def __init__(self, narrow: int) -> None:
        self.longest = 0
        self._narrow = narrow
        self._port = ""

    def wrap(self, port: FramePort, name: str) -> FramePort:
        self._port = self._port or name
        return FilteredPort(port, name, self._what_passes)

    def _what_passes(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        if port == self._port and frames.shape[1] > self._narrow:
            return frames[:0]
        if any(_PATH_PROBE not in bytes(row[12:18]) for row in frames):
            self.longest = max(self.longest, frames.shape[1])
        return frames


@pytest.mark.parametrize(
    ("narrow", "mtu", "network"),
    [(9018, 4096, {}), (2200, 2048, {"vlan": 5, "ipv6": True})],
    ids=["all links carry it", "a small link, IPv6 in a VLAN"],
)
async def test_kernel_hosts_find_the_mtu_that_their_links_carry(
    softroce: Image, narrow: int, mtu: int, network: dict[str, Any]
) -> None:
    """By packet sockets at the devices' interfaces; a ring has the smallest."""
    links = Links(narrow)
    config = SwitchedConfig(hosts=2, mtu=4096, auto_mtu=mtu, rows=[("float32", 256 << 10)], **network)
    found = await run_switched(softroce, config, links.wrap)
    assert [(row["wrong"], row["paths"]) for row in found.rows] == [(0, ["switch"])]
    assert mtu < links.longest < mtu + 128
    assert sum(one["retry_exceeded"] for one in found.devices) == 0


class LateAnswers:
    """At the ports of the switch: host ``asker`` hears of ``asked`` only when it has asked for it twice.

    What either says of it is lost before, for a kernel learns from questions too.
    """

    def __init__(self, *, asker: bytes, asked: bytes) -> None:
        self.questions = 0
        self._question = _ARP_REQUEST, asker, asked
        self._lost = asked, asker

    def wrap(self, port: FramePort, name: str) -> FramePort:
        return FilteredPort(port, name, self._what_passes)

    def _what_passes(self, frames: Frames, port: str, *, is_result: bool) -> Frames:
        return frames[[self._passes(bytes(row), is_result) for row in frames]]

    def _passes(self, frame: bytes, is_result: bool) -> bool:
        if frame[12:14] != _ARP:
            return True
        kind, sender, target = frame[20:22], frame[28:32], frame[38:42]
        if is_result:
            return self.questions > 1 or (sender, target) != self._lost
        self.questions += (kind, sender, target) == self._question
        return True


async def test_who_does_not_know_its_peer_yet_is_waited_for(softroce: Image) -> None:
    """The last host learns late where its predecessor is. What it is sent before is lost: nothing may be.

    No timer would bring anything again, however long a machine stands still.
    """
    late = LateAnswers(asker=bytes([10, 0, 0, 3]), asked=bytes([10, 0, 0, 2]))
    config = SwitchedConfig(hosts=3, mtu=1024, rows=[("int32", 64 << 10)], timeout=0)
    found = await run_switched(softroce, config, late.wrap)
    assert late.questions > 1
    assert [(row["wrong"], row["paths"]) for row in found.rows] == [(0, ["switch"])]
    assert [one["retransmits"] for one in found.devices] == [0] * 3


async def test_frames_that_are_lost_come_again(softroce: Image) -> None:
    """Loss on all links, in both directions, besides frames that come twice or damaged."""
    weather = Weather(drop=0.005, duplicate=0.003, corrupt=0.002)
    found = await run_switched(
        softroce,
        SwitchedConfig(hosts=2, mtu=1024, rows=[("float32", 1 << 18)], iterations=4, timeout=15),
        partial(_weathered, weather),
    )
    assert [row["wrong"] for row in found.rows] == [0]
    assert sum(one["retransmits"] for one in found.devices) > 0
    assert sum(one["retry_exceeded"] for one in found.devices) == 0


async def test_queue_pairs_whose_retries_are_spent_are_made_anew(softroce: Image) -> None:
    """The wire is cut until the kernel's devices have given up: the job goes on when it is mended."""
    cut = Cut(after=300)
    config = SwitchedConfig(
        hosts=2, mtu=1024, rows=[("float32", 64 << 10)], iterations=12, timeout=15, retry_count=3
    )
    found = await run_switched(softroce, config, cut.wrap)
    assert cut.frames_lost > 0
    assert sum(one["retry_exceeded"] for one in found.devices) > 0
    assert [(row["iterations"], row["wrong"]) for row in found.rows] == [(12, 0)]


@pytest.mark.parametrize(
    ("network", "form"),
    [
        ({"vlan": 5}, "IPv4 in VLAN 5"),
        ({"ipv6": True}, "IPv6"),
        ({"vlan": 5, "ipv6": True}, "IPv6 in VLAN 5"),
    ],
    ids=["VLAN", "IPv6", "IPv6 in a VLAN"],
)
async def test_kernel_hosts_and_ours_over_a_vlan_and_ipv6(
    softroce: Image, network: dict[str, Any], form: str
) -> None:
    """Two userspace NICs outside and two kernel devices in the guest in one ring; the links lose frames."""
    forms = Forms()
    weather = Weather(drop=0.005)

    def wrap(port: FramePort, name: str) -> FramePort:
        return forms.wrap(_weathered(weather, port, name), name)

    config = SwitchedConfig(
        hosts=2,
        own=2,
        mtu=1024,
        rows=[("float32", 8 << 10)],
        iterations=200,
        timeout=15,
        **network,
    )
    found = await run_switched(softroce, config, wrap)
    assert [(row["iterations"], row["wrong"], row["paths"]) for row in found.rows] == [
        (200, 0, ["switch"])
    ] * 2
    assert set(forms.counted) == {("in", form), ("out", form)}, forms.counted
    assert sum(one["retry_exceeded"] for one in found.devices) == 0
    assert sum(one["retransmits"] for one in found.devices) > 0


async def test_our_nics_and_the_kernel_s_sum_together(softroce: Image) -> None:
    """Two userspace NICs outside and two kernel devices in the guest in one ring; the links lose frames."""
    weather = Weather(drop=0.005)
    config = SwitchedConfig(
        hosts=2, own=2, mtu=1024, rows=[("float32", 8 << 10)], iterations=1000, timeout=15
    )
    found = await run_switched(softroce, config, partial(_weathered, weather))
    assert [(row["iterations"], row["wrong"]) for row in found.rows] == [(1000, 0)] * 2
    assert sum(one["retry_exceeded"] for one in found.devices) == 0
    assert sum(one["retransmits"] for one in found.devices) > 0


def _weathered(weather: Weather, port: FramePort, name: str) -> FramePort:
    wrapped: FramePort = load_adapter("weather").open(port, weather, seed=1, name=name)
    return wrapped
