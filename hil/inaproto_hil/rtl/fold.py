"""The lanes: element-wise reduction of what the children sent (NetReduce section 4), as
:func:`inaproto.core.plan.reduce.reduce_into` does it, to the bit.

The children are combined from left to right, one after the other. Between two of them a value is 32 bits
wide: an i32, or a float32 that stands for an element of any float type. So all float types share one adder,
are compared in one way, and are rounded once, at the end. A word has two such values, as it may hold two
elements of 16 bits.

Invariants: absent children are passed by, never added as zero, because -0 + 0 is +0; f64 and i64 are not
computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amaranth.hdl import Cat, EnableInserter, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from inaproto.wire.ina_header import Dtype, Op
from inaproto_hil.rtl.floats import (
    Adder,
    bf16_to_f32,
    canonical,
    f16_to_f32,
    f32_to_bf16,
    f32_to_f16,
    is_nan,
    register,
)

DTYPES: Final = (Dtype.F32, Dtype.I32, Dtype.F16, Dtype.BF16)
"""What the lanes compute."""


class Fold(wiring.Component):
    """``output`` is the reduction of the ``inputs`` of ``latency`` cycles ago, one every cycle.

    - ``inputs``: little-endian words of each child; a word holds one element of 32 bits, or two of 16.
    - ``members``: the children 0 to ``members - 1`` take part, at least one.
    - ``dtype``, ``op``: as in the INA header, of the same cycle as ``inputs``. What comes out for others than
      ``DTYPES`` and the operations there is meaningless.
    - ``en``: cycles without it do not count, and change nothing.
    """

    def __init__(self, words: int, children: int) -> None:
        self._words = words
        self._children = children
        self._control = data.StructLayout({"dtype": 8, "op": 8, "members": range(children + 1)})
        super().__init__(
            {
                "en": In(1),
                "inputs": In(data.ArrayLayout(unsigned(32 * words), children)),
                "members": In(range(children + 1)),
                "dtype": In(8),
                "op": In(8),
                "output": Out(32 * words),
            }
        )

    @property
    def latency(self) -> int:
        """Cycles from ``inputs`` to ``output``: widened, combined child by child, rounded."""
        return 1 + (self._children - 1) * Adder.STAGES + 1

    def elaborate(self, platform: object) -> Module:
        pipeline = Module()
        self._pipeline(pipeline)
        m = Module()
        m.submodules.pipeline = EnableInserter(self.en)(pipeline)
        return m

    def _pipeline(self, m: Module) -> None:
        controls = [Signal(self._control, name="control")]
        m.d.comb += [
            controls[0].dtype.eq(self.dtype),
            controls[0].op.eq(self.op),
            controls[0].members.eq(self.members),
        ]
        for cycle in range(1, self.latency):
            later = register(m, controls[-1].as_value(), f"control_{cycle}")
            controls.append(data.View(self._control, later))

        totals = self._operands(m, controls[0].dtype, 0)
        for child in range(1, self._children):
            at = (child - 1) * Adder.STAGES
            operands = self._operands(m, controls[at].dtype, child, delay=at)
            totals = self._combine(m, controls[at + 1], child, totals, operands)
        self._emit(m, controls[-1], totals)

    def _operands(self, m: Module, dtype: Value, child: int, delay: int = 0) -> list[Value]:
        """Both values of each word of a child, one cycle after ``delay``, when ``dtype`` holds."""
        row = self.inputs[child]
        for cycle in range(delay):
            row = register(m, row, f"child_{child}_{cycle}")
        values: list[Value] = []
        for index in range(self._words):
            word = row.word_select(index, 32)
            for half in range(2):
                name = f"operand_{child}_{index}_{half}"
                element = word.word_select(half, 16)
                value = Signal(32, name=f"{name}_wide")
                with m.Switch(dtype):
                    with m.Case(Dtype.F16):
                        m.d.comb += value.eq(f16_to_f32(m, element, f"{name}_f16"))
                    with m.Case(Dtype.BF16):
                        m.d.comb += value.eq(bf16_to_f32(element))
                    with m.Default():
                        # The other value of the word is not used then.
                        m.d.comb += value.eq(word if half == 0 else 0)
                values.append(register(m, value, name))
        return values

    def _combine(
        self, m: Module, control: data.View, child: int, totals: Sequence[Value], operands: Sequence[Value]
    ) -> list[Value]:
        skip = child >= control.members
        integer = control.dtype == Dtype.I32
        results: list[Value] = []
        for index, (a, b) in enumerate(zip(totals, operands, strict=True)):
            name = f"{child}_{index // 2}_{index % 2}"
            adder = Adder()
            m.submodules[f"adder_{name}"] = adder
            extreme = Signal(32, name=f"extreme_{name}")
            m.d.comb += [
                extreme.eq(_extreme(a, b, integer, control.op == Op.MIN)),
                adder.a.eq(a),
                adder.b.eq(b),
                adder.known.eq(skip | integer | (control.op != Op.SUM)),
                adder.result.eq(Mux(skip, a, Mux(control.op == Op.SUM, a + b, extreme))),
            ]
            results.append(adder.output)
        return results

    def _emit(self, m: Module, control: data.View, totals: Sequence[Value]) -> None:
        words: list[Value] = []
        for index in range(self._words):
            pair = totals[2 * index : 2 * index + 2]
            word = Signal(32, name=f"word_{index}")
            with m.Switch(control.dtype):
                with m.Case(Dtype.I32):
                    m.d.comb += word.eq(pair[0])
                with m.Case(Dtype.F16):
                    m.d.comb += word.eq(Cat(f32_to_f16(m, x, f"f16_{index}_{i}") for i, x in enumerate(pair)))
                with m.Case(Dtype.BF16):
                    m.d.comb += word.eq(Cat(f32_to_bf16(x) for x in pair))
                with m.Default():
                    m.d.comb += word.eq(canonical(pair[0]))
            words.append(word)
        m.d.comb += self.output.eq(register(m, Cat(words), "rounded"))


def _extreme(a: Value, b: Value, integer: Value, lower: Value) -> Value:
    """The higher of two, or the ``lower``; of floats a NaN if there is one.

    Floats are ordered as sign and magnitude, so -0 is below +0, and i32 as two's complement: both by their
    sign, and then by their other bits, which only for negative floats count the other way round.
    """
    differ = a[31] ^ b[31]
    greater = a[:31] > b[:31]
    a_is_higher = Mux(differ, b[31], greater ^ (a[31] & ~integer))
    a_is_nan, b_is_nan = is_nan(a) & ~integer, is_nan(b) & ~integer
    return Mux(a_is_nan | (~b_is_nan & (a_is_higher ^ lower)), a, b)
