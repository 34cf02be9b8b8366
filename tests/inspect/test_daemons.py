"""Rings of userspace NICs through the real switch daemon, captured at its ports: clean, every sum checked."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio

from inaproto.daemon.settings.config import load_switch_settings
from inaproto.daemon.switch.daemon import run_switch
from inaproto.ports import load_adapter
from inaproto.wire.files.capture_reader import read_capture
from inaproto.wire.ina_header import INA_HEADER_BYTES
from inaproto_hil.softroce.ring import RingPlan, run
from tests.hil.softroce.recording import Recording
from tests.inspect.captures import inspect

RANKS, MTU = 3, 1024
ROWS = [("float32", 65536), ("int32", 4), ("float16", 30000)]


async def captured(folder: Path) -> bytes:
    recording = Recording()
    settings = load_switch_settings({"dir": str(folder)}, None, {}).settings
    plan = RingPlan(
        ips=[f"10.0.0.{1 + rank}" for rank in range(RANKS)],
        first_rank=0,
        ranks=RANKS,
        control_port=0,
        mtu=MTU,
        timeout=17,
        retry_count=7,
        window=2,
        message_packets=8,
        rows=ROWS,
        iterations=2,
        seconds=30.0,
    )
    told: list[dict[str, Any]] = []
    stop, ready = trio.Event(), trio.Event()
    with trio.fail_after(600):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                partial(
                    run_switch,
                    settings,
                    open_port_listener=load_adapter("frames").open().listen,
                    wrap_port=recording.wrap,
                    stop=stop,
                    announce=lambda line: ready.set(),
                )
            )
            await ready.wait()
            await run(plan, settings.dir, told.append)
            stop.set()
    assert not any(row.get("wrong", 0) for row in told), told
    return recording.pcapng()


async def test_a_ring_of_our_nics_through_the_switch_daemon(runtime_dir: Path) -> None:
    inspector, found = inspect(read_capture(await captured(runtime_dir)))
    assert not found, found[0].as_dict()
    packets = 0
    for _, nbytes in ROWS:
        messages = -(-nbytes // (8 * MTU - INA_HEADER_BYTES))
        packets += -(-(nbytes + messages * INA_HEADER_BYTES) // MTU)
    assert inspector.books.checked["wrong sum"] >= 2 * RANKS * packets
    assert inspector.counts().broken == 0
