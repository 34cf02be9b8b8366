"""What blocks hand to each other: beats of a frame, and what the parser read of one."""

from __future__ import annotations

from amaranth.lib import data

from inaproto_hil.rtl.parameters import WORD_BYTES


class Beat(data.StructLayout):
    """Some bytes of a frame, the first one in the lowest bits. ``bytes`` is how many a last beat has; all
    others
    are full. Bytes past the end are zero."""

    def __init__(self, words: int) -> None:
        super().__init__(
            {
                "data": 32 * words,
                "bytes": range(WORD_BYTES * words + 1),
                "first": 1,
                "last": 1,
            }
        )


SEEN = data.StructLayout(
    {
        "dst_mac": 48,
        "src_mac": 48,
        "src_ip": 32,
        "dst_ip": 32,
        "roce": 1,
        "opcode": 8,
        "dest_qp": 24,
        "psn": 24,
        "header_bytes": 7,
        "payload_bytes": 16,
        "pad": 2,
        "whole": 1,
        "too_short": 1,
        "contradicts": 1,
        "lenient": 1,
        "lenient_src_ip": 32,
        "lenient_dst_ip": 32,
        "lenient_qp": 24,
        "lenient_opcode": 8,
        "magic": 1,
        "ina_fault": 1,
        "ina_result": 1,
        "ina_last": 1,
        "dtype": 8,
        "op": 8,
        "flags": 8,
        "ring_id": 32,
        "epoch": 32,
        "op_index": 32,
        "msg_id": 32,
        "rank": 16,
        "ring_size": 16,
        "msg_len": 16,
        "signature": 16,
        "key": 64,
    }
)
"""Of a frame. Numbers are as they are read: ``dst_mac``, addresses and all fields of headers big-endian, so
the address 10.0.0.1 is 0x0A000001.

- ``roce``: it is a well-formed packet (:mod:`inaproto.wire.roce`), and the fields from ``opcode`` to ``pad``
  hold;
- ``whole``: header, payload and pad are whole words, so that an ICRC can be looked for;
- ``too_short``: no Ethernet header fits;
- ``contradicts``: :func:`inaproto.wire.connection.contradicts_itself`;
- ``lenient``: not ``is_plainly_other``, and the four fields are what ``lenient_connection`` answers;
- ``magic``: the payload has room for an INA header, and its magic;
- ``ina_fault``: ``InaHeader.decode`` would refuse it (also where there is no room); the fields behind hold
  else.
"""
