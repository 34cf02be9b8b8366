"""A rank of SHARP as a process: ``python -m tests.daemon.sharp_rank LIBRARY HUB RANK SIZE DEVICES COUNT``.

The ranks reach each other by a UNIX socket, HUB. Lines of JSON on standard output: ``attached``, or the
error; each of COUNT results; ``released``. With a COUNT below 0 it stays in its place until it is killed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import trio

from inaproto.core.collective.events import SessionConfig
from inaproto.errors import FabricError
from inaproto.units import MS, S
from inaproto.wire.ina_header import Dtype, Op
from inaproto_adapters.sharp import open_sharp
from inaproto_adapters.sharp.hub import met
from inaproto_adapters.sharp.memory import page_aligned

WORDS = 1 << 12
SESSION = SessionConfig(
    tries_max=100, exchange_ns=60 * S, backoff_ns=20 * MS, backoff_max_ns=50 * MS, jitters=(100, 500)
)


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def main(library: str, hub: str, rank: int, size: int, devices: str, operations: int) -> None:
    sharp = open_sharp(library=library, devices=devices, session=SESSION)
    async with met(hub, rank, size, "key") as others:
        try:
            place = await sharp.attach("job", 1, others)
        except FabricError as error:
            say(error=str(error))
            return
        say(attached=rank)
        memory = page_aligned(4 * WORDS)
        values = np.frombuffer(memory, np.float32)
        key = await place.register(memory)
        if operations < 0:
            await trio.sleep_forever()
        for number in range(operations):
            values[:] = rank + 1 + number
            await place.all_reduce(key, key, 4 * WORDS, Dtype.F32, Op.SUM)
            say(result=[float(values.min()), float(values.max())])
        await sharp.aclose()
        say(released=rank)


if __name__ == "__main__":
    library, hub, rank, size, devices, operations = sys.argv[1:]
    trio.run(main, library, hub, int(rank), int(size), devices, int(operations))
