"""Training jobs by a real Slurm: what docs/clusters.md tells sites and users, on four nodes here."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from inaproto_controller.service.job_client import JobClient
from tests.clusters.slurm import PROGRAMS, Slurm, Submitted, slurm, with_variables
from tests.daemon.test_cli_daemons import daemon, status

TREE: Final = Path(__file__).parents[2]
EXAMPLES: Final = TREE / "examples" / "slurm"
NODES: Final = 4
FOUR: Final = (f"--nodes={NODES}", "--ntasks-per-node=1", "--cpus-per-task=1")
"""For any of the examples: four nodes, with a task on each."""
ALL_REDUCES: Final = 52
"""Of the example: one for each of 50 steps, and two that compare the weights."""
HOSTS: Final = [f"h{number}" for number in range(NODES)]

TRAINS_ON: Final = """#!/bin/sh
part=$(inaproto job submit --slurm) || exit
eval "$part"
srun python examples/plain/linear_regression.py --steps 1000000000
"""
TRAINS_ALONE: Final = """#!/bin/sh
unset INAPROTO_HOST_SOCKET
inaproto run -n 4 --daemons 4 -- python examples/plain/linear_regression.py --steps 1000000000
"""


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster with Slurm, and with inaproto's daemons as an operator has started them."""

    slurm: Slurm
    directory: Path
    """Of all daemons' sockets: the nodes are one machine."""
    jobs: JobClient

    def submit(self, script: Path, *options: str) -> Submitted:
        return self.slurm.submit(TREE, script, *options)

    def write(self, name: str, text: str) -> Path:
        path = self.slurm.directory / name
        path.write_text(text)
        return path

    def job(self, submitted: Submitted) -> dict[str, Any]:
        return self.jobs.job(f"slurm-{submitted.number}")

    def until_running(self, submitted: Submitted) -> None:
        name = f"slurm-{submitted.number}"
        submitted.until(
            lambda: [one["state"] for one in self.jobs.jobs(live=True) if one["name"] == name] == ["running"]
        )

    def host(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = status("--socket", str(self.directory / f"{name}.sock"))["hosts"][0]
        return found

    def sums_of_switch(self) -> int:
        """All-reduces of host h0 that the switch has summed."""
        return int(self.host("h0")["totals"]["operations_by_path"].get("switch", 0))

    def nothing_is_left(self, submitted: Submitted) -> None:
        submitted.until_gone()
        assert self.slurm.queue() == []
        assert self.jobs.jobs(live=True) == []
        for name in HOSTS:
            host = self.host(name)
            assert (host["rings"], host["controller"]["turns"], host["clients"]) == ([], [], 1)  # who asks


@pytest.fixture(scope="module")
def short_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ina-", dir="/tmp") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def started(short_directory: Path) -> Iterator[Callable[[], Site]]:
    """The site, which is started for the first test that can have it."""
    with ExitStack() as stack:
        site: list[Site] = []

        def start() -> Site:
            if not site:
                site.append(_start(short_directory, stack))
            return site[0]

        yield start


@pytest.fixture
def site(program: Callable[[str], Path], started: Callable[[], Site]) -> Site:
    for name in PROGRAMS:
        program(name)
    return started()


def _start(directory: Path, stack: ExitStack) -> Site:
    own, run = directory / "slurm", directory / "run"
    own.mkdir()
    (directory / "cluster.json").write_text(
        json.dumps(
            {
                "hosts": HOSTS,
                "switches": [{"name": "leaf0", "jobs": 4}],
                "links": [{"between": [host, "leaf0"]} for host in HOSTS],
            }
        )
    )
    where, agents = ("--dir", str(run)), ("--controller", str(run / "controller-agents.sock"))
    controller = ("controller", *where, "--cluster", str(directory / "cluster.json"))
    stack.enter_context(daemon(*controller, "--report-ms", "100"))
    stack.enter_context(daemon("switch", *where, "--name", "leaf0", *agents))
    for number, host in enumerate(HOSTS):
        stack.enter_context(daemon("host", *where, "--name", host, "--ip", f"10.0.0.{1 + number}", *agents))
    scripts = directory / "etc"
    shutil.copytree(TREE / "deploy" / "slurm", scripts)
    path = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
    (scripts / "inaproto.env").write_text(f"PATH={path}\nINAPROTO_DIR={run}\n")
    include = scripts / "inaproto.conf"
    include.write_text(include.read_text().replace("/etc/slurm", str(scripts)))
    user = {"PATH": path}
    return Site(
        stack.enter_context(slurm(own, NODES, include, user)), run, JobClient([str(run / "controller.sock")])
    )


def weights(output: str) -> list[str]:
    """What the example says at its end, by rank."""
    return sorted(line[line.index("rank ") :] for line in output.splitlines() if "weights" in line)


EQUAL: Final = [f"rank {rank} of {NODES}: weights equal on all ranks" for rank in range(NODES)]


def test_a_job_of_the_controller_has_hosts_and_token_from_the_allocation(site: Site) -> None:
    before = site.sums_of_switch()
    submitted = site.submit(EXAMPLES / "train_by_controller.sbatch", *FOUR)
    assert submitted.wait() == "COMPLETED", submitted.output
    assert site.sums_of_switch() == before + ALL_REDUCES
    assert weights(submitted.output) == EQUAL
    job = site.job(submitted)
    assert (job["state"], job["hosts"], job["tree"]["root"]) == ("ended", HOSTS, "leaf0")
    site.nothing_is_left(submitted)


def test_scancel_leaves_nothing_and_the_nodes_train_again(site: Site) -> None:
    script = site.write("trains_on.sbatch", TRAINS_ON)
    submitted = site.submit(script, *FOUR)
    site.until_running(submitted)
    site.slurm.ask("scancel", str(submitted.number))
    assert submitted.wait() == "CANCELLED"
    assert site.job(submitted)["state"] in ("cancelled", "failed")
    site.nothing_is_left(submitted)
    again = site.submit(EXAMPLES / "train_by_controller.sbatch", *FOUR)
    assert again.wait() == "COMPLETED", again.output


@pytest.mark.parametrize("example", ["train.sbatch", "train_by_launcher.sbatch"])
def test_jobs_without_a_controller(site: Site, example: str) -> None:
    submitted = site.submit(EXAMPLES / example, *FOUR)
    assert submitted.wait() == "COMPLETED", submitted.output
    said = weights(submitted.output)
    count = len(said)
    assert count in (NODES, 4 * NODES)
    assert said == sorted(f"rank {rank} of {count}: weights equal on all ranks" for rank in range(count))
    site.nothing_is_left(submitted)


def test_daemons_of_a_run_alone_end_with_a_cancelled_job(site: Site) -> None:
    script = site.write("trains_alone.sbatch", TRAINS_ALONE)
    submitted = site.submit(script, "--nodes=1", "--ntasks=1", "--export=ALL")
    mark = {"SLURM_JOB_ID": str(submitted.number)}
    submitted.until(lambda: "step 20" in submitted.output)
    assert len(with_variables(**mark)) > 8
    site.slurm.ask("scancel", str(submitted.number))
    assert submitted.wait() == "CANCELLED"
    site.nothing_is_left(submitted)


def test_a_node_without_its_host_daemon_is_drained(site: Site) -> None:
    options = ("--nodes=1", "--ntasks-per-node=1", "--nodelist=h3")
    socket = site.directory / "h3.sock"
    hidden = socket.with_name("h3.hidden")
    socket.rename(hidden)
    try:
        submitted = site.submit(EXAMPLES / "train.sbatch", *options)
        site.slurm.until(lambda: "drain" in site.slurm.node_state("h3"), "h3 is drained")
        assert "rolog" in site.slurm.node_state("h3")
        site.slurm.until(lambda: submitted.state == "PENDING", "the job is in the queue again")
    finally:
        hidden.rename(socket)
    site.slurm.ask("scancel", str(submitted.number))
    site.slurm.ask("scontrol", "update", "NodeName=h3", "State=RESUME")
    again = site.submit(EXAMPLES / "train.sbatch", *options)
    assert again.wait() == "COMPLETED", again.output
