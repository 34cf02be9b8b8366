"""``inaproto job submit --slurm``: a job on the nodes that Slurm has allocated."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inaproto.client.environment import JOB_VARIABLE, KEY_VARIABLE
from inaproto.errors import ConfigError

ID_VARIABLE: Final = "SLURM_JOB_ID"
NODES_VARIABLE: Final = "SLURM_JOB_NODELIST"
TASKS_VARIABLE: Final = "SLURM_TASKS_PER_NODE"
ORDER_VARIABLE: Final = "SLURM_DISTRIBUTION"
_COUNT: Final = re.compile(r"([0-9]{1,6})(\(x[0-9]{1,6}\))?")


@dataclass(frozen=True, slots=True)
class Allocation:
    hosts: tuple[str, ...]
    """Nodes in the order of Slurm's ranks; host daemons have the same names."""
    ranks_per_host: int


def job_name(environment: Mapping[str, str]) -> str:
    """The same for the batch script and for the epilogs of its job. Raises ``ConfigError``."""
    number = environment.get(ID_VARIABLE, "")
    if not re.fullmatch(r"[0-9]{1,12}", number):
        raise ConfigError(
            f"--slurm: {ID_VARIABLE} is not set; this is for the script of a Slurm job, and its epilog"
        )
    return f"slurm-{number}"


def allocation_of(environment: Mapping[str, str]) -> Allocation:
    """Raises ``ConfigError``: this is no batch script, or its nodes have different numbers of tasks."""
    from inaproto.launch.plan import expand_hosts

    nodes, tasks = environment.get(NODES_VARIABLE, ""), environment.get(TASKS_VARIABLE, "")
    if not nodes or not tasks:
        missing = NODES_VARIABLE if not nodes else TASKS_VARIABLE
        raise ConfigError(f"--slurm: {missing} is not set; this is for the script of a Slurm job")
    count = _COUNT.fullmatch(tasks)
    if count is None or not int(count[1]):
        raise ConfigError(
            f"--slurm: {TASKS_VARIABLE} is {tasks!r:.80}, and a job has as many ranks on each of its hosts; "
            "ask for them by --nodes and --ntasks-per-node"
        )
    return Allocation(expand_hosts(nodes), int(count[1]))


def shell(job: str, token: str) -> str:
    """Lines for ``eval`` in the batch script: what its ``srun`` starts finds job and key there."""
    found = {
        JOB_VARIABLE: job,
        KEY_VARIABLE: token,
        # Ranks are numbered node by node, as the controller gives them to hosts.
        ORDER_VARIABLE: "block",
    }
    return "\n".join(f"export {name}={shlex.quote(text)}" for name, text in found.items())
