"""Ranks that have torch, and the daemons that serve them.

Tests run without torch; their ranks are processes of an environment that has it: ``.venv-torch``, which
``make torch`` makes, or the Python that ``INAPROTO_TORCH_PYTHON`` names.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from inaproto.errors import Unsupported
from inaproto_hil.rigs.cluster import ClusterConfig, LocalCluster
from inaproto_hil.rigs.fork_server import ONE_THREAD
from tests.conftest import end_without

TREE = Path(__file__).resolve().parents[2]
PYTHON = TREE / ".venv-torch" / "bin" / "python"
PYTHON_VARIABLE = "INAPROTO_TORCH_PYTHON"
DEADLINE_S = 600.0
"""For ranks to end: longer than a busy machine needs, so only a hang meets it."""


class Rank:
    """How one rank ended."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.status: int | str = found["status"]
        self.output: str = found["output"]
        self.result: Any = found["result"]


class Zygote:
    """Starts ranks, which are there at once: torch was imported before."""

    def __init__(self, python: Path) -> None:
        self._process = subprocess.Popen(
            [str(python), "-m", "tests.torch.zygote"],
            cwd=TREE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("INAPROTO_")}
            | ONE_THREAD,
        )
        first = self._answer()
        assert first.startswith("ready"), first
        self.version = first.split()[1]

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process with torch has ended; its stderr is above"
        return line

    def run(self, case: str, environment: Sequence[Mapping[str, str]], **arguments: Any) -> list[Rank]:
        """Run a case of :mod:`tests.torch.cases` in as many ranks as there are environments."""
        request = {
            "case": case,
            "environment": [dict(each) for each in environment],
            "arguments": arguments,
            "deadline_s": DEADLINE_S,
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return [Rank(found) for found in json.loads(self._answer())]

    def close(self) -> None:
        self._process.communicate(timeout=DEADLINE_S)


class Ranks:
    """Ranks of a cluster."""

    def __init__(self, zygote: Zygote, cluster: LocalCluster) -> None:
        self._zygote = zygote
        self._cluster = cluster

    def environment(self, rank: int, size: int) -> dict[str, str]:
        """Of rank r of a job: it is at host ``r * hosts // size``."""
        hosts = len(self._cluster.hosts)
        return {"INAPROTO_HOST_SOCKET": str(self._cluster.host_socket(rank * hosts // size))}

    def run(
        self, case: str, size: int, wishes: Mapping[str, str] | None = None, **arguments: Any
    ) -> list[Rank]:
        environment = [self.environment(rank, size) | dict(wishes or {}) for rank in range(size)]
        return self._zygote.run(case, environment, **arguments)

    def results(
        self, case: str, size: int, wishes: Mapping[str, str] | None = None, **arguments: Any
    ) -> list[Any]:
        """What the ranks returned, all of which must have."""
        ranks = self.run(case, size, wishes, **arguments)
        for number, rank in enumerate(ranks):
            assert rank.status == 0, f"rank {number} of {size}: {rank.status}\n{rank.output}"
        return [rank.result for rank in ranks]


def why_no_torch(python: Path) -> str:
    """Empty: it is there."""
    if not python.exists():
        return f"there is no {python.name} with it; `make torch` gets it"
    probe = "import inaproto, torch; assert torch.distributed.is_gloo_available()"
    done = subprocess.run([str(python), "-c", probe], cwd=TREE, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    return f"it does not load: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"


@pytest.fixture(scope="session")
def torch_python() -> Path:
    """The Python of an environment with torch and inaproto."""
    named = os.environ.get(PYTHON_VARIABLE)
    python = Path(named) if named else PYTHON
    why = why_no_torch(python)
    if why:
        end_without("torch", Unsupported("torch", why))
    return python


@pytest.fixture(scope="session")
def zygote(torch_python: Path) -> Iterator[Zygote]:
    found = Zygote(torch_python)
    yield found
    found.close()


@pytest.fixture(scope="module")
def one_host(zygote: Zygote) -> Iterator[Ranks]:
    with LocalCluster(ClusterConfig(hosts=1)) as cluster:
        yield Ranks(zygote, cluster)


@pytest.fixture(scope="module")
def two_hosts(zygote: Zygote) -> Iterator[Ranks]:
    with LocalCluster(ClusterConfig(hosts=2)) as cluster:
        yield Ranks(zygote, cluster)
