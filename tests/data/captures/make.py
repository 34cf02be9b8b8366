"""Makes the captures in this folder: kernel RoCE hosts (Soft-RoCE) in the guest of the bench, a minute.

    python -m tests.data.captures.make [FOLDER]

``kernel-writes``: two hosts, RDMA writes of 4 x 16 KiB at path MTU 1024 and of 4 x 1021 bytes (pad) over a
bridge, nothing lost, then 4 x 16 KiB with a packet lost. ``kernel-ring``: an all-reduce of 24 KiB of float32
over three hosts through the switch daemon, which sums. Addresses and keys are of that run alone.
"""

from __future__ import annotations

import gzip
import sys
from functools import partial
from pathlib import Path

import trio

from inaproto_hil.softroce.image import Image, open_image
from inaproto_hil.softroce.switched import SwitchedConfig, run_switched
from inaproto_hil.softroce.transfer import TransferPlan
from tests.hil.softroce import faults
from tests.hil.softroce.pair import open_pair
from tests.hil.softroce.recording import Recording


async def writes(image: Image) -> bytes:
    recording = Recording()
    async with open_pair(image, recording=recording) as pair:
        await pair.transfer(TransferPlan(nbytes=16384))
        await pair.transfer(TransferPlan(nbytes=1021))
        await pair.transfer(TransferPlan(nbytes=16384), faults.drop(10))
    return recording.pcapng()


async def ring(image: Image) -> bytes:
    recording = Recording()
    config = SwitchedConfig(hosts=3, mtu=1024, rows=[("float32", 24576)], iterations=1, message_packets=8)
    found = await run_switched(image, config, wrap_port=recording.wrap)
    assert not any(row["wrong"] for row in found.rows), found
    return recording.pcapng()


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    image = open_image(print)
    for name, make in (("kernel-writes", writes), ("kernel-ring", ring)):
        data = trio.run(partial(make, image))
        path = folder / f"{name}.pcapng.gz"
        path.write_bytes(gzip.compress(data, 9, mtime=0))
        print(path, len(data), "bytes,", path.stat().st_size, "compressed")


if __name__ == "__main__":
    main()
