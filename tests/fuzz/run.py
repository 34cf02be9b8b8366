"""Fuzz the decoders: ``python tests/fuzz/run.py --seconds 60 [--target NAME]``, seconds per target.

Coverage-guided by atheris where it is installed, else by seeded mutation alone. Prints a line per
target; exits 1 if any input made a decoder raise something else than ``DecodeError``, and prints
that input.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

INPUT_SECONDS_MAX = 10
GRACE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Outcome:
    executions: int
    finding: str = ""


def by_mutation(name: str, seconds: float, seed: int) -> Outcome:
    from tests.fuzz.mutation import Mutator
    from tests.fuzz.targets import find_target

    target = find_target(name)
    mutator = Mutator(target.corpus, f"{seed}/{name}")
    executions = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(100):
            data = mutator.next_input()
            executions += 1
            try:
                target.accepts(data)
            except Exception:  # noqa: BLE001  whatever it is, it is the finding
                return Outcome(executions, f"{traceback.format_exc()}input: {data.hex()}\n")
    return Outcome(executions)


def by_atheris(name: str, seconds: float, seed: int) -> Outcome:
    """In a process of its own: libFuzzer ends the process that it runs in."""
    with tempfile.TemporaryDirectory(prefix="ina-fuzz-") as directory:
        work = Path(directory)
        command = [sys.executable, __file__, "--inside", str(work), "--target", name]
        command += ["--seconds", str(max(1, round(seconds))), "--seed", str(seed)]
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=seconds + GRACE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Outcome(0, f"{name} did not end {GRACE_SECONDS} s after its time\n")
        counted = re.search(r"stat::number_of_executed_units: +(\d+)", done.stdout)
        executions = int(counted[1]) if counted else 0
        if done.returncode == 0 and counted:
            return Outcome(executions)
        inputs = [f"input: {path.read_bytes().hex()}\n" for path in sorted(work.glob("found-*"))]
        return Outcome(executions, done.stdout[-6000:] + "".join(inputs))


def inside_atheris(name: str, seconds: int, seed: int, work: Path) -> None:
    """What the process of ``by_atheris`` does; does not return."""
    import atheris

    with atheris.instrument_imports(include=["inaproto.wire"]):
        from tests.fuzz.targets import find_target

    target = find_target(name)
    seeds = work / "corpus"
    seeds.mkdir()
    for index, data in enumerate(target.corpus):
        (seeds / f"{index:03}").write_bytes(data)

    def one_input(data: bytes) -> None:
        target.accepts(data)

    options = (
        f"-max_total_time={seconds}",
        f"-seed={seed or 1}",
        "-max_len=4096",
        f"-timeout={INPUT_SECONDS_MAX}",
        "-print_final_stats=1",
        "-verbosity=0",
        f"-artifact_prefix={work}/found-",
        str(seeds),
    )
    atheris.Setup([sys.argv[0], *options], one_input)
    atheris.Fuzz()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="per target (default 60)")
    parser.add_argument("--target", action="append", help="only this one; may be repeated (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutation (default 1)")
    parser.add_argument(
        "--engine", choices=("atheris", "mutation"), help="default: atheris if it is installed"
    )
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside is not None:
        inside_atheris(options.target[0], int(options.seconds), options.seed, options.inside)
        return 0

    from tests.fuzz.targets import TARGETS, find_target

    engine = options.engine or ("atheris" if importlib.util.find_spec("atheris") else "mutation")
    names = [find_target(name).name for name in options.target or TARGETS]
    findings = 0
    for name in names:
        run = by_atheris if engine == "atheris" else by_mutation
        outcome = run(name, options.seconds, options.seed)
        verdict = "FOUND" if outcome.finding else "ok"
        print(
            f"fuzz: target={name} engine={engine} seed={options.seed} seconds={options.seconds:g} "
            f"executions={outcome.executions} {verdict}",
            flush=True,
        )
        if outcome.finding:
            findings += 1
            print(outcome.finding, flush=True)
    print(f"fuzz: {len(names)} targets, {findings} with findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
