"""deploy/bootstrap.py: when it does nothing, when it builds on what is there, when it starts over."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TREE = Path(__file__).resolve().parents[2]


def load(tree: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bootstrap_under_test", tree / "deploy" / "bootstrap.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with a space in its name, and an environment without packages or stamp."""
    tree = tmp_path / "a tree"
    (tree / "deploy").mkdir(parents=True)
    shutil.copy(TREE / "deploy" / "bootstrap.py", tree / "deploy")
    shutil.copy(TREE / "pyproject.toml", tree)
    (tree / "requirements.lock").write_text("# nothing\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tree / ".venv")], check=True)
    return tree


def write_stamp(bootstrap: ModuleType) -> None:
    stamp = bootstrap.wanted_stamp()
    bootstrap.STAMP.write_text("".join(f"{key} {value}\n" for key, value in stamp.items()))


def starts_over(bootstrap: ModuleType) -> bool:
    answer: bool = bootstrap.must_start_over(bootstrap.read_stamp(), bootstrap.wanted_stamp())
    return answer


def test_finished_environment_is_left_alone(tree: Path) -> None:
    bootstrap = load(tree)
    write_stamp(bootstrap)
    os.utime(bootstrap.STAMP, (0, 0))
    bootstrap.bootstrap()
    assert bootstrap.STAMP.stat().st_mtime > 0, "make must see it as newer than what it was made from"
    assert not bootstrap.INSTALLING.exists()


def test_environment_without_stamp_is_built_upon(tree: Path) -> None:
    assert not starts_over(load(tree))


def test_change_of_the_project_alone_keeps_the_environment(tree: Path) -> None:
    bootstrap = load(tree)
    write_stamp(bootstrap)
    with (tree / "pyproject.toml").open("a") as file:
        file.write("# another line\n")
    assert bootstrap.read_stamp() != bootstrap.wanted_stamp()
    assert not starts_over(bootstrap)


def test_interrupted_installation_is_thrown_away(tree: Path) -> None:
    bootstrap = load(tree)
    write_stamp(bootstrap)
    bootstrap.INSTALLING.touch()
    assert starts_over(bootstrap)


def test_another_lock_file_starts_over(tree: Path) -> None:
    bootstrap = load(tree)
    write_stamp(bootstrap)
    (tree / "requirements.lock").write_text("# something\n")
    assert starts_over(bootstrap)


def test_moved_tree_starts_over(tree: Path) -> None:
    write_stamp(load(tree))
    moved = tree.rename(tree.with_name("moved"))
    assert starts_over(load(moved))


def test_lost_python_starts_over(tree: Path) -> None:
    bootstrap = load(tree)
    write_stamp(bootstrap)
    bootstrap.PYTHON.unlink()
    bootstrap.PYTHON.symlink_to("/nonexistent/python3")
    assert starts_over(bootstrap)
