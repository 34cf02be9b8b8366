"""Who may take a seat in a job, and the words for who may not: what, who, what to do."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import IPv6Address
from typing import Final, NamedTuple

from inaproto.core.rendezvous.events import RendezvousConfig
from inaproto.wire.control_messages import Hello, IntoAddress, Member, OutAddress
from inaproto.wire.messages.infiniband import GID_BYTES
from inaproto.wire.outer import IPV6_ADDRESS_BYTES

MTUS: Final = (256, 512, 1024, 2048, 4096)
ELASTIC_NAME_MAX: Final = 117
"""Characters: the number of a later generation has to find room."""
JOB_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_GENERATION: Final = re.compile(r"~[1-9][0-9]{0,9}\Z")
"""What the name of a job ends with that goes on without a lost rank."""
_RING: Final = re.compile(r"#(0|[1-9][0-9]*)/[1-9][0-9]*\Z")
"""What the name of one of the parallel rings of a job ends with (NetReduce section 3.4); each is a job by
itself here."""
_PARAMETERS: Final = ("window_messages",)
_WISHES: Final = ("path", "exact_plan")


class JobName(NamedTuple):
    """Says whose a name at the switch is."""

    job: str
    """As its user named it."""
    is_shrunk: bool
    """It goes on without a lost rank: its ranks have other numbers, and are fewer."""


def job_name(name: str) -> JobName:
    """``train#0/2~1`` is of job ``train``."""
    ring = _GENERATION.sub("", name)
    return JobName(_RING.sub("", ring), ring != name)


def gone_on(names: Iterable[str]) -> set[str]:
    """Jobs that have gone on without a lost rank, if these are the names of all that there are."""
    return {name.job for name in map(job_name, names) if name.is_shrunk}


def split_generation(name: str) -> tuple[str, int]:
    """``train~2`` is generation 2 of ``train``."""
    root, _, generation = name.partition("~")
    return root, int(generation or 0)


def refuse_stranger(hello: Hello | None, member: Member) -> str | None:
    """A host speaks for itself only: else it could direct the flows of another."""
    if hello is None:
        return "its host daemon has not introduced itself (hello)"
    links: dict[str, OutAddress | IntoAddress | None] = {
        "out": member.out,
        "into": member.into,
        "ina_out": member.ina_out,
        "ina_into": member.ina_into,
    }
    for of, link in links.items():
        if link is None:
            continue
        gid = None if link.infiniband is None else link.infiniband.gid
        if (member.host, link.mac, link.ip, gid) != (hello.host, hello.mac, hello.ip, hello.gid):
            said = f"{member.host} {_show_addresses(link.ip, link.mac, gid)}"
            is_host = f"{hello.host} {_show_addresses(hello.ip, hello.mac, hello.gid)}"
            return f"its {of!r} address is {said}, its host daemon is {is_host}; a host speaks for itself"
    return None


def refuse_parameters(config: RendezvousConfig, member: Member) -> str | None:
    """What this switch cannot serve, whoever asks."""
    window, packets = member.window_messages, member.message_packets
    name = job_name(member.job).job
    if not JOB_NAME.fullmatch(name):
        return "a job's name is 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
    if member.path == "shared" and not config.recover_ns:
        return "it asks for the path shared, and this switch ends a job with its ring (switch: --recover-ms)"
    if member.elastic and not config.recover_ns:
        return "it is elastic, and this switch keeps no job that lost something (switch: --recover-ms)"
    if member.elastic and len(name) > ELASTIC_NAME_MAX:
        return f"the name of an elastic job has at most {ELASTIC_NAME_MAX} characters"
    if member.size > config.ranks_max:
        return f"it has {member.size} ranks; this switch takes {config.ranks_max} (switch: --ranks-max)"
    if member.rank >= member.size:
        return f"there is no rank {member.rank} in a job of {member.size}; ranks are 0 to {member.size - 1}"
    if member.mtu not in MTUS or member.mtu > config.mtu_max:
        allowed = ", ".join(str(mtu) for mtu in MTUS if mtu <= config.mtu_max)
        return f"mtu is {member.mtu}; this switch takes {allowed} (host daemon: --mtu)"
    if window & (window - 1):
        return f"window_messages is {window}; it must be a power of two (host daemon: --window-messages)"
    if 2 * window * packets > config.ring_packets_max:
        return (
            f"2 x window_messages x message_packets is {2 * window * packets}, at most "
            f"{config.ring_packets_max}; lower one of them (host daemon: --message-packets)"
        )
    return refuse_slots(member, slot_bytes=message_bytes_of(member)) or (
        None if member.ina_into is None else refuse_ina_link(member)
    )


def refuse_slots(member: Member, *, slot_bytes: int) -> str | None:
    """A receive buffer that its predecessor could not use; ``slot_bytes`` is what a slot must have."""
    return _refuse_buffer(member, member.into, 2 * member.window_messages, slot_bytes)


def refuse_overlay(
    hello: Hello | None, member: Member, below: Sequence[IntoAddress], *, children: int, slot_bytes: int
) -> str | None:
    """Links that cannot be those of a host in an overlay: ``member`` has the one to its parent."""
    if len(below) != children:
        return f"it has {len(below)} links to hosts below it, and is to gather from {children}"
    for link in (member.into, *below):
        stranger = refuse_stranger(hello, replace(member, into=link))
        wrong = stranger or _refuse_buffer(member, link, member.window_messages, slot_bytes)
        if wrong:
            return wrong
    return None


def _refuse_buffer(member: Member, has: IntoAddress, needs: int, slot_bytes: int) -> str | None:
    if has.slots == needs and has.slot_bytes >= slot_bytes:
        return None
    return (
        f"its receive buffer has {has.slots} slots of {has.slot_bytes} bytes; a window of "
        f"{member.window_messages} messages of {member.message_packets} packets needs {needs} slots of "
        f"{slot_bytes}"
    )


def refuse_ina_link(member: Member) -> str | None:
    """What a host must have for a job that is to have two rings."""
    if member.ina_into is None or member.ina_out is None:
        return "it has one link, and the path shared needs two; start its host daemon from a newer release"
    return refuse_slots(replace(member, into=member.ina_into), slot_bytes=message_bytes_of(member))


def refuse_difference(first: Member, member: Member) -> str | None:
    """What a rank must have in common with ``first``, which opened the job. The key opens the rest."""
    if not hmac.compare_digest(member.key.encode(), first.key.encode()):
        return "wrong key; give the key of the processes that opened the job, or use another job name"
    opener = f"rank {first.rank} ({first.host}, pid {first.pid}), which opened the job, said"
    if member.size != first.size:
        return f"it says the job has {member.size} ranks, {opener} {first.size}"
    if link_layer(member) != link_layer(first):
        return (
            f"its host is on {link_layer(member)}, that of rank {first.rank} ({first.host}, pid "
            f"{first.pid}), which opened the job, on {link_layer(first)}; the hosts of a job send to each "
            "other on one network: take hosts of one kind"
        )
    if member.elastic != first.elastic:
        return f"it says elastic={member.elastic}, {opener} elastic={first.elastic}; all must say the same"
    if refusal := refuse_mtu(first, member, opener):
        return refusal
    for name in _PARAMETERS:
        mine, theirs = getattr(member, name), getattr(first, name)
        if mine != theirs:
            return f"its {name} is {mine}, {opener} {theirs}; start the host daemons with the same value"
    for name in _WISHES:
        mine, theirs = getattr(member, name), getattr(first, name)
        if mine != theirs:
            return f"its {name} is {mine!r}, {opener} {theirs!r}; connect with the same value on all ranks"
    return None


def message_bytes_of(member: Member) -> int:
    """Bytes of a full message, whatever the MTU of a ring is."""
    return member.message_packets * member.mtu


def refuse_mtu(other: Member, member: Member, said: str = "") -> str | None:
    """What keeps two hosts of a job from packets of one size, in messages of as many bytes; ``said``: by whom
    it was said otherwise."""
    said = said or f"rank {other.rank} ({other.host}, pid {other.pid}) said"
    if not (member.mtu_fits or other.mtu_fits):
        for name in ("mtu", "message_packets"):
            mine, theirs = getattr(member, name), getattr(other, name)
            if mine != theirs:
                return f"its {name} is {mine}, {said} {theirs}; start the host daemons with the same value"
    elif message_bytes_of(member) != message_bytes_of(other):
        return (
            f"its messages have {message_bytes_of(member)} bytes, {said} {message_bytes_of(other)}; start "
            "the host daemons with the same message_packets, a multiple of 4 where mtu is auto"
        )
    elif member.mtu != other.mtu and not max(member, other, key=lambda one: one.mtu).mtu_fits:
        how = "the largest that its path carries" if member.mtu_fits else "which its host daemon was given"
        return (
            f"its mtu is {member.mtu}, {how}, {said} {other.mtu}; give the host daemons --mtu auto, or a "
            "larger MTU to the ports on the way"
        )
    return None


def refuse_beside(other: Member, member: Member) -> str | None:
    """What a rank must have in common with ``other``, of the same host and job: they share one place."""
    for name in ("out", "into", "progress", "ina_out", "ina_into"):
        if getattr(member, name) != getattr(other, name):
            return (
                f"its {name!r} differs from that of rank {other.rank}, on the same host; the ranks of a host "
                "share one link of the ring"
            )
    return None


def link_layer(member: Member) -> str:
    """What the network of its host is, for people: hosts of one job have the same."""
    if member.into.infiniband is not None:
        return "InfiniBand"
    return "Ethernet, with IPv6 addresses" if len(member.into.ip) == IPV6_ADDRESS_BYTES else "Ethernet"


def address_shared(one: Hello, other: Hello) -> tuple[str, str | bytes] | None:
    """What of a host is as of another, its kind and value; zeros stand for what a host does not have."""
    for what, mine, theirs in (
        ("name", one.host, other.host),
        ("IP address", one.ip, other.ip),
        ("MAC address", one.mac, other.mac),
        ("GID", one.gid, other.gid),
    ):
        is_zeros = one.gid is not None and what in ("IP address", "MAC address")
        if mine is not None and not is_zeros and mine == theirs:
            return what, mine
    return None


def show_host(hello: Hello) -> str:
    """Addresses of a host, for people."""
    return _show_addresses(hello.ip, hello.mac, hello.gid, ", ")


def _show_addresses(ip: bytes, mac: bytes, gid: bytes | None, between: str = " ") -> str:
    return f"{show_address(ip)}{between}{show_address(mac)}" if gid is None else show_address(gid)


def show_address(value: str | bytes) -> str:
    """A name, an IP address of 4 or 16 bytes, a MAC address of 6 or a GID, for people."""
    if isinstance(value, str):
        return repr(value)
    if len(value) == GID_BYTES:
        return str(IPv6Address(value))
    return ".".join(map(str, value)) if len(value) == 4 else value.hex(":")
