"""Addresses in the configuration of the daemons: as they are to be written, or why not."""

from __future__ import annotations

import ipaddress
import re


def unicast_ipv4(value: str) -> str:
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        raise ValueError("must be an IPv4 address such as 10.0.0.1") from None
    if address.is_multicast or address.is_unspecified or int(address) == 0xFFFFFFFF:
        raise ValueError("must be the address of one host such as 10.0.0.1")
    return str(address)


def unicast_ip_or_none(value: str) -> str:
    if not value:
        return value
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        raise ValueError("must be an address such as 10.0.0.1 or fd00::1") from None
    if address.version == 4:
        return unicast_ipv4(value)
    if address.is_multicast or address.is_unspecified or address.is_loopback or "%" in value:
        raise ValueError("must be the address of one host such as 10.0.0.1 or fd00::1")
    return str(address)


def gid_or_none(value: str) -> str:
    if not value:
        return value
    try:
        address = ipaddress.IPv6Address(value)
    except ValueError:
        raise ValueError("must be a GID such as fe80::248a:703:b4:1c2a") from None
    if address.is_multicast or address.ipv4_mapped is not None or not int(address) & (1 << 64) - 1:
        raise ValueError("must be the GID of one port such as fe80::248a:703:b4:1c2a")
    return str(address)


def unicast_mac(value: str) -> str:
    if value == "auto":
        return value
    if not re.fullmatch(r"[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}", value):
        raise ValueError('must be "auto" or six bytes such as 02:00:0a:00:00:01')
    if int(value[:2], 16) & 1 or not any(bytes.fromhex(value.replace(":", "").replace("-", ""))):
        raise ValueError("must be the address of one host: its first byte is even, and not all are zero")
    return value.lower().replace("-", ":")
