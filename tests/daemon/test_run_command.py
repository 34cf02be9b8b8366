"""``inaproto run`` as a process: exit statuses, signals, and that nothing is left (docs/launching.md)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from inaproto.launch.keeper import marked
from inaproto.launch.output import LAST_OUTPUT_S
from tests.daemon.failing_ranks import FAILS_FIRST
from tests.daemon.test_cli_daemons import COMMAND, DEADLINE_S, daemon, environment

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plain" / "linear_regression.py"
HELLO = ("-n", "2", "--", "python", "examples/hello.py")
HELLO_SAYS = "[0] rank 0 of 2: 3\n[1] rank 1 of 2: 3\n"
"""What pages say that it prints."""
NOBODY = {"INAPROTO_HOST_SOCKET": "/nonexistent/h0.sock"}
"""For ranks that connect to nothing: no daemon is started for them."""

WAITING = """
import os, signal, sys, time
if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() > 0:
            os._exit(0)
try:
    os.write(1, f"mark {os.environ['INAPROTO_RUN']}\\n".encode())  # as one: two processes write to this pipe
    while True:
        time.sleep(600)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise
"""


class Run:
    """A launcher that was started; its temporary directory is ``directory``."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.process = process
        self.directory = directory

    def mark(self, ranks: int) -> str:
        """What its processes are found by, when ``ranks`` of them have told."""
        assert self.process.stdout is not None
        line = ""
        for _ in range(ranks):
            line = self.process.stdout.readline()
            assert "mark " in line, line
        return f"INAPROTO_RUN={line.split()[-1]}"

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err


@contextmanager
def started(directory: Path, *arguments: str, **variables: str) -> Iterator[Run]:
    clean = {name: text for name, text in environment().items() if name != "XDG_RUNTIME_DIR"}
    process = subprocess.Popen(
        [COMMAND, "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean | {"TMPDIR": str(directory), "INAPROTO_DIR": str(directory / "none")} | variables,
    )
    try:
        yield Run(process, directory)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_S)


def wait_until(happened: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not happened():
        assert time.monotonic() < until, what
        time.sleep(0.02)


def script(directory: Path, text: str) -> Path:
    path = directory / "script.py"
    path.write_text(text)
    return path


def test_logs_that_cannot_be_kept_are_an_option_that_is_wrong(runtime_dir: Path) -> None:
    taken = runtime_dir / "file"
    taken.touch()
    with started(runtime_dir, "--log-dir", str(taken / "logs"), "--", "true") as run:
        code, _, err = run.end()
    assert (code, err) == (2, f"inaproto run: --log-dir: cannot make {taken / 'logs'}: Not a directory\n")


def test_the_smallest_script_says_what_pages_show(runtime_dir: Path) -> None:
    script = str(EXAMPLE.parents[2] / HELLO[-1])
    with started(runtime_dir, *HELLO[:-1], script) as run:
        code, out, err = run.end()
    assert (code, sorted(out.splitlines(keepends=True))) == (0, HELLO_SAYS.splitlines(keepends=True)), err
    assert "1 all-reduce: 1 on this host alone" in err


def test_a_script_without_a_word_of_ranks_is_summed_in_a_switch(runtime_dir: Path) -> None:
    options = ("-n", "4", "--daemons", "2", "--json", str(runtime_dir / "summary.json"))
    with started(runtime_dir, *options, "--", "python", str(EXAMPLE), "--steps", "10") as run:
        code, out, err = run.end()
    assert code == 0, err
    said = sorted(line for line in out.splitlines() if "weights" in line)
    assert said == [f"[{rank}] rank {rank} of 4: weights equal on all ranks" for rank in range(4)]
    assert "by a switch and host daemons h0, h1" in err
    assert "all-reduces of torch's gloo go by inaproto; --backend none leaves them" in err
    assert "12 all-reduces: 12 in the switch" in err
    outcome = json.loads((runtime_dir / "summary.json").read_text())
    assert (outcome["exit_status"], outcome["operations_by_path"]) == (0, {"switch": 12})
    assert "processors_share" in outcome
    assert [path.name for path in runtime_dir.iterdir()] == ["summary.json"]


@pytest.mark.parametrize("path", ["chain", "overlay", "ring"])
def test_the_path_is_that_which_was_asked_for(runtime_dir: Path, path: str) -> None:
    options = ("-n", "3", "--daemons", "3", "--path", path, "--frames", "sockets")
    with started(runtime_dir, *options, "--", "python", str(EXAMPLE), "--steps", "4") as run:
        code, out, err = run.end()
    assert (code, out.count("weights equal")) == (0, 3), err
    assert "6 all-reduces: 6 " in err
    assert list(runtime_dir.iterdir()) == []


def test_one_host_daemon_adds_for_all_its_ranks(runtime_dir: Path) -> None:
    with started(runtime_dir, "-n", "2", "-q", "--", "python", str(EXAMPLE), "--steps", "4") as run:
        code, out, err = run.end()
    assert (code, out.count("weights equal")) == (0, 2), err
    assert err == ""
    assert list(runtime_dir.iterdir()) == []


def test_daemons_that_run_are_used_and_left(runtime_dir: Path) -> None:
    run_dir, own = runtime_dir / "ina", runtime_dir / "own"
    own.mkdir()
    with (
        daemon("switch", "--dir", str(run_dir)),
        daemon("host", "--dir", str(run_dir), "--name", "h0", "--ip", "10.0.0.1"),
        daemon("host", "--dir", str(run_dir), "--name", "h1", "--ip", "10.0.0.2"),
    ):
        script = ("--", "python", str(EXAMPLE), "--steps", "4")
        with started(own, "-n", "2", "--dir", str(run_dir), *script) as run:
            code, out, err = run.end()
        assert (code, out.count("weights equal")) == (0, 2), err
        assert f"by host daemons h0, h1 in {run_dir}, which run already" in err
        assert "6 all-reduces: 6 in the switch" in err
        with started(own, "--daemons", "2", "-n", "2", "--dir", str(run_dir), *script) as run:
            code, _, err = run.end()
        assert code == 2
        assert "--daemons: in " in err
        assert {path.name for path in run_dir.iterdir()} == {
            "control.sock",
            "ports.sock",
            "h0.sock",
            "h1.sock",
        }
        # As on two machines, each with its host daemon: a launcher on each.
        shared = ("--hosts", "a,b", "--job", "far", "-n", "1", "--path", "chain", *script)
        key = {"INAPROTO_KEY": "secret"}
        first = {"INAPROTO_HOST_SOCKET": str(run_dir / "h0.sock")} | key
        second = {"INAPROTO_HOST_SOCKET": str(run_dir / "h1.sock")} | key
        with (
            started(own, "--host-index", "0", *shared, **first) as one,
            started(own, "--host-index", "1", *shared, **second) as other,
        ):
            ends = [one.end(), other.end()]
        assert [end[0] for end in ends] == [0, 0], ends
        assert "rank 1 of 2: weights equal" in ends[1][1]
        assert "rank 0 of 2 of job far" in ends[0][2]


@pytest.mark.parametrize(
    ("victim", "its"),
    [("the switch", "['switch']"), ("host daemon h1", "['hosts'][1]")],
    ids=["switch", "host"],
)
def test_a_daemon_that_is_killed_is_started_again_and_the_job_goes_on(
    runtime_dir: Path, victim: str, its: str
) -> None:
    text = """
import inaproto, os, signal, subprocess
import numpy as np
with inaproto.connect_blocking() as comm:
    for step in range(40):
        total = comm.all_reduce(np.full(1000, step, np.float32)).wait(timeout=600)
        assert (total == 2 * step).all()
        if step == 20 and comm.rank == 0:
            found = subprocess.run(["inaproto", "status", "--json", "--dir", os.path.dirname(
                os.environ["INAPROTO_HOST_SOCKET"])], capture_output=True, check=True).stdout
            import json
            os.kill(json.loads(found)ITS["pid"], signal.SIGKILL)
print("done")
""".replace("ITS", its)
    (runtime_dir / "out").mkdir()
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    config = runtime_dir / "patient.toml"
    config.write_text("[switch]\nrecover_ms = 600000\n[host]\nrecover_ms = 600000\n")
    options = ("-n", "2", "--daemons", "2", "--config", str(config))
    words = ("--", "python", str(script(runtime_dir, text)))
    with started(runtime_dir / "out", *options, *words, **path) as run:
        code, out, err = run.end()
    assert (code, out.count("done")) == (0, 2), err
    assert f"{victim} was ended by SIGKILL" in err
    assert "it is started again" in err
    assert "two ranks on two hosts: a ring of two sends each byte once" in err
    assert list((runtime_dir / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("end", "status", "how"),
    [
        ("sys.exit(7)", 7, "rank 1 ended with exit status 7; ending ranks 0, 2"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 1 was ended by SIGKILL"),
    ],
)
def test_who_ends_badly_is_named_and_ends_the_others(
    runtime_dir: Path, end: str, status: int, how: str
) -> None:
    text = f"import os, signal, sys, time\nif os.environ['RANK'] == '1':\n    {end}\ntime.sleep(600)\n"
    with started(runtime_dir, "-n", "3", "--", "python", str(script(runtime_dir, text)), **NOBODY) as run:
        code, _, err = run.end()
    assert (code, how in err) == (status, True), err
    assert [path.name for path in runtime_dir.iterdir()] == ["script.py"]


@pytest.mark.parametrize("options", [(), ("--daemons", "3")], ids=["one", "three"])
@pytest.mark.parametrize("in_place", [(), ("in_place",)], ids=["copied", "in_place"])
def test_who_failed_first_is_named_though_it_ends_last(
    runtime_dir: Path, options: tuple[str, ...], in_place: tuple[str, ...]
) -> None:
    """What a failed rank does last may take longer than all that others do when they hear of it."""
    (runtime_dir / "pids").mkdir()
    words = ("--", "python", str(script(runtime_dir, FAILS_FIRST)), str(runtime_dir / "pids"), *in_place)
    summary = runtime_dir / "summary.json"
    with started(runtime_dir, "-n", "3", "--grace", "600", "--json", str(summary), *options, *words) as run:
        code, _, err = run.end()
    assert "rank 1 ended with exit status 7, and because of it ranks 0, 2" in err
    assert code == 7
    assert json.loads(summary.read_text())["first_failure"]["rank"] == 1


HELD_OUTPUT = """
import os, signal, subprocess, sys, time
from pathlib import Path
there, rank = Path(sys.argv[1]), os.environ["RANK"]
if rank == "1":
    subprocess.Popen(["sleep", "600"], start_new_session=True)  # which holds what this rank has for output
    (there / "pid").write_text(str(os.getpid()))
    os.rename(there / "pid", there / "first")
    sys.exit(7)
while not (there / "first").exists() or Path("/proc", (there / "first").read_text()).exists():
    time.sleep(0.01)
sys.exit(5)
"""


def test_who_failed_first_is_named_though_something_holds_its_output(runtime_dir: Path) -> None:
    """Its last lines are waited for; the end of another one is not told meanwhile."""
    (runtime_dir / "there").mkdir()
    words = ("--", "python", str(script(runtime_dir, HELD_OUTPUT)), str(runtime_dir / "there"))
    with started(runtime_dir, "-n", "3", *words, **NOBODY) as run:
        code, _, err = run.end()
    assert (code, "rank 1 ended with exit status 7" in err) == (7, True), err


def test_a_loss_that_the_script_survives_ends_nothing(runtime_dir: Path) -> None:
    text = """
import inaproto, os, signal
import numpy as np
comm = inaproto.connect_blocking(elastic=True)
step = 0
while step < 10:
    if comm.size == 3 and comm.rank == 1 and step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        total = comm.all_reduce(np.ones(10, np.float32)).wait(timeout=600)
    except inaproto.RankLost:
        comm = comm.shrink(timeout=600)
        continue
    step += 1
comm.close()
print("through", total[0])
"""
    words = ("-n", "3", "--elastic", "--", "python", str(script(runtime_dir, text)))
    with started(runtime_dir, *words) as run:
        code, out, err = run.end()
    assert (code, sorted(out.splitlines())) == (0, ["[0] through 2.0", "[2] through 2.0"]), err
    assert "rank 1 was ended by SIGKILL" in err
    assert "; the others go on" in err


def test_a_start_within_a_step_of_slurm_is_a_job_of_its_own(runtime_dir: Path) -> None:
    text = "import os\nprint(os.environ['INAPROTO_JOB'])\n"
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    names = []
    for _ in range(2):
        with started(runtime_dir, "--", "python", str(script(runtime_dir, text)), **NOBODY, **slurm) as run:
            names.append(run.end()[1])
    assert names[0] != names[1]


def test_output_and_arguments_are_the_scripts(runtime_dir: Path) -> None:
    text = (
        "import os, sys\nprint(sys.argv[1:], sys.stdin.read())\nprint('no', file=sys.stderr)\nsys.exit(3)\n"
    )
    words = ("-q", "--", "python", str(script(runtime_dir, text)), "-n", "5", "--json")
    with started(runtime_dir, *words, **NOBODY) as run:
        code, out, err = run.end()
    assert (code, out) == (3, "['-n', '5', '--json'] \n")
    assert err == "no\ninaproto run: rank 0 ended with exit status 3\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_goes_to_all_and_leaves_nothing(runtime_dir: Path, number: signal.Signals) -> None:
    words = ("-n", "2", "--", "python", str(script(runtime_dir, WAITING)))
    with started(runtime_dir, *words, **NOBODY) as run:
        mark = run.mark(2)
        run.process.send_signal(number)
        code, out, err = run.end()
    assert code == 128 + number, err
    assert out.count("interrupted") == (2 if number == signal.SIGINT else 0)
    assert marked(mark) == set()
    assert [path.name for path in runtime_dir.iterdir()] == ["script.py"]


SAYS_MUCH = """
import os, sys
from pathlib import Path
sys.stdout.write(("x" * 99 + "\\n") * 1000)
sys.stdout.flush()
Path(sys.argv[1], os.environ["RANK"]).touch()
"""


def test_what_ranks_say_last_waits_for_who_reads_it(runtime_dir: Path) -> None:
    """The launcher keeps what pipes have no room for, and ends when all of it is read."""
    said = script(runtime_dir, SAYS_MUCH)
    with started(runtime_dir, "-n", "2", "--", sys.executable, str(said), str(runtime_dir), **NOBODY) as run:
        wait_until(lambda: all((runtime_dir / str(rank)).exists() for rank in range(2)), "all is said")
        time.sleep(2 * LAST_OUTPUT_S)  # that it waited for at most, once
        status, out, _ = run.end()
    assert (status, out.count("x" * 99)) == (0, 2000)


def test_a_signal_ends_a_launcher_whose_output_nobody_reads(runtime_dir: Path) -> None:
    said = script(runtime_dir, SAYS_MUCH)
    with started(runtime_dir, "-n", "2", "--", sys.executable, str(said), str(runtime_dir), **NOBODY) as run:
        wait_until(lambda: all((runtime_dir / str(rank)).exists() for rank in range(2)), "all is said")
        run.process.send_signal(signal.SIGINT)
        run.process.wait(DEADLINE_S)


def test_a_program_that_cannot_be_executed_is_named(runtime_dir: Path) -> None:
    program = runtime_dir / "program"
    program.write_text("no interpreter is named here\n")
    program.chmod(0o755)
    with started(runtime_dir, "-n", "1", "--", str(program), **NOBODY) as run:
        code, _, err = run.end()
    assert code == 126
    assert f"{program}: cannot be executed: Exec format error" in err
    assert "Traceback" not in err


def test_nohup_is_heeded(runtime_dir: Path) -> None:
    words = ("-n", "1", "--label", "--", "python", str(script(runtime_dir, WAITING)))
    had = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which the launcher inherits
    try:
        with started(runtime_dir, *words, **NOBODY) as run:
            run.mark(1)
            run.process.send_signal(signal.SIGHUP)
            run.process.send_signal(signal.SIGTERM)
            code, _, err = run.end()
    finally:
        signal.signal(signal.SIGHUP, had)
    assert (code, "SIGHUP" in err) == (143, False), err


def test_who_does_not_heed_is_killed_and_so_is_what_it_started(runtime_dir: Path) -> None:
    """The second process left its session and its parent, and ignores SIGTERM."""
    words = ("-n", "1", "--grace", "0.1", "--", "python", str(script(runtime_dir, WAITING)), "stubborn")
    with started(runtime_dir, *words, **NOBODY) as run:
        mark = run.mark(2)
        run.process.send_signal(signal.SIGTERM)
        code, _, err = run.end()
    assert code == 143
    assert "did not end within 0.1 s; SIGKILL" in err
    assert marked(mark) == set()


def test_a_launcher_that_is_killed_leaves_no_process_and_no_directory(runtime_dir: Path) -> None:
    """Neither ranks (that ignore SIGTERM, and what they started), nor daemons, nor sockets."""
    (runtime_dir / "out").mkdir()
    words = ("-n", "1", "--", "python", str(script(runtime_dir, WAITING)), "stubborn")
    with started(runtime_dir / "out", *words) as run:
        mark = run.mark(2)
        assert len(marked(mark)) >= 4  # a switch, a host daemon, a rank and what it started
        run.process.kill()
        wait_until(lambda: not marked(mark), "processes are left")
        wait_until(lambda: not any((runtime_dir / "out").iterdir()), "a directory is left")


def test_a_daemon_that_does_not_come_up_is_told_with_its_log(runtime_dir: Path) -> None:
    config = runtime_dir / "bad.toml"
    config.write_text("[host]\nmtu = 1000\n")
    with started(runtime_dir, "--config", str(config), "--", "true") as run:
        code, _, err = run.end()
    assert code == 1
    assert "inaproto run: h0 ended before it was ready" in err
    assert "mtu" in err
    assert [path.name for path in runtime_dir.iterdir()] == ["bad.toml"]


def test_ranks_of_mpirun_find_each_other(runtime_dir: Path, program: Callable[[str], Path]) -> None:
    mpirun = program("mpirun")
    with (
        daemon("switch", "--dir", str(runtime_dir)),
        daemon("host", "--dir", str(runtime_dir), "--name", "h0", "--ip", "10.0.0.1"),
    ):
        variables: dict[str, Any] = {**environment(), "INAPROTO_DIR": str(runtime_dir)}
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(
            [mpirun, "--oversubscribe", "-n", "3", sys.executable, str(EXAMPLE), "--steps", "3"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env=variables,
            check=False,
        )
    assert done.stdout.count("weights equal on all ranks") == 3, done.stderr
