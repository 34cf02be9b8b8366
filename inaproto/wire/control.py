"""Framing and syntax of control messages: 4-byte big-endian length, then one msgpack map.

Every message is ``{"v": int, "type": str, "id": int, ...}`` (docs/protocol.md 10). The bytes come
from strangers, so the decoder is strict and bounded: a length of at most 1 MiB, refused when its
prefix arrives and not when it is full; at most 8 levels of nesting; only nil, booleans, integers,
floats, UTF-8 text, bytes, arrays and maps with text keys, none of them twice. What the fields of a
type mean is for :mod:`inaproto.wire.control_messages`.

Invariants: nothing but ``DecodeError`` leaves the decoder for any bytes; it holds at most one message
beyond the chunk fed to it; how the bytes were cut into chunks makes no difference to the messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from inaproto.errors import DecodeError, LocalMisuse

OLDEST: Final = 1
"""The oldest version of the control protocol that this side speaks: the newest of the release before, or an
older one."""
NEWEST: Final = 1
"""The newest one. The first message of each side says so, in the envelope's ``v_max``."""
VERSIONS_END: Final = 1 << 16
"""What says that it speaks this version or a later one is no daemon of ours."""
LENGTH_BYTES: Final = 4
MESSAGE_BYTES_MAX: Final = 1 << 20
DEPTH_MAX: Final = 8
"""Levels of maps and arrays, the message itself included."""
ARRAY_ITEMS_MAX: Final = 1 << 16
MAP_ITEMS_MAX: Final = 1 << 12
TYPE_BYTES_MAX: Final = 64
ID_MAX: Final = (1 << 64) - 1

ControlRecord = dict[str, Any]
"""A message as it travels: text keys; values are msgpack's scalars, lists and maps of them."""

_LAYER: Final = "control"
_OF_ENVELOPE: Final = frozenset({"v", "type", "id", "v_max"})
"""Names that no field of a message has, whether or not its envelope says them all."""
_LEAVES: Final = frozenset((type(None), bool, int, float, str, bytes))
_TEXT: Final = frozenset((str,))
_GIVEN_LEAVES: Final = (type(None), int, float, str, bytes, bytearray, memoryview)
"""What msgpack packs as one of ``_LEAVES``."""


class OtherRelease(DecodeError):
    """A message of a daemon, or of a process, of another release."""

    def __init__(self, version: int) -> None:
        its = f"it speaks version {version} of the control protocol, this side {_range()}"
        super().__init__(_LAYER, f"the other side is of another release of inaproto: {its}")


def why_not(error: DecodeError, otherwise: str) -> str:
    """For people: the other side is of another release; or ``otherwise``, and the error."""
    return error.reason if isinstance(error, OtherRelease) else f"{otherwise}: {error}"


def _range() -> str:
    return str(OLDEST) if OLDEST == NEWEST else f"{OLDEST} to {NEWEST}"


def encode_control(kind: str, ident: int, version: int = 0, newest: int = 0, /, **fields: Any) -> bytes:
    """One framed message of type ``kind`` and id ``ident``.

    ``version``: the one that both sides speak, 0: the oldest; ``newest``: to be said once, 0: not now. Raises
    ``LocalMisuse`` if no peer takes it.
    """
    record = _enveloped(kind, ident, version, newest)
    for name in fields.keys() & _OF_ENVELOPE:
        raise LocalMisuse(f"control {kind}: the field name {name!r} is taken by the envelope")
    record.update(fields)
    framed = _framed(kind, record)
    try:
        _check_given(record)
        _check_envelope(record)
    except DecodeError as error:
        raise LocalMisuse(f"control {kind}: no peer would take it: {error.reason}") from None
    return framed


def encode_bounded(kind: str, version: int, newest: int, fields: Mapping[str, Any]) -> bytes:
    """As :func:`encode_control`, for a type that there is, and fields, the id among them, whose kinds let
    nothing through that a peer would refuse: they are not looked at again. Raises ``LocalMisuse`` for a
    message that is too long."""
    record = _enveloped(kind, fields["id"], version, newest)
    record.update(fields)
    return _framed(kind, record)


def _enveloped(kind: str, ident: int, version: int, newest: int) -> ControlRecord:
    record: ControlRecord = {"v": version or OLDEST, "type": kind, "id": ident}
    if newest:
        record["v_max"] = newest
    return record


def _framed(kind: str, record: ControlRecord) -> bytes:
    try:
        body: bytes = msgpack.packb(record, use_bin_type=True)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise LocalMisuse(f"control {kind}: cannot be encoded: {error}") from None
    if len(body) > MESSAGE_BYTES_MAX:
        raise LocalMisuse(f"control {kind}: {len(body)} bytes, at most {MESSAGE_BYTES_MAX}")
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_control(body: bytes | bytearray | memoryview) -> ControlRecord:
    """The record in ``body``, one message without its length prefix, envelope checked."""
    if len(body) > MESSAGE_BYTES_MAX:
        raise DecodeError(_LAYER, f"message of {len(body)} bytes, at most {MESSAGE_BYTES_MAX}")
    record = _unpacked(body, None)
    if record is None or not _is_unique(record, body):
        record = _unpacked(body, _unique_keys)
    if not isinstance(record, dict):
        raise DecodeError(_LAYER, f"a message is a map, not {type(record).__name__}")
    _check_values(record)
    _check_envelope(record)
    return record


def _unpacked(body: bytes | bytearray | memoryview, pairs: Callable[..., Any] | None) -> Any:
    """What msgpack reads. ``pairs`` makes each map; without it nothing is refused: None is unreadable."""
    try:
        return msgpack.unpackb(
            body,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=pairs,
            ext_hook=_refuse_extension,
            max_str_len=MESSAGE_BYTES_MAX,
            max_bin_len=MESSAGE_BYTES_MAX,
            max_array_len=ARRAY_ITEMS_MAX,
            max_map_len=MAP_ITEMS_MAX,
        )
    except DecodeError:
        if pairs is not None:
            raise
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
        if pairs is not None:
            raise DecodeError(_LAYER, f"not msgpack: {str(error) or type(error).__name__}") from None
    return None


def _is_unique(record: object, body: bytes | bytearray | memoryview) -> bool:
    """Whether these are the bytes that are made of the record: then no key comes twice, as it does not in
    the record. That costs less than to look at the pairs of each map; who packs in another way has that."""
    try:
        packed: bytes = msgpack.packb(record, use_bin_type=True)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return False
    return packed == body


def _check_envelope(record: ControlRecord) -> None:
    version = record.get("v")
    if type(version) is not int or not 0 < version < VERSIONS_END:
        raise DecodeError(_LAYER, f"v is {version!r:.40}, this side speaks {_range()}")
    if not OLDEST <= version <= NEWEST and not _overlaps(version, record.get("v_max")):
        raise OtherRelease(version)
    kind = record.get("type")
    if not isinstance(kind, str) or not 0 < len(kind.encode()) <= TYPE_BYTES_MAX:
        raise DecodeError(_LAYER, f"type is {kind!r:.80}, not a text of 1 to {TYPE_BYTES_MAX} bytes")
    ident = record.get("id")
    if not isinstance(ident, int) or isinstance(ident, bool) or not 0 <= ident <= ID_MAX:
        raise DecodeError(_LAYER, f"id of {kind!r} is {ident!r:.40}, not an integer from 0 to 2**64-1")


def _overlaps(version: int, newest: object) -> bool:
    """Whether one who begins by ``version`` can go on by one that this side speaks, too."""
    return version < OLDEST and type(newest) is int and newest >= OLDEST


def _unique_keys(pairs: Iterable[tuple[Any, Any]]) -> ControlRecord:
    """A map from its pairs; two readings of one message must not be possible."""
    found = pairs if type(pairs) is list else list(pairs)  # msgpack's build in Python hands in an iterator
    record: ControlRecord = dict(found)
    if len(record) < len(found):
        seen: set[Any] = set()
        for key, _ in found:
            if key in seen:
                raise DecodeError(_LAYER, f"map key {key!r:.40} comes twice")
            seen.add(key)
    return record


def _check_keys(record: Mapping[Any, Any]) -> None:
    if _TEXT.issuperset(map(type, record)):
        return  # as in nearly all
    for key in record:
        if not isinstance(key, str):
            raise DecodeError(_LAYER, f"map key {key!r:.40} is not text")


def _refuse_extension(code: int, data: bytes) -> Any:
    raise DecodeError(_LAYER, f"msgpack extension type {code} is not allowed")


def _check_values(record: ControlRecord) -> None:
    """Depth and kinds of values. By hand: msgpack's own recursion limits differ between its two builds."""
    level: list[Any] = [record]
    for _ in range(DEPTH_MAX):
        below: list[Any] = []
        for container in level:
            values = container
            if type(container) is dict:
                _check_keys(container)
                values = container.values()
            if _LEAVES.issuperset(map(type, values)):
                continue  # as nearly all are
            for value in values:
                kind = type(value)
                if kind is dict or kind is list:
                    below.append(value)
                elif kind not in _LEAVES:
                    raise DecodeError(_LAYER, f"a value of kind {kind.__name__} is not allowed")
        if not below:
            return
        level = below
    raise DecodeError(_LAYER, f"nested deeper than {DEPTH_MAX} levels")


def _check_given(container: Any, depth: int = 1) -> None:
    """Raises ``DecodeError`` for what ``decode_control`` would refuse, once it had been packed."""
    if depth > DEPTH_MAX:
        raise DecodeError(_LAYER, f"nested deeper than {DEPTH_MAX} levels")
    is_map = isinstance(container, dict)
    if len(container) > (MAP_ITEMS_MAX if is_map else ARRAY_ITEMS_MAX):
        raise DecodeError(_LAYER, f"{len(container)} items in one {type(container).__name__}")
    if is_map:
        _check_keys(container)
    for value in container.values() if is_map else container:
        if type(value) in _LEAVES:
            continue
        if isinstance(value, dict | list | tuple) and not isinstance(value, msgpack.ExtType):
            _check_given(value, depth + 1)
        elif not isinstance(value, _GIVEN_LEAVES):
            raise DecodeError(_LAYER, f"a value of kind {type(value).__name__} is not allowed")


class ControlDecoder:
    """Bytes of a stream in, records out (sans-IO).

    After a ``DecodeError`` the stream has no known message boundary any more: the connection is to be
    closed, and every further ``feed`` raises the same error.
    """

    __slots__ = ("_buffer", "_error", "version")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.version = OLDEST
        """The newest version that both sides speak, as far as the other one has said."""
        self._error: DecodeError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes of a message that is not complete yet."""
        return len(self._buffer)

    def feed(self, data: bytes | bytearray | memoryview) -> list[ControlRecord]:
        """Take the next bytes; returns the messages that are complete now, in order.

        Raises ``DecodeError``; whole messages that stood before the fault in the same chunk are lost
        with the connection.
        """
        if self._error is not None:
            raise self._error
        have = data
        if self._buffer:
            self._buffer += data
            have = self._buffer
        records: list[ControlRecord] = []
        at = 0
        try:
            while len(have) - at >= LENGTH_BYTES:
                body_at = at + LENGTH_BYTES
                nbytes = int.from_bytes(have[at:body_at], "big")
                if not 0 < nbytes <= MESSAGE_BYTES_MAX:
                    raise DecodeError(
                        _LAYER, f"length prefix of {nbytes}, not 1 to {MESSAGE_BYTES_MAX} bytes"
                    )
                if len(have) - body_at < nbytes:
                    break
                record = decode_control(bytes(have[body_at : body_at + nbytes]))
                if "v_max" in record:
                    self._heard(record.pop("v_max"))
                records.append(record)
                at = body_at + nbytes
        except DecodeError as error:
            self._error = error
            self._buffer.clear()
            raise
        if have is self._buffer:
            del self._buffer[:at]
        else:  # nearly always whole messages come, of which nothing is to be kept
            self._buffer += have[at:]
        return records

    def _heard(self, newest: object) -> None:
        if type(newest) is not int or not 0 < newest < VERSIONS_END:
            raise DecodeError(_LAYER, f"v_max is {newest!r:.40}, not a version")
        self.version = max(self.version, min(newest, NEWEST))

    def finish(self) -> None:
        """Tell that the stream has ended. Raises ``DecodeError`` if it ended inside a message."""
        if self._error is not None:
            raise self._error
        if self._buffer:
            raise DecodeError(_LAYER, f"the stream ended {self._missing()}", len(self._buffer))

    def _missing(self) -> str:
        have = len(self._buffer)
        if have < LENGTH_BYTES:
            return f"after {have} of {LENGTH_BYTES} bytes of a length prefix"
        nbytes = int.from_bytes(self._buffer[:LENGTH_BYTES], "big")
        return f"after {have - LENGTH_BYTES} of {nbytes} bytes of a message"
