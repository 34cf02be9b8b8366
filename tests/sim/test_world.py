"""The deterministic world: one configuration is one run, its weather is the weather, its rules hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from inaproto.core.rdma.nic import SoftNicConfig, SoftNicEngine
from inaproto.errors import ConfigError
from inaproto.faults.weather import Weather, WeatherStream
from inaproto.sim.frames.checkers import all_checkers
from inaproto.sim.frames.checkers.checker import Checker
from inaproto.sim.frames.draw.swarm import Fault, FaultKind, JobConfig, WorldConfig, draw_world
from inaproto.sim.frames.draw.topology import LinkConfig
from inaproto.sim.frames.oracle import Oracle
from inaproto.sim.frames.recorder import Recorder
from inaproto.sim.frames.world import World
from inaproto.sim.kernel.fates import DrawnFates, Fate
from inaproto.sim.kernel.violated import Violated
from inaproto.units import MS, Instant, S
from inaproto.wire.ina_header import Dtype, Op
from tests.seeds import seeds
from tests.sim.worlds import run, small
from tests.unit.exact_reference import exact
from tests.unit.switched_ring import SwitchedRing, block

HARSH = Weather(0.2, 0.2, 0.2, 0.2, 0.2, delay_min_ns=1000, delay_max_ns=3 * MS)


def calm(**changes: object) -> WorldConfig:
    """Two ranks, clear weather."""
    job = JobConfig("job0", (0, 1), (100, 3, 500))
    return replace(WorldConfig("calm", (job,), (LinkConfig(), LinkConfig())), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", seeds(30))
def test_every_rule_holds(seed: int) -> None:
    result = run(small(seed))
    assert result.violation is None, f"{result.violation}; rerun: INAPROTO_SEEDS={seed}:{seed + 1}"
    assert result.operations_done


def test_a_run_repeats_and_another_seed_differs() -> None:
    first, second = run(small(5)), run(small(5))
    assert (first.digest, first.events, first.marks, first.fates) == (
        second.digest,
        second.events,
        second.marks,
        second.fates,
    )
    assert run(small(6)).digest != first.digest


def test_a_digest_is_of_all_bytes_of_frames() -> None:
    """CRC-32 of a packet with its ICRC, which is one, says nothing of its payload."""
    ring = SwitchedRing(2)
    digests = set()
    for payload in (bytes(64), bytes(range(64)), bytes(range(1, 65))):
        world = World(calm())
        world.note_frames(0, block(ring.packet(0, 0, 1, payload=payload)))
        world.note_frames(0, block(*(ring.packet(0, 0, at, payload=payload) for at in (1, 2))))
        digests.add(world._digest())
    assert len(digests) == 3


def test_a_recorder_changes_nothing() -> None:
    recorder = Recorder()
    assert run(small(5), recorder=recorder).digest == run(small(5)).digest
    assert [record["n"] for record in recorder.records] == list(range(1, len(recorder.records) + 1))
    json.dumps(recorder.records)


def test_the_hash_seed_of_python_changes_nothing() -> None:
    script = "from tests.sim.worlds import run, small\nprint([run(small(seed)).digest for seed in (1, 2, 3)])"
    said = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "77")
    }
    assert len(said) == 1


def test_recorded_fates_replay_without_any_draw() -> None:
    first = run(small(9))
    assert first.fates
    config = WorldConfig.from_record(json.loads(json.dumps(first.config.as_record())))
    assert config == first.config
    calm_links = tuple(replace(link, weather=Weather()) for link in config.links)
    again = run(replace(config, links=calm_links), fates=first.fates)
    assert (again.digest, again.events) == (first.digest, first.events)


@pytest.mark.parametrize("nbytes", [14, 60, 314])
def test_fates_are_the_weather(nbytes: int) -> None:
    """Frame by frame the same copies, damage and delays as the vectorised weather of ports and links."""
    stream = WeatherStream(HARSH, "s", "p")
    fates = DrawnFates(HARSH, "s", "p")
    rng = np.random.default_rng(1)
    for _ in range(600):
        frame = rng.integers(0, 256, (1, nbytes), np.uint8)
        theirs = [(at, row.tobytes()) for at, rows in stream.apply(frame, Instant(0)) for row in rows]
        assert theirs == arrivals(fates.next(nbytes), frame[0])
    assert len(fates.recorded) > 300


def arrivals(fate: Fate | None, frame: np.ndarray) -> list[tuple[int, bytes]]:
    if fate is None:
        return [(0, frame.tobytes())]
    if fate.drop:
        return []
    left = frame[: fate.cut_bytes].copy() if fate.cut_bytes >= 0 else frame.copy()
    if fate.corrupt_bit >= 0:
        left[fate.corrupt_bit >> 3] ^= 1 << (fate.corrupt_bit & 7)
    copies = [(fate.delay_ns, left.tobytes())]
    if fate.copy_delay_ns >= 0:
        copies.append((fate.copy_delay_ns, left.tobytes()))
    return sorted(copies, key=lambda copy: copy[0] > 0)


def test_a_burst_changes_no_other_draw() -> None:
    """The same frames are duplicated with and without more loss before them."""
    quiet, lossy = (DrawnFates(replace(HARSH, drop=0.0), "s", "p") for _ in range(2))
    lossy.set_weather(replace(HARSH, drop=1.0))
    for number in range(400):
        if number == 200:
            lossy.set_weather(replace(HARSH, drop=0.0))
        quiet.next(314)
        lossy.next(314)
    later = {number: fate for number, fate in quiet.recorded.items() if number >= 200}
    assert later == {number: fate for number, fate in lossy.recorded.items() if number >= 200}


@pytest.mark.parametrize("dtype", list(Dtype))
@pytest.mark.parametrize("op", list(Op))
def test_the_oracle_agrees_with_the_reference_of_the_unit_tests(dtype: Dtype, op: Op) -> None:
    oracle = Oracle("o", "job", dtype, op, tuple(range(5)))
    inputs = [oracle.inputs(9, rank, 4, 3000).tobytes() for rank in range(5)]
    assert oracle.result(9, 4, 3000) == exact(dtype, op, inputs)


@pytest.mark.parametrize("kind", list(FaultKind))
def test_each_fault_heals(kind: FaultKind) -> None:
    job = JobConfig("job0", (0, 1, 2), (400,) * 40, think_ns=MS)
    weather = Weather(drop=0.5) if kind is FaultKind.BURST else Weather()
    faults = tuple(Fault(at * MS, kind, 1, 4 * MS, weather) for at in (6, 30))
    shards = int(kind is FaultKind.SHARD_DEATH)
    routers = (0, 1, 2) if kind is FaultKind.ROUTER_LINK else ()
    config = WorldConfig(
        *(str(kind), (job,), (LinkConfig(),) * 3, faults),
        weather_until_ns=60 * MS,
        shards=shards,
        routers=routers,
    )
    result = run(config)
    assert result.violation is None
    assert result.marks[f"fault: {kind}"] == 2
    assert result.operations_done >= 120


def test_jobs_take_turns_on_a_tight_switch() -> None:
    jobs = tuple(JobConfig(f"job{n}", (2 * n, 2 * n + 1), (900,) * 5) for n in range(2))
    result = run(WorldConfig("tight", jobs, (LinkConfig(),) * 4, tight_switch=True))
    assert result.violation is None
    assert result.marks["a ring was refused for want of memory"]


def test_a_mismatch_ends_the_ring_and_the_next_one_works() -> None:
    job = JobConfig("job0", (0, 1), (400, 400, 400), mismatch=(1, 1), stall_ns=20 * MS)
    result = run(WorldConfig("mismatch", (job,), (LinkConfig(),) * 2))
    assert result.violation is None
    assert result.marks["a rank was told: tensor_mismatch"] == 2
    assert result.operations_done == 2 + 6


class Objects(Checker):
    name = "objects"

    def __init__(self) -> None:
        self.count = 0

    def done(self, rank: object, op_index: int) -> None:
        self.count += 1
        if self.count == 3:
            raise Violated(self.name, "the third result")


def test_a_violation_is_found_at_the_same_event_every_time() -> None:
    found = [run(small(3), checkers=[Objects(), *all_checkers()]).violation for _ in range(2)]
    assert found[0] is not None
    assert (found[0].rule, found[0].evidence) == ("objects", "the third result")
    assert found[0] == found[1]


def test_what_a_part_raises_is_a_violation_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: SoftNicEngine, config: SoftNicConfig) -> None:
        raise ZeroDivisionError("no such NIC")

    monkeypatch.setattr(SoftNicEngine, "__init__", broken)
    result = World(calm()).run()
    assert result.violation is not None
    assert result.violation.rule == "no part raises"
    assert "ZeroDivisionError: no such NIC" in result.violation.evidence


def test_who_never_answers_is_found_by_the_deadline_of_healing() -> None:
    config = calm(links=(LinkConfig(), LinkConfig(delay_ns=10**12)), heal_ns=500 * MS)
    result = run(config)
    assert result.violation is not None
    assert result.violation.rule == "progress after healing"
    assert "rank 0 of job0 on host0 is running" in result.violation.evidence


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jobs": (JobConfig("a", (0,), (1,)),)}, "two ranks or more"),
        ({"jobs": (JobConfig("a", (0, 2), (1,)),)}, "hosts are 0 to 1"),
        ({"faults": (Fault(10**12, FaultKind.PAUSE, 0, 5),)}, "ends after the weather"),
    ],
)
def test_worlds_that_cannot_be(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        calm(**change)


def test_a_damaged_record_names_its_field() -> None:
    record = calm().as_record()
    record["jobs"][0]["mtu"] = "wide"
    with pytest.raises(ConfigError, match=r"world: jobs\.0\.mtu"):
        WorldConfig.from_record(record)


def test_drawn_worlds_survive_their_record() -> None:
    for seed in range(200):
        config = draw_world(seed)
        assert WorldConfig.from_record(json.loads(json.dumps(config.as_record()))) == config


def test_memory_of_the_host_machine_is_never_shared_between_runs() -> None:
    """Two worlds side by side do not disturb each other."""
    alone = run(small(4)).digest
    first, second = World(small(4)), World(small(7))
    second.run()
    assert first.run().digest == alone


@pytest.mark.parametrize("seed", [12, 36])
def test_lost_acknowledgements_stop_no_ring_behind_a_short_queue(seed: int) -> None:
    """Resends that begin with what the switch holds no more are dropped, and what follows them at the queue:
    with more than N messages unacknowledged these two go on like that for ever."""
    job = JobConfig(
        "job0",
        (0, 1, 2),
        (12000,) * 8,
        mtu=4096,
        depth=2,
        transport_timeout=9,
        timeout_ns=6 * S,
    )
    weather = Weather(drop=0.03)
    link = LinkConfig(rate_bps=2 * 10**8, delay_ns=50_000, queue_frames_max=32, weather=weather)
    result = run(WorldConfig(f"short queue {seed}", (job,), (link,) * 3))
    assert result.violation is None
