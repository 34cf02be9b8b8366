"""Weather is exact: every frame's fate is replayed here by the obvious loop over the same draws."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inaproto.errors import ConfigError
from inaproto.faults.streams import named_bits
from inaproto.faults.weather import UNCOVERED, DelayLine, Weather, WeatherStream
from inaproto.units import MS, US, Frames, Instant, S
from inaproto.wire.icrc import seal, verify

STORM = Weather(0.2, 0.2, 0.3, 0.2, 0.2, delay_min_ns=10, delay_max_ns=15)
NOW = Instant(1_000)
GOLDEN = "ac4bfa98fe554cce"


def some_frames(n: int, length: int = 62) -> Frames:
    return np.random.default_rng(n).integers(0, 256, (n, length), dtype=np.uint8)


class Arrival(NamedTuple):
    at: int
    frame: bytes


def fall(stream: WeatherStream, batches: list[Frames], now: Instant = NOW) -> list[Arrival]:
    """What arrives of the batches, all sent at ``now``, in order of arrival."""
    line = DelayLine(1 << 30)
    for batch in batches:
        for at, frames in stream.apply(batch, now):
            assert len(frames)
            assert line.push(at, frames)
    got: list[Arrival] = []
    while line.next_at is not None:
        at = line.next_at
        got.extend(Arrival(at, row.tobytes()) for frames in line.pop_due(at) for row in frames)
    return got


def replay(weather: Weather, seed: int, purpose: str, frames: Frames, now: int = NOW) -> list[Arrival]:
    """The fate of each frame by itself, from the ten numbers that it draws."""
    bits = named_bits(seed, purpose)
    arrivals = []
    for row in frames:
        unit = [int(draw) >> 11 for draw in bits.random_raw(10)]

        def happens(draw: int, probability: float, unit: list[int] = unit) -> bool:
            return unit[draw] < round(probability * 2**53)

        def delay(draw: int, unit: list[int] = unit) -> int:
            spread = weather.delay_max_ns - weather.delay_min_ns + 1
            return weather.delay_min_ns + unit[draw] * spread // 2**53

        if happens(0, weather.drop):
            continue
        data = bytearray(row.tobytes())
        if happens(4, weather.truncate) and len(data) > 14:
            del data[14 + unit[9] * (len(data) - 14) // 2**53 :]
        if happens(3, weather.corrupt):
            below, here = round(weather.addresses * 2**53), [at for at in UNCOVERED if at < len(data)]
            if unit[8] < below:
                at = unit[8] * 8 * len(here) // below
                bit = 8 * here[at // 8] + at % 8
            else:
                bit = (unit[8] - below) * 8 * len(data) // (2**53 - below)
            data[bit // 8] ^= 1 << bit % 8
        arrivals.append(Arrival(now + (delay(5) if happens(2, weather.reorder) else 0), bytes(data)))
        if happens(1, weather.duplicate):
            arrivals.append(Arrival(now + (delay(7) if happens(6, weather.reorder) else 0), bytes(data)))
    return sorted(arrivals, key=lambda arrival: arrival.at)


@pytest.mark.parametrize("length", [14, 23, 1082])
def test_damaged_addresses_are_where_no_icrc_looks(length: int) -> None:
    frames = np.zeros((2000, length), np.uint8)
    got = fall(WeatherStream(Weather(corrupt=1, addresses=1), 3, "wire"), [frames])
    hit = {at for arrival in got for at, byte in enumerate(arrival.frame) if byte}
    assert hit == {at for at in UNCOVERED if at < length}


def test_a_share_of_the_damage_is_anywhere() -> None:
    frames = np.zeros((2000, 1000), np.uint8)
    got = fall(WeatherStream(Weather(corrupt=1, addresses=0.5), 3, "wire"), [frames])
    hit = [next(at for at, byte in enumerate(arrival.frame) if byte) for arrival in got]
    assert 900 < sum(at in UNCOVERED for at in hit) < 1150
    assert {at // 100 for at in hit} == set(range(10))


def test_damage_where_no_icrc_looks_passes_for_none() -> None:
    packet = bytearray(72)
    packet[38:40] = (72 - 34).to_bytes(2, "big")
    seal(packet)
    for at in set(UNCOVERED):
        damaged = bytearray(packet)
        damaged[at] ^= 0xFF
        assert verify(damaged)


@given(
    n=st.integers(0, 60),
    length=st.sampled_from([14, 15, 62, 1082]),
    cuts=st.lists(st.integers(0, 60), max_size=5),
    seed=st.integers(0, 1 << 64),
)
def test_fate_of_each_frame_is_its_own_however_frames_are_batched(
    n: int, length: int, cuts: list[int], seed: int
) -> None:
    frames = some_frames(n, length)
    before = frames.copy()
    expected = replay(STORM, seed, "wire", frames)
    ends = sorted({min(cut, n) for cut in cuts} | {0, n})
    batches = [frames[first:last] for first, last in pairwise(ends)]
    assert fall(WeatherStream(STORM, seed, "wire"), batches) == expected
    assert fall(WeatherStream(STORM, seed, "wire"), [frames]) == expected
    assert np.array_equal(frames, before)


@given(
    weather=st.builds(
        Weather,
        *[st.sampled_from([0.0, 0.1, 0.5, 1.0])] * 5,
        delay_min_ns=st.integers(1, 5),
        delay_max_ns=st.integers(5, 9),
        addresses=st.sampled_from([0.0, 0.3, 1.0]),
    )
)
def test_any_weather_is_replayed_exactly(weather: Weather) -> None:
    frames = some_frames(40)
    assert fall(WeatherStream(weather, 3, "wire"), [frames]) == replay(weather, 3, "wire", frames)


def test_streams_are_those_of_the_seed_and_the_purpose_for_ever() -> None:
    """A changed digest makes every recorded seed another run: do it on purpose or not at all."""

    def digest(seed: int | str, purpose: str) -> str:
        arrivals = fall(WeatherStream(STORM, seed, purpose), [np.zeros((500, 62), dtype=np.uint8)])
        return hashlib.sha256(repr(arrivals).encode()).hexdigest()[:16]

    assert digest(7, "weather/port-0/in") == GOLDEN
    assert digest("7", "weather/port-0/in") == digest(7, "weather/port-0/in")
    others = {digest(8, "weather/port-0/in"), digest(7, "weather/port-1/in"), digest(7, "weather/port-0/out")}
    assert len(others | {GOLDEN}) == 4


def test_more_loss_leaves_the_duplicates_where_they_were() -> None:
    frames = np.arange(256, dtype=np.uint8)[:, None].repeat(20, axis=1)

    def twice(weather: Weather) -> set[bytes]:
        got = [arrival.frame for arrival in fall(WeatherStream(weather, 5, "wire"), [frames])]
        return {frame for frame in got if got.count(frame) == 2}

    calm, lossy = twice(Weather(duplicate=0.2)), twice(Weather(drop=0.3, duplicate=0.2))
    assert lossy
    assert lossy < calm


def test_clear_weather_and_batches_that_are_not_hit_pass_uncopied() -> None:
    frames = some_frames(168, 1082)
    for weather in (Weather(), Weather(drop=2**-53), Weather(delay_min_ns=5, delay_max_ns=5)):
        stream = WeatherStream(weather, 1, "wire")
        ((at, passed),) = stream.apply(frames, NOW)
        assert passed is frames
        assert at == NOW
        assert stream.counters.as_dict() == {
            "frames": 168,
            **dict.fromkeys(list(stream.counters.as_dict())[1:], 0),
        }
    assert WeatherStream(STORM, 1, "wire").apply(frames[:0], NOW) == []


def test_certain_events_happen_to_every_frame_and_are_counted() -> None:
    frames = some_frames(50)
    originals = [row.tobytes() for row in frames]

    def certain(weather: Weather) -> tuple[list[Arrival], dict[str, int]]:
        stream = WeatherStream(weather, 1, "wire")
        got = fall(stream, [frames])
        return got, {key: value for key, value in stream.counters.as_dict().items() if value}

    assert certain(Weather(drop=1)) == ([], {"frames": 50, "dropped": 50})
    got, counters = certain(Weather(duplicate=1))
    assert [arrival.frame for arrival in got] == [frame for frame in originals for _ in range(2)]
    assert counters == {"frames": 50, "duplicated": 50}
    got, counters = certain(Weather(reorder=1, delay_min_ns=5, delay_max_ns=7))
    assert {arrival.at - NOW for arrival in got} == {5, 6, 7}
    assert sorted(arrival.frame for arrival in got) == sorted(originals)
    assert counters == {"frames": 50, "reordered": 50}
    got, counters = certain(Weather(corrupt=1))
    for arrival, original in zip(got, originals, strict=True):
        assert (int.from_bytes(arrival.frame, "big") ^ int.from_bytes(original, "big")).bit_count() == 1
    assert counters == {"frames": 50, "corrupted": 50}
    got, counters = certain(Weather(truncate=1))
    for arrival, original in zip(got, originals, strict=True):
        assert 14 <= len(arrival.frame) < len(original)
        assert original.startswith(arrival.frame)
    assert counters == {"frames": 50, "truncated": 50}


def test_late_frames_are_overtaken() -> None:
    frames = some_frames(30)
    got = fall(WeatherStream(Weather(reorder=0.2), 2, "wire"), [frames])
    late = [arrival.frame for arrival in got if arrival.at == NOW + MS]
    prompt = [arrival.frame for arrival in got if arrival.at == NOW]
    assert late
    assert [arrival.frame for arrival in got] == prompt + late
    order = [row.tobytes() for row in frames]
    assert [frame for frame in order if frame in late] == late
    assert [frame for frame in order if frame in prompt] == prompt


@pytest.mark.parametrize(
    ("text", "weather"),
    [
        ("", Weather()),
        (" clear ", Weather()),
        ("drop=0.01,duplicate=0.001,reorder=0.01", Weather(drop=0.01, duplicate=0.001, reorder=0.01)),
        ("drop=1%, delay=2ms", Weather(drop=0.01, delay_min_ns=2 * MS, delay_max_ns=2 * MS)),
        ("reorder=1,delay=50us..1.5ms", Weather(reorder=1.0, delay_min_ns=50 * US, delay_max_ns=1500 * US)),
        ("corrupt=0.5,addresses=50%", Weather(corrupt=0.5, addresses=0.5)),
        ("corrupt=1e-3,truncate=0,delay=7ns..1s", Weather(corrupt=1e-3, delay_min_ns=7, delay_max_ns=S)),
    ],
)
def test_text_form(text: str, weather: Weather) -> None:
    assert Weather.parse(text) == weather
    assert Weather.parse(str(weather)) == weather


@given(
    st.builds(
        Weather,
        *[st.floats(0, 1)] * 5,
        delay_min_ns=st.integers(1, S),
        delay_max_ns=st.integers(S, 60 * S),
    )
)
def test_text_form_loses_nothing(weather: Weather) -> None:
    assert Weather.parse(str(weather)) == weather


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("drop=1.5", r"drop=1.5: a probability lies between 0 and 1"),
        ("reorder=-0.1", r"reorder=-0.1: a probability"),
        ("truncate=nan", r"truncate=nan: a probability"),
        ("corrupt=1%,addresses=2", r"addresses=2.0: a probability"),
        ("corrupt=101%", r"corrupt=1.01: a probability"),
        ("duplicate=often", r"duplicate=often: not a number; write for example duplicate=0.01"),
        ("duplicate=%", r"duplicate=%: not a number"),
        (
            "loss=0.1",
            r"no field 'loss'; the fields are drop, duplicate, reorder, corrupt, truncate, addresses, delay",
        ),
        ("drop", r"'drop' has no value; write for example drop=0.01,"),
        ("drop=", r"'drop=' has no value"),
        ("drop=0.1,", r"'' has no value"),
        ("drop=0.1,drop=0.2", r"drop is given twice"),
        ("delay=1ms,delay=2ms", r"delay is given twice"),
        ("delay=5", r"delay=5: not a duration; write for example delay=1ms"),
        ("delay=1m", r"delay=1m: not a duration"),
        ("delay=infs", r"delay=infs: not a duration"),
        ("delay=0ms", r"delay=0ns..0ns: a delay lies between 1ns and 60s"),
        ("delay=3ms..1ms", r"delay=3ms..1ms: .* the shorter one first"),
        ("delay=61s", r"delay=61s..61s: a delay lies"),
    ],
)
def test_configuration_errors_name_the_field(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=f"^weather: .*{complaint}"):
        Weather.parse(text)


def test_delay_line_orders_by_time_then_by_push_and_is_bounded() -> None:
    line = DelayLine(bytes_max=100)
    blocks = [np.full((1, 20), value, dtype=np.uint8) for value in range(6)]
    assert (bool(line), line.next_at) == (False, None)
    for at, block in zip((5, 3, 5, 3, 9), blocks, strict=False):
        assert line.push(Instant(at), block)
    assert not line.push(Instant(1), blocks[5])
    assert (bool(line), line.next_at, line.bytes) == (True, 3, 100)
    assert line.pop_due(Instant(2)) == []
    assert [int(block[0, 0]) for block in line.pop_due(Instant(5), bytes_max=21)] == [1, 3]
    assert [int(block[0, 0]) for block in line.pop_due(Instant(5))] == [0, 2]
    assert line.bytes == 20
    assert line.clear() == 1
    assert (line.bytes, line.next_at, line.clear()) == (0, None, 0)
