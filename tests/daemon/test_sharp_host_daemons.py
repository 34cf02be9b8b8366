"""Host daemons that have SHARP beside their rings, over the double of its library: one result on all ranks.

The double adds in the order of ranks, so whole numbers show that a sum is right, and the path of an operation
shows who has summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import pytest

import inaproto
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from tests.clusters.loopback import DEADLINE_S
from tests.sharp_double import NEVER, Double

HOSTS: Final = 3
TRIES_MAX: Final = 50_000
"""Far more than are called until hosts have attached."""


@pytest.fixture
def cluster(sharp_double: Double) -> Iterator[LocalCluster]:
    options = ("--collective", f"sharp:library={sharp_double.path};devices=a:1", "--collective-kib-min", "0")
    patience = ("--collective-timeout-ms", "2000")
    with LocalCluster(ClusterConfig(hosts=HOSTS, host_options=(*options, *patience))) as running:
        yield running


def paths_of(cluster: LocalCluster, *, until: str, more: int, tries_max: int = TRIES_MAX) -> list[str]:
    """The paths of all-reduces, up to the first by ``until`` and ``more`` after it; each sum is right."""

    def script(rank: int) -> list[str]:
        found: list[str] = []
        with inaproto.connect_blocking(
            "j", rank, size=HOSTS, socket=cluster.host_socket(rank), exact_plan=False
        ) as comm:
            left = None
            for index in range(tries_max):
                array = np.arange(5000, dtype=np.float32) % 97 + rank + index
                total = comm.all_reduce(array).wait(DEADLINE_S)
                expected = HOSTS * (np.arange(5000, dtype=np.float32) % 97 + index) + HOSTS * (HOSTS - 1) / 2
                assert np.array_equal(total, expected)
                found.append(str(comm.statistics().recent[-1].path))
                left = more if left is None and found[-1] == until else left
                if left == 0:
                    break
                left = None if left is None else left - 1
        return found

    with ThreadPoolExecutor(HOSTS) as threads:
        results = list(threads.map(script, range(HOSTS)))
    assert results[1:] == results[:-1], "one path on all ranks"
    return results[0]


def test_a_job_is_summed_by_sharp_once_its_hosts_are_attached(
    cluster: LocalCluster, sharp_double: Double
) -> None:
    paths = paths_of(cluster, until="sharp", more=20)
    assert paths[-20:] == ["sharp"] * 20
    assert sharp_double.count("sharp_coll_do_allreduce_nb") >= 20 * HOSTS


def test_one_that_never_ends_is_redone_by_all_and_the_job_goes_on(
    cluster: LocalCluster, sharp_double: Double
) -> None:
    sharp_double.inject("complete", NEVER, rank=1, nth=3)
    paths = paths_of(cluster, until="sharp", more=10)
    assert paths[-1] in ("sharp", "switch")
    assert "switch" in paths[paths.index("sharp") :]


def test_a_locked_tree_is_no_reason_to_wait(cluster: LocalCluster, sharp_double: Double) -> None:
    sharp_double.place("a:1", [9])
    sharp_double.set(lock_mode=1)
    assert paths_of(cluster, until="sharp", more=0)[-1] == "sharp"
    sharp_double.set(foreign_lock=9)
    tried = sharp_double.count("sharp_coll_do_allreduce_nb")
    assert set(paths_of(cluster, until="never", more=0, tries_max=200)) == {"switch"}
    assert sharp_double.count("sharp_coll_do_allreduce_nb") > tried
