"""Hosts ``h0``, ``h1``, ... and the ranks that they announce, for tests of rendezvous and switch."""

from __future__ import annotations

from inaproto.wire.control_messages import Hello, IntoAddress, Member, OutAddress


def ip(host: int) -> bytes:
    return bytes([10, 0, 0, host + 1])


def mac(host: int) -> bytes:
    return b"\x02\x00" + ip(host)


def hello(host: int) -> Hello:
    return Hello(id=1, host=f"h{host}", mac=mac(host), ip=ip(host), parks=True)


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
