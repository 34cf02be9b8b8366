"""``inaproto run`` with a script that names gloo, and no word of inaproto in it (docs/launching.md)."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

from inaproto.launch.keeper import marked
from tests.daemon.test_cli_daemons import DEADLINE_S, daemon, environment
from tests.daemon.test_run_command import EXAMPLE as PLAIN
from tests.daemon.test_run_command import started

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "torch" / "train_ddp.py"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3")


class Training:
    """What one run of the script printed."""

    def __init__(self, directory: Path, python: Path, *options: str) -> None:
        summary = directory / "summary.json"
        words = ("--", str(python), str(EXAMPLE), "--epochs", "1")
        with started(directory, "-n", "4", "--json", str(summary), *options, *words) as run:
            self.status, out, self.said = run.end()
        self.losses = [float(loss) for loss in re.findall(r"epoch \d+ loss ([0-9.]+)", out)]
        self.weights = re.findall(r"rank \d weights ([0-9a-f]+)", out)
        self.outcome: dict[str, Any] = json.loads(summary.read_text())


def test_an_unchanged_script_has_the_same_weights_by_every_path(
    runtime_dir: Path, torch_python: Path
) -> None:
    """Alike on all ranks, in two runs, by switch, chain and overlay; the loss is gloo's but for rounding."""
    found = {
        path: Training(runtime_dir, torch_python, "--daemons", "4", "--path", path)
        for path in ("auto", "chain", "overlay")
    }
    found["again"] = Training(runtime_dir, torch_python, "--daemons", "4")
    for name, one in found.items():
        assert one.status == 0, (name, one.said)
        assert len(one.weights) == 4, (name, one.said)
    assert len({digest for one in found.values() for digest in one.weights}) == 1
    assert [set(found[path].outcome["operations_by_path"]) for path in ("auto", "chain", "overlay")] == [
        {"switch"},
        {"chain"},
        {"overlay"},
    ]
    gloo = Training(runtime_dir, torch_python, "--backend", "none")
    assert (gloo.status, gloo.outcome["operations_by_path"]) == (0, {}), gloo.said
    assert len(gloo.losses) == len(found["auto"].losses) == 1
    assert abs(gloo.losses[0] - found["auto"].losses[0]) < 1e-3


def test_ranks_of_one_host_are_not_told_that_their_python_lacks_inaproto(
    runtime_dir: Path, torch_python: Path
) -> None:
    """Their host daemon counts nothing: they add in place, among themselves. The Python is another one."""
    found = Training(runtime_dir, torch_python, "-n", "2")
    assert (found.status, found.outcome["operations_by_path"]) == (0, {}), found.said
    assert "inaproto carries all-reduces of 2 ranks" in found.said
    assert "is it, for" not in found.said


def test_ctrl_c_in_a_training_leaves_nothing(runtime_dir: Path, torch_python: Path) -> None:
    words = ("--daemons", "2", "--", str(torch_python), str(EXAMPLE), "--epochs", "1000000")
    with started(runtime_dir, "-n", "2", *words) as run:
        assert run.process.stdout is not None
        line = next(line for line in run.process.stdout if "epoch 1 " in line)
        assert line.startswith("[0] ")
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
        environ = Path(f"/proc/{children[-1]}/environ").read_text().split("\0")
        mark = next(variable for variable in environ if variable.startswith("INAPROTO_RUN="))
        assert len(marked(mark)) >= 5
        run.process.send_signal(signal.SIGINT)
        code, _, err = run.end()
    assert code == 130, err
    assert marked(mark) == set()
    assert list(runtime_dir.glob("inaproto*")) == []  # torch keeps a cache there


REDUCES = """
import threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(4)
dist.all_reduce(total)
dist.destroy_process_group()
left = [thread.name for thread in threading.enumerate() if thread.name.startswith("inaproto")]
print("through", total[0].item(), left, flush=True)
"""


def test_ranks_that_gloo_serves_instead_end_well(runtime_dir: Path, torch_python: Path) -> None:
    """They are through, and end at once: no thread is taking gloo's group down by then, which would abort."""
    script = runtime_dir / "reduces.py"
    script.write_text(REDUCES)
    wishes = {"INAPROTO_TORCH": "gloo", "INAPROTO_DIR": str(runtime_dir / "none")}
    done = subprocess.run(
        [torch_python, *TORCHRUN, script],
        env=environment() | wishes,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout.count("through 3.0 []")) == (0, 3), done.stderr
    assert "gloo carries its all-reduces" in done.stderr


FORKS = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp
def rank(number):
    dist.init_process_group("gloo", rank=number, world_size=2)
    dist.all_reduce(torch.ones(4))
if __name__ == "__main__":
    mp.start_processes(rank, nprocs=2, start_method="fork")
    sys.exit(3)
"""


def test_ranks_that_the_script_forks_leave_when_they_are_through(
    runtime_dir: Path, torch_python: Path
) -> None:
    """multiprocessing ends them without what ``atexit`` holds: they were taken for lost, and blamed."""
    script = runtime_dir / "forks.py"
    script.write_text(FORKS)
    with started(runtime_dir, "-n", "1", "--", str(torch_python), str(script)) as run:
        code, _, said = run.end()
    assert code == 3, said
    assert "inaproto carries all-reduces of 2 ranks" in said
    assert "RankLost" not in said


def test_ranks_of_torchrun_find_each_other(runtime_dir: Path, torch_python: Path) -> None:
    """A script without torch in it, by the name and the numbers that torchrun gives."""
    with (
        daemon("switch", "--dir", str(runtime_dir)),
        daemon("host", "--dir", str(runtime_dir), "--name", "h0", "--ip", "10.0.0.1"),
    ):
        done = subprocess.run(
            [torch_python, *TORCHRUN, str(PLAIN), "--steps", "3"],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            env={**environment(), "INAPROTO_DIR": str(runtime_dir), "INAPROTO_KEY": "secret"},
            check=False,
        )
    assert done.stdout.count("weights equal on all ranks") == 3, done.stderr
