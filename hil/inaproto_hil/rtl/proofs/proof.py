"""What a proof is made of: blocks of the RTL, what is assumed of their neighbours, and what is claimed.

Inputs of the blocks are free: in each cycle they have whatever values the assumptions allow. Claims are what
is wanted; steps are what holds as well and carries the claims from one cycle to the next. All of them
together must be inductive (:mod:`inaproto_hil.rtl.proofs.prover`), so what is proved holds for ever and not
up to a number of cycles.

Proofs read registers, memories and states of a block by their names in its ``elaborate``. A name that is gone
is an error, never a proof of nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from amaranth.hdl import Array, Assert, Assume, Cat, ClockDomain, Elaboratable, Module, Signal, Value
from amaranth.hdl._ast import AnyConst
from amaranth.hdl._ir import Fragment, PortDirection
from amaranth.lib import data, wiring

from inaproto.errors import LocalMisuse

KEEP = {"keep": 1}
"""Yosys leaves such signals where they are."""


class Claim(NamedTuple):
    name: str
    wanted: bool
    """A claim, else a step."""
    when: Signal
    """Where it says something: that must be possible, or it says nothing at all."""
    holds: Signal


class Opened(Elaboratable):
    """A block whose inside can be read. All rows of ``memories`` can be; they are to be few."""

    def __init__(self, component: Any, memories: Sequence[str] = ()) -> None:
        self.component = component
        module = component.elaborate(None)
        component._MustUse__used = True  # its elaboration is this one
        self._read_ports: dict[str, Any] = {}
        self._rows: dict[str, list[Any]] = {}
        for name in memories:
            memory = getattr(module.submodules, name)
            self._read_ports[name] = memory.read_ports[0] if memory.read_ports else None
            ports = [memory.read_port(domain="comb") for _ in range(memory.depth)]
            self._rows[name] = [port.data for port in ports]
            module.d.comb += [port.addr.eq(at) for at, port in enumerate(ports)]
        self._writes = {name: getattr(module.submodules, name).write_ports[0] for name in memories}
        self._fragment = Fragment.get(module, None)
        self._signals: dict[str, list[Signal]] = {}
        for signal in {id(one): one for one in _driven(self._fragment)}.values():
            self._signals.setdefault(signal.name, []).append(signal)

    def elaborate(self, platform: Any) -> Fragment:
        return self._fragment

    def signal(self, name: str, shape: Any = None) -> Any:
        """A driven signal by its name, as ``shape`` if that is a layout."""
        found = self._signals.get(name, [])
        if len(found) != 1:
            raise LocalMisuse(f"{type(self.component).__name__} has {len(found)} signals {name!r}")
        return found[0] if shape is None else data.View(shape, found[0])

    def rows(self, memory: str) -> list[Any]:
        """All rows of a memory as they are now."""
        return self._rows[memory]

    def read_port(self, memory: str) -> Any:
        """The block's own first port that reads it."""
        return self._read_ports[memory]

    def write_port(self, memory: str) -> Any:
        return self._writes[memory]

    @property
    def states(self) -> Sequence[str]:
        """Names of the states of its FSM, by number."""
        return list(self._fsm.encoding)

    @property
    def state(self) -> Signal:
        state: Signal = self._fsm.state
        return state

    def ongoing(self, *names: str) -> Value:
        """Whether its FSM is in one of these states."""
        encoding = self._fsm.encoding
        unknown = [name for name in names if name not in encoding]
        if unknown:
            raise LocalMisuse(f"{type(self.component).__name__} has no state {', '.join(unknown)}")
        return Cat(self.state == encoding[name] for name in names).any()

    @property
    def _fsm(self) -> Any:
        return self._fragment.find_generated("fsm")


def _driven(fragment: Fragment) -> Iterator[Signal]:
    for statements in fragment.statements.values():
        for statement in statements:
            yield from statement._lhs_signals()
    for inner, _name, _at in fragment.subfragments:
        yield from _driven(inner)


class Proof(Elaboratable):
    """A block, or several, with what is assumed and claimed of them. Claims and steps are checked in all
    cycles; ``m`` takes whatever logic they need."""

    def __init__(self) -> None:
        self.m = Module()
        # There is no reset line: all begins from the initial values, once.
        self.m.domains.sync = domain = ClockDomain(reset_less=True)
        self.claims: list[Claim] = []
        self.shown: dict[str, tuple[Signal, Sequence[str]]] = {}
        self._inputs: dict[str, Signal] = {"clk": domain.clk}

    def elaborate(self, platform: Any) -> Module:
        return self.m

    @property
    def ports(self) -> Mapping[str, tuple[Any, PortDirection]]:
        """All that is free, as ``amaranth.back.rtlil.convert`` has it."""
        return {name: (signal, PortDirection.Input) for name, signal in self._inputs.items()}

    def open(self, name: str, component: Any, memories: Sequence[str] = ()) -> Opened:
        """Put a block in; its inputs are free."""
        opened = Opened(component, memories)
        self.m.submodules[name] = opened
        for path, member, value in component.signature.flatten(component):
            if member.flow == wiring.In:
                free = "_".join((name, *map(str, path)))
                self._inputs[free] = Value.cast(value)
        return opened

    def free(self, name: str, shape: Any) -> Any:
        """A value that is anything in each cycle."""
        signal = Signal(shape, name=name)
        self._inputs[name] = Value.cast(signal)
        return signal

    def any_of(self, name: str, count: int) -> Signal:
        """A number below ``count`` that never changes: what holds for it holds for all of them."""
        number = Signal(range(max(2, count)), name=name)
        self.m.d.comb += number.eq(AnyConst(len(number)))
        self.assume(number < count)
        return number

    def row_at(self, name: str, rows: Sequence[Any], index: Any) -> Any:
        """The row with this number, which must be in range to mean anything."""
        row = Signal(rows[0].shape(), name=name)
        self.m.d.comb += row.as_value().eq(Array(Value.cast(one) for one in rows)[index])
        return row

    def before(self, value: Any) -> Any:
        """What it was a cycle ago."""
        was = Signal.like(value)
        self.m.d.sync += was.eq(value)
        return was

    def assume(self, holds: Any) -> None:
        self.m.d.comb += Assume(holds)

    def assume_kept(self, while_: Any, *values: Any) -> None:
        """Whatever neighbour has these: it keeps them in the cycle after one with ``while_``."""
        kept = self.before(while_)
        for value in values:
            self.assume(~kept | (Value.cast(value) == Value.cast(self.before(value))))

    def claim(self, name: str, holds: Any, when: Any = 1, *, wanted: bool = True) -> None:
        """Whenever ``when``, ``holds``."""
        at, right = Signal(name=f"when_{name}", attrs=KEEP), Signal(name=f"holds_{name}", attrs=KEEP)
        self.m.d.comb += [at.eq(when), right.eq(~at | holds), Assert(right)]
        self.claims.append(Claim(name, wanted, at, right))

    def step(self, name: str, holds: Any, when: Any = 1) -> None:
        """A claim that is only wanted for the sake of others."""
        self.claim(name, holds, when, wanted=False)

    def show(self, name: str, value: Any, names: Sequence[str] = ()) -> None:
        """Tell this value in a counterexample, by ``names`` if it is one's number."""
        shown = Signal(len(Value.cast(value)), name=f"show_{name}", attrs=KEEP)
        self.m.d.comb += shown.eq(value)
        self.shown[name] = shown, names
