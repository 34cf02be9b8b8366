"""Registers of the accelerator, as ``registers/inaccel.rdl`` says: sizes, tables, counters, faults.

Through them the control plane puts rings into the connection lookup table (NetReduce section 3.2) and reads
what has become of them. An access takes two cycles: it is held until ``csr_ready``, in the second one.

Invariants:

- Reading changes nothing. Unknown addresses read 0, and writes to them do nothing; no access waits.
- One table command at a time. What is written to it meanwhile does nothing, and makes it end with an error.
- A snapshot latches all counters of one cycle. With ``clear`` in the same write, each event is in what is
  latched or in what is counted anew, in just one of them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from inaproto.errors import LocalMisuse
from inaproto_adapters.fpga.register_map import (
    CAPS,
    CAPS_CLAIMS,
    CAPS_CTT,
    CAPS_DTYPES,
    CAPS_ICRC_CHECK,
    CAPS_ICRC_GENERATION,
    CAPS_ORDER,
    CAPS_POOLS,
    CLAIM,
    CLAIM_NAME,
    CLAIM_NAME_COUNT,
    CNT,
    CNT_COUNT,
    CTRL,
    CTRL_CLEAR,
    CTRL_SNAPSHOT,
    FAULT,
    FAULT_CHILD,
    FAULT_COUNT,
    FAULT_RING,
    FAULT_RULE,
    ID,
    ID_VALUE,
    PARAMS0,
    PARAMS0_CHILDREN,
    PARAMS0_PORTS,
    PARAMS0_RINGS,
    PARAMS0_WORDS,
    PARAMS1,
    PARAMS2,
    PARAMS2_ADDRESSES,
    PARAMS2_MTU,
    PARAMS2_WINDOW,
    PARAMS3,
    PARAMS3_TREE_RANKS,
    PORTS,
    ROW_WORDS,
    STATUS,
    STATUS_BUSY,
    STATUS_TABLE_BUSY,
    STATUS_TABLE_ERROR,
    TBL_CMD,
    TBL_CMD_GET,
    TBL_CMD_INDEX,
    TBL_CMD_PUT,
    TBL_CMD_TABLE,
    TBL_DATA,
    TBL_DATA_COUNT,
    VERSION,
    VERSION_MAJOR,
    VERSION_MAJOR_VALUE,
    VERSION_MINOR,
    VERSION_MINOR_VALUE,
    WORD_BYTES,
    Field,
    Row,
)
from inaproto_hil.rtl.parameters import Parameters

WORD_BITS = 8 * WORD_BYTES
ROW_BITS = WORD_BITS * ROW_WORDS
COUNTER_BITS = 64
CAPABILITIES = (
    CAPS_DTYPES.at(0b1111)
    | CAPS_ICRC_CHECK.at(1)
    | CAPS_ICRC_GENERATION.at(1)
    | CAPS_ORDER.at(1)
    | CAPS_POOLS.at(1)
    | CAPS_CLAIMS.at(1)
)
"""Types f32, i32, f16 and bf16; rings of one switch, or of a pool. Whether they may span several switches,
its sizes say."""

COMMAND = data.StructLayout({"table": 4, "index": 16, "put": 1, "row": ROW_BITS})
"""A row to put, or to get."""
ANSWER = data.StructLayout({"row": ROW_BITS, "error": 1})
"""What each command is answered by; ``row`` counts if it was a get."""
BLAME = data.StructLayout({"valid": 1, "rule": 8, "ring": 8, "child": 8})
"""Who is to blame in this cycle; ``rule`` is the number of a drop's counter."""


def row_value(row: ValueLike, layout: Row, name: str) -> Value:
    """A value of a row of 256 bits, by its name in the register map. It can be assigned, too."""
    word = Value.cast(row)
    parts = layout[name]
    return Cat(word[WORD_BITS * part.word + part.low :][: part.width] for part in parts)


class Registers(wiring.Component):
    """``csr_*`` is the bus; ``command`` and ``answer`` lead to the engine that has the tables.

    Bit k of ``count`` counts counter k up by one in this cycle; ``count_add`` is added to that of
    ``count_add_index``, too, while ``count_add_valid``. Those that are ``absent`` read 0.
    """

    def __init__(
        self,
        parameters: Parameters,
        counters: int = CNT_COUNT,
        *,
        absent: Container[int] = (),
        capabilities: int = CAPABILITIES,
    ) -> None:
        if not 1 <= counters <= CNT_COUNT:
            raise LocalMisuse(f"{counters} counters: the register map has 1 to {CNT_COUNT}")
        if parameters.ports > WORD_BITS:
            raise LocalMisuse(f"{parameters.ports} ports: the register PORTS has room for {WORD_BITS}")
        self.parameters = parameters
        self.counters = counters
        self._absent = absent
        self.constants = _constants(parameters, capabilities)
        super().__init__(
            {
                "csr_address": In(16),
                "csr_wdata": In(WORD_BITS),
                "csr_write": In(1),
                "csr_read": In(1),
                "csr_ready": Out(1),
                "csr_rdata": Out(WORD_BITS),
                "command": Out(stream.Signature(COMMAND)),
                "answer": In(stream.Signature(ANSWER)),
                "count": In(counters),
                "count_add": In(WORD_BITS),
                "count_add_index": In(range(counters)),
                "count_add_valid": In(1),
                "ports_up": Out(parameters.ports),
                "busy": In(1),
                "fault": In(BLAME),
            }
        )

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        begins, writes = Signal(), Signal()
        m.d.comb += [
            begins.eq((self.csr_read | self.csr_write) & ~self.csr_ready),
            writes.eq(begins & self.csr_write),
        ]
        m.d.sync += self.csr_ready.eq(begins)
        readable: dict[int, ValueLike] = dict(self.constants)
        readable[PORTS] = self.ports_up
        with m.If(writes & self._is_at(PORTS)):
            m.d.sync += self.ports_up.eq(self.csr_wdata)
        readable |= self._claim(m, writes)
        readable[FAULT] = self._faults(m)
        readable |= self._counters(m, writes)
        readable |= self._tables(m, writes)
        with m.If(begins), m.Switch(self.csr_address[2:]):
            for address, value in readable.items():
                with m.Case(address // WORD_BYTES):
                    m.d.sync += self.csr_rdata.eq(value)
            with m.Default():
                m.d.sync += self.csr_rdata.eq(0)
        return m

    def _is_at(self, address: int) -> Value:
        return self.csr_address[2:] == address // WORD_BYTES

    def _claim(self, m: Module, writes: Value) -> dict[int, ValueLike]:
        """Words that control sides leave for each other."""
        readable: dict[int, ValueLike] = {}
        for address in (CLAIM, *(CLAIM_NAME + WORD_BYTES * at for at in range(CLAIM_NAME_COUNT))):
            word = Signal(WORD_BITS, name=f"claim_{address:02x}")
            with m.If(writes & self._is_at(address)):
                m.d.sync += word.eq(self.csr_wdata)
            readable[address] = word
        return readable

    def _faults(self, m: Module) -> Value:
        word = Signal(WORD_BITS)
        count = _in(word, FAULT_COUNT)
        with m.If(self.fault.valid):
            m.d.sync += [
                _in(word, FAULT_RULE).eq(self.fault.rule),
                _in(word, FAULT_RING).eq(self.fault.ring),
                _in(word, FAULT_CHILD).eq(self.fault.child),
                count.eq(Mux(count.all(), 1, count + 1)),  # 0 stays what says that there was none
            ]
        return word

    def _counters(self, m: Module, writes: Value) -> dict[int, ValueLike]:
        snapshot, clear = Signal(), Signal()
        with m.If(writes & self._is_at(CTRL)):
            m.d.comb += [
                snapshot.eq(_in(self.csr_wdata, CTRL_SNAPSHOT)),
                clear.eq(_in(self.csr_wdata, CTRL_CLEAR)),
            ]
        readable: dict[int, ValueLike] = {}
        for number in range(self.counters):
            if number in self._absent:
                continue
            counter = Signal(COUNTER_BITS, name=f"counter_{number}")
            latched = Signal(COUNTER_BITS, name=f"latched_{number}")
            is_added = self.count_add_valid & (self.count_add_index == number)
            more = self.count[number] + Mux(is_added, self.count_add, 0)
            m.d.sync += counter.eq(Mux(clear, 0, counter) + more)
            with m.If(snapshot):
                m.d.sync += latched.eq(counter)
            address = CNT + 2 * WORD_BYTES * number
            readable[address] = latched[:WORD_BITS]
            readable[address + WORD_BYTES] = latched[WORD_BITS:]
        return readable

    def _tables(self, m: Module, writes: Value) -> dict[int, ValueLike]:
        """The row and the last command, and how that stands."""
        row, known, status = Signal(ROW_BITS), Signal(WORD_BITS), Signal(WORD_BITS)
        is_put, is_busy, has_failed = Signal(), Signal(), Signal()
        was_disturbed, disturbs = Signal(), Signal()
        rows = range(TBL_DATA, TBL_DATA + WORD_BYTES * TBL_DATA_COUNT, WORD_BYTES)
        puts, gets = _in(self.csr_wdata, TBL_CMD_PUT), _in(self.csr_wdata, TBL_CMD_GET)
        is_row = Cat(self._is_at(address) for address in rows)
        m.d.comb += [
            self.command.payload.table.eq(_in(known, TBL_CMD_TABLE)),
            self.command.payload.index.eq(_in(known, TBL_CMD_INDEX)),
            self.command.payload.put.eq(is_put),
            self.command.payload.row.eq(row),
            disturbs.eq(is_busy & writes & (is_row.any() | self._is_at(TBL_CMD))),
            _in(status, STATUS_BUSY).eq(self.busy),
            _in(status, STATUS_TABLE_BUSY).eq(is_busy),
            _in(status, STATUS_TABLE_ERROR).eq(has_failed),
        ]
        m.d.sync += was_disturbed.eq(is_busy & (was_disturbed | disturbs))
        with m.FSM():
            with m.State("IDLE"):
                for number, here in enumerate(is_row):
                    with m.If(writes & here):
                        m.d.sync += row.word_select(number, WORD_BITS).eq(self.csr_wdata)
                with m.If(writes & self._is_at(TBL_CMD)):
                    m.d.sync += [
                        _in(known, TBL_CMD_TABLE).eq(_in(self.csr_wdata, TBL_CMD_TABLE)),
                        _in(known, TBL_CMD_INDEX).eq(_in(self.csr_wdata, TBL_CMD_INDEX)),
                        is_put.eq(puts),
                        has_failed.eq(puts & gets),
                    ]
                    with m.If(puts ^ gets):
                        m.next = "COMMAND"
            with m.State("COMMAND"):
                m.d.comb += [is_busy.eq(1), self.command.valid.eq(1)]
                with m.If(self.command.ready):
                    m.next = "ANSWER"
            with m.State("ANSWER"):
                m.d.comb += [is_busy.eq(1), self.answer.ready.eq(1)]
                with m.If(self.answer.valid):
                    m.d.sync += has_failed.eq(self.answer.payload.error | was_disturbed | disturbs)
                    with m.If(~is_put):
                        m.d.sync += row.eq(self.answer.payload.row)
                    m.next = "IDLE"
        words = {address: row.word_select(number, WORD_BITS) for number, address in enumerate(rows)}
        return {STATUS: status, TBL_CMD: known, **words}


def _in(word: ValueLike, field: Field) -> Value:
    return Value.cast(word)[field.low : field.low + field.width]


def _constants(parameters: Parameters, capabilities: int) -> dict[int, int]:
    """What never changes. Raises ``LocalMisuse`` for a size for which a register has no room."""
    return {
        ID: ID_VALUE,
        VERSION: VERSION_MAJOR.at(VERSION_MAJOR_VALUE) | VERSION_MINOR.at(VERSION_MINOR_VALUE),
        PARAMS0: PARAMS0_PORTS.at(parameters.ports)
        | PARAMS0_WORDS.at(parameters.words)
        | PARAMS0_RINGS.at(parameters.rings)
        | PARAMS0_CHILDREN.at(parameters.children),
        PARAMS1: Field(PARAMS1, 0, WORD_BITS).at(parameters.slots),
        PARAMS2: PARAMS2_MTU.at(parameters.mtu)
        | PARAMS2_WINDOW.at(parameters.window)
        | PARAMS2_ADDRESSES.at(parameters.addresses),
        **({PARAMS3: PARAMS3_TREE_RANKS.at(parameters.trees)} if parameters.trees else {}),
        CAPS: capabilities | CAPS_CTT.at(bool(parameters.trees)),
    }
