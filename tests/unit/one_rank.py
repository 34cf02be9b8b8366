"""A communicator of one rank over a socket pair, and the host daemon at its other end, in a thread."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from inaproto.client.blocking_communicator import BlockingCommunicator
from inaproto.client.channel import Channel, JobRank
from inaproto.wire.control import ControlDecoder
from inaproto.wire.control_messages import Message, Status, StatusReply, decode_message, encode_message
from inaproto.wire.messages.client import AllReduce, Done, Joined, Leave, Ok

DEADLINE_S = 60.0
"""For what takes milliseconds: only a hang meets it."""


class Peer(threading.Thread):
    """A host daemon of a job of one rank: the sums are the arrays themselves."""

    def __init__(self, far: socket.socket, operations_max: int, *, named: bool) -> None:
        super().__init__(daemon=True)
        self.far = far
        self.asked: list[int] = []
        self.under_way = 0
        self.most_under_way = 0
        self._held: list[Message] | None = None
        self._changed = threading.Condition()
        self._decoder = ControlDecoder()
        self.say(Joined(id=1, ring_id=1, rank=0, size=1, operations_max=operations_max, named=named))
        self.start()

    def run(self) -> None:
        with suppress(OSError):
            while True:
                data, descriptors, _, _ = socket.recv_fds(self.far, 1 << 16, 4)
                for descriptor in descriptors:
                    os.close(descriptor)
                for record in self._decoder.feed(data):
                    self._handle(decode_message(record))
                if not data:
                    return

    def _handle(self, message: Message) -> None:
        answer: Message | None = None
        match message:
            case AllReduce(op_index=op_index):
                with self._changed:
                    self.asked.append(op_index)
                    self.under_way += 1
                    self.most_under_way = max(self.most_under_way, self.under_way)
                    self._changed.notify_all()
                answer = Done(op_index=op_index, path="local", ns=7)
            case Leave(id=leaving):
                self.say(Ok(id=leaving))
            case Status(id=asked):
                self.say(StatusReply(id=asked, body={"name": "h0", "rings": []}))
            case _:
                pass  # buffers, and how far they are filled
        if answer is not None:
            with self._changed:
                if self._held is not None:
                    self._held.append(answer)
                    return
            self.say(answer)

    def say(self, message: Message) -> None:
        self.under_way -= isinstance(message, Done)
        with suppress(OSError):
            self.far.send(encode_message(message))

    def hold(self) -> None:
        """End nothing until :meth:`go_on`."""
        self._held = []

    def go_on(self) -> None:
        with self._changed:
            held, self._held = self._held, None
        for message in held or []:
            self.say(message)

    def wait_asked(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.asked) >= count, DEADLINE_S)


class Rank:
    """A communicator and its daemon."""

    def __init__(self, operations_max: int = 4096, *, named: bool = True) -> None:
        near, far = socket.socketpair()
        channel = Channel(near, Path("/d"), JobRank("j", 0, 1))
        self.peer = Peer(far, operations_max, named=named)
        while channel.protocol.joined is None:
            channel.pump()
        self.comm = BlockingCommunicator(channel, time.monotonic)

    def close(self) -> None:
        self.comm.close()
        self.peer.far.close()
        self.peer.join(DEADLINE_S)
