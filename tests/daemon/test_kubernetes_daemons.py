"""The daemons with the configuration and certificates of their pods in deploy/kubernetes, on loopback."""

from __future__ import annotations

import re
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from inaproto_controller.service.job_client import JobClient
from inaproto_hil.rigs.models_cluster import free_ports
from tests.daemon.test_cli_daemons import DEADLINE_S, daemon, run, status
from tests.unit.test_kubernetes import EXAMPLE, pod, training_pod

HOSTS: Final = ("node-a", "node-b")
SECRET_KEYS: Final = {"tls.crt": "cert.pem", "tls.key": "key.pem", "ca.crt": "ca.pem"}
"""Of a secret, as cert-manager makes it, and the files of ``inaproto ca issue``."""


def mount(secret: dict[str, Any], issued: Path, folder: Path) -> None:
    """The files of a secret as a pod has them: its group may read them."""
    for item in secret["items"]:
        path = folder / item["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(issued / SECRET_KEYS[item["key"]], path)
        path.chmod(0o440)


def mounted(directory: Path) -> Path:
    """Certificates of all daemons, in a folder for each component."""
    (directory / "issued").mkdir()
    assert run("ca", "init", "--dir", str(directory / "ca")).returncode == 0
    for role, name in (
        ("switch", "switch"),
        ("controller", "controller"),
        *(("host", host) for host in HOSTS),
    ):
        words = ("ca", "issue", "--dir", str(directory / "ca"), "--role", role, "--name", name)
        assert run(*words, "--out", str(directory / "issued" / name)).returncode == 0
    tls = directory / "tls"
    for component in ("switch", "controller", "host"):
        [volume] = [one for one in pod(component)["volumes"] if one["name"] == "tls"]
        if component != "host":
            mount(volume["secret"], directory / "issued" / component, tls / component)
            continue
        for host, source in zip(HOSTS, volume["projected"]["sources"], strict=True):
            mount(source["secret"], directory / "issued" / host, tls / component)
    return tls


def test_they_meet_and_a_job_has_its_nodes_and_a_tree(runtime_dir: Path) -> None:
    tls, files, sockets = mounted(runtime_dir), runtime_dir / "etc", runtime_dir / "run"
    sockets.mkdir()
    control, agents = free_ports(2)
    changed = {
        "/run/inaproto": str(sockets),
        "0.0.0.0:7420": f"127.0.0.1:{control}",
        "0.0.0.0:7421": f"127.0.0.1:{agents}",
        "inaproto-switch.inaproto.svc:7420": f"127.0.0.1:{control}",
        "inaproto-controller.inaproto.svc:7421": f"127.0.0.1:{agents}",
        "/etc/inaproto/cluster.json": str(files / "cluster.json"),
        "/var/lib/inaproto": str(runtime_dir),
        'port = "packet:eth0"': "",
    }
    shutil.copytree(EXAMPLE, files)
    for path in (files / "switch.toml", files / "controller.toml", *(files / "hosts").iterdir()):
        text = path.read_text()
        for old, new in changed.items():
            text = text.replace(old, new)
        path.write_text(text.replace("/etc/inaproto/tls", str(tls / path.stem)))
    with ExitStack() as stack:
        for component in ("controller", "switch"):
            stack.enter_context(daemon(component, "--config", str(files / f"{component}.toml")))
        for host in HOSTS:
            words = ("--config", str(files / "hosts" / f"{host}.toml"), "--name", host)
            stack.enter_context(daemon("host", *words, "--tls", str(tls / "host" / host)))
        jobs = JobClient([str(sockets / "ctl" / "controller.sock")])
        jobs.submit("train", 2, on=HOSTS, submission="s" * 32)
        until = time.monotonic() + DEADLINE_S
        while (job := jobs.job("train"))["tree"] is None:
            assert time.monotonic() < until, (job, jobs.status())
            time.sleep(0.1)
        assert (job["state"], job["hosts"], job["tree"]["root"]) == ("placed", list(HOSTS), "switch")
        for host in HOSTS:
            said = status("--socket", str(sockets / f"{host}.sock"))["hosts"][0]
            assert said["controller"]["connected"]


def test_its_job_adds_up_and_says_how_long_it_waited() -> None:
    [container] = training_pod()["containers"]
    [script] = container["args"]
    assert container["command"] == ["python", "-c"]
    done = run("run", "-n", "2", "--", "env", "ALL_REDUCES=3", sys.executable, "-c", script)
    assert done.returncode == 0, done.stderr
    said = r"\[{0}\] rank {0} of 2: 3; the longest all-reduce took \d+\.\d s"
    assert all(re.search(said.format(rank), done.stdout) for rank in range(2)), done.stdout
