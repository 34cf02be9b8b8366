"""Machines around a switch, each at a link of known rate, delay and loss: network namespaces and ``tc``.

Both ends of a link are shaped, so what a machine sends and what is sent to it is as fast as the link. The
rate counts whole Ethernet frames (without preamble and checksum).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from inaproto.errors import Unsupported
from inaproto_hil.rigs.cluster import ClusterError
from inaproto_hil.rigs.namespaces import Namespace, join

INTERFACE: Final = "eth0"
"""Of each machine; that of the switch to machine 3 is ``port3``."""
_NETEM_PACKETS: Final = 1 << 20
_LOAD_WORD, _JUMP_UNLESS_LESS, _RETURN = 0x20, 0x35, 0x06
"""Of classic BPF: BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JGE | BPF_K, BPF_RET | BPF_K."""
_RANDOM: Final = 0xFFFFF000 + 56
"""The word at SKF_AD_OFF + SKF_AD_RANDOM is another each time."""
_ASK_NEXT, _PASS, _DROP = 0xFFFFFFFF, 0, 2
"""TC_ACT_UNSPEC, by which the next filter is asked, TC_ACT_OK and TC_ACT_SHOT."""
_REDIRECT: Final = ("mirred", "egress", "redirect", "dev")
_PROGRAM: Final = ("bpf", "direct-action", "bytecode")

_NO_FIREWALL: Final = (
    "for each in /proc/sys/net/bridge/bridge-nf-call-*tables; do echo 0 >$each; done 2>&-; true"
)
"""There may be none, or they may be read alone: then bridges are as they are."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A link, each way."""

    rate_bps: int
    """0: none, frames pass as fast as the machine lets them."""
    burst_bytes: int = 140_000
    """What may go at once after a pause; more than the largest segment of the kernel, or it cuts these."""
    queue_bytes: int = 16 << 20
    """What waits at an end before it drops."""
    delay_us: int = 0
    """On the way; takes a kernel with netem."""
    loss: float = 0.0
    """Share of the frames that are lost on the way."""

    @property
    def needs_cables(self) -> bool:
        return bool(self.delay_us or self.loss)


def star(
    switch: Namespace,
    machines: Sequence[Namespace],
    shape: Shape,
    *,
    mtu: int = 1500,
    cables: Namespace | None = None,
) -> None:
    """A link from each machine to a port of the switch.

    ``cables``: what is between the ends of all links. Frames are delayed and lost there, and the rate holds
    there as well: some senders pass by the queue of their end, and some are told what it drops.
    """
    for number, machine in enumerate(machines):
        ends = (machine, INTERFACE), (switch, port(number))
        if cables is None:
            join(*ends[0], *ends[1], mtu=mtu)
        else:
            middle = f"down{number}", f"up{number}"
            for end, name in zip(ends, middle, strict=True):
                join(*end, cables, name, mtu=mtu)
            _lay(cables, *middle, shape)
        for where, interface in ends:
            _limit(where, interface, shape, "root")
            if shape.loss:
                # The kernel's long segments would be lost as a whole.
                where.ip("link", "set", interface, "gso_max_segs", "1")


def port(machine: int) -> str:
    """Name of the switch's interface to a machine."""
    return f"port{machine}"


def bridge(where: Namespace, name: str, interfaces: Sequence[str], *words: str) -> None:
    """The kernel forwards between all of them; ``words`` are options of the bridge."""
    # The kernel's firewall may look at what bridges forward, which takes time and drops odd packets.
    where.run("sh", "-c", _NO_FIREWALL)
    where.ip("link", "add", name, "type", "bridge", *words)
    where.ip("link", "set", name, "up")
    for interface in interfaces:
        where.ip("link", "set", interface, "master", name)


def _lay(cables: Namespace, down: str, up: str, shape: Shape) -> None:
    """What comes in at one of the two goes out at the other."""
    # IPv4 by a bridge: the kernel asks no generic XDP program about what a filter redirected, so all RoCE
    # packets would come to ``xdp:`` ports by their slow way. What else a bridge might keep is redirected.
    bridge(cables, f"{down}{up}", (down, up), "ageing_time", "0", "mcast_snooping", "0")
    for here, there in ((down, up), (up, down)):
        at: tuple[str, ...] = ("root",)
        if shape.delay_us:
            netem = ("netem", "limit", str(_NETEM_PACKETS), "delay", f"{shape.delay_us}us")
            try:
                _qdisc(cables, there, *at, "handle", "1:", *netem)
            except ClusterError as error:
                raise Unsupported("delay of links", f"the kernel has no netem? {error}") from None
            at = ("parent", "1:1")
        _limit(cables, there, shape, *at)
        _qdisc(cables, here, "clsact")
        if shape.loss:
            _filter(cables, here, "all", *_PROGRAM, losing(shape.loss), rank=1)
        _filter(cables, here, "ip", *_PROGRAM, _code((_RETURN, 0, 0, _PASS)), rank=2)
        _filter(cables, here, "all", "u32", "match", "u32", "0", "0", "action", *_REDIRECT, there, rank=3)


def _limit(where: Namespace, interface: str, shape: Shape, *at: str) -> None:
    if not shape.rate_bps:
        return
    bucket = ("burst", str(shape.burst_bytes), "limit", str(shape.queue_bytes))
    _qdisc(where, interface, *at, "tbf", "rate", f"{shape.rate_bps}bit", *bucket)


def _filter(where: Namespace, interface: str, protocol: str, *words: str, rank: int) -> None:
    at = ("dev", interface, "ingress", "prio", str(rank), "protocol", protocol)
    where.run("tc", "filter", "add", *at, *words)


def _qdisc(where: Namespace, interface: str, *words: str) -> None:
    where.run("tc", "qdisc", "add", "dev", interface, *words)


def losing(share: float) -> str:
    """A classic BPF program for ``tc`` that drops so many frames, at random."""
    return _code(
        (_LOAD_WORD, 0, 0, _RANDOM),
        (_JUMP_UNLESS_LESS, 0, 1, round(share * (1 << 32))),
        (_RETURN, 0, 0, _ASK_NEXT),
        (_RETURN, 0, 0, _DROP),
    )


def _code(*program: tuple[int, int, int, int]) -> str:
    lines = [" ".join(map(str, instruction)) for instruction in program]
    return ",".join([str(len(lines)), *lines])
