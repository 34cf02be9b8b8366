"""Reservations of SHARP resources as grants: of a partition key (PKey) and of the GUIDs of a job's hosts.

UFM holds them, as hosts hold seats. A PKey and a GUID are slots, so no two reservations have one in common,
whoever leads and whatever was lost; and a grant says by itself what is to be given back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from inaproto.errors import ConfigError
from inaproto_controller.cluster.desired import Grant, Slot

UFM: Final = "ufm://"
"""Who holds reservations; no host or switch may have this name."""
PKEY_MAX: Final = 0x7FFE
"""0x7fff is the default partition, which all hosts are in."""
GUID_MAX: Final = (1 << 64) - 1
_PKEY: Final = "pkey "
_GUID: Final = "guid "


@dataclass(frozen=True, slots=True)
class Pool:
    """What the controller may reserve."""

    pkeys: tuple[str, ...]
    """PKeys that are its own, in the order in which they are given."""
    guids: Mapping[str, tuple[str, ...]]
    """GUIDs of the ports of each host that takes part in SHARP jobs."""

    def known_guids(self) -> frozenset[str]:
        """GUIDs of all hosts."""
        return frozenset(guid for guids in self.guids.values() for guid in guids)

    def slots(
        self, hosts: Collection[str], taken: Collection[Slot], barred: Collection[str]
    ) -> tuple[Slot, ...] | str:
        """Slots of a new reservation for these hosts; or why there can be none now.

        ``barred``: PKeys of which somebody else has members.
        """
        unknown = sorted(host for host in hosts if not self.guids.get(host))
        if unknown:
            return f"no GUIDs of {', '.join(unknown)} are known: name them in ufm_guids"
        own = tuple(Slot(UFM, _GUID + guid, 0) for host in hosts for guid in self.guids[host])
        if any(slot in taken for slot in own):
            return "its hosts are in a reservation that UFM has not given back yet"
        for pkey in self.pkeys:
            slot = Slot(UFM, _PKEY + pkey, 0)
            if pkey not in barred and slot not in taken:
                return (slot, *own)
        return f"all {len(self.pkeys)} PKeys of ufm_pkeys are taken"


def pkey_of(grant: Grant) -> str:
    """PKey of a reservation."""
    return next(slot.port.removeprefix(_PKEY) for slot in grant.slots if slot.port.startswith(_PKEY))


def guids_of(grant: Grant) -> frozenset[str]:
    """GUIDs of a reservation."""
    ports = (slot.port for slot in grant.slots)
    return frozenset(port.removeprefix(_GUID) for port in ports if port.startswith(_GUID))


def written_pkey(text: object) -> str:
    """A PKey as it is written here, ``0x0010``; the membership bit is left out. Raises ``ConfigError``."""
    number = _number(text, "PKey") & 0x7FFF
    if not 1 <= number <= PKEY_MAX:
        raise ConfigError(f"PKey {text!r}: 0x0001 to {PKEY_MAX:#06x}")
    return f"{number:#06x}"


def written_guid(text: object) -> str:
    """A GUID as it is written here, ``0x`` and 16 digits. Raises ``ConfigError``."""
    number = _number(text, "GUID")
    if not 1 <= number <= GUID_MAX:
        raise ConfigError(f"GUID {text!r}: 64 bits, not 0")
    return f"{number:#018x}"


def parse_pkeys(text: str) -> tuple[str, ...]:
    """PKeys and ranges of them, such as ``0x0010-0x001f,0x0100``. Raises ``ConfigError``."""
    found: list[str] = []
    for part in text.replace(" ", "").split(","):
        first, dash, last = part.partition("-")
        ends = int(written_pkey(first), 16), int(written_pkey(last if dash else first), 16)
        if ends[0] > ends[1]:
            raise ConfigError(f"PKeys {part}: the first is above the last")
        found += [f"{number:#06x}" for number in range(ends[0], ends[1] + 1)]
    if len(set(found)) < len(found):
        raise ConfigError(f"PKeys {text}: some are named twice")
    return tuple(found)


def _number(text: object, what: str) -> int:
    digits = text.lower().removeprefix("0x") if isinstance(text, str) else ""
    if not 1 <= len(digits) <= 16 or not set(digits) <= set("0123456789abcdef"):
        raise ConfigError(f"{what} {text!r}: hexadecimal digits, such as 0x0010")
    return int(digits, 16)
