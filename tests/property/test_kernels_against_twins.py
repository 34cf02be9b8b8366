"""Compiled kernels and the numpy code in their place: the same bytes, whatever comes.

Longer: ``INAPROTO_SEEDS=0:2000 pytest tests/property/test_kernels_against_twins.py``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from random import Random

import numpy as np
import pytest
from numpy.typing import NDArray

from inaproto.core import kernels
from inaproto.core.kernels.compiled import _FIELDS_AT, Layouts, Scan, address_of, shift_table
from inaproto.core.plan.reduce import reduce_into
from inaproto.core.switch.accelerator import Accelerator, EmitFrames, FramesArrived, InstallRing, PortUp
from inaproto.core.switch.flow_order import flow_by_flow
from inaproto.core.switch.packet_memory import OutputArena, PayloadPool
from inaproto.core.switch.region_kernels import LastPacket, RegionKernels
from inaproto.sim.campaign.kinds import WorldKind, draw_kind
from inaproto.sim.frames.draw.racks import draw_racks
from inaproto.sim.frames.draw.swarm import Swarm
from inaproto.units import Instant, PortId
from inaproto.wire.crc import shift
from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.bench.traffic import Sender, host_mac, ring_spec
from tests.property.accelerator_world import World
from tests.seeds import seeds
from tests.sim.worlds import run, small
from tests.unit.test_flow_order import MTU, as_blocks, of_ring, plain

SEEDS = seeds(24)
SPECIAL = (
    0,
    1,
    0x8000_0000,
    0x8000_0001,
    0x007F_FFFF,
    0x7F7F_FFFF,
    0x7F80_0000,
    0xFF80_0000,
    0x7FC0_0000,
    0xFFFF_FFFF,
    0x7F80_0001,
)
"""Bits of floats: zeros, denormals, the largest, infinities, NaNs of all kinds."""


WITHOUT = {"all": 0, "not 512 bits": 8, "no instructions of their own": 11}


@pytest.fixture(autouse=True)
def compiled(use_kernels: Callable[[str], None]) -> kernels.Compiled:
    use_kernels("compiled")
    found = kernels.active()
    assert found is not None
    return found


@pytest.fixture(params=list(WITHOUT.values()), ids=list(WITHOUT))
def instructions(compiled: kernels.Compiled, request: pytest.FixtureRequest) -> Iterator[None]:
    """As on processors that have fewer."""
    compiled.start(request.param)
    yield
    compiled.start(0)


def by_both(made: Callable[[], object]) -> tuple[object, object]:
    results = []
    for name in ("compiled", "numpy"):
        kernels.choose(name)
        results.append(made())
    return results[0], results[1]


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("seed", SEEDS)
def test_an_accelerator_sends_the_same_bytes_in_any_weather(seed: int) -> None:
    def digest() -> object:
        world = World(seed, exact=False)
        world.run()
        return world.digest, world.frames_in, world.events()

    one, other = by_both(digest)
    assert one == other


@pytest.mark.parametrize("seed", SEEDS[:8])
def test_worlds_have_the_same_digests(seed: int) -> None:
    one, other = by_both(lambda: run(small(seed)).digest)
    assert one == other
    racks = Swarm(ranks_max=6, jobs_max=2, packets_max=200)
    one, other = by_both(lambda: run(draw_racks(seed, racks)).digest)
    assert one == other


def test_a_packet_that_comes_twice_at_once_has_one_result_by_both() -> None:
    """The first copy fills its slot, and the ring is selective: what is done is sent again if asked for."""
    one, other = by_both(lambda: run(draw_kind(26, WorldKind.RECOVERY)).digest)
    assert one == other


@pytest.mark.usefixtures("instructions")
def test_crcs_are_those_of_zlib(compiled: kernels.Compiled) -> None:
    rng = Random(1)
    for length in [*range(200), 1000, 1024, 4096, 4099]:
        data = rng.randbytes(length)
        rows = np.frombuffer(data, np.uint8)
        assert compiled.crc(address_of(rows), length, 77) == zlib.crc32(data, 77)


def test_a_table_moves_a_crc_past_any_number_of_bytes() -> None:
    rng = Random(2)
    for nbytes in (0, 1, 60, 1024, 4096):
        table, crc = shift_table(nbytes), rng.randrange(1 << 32)
        parts = [int(table[place, crc >> 8 * place & 255]) for place in range(4)]
        assert parts[0] ^ parts[1] ^ parts[2] ^ parts[3] == shift(crc, nbytes)


class Memory:
    """A region's arrays, filled at random."""

    def __init__(self, rng: np.random.Generator, ranks: int, slots: int, mtu: int) -> None:
        self.header = rng.integers(0, 256, (ranks, slots, 76), np.uint8)
        self.seen = np.zeros((ranks, slots), np.bool_)
        self.result = np.zeros((slots, mtu), np.uint8)
        self.share = rng.integers(0, 1 << 32, (ranks, slots), np.uint32)
        self.crc = np.zeros(slots, np.uint32)
        self.ina = rng.integers(0, 256, (ranks, 40), np.uint8)
        self.done = np.zeros(slots, np.bool_)
        self.summed = np.zeros(slots, np.uint16)
        self.payload = PayloadPool(ranks, slots, mtu).take()
        self.payload.array[...] = rng.integers(0, 256, (ranks, slots, mtu), np.uint8)

    def kernels(self, compiled: kernels.Compiled, packets: int) -> RegionKernels:
        results = (self.result, self.share, self.crc, self.ina, self.done, self.summed)
        arrays = (self.header, self.seen, *results)
        made = RegionKernels(compiled, arrays, inputs=len(self.seen), first=(6, 70), middle=(7, 54))
        made.opened(self.payload.address, 0, packets, 4, None, bytes(38))
        return made


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("dtype", [Dtype.F32, Dtype.I32])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("mtu", [8, 64, 72, 1024, 1032])
def test_sums_are_those_of_reduce_into(
    compiled: kernels.Compiled, dtype: Dtype, ranks: int, mtu: int
) -> None:
    rng = np.random.default_rng(ranks * mtu)
    memory = Memory(rng, ranks, 6, mtu)
    words = memory.payload.array.view("<u4")
    if dtype is Dtype.F32:
        words[:, 3:] = rng.choice(np.array(SPECIAL, np.uint32), words[:, 3:].shape)
        words[:, :2] = rng.standard_normal(words[:, :2].shape).astype(np.float32).view(np.uint32)
    expected: NDArray[np.uint8] = np.empty((3, mtu), np.uint8)
    reduce_into(dtype, Op.SUM, [rank[1:4] for rank in memory.payload.array], expected)
    memory.kernels(compiled, 6).sum(dtype, 1, 4, 3, payload=mtu - 5, pad=3)
    expected[2, -5:-2] = 0
    assert (memory.result[1:4, : mtu - 2] == expected[:, : mtu - 2]).all()
    assert not memory.result[[0, 4, 5]].any()
    whole, short = expected[:2], expected[2, : mtu - 2]
    crcs = [*(zlib.crc32(row.tobytes()) for row in whole), zlib.crc32(short.tobytes())]
    assert memory.crc.tolist() == [0, *crcs, 0, 0]


@pytest.mark.usefixtures("instructions")
@pytest.mark.parametrize("packets", [1, 2, 3, 5])
def test_results_are_sealed_under_each_ranks_header(compiled: kernels.Compiled, packets: int) -> None:
    memory = Memory(np.random.default_rng(packets), 3, 5, 64)
    memory.result[...] = np.arange(5 * 64).reshape(5, 64)
    region, ranks, last = memory.kernels(compiled, packets), slice(1, 3), packets - 1
    final = (0x0B, 74, 47, 1) if packets == 1 else (9, 58, 12, 0)
    region.expect(LastPacket(*final))
    memory.crc[:] = [zlib.crc32(row.tobytes()) for row in memory.result]
    memory.crc[last] = zlib.crc32(memory.result[last, : final[2] + final[3]].tobytes())
    for begin, end in ((b, e) for b in range(packets) for e in range(b + 1, packets + 1)):
        for arena in (OutputArena(1 << 20), OutputArena(0)):
            blocks = region.seal(ranks, begin, end, packets, arena).blocks
            for rank in (1, 2):
                slots = []
                for slot in range(begin, end):
                    width, tail = (
                        (final[1], final[2] + final[3]) if slot == last else (54 if slot else 70, 64)
                    )
                    own = 0 if slot else 40
                    body = memory.ina[rank, :own].tobytes() + memory.result[slot, own:tail].tobytes()
                    icrc = zlib.crc32(body) ^ int(memory.share[rank, slot])
                    head = memory.header[rank, slot, :width].tobytes()
                    slots.append(head + body + icrc.to_bytes(4, "little"))
                assert [row.tobytes() for block in blocks for row in block[rank - 1]] == slots


@pytest.mark.parametrize("fields_at", [_FIELDS_AT, None], ids=["numpy's fields", "told"])
def test_a_scan_knows_the_flows_that_numpy_knows(
    compiled: kernels.Compiled, fields_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inaproto.core.kernels.compiled._FIELDS_AT", fields_at)
    scan = Scan(compiled)
    for seed in range(40):
        rng = Random(seed)
        frames = [
            rng.choice([*of_ring(5), *(plain(a, b, b"x") for a in (1, 2) for b in (3, 4))]) for _ in range(60)
        ]
        frames += [rng.randbytes(rng.randrange(90)) for _ in range(3)]
        blocks = as_blocks(frames)
        classes = scan.read(blocks)
        found = [scan.frames(*scan.bounds(number)).tolist() for number in range(classes)]
        assert sorted(chain(*found)) == list(range(len(frames)))
        assert found == sorted(found), "in the order of their first frames, and each in its own order"
        for numbers in found:
            assert len({frames[number][:12] for number in numbers}) == 1
        rows = [row.tobytes() for block in flow_by_flow(blocks, lambda _: False) for row in block]
        assert sorted(rows) == sorted(frames)


def test_more_flows_than_a_scan_can_tell_apart_are_left_to_numpy(compiled: kernels.Compiled) -> None:
    blocks = as_blocks([plain(number % 250, number // 250, b"") for number in range(400)])
    assert Scan(compiled).read(blocks) == 0
    assert Scan(compiled).read([np.zeros((4, 200), np.uint8)[:, ::2]]) == 0, "columns are not neighbours"


def test_a_scan_takes_as_many_blocks_and_frames_as_come(compiled: kernels.Compiled) -> None:
    scan = Scan(compiled)
    for count in (1, 16, 17, 300):
        blocks = [np.full((3, 60 + number), 1, np.uint8) for number in range(count)]
        assert scan.read(blocks) == 1
        assert scan.bounds(0) == (0, 3 * count)
        assert scan.frame(3 * count - 1) == (bytes([1]) * min(59 + count, 128), 59 + count)


def test_a_layout_that_is_not_known_takes_nothing() -> None:
    layouts = Layouts()
    layouts.put(0, 6, 70, 64, 0)
    layouts.clear(0)
    assert layouts.frame_bytes(0) == 70 + 64 + 4


@pytest.mark.parametrize("seed", range(40))
def test_what_is_left_of_a_receive_leaves_alike(seed: int) -> None:
    """Frames of no ring, alone and several, in blocks of their own and among others."""
    rng = Random(f"{seed}/left")
    spec = ring_spec(2, packets=6, mtu=MTU)
    lengths = rng.choices((MTU + 58, 62), k=4)
    others = [other_frame(rng.randrange(3), length, number) for number, length in enumerate(lengths)]
    data = np.arange(300, dtype=np.uint8)
    message = [row.tobytes() for rows in Sender(spec, 0, 5).message(0, data) for row in rows]
    for frame in others[: rng.randrange(1, 5)]:
        message.insert(rng.randrange(len(message) + 1), frame)

    def emitted() -> object:
        accelerator = Accelerator()
        for rank in range(2):
            accelerator.step(PortUp(PortId(rank)), Instant(0))
            hello = np.zeros((1, 60), np.uint8)
            hello[0, :6] = 0xFF
            hello[0, 6:12] = np.frombuffer(host_mac(rank), np.uint8)
            accelerator.step(FramesArrived(PortId(rank), [hello]), Instant(0))
        assert accelerator.step(InstallRing(spec), Instant(0)) == []
        actions = accelerator.step(FramesArrived(PortId(0), as_blocks(message)), Instant(1))
        sent = [action for action in actions if isinstance(action, EmitFrames)]
        return [(each.port, row.tobytes()) for each in sent for row in each.frames]

    one, other = by_both(emitted)
    assert one == other
    assert one


def other_frame(kind: int, length: int, number: int) -> bytes:
    """From host 0 to host 1; those of a kind keep their order."""
    frame = host_mac(1) + host_mac(0) + (b"\x08\x00\x45", b"\x86\xdd\x60", b"\x08\x06\x00")[kind]
    return (frame + bytes(35) + bytes([number])).ljust(length, b"\0")
