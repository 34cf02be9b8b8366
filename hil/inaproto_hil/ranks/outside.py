"""Runs a module of this package by the Python of another environment.

    python -P outside.py MODULE WORDS ...

Of ``inaproto_hil`` it has what lies beside this file; all else is that Python's own, ``inaproto`` included,
if it has one.
"""

import runpy
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def lay_package(folder: Path) -> None:
    """Have ``inaproto_hil`` be what is in this folder."""
    spec = spec_from_file_location(
        folder.name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    sys.modules[folder.name] = module_from_spec(spec)


if __name__ == "__main__":
    lay_package(Path(__file__).resolve().parents[1])
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
