"""Runs a module of this package by a Python that has no inaproto.

    python -P outside.py MODULE WORDS ...

The folder of ``inaproto_hil`` comes last on the search path: all else is that Python's own.
"""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
