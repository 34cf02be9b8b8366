"""Floating-point arithmetic of the lanes (NetReduce section 4): addition in float32, and what float16 and
bfloat16 are as float32. Bit for bit what :mod:`inaproto.core.plan.reduce` computes.

Invariants: additions round to nearest even, subnormals are not flushed, and a NaN result is the canonical
quiet NaN. No register is reset, so that a synthesizer may make delay lines of them: what is in a pipeline
before its first input is meaningless.
"""

from __future__ import annotations

from typing import Final

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

_FRACTION: Final = 23
_EXPONENT: Final = 8
_HIGHEST: Final = 0xFF
"""Exponent of infinities and NaN."""
_INFINITY: Final = 0x7F80_0000
_QUIET: Final = 0x7FC0_0000
_GUARDS: Final = 3
"""Places behind the last one of a sum that decide how it is rounded; the last of them stands for all further
ones."""
_SIGNIFICAND: Final = 1 + _FRACTION
_TOTAL: Final = 1 + _SIGNIFICAND + _GUARDS
"""Places of a sum: the first one is for the carry."""

_F16_FRACTION: Final = 10
_F16_INFINITY: Final = 0x7C00
_F16_QUIET: Final = 0x7E00
_F16_BIAS: Final = 127 - 15
"""What an exponent has more in float32."""

FLOAT32: Final = data.StructLayout({"fraction": _FRACTION, "exponent": _EXPONENT, "sign": 1})

_FATE: Final = data.StructLayout({"known": 1, "result": 32, "sign": 1, "sign_of_zero": 1})
"""What goes with an addition: ``result``, where it is ``known`` without adding, or else the sign."""


def register(m: Module, value: Value, name: str) -> Signal:
    """``value`` one cycle later."""
    later = Signal(value.shape(), name=name, reset_less=True)
    m.d.sync += later.eq(value)
    return later


def is_nan(bits: Value) -> Value:
    """Whether a float32 is one."""
    return bits[:31] > _INFINITY


class Adder(wiring.Component):
    """Sum of two float32, one a cycle: ``output`` is that of ``STAGES`` cycles ago.

    Where ``known``, ``output`` will be ``result`` and not the sum.
    """

    STAGES: Final = 5

    def __init__(self) -> None:
        super().__init__({"a": In(32), "b": In(32), "known": In(1), "result": In(32), "output": Out(32)})

    def elaborate(self, platform: object) -> Module:
        m = Module()

        # 1: the operand of larger magnitude, and how far the other one is to the right of it.
        larger, smaller = Signal(FLOAT32), Signal(FLOAT32)
        swap = self.b[:31] > self.a[:31]
        m.d.comb += [
            larger.eq(Mux(swap, self.b, self.a)),
            smaller.eq(Mux(swap, self.a, self.b)),
        ]
        differ = larger.sign ^ smaller.sign
        # Two infinities are equal in magnitude, so of infinity and NaN the NaN is the larger one.
        nan = larger.fraction.any() | (differ & (smaller.exponent == _HIGHEST))
        special = larger.exponent == _HIGHEST
        fate = Signal(_FATE)
        m.d.comb += [
            fate.known.eq(self.known | special),
            fate.result.eq(Mux(self.known, self.result, Mux(nan, _QUIET, larger.as_value()))),
            fate.sign.eq(larger.sign),
            fate.sign_of_zero.eq(larger.sign & smaller.sign),
        ]
        distance = Signal(_EXPONENT)
        m.d.comb += distance.eq(_place(larger) - _place(smaller))
        fate = _next(m, fate, "fate_1")
        subtract = register(m, differ, "subtract_1")
        place = register(m, _place(larger), "place_1")
        high = register(m, _significand(larger), "high_1")
        low = register(m, _significand(smaller), "low_1")
        shift = register(m, Mux(distance[5:].any(), 31, distance[:5]), "shift_1")

        # 2: the other one's digits below those of the larger one.
        aligned = _shift_right(m, Cat(Const(0, _GUARDS), low), shift)
        fate = _next(m, fate, "fate_2")
        subtract = register(m, subtract, "subtract_2")
        place = register(m, place, "place_2")
        high = register(m, Cat(Const(0, _GUARDS), high), "high_2")
        low = register(m, aligned, "low_2")

        # 3: the sum, never below zero. It must not be shifted further left than a subnormal allows:
        # ``stop`` has a one where such a shift ends.
        total = Mux(subtract, high - low, high + low)[:_TOTAL]
        stop = Cat((place == _TOTAL - 1 - bit) for bit in range(_TOTAL))
        fate = _next(m, fate, "fate_3")
        place = register(m, place, "place_3")
        total = register(m, total, "total_3")
        stop = register(m, stop, "stop_3")

        # 4: its first one in front.
        zeros = Signal(5)
        m.d.comb += zeros.eq(_leading_zeros(Cat(Const(0, 32 - _TOTAL), total | stop)))
        normal = Signal(_TOTAL)
        m.d.comb += normal.eq(total << zeros)
        fate = _next(m, fate, "fate_4")
        exponent = register(m, (place + 1 - zeros)[:_EXPONENT], "exponent_4")
        zero = register(m, ~total.any(), "zero_4")
        normal = register(m, normal, "normal_4")

        # 5: rounded. With no one in front the result is subnormal or zero. A carry out of the fraction goes
        # into the exponent, which is right also for subnormals.
        last = 1 + _GUARDS
        up = normal[last - 1] & (normal[: last - 1].any() | normal[last])
        rounded = Signal(FLOAT32)
        m.d.comb += rounded.eq(Cat(normal[last:-1], Mux(normal[-1], exponent, 0)) + up)
        final = Signal(FLOAT32)
        m.d.comb += [final.eq(rounded), final.sign.eq(Mux(zero, fate.sign_of_zero, fate.sign))]
        with m.If(rounded.exponent == _HIGHEST):
            m.d.comb += final.fraction.eq(0)
        m.d.comb += self.output.eq(register(m, Mux(fate.known, fate.result, final.as_value()), "output_5"))
        return m


def f16_to_f32(m: Module, half: Value, name: str) -> Signal:
    """Exact. A NaN stays one."""
    wide = Signal(FLOAT32, name=name)
    fraction, exponent = half[:_F16_FRACTION], half[_F16_FRACTION:15]
    padding = Const(0, _FRACTION - _F16_FRACTION)
    m.d.comb += wide.sign.eq(half[15])
    with m.If(exponent.any()):
        m.d.comb += [
            wide.fraction.eq(Cat(padding, fraction)),
            wide.exponent.eq(Mux(exponent.all(), _HIGHEST, exponent + _F16_BIAS)),
        ]
    with m.Elif(fraction.any()):
        # All subnormals of float16 are normal in float32.
        zeros = Signal(4, name=f"{name}_zeros")
        m.d.comb += [
            zeros.eq(_leading_zeros(Cat(Const(0, 16 - _F16_FRACTION), fraction))),
            wide.fraction.eq(Cat(padding, (fraction << 1 << zeros)[:_F16_FRACTION])),
            wide.exponent.eq(_F16_BIAS - zeros),
        ]
    return wide.as_value()


def bf16_to_f32(half: Value) -> Value:
    """Exact. A NaN stays one."""
    return Cat(Const(0, 16), half)


def canonical(bits: Value) -> Value:
    """A float32 with the canonical NaN for any."""
    return Mux(is_nan(bits), _QUIET, bits)


def f32_to_f16(m: Module, bits: Value, name: str) -> Value:
    """Rounded to nearest even, with a canonical NaN, for a multiple of 2^-24: what is below the normal
    numbers is exact then. Every sum of float16 is such a multiple, as all of them are, and as rounding keeps
    it one."""
    wide = data.View(FLOAT32, bits)
    exponent = wide.exponent
    kept = wide.fraction[-_F16_FRACTION:]
    dropped = wide.fraction[:-_F16_FRACTION]
    up = dropped[-1] & (dropped[:-1].any() | kept[0])
    # A carry out of the fraction goes into the exponent, and makes infinity of the highest one.
    normal = Signal(15, name=f"{name}_normal")
    m.d.comb += normal.eq(Cat(kept, (exponent - _F16_BIAS)[:5]) + up)
    # From 1 to 10 places, of which the lowest four bits of the exponent tell; zero has no digits to shift.
    shift = (1 + _F16_BIAS - exponent)[:4]
    subnormal = Cat(kept, exponent.any()) >> shift
    magnitude = Signal(15, name=f"{name}_magnitude")
    with m.If(is_nan(bits)):
        m.d.comb += magnitude.eq(_F16_QUIET)
    with m.Elif(exponent <= _F16_BIAS):
        m.d.comb += magnitude.eq(subnormal)
    with m.Elif(exponent >= _F16_BIAS + 31):
        m.d.comb += magnitude.eq(_F16_INFINITY)
    with m.Else():
        m.d.comb += magnitude.eq(normal)
    return Cat(magnitude, wide.sign & ~is_nan(bits))


def f32_to_bf16(bits: Value) -> Value:
    """Rounded to nearest even, with a canonical NaN."""
    kept, dropped = bits[16:], bits[:16]
    up = dropped[-1] & (dropped[:-1].any() | kept[0])
    return Mux(is_nan(bits), _QUIET >> 16, kept + up)[:16]


def _next(m: Module, fate: data.View, name: str) -> data.View:
    return data.View(_FATE, register(m, fate.as_value(), name))


def _place(number: data.View) -> Value:
    """The exponent; subnormals have the lowest one of the normal numbers."""
    return number.exponent | ~number.exponent.any()


def _significand(number: data.View) -> Value:
    return Cat(number.fraction, number.exponent.any())


def _shift_right(m: Module, value: Value, amount: Value) -> Value:
    """The lowest bit of the result stands for all that are shifted beyond it: it is one if any of them is."""
    for bit in reversed(range(len(amount))):
        places = 1 << bit
        shifted = Signal(len(value), name=f"shifted_{places}")
        m.d.comb += shifted.eq(Mux(amount[bit], Cat(value[: places + 1].any(), value[places + 1 :]), value))
        value = shifted
    return value


def _leading_zeros(value: Value) -> Value:
    """How many there are in front of the first one. The value has a one; its width is a power of two."""
    width = len(value)
    if width == 2:
        return ~value[1]
    high, low = value[width // 2 :], value[: width // 2]
    none = ~high.any()
    return Cat(Mux(none, _leading_zeros(low), _leading_zeros(high)), none)
