"""torch's own distributed tests, by ranks whose all-reduces are inaproto's: what passes with gloo passes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from inaproto_hil.rigs.fork_server import ONE_THREAD
from tests.torch.conftest import TREE
from tests.torch.suite_list import FAILING

SUITE_S = 1800.0
_OPTIONS = ("-v", "--tb=no", "--noconftest", "-W", "ignore", "-o", "addopts=", "-p", "no:cacheprovider")
_OUTCOME = re.compile(r"^tests/torch/peer_suite\.py::TestWithRanks::(\w+) (\w+)", re.MULTILINE)


def outcomes(python: Path, directory: Path, environment: dict[str, str], size: int) -> dict[str, str]:
    """PASSED, FAILED or SKIPPED, by the name of the test."""
    done = subprocess.run(
        [str(python), "-m", "pytest", "tests/torch/peer_suite.py", *_OPTIONS],
        cwd=TREE,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("INAPROTO_")},
            **ONE_THREAD,
            "BACKEND": "gloo",
            "WORLD_SIZE": str(size),
            "TEMP_DIR": str(directory),
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": "300",
            **environment,
        },
        stdout=subprocess.PIPE,
        text=True,
        timeout=SUITE_S,
        check=False,
    )
    found = dict(_OUTCOME.findall(done.stdout))
    assert found, done.stdout[-5000:]
    return found


@pytest.mark.timeout(2 * SUITE_S)
def test_what_passes_with_gloo_passes(torch_python: Path, tmp_path: Path) -> None:
    size = 3
    gloo = outcomes(torch_python, tmp_path, {}, size)
    with LocalCluster(ClusterConfig(hosts=1)) as cluster:
        wishes = {"INAPROTO_HOST_SOCKET": str(cluster.host_socket(0)), "INAPROTO_TORCH": "gloo"}
        ours = outcomes(torch_python, tmp_path, {**wishes, "INAPROTO_TORCH_WITHOUT": "error"}, size)
    passed = {name for name, outcome in gloo.items() if outcome == "PASSED"}
    assert len(passed) > 80, gloo
    missed = {name for name in passed if ours.get(name) != "PASSED"}
    assert missed == set(FAILING) & passed, {name: ours.get(name) for name in missed}
    assert len(FAILING) <= 0.03 * len(passed)
