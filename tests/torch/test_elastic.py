"""torchrun starts a job again, one of whose ranks was killed: it ends with the weights of one process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from inaproto_hil.rigs.fork_server import ONE_THREAD
from tests.torch.conftest import DEADLINE_S, TREE


def test_a_job_that_torchrun_starts_again_trains_to_the_weights_of_one_process(torch_python: Path) -> None:
    words = [str(torch_python), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    words += ["--max-restarts", "1", "tests/torch/elastic_script.py"]
    with LocalCluster(ClusterConfig(hosts=1)) as cluster:
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("INAPROTO_")},
            **ONE_THREAD,
            "PYTHONPATH": str(TREE),
            "INAPROTO_TORCH": "gloo",
            "INAPROTO_TORCH_WITHOUT": "error",
            "INAPROTO_HOST_SOCKET": str(cluster.host_socket(0)),
            # Else gloo itself meets the keys of the incarnation before, and may not connect.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        done = subprocess.run(
            words,
            cwd=TREE,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * DEADLINE_S,
            check=False,
        )
    assert done.returncode == 0, done.stdout
    for rank in range(3):
        assert f"rank {rank} incarnation 1 right True" in done.stdout, done.stdout
    assert done.stdout.count("inaproto carries all-reduces of 3 ranks") == 2, done.stdout
