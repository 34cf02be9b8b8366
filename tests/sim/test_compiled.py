"""Campaigns may run a compiled copy of what worlds run: what is rewritten, its cache, the choice."""

from __future__ import annotations

import fcntl
import json
import os
import sysconfig
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from inaproto.errors import ConfigError, Unsupported
from inaproto.sim.frames.draw.swarm import draw_world
from inaproto.sim.frames.world import Violation
from inaproto_hil.compiled import build, choice, extensions
from inaproto_hil.compiled.build import Cache, NotBuilt, SourceChanged, open_cache
from inaproto_hil.compiled.choice import Code, choose, is_worth
from inaproto_hil.compiled.engine import open_engine_for
from inaproto_hil.compiled.rewrite import rewrite
from inaproto_hil.compiled.sources import ENTRY_NAME, fingerprint, fingerprint_of, packages
from inaproto_hil.soak import campaign, soak
from inaproto_hil.soak.block import Block, Told
from inaproto_hil.soak.differences import differences
from inaproto_hil.soak.parts import PRODUCT
from inaproto_hil.soak.tally import Failure, Tally

VARIANT = "tests.sim.third_nak:installed"
QUICK = 33
"""A seed whose world is small."""
FAILURE = Failure(QUICK, "one result", "rank 1 has other bytes", 12, 3400, "one_result")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """An empty one, which is the default meanwhile."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    cache = open_cache()
    cache.root.mkdir(parents=True)
    return cache


def run(*arguments: str) -> Result:
    return CliRunner().invoke(soak, arguments, catch_exceptions=False)


def choose_now(asked: bool | None, *, worth: bool = False, against: str | None = None) -> tuple[Code, str]:
    said: list[str] = []
    code = choose(asked, against=against, is_worth_building=worth, say=said.append)
    return code, "\n".join(said)


def put(cache: Cache) -> Path:
    """A copy, as far as anybody can tell who does not run it."""
    cache.folder.mkdir()
    entry = {"fingerprint": "f", "modules": 70, "compiled_with": "mypyc 2", "compile_s": 50.0}
    (cache.folder / ENTRY_NAME).write_text(json.dumps(entry))
    return cache.folder


def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)


# --- what is rewritten


def test_a_field_whose_class_has_no_object_becomes_a_union() -> None:
    source = '''"""Über."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from inaproto.sim.frames.host.host import SimHost
@dataclass(slots=True)
class Flow:
    sender: SimHost
    view: memoryview  # of ä
    hosts: list[SimHost]
    rank: int = 0
class Plain:
    sender: SimHost
'''
    expected = source.replace("sender: SimHost", "sender: SimHost | SimHost", 1)
    assert rewrite(source) == expected.replace("view: memoryview", "view: memoryview | memoryview")


def test_a_named_slice_is_written_where_it_is_used() -> None:
    source = "A: Final = slice(2, 4)\nB = slice(None, 3)\nC = slice(x, 2)\n{}\n"
    used = source.format("y = (b[A] + b[B])[A], b[C], n[:, A], slice(A)")
    assert rewrite(used) == source.format("y = (b[2:4] + b[:3])[2:4], b[C], n[:, A], slice(A)")


def test_a_class_that_derives_from_a_named_tuple_is_marked() -> None:
    source = (
        "from __future__ import annotations\nclass Post(NamedTuple):\n    slot: int\n\n\n"
        "class Kept(Post):\n    __slots__ = ()\n\n\nclass Other(Base):\n    pass\n"
    )
    changed = rewrite(source)
    assert "import annotations; from mypy_extensions import mypyc_attr;" in changed
    assert "\n\n@mypyc_attr(native_class=False)\nclass Kept(Post):" in changed
    assert changed.count("mypyc_attr(") == 1
    assert len(changed.splitlines()) == len(source.splitlines())


def test_a_record_is_spelt_with_its_own_init() -> None:
    source = """from __future__ import annotations


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    rank: int = 0
    \"\"\"Of the sender.\"\"\"
    key: int = field(repr=False)
    LIMIT: ClassVar[int] = 3

    def __post_init__(self) -> None:
        check(self)


class Chunk(NamedTuple):
    at: int
    nbytes: int = 4


@dataclass(slots=True, eq=False)
class Count:
    drops: int = field(default=2, repr=False)
"""
    changed = rewrite(source).splitlines()
    assert changed[3] == "@dataclass(init=False, slots=True, kw_only=True, unsafe_hash=True)"
    assert changed[12] == (
        "    def __init__(self, *, rank: int = 0, key: int) -> None: "
        "self.rank = rank; self.key = key; self.__post_init__()"
    )
    assert changed[13:15] == ["@dataclass(init=False, unsafe_hash=True)", "class Chunk(object):"]
    assert changed[17] == (
        "    def __init__(self, at: int, nbytes: int = 4) -> None: self.at = at; self.nbytes = nbytes"
    )
    assert changed[19] == "@dataclass(init=False, slots=True, eq=False)"
    assert changed[22:] == ["    def __init__(self, drops: int = 2) -> None: self.drops = drops"]


@pytest.mark.parametrize(
    "source",
    [
        "@dataclass\nclass A:\n    rows: list[int] = field(default_factory=list)\n",
        "@dataclass\nclass A(Base):\n    row: int\n",
        "@dataclass\nclass A:\n    pass\n",
        "@dataclass\nclass A:\n    row: int\n\n    def __init__(self) -> None:\n        self.row = 3\n",
        "class Fate(NamedTuple):\n    row: int\n",
        "class A:\n    row: int\n",
    ],
)
def test_what_has_no_init_of_one_line_stays(source: str) -> None:
    assert rewrite(source) == source


def test_modules_that_stay_interpreted_are_there() -> None:
    for name in (*extensions.INTERPRETED, *extensions.ROOTS):
        package, _, module = name.partition(".")
        assert (packages()[package] / f"{module.replace('.', '/')}.py").exists(), name


# --- the cache


def test_the_key_is_another_for_another_source_or_other_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    key = build.key_of("f")
    assert build.key_of("f") == key
    assert build.key_of("g") != key
    monkeypatch.setenv("CC", "another-compiler")
    assert build.key_of("f") != key


def test_a_compiled_copy_knows_the_source_it_was_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fingerprint() == fingerprint_of(packages())
    (tmp_path / ENTRY_NAME).write_text('{"fingerprint": "of the source"}')
    monkeypatch.setattr("inaproto_hil.compiled.sources.packages", lambda: {"inaproto": tmp_path / "inaproto"})
    assert fingerprint() == "of the source"


def test_what_another_process_made_meanwhile_is_taken(cache: Cache) -> None:
    folder = put(cache)
    assert build.build(cache) == folder


def test_one_process_at_a_time_compiles(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "BUILD_S_MAX", 0.0)
    with (cache.root / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NotBuilt, match="another process has been compiling"):
            build.build(cache)
    assert not cache.note.exists()


def test_what_cannot_be_made_leaves_its_reason(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> str:
        raise NotBuilt("gcc ended with 1:\nno space")

    monkeypatch.setattr(build, "run_first_on_path", fails)
    with pytest.raises(NotBuilt):
        build.build(cache)
    assert sorted(path.name for path in cache.root.iterdir()) == sorted((cache.note.name, "lock"))
    with pytest.raises(NotBuilt, match="no space"):
        cache.find()


def test_a_source_that_changes_meanwhile_is_nobodys_fault(cache: Cache) -> None:
    changed = Cache(cache.root, "another")
    with pytest.raises(SourceChanged):
        build.build(changed)
    assert not changed.note.exists()
    assert changed.find() is None


def test_a_copy_that_does_otherwise_is_refused(tmp_path: Path) -> None:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    right = {"file": str(tmp_path / f"world{suffix}"), "digests": {"single 0": "d", "racks 0": "e"}}
    source = right | {"file": "inaproto/sim/frames/world.py"}
    build.compare(tmp_path, source, right)
    with pytest.raises(NotBuilt, match="world racks 0 is f, by the source e"):
        build.compare(tmp_path, source, right | {"digests": {"single 0": "d", "racks 0": "f"}})
    with pytest.raises(NotBuilt, match="what was run as the compiled copy is"):
        build.compare(tmp_path, source, right | {"file": str(tmp_path / "world.py")})


def test_copies_that_were_not_used_for_long_go(cache: Cache) -> None:
    old = [cache.root / f"old-{number}" for number in range(build.KEPT + 1)]
    for age, path in enumerate(old):
        path.mkdir()
        os.utime(path, (1000 - age, 1000 - age))
    build._prune(cache)
    assert [path.exists() for path in old] == [True] * build.KEPT + [False]


# --- the choice


def test_what_is_compiled_is_used(cache: Cache) -> None:
    assert choose_now(None)[0].folder is None
    folder = put(cache)
    for asked in (None, True):
        code, _ = choose_now(asked)
        assert (code.folder, code.kind, str(code)) == (folder, "compiled", "compiled (70 modules by mypyc 2)")
    assert choose_now(False)[0].kind == "interpreted"


def test_what_speaks_against_it_counts(cache: Cache) -> None:
    put(cache)
    assert choose_now(None, against="no classes")[0] == Code("no classes")
    with pytest.raises(ConfigError, match="--compiled: no classes"):
        choose_now(True, against="no classes")


def test_long_campaigns_pay_for_compiling() -> None:
    assert [is_worth(seeds, None) for seeds in (1999, 2000)] == [False, True]
    assert [is_worth(None, minutes) for minutes in (4.9, 5.0)] == [False, True]
    assert not is_worth(10_000, 1.0)


def test_a_bad_copy_is_not_used_and_its_reason_is_said(cache: Cache) -> None:
    cache.note.write_text("the compiled copy does otherwise: world single 3\nmore")
    code, _ = choose_now(None, worth=True)
    assert str(code) == (
        "interpreted (the compiled copy does otherwise: world single 3; --compiled tries again)"
    )


def test_a_failing_build_is_said_and_the_source_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(cache: Cache) -> Path:
        raise NotBuilt("gcc ended with 1:\nno space")

    monkeypatch.setattr(choice, "missing", list)
    monkeypatch.setattr(choice, "build", fails)
    code, said = choose_now(None, worth=True)
    assert code == Code("gcc ended with 1")
    assert "not compiled, going on interpreted: gcc ended with 1:\nno space" in said
    with pytest.raises(NotBuilt):
        choose_now(True)


def test_without_a_compiler_the_source_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    code, _ = choose_now(None, worth=True)
    assert code.kind == "interpreted"
    assert "missing: a C compiler" in code.why
    with pytest.raises(Unsupported, match="apt install gcc"):
        choose_now(True)


# --- the command line


def test_the_command_refuses_what_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    no_compiler(monkeypatch)
    for arguments, said in (
        (("--seed", "1", "--compiled"), "--seed is one seed: leave --compiled out"),
        (("--seeds", "1", "--compiled", "--with", VARIANT), "a variant changes classes"),
        (("--seeds", "1", "--compiled", "--engine", "ray"), "has no compiled code on its nodes"),
        (("--seeds", "1", "--compiled"), "missing: a C compiler"),
        (("--measure", "--compiled"), "missing: a C compiler"),
    ):
        done = run(*arguments)
        assert done.exit_code == 2, arguments
        assert said in done.output


def test_a_measurement_says_what_it_measured() -> None:
    done = run("--measure", "--seeds", f"{QUICK}:{QUICK + 1}")
    assert done.exit_code == 0
    assert done.output.startswith("code: interpreted (")
    assert done.output.rstrip().endswith("one process, interpreted")


def test_a_failure_that_only_the_campaign_saw_is_told_with_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(block: Block) -> tuple[Block, Tally]:
        tally = Tally()
        tally.add_world(QUICK, PRODUCT.run(draw_world(QUICK)))
        tally.failures.append(FAILURE)
        return block, tally

    monkeypatch.setattr(campaign, "run_block", fails)
    out = tmp_path / "out"
    done = run("--seeds", f"{QUICK}:{QUICK + 1}", "--jobs", "1", "--out", str(out))
    assert done.exit_code == 1
    found = "one result at event 12: rank 1 has other bytes"
    both = f"in the campaign: {found}; run again, interpreted: no rule broken"
    assert f"seed {QUICK} is not the same twice: {both}" in done.output
    assert "FAILED: 1 of them did otherwise when run again, interpreted" in done.output
    report = json.loads((out / "report.json").read_text())
    assert report["failures"][0]["differs"] == both
    assert report["code"]["kind"] == "interpreted"
    page = (out / "report.html").read_text()
    assert both in page
    for shown in (done.output, page):  # and what ran it
        assert "interpreted (it is not compiled yet; --compiled" in shown


def test_failures_are_the_same_if_they_broke_the_same_rule_at_the_same_event() -> None:
    def again(violation: Violation | None) -> dict[int, str]:
        return differences([FAILURE], [Told(QUICK, "", "", "", violation=violation)])

    assert again(Violation("one result", "in other words", 12, 3400, "one_result")) == {}
    assert QUICK in again(Violation("one result", "rank 1 has other bytes", 13, 3400, "one_result"))
    assert QUICK in again(Violation("window", "rank 1 has other bytes", 12, 3400, "one_result"))
    assert differences([FAILURE], []) == {}


def test_a_worker_that_would_run_the_source_as_compiled_code_is_refused(tmp_path: Path) -> None:
    """Here the copy is an empty folder, so it finds the source."""
    engine = open_engine_for(Code("it is there", tmp_path), "local", 1)
    with pytest.raises(RuntimeError, match=r"for compiled worlds has its code from .*world\.py"):
        list(engine.outcomes(abs, [-1]))
    assert list(open_engine_for(Code("--interpreted"), "local", 1).outcomes(abs, [-1])) == [1]
