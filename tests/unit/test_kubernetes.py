"""The manifests of deploy/kubernetes: against the API as Kubernetes publishes it, and against the daemons."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
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
COMPONENTS: Final = ("switch", "controller", "host")
FOLDERS: Final = ("base", "cert-manager", "example", "example/cert-manager")


def documents(*folders: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in folders:
        for path in sorted((FOLDER / folder).glob("*.yaml")):
            for document in yaml.safe_load_all(path.read_text()):
                yield path, document


ALL: Final = [
    pytest.param(path, document, id=f"{path.name}-{document['kind']}-{index}")
    for index, (path, document) in enumerate(documents(*FOLDERS))
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


def image_environment() -> dict[str, str]:
    """What the image sets for its daemons, over which comes what a container sets."""
    text = (FOLDER.parent / "images" / "Containerfile").read_text()
    [line] = re.findall(r"^ENV (.+)$", text, re.MULTILINE)
    found = dict(word.split("=", 1) for word in line.split())
    return {name: value for name, value in found.items() if name.startswith("INAPROTO_")}


def training_pod() -> dict[str, Any]:
    [job] = [document for path, document in documents("example") if path.name == "train.yaml"]
    found: dict[str, Any] = job["spec"]["template"]["spec"]
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


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_daemon_takes_its_configuration(component: str, tmp_path: Path) -> None:
    """The command of the container, with the example's files where they are mounted."""
    [container] = pod(component)["containers"]
    fields = {"spec.nodeName": NODE, "status.hostIP": "192.0.2.1", "status.podIP": "192.0.2.2"}
    environment = image_environment() | variables(container, fields)
    (tmp_path / "etc").symlink_to(EXAMPLE)
    words = []
    for word in container["args"]:
        for name, value in environment.items():
            word = word.replace(f"$({name})", value)
        words.append(word.replace("--config=/etc/inaproto/", f"--config={tmp_path}/etc/"))
    done = CliRunner(env=environment).invoke(cli, [*words, "--show-config"])
    assert done.exit_code == 0, done.output
    shown = done.output
    assert "tls" in shown
    [run] = [one for one in pod(component)["volumes"] if one["name"] == "run"]
    # Everybody may write in the first folder of an emptyDir, and a daemon does not start there.
    directory = tomllib.loads(shown)[component]["dir"]
    assert (directory == "/run/inaproto") == ("emptyDir" not in run), directory
    if component == "host":
        assert f"/etc/inaproto/tls/{NODE}" in shown
        assert f'"{NODE}"' in shown
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    assert f":{ports['metrics']}" in shown
    for name in ports.keys() - {"metrics"}:
        assert f"0.0.0.0:{ports[name]}" in shown


@pytest.mark.parametrize("component", COMPONENTS)
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
        # Who only knocks at a port of TLS is told of in the daemon's log, as one who is refused.
        assert container[probe]["httpGet"]["port"] == "metrics"
        assert "metrics" in ports
    assert "memory" in container["resources"]["limits"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]


def test_no_pod_has_variables_of_services_which_look_like_settings() -> None:
    for found in (*map(pod, COMPONENTS), training_pod()):
        assert found["enableServiceLinks"] is False


def test_jobs_wait_as_long_as_kubernetes_lets_a_pod_start() -> None:
    """A rolling update ends a pod before it makes the next one."""
    recover_ms = [tomllib.loads((EXAMPLE / "switch.toml").read_text())["switch"]["recover_ms"]]
    recover_ms += [
        tomllib.loads(path.read_text())["host"]["recover_ms"] for path in (EXAMPLE / "hosts").iterdir()
    ]
    for component in ("switch", "host"):
        [container] = pod(component)["containers"]
        probe = container["startupProbe"]
        starts_s = probe["periodSeconds"] * probe["failureThreshold"]
        assert min(recover_ms) > 1000 * (pod(component)["terminationGracePeriodSeconds"] + starts_s)
    assert base()["host"]["spec"]["minReadySeconds"] > 0


def test_a_switch_that_has_no_ports_is_not_asked_to_sum() -> None:
    found = tomllib.loads((EXAMPLE / "switch.toml").read_text())["switch"]
    assert ("port" in found) == (found.get("memory_kib") != 0)


def test_one_image_is_named_for_daemons_and_training() -> None:
    [image] = yaml.safe_load((FOLDER / "base" / "kustomization.yaml").read_text())["images"]
    [container] = training_pod()["containers"]
    assert container["image"] == f"{image['newName']}:{image['newTag']}"


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
        for _, document in documents("cert-manager", "example/cert-manager")
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
    [container] = training_pod()["containers"]
    fields = {
        "metadata.annotations['batch.kubernetes.io/job-completion-index']": "1",
        "metadata.labels['batch.kubernetes.io/controller-uid']": "0b1ea1e0-8ea1-4a2c-9a2c-3c1f0a5d9b11",
        "spec.nodeName": NODE,
    }
    found = discover(variables(container, fields))
    assert (found.rank, found.size, found.job) == (1, 2, "0b1ea1e0-8ea1-4a2c-9a2c-3c1f0a5d9b11")
    assert found.socket == f"/run/inaproto/{NODE}.sock"
    assert found.sources["socket"] == SOCKET_VARIABLE
    [mount], [volume] = container["volumeMounts"], training_pod()["volumes"]
    [run] = [one for one in pod("host")["volumes"] if one["name"] == "run"]
    assert (mount["mountPath"], volume["hostPath"]["path"]) == ("/run/inaproto", run["hostPath"]["path"])
    group = pod("host")["securityContext"]["runAsGroup"]
    assert group in training_pod()["securityContext"]["supplementalGroups"]


def issue_as_the_file_says(folder: Path, authority: Path) -> None:
    """The commands in the head of certificates/kustomization.yaml."""
    text = (folder / "kustomization.yaml").read_text()
    for line in re.findall(r"^#   inaproto (ca .+)$", text, re.MULTILINE):
        words = line.replace("~/inaproto-ca", str(authority)).replace("--out ", f"--out {folder}/").split()
        done = CliRunner().invoke(cli, words)
        assert done.exit_code == 0, done.output


def test_a_node_of_two_cores_takes_the_whole_example() -> None:
    """All daemons on the node where a rank has to be: else the ranks wait for one that is never placed."""

    def millis(found: dict[str, Any]) -> int:
        [container] = found["containers"]
        return int(container["resources"]["requests"]["cpu"].removesuffix("m"))

    # What a cluster itself has on each node takes some, too.
    assert sum(map(millis, (*map(pod, COMPONENTS), training_pod()))) <= 1500


@pytest.mark.parametrize("by", ["certificates", "cert-manager"])
def test_kustomize_puts_it_together(by: str, program: Callable[[str], Path], tmp_path: Path) -> None:
    """The example as it is, and with the lines changed that its file names; on a copy, as a site has it."""
    kubectl = program("kubectl")
    site = tmp_path / "kubernetes" / "example"
    shutil.copytree(FOLDER, site.parent, ignore=shutil.ignore_patterns("node-?"))
    if by == "certificates":
        issue_as_the_file_says(site / by, tmp_path / "ca")
    else:
        text = (site / "kustomization.yaml").read_text()
        text = text.replace("  - certificates ", "  # - certificates ").replace(
            "  # - cert-manager", "  - cert-manager"
        )
        (site / "kustomization.yaml").write_text(text.replace("  # - pod-monitor", "  - pod-monitor"))
    done = subprocess.run([kubectl, "kustomize", site], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    kinds = [one["kind"] for one in made]
    assert (kinds.count("ConfigMap"), kinds.count("DaemonSet")) == (2, 1)
    assert {one["metadata"].get("namespace", "inaproto") for one in made} == {"inaproto"}
    others = {one["kind"] for one in made if one["apiVersion"].startswith(OTHERS)}
    assert others == (set() if by == "certificates" else {"Certificate", "Issuer", "PodMonitor"})
    assert kinds.count("Certificate") == (5 if others else 0)
    secrets = {one["metadata"]["name"]: set(one["data"]) for one in made if one["kind"] == "Secret"}
    named = {f"inaproto-{one}" for one in ("switch", "controller", "node-a", "node-b")}
    assert secrets == ({} if others else {name: {"tls.crt", "tls.key", "ca.crt"} for name in named})
    for one in made:
        if one["kind"] not in others:
            kubernetes_validate.validate(one, VERSIONS[-1], strict=True)
