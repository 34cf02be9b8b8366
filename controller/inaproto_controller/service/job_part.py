"""A host's part of a job that was placed: which ranks are its, and how they are started there."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inaproto.client.environment import JOB_VARIABLE, KEY_VARIABLE, RANK_VARIABLE, SIZE_VARIABLE
from inaproto.client.joining import SOCKET_VARIABLE
from inaproto.errors import ConfigError
from inaproto.pasted import pasted

_OVER = ("ended", "cancelled", "failed")


def part_of(job: Mapping[str, Any], host: str, *, watch: str = "") -> dict[str, Any]:
    """``job`` as the controller's API has it. Raises ``ConfigError``, which says where the job's place is.

    ``watch``: the command that follows the job, for one that has no place yet.
    """
    name, hosts, each = job["name"], list(job["hosts"]), int(job["ranks_per_host"])
    if job["state"] in _OVER:
        raise ConfigError(f"job {name} is over ({job['state']}); submit it again")
    if not hosts:
        why = f": {job['why']}" if job["why"] else ""
        raise ConfigError(
            f"job {name} has no hosts yet, it is {job['state']}{why}; {watch or pasted('job watch', name)}"
        )
    if host not in hosts:
        raise ConfigError(f"job {name} has no ranks on {host}: it is placed on {', '.join(hosts)}")
    index = hosts.index(host)
    return {
        "job": name,
        "host": host,
        "hosts": hosts,
        "host_index": index,
        "first_rank": index * each,
        "ranks": each,
        "size": each * len(hosts),
        "elastic": bool(job.get("elastic")),
    }


def ranks_by_host(job: Mapping[str, Any]) -> str:
    """``h2 (ranks 0 to 7), h3 (ranks 8 to 15)`` for ``job`` as the controller's API has it; "" if it has no
    hosts."""
    each = int(job["ranks_per_host"])
    return ", ".join(
        f"{host} ({_ranks(index * each, each)})" for index, host in enumerate(map(str, job["hosts"]))
    )


def _ranks(first: int, count: int) -> str:
    return f"rank {first}" if count == 1 else f"ranks {first} to {first + count - 1}"


def variables(part: Mapping[str, Any]) -> dict[str, str]:
    """What its processes need in their environment; a rank of their own, where the host has several."""
    found = {JOB_VARIABLE: str(part["job"]), SIZE_VARIABLE: str(part["size"])}
    if part["ranks"] == 1:
        found[RANK_VARIABLE] = str(part["first_rank"])
    return found


def shell(part: Mapping[str, Any], directory: Path | None = None) -> str:
    """Lines for ``eval`` in a shell; what it does not read is for people.

    ``directory``: of the host daemon, where its machine has more than one, or another than by default.
    """
    which = _ranks(part["first_rank"], part["ranks"])
    there = {} if directory is None else {"dir": directory, "host": part["host"]}
    words = [
        "-n",
        str(part["ranks"]),
        *(["--elastic"] if part["elastic"] else []),
        "--",
        "python",
        "train.py",
    ]
    run = pasted(
        "run",
        *words,
        **there,
        job=part["job"],
        hosts=",".join(part["hosts"]),
        host_index=part["host_index"],
    )
    found = variables(part)
    if directory is not None:
        found[SOCKET_VARIABLE] = str(directory.absolute() / f"{part['host']}.sock")
    lines = [f"export {name}={shlex.quote(text)}" for name, text in found.items()]
    return "\n".join(
        [
            f"# {which} of {part['size']} of job {part['job']} run on {part['host']}",
            *lines,
            f"# its token, which job submit printed, is the key: set {KEY_VARIABLE}, then on {part['host']}:",
            f"#   {run}",
        ]
    )
