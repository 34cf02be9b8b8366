"""The contract of message channels over TCP, UNIX sockets, TLS, and streams in memory."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
import trio

from inaproto.ca.identity import Role
from inaproto.client.unix_stream import UnixStream
from inaproto.daemon.models.channels.message_channel import StreamChannel
from inaproto.daemon.models.listening import dial, listen_at
from inaproto.daemon.net.control_stream import EndOfChannel
from inaproto.daemon.net.tls import Credentials
from inaproto.daemon.net.tls_stream import handshake
from inaproto.daemon.settings.models_file import Tcp
from inaproto.ports import ByteStream
from inaproto.wire.messages.models import Flush
from inaproto_adapters.memory import StreamTiming, open_stream_pair
from inaproto_hil.rigs.models_cluster import free_ports
from tests.clusters.secure import Deployment
from tests.contract.message_channel_contract import MessageChannelContract, Pair, push


@asynccontextmanager
async def channels(
    streams: tuple[ByteStream, ByteStream],
) -> AsyncIterator[tuple[StreamChannel, StreamChannel]]:
    left, right = (
        StreamChannel(stream, name) for stream, name in zip(streams, ("left", "right"), strict=True)
    )
    yield left, right
    left.close()
    right.close()


class TestUnix(MessageChannelContract):
    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        async with channels((UnixStream(ours), UnixStream(theirs))) as pair:
            yield pair


class TestTcp(MessageChannelContract):
    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        address = Tcp("127.0.0.1", free_ports(1)[0], is_tls=False)
        listener = await listen_at(address)
        ours = await dial(address)
        theirs = await listener.accept()
        listener.close()
        async with channels((ours, theirs)) as pair:
            yield pair


class TestMemory(MessageChannelContract):
    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        async with channels(open_stream_pair(StreamTiming(bytes_max=4096))) as pair:
            yield pair


class TestTls(MessageChannelContract):
    @pytest.fixture(autouse=True)
    def credentials(self, tmp_path: Path) -> None:
        self._credentials = Credentials(Deployment(tmp_path).issue(Role.SWITCH, "spine"))

    @asynccontextmanager
    async def pair(self) -> AsyncIterator[Pair]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        made: dict[bool, ByteStream] = {}

        async def shake(below: ByteStream, is_server: bool) -> None:
            context = self._credentials.server() if is_server else self._credentials.client()
            made[is_server] = await handshake(below, context, is_server=is_server, address="")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(shake, UnixStream(ours), False)
            nursery.start_soon(shake, UnixStream(theirs), True)
        async with channels((made[False], made[True])) as pair:
            yield pair


async def test_the_first_byte_is_the_priority_and_nothing_behind_it_is_lost() -> None:
    async with channels(open_stream_pair()) as (left, right):
        left.send_priority(200)
        left.send_nowait(Flush())
        assert await right.receive_priority() == 200
        assert (await right.receive()) == Flush()


async def test_who_goes_before_its_first_byte_has_no_priority() -> None:
    async with channels(open_stream_pair()) as (left, right):
        left.close()
        with pytest.raises(EndOfChannel):
            await right.receive_priority()


async def test_before_anything_is_allowed_a_message_has_no_payload() -> None:
    async with channels(open_stream_pair()) as (left, right):
        left.send_nowait(push(1, np.zeros(1, np.uint8)))
        with pytest.raises(ValueError, match="a payload of 1 bytes, at most 0"):
            await right.receive()
