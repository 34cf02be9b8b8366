"""A daemon or a process of another release is called that, on both sides (docs/protocol.md 1.3)."""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgpack  # type: ignore[import-untyped]
import pytest
import trio

import inaproto
from inaproto.daemon.net.names import CONTROL_SOCKET
from inaproto.daemon.observe.status import StatusRefused, ask
from inaproto.errors import DaemonUnreachable
from inaproto.wire.control import NEWEST
from tests.clusters.loopback import open_cluster
from tests.clusters.switch import running_switch

NEXT: Final = NEWEST + 1
WORDS: Final = f"it speaks version {NEXT} of the control protocol, this side {NEWEST}"


def framed(kind: str) -> bytes:
    body: bytes = msgpack.packb({"v": NEXT, "type": kind, "id": 1})
    return struct.pack(">I", len(body)) + body


@asynccontextmanager
async def of_the_next_release(path: Path) -> AsyncIterator[None]:
    """Whoever comes there is answered in the words of the next release."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(1)
            await stream.send_all(framed("welcome"))
            await trio.sleep_forever()

    socket = trio.socket.socket(trio.socket.AF_UNIX)
    await socket.bind(str(path))
    socket.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(socket)])
        yield
        nursery.cancel_scope.cancel()


async def test_a_status_names_it(runtime_dir: Path) -> None:
    async with of_the_next_release(runtime_dir / "h.sock"):
        with pytest.raises(StatusRefused, match=f"h.sock: the other side is of another release.*{WORDS}"):
            await ask(runtime_dir / "h.sock")


async def test_a_training_process_names_it(runtime_dir: Path) -> None:
    async with of_the_next_release(runtime_dir / "h.sock"):
        with pytest.raises(DaemonUnreachable, match=WORDS):
            await inaproto.connect("j", 0, size=2, socket=runtime_dir / "h.sock", timeout=10)


async def test_a_host_names_its_switch_so_and_waits_for_one_of_its_own(runtime_dir: Path) -> None:
    async with (
        of_the_next_release(runtime_dir / CONTROL_SOCKET),
        open_cluster(runtime_dir, 1, switch=False) as cluster,
    ):
        with trio.fail_after(600):
            while WORDS not in (error := cluster.hosts[0].daemon.status()["switch"]["error"]):  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert "whatever listens there" not in error


async def test_a_switch_says_so_to_a_host_and_to_its_log(
    runtime_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_switch(runtime_dir) as switch:
        with caplog.at_level(logging.WARNING):
            answer = b""
            async with await trio.open_unix_socket(str(switch.settings.control_path)) as stream:
                await stream.send_all(framed("hello"))
                while chunk := await stream.receive_some(1 << 16):
                    answer += chunk
        assert WORDS.encode() in answer
        assert (
            f"a session is refused: the other side is of another release of inaproto: {WORDS}" in caplog.text
        )
