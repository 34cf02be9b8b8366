"""The judge of accelerators judged: it finds no difference where there is none, and planted faults soon.

Longer: ``INAPROTO_SEEDS=0:2000 pytest tests/rtl/test_equivalence_self.py -k kernels``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Final

import pytest

pytest.importorskip("amaranth")

from inaproto.core.kernels import COMPILED, NUMPY
from inaproto.core.plan import reduce
from inaproto.core.switch.bridge import Bridge
from inaproto.core.switch.emission import Emission
from inaproto.core.switch.lookup_table import Flow
from inaproto.core.switch.region import Region
from inaproto.core.switch.ring_spec import RingSpec
from inaproto.errors import InvariantBroken
from inaproto.wire import icrc
from inaproto.wire.crc import crc32
from inaproto.wire.ina_header import FLAG_RESULT
from inaproto.wire.packet import decode_packet
from inaproto_hil.rtl.equivalence.compare import BYTES, Report, compare, shrink
from inaproto_hil.rtl.equivalence.device import Device, Fault, Output, SoftwareDevice
from inaproto_hil.rtl.equivalence.foreign import TAGS
from inaproto_hil.rtl.equivalence.steps import Script, Step, carry_out
from inaproto_hil.rtl.equivalence.traffic import Campaign
from inaproto_hil.rtl.parameters import Parameters
from tests.planted.planting import Change, PlantedFault
from tests.planted.switch_faults import SWITCH_FAULTS
from tests.seeds import seeds

SEEDS: Final = seeds(20)
PARAMETERS: Final = Parameters()
FRAMES: Final = 500
CAMPAIGNS: Final = 40
"""In which a planted fault must be found."""

MET: Final = frozenset(
    {
        *(
            "aggregated_in",
            "results_out",
            "replayed",
            "replay_filled",
            "gaps_signalled",
            "bridged",
            "for_links",
        ),
        *("strange_addresses", "wrong ICRC", "not an RDMA WRITE", "not from where its rank is"),
        *("older than the tenant", "layout", "ring failed", "no INA header", "wrong ring", "wrong key"),
        *("wrong epoch", "wrong rank", "wrong ring size", "message too long", "window passed"),
        *("operations differ", "message has another PSN", "first packet of the message not seen"),
        *("malformed packet of a ring", "frame shorter than an Ethernet header"),
        *("connection not registered", "unknown ring", "fault: operations differ", "fault: packet layout"),
        "ring removed",
    }
)
"""All that a switch with rings of its own can count."""

NO_QUESTION_HERE: Final = frozenset({"memory_not_given_back", "template_outlives_ring", "bridge_sends_back"})
"""Faults of the catalogue that show when memory is full, or in blocks of frames; the last
one is planted here in another way."""


class Remembered:
    """What the golden device did in a campaign, as a device that does it again, from each ``begin`` on."""

    def __init__(self, seed: int) -> None:
        golden, campaign = SoftwareDevice(PARAMETERS), Campaign(seed, PARAMETERS, FRAMES)
        for spec in campaign.specs:
            assert golden.install(spec) is None
        steps: list[Step] = []
        self._outputs: list[Output] = []
        self._counts: list[tuple[dict[str, int], list[Fault]]] = []
        for step in campaign:
            steps.append(step)
            if not isinstance(step, tuple):
                carry_out(golden, step)
                continue
            out = golden.frame(*step)
            campaign.heard(out)
            self._outputs.append(out)
            self._counts.append((golden.counters(), golden.faults()))
        self.script = Script(campaign.specs, tuple(steps), seed)
        self._at = 0

    def begin(self) -> Remembered:
        self._at = 0
        return self

    def install(self, spec: RingSpec) -> str | None:
        return None

    def remove(self, ring_id: int) -> None:
        """What it did after that is known."""

    def forget(self) -> None:
        """As before."""

    def set_ports_up(self, up: frozenset[int]) -> None:
        """As before."""

    def frame(self, port: int, data: bytes) -> Output:
        self._at += 1
        return self._outputs[self._at - 1]

    def counters(self) -> dict[str, int]:
        return self._counts[self._at - 1][0]

    def faults(self) -> list[Fault]:
        return self._counts[self._at - 1][1]

    def close(self) -> None:
        """There is nothing to give back."""


remembered = cache(Remembered)


def first_report(
    make: Callable[[], Device], plant: Callable[[], AbstractContextManager[None]] = nullcontext
) -> Report | None:
    """Of the first campaign in which the device differs; what is planted is so in that device alone."""
    for seed in range(CAMPAIGNS):
        golden = remembered(seed)
        with plant():
            report = compare(golden.begin(), make(), golden.script)
        if report.difference is not None:
            return report
    return None


# ---- no difference where there is none


@pytest.mark.parametrize("seed", SEEDS)
def test_the_core_does_the_same_with_both_kernels(seed: int, use_kernels: Callable[[str], None]) -> None:
    use_kernels(COMPILED)  # or the test ends
    golden, other = SoftwareDevice(PARAMETERS, NUMPY), SoftwareDevice(PARAMETERS, COMPILED)
    report = compare(golden, other, Campaign(seed, PARAMETERS, FRAMES))
    assert report.difference is None, str(report)


@pytest.mark.parametrize("seed", seeds(4))
def test_other_limits_make_campaigns_too(seed: int) -> None:
    small = Parameters(ports=2, rings=1, children=2, window=1, slots=4, mtu=64, addresses=4)
    large = Parameters(ports=6, rings=4, children=8, window=8, slots=512, addresses=64)
    for parameters in (small, large):
        golden, other = SoftwareDevice(parameters), SoftwareDevice(parameters)
        report = compare(golden, other, Campaign(seed, parameters, 200, first_messages=False))
        assert report.difference is None, str(report)
        assert all(spec.size <= parameters.children for spec in report.specs)
        assert sum(spec.regions * spec.message_packets for spec in report.specs) <= parameters.slots


def test_a_seed_is_one_history() -> None:
    again = Remembered(3)
    assert again.script == remembered(3).script
    assert again.script.steps != remembered(4).script.steps


def test_campaigns_meet_every_rule() -> None:
    met: Counter[str] = Counter()
    for seed in range(20):
        golden = remembered(seed)
        met.update(golden._counts[-1][0])
        met.update(f"fault: {rule}" for _, _, rule in golden._counts[-1][1])
    assert set(met) == MET


def test_campaigns_keep_from_what_they_say() -> None:
    for seed in range(10):
        script = remembered(seed).script
        connections = {flow.connection for spec in script.specs for flow in spec.flows}
        for _, frame in (step for step in script.steps if isinstance(step, tuple)):
            assert 1 <= len(frame) <= 1514
            assert frame[12:14] not in TAGS
            packet = decode_packet(frame)
            if packet is not None and (packet.src_ip, packet.dst_ip, packet.dest_qp) in connections:
                assert len(frame) % 4 == 2 or not packet.intact()


# ---- planted faults


OWN_FAULTS: Final = (
    PlantedFault(
        "udp_checksum_kept",
        "NetReduce 4",
        "leaves the checksum of the sender's payload in results",
        (
            Change(Region.store, "self.header[rank, offsets, UDP_CHECKSUM] = 0", "pass"),
            Change(
                Region.store_single,
                'self._header_bytes[at + UDP_CHECKSUM.start : at + UDP_CHECKSUM.stop] = b"\\0\\0"',
                "pass",
            ),
        ),
    ),
    PlantedFault(
        "pad_kept",
        "NetReduce 4",
        "adds pad bytes up like any others, and sends them",
        (Change(Region._checksum, "self.result[end - 1, self.last.payload_bytes : tail] = 0", "pass"),),
    ),
    PlantedFault(
        "nan_kept",
        "docs/concepts.md, exactness",
        "passes NaNs on as the processor makes them",
        (Change(reduce._canonical_nan, "if math.isnan(values.min()):", "if False:"),),
    ),
    PlantedFault(
        "first_headers_kept",
        "NetReduce 3.2, kept results",
        "answers a resend under the headers that came first",
        (
            Change(
                Region.store,
                "self.header[rank, offsets, :width] = run.frames[rows, :width]",
                "if not self.seen[rank, offsets].all():\n"
                "        self.header[rank, offsets, :width] = run.frames[rows, :width]",
            ),
        ),
    ),
    PlantedFault(
        "holes_not_filled",
        "docs/protocol.md 6.6",
        "answers what came again and nothing before it",
        (Change(Emission.replay, "<= self._fill_packets_max", "< 0"),),
    ),
    PlantedFault(
        "sends_back",
        "docs/protocol.md 6.11",
        "floods a frame to all ports, also to the one that it came from",
        (Change(Bridge.egress, "if other != ingress and other not in", "if other not in"),),
    ),
    PlantedFault(
        "any_port_taken",
        "docs/protocol.md 6.11",
        "takes packets without a key from any port",
        (Change(Flow.is_at, "if self.ingress not in (NOWHERE, port):", "if False:"),),
    ),
)
FAULTS: Final = {
    fault.name: fault for fault in (*OWN_FAULTS, *SWITCH_FAULTS) if fault.name not in NO_QUESTION_HERE
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_core_is_found(name: str) -> None:
    try:
        found = first_report(lambda: SoftwareDevice(PARAMETERS), FAULTS[name]) is not None
    except (InvariantBroken, KeyError):  # some faults are so bad that the core stops
        found = True
    assert found


class Spoilt(SoftwareDevice):
    """The core, and behind it something that changes what leaves, or keeps it."""

    def __init__(self, spoil: Callable[[bytes, Output], Output], parameters: Parameters = PARAMETERS) -> None:
        super().__init__(parameters)
        self._spoil = spoil

    def frame(self, port: int, data: bytes) -> Output:
        return self._spoil(data, super().frame(port, data))


def _results(change: Callable[[bytearray], None]) -> Callable[[bytes, Output], Output]:
    """Change what leaves and is not what came in."""

    def spoil(data: bytes, out: Output) -> Output:
        spoilt: Output = []
        for port, frame in out:
            edited = bytearray(frame)
            if frame != data:
                change(edited)
            spoilt.append((port, bytes(edited)))
        return spoilt

    return spoil


def _sealed_with_another_mask(frame: bytearray) -> None:
    """As if the highest bit of the congestion byte were covered by the ICRC."""
    masked = bytearray(icrc.masked_header(frame, 54))
    masked[8 + 46 - 14] = 0x7F | frame[46]
    frame[-4:] = crc32(frame[54:-4], crc32(masked)).to_bytes(4, "little")


def _not_marked(frame: bytearray) -> None:
    if frame[42] in (0x06, 0x0A):
        frame[77] &= ~FLAG_RESULT
        icrc.seal(frame)


def _a_bit_of_a_lane(frame: bytearray) -> None:
    """One bit of one place in the payload of long packets is always 0."""
    if len(frame) > 150 and frame[149] & 0x80:
        frame[149] &= 0x7F
        icrc.seal(frame)


def _a_byte_less(frame: bytearray) -> None:
    del frame[-1]


def _ip_id_of_another(frame: bytearray) -> None:
    frame[18:20] = b"\0\0"


SPOILS: Final[dict[str, Callable[[bytes, Output], Output]]] = {
    "wrong mask bit in the ICRC": _results(_sealed_with_another_mask),
    "RESULT flag missing": _results(_not_marked),
    "a payload bit stuck": _results(_a_bit_of_a_lane),
    "IP id not kept": _results(_ip_id_of_another),
    "results of one step in reverse": lambda data, out: out[::-1],
    "a FIFO of six frames runs over": lambda data, out: out[:6],
    "a frame of one byte less": _results(_a_byte_less),
    "a copy too many to port 0": lambda data, out: [*out, *(one for one in out if one[0] == 0 and out[2:])],
    "runts of 14 bytes are lost": lambda data, out: out if len(data) != 14 else [],
    "ports 1 and 2 swapped in broadcasts": lambda data, out: (
        [({1: 2, 2: 1}.get(port, port), frame) for port, frame in out] if data[:1] == b"\xff" else out
    ),
}


@pytest.mark.parametrize("name", SPOILS)
def test_a_fault_behind_the_core_is_found(name: str) -> None:
    report = first_report(lambda: Spoilt(SPOILS[name]))
    assert report is not None
    assert report.difference is not None
    assert str(report)


def test_a_table_with_one_address_less_is_found() -> None:
    smaller = Parameters(addresses=PARAMETERS.addresses - 1)
    assert first_report(lambda: SoftwareDevice(smaller)) is not None


# ---- what a report says


def test_a_report_is_made_short_names_the_byte_and_can_be_run_again() -> None:
    def spoilt() -> Device:
        return Spoilt(SPOILS["a payload bit stuck"])

    found = first_report(spoilt)
    assert found is not None
    report = shrink(lambda: SoftwareDevice(PARAMETERS), spoilt, found, runs=150)
    assert report.difference is not None
    assert report.difference.kind == BYTES
    ranks = max(spec.size for spec in report.specs)
    assert len(report.steps) <= 8 * ranks, "each rank's packets of one message, and what opened it"
    assert report.difference.step == len(report.steps) - 1
    text = str(report)
    assert "first byte that differs: 149 (payload, byte" in text
    assert "inaproto inspect objects to" in text
    assert "breaks a rule: wrong sum" in text
    assert len(report.specs) == 1
    again = compare(SoftwareDevice(PARAMETERS), spoilt(), report.script)
    assert again.difference == report.difference
