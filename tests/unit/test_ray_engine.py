"""The engine ``ray`` on a real cluster of three nodes, all on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from inaproto.errors import Unsupported
from tests.conftest import end_without
from tests.controller.scenarios import SMALL
from tests.ray_cluster import DEADLINE_S

ROWS = "[failures]\nrow_racks = 1\nrow_mtbf = 20.0\nrow_mttr = 5.0\n"
APART = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
"""In namespaces of its own: nothing of the cluster outlives the program."""


@pytest.fixture(scope="module")
def found() -> Iterator[Any]:
    if find_spec("ray") is None:
        end_without("ray", Unsupported("engine ray", "Ray is not installed: pip install 'inaproto[ray]'"))
    try:
        subprocess.run([*APART, "ip", "link", "set", "lo", "up"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        end_without("namespaces", Unsupported("a Ray cluster in namespaces of its own", str(error)))
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # sockets are below it
        scenario = Path(folder, "scenario.toml")
        scenario.write_text("until = 60.0\n" + SMALL + ROWS)
        done = subprocess.run(
            [*APART, sys.executable, "-m", "tests.ray_cluster", scenario, folder],
            capture_output=True,
            text=True,
            timeout=4 * DEADLINE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        yield json.loads(done.stdout.splitlines()[-1])


def test_a_simulation_has_the_same_bytes_as_in_one_process(found: Any) -> None:
    assert found["bytes"]["ray"] == found["bytes"]["local"]
    runs = json.loads(found["bytes"]["ray"])["variants"]
    assert len(runs) == 2


def test_every_node_works(found: Any) -> None:
    assert len(set(found["nodes"])) == 2


def test_errors_are_those_of_other_engines(found: Any) -> None:
    told = {kind: name for kind, (name, _) in found["errors"].items()}
    assert told == {"ConfigError": "ConfigError", "OSError": "InaprotoError", "KeyError": "RuntimeError"}
    assert all("not today" in text for _, text in found["errors"].values())
