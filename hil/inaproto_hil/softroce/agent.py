"""Runs in the guest, as what its init starts: runs programs for the bench, and says how they ended.

One connection to the bench, which listens outside: first a line with the token, then JSON lines. A request
is ``{"id": 1, "argv": [...], "env": {...}, "cwd": "/"}``, its answer ``{"id": 1, "rc": 0, "out": "...",
"err": "..."}``. With ``"lines": true`` its output is told as it comes, ``{"id": 1, "line": "..."}``, and
``out`` is empty. ``{"id": 1, "kill": true}`` ends a program with SIGTERM. When the connection ends, so does
the guest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import trio

Say = Callable[[dict[str, Any]], Awaitable[None]]


async def serve(stream: trio.SocketStream) -> None:
    running: dict[int, trio.Process] = {}
    lock = trio.Lock()

    async def say(told: dict[str, Any]) -> None:
        async with lock:
            await stream.send_all(json.dumps(told).encode() + b"\n")

    async def run(request: dict[str, Any], *, task_status: trio.TaskStatus[None]) -> None:
        try:
            answer = await _run(request, running, say, task_status)
        except OSError as error:
            answer = {"rc": 127, "out": "", "err": str(error)}
            task_status.started()
        await say({"id": request["id"], **answer})

    async with trio.open_nursery() as nursery:
        rest = b""
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                request = json.loads(line)
                if "kill" in request:
                    process = running.get(request["id"])
                    if process is not None:
                        process.send_signal(signal.SIGTERM)
                else:
                    await nursery.start(run, request)
        nursery.cancel_scope.cancel()


async def _run(
    request: dict[str, Any], running: dict[int, trio.Process], say: Say, task_status: trio.TaskStatus[None]
) -> dict[str, Any]:
    process = await trio.lowlevel.open_process(
        request["argv"],
        env={**os.environ, **request["env"]},
        cwd=request["cwd"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    running[request["id"]] = process
    task_status.started()
    said: dict[str, bytes] = {}
    async with trio.open_nursery() as reading:
        if request.get("lines"):
            reading.start_soon(_tell_lines, process.stdout, request["id"], say)
        else:
            reading.start_soon(_read, process.stdout, said, "out")
        reading.start_soon(_read, process.stderr, said, "err")
    rc = await process.wait()
    del running[request["id"]]
    return {"rc": rc, "out": "", **{name: text.decode(errors="replace") for name, text in said.items()}}


async def _read(pipe: Any, said: dict[str, bytes], name: str) -> None:
    said[name] = b"".join([data async for data in pipe])


async def _tell_lines(pipe: Any, number: int, say: Say) -> None:
    rest = b""
    async for data in pipe:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            await say({"id": number, "line": line.decode(errors="replace")})
    if rest:
        await say({"id": number, "line": rest.decode(errors="replace")})


async def main(host: str, port: int, token: str) -> None:
    stream = await trio.open_tcp_stream(host, port)
    await stream.send_all(token.encode() + b"\n")
    await serve(stream)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), sys.argv[3])
