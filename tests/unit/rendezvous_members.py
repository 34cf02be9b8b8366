"""Hosts ``h0``, ``h1``, ... and the ranks that they announce, for tests of rendezvous and switch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from inaproto.wire.control_messages import Halted, Hello, IntoAddress, Member, OutAddress
from inaproto.wire.messages.infiniband import InfinibandPort

LINKS = ("out", "into", "ina_out", "ina_into")


def ip(host: int) -> bytes:
    return bytes([10, 0, 0, host + 1])


def mac(host: int) -> bytes:
    return b"\x02\x00" + ip(host)


def hello(host: int) -> Hello:
    return Hello(id=1, host=f"h{host}", mac=mac(host), ip=ip(host), parks=True)


def gid(host: int) -> bytes:
    return bytes.fromhex("fe80000000000000") + bytes([2, 0, 0, 0, 0, 0, 0, host + 1])


def on_infiniband(of: Hello | Member | Halted, host: int) -> Any:
    """The same, of a host whose NIC is on InfiniBand."""
    zeros: dict[str, Any] = {"mac": bytes(6), "ip": bytes(4)}
    if isinstance(of, Hello):
        return replace(of, gid=gid(host), **zeros)
    at: dict[str, Any] = zeros | {"infiniband": InfinibandPort(gid=gid(host), lid=host + 1)}
    links: dict[str, Any] = {
        name: replace(link, **at) for name in LINKS if (link := getattr(of, name)) is not None
    }
    if isinstance(of, Halted):
        links["below"] = tuple(replace(link, **at) for link in of.below)
    return replace(of, **links)


def member(rank: int, *, host: int | None = None, size: int = 3, job: str = "train", id: int = 0) -> Member:
    """With the addresses of its host's link, those of all ranks of the host."""
    at = rank if host is None else host
    return Member(
        id=id or 100 + rank,
        job=job,
        rank=rank,
        size=size,
        key="secret",
        pid=1000 + rank,
        host=f"h{at}",
        mtu=1024,
        window_messages=2,
        message_packets=170,
        out=OutAddress(mac=mac(at), ip=ip(at), qpn=10 + at, psn=1000 + at),
        into=IntoAddress(
            mac=mac(at),
            ip=ip(at),
            qpn=20 + at,
            psn=2000 + at,
            va=1 << 32,
            rkey=7 + at,
            slots=4,
            slot_bytes=170 * 1024,
        ),
    )
