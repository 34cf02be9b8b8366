"""A capture as ``inaproto capture`` takes it: until it is enough, a signal comes, or nobody reads it."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import BinaryIO

import click
import trio

from inaproto.daemon.capture.client import CaptureFailed, capture
from inaproto.errors import InaprotoError
from inaproto.wire.messages.capture import Capture, CaptureEnded


async def run_capture(path: Path, asked: Capture, file: BinaryIO, is_anew: bool) -> CaptureEnded:
    """``is_anew``: what is in the file is dropped when the switch has given its word.

    Raises ``InaprotoError`` or ``OSError``.
    """

    def put(data: bytes) -> None:
        file.write(data)
        file.flush()

    def begun(ports: tuple[str, ...]) -> None:
        if is_anew:
            with contextlib.suppress(OSError):  # of what is no file
                file.truncate(0)
        click.echo(f"inaproto capture: of {', '.join(ports) or 'ports that are to come'}", err=True)

    enough = trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for _ in signals:
                    if enough.is_set():  # who reads may be stuck
                        nursery.cancel_scope.cancel()
                    enough.set()

            nursery.start_soon(watch)
            ended: CaptureEnded | Exception = CaptureFailed("it was interrupted")
            try:
                ended = await capture(path, asked, put, begun=begun, enough=enough)
            except (InaprotoError, OSError) as error:
                ended = error  # a nursery would wrap it
            nursery.cancel_scope.cancel()
    if isinstance(ended, Exception):
        raise ended
    return ended
