"""What docs/torch.md shows of Python, pasted into a script of two ranks that ``inaproto run`` starts."""

from __future__ import annotations

from pathlib import Path

from tests.daemon.test_pasted_docs import Page
from tests.daemon.test_run_command import started

BEFORE = """
import torch
import torch.distributed as dist
import inaproto.torch.hooks

dist.init_process_group("{backend}")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
"""
AFTER = """
model(torch.full((3, 4), 1.0 + dist.get_rank())).sum().backward()
print("gradient", model.module.weight.grad[0, 0].item())
"""


def said(directory: Path, python: Path, *lines: str, backend: str) -> list[str]:
    """What the two ranks print. Their lines come labelled: else one may begin within another one's."""
    (directory / "page.py").write_text("\n".join([BEFORE.format(backend=backend), *lines]))
    with started(
        directory, "-n", "2", "--backend", "none", "--", str(python), str(directory / "page.py")
    ) as run:
        status, out, errors = run.end()
    assert status == 0, errors
    return sorted(line.split("] ", 1)[1] for line in out.splitlines())


def test_the_hook_of_the_page(runtime_dir: Path, torch_python: Path) -> None:
    """The mean of 3 and 6, by a hook of a script that keeps gloo."""
    hook = Page("docs/torch.md", runtime_dir).block("python", "register_comm_hook")
    assert said(runtime_dir, torch_python, hook, AFTER, backend="gloo") == ["gradient 4.5"] * 2


def test_the_status_of_the_page(runtime_dir: Path, torch_python: Path) -> None:
    status = Page("docs/torch.md", runtime_dir).block("python", "status()")
    printed = said(runtime_dir, torch_python, AFTER, status, backend="inaproto")
    assert printed[:2] == ["gradient 4.5"] * 2
    assert [line.split(") ")[1].split()[:2] for line in printed[2:]] == [["inaproto", "1"]] * 2, printed
