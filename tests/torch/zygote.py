"""Ranks with torch, forked from a process that has imported it: ``python -m tests.torch.zygote``.

Reads requests from stdin, a line of JSON each, and answers each with one when all its ranks have ended. Runs
in an environment that has torch, which that of the tests need not have.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it at their first step, which takes a child seconds
import torch.distributed

from inaproto.torch import groups, kernels
from inaproto.torch.autoload import register
from tests.torch import cases, device_cases, trap_cases


def rank(request: dict[str, Any], number: int, directory: Path) -> None:
    """In the child: run the case, and leave what it returns."""
    output = os.open(directory / f"{number}.out", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.dump_traceback_later(max(1.0, request["deadline_s"] - 5), file=2)
    os.environ |= request["environment"][number]
    os.environ |= {"RANK": str(number), "WORLD_SIZE": str(len(request["environment"]))}
    register()
    found_in = next(one for one in (cases, trap_cases, device_cases) if hasattr(one, request["case"]))
    case = getattr(found_in, request["case"])
    place = cases.Place(number, len(request["environment"]), directory)
    found = case(place, **request["arguments"])
    (directory / f"{number}.json").write_text(json.dumps(found))


def run(request: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        running: dict[int, int] = {}
        for number in range(len(request["environment"])):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    rank(request, number, directory)
                    status = 0
                    groups._at_exit()
                except BaseException:  # noqa: BLE001  a test looks at it
                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(status)
            running[pid] = number
        statuses: dict[int, int | str] = {}
        until = time.monotonic() + request["deadline_s"]
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid in running:
                statuses[running.pop(pid)] = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                for pid, number in running.items():
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    statuses[number] = "hangs"
                running.clear()
            else:
                time.sleep(0.01)
        found = []
        for number in range(len(request["environment"])):
            result = directory / f"{number}.json"
            found.append(
                {
                    "status": statuses[number],
                    "output": (directory / f"{number}.out").read_text(errors="replace"),
                    "result": json.loads(result.read_text()) if result.exists() else None,
                }
            )
        return found


def main() -> None:
    assert kernels.OLDEST  # imported here, and nothing of torch is changed before a child asks for it
    torch.set_num_threads(1)
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
