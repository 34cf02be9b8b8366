"""Captures in other forms are judged as plain ones are: in a VLAN, over IPv6, with IPv4 options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np
import pytest

from inaproto.wire.outer import dress, outer_of
from inaproto_hil.inspect.findings import ICRC, IP_CHECKSUM
from tests.inspect.captures import Passed, frames_of, inspect, ring_world, tap

TAG: Final = bytes.fromhex("81006064")
OPTIONS: Final = bytes(4) + b"\x46\x94\x04\x00\x00"
"""No tag; a header of 24 bytes, with a router alert."""


def six(ip: bytes) -> bytes:
    return b"\xfd" + bytes(11) + ip


def over_ipv6(frame: bytes, tag: bytes = b"") -> bytes:
    return outer_of(six(frame[26:30]), six(frame[30:34]), tag=tag)


FORMS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "VLAN": lambda frame: TAG,
    "IPv6": over_ipv6,
    "IPv6 in a VLAN": lambda frame: over_ipv6(frame, TAG),
    "options": lambda frame: OPTIONS,
}


def in_form(one: Passed, form: str) -> Passed:
    """RoCE packets of the hosts alone: what switches say to each other has no other form."""
    if one.data[12:15] != b"\x08\x00\x45" or one.data[23] != 17:
        return one
    rows = np.frombuffer(one.data, np.uint8)[None, :]
    return replace(one, data=dress(rows, FORMS[form](one.data)).tobytes())


@pytest.mark.parametrize("form", FORMS)
def test_a_clean_capture_is_clean_in_each_form(form: str) -> None:
    passed = tap(ring_world("form"))
    plain, found = inspect(frames_of(passed))
    assert found == []
    other, found = inspect(frames_of([in_form(one, form) for one in passed]))
    assert found == []
    checked = dict(plain.books.checked)
    if form != "VLAN":
        del checked[IP_CHECKSUM.name]
    assert dict(other.books.checked) == checked
    assert other.books.notes == plain.books.notes


@pytest.mark.parametrize("form", FORMS)
def test_damage_is_found_in_each_form_and_its_connection_has_the_addresses_in_full(form: str) -> None:
    passed = [in_form(one, form) for one in tap(ring_world("form"))]
    at = next(at for at, one in enumerate(passed) if len(one.data) > 300)
    damaged = bytearray(passed[at].data)
    damaged[-10] ^= 1
    _, found = inspect(frames_of([*passed[:at], replace(passed[at], data=bytes(damaged))]))
    (broken,) = found
    assert broken.rule is ICRC
    assert broken.connection.startswith("fd00::" if "IPv6" in form else "10.")
