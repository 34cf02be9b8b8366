"""A Ray cluster of three nodes, and what the engine ``ray`` does there, as a program for a test.

``python -m tests.ray_cluster SCENARIO FOLDER`` prints one JSON object. It runs in namespaces of its own, for
network and for processes: Ray then finds no address but that of loopback, and what it has started ends with
the program. The head has no processors, the two others have one each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

DEADLINE_S = 600.0
"""Of each wait."""
WAYS = {"local": ["--jobs", "1"], "ray": ["--engine", "ray"]}


def main(scenario: Path, folder: Path) -> None:
    os.environ.update(RAY_TMPDIR=str(folder), RAY_USAGE_STATS_ENABLED="0")
    (folder / "ray").mkdir()
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    import ray

    os.environ["RAY_ADDRESS"] = _started(DEADLINE_S)
    found = {
        "bytes": {way: _simulated(scenario, words) for way, words in WAYS.items()},
        "nodes": _who_works(folder),
        "errors": _what_is_raised(),
    }
    ray.shutdown()
    print(json.dumps(found))


def _started(seconds: float) -> str:
    """Its address. Ray waits half a minute for a node, which on a busy machine is tried again."""
    from ray.cluster_utils import Cluster

    end = time.monotonic() + seconds
    node = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster: Any = None
    nodes = 0
    while nodes < 3:
        try:
            if cluster is None:
                cluster = Cluster(
                    initialize_head=True, head_node_args={**node, "num_cpus": 0}, shutdown_at_exit=False
                )
            else:
                cluster.add_node(**node, num_cpus=1)
            nodes += 1
        except Exception:
            if time.monotonic() > end:
                raise
    cluster.wait_for_nodes(timeout=seconds)
    return str(cluster.address)


def _simulated(scenario: Path, words: list[str]) -> str:
    command = [sys.executable, "-m", "inaproto", "simulate", str(scenario), "--json", "-", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _who_works(folder: Path) -> list[str]:
    """Each of two tasks ends when the other runs as well, and a node has room for one."""
    from inaproto.task_engines import OnRay

    def meet(_: int) -> str:
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        (folder / f"node-{node}").touch()
        end = time.monotonic() + DEADLINE_S
        while len(list(folder.glob("node-*"))) < 2:
            assert time.monotonic() < end, "nobody else came"
            time.sleep(0.01)
        return node

    return list(OnRay().outcomes(meet, range(2)))


def _what_is_raised() -> dict[str, list[str]]:
    from inaproto.errors import ConfigError
    from inaproto.task_engines import OnRay

    found = {}
    for kind in (ConfigError, OSError, KeyError):

        def refuse(_: int, kind: Any = kind) -> None:
            raise kind("not today")

        try:
            list(OnRay().outcomes(refuse, range(5)))
        except Exception as error:  # noqa: BLE001  it is what is asked for
            found[kind.__name__] = [type(error).__name__, str(error)]
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
