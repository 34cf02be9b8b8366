"""What pages and outputs print is pasted as it stands, in a directory of the test's own."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from inaproto_hil.rigs.cluster import inaproto_command
from inaproto_hil.rigs.models_cluster import free_ports
from tests.daemon.test_run_command import HELLO, HELLO_SAYS

TREE: Final = Path(__file__).parents[2]
RUN_TIMEOUT_S: Final = 600
_BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Page:
    """The blocks of a page, with a directory of the test's in the place of its ``/tmp/ina``."""

    def __init__(self, name: str, directory: Path) -> None:
        text = (TREE / name).read_text().replace("/tmp/ina", str(directory / "ina"))
        for port in sorted(set(re.findall(r"127\.0\.0\.1:(75\d\d)", text))):
            text = text.replace(f":{port}", f":{free_ports(1)[0]}")
        self.directory = directory
        self.blocks: list[tuple[str, str]] = _BLOCK.findall(text)

    def block(self, kind: str, word: str) -> str:
        """The first block of that kind that has ``word`` in it."""
        return next(block for found, block in self.blocks if found == kind and word in block)

    @contextmanager
    def daemons(self, block: str) -> Iterator[None]:
        """Those that a shell block starts in the background, one a line."""
        started: list[subprocess.Popen[bytes]] = []
        try:
            for line in block.splitlines():
                command, behind, _ = line.partition(" &")
                assert behind, f"{line}: starts no daemon"
                words = shlex.split(command)
                assert words[0] == "inaproto"
                log = (self.directory / f"daemon{len(started)}.log").open("w")
                with log:
                    argv = [inaproto_command(), *words[1:]]
                    process = subprocess.Popen(argv, cwd=self.directory, stdout=log, stderr=log)
                started.append(process)
            yield
            assert [process.poll() for process in started] == [None] * len(started)
        finally:
            for process in started:
                process.send_signal(signal.SIGINT)
            for process in started:
                process.wait(RUN_TIMEOUT_S)

    def run(self, *programs: str) -> list[str]:
        """Runs them at the same time; what each printed."""
        running = [
            subprocess.Popen(
                [sys.executable, *shlex.split(program)],
                cwd=self.directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for program in programs
        ]
        printed = []
        for process in running:
            out, err = process.communicate(timeout=RUN_TIMEOUT_S)
            assert process.returncode == 0, err
            printed.append(out)
        return printed

    def shell(self, block: str, **environment: str) -> str:
        """Runs it in the source tree, as a reader does; what it printed, on both streams."""
        path = f"{Path(inaproto_command()).parent}:{os.environ['PATH']}"
        run = subprocess.run(
            ["sh", "-ec", block],
            cwd=TREE,
            env={**os.environ, "PATH": path, "XDG_RUNTIME_DIR": str(self.directory), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert run.returncode == 0, run.stdout
        return run.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/launching.md"])
def test_the_page_begins_with_the_smallest_script(page: str) -> None:
    blocks = Page(page, TREE).blocks
    (kind, command), (_, output) = [block for block in blocks if block[0] != "python"][:2]
    assert (kind, command) == ("sh", f"inaproto run {' '.join(HELLO)}\n")
    assert output == HELLO_SAYS
    if page == "README.md":
        assert (TREE / "examples/hello.py").read_text().endswith(f'"""\n\n{blocks[0][1]}')


def lines_of(output: str) -> list[str]:
    """In any order, without what each run draws or measures, and the digits that are the processor's."""
    output = re.sub(r"run-[0-9a-f]{8}|\S*inaproto-run-\w+|[0-9.]+ s,", "*", output)
    output = re.sub(r"loss (\S+)", lambda found: f"loss {float(found[1]):.2g}", output)
    return sorted(output.splitlines())


def test_what_a_run_prints(runtime_dir: Path) -> None:
    page = Page("docs/launching.md", runtime_dir)
    said = page.shell(page.block("sh", "--daemons 2"))
    assert lines_of(said) == lines_of(page.block("text", "inaproto run: 4 ranks"))


def test_a_job_of_two_machines(runtime_dir: Path) -> None:
    """Each is one host daemon here, and has one rank of the page's eight; its command is the page's."""
    daemons = Page("README.md", runtime_dir)
    page = Page("docs/launching.md", runtime_dir)
    key, *commands = page.block("sh", "--host-index 1").splitlines()
    script = page.block("python", "connect_blocking")
    lines = [
        "import numpy as np, inaproto",
        "gradient = np.ones(3, np.float32)",
        script,
        "print(total.sum(), comm.size)",
    ]
    (runtime_dir / "train.py").write_text("\n".join(lines))
    assert len(commands) == 2
    with daemons.daemons(daemons.block("sh", "inaproto host")), ThreadPoolExecutor() as pool:
        runs = [
            pool.submit(
                page.shell,
                f"cd {runtime_dir}\n{key}\n{command.replace('-n 8', '-n 1')}",
                INAPROTO_HOST_SOCKET=f"{runtime_dir}/ina/h{host}.sock",
            )
            for host, command in enumerate(commands)
        ]
        said = [run.result() for run in runs]
    assert all("6.0 2\n" in text for text in said), said


def test_the_first_script_of_the_readme(runtime_dir: Path) -> None:
    page = Page("README.md", runtime_dir)
    script = page.block("python", 'socket="') + "print(total.dtype, total.sum(), total.size)\n"
    (runtime_dir / "rank0.py").write_text(script)
    (runtime_dir / "rank1.py").write_text(script.replace("rank=0", "rank=1").replace("h0.sock", "h1.sock"))
    with page.daemons(page.block("sh", "inaproto host")):
        assert page.run("rank0.py", "rank1.py") == ["float32 200000.0 100000\n"] * 2


def test_a_host_with_two_nics(runtime_dir: Path) -> None:
    page, switch = Page("docs/concepts.md", runtime_dir), Page("README.md", runtime_dir)
    first, *_ = switch.block("sh", "inaproto host").splitlines()
    lines = [
        "import sys, numpy as np, inaproto",
        "rank = int(sys.argv[1])",
        page.block("python", "h0n1.sock"),
    ]
    lines += [
        "total = comm.all_reduce(np.arange(1000)).wait(60)",
        "print(comm.size, total.sum())",
        "comm.close()",
    ]
    (runtime_dir / "train.py").write_text("\n".join(lines))
    with page.daemons(f"{first}\n{page.block('sh', 'h0n1')}"):
        assert page.run(*(f"train.py {rank}" for rank in range(6))) == ["6 2997000\n"] * 6


def test_the_worker_of_push_and_pull_runs_and_runs_again(runtime_dir: Path) -> None:
    page = Page("docs/push-pull.md", runtime_dir)
    for name, kind in (("models.toml", "toml"), ("worker.py", "python")):
        (runtime_dir / name).write_text(page.block(kind, f"# {name}"))
    text = (TREE / "docs/push-pull.md").read_text()
    said = re.search(r"It ends with `(.*?)`", text)
    assert said is not None
    with page.daemons(page.block("sh", "inaproto server")):
        first = page.run("worker.py h0", "worker.py h1")
        again = page.run("worker.py h0", "worker.py h1")
    assert (first, again) == ([f"{said[1]}\n"] * 2, [f"{said[1]}\n"] * 2)


def test_the_smallest_scenario_of_simulate_shows_a_difference(runtime_dir: Path) -> None:
    told = subprocess.run(
        [inaproto_command(), "simulate", "--help"], capture_output=True, text=True, check=True
    ).stdout
    scenario = told.partition("The smallest scenario:\n")[2].partition("\n\n")[0]
    (runtime_dir / "cluster.toml").write_text(scenario)
    run = subprocess.run(
        [inaproto_command(), "simulate", "cluster.toml", "--jobs", "1"],
        cwd=runtime_dir,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "A user waits least" in run.stdout
    assert "and the same" not in run.stdout


@pytest.mark.parametrize("words", ["bench allreduce --hosts 2 --sizes 4K,64K --iterations 1 --dtype int32"])
def test_sizes_of_a_bench_with_daemons(words: str) -> None:
    run = subprocess.run(
        [inaproto_command(), *words.split(), "--json", "-"],
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert [int(line.split()[0]) for line in run.stderr.splitlines() if line[:12].strip().isdigit()] == [
        4096,
        65536,
    ]
