"""Whatever a capture holds, the inspection and what it prints do not raise."""

from __future__ import annotations

import random

import pytest

from inaproto.errors import DecodeError
from inaproto.wire import icrc
from inaproto_hil.inspect.inspector import Inspector
from inaproto_hil.inspect.report import broken_lines, connections_table, document, packet_lines
from tests.inspect.captures import frames_of, ring_world, tap
from tests.seeds import seeds


@pytest.mark.parametrize("seed", seeds(12))
def test_packets_with_any_bytes_changed_never_raise(seed: int) -> None:
    rng = random.Random(f"any bytes {seed}")
    inspector, found = Inspector(), []
    for frame in frames_of(tap(ring_world(f"bytes {seed}"))):
        data = bytearray(frame.data)
        if rng.random() < 0.3:
            for _ in range(rng.randint(1, 4)):
                data[rng.randrange(min(len(data), 112))] = rng.randrange(256)
            if rng.random() < 0.2:
                del data[rng.randrange(len(data)) :]
            if rng.random() < 0.8:
                seal(data)
        broken = inspector.feed(frame._replace(data=bytes(data), wire_bytes=len(data)))
        if broken is not None:
            found.append(broken)
            assert all(broken_lines(broken))
        assert all(packet_lines(frame._replace(data=bytes(data))))
    assert found
    assert document(inspector, found, problem=None)["broken"] == len(found)
    assert connections_table(inspector).row_count == len(inspector.flows) + len(inspector.ended)


def seal(data: bytearray) -> None:
    """So that more than the ICRC is looked at."""
    try:
        icrc.seal(data)
    except DecodeError:
        return
