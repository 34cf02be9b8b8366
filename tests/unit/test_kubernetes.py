"""The manifests of deploy/kubernetes: against the API as Kubernetes publishes it, and against the daemons."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import pytest
import yaml
from click.testing import CliRunner

from inaproto.cli import cli
from inaproto.client.environment import discover
from inaproto.client.joining import SOCKET_VARIABLE
from inaproto.daemon.net.tls import CA_FILE, CERTIFICATE_FILE, KEY_FILE

FOLDER: Final = Path(__file__).parents[2] / "deploy" / "kubernetes"
EXAMPLE: Final = FOLDER / "example"
VERSIONS: Final = ("1.29", "1.32", "1.37")
NODE: Final = "node-a"
OTHERS: Final = ("kustomize.config.k8s.io/", "cert-manager.io/", "monitoring.coreos.com/")
"""APIs that Kubernetes does not publish."""
FILES: Final = {CERTIFICATE_FILE, KEY_FILE, CA_FILE}


def documents(*folders: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in folders:
        for path in sorted((FOLDER / folder).glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                yield path, document


ALL: Final = [
    pytest.param(path, document, id=f"{path.name}-{document['kind']}-{index}")
    for index, (path, document) in enumerate(documents("base", "cert-manager", "example"))
    if not document["apiVersion"].startswith(OTHERS) and path.name != "node-secrets.yaml"
]


def base() -> dict[str, dict[str, Any]]:
    """Workloads by component, with the volumes of the example's nodes."""
    found: dict[str, dict[str, Any]] = {}
    for path, document in documents("base", "example"):
        if path.name == "node-secrets.yaml":
            sources = document["spec"]["template"]["spec"]["volumes"][0]["projected"]["sources"]
            for volume in found["host"]["spec"]["template"]["spec"]["volumes"]:
                if volume["name"] == "tls":
                    volume["projected"]["sources"] = sources
        elif document["kind"] in ("Deployment", "StatefulSet", "DaemonSet"):
            found[document["metadata"]["labels"]["app.kubernetes.io/component"]] = document
    return found


def pod(component: str) -> dict[str, Any]:
    found: dict[str, Any] = base()[component]["spec"]["template"]["spec"]
    return found


def variables(container: dict[str, Any], fields: dict[str, str]) -> dict[str, str]:
    """As Kubernetes makes them of ``fields`` of the pod."""
    found: dict[str, str] = {}
    for one in container.get("env", ()):
        if "value" in one:
            text = one["value"]
            for name, value in found.items():
                text = text.replace(f"$({name})", value)
        else:
            source = one["valueFrom"]
            text = fields[source["fieldRef"]["fieldPath"]] if "fieldRef" in source else "k" * 32
        found[one["name"]] = text
    return found


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("path", "document"), ALL)
def test_it_is_as_the_published_api_has_it(path: Path, document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("wrong", ["replica", "hostnetwork"])
def test_a_slip_of_the_pen_is_found(wrong: str) -> None:
    document = base()["switch"]
    document["spec"][wrong] = 1
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("component", ["switch", "controller", "host"])
def test_a_daemon_takes_its_configuration(component: str, tmp_path: Path) -> None:
    """The command of the container, with the example's files where they are mounted."""
    [container] = pod(component)["containers"]
    fields = {"spec.nodeName": NODE, "status.hostIP": "192.0.2.1", "status.podIP": "192.0.2.2"}
    environment = variables(container, fields)
    (tmp_path / "etc").symlink_to(EXAMPLE)
    words = []
    for word in container["args"]:
        for name, value in environment.items():
            word = word.replace(f"$({name})", value)
        words.append(word.replace("--config=/etc/inaproto/", f"--config={tmp_path}/etc/"))
    done = CliRunner().invoke(cli, [*words, "--show-config"])
    assert done.exit_code == 0, done.output
    shown = done.output
    assert "tls" in shown
    if component == "host":
        assert f"/etc/inaproto/tls/{NODE}" in shown
        assert f'"{NODE}"' in shown
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert f":{ports['metrics']}" in shown
    for name in ports.keys() - {"metrics"}:
        assert f"0.0.0.0:{ports[name]}" in shown


@pytest.mark.parametrize("component", ["switch", "controller", "host"])
def test_what_it_mounts_and_probes_is_there(component: str) -> None:
    workload = base()[component]
    labels = workload["spec"]["template"]["metadata"]["labels"]
    assert workload["spec"]["selector"]["matchLabels"].items() <= labels.items()
    spec = pod(component)
    [container] = spec["containers"]
    claimed = {one["metadata"]["name"] for one in workload["spec"].get("volumeClaimTemplates", ())}
    volumes = {one["name"] for one in spec["volumes"]} | claimed
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    ports = {port["name"] for port in container["ports"]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        [how] = [container[probe][kind] for kind in ("httpGet", "tcpSocket") if kind in container[probe]]
        assert how["port"] in ports
    assert "memory" in container["resources"]["limits"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_services_and_monitor_find_pods_and_ports() -> None:
    pods = [workload["spec"]["template"] for workload in base().values()]
    for path, document in documents("base", "example"):
        if document["kind"] == "Service":
            chosen = _chosen(pods, document["spec"]["selector"])
            assert len(chosen) == 1, path
            ports = {port["name"] for port in chosen[0]["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"] for port in document["spec"]["ports"]} <= ports
        elif document["kind"] == "PodMonitor":
            chosen = _chosen(pods, document["spec"]["selector"]["matchLabels"])
            assert len(chosen) == len(pods)
            for end in document["spec"]["podMetricsEndpoints"]:
                for one in chosen:
                    assert end["port"] in {port["name"] for port in one["spec"]["containers"][0]["ports"]}


def _chosen(pods: list[dict[str, Any]], selector: dict[str, str]) -> list[dict[str, Any]]:
    return [one for one in pods if selector.items() <= one["metadata"]["labels"].items()]


def test_certificates_are_where_daemons_look_and_name_them() -> None:
    made = {
        document["spec"]["secretName"]: document["spec"].get("uris")
        for _, document in documents("cert-manager", "example")
        if document["kind"] == "Certificate"
    }
    for component in ("switch", "controller"):
        [tls] = [one["secret"] for one in pod(component)["volumes"] if one["name"] == "tls"]
        assert {item["path"] for item in tls["items"]} == FILES
        assert made[tls["secretName"]] == [f"inaproto://{component}/{component}"]
    [tls] = [one["projected"] for one in pod("host")["volumes"] if one["name"] == "tls"]
    hosts = yaml.safe_load((EXAMPLE / "cluster.json").read_text())["hosts"]
    assert [source["secret"]["name"] for source in tls["sources"]] == [f"inaproto-{host}" for host in hosts]
    for host, source in zip(hosts, tls["sources"], strict=True):
        assert {item["path"] for item in source["secret"]["items"]} == {f"{host}/{file}" for file in FILES}
        assert made[source["secret"]["name"]] == [f"inaproto://host/{host}"]
        assert (EXAMPLE / "hosts" / f"{host}.toml").is_file()


def test_pods_of_a_training_job_know_who_they_are() -> None:
    [job] = [document for path, document in documents("example") if path.name == "train.yaml"]
    [container] = job["spec"]["template"]["spec"]["containers"]
    fields = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
        "metadata.labels['batch.kubernetes.io/controller-uid']": "0b1ea1e0-8ea1-4a2c-9a2c-3c1f0a5d9b11",
        "spec.nodeName": NODE,
    }
    found = discover(variables(container, fields))
    assert (found.rank, found.size, found.job) == (1, 2, "0b1ea1e0-8ea1-4a2c-9a2c-3c1f0a5d9b11")
    assert found.socket == f"/run/inaproto/{NODE}.sock"
    assert found.sources["socket"] == SOCKET_VARIABLE
    [mount], [volume] = container["volumeMounts"], job["spec"]["template"]["spec"]["volumes"]
    [run] = [one for one in pod("host")["volumes"] if one["name"] == "run"]
    assert (mount["mountPath"], volume["hostPath"]["path"]) == ("/run/inaproto", run["hostPath"]["path"])
    group = pod("host")["securityContext"]["runAsGroup"]
    assert group in job["spec"]["template"]["spec"]["securityContext"]["supplementalGroups"]


def test_kustomize_puts_it_together(program: Callable[[str], Path]) -> None:
    kubectl = program("kubectl")
    done = subprocess.run([kubectl, "kustomize", EXAMPLE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    kinds = sorted(one["kind"] for one in made)
    assert (kinds.count("Certificate"), kinds.count("ConfigMap"), kinds.count("DaemonSet")) == (5, 2, 1)
    assert {one["metadata"].get("namespace", "inaproto") for one in made} == {"inaproto"}
    for one in made:
        if not one["apiVersion"].startswith(OTHERS):
            kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
