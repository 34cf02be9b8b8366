"""Which pyverbs is taken, where there are several, and what is said of one that cannot be."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from inaproto.errors import Unsupported
from inaproto_adapters.verbs import library

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


class Machine:
    """With a folder of the distribution, and one of the environment."""

    def __init__(self, folder: Path) -> None:
        self.distribution = folder / "distribution"
        self.environment = folder / "environment"

    def install(self, place: Path, *, suffix: str = _SUFFIX, wr: str = "") -> None:
        package = place / "pyverbs"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / f"device{suffix}").write_bytes(b"no library")
        (package / "mr.py").write_text(f"where = {place.name!r}")
        (package / "wr.py").write_text(wr)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    monkeypatch.setattr(library, "DISTRIBUTION", made.distribution)
    monkeypatch.setattr(sys, "path", [str(made.environment), *sys.path])
    monkeypatch.delenv(library.CHOICE, raising=False)
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        monkeypatch.delitem(sys.modules, name)
    library.verbs.cache_clear()
    yield made
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyverbs"]:
        del sys.modules[name]
    library.verbs.cache_clear()


@pytest.mark.parametrize(
    ("wish", "taken"), [(None, "distribution"), ("distribution",) * 2, ("environment",) * 2]
)
def test_of_two_that_of_the_distribution_is_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, wish: str | None, taken: str
) -> None:
    machine.install(machine.distribution)
    machine.install(machine.environment)
    if wish is not None:
        monkeypatch.setenv(library.CHOICE, wish)
    assert library.verbs("mr").where == taken
    assert str(machine.distribution) not in sys.path, "nothing else of it comes into the environment"


def test_one_for_another_python_gives_way_to_that_of_the_environment(machine: Machine) -> None:
    machine.install(machine.distribution, suffix=".cpython-399-x86_64-linux-gnu.so")
    machine.install(machine.environment)
    assert library.verbs("mr").where == "environment"


def test_one_for_another_python_alone_says_what_to_do(machine: Machine) -> None:
    machine.install(machine.distribution, suffix=".cpython-399-x86_64-linux-gnu.so")
    with pytest.raises(Unsupported, match=r"built for cpython-399.*pip install inaproto\[verbs\]"):
        library.verbs("mr")


def test_none_at_all_says_what_to_install(machine: Machine) -> None:
    with pytest.raises(Unsupported, match="apt-get install python3-pyverbs"):
        library.verbs("mr")


def test_a_wish_for_neither_is_refused(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.CHOICE, "venv")
    with pytest.raises(Unsupported, match="INAPROTO_PYVERBS=venv is neither"):
        library.verbs("mr")


def test_one_for_another_rdma_core_says_so(machine: Machine) -> None:
    words = "libibverbs.so.1: version `IBVERBS_PRIVATE_59' not found (required by device.so)"
    machine.install(machine.distribution, wr=f"raise ImportError({words!r})")
    with pytest.raises(Unsupported, match=r"IBVERBS_PRIVATE_59.*version that the machine's rdma-core has"):
        library.verbs("wr")


def test_one_that_is_too_old_is_told_by_what_it_lacks(machine: Machine) -> None:
    machine.install(machine.distribution, wr="class SGE:\n    addr = 0\nclass SendWR:\n    close = 0\n")
    with pytest.raises(Unsupported, match=r"too old: it has no SendWR\.next_wr"):
        library.verbs("wr")
