"""The files for operators and contributors: Kubernetes, the container, workflows, templates."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from paceline.server.settings import ServerSettings
from paceline.wiring.processes.supervisor import CLOSE_S
from tests.server.support import on_its_own_server

ROOT = Path(__file__).parents[1]
OPS = ROOT / "ops"
MANIFESTS = sorted(OPS.glob("kubernetes/*.yaml"))
CUSTOM = (
    "kustomize.config.k8s.io",
    "inference.networking.k8s.io",
    "gateway.networking.k8s.io",
    "ray.io",
)


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def resource(kind: str) -> Any:
    (found,) = (one for path in MANIFESTS for one in documents(path) if one["kind"] == kind)
    return found


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_kubernetes_accepts_the_manifests(path: Path) -> None:
    for one in documents(path):
        if one["apiVersion"].partition("/")[0] not in CUSTOM:
            kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)


def test_probes_and_the_end_of_a_pod_match_the_server() -> None:
    pod = resource("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    given = dict(one.removeprefix("--").split("=") for one in container["args"] if "=" in one)
    drain_s, port = float(given["drain-s"]), int(given["port"])
    ServerSettings(drain_s=drain_s, log_format=given["log-format"])  # type: ignore[arg-type]
    assert container["ports"][0]["containerPort"] == port
    sleep_s = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= sleep_s + drain_s + CLOSE_S
    probes = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("liveness", "readiness")]
    assert probes == ["/health", "/ready"]

    async def answered(site: Any) -> None:
        for path in probes:
            assert (await site.http.get(path)).status_code == 200

    on_its_own_server(answered)


def test_services_and_pools_select_the_pods() -> None:
    labels = resource("Deployment")["spec"]["template"]["metadata"]["labels"]
    pool = resource("InferencePool")["spec"]
    assert resource("Service")["spec"]["selector"] == labels
    assert pool["selector"]["matchLabels"] == labels
    assert resource("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    (container,) = resource("Deployment")["spec"]["template"]["spec"]["containers"]
    assert pool["targetPorts"] == [{"number": container["ports"][0]["containerPort"]}]
    assert {"name", "port"} <= pool["endpointPickerRef"].keys()
    (backend,) = resource("HTTPRoute")["spec"]["rules"][0]["backendRefs"]
    assert (backend["kind"], backend["name"]) == (
        "InferencePool",
        resource("InferencePool")["metadata"]["name"],
    )


def test_every_resource_of_a_kustomization_is_there() -> None:
    for path in OPS.glob("kubernetes/**/kustomization.yaml"):
        (content,) = documents(path)
        assert all((path.parent / name).exists() for name in content["resources"])


def test_the_container_file_has_no_faults() -> None:
    linter = shutil.which("hadolint")
    assert linter is not None
    found = subprocess.run(
        [linter, OPS / "Containerfile"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(
    ("schema", "pattern"),
    [
        ("github-workflows", ".github/workflows/*.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[bf]*.yml"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("citation-file-format", "CITATION.cff"),
    ],
)
def test_files_for_contributors_match_their_schemas(schema: str, pattern: str) -> None:
    checker = shutil.which("check-jsonschema")
    assert checker is not None
    files = sorted(ROOT.glob(pattern))
    assert files
    found = subprocess.run(
        [checker, "--builtin-schema", f"vendor.{schema}", *files],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_workflows_run_targets_of_the_makefile() -> None:
    text = "".join(path.read_text() for path in ROOT.glob(".github/workflows/*.yml"))
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    called = set(re.findall(r"make (\w+)", text))
    assert called == {"test", "docs", "wheel"}
    assert called <= targets


def test_the_citation_has_the_version_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == project["version"]
