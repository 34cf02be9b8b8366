"""The .deb, tried in a bare Debian and a bare Ubuntu: installed, started, used, upgraded, purged.

deploy/packages/try_in_root.py is what a packager runs, too: it judges, and here its answer counts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from deploy.packages.try_in_root import DISTRIBUTIONS, EXIT_IMPOSSIBLE
from inaproto.errors import Unsupported
from tests.conftest import end_without

TREE: Final = Path(__file__).parents[2]


def try_in(suite: str, *arguments: str, tree: Path = TREE) -> subprocess.CompletedProcess[str]:
    """Where no root can be made the test ends for that reason; with INAPROTO_REQUIRE=SUITE it fails."""
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        end_without(suite, Unsupported(DISTRIBUTIONS[suite].name, "needs root, and: apt install mmdebstrap"))
    command = [sys.executable, "-m", "deploy.packages.try_in_root", suite, *arguments]
    done = subprocess.run(
        command, cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode == EXIT_IMPOSSIBLE:
        end_without(suite, Unsupported(DISTRIBUTIONS[suite].name, done.stdout[-2000:]))
    return done


def last_words(said: str) -> dict[str, Any]:
    line = next(line for line in reversed(said.splitlines()) if line.startswith("{"))
    words: dict[str, Any] = json.loads(line)
    return words


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", ["bookworm", "noble"])
def test_from_a_bare_root_to_a_bare_root(suite: str) -> None:
    done = try_in(suite)
    assert done.returncode == 0, done.stdout
    found = last_words(done.stdout)
    assert found["traces"] == []
    assert found["installed_mib"] < 200
