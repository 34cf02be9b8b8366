"""Registers of the accelerator, its counters, and rows of its tables.

Made by hil/inaproto_hil/rtl/registers/generate.py from inaccel.rdl, which says what they mean: change that.
The RTL takes the same numbers from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from inaproto.errors import LocalMisuse

WORD_BYTES: Final = 4
ROW_WORDS: Final = 8


class Field(NamedTuple):
    """Bits of a word."""

    word: int
    """Address of the register; of a row: number of the word."""
    low: int
    width: int

    @property
    def mask(self) -> int:
        return (1 << self.width) - 1 << self.low

    def of(self, word: int) -> int:
        """Its value in a word."""
        return (word & self.mask) >> self.low

    def at(self, value: int) -> int:
        """A word with that value there and zeros elsewhere."""
        if value < 0 or value >> self.width:
            raise LocalMisuse(f"{value} does not fit in {self.width} bits")
        return value << self.low


Row = Mapping[str, tuple[Field, ...]]
"""A row of a table: each value with the parts that it lies in, the lowest first."""


def pack(row: Row, **values: int) -> list[int]:
    """Words of a row; what is not named is 0. Raises ``LocalMisuse`` for what does not fit."""
    words = [0] * ROW_WORDS
    for name, value in values.items():
        for part in row[name][:-1]:
            words[part.word] |= part.at(value & (1 << part.width) - 1)
            value >>= part.width
        last = row[name][-1]
        words[last.word] |= last.at(value)
    return words


def unpack(row: Row, words: Sequence[int]) -> dict[str, int]:
    """Values of a row."""
    values = {}
    for name, parts in row.items():
        value = 0
        for part in reversed(parts):
            value = value << part.width | part.of(words[part.word])
        values[name] = value
    return values


def decode(address: int, word: int) -> tuple[str, dict[str, int]]:
    """(name of a register, its fields by name), for people; ("", {}) where there is none."""
    if CNT <= address < CNT + CNT_COUNT * CNT_STEP:
        number, half = divmod((address - CNT) // WORD_BYTES, 2)
        return f"CNT{number}", {"high" if half else "low": word}
    if CLAIM_NAME <= address < CLAIM_NAME + CLAIM_NAME_COUNT * CLAIM_NAME_STEP:
        return f"CLAIM_NAME{(address - CLAIM_NAME) // CLAIM_NAME_STEP}", {"value": word}
    if TBL_DATA <= address < TBL_DATA + TBL_DATA_COUNT * TBL_DATA_STEP:
        return f"TBL_DATA{(address - TBL_DATA) // TBL_DATA_STEP}", {"value": word}
    name, fields = REGISTERS.get(address, ("", {}))
    return name, {field: bits.of(word) for field, bits in fields.items()}


class Table(IntEnum):
    """Tables, as TBL_CMD names them."""

    CONN = 0
    RING = 1
    STATE = 2
    PLACE = 3
    TREE = 4


class Counter(IntEnum):
    """Counters in their order. Those of drops are the rules in FAULT and in STATE rows, too."""

    RX = 0
    TX = 1
    BRIDGED = 2
    AGGREGATED_IN = 3
    RESULTS_OUT = 4
    REPLAYED = 5
    REPLAY_FILLED = 6
    GAPS_SIGNALLED = 7
    STRANGE_ADDRESSES = 8
    DROP_RING_FAILED = 9
    DROP_WRONG_ICRC = 10
    DROP_NOT_A_WRITE = 11
    DROP_WRONG_PLACE = 12
    DROP_NO_INA_HEADER = 13
    DROP_WRONG_RING = 14
    DROP_WRONG_KEY = 15
    DROP_WRONG_EPOCH = 16
    DROP_WRONG_RANK = 17
    DROP_WRONG_RING_SIZE = 18
    DROP_TOO_LONG = 19
    DROP_OLDER_THAN_TENANT = 20
    DROP_WINDOW_PASSED = 21
    DROP_OPERATIONS_DIFFER = 22
    DROP_ANOTHER_PSN = 23
    DROP_LAYOUT = 24
    DROP_FIRST_NOT_SEEN = 25
    DROP_MALFORMED = 26
    DROP_NOT_REGISTERED = 27
    DROP_UNKNOWN_RING = 28
    DROP_SHORT_FRAME = 29
    DROP_RING_REMOVED = 30
    DROP_UNSUPPORTED_TYPE = 31
    EGRESS_STALLS = 32
    FIRST_PACKETS = 33
    POOL_TAKEOVERS = 34
    POOL_CONFLICTS = 35
    STALE_TURNS = 36
    DROP_STALE_TURN = 37
    SUMS_UP = 38
    SUMS_UP_AGAIN = 39
    RESULTS_IN = 40
    RESULTS_DOWN = 41
    RESULTS_DOWN_AGAIN = 42
    NOTES_IN = 43
    NOTES_OUT = 44
    LINKS_DOWN = 45
    DROP_NOT_AN_INPUT = 46
    DROP_NO_RING = 47
    DROP_ELSEWHERE = 48
    DROP_NO_MESSAGE = 49
    DROP_BEFORE_SUM = 50
    DROP_NO_RESULT = 51
    DROP_NO_NOTE = 52
    DROP_OTHER_RING = 53
    DROP_OTHER_MESSAGE = 54
    DROP_NOBODY = 55
    FOR_LINKS = 56


COUNTER_NAMES: Final[dict[Counter, str]] = {
    Counter.RX: "rx",
    Counter.TX: "tx",
    Counter.BRIDGED: "bridged",
    Counter.AGGREGATED_IN: "aggregated_in",
    Counter.RESULTS_OUT: "results_out",
    Counter.REPLAYED: "replayed",
    Counter.REPLAY_FILLED: "replay_filled",
    Counter.GAPS_SIGNALLED: "gaps_signalled",
    Counter.STRANGE_ADDRESSES: "strange_addresses",
    Counter.DROP_RING_FAILED: "ring failed",
    Counter.DROP_WRONG_ICRC: "wrong ICRC",
    Counter.DROP_NOT_A_WRITE: "not an RDMA WRITE",
    Counter.DROP_WRONG_PLACE: "not from where its rank is",
    Counter.DROP_NO_INA_HEADER: "no INA header",
    Counter.DROP_WRONG_RING: "wrong ring",
    Counter.DROP_WRONG_KEY: "wrong key",
    Counter.DROP_WRONG_EPOCH: "wrong epoch",
    Counter.DROP_WRONG_RANK: "wrong rank",
    Counter.DROP_WRONG_RING_SIZE: "wrong ring size",
    Counter.DROP_TOO_LONG: "message too long",
    Counter.DROP_OLDER_THAN_TENANT: "older than the tenant",
    Counter.DROP_WINDOW_PASSED: "window passed",
    Counter.DROP_OPERATIONS_DIFFER: "operations differ",
    Counter.DROP_ANOTHER_PSN: "message has another PSN",
    Counter.DROP_LAYOUT: "layout",
    Counter.DROP_FIRST_NOT_SEEN: "first packet of the message not seen",
    Counter.DROP_MALFORMED: "malformed packet of a ring",
    Counter.DROP_NOT_REGISTERED: "connection not registered",
    Counter.DROP_UNKNOWN_RING: "unknown ring",
    Counter.DROP_SHORT_FRAME: "frame shorter than an Ethernet header",
    Counter.DROP_RING_REMOVED: "ring removed",
    Counter.DROP_UNSUPPORTED_TYPE: "unsupported type",
    Counter.EGRESS_STALLS: "egress_stalls",
    Counter.FIRST_PACKETS: "first_packets",
    Counter.POOL_TAKEOVERS: "pool_takeovers",
    Counter.POOL_CONFLICTS: "pool_conflicts",
    Counter.STALE_TURNS: "stale_turns",
    Counter.DROP_STALE_TURN: "stale turn",
    Counter.SUMS_UP: "sums_up",
    Counter.SUMS_UP_AGAIN: "sums_up_again",
    Counter.RESULTS_IN: "results_in",
    Counter.RESULTS_DOWN: "results_down",
    Counter.RESULTS_DOWN_AGAIN: "results_down_again",
    Counter.NOTES_IN: "notes_in",
    Counter.NOTES_OUT: "notes_out",
    Counter.LINKS_DOWN: "links_down",
    Counter.DROP_NOT_AN_INPUT: "not an input of this switch",
    Counter.DROP_NO_RING: "virtual connection of no ring here",
    Counter.DROP_ELSEWHERE: "not from where its switch is",
    Counter.DROP_NO_MESSAGE: "result of no message here",
    Counter.DROP_BEFORE_SUM: "result before its sum",
    Counter.DROP_NO_RESULT: "no result of this message",
    Counter.DROP_NO_NOTE: "no tree note",
    Counter.DROP_OTHER_RING: "note of another ring",
    Counter.DROP_OTHER_MESSAGE: "note of another message",
    Counter.DROP_NOBODY: "note for nobody here",
    Counter.FOR_LINKS: "for_links",
}
"""A drop has the name of its rule in the software core."""

RULES: Final[dict[Counter, str]] = {
    counter: name for counter, name in COUNTER_NAMES.items() if counter.name.startswith("DROP_")
}
"""Drops, with the rules of the core."""

ID: Final = 0x000
ID_VALUE: Final = 0x494E4131
VERSION: Final = 0x004
VERSION_MINOR: Final = Field(VERSION, 0, 16)
VERSION_MINOR_VALUE: Final = 2
VERSION_MAJOR: Final = Field(VERSION, 16, 16)
VERSION_MAJOR_VALUE: Final = 1
PARAMS0: Final = 0x008
PARAMS0_PORTS: Final = Field(PARAMS0, 0, 8)
PARAMS0_WORDS: Final = Field(PARAMS0, 8, 8)
PARAMS0_RINGS: Final = Field(PARAMS0, 16, 8)
PARAMS0_CHILDREN: Final = Field(PARAMS0, 24, 8)
PARAMS1: Final = 0x00C
PARAMS2: Final = 0x010
PARAMS2_MTU: Final = Field(PARAMS2, 0, 16)
PARAMS2_WINDOW: Final = Field(PARAMS2, 16, 8)
PARAMS2_ADDRESSES: Final = Field(PARAMS2, 24, 8)
CAPS: Final = 0x014
CAPS_DTYPES: Final = Field(CAPS, 0, 16)
CAPS_ICRC_CHECK: Final = Field(CAPS, 16, 1)
CAPS_ICRC_GENERATION: Final = Field(CAPS, 17, 1)
CAPS_CTT: Final = Field(CAPS, 18, 1)
CAPS_ORDER: Final = Field(CAPS, 19, 1)
CAPS_POOLS: Final = Field(CAPS, 20, 1)
CAPS_CLAIMS: Final = Field(CAPS, 21, 1)
CTRL: Final = 0x018
CTRL_SNAPSHOT: Final = Field(CTRL, 0, 1)
CTRL_CLEAR: Final = Field(CTRL, 1, 1)
STATUS: Final = 0x01C
STATUS_BUSY: Final = Field(STATUS, 0, 1)
STATUS_TABLE_BUSY: Final = Field(STATUS, 1, 1)
STATUS_TABLE_ERROR: Final = Field(STATUS, 2, 1)
PORTS: Final = 0x020
FAULT: Final = 0x024
FAULT_RULE: Final = Field(FAULT, 0, 8)
FAULT_RING: Final = Field(FAULT, 8, 8)
FAULT_CHILD: Final = Field(FAULT, 16, 8)
FAULT_COUNT: Final = Field(FAULT, 24, 8)
PARAMS3: Final = 0x028
PARAMS3_TREE_RANKS: Final = Field(PARAMS3, 0, 8)
CLAIM: Final = 0x02C
CLAIM_BEAT: Final = Field(CLAIM, 0, 8)
CLAIM_OWNER: Final = Field(CLAIM, 8, 24)
CLAIM_NAME: Final = 0x030
CLAIM_NAME_COUNT: Final = 4
CLAIM_NAME_STEP: Final = 4
TBL_CMD: Final = 0x040
TBL_CMD_INDEX: Final = Field(TBL_CMD, 0, 16)
TBL_CMD_TABLE: Final = Field(TBL_CMD, 16, 4)
TBL_CMD_GET: Final = Field(TBL_CMD, 24, 1)
TBL_CMD_PUT: Final = Field(TBL_CMD, 25, 1)
TBL_DATA: Final = 0x060
TBL_DATA_COUNT: Final = 8
TBL_DATA_STEP: Final = 4
CNT: Final = 0x100
CNT_COUNT: Final = 64
CNT_STEP: Final = 8

REGISTERS: Final[dict[int, tuple[str, dict[str, Field]]]] = {
    ID: ("ID", {"value": Field(ID, 0, 32)}),
    VERSION: ("VERSION", {"minor": VERSION_MINOR, "major": VERSION_MAJOR}),
    PARAMS0: (
        "PARAMS0",
        {
            "ports": PARAMS0_PORTS,
            "words": PARAMS0_WORDS,
            "rings": PARAMS0_RINGS,
            "children": PARAMS0_CHILDREN,
        },
    ),
    PARAMS1: ("PARAMS1", {"slots": Field(PARAMS1, 0, 32)}),
    PARAMS2: ("PARAMS2", {"mtu": PARAMS2_MTU, "window": PARAMS2_WINDOW, "addresses": PARAMS2_ADDRESSES}),
    CAPS: (
        "CAPS",
        {
            "dtypes": CAPS_DTYPES,
            "icrc_check": CAPS_ICRC_CHECK,
            "icrc_generation": CAPS_ICRC_GENERATION,
            "ctt": CAPS_CTT,
            "order": CAPS_ORDER,
            "pools": CAPS_POOLS,
            "claims": CAPS_CLAIMS,
        },
    ),
    CTRL: ("CTRL", {"snapshot": CTRL_SNAPSHOT, "clear": CTRL_CLEAR}),
    STATUS: (
        "STATUS",
        {"busy": STATUS_BUSY, "table_busy": STATUS_TABLE_BUSY, "table_error": STATUS_TABLE_ERROR},
    ),
    PORTS: ("PORTS", {"ports_up": Field(PORTS, 0, 32)}),
    FAULT: ("FAULT", {"rule": FAULT_RULE, "ring": FAULT_RING, "child": FAULT_CHILD, "count": FAULT_COUNT}),
    PARAMS3: ("PARAMS3", {"tree_ranks": PARAMS3_TREE_RANKS}),
    CLAIM: ("CLAIM", {"beat": CLAIM_BEAT, "owner": CLAIM_OWNER}),
    TBL_CMD: (
        "TBL_CMD",
        {"index": TBL_CMD_INDEX, "table": TBL_CMD_TABLE, "get": TBL_CMD_GET, "put": TBL_CMD_PUT},
    ),
}
"""Names of registers and of their fields, by address."""

CONN_ROW: Final[Row] = {
    "src_ip": (Field(0, 0, 32),),
    "dst_ip": (Field(1, 0, 32),),
    "dst_qp": (Field(2, 0, 24),),
    "valid": (Field(2, 31, 1),),
    "src_mac": (Field(3, 0, 32), Field(4, 0, 16)),
    "dst_mac": (Field(4, 16, 16), Field(5, 0, 32)),
    "macs_known": (Field(6, 0, 1),),
    "below": (Field(6, 1, 1),),
    "above": (Field(6, 2, 1),),
    "elsewhere": (Field(6, 3, 1),),
    "told": (Field(6, 4, 1),),
    "learnt": (Field(6, 5, 1),),
    "delivered": (Field(6, 6, 1),),
    "port": (Field(6, 8, 8),),
    "link": (Field(6, 16, 8),),
    "link_known": (Field(6, 24, 1),),
    "rank": (Field(7, 0, 16),),
    "successor": (Field(7, 16, 8),),
}
RING_ROW: Final[Row] = {
    "ring_id": (Field(0, 0, 32),),
    "key": (Field(2, 0, 32), Field(1, 0, 32)),
    "epoch": (Field(3, 0, 32),),
    "size": (Field(4, 0, 8),),
    "window": (Field(4, 8, 8),),
    "message_packets": (Field(4, 16, 16),),
    "mtu": (Field(5, 0, 16),),
    "pooled": (Field(5, 16, 1),),
    "place": (Field(5, 17, 8),),
    "log2_places": (Field(5, 25, 2),),
    "selective": (Field(5, 30, 1),),
    "valid": (Field(5, 31, 1),),
    "base": (Field(6, 0, 32),),
    "first_message": (Field(7, 0, 32),),
}
PLACE_ROW: Final[Row] = {
    "base": (Field(0, 0, 32),),
    "slots": (Field(1, 0, 32),),
    "epoch": (Field(2, 0, 32),),
    "seen": (Field(3, 0, 1),),
    "held": (Field(3, 1, 1),),
    "holder": (Field(3, 8, 8),),
}
TREE_ROW: Final[Row] = {
    "valid": (Field(0, 0, 1),),
    "has_parent": (Field(0, 1, 1),),
    "inputs": (Field(0, 8, 8),),
    "parent_port": (Field(0, 16, 8),),
    "start_psn": (Field(1, 0, 24),),
}
STATE_ROW: Final[Row] = {
    "next_serial": (Field(0, 0, 32),),
    "next_offset": (Field(1, 0, 16),),
    "failed": (Field(1, 31, 1),),
    "in_flight": (Field(2, 0, 32),),
    "fault_rule": (Field(3, 0, 8),),
    "fault_child": (Field(3, 8, 8),),
}
