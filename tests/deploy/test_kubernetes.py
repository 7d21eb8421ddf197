"""deploy/kubernetes: valid by the schemas of Kubernetes, and with the intended settings."""

import re
import tomllib
from copy import deepcopy

import kubernetes_validate  # type: ignore[import-untyped]  # it has no hints
import pytest

from deploy.files import (
    KUBERNETES,
    ROOT,
    TOML,
    Document,
    calls,
    check,
    known_variables,
    kustomization,
    manifest,
    manifests,
    pods,
)
from penstock.cli.serving.processes import _LEAVE_SECONDS
from penstock.cli.serving.serving import GRACEFUL_SECONDS
from penstock.http.routes import operations
from penstock.worker.worker import LAST_WRITES_SECONDS, STOP_SECONDS, Options

# The first version with `sleep` in preStop, and the newest one with schemas here.
VERSIONS = ("1.30", "1.37")
PODS = dict(pods())
every_pod = pytest.mark.parametrize("name", PODS)


def containers(name: str) -> list[Document]:
    found = PODS[name]
    return [*found.get("initContainers", []), *found["containers"]]


def main(name: str) -> Document:
    [found] = PODS[name]["containers"]
    return dict(found)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_fits_its_schema(version: str) -> None:
    """E10: strictly, so that a misspelt field is an error."""
    for document in manifests():
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_would_be_found() -> None:
    document = deepcopy(manifest("Deployment", "penstock-worker"))
    document["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="terminationGracePeriodSecond"):
        kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_everything_here_is_applied() -> None:
    files = {path.name for path in KUBERNETES.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization()["resources"]) == files
    kinds = [(one["kind"], one["metadata"]["name"]) for one in manifests()]
    assert sorted(kinds) == [
        ("Deployment", "penstock-api"),
        ("Deployment", "penstock-worker"),
        ("Job", "penstock-migrate"),
        ("Namespace", "penstock"),
        ("PodDisruptionBudget", "penstock-api"),
        ("PodDisruptionBudget", "penstock-worker"),
        ("Service", "penstock-api"),
    ]


def test_the_image_is_that_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    [image] = kustomization()["images"]
    assert image["newTag"] == version
    assert {one["image"] for name in PODS for one in containers(name)} == {image["name"]}


@every_pod
def test_labels_lead_to_their_pods(name: str) -> None:
    for document in manifests():
        if document["metadata"]["name"] != name or document["kind"] == "Job":
            continue
        selector = document["spec"].get("selector", {})
        labels = manifest("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert selector.get("matchLabels", selector) == labels


@every_pod
def test_it_has_few_rights(name: str) -> None:
    """The profile `restricted` of Kubernetes, and nothing to write to but /tmp."""
    found = PODS[name]
    assert found["securityContext"]["runAsNonRoot"]
    assert found["securityContext"]["runAsUser"] == 10_001
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert found["automountServiceAccountToken"] is False
    for one in containers(name):
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert one["resources"]["limits"].keys() == {"memory"}
        assert one["resources"]["requests"].keys() == {"cpu", "memory"}
        writable = [at["mountPath"] for at in one.get("volumeMounts", []) if not at.get("readOnly")]
        assert writable in ([], ["/tmp"])  # noqa: S108  # of the container


@every_pod
def test_its_settings_come_from_the_secret_and_are_known(name: str) -> None:
    [generated] = [one for one in kustomization()["configMapGenerator"] if "literals" in one]
    literals = {line.partition("=")[0] for line in generated["literals"]}
    wanted = set(re.findall(r"\$(\w+)", TOML.read_text()))
    assert literals == {"PENSTOCK_PUBLIC_URL"} | wanted
    for one in containers(name):
        # A Job's template cannot be changed by `apply`: it names nothing whose name changes.
        changing = [{"configMapRef": {"name": generated["name"]}}]
        assert one["envFrom"] == [
            {"secretRef": {"name": "penstock"}},
            *(changing if name != "penstock-migrate" else []),
        ]
        assert {given["name"] for given in one.get("env", [])} <= known_variables()
    assert "Secret" not in {document["kind"] for document in manifests()}


@every_pod
def test_its_commands_are_those_of_the_program(name: str) -> None:
    found = 0
    for one in containers(name):
        if "command" not in one:
            check(one["args"])
            found += 1
        for line in (*_lines(one), *_lines(one.get("startupProbe", {}).get("exec", {}))):
            for arguments in calls(line):
                check(arguments)
                found += 1
    assert found == {"penstock-migrate": 1, "penstock-api": 2, "penstock-worker": 3}[name]


def _lines(container: Document) -> list[str]:
    """Of a shell, where it is one."""
    words = [*container.get("command", []), *container.get("args", [])]
    return words[2:] if words[:2] == ["/bin/sh", "-c"] else []


def test_probes_call_existing_routes_of_the_api() -> None:
    api = main("penstock-api")
    known = {route.path for route in operations.routes}
    asked = {kind: api[kind]["httpGet"] for kind in api if kind.endswith("Probe")}
    assert {kind: get["path"] for kind, get in asked.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }
    assert {"/healthz", "/readyz"} <= known
    [port] = api["ports"]
    assert {get["port"] for get in asked.values()} == {port["name"]}
    assert str(port["containerPort"]) == api["args"][api["args"].index("--port") + 1]
    [served] = manifest("Service", "penstock-api")["spec"]["ports"]
    assert (served["port"], served["targetPort"]) == (port["containerPort"], port["name"])
    address = f"http://penstock-api:{served['port']}"
    assert f"PENSTOCK_PUBLIC_URL={address}" in str(kustomization()["configMapGenerator"])


def test_an_unavailable_database_stops_no_pod() -> None:
    """Liveness checks only the process; a worker has no probe after it has started."""
    assert "livenessProbe" not in main("penstock-worker")
    assert "readinessProbe" not in main("penstock-worker")
    readiness = main("penstock-api")["readinessProbe"]
    assert readiness["timeoutSeconds"] > operations.READY_SECONDS


def test_stopping_gets_the_time_that_it_needs() -> None:
    drain = Options(name="w").drain.total_seconds() + STOP_SECONDS + LAST_WRITES_SECONDS
    assert PODS["penstock-worker"]["terminationGracePeriodSeconds"] >= drain + 5
    before = main("penstock-api")["lifecycle"]["preStop"]["sleep"]["seconds"]
    needs = before + max(GRACEFUL_SECONDS, _LEAVE_SECONDS)
    assert PODS["penstock-api"]["terminationGracePeriodSeconds"] >= needs + 5
    for name in ("penstock-api", "penstock-worker"):
        assert PODS[name]["shareProcessNamespace"], "else it is the first process"


def test_an_upgrade_stops_no_pod_before_the_next_is_ready() -> None:
    """One job migrates the schema, not the pod that starts last."""
    for name in ("penstock-api", "penstock-worker"):
        strategy = manifest("Deployment", name)["spec"]["strategy"]["rollingUpdate"]
        assert strategy == {"maxUnavailable": 0, "maxSurge": 1}
    migrating = [
        name for name in PODS for one in containers(name) if "migrate up" in " ".join(one["args"])
    ]
    assert migrating == ["penstock-migrate"]


def test_the_app_is_mounted_where_the_program_reads_it() -> None:
    [generated] = [one for one in kustomization()["configMapGenerator"] if "files" in one]
    assert generated["files"] == [TOML.name]
    for name in ("penstock-api", "penstock-worker"):
        assert {"name": "app", "configMap": {"name": generated["name"]}} in PODS[name]["volumes"]
        mounts = {at["name"]: at["mountPath"] for at in main(name)["volumeMounts"]}
        assert mounts["app"] == "/app"
