"""What a NIC has completed since it was last asked, in one step of a host, and the same one by one."""

from __future__ import annotations

import random

import pytest

from inaproto.core.host.events import Completed
from inaproto.core.host.job import HostJob
from inaproto.errors import LocalMisuse
from inaproto.units import Instant
from inaproto_hil.bench.verbs.device import StubbedDevice
from inaproto_hil.bench.verbs.host import Shape, StubbedHost
from tests.unit.counting import run_counted
from tests.unit.test_host_job import CONFIG

_MESSAGES = 21
Written = tuple[int, tuple[int, int], list[int]]


def written(seed: int, *, together: bool) -> list[Written]:
    """Immediate, target and sizes of all that is sent in some all-reduces, wake-ups being of any size."""
    device = StubbedDevice(real=False)
    draw = random.Random(f"{seed}/wake-ups")

    async def run() -> None:
        with device.installed():
            host = StubbedHost(Shape(1024, 3, 4), device, _MESSAGES, copies=True)
            base = host.ring.holdings.links["chain"].into.va
            for done in range(3):
                host.call()
                if done == 1:
                    host.call()  # its messages follow those of the one before
                while host.answer(draw.randint(1, 4)):
                    if together:
                        host.take()
                    else:
                        for completion in host.nic.poll():
                            host.ring.completed(completion)
            assert host.process.done == 4
            for request in (request for chain in device.chains for request in chain):
                rkey, va = request.remote
                sizes = [length for _, length, _ in request.sg]
                found.append((request.imm_data, (rkey, va - base), sizes))
            host.ring.close()
            await host.nic.aclose()

    found: list[Written] = []
    run_counted(run)
    return found


@pytest.mark.parametrize("seed", range(6))
def test_one_step_sends_what_many_do(seed: int) -> None:
    assert written(seed, together=True) == written(seed, together=False)


def test_a_bundle_has_no_bundles_in_it() -> None:
    with pytest.raises(LocalMisuse, match="bundle"):
        HostJob(CONFIG).step(Completed((Completed(()),)), Instant(0))  # type: ignore[arg-type]
