"""Runs in the guest: writes from one RoCE device to another, whose content and completions are told as JSON.

One process serves them all, as starting Python costs seconds under emulation: it connects to the bench, which
sends the plan of each transfer as a line of JSON when its wire is set, and gets a line back.
"""

from __future__ import annotations

import ipaddress
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import trio

from inaproto.ports import QpAttributes, Segment, Status
from inaproto_adapters.verbs import open_nic
from inaproto_hil.softroce.network import CONTROL_GATEWAY

if TYPE_CHECKING:
    from inaproto.ports import Completion
    from inaproto_adapters.verbs.nic import VerbsNic


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Messages from the first to the second device."""

    messages: int = 4
    nbytes: int = 65536
    """Bytes of each message."""
    mtu: int = 1024
    timeout: int = 0
    """Exponent of the sender's timer. 0: it has none, and sends nothing again however long its machine stands
    still, but what it is asked for."""
    retry_count: int = 7
    expect_added: int = 0
    """What the wire adds to each 32-bit word."""
    seconds: float = 600.0
    """Seconds that it may take; what failed is known by then on a machine as slow as any."""

    def encode(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, text: str) -> Self:
        return cls(**json.loads(text))


FIRST_PSN = 0x100


async def transfer(plan: TransferPlan, left: VerbsNic, right: VerbsNic) -> dict[str, Any]:
    here, there = left.create_qp(psn=FIRST_PSN), right.create_qp(psn=7)
    attributes = QpAttributes(mtu=plan.mtu, timeout=plan.timeout, retry_count=plan.retry_count)
    right.connect_qp(there.qpn, here, attributes)
    left.connect_qp(here.qpn, there, attributes)
    await right.wait_connected(there.qpn)
    await left.wait_connected(here.qpn)
    total = plan.messages * plan.nbytes
    source = bytearray(np.random.default_rng(1).bytes(total))
    target = bytearray(total)
    sent, taken = left.register_memory(memoryview(source)), right.register_memory(memoryview(target))
    before = [nic.statistics() for nic in (left, right)]
    for wr_id in range(plan.messages):
        right.post_receive(there.qpn, wr_id)
    began = time.perf_counter()
    for wr_id in range(plan.messages):
        at = wr_id * plan.nbytes
        left.post_write_imm(
            here.qpn,
            wr_id,
            [Segment(sent.key, sent.va + at, plan.nbytes)],
            remote_va=taken.va + at,
            rkey=taken.key,
            imm=0xABC0 + wr_id,
        )
    done: list[Completion] = []
    arrived: list[Completion] = []
    with trio.move_on_after(plan.seconds):
        while len(done) < plan.messages:
            done += await left.wait_completions()
        if all(one.status is Status.SUCCESS for one in done):
            while len(arrived) < plan.messages:
                arrived += await right.wait_completions()
    seconds = time.perf_counter() - began
    expected = bytes(source)
    if plan.expect_added:
        expected = (np.frombuffer(source, np.uint32) + np.uint32(plan.expect_added)).tobytes()
    after = [nic.statistics() for nic in (left, right)]
    left.destroy_qp(here.qpn)
    right.destroy_qp(there.qpn)
    left.poll()
    right.poll()
    left.deregister_memory(sent)
    right.deregister_memory(taken)
    return {
        "seconds": seconds,
        "content": bytes(target) == expected,
        "statuses": [one.status.value for one in done],
        "imms": [one.imm for one in arrived],
        "counters": [
            {name: late[name] - early[name] for name in late}
            for early, late in zip(before, after, strict=True)
        ],
    }


async def serve(port: int, ips: list[str]) -> None:
    left, right = (open_nic(ip=ipaddress.ip_address(ip).packed) for ip in ips)
    stream = await trio.open_tcp_stream(CONTROL_GATEWAY, port)
    async with trio.open_nursery() as nursery:
        for nic in (left, right):
            nursery.start_soon(nic.run)
        rest = b""
        await stream.send_all(b"ready\n")
        async for data in stream:
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                result = await transfer(TransferPlan.decode(line.decode()), left, right)
                await stream.send_all(json.dumps(result).encode() + b"\n")
        for nic in (left, right):
            await nic.aclose()


def main() -> None:
    port, *ips = sys.argv[1:]
    trio.run(serve, int(port), ips)


if __name__ == "__main__":
    main()
