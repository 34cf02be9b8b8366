"""A rank of the bench, as a process: one JSON line of instructions in, one of times out.

Blocks of all-reduces through the adapter and of the C loop alternate, on one context and the same memory, so
that whatever else the machine does is in both.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import trio

from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp import SharpConfig
from inaproto_adapters.sharp.attachment import SharpAttachment
from inaproto_adapters.sharp.hub import HubMember, met
from inaproto_adapters.sharp.library import load
from inaproto_adapters.sharp.memory import page_aligned


class Loop:
    """The C loop over the functions of a library."""

    def __init__(self, loop: str, library: str) -> None:
        self._loop = ctypes.CDLL(loop).sharp_loop
        functions = ctypes.CDLL(library)
        names = ("sharp_coll_do_allreduce_nb", "sharp_coll_req_test", "sharp_coll_req_free")
        self._functions = [ctypes.cast(getattr(functions, name), ctypes.c_void_p) for name in names]

    def run(self, comm: Any, spec: Any, times: int, into: list[int]) -> None:
        """Raises ``RuntimeError`` with the library's code."""
        ns = (ctypes.c_int64 * times)()
        code = self._loop(
            *self._functions, ctypes.c_void_p(comm), ctypes.byref(spec), ctypes.c_int64(times), ns
        )
        if code:
            raise RuntimeError(f"the C loop ended with {code}")
        into += list(ns)


async def measure(place: SharpAttachment, loop: Loop, others: HubMember, wish: dict[str, Any]) -> Any:
    """Times in ns for each size: of the adapter, of the loop; and wrong elements."""
    report = []
    for nbytes, times in zip(wish["sizes"], wish["times"], strict=True):
        source, into = page_aligned(nbytes), page_aligned(nbytes)
        np.frombuffer(source, np.float32)[:] = others.position + 1
        keys = await place.register(source), await place.register(into)
        spec = place.spec_of(*keys, nbytes, Dtype.F32, Op.SUM)
        ours: list[int] = []
        bare: list[int] = []
        for number in range(wish["rounds"] + 1):
            for which in ("ours", "bare") if number % 2 else ("bare", "ours"):
                await others.all_gather(b"")
                if which == "bare":
                    await place.in_lane(partial(loop.run, place.calls.comm, spec, times, bare))
                    continue
                for _ in range(times):
                    began = time.perf_counter_ns()
                    await place.all_reduce(*keys, nbytes, Dtype.F32, Op.SUM)
                    ours.append(time.perf_counter_ns() - began)
        expected = others.size * (others.size + 1) / 2
        wrong = int(np.count_nonzero(np.frombuffer(into, np.float32) != expected))
        report.append({"bytes": nbytes, "ours": ours[times:], "bare": bare[times:], "wrong": wrong})
        for key in keys:
            await place.unregister(key)
    return report


async def main(wish: dict[str, Any]) -> None:
    """Prints the report."""
    config = SharpConfig(library=wish["library"], devices=wish["devices"])
    async with met(wish["hub"], wish["rank"], wish["size"], wish["key"]) as others:
        place = await SharpAttachment.attached(
            load(config.library), config, "bench", others, lambda bits: int(wish["job"])
        )
        report = await measure(place, Loop(wish["loop"], wish["library"]), others, wish)
        await place.release()
        await others.all_gather(b"")
    print(json.dumps(report))


if __name__ == "__main__":
    trio.run(main, json.loads(sys.stdin.readline()))
