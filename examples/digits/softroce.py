"""The demo on hosts whose RoCE is not ours: kernel devices in a virtual machine, each with its host daemon.

    inaproto demo softroce

Four processes in the guest train as in the first act, each at a host daemon on a Soft-RoCE device. All
frames cross the switch, which runs outside and sums them. The one process that trains alone does so in the
guest too: an emulated processor has other vector units, for which BLAS has other kernels, and they
round otherwise.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import trio

from examples.digits.demo import Config, Result, conclude, train_in
from examples.digits.display import Display, PlainDisplay
from examples.digits.runs import Outcomes, on_stage
from examples.digits.watch import WireSample
from inaproto.daemon.switch.ports import WrapPort
from inaproto.faults.weather import Weather
from inaproto.ports import FramePort, load_adapter
from inaproto_hil.rigs import environment
from inaproto_hil.rigs.cluster import ClusterConfig, ClusterError
from inaproto_hil.softroce.guest import GuestFailed, boot, guest_failure_alone
from inaproto_hil.softroce.guest_cluster import GuestCluster
from inaproto_hil.softroce.image import Image, open_image
from inaproto_hil.softroce.ring import RECOVER_MS
from inaproto_hil.softroce.switched import switch_outside

TREE = Path(__file__).parents[2]
MEMORY_MB = 2048
"""For nine Pythons."""
PATH_MTU = 1024
TRANSPORT_TIMEOUT = 17
"""The NICs' timer, 0.54 s: what an emulated host does late must not be sent again."""
OUTCOME = "outcome.json"


def run_in_guest(config: Config, out: Path, *, control_port: int, display: Display) -> None:
    """What :func:`main` has started in the guest. ``out`` gets the outcomes, and the wire's samples."""
    outcomes = Outcomes.prepared(out, config.ranks)
    options = ("--mtu", str(PATH_MTU), "--transport-timeout", str(TRANSPORT_TIMEOUT))
    patience = ("--stall-ms", "60000", "--recover-ms", str(RECOVER_MS))
    cluster_config = ClusterConfig(hosts=config.ranks, host_options=(*options, *patience))
    display.stage("starting the host daemons, one by one")
    with GuestCluster(cluster_config, control_port=control_port, log_dir=out / "logs") as cluster:
        watch = train_in(cluster, config, outcomes, display)
    (out / OUTCOME).write_text(json.dumps([asdict(sample) for sample in watch.wire]))


async def train(image: Image, config: Config, out: Path, note: Callable[[str], None]) -> Result:
    """``out`` gets what the guest left, logs too. Raises ``GuestFailed``, under nurseries."""
    async with (
        switch_outside(_weather(config)) as switch,
        boot(image, [switch.ports] * config.ranks, mtu=PATH_MTU, memory_mb=MEMORY_MB) as guest,
    ):
        plan = json.dumps({"config": asdict(config), "control_port": switch.control_port})
        argv = [sys.executable, "-P", "-m", "examples.digits.softroce", plan]
        ended = await guest.run(argv, cwd=TREE, on_line=note)
        if ended.rc:
            raise GuestFailed(f"the training in the guest ended with {ended.rc}: {ended.err[-4000:]}")
        shutil.copytree(guest.out, out, dirs_exist_ok=True)
    outcomes = Outcomes([out / f"rank{rank}.json" for rank in range(config.ranks)], out / "reference.json")
    wire = [WireSample(**sample) for sample in json.loads((out / OUTCOME).read_text())]
    return Result(**outcomes.read(), wire=wire)


def _weather(config: Config) -> WrapPort | None:
    if not config.weather:
        return None

    def wrap(weather: Weather, port: FramePort, name: str) -> FramePort:
        wrapped: FramePort = load_adapter("weather").open(port, weather, seed=config.seed, name=name)
        return wrapped

    return partial(wrap, Weather.parse(config.weather))


def main(config: Config, out: Path) -> int:
    """Play the act; returns the exit status. Raises ``Unsupported`` where packages are missing."""
    out.mkdir(parents=True, exist_ok=True)
    env = environment.describe()
    with on_stage("demo") as display:
        image = open_image(display.note)
        display.stage("booting the hosts")
        try:
            with guest_failure_alone():
                result = trio.run(train, image, config, out, display.note)
        except GuestFailed as failed:
            raise ClusterError(str(failed)) from None
    return conclude(config, result, {**env, "guest_kernel": image.version}, out)


class _Told(PlainDisplay):
    """What is printed is told outside, where its time is added."""

    def note(self, text: str) -> None:
        print(text, flush=True)


def main_in_guest() -> None:
    plan: dict[str, Any] = json.loads(sys.argv[1])
    config = Config(**plan["config"])
    run_in_guest(config, Path("/out"), control_port=plan["control_port"], display=_Told())


if __name__ == "__main__":
    main_in_guest()
