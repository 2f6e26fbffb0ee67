"""deploy/kubernetes: valid for the API, in agreement with the server, the images and the page."""

from __future__ import annotations

import copy
import math
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kustomize import Resource, render

from astrai.cli.config import read_config
from astrai.cli.options import server_options
from astrai.cli.serve import parse_settings
from astrai.server import metrics, runner
from astrai.server.service_routes import router
from astrai.server.settings import ServerSettings

REPO = Path(__file__).resolve().parents[3]
KUBERNETES = REPO / "deploy" / "kubernetes"
OVERLAYS = ["cpu", "gpu"]
COMPONENTS = ["autoscaling", "monitoring"]
OLDEST, NEWEST = (
    "1.30",
    "1.37",
)  # of the API: probes, autoscaling/v2 and policy/v1 are alike in both
_STEP_S = 5  # of a pod's grace period that is nobody's


def one(resources: list[Resource], kind: str) -> Resource:
    (found,) = (resource for resource in resources if resource["kind"] == kind)
    return found


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> list[Resource]:
    return render(KUBERNETES / "overlays" / request.param)


@pytest.fixture
def extended(tmp_path: Path) -> Path:
    """The GPU overlay as a user extends it with every component."""
    copied = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copied)
    file = copied / "overlays" / "gpu" / "kustomization.yaml"
    listed = [f"../../components/{name}" for name in COMPONENTS]
    file.write_text(file.read_text() + yaml.safe_dump({"components": listed}))
    return file.parent


@pytest.fixture
def with_components(extended: Path) -> list[Resource]:
    return render(extended)


def pod_of(resources: list[Resource]) -> Any:
    return one(resources, "Deployment")["spec"]["template"]


def server_of(resources: list[Resource]) -> Any:
    (container,) = pod_of(resources)["spec"]["containers"]
    return container


def settings_of(resources: list[Resource], tmp_path: Path) -> ServerSettings:
    file = tmp_path / "serve.yaml"
    file.write_text(one(resources, "ConfigMap")["data"]["serve.yaml"])
    return ServerSettings(**read_config(file, server_options()))


def of_the_api(resources: list[Resource]) -> list[Resource]:
    return [resource for resource in resources if resource["kind"] != "ServiceMonitor"]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_api_takes_every_resource(
    overlay: list[Resource], with_components: list[Resource], version: str
) -> None:
    try:
        import kubernetes_validate
    except ImportError:
        if os.environ.get("CI"):
            pytest.fail("kubernetes-validate is missing: pip install kubernetes-validate")
        pytest.skip("kubernetes-validate is missing: pip install kubernetes-validate")
    for resource in of_the_api(overlay) + of_the_api(with_components):
        kubernetes_validate.validate(resource, version, strict=True)
    wrong = copy.deepcopy(one(overlay, "Deployment"))
    wrong["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_kubectl_renders_the_same(extended: Path) -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is missing")

    def by_kind(resources: list[Resource]) -> list[Resource]:
        return sorted(resources, key=lambda resource: str(resource["kind"]))

    for folder in (*(KUBERNETES / "overlays" / name for name in OVERLAYS), extended):
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        text = re.sub(r"astrai-config-\w{10}\b", "astrai-config", done.stdout)
        assert by_kind(list(yaml.safe_load_all(text))) == by_kind(render(folder))


def test_the_probes_ask_routes_of_the_server(overlay: list[Resource]) -> None:
    container = server_of(overlay)
    routes = {getattr(route, "path", None) for route in router.routes}
    ports = {port["name"] for port in container["ports"]}
    probes = {name: probe for name, probe in container.items() if name.endswith("Probe")}
    assert len(probes) == 3
    for probe in probes.values():
        assert probe["httpGet"]["path"] in routes and probe["httpGet"]["port"] in ports
    assert probes["readinessProbe"]["httpGet"]["path"] == "/ready"
    # A server that drains or has no model must not be restarted for that.
    assert probes["livenessProbe"]["httpGet"]["path"] == "/health"
    startup_s = probes["startupProbe"]["periodSeconds"] * probes["startupProbe"]["failureThreshold"]
    assert one(overlay, "Deployment")["spec"]["progressDeadlineSeconds"] > startup_s


def test_the_port_is_the_same_all_the_way(overlay: list[Resource], tmp_path: Path) -> None:
    settings = settings_of(overlay, tmp_path)
    (port,) = server_of(overlay)["ports"]
    (published,) = one(overlay, "Service")["spec"]["ports"]
    assert port["containerPort"] == settings.port and settings.host == "0.0.0.0"
    assert published["targetPort"] == port["name"]


def test_the_server_takes_its_arguments(overlay: list[Resource], tmp_path: Path) -> None:
    container = server_of(overlay)
    text = one(overlay, "ConfigMap")["data"]["serve.yaml"]
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "config")
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    inside = f"{mount['mountPath']}/{file.name}"
    assert inside in container["args"]
    settings = parse_settings([arg.replace(inside, str(file)) for arg in container["args"]])
    assert settings.drain_timeout_s == 45


def test_the_grace_period_holds_the_whole_drain(overlay: list[Resource], tmp_path: Path) -> None:
    spec = pod_of(overlay)["spec"]
    word, pre_stop_s = server_of(overlay)["lifecycle"]["preStop"]["exec"]["command"]
    drain_s = math.ceil(settings_of(overlay, tmp_path).drain_timeout_s) + runner._GRACE_S
    assert word == "sleep"
    assert spec["terminationGracePeriodSeconds"] >= int(pre_stop_s) + drain_s + _STEP_S


def test_the_key_comes_from_a_secret_and_reaches_the_server(overlay: list[Resource]) -> None:
    variables = {variable["name"]: variable for variable in server_of(overlay)["env"]}
    secret = variables["ASTRAI_API_KEY"]["valueFrom"]["secretKeyRef"]
    assert secret == {"name": "astrai-api-key", "key": "api-key"}
    assert "ASTRAI_API_KEY" in (REPO / "python" / "astrai" / "env.py").read_text()
    # The Service's name would otherwise make variables that look like the server's own.
    assert pod_of(overlay)["spec"]["enableServiceLinks"] is False


def test_the_pod_passes_the_restricted_standard(overlay: list[Resource]) -> None:
    spec, container = pod_of(overlay)["spec"], server_of(overlay)
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert spec["automountServiceAccountToken"] is False
    assert not any("hostPath" in volume for volume in spec["volumes"])


def test_the_pod_is_the_image_s_user_with_the_image_s_folders(overlay: list[Resource]) -> None:
    spec, container = pod_of(overlay)["spec"], server_of(overlay)
    image, tag = container["image"].split(":")
    dockerfile = (REPO / "docker" / f"Dockerfile.{tag}").read_text()
    assert image == "astrai"
    assert f"USER {spec['securityContext']['runAsUser']}:" in dockerfile
    writable = {m["mountPath"] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert writable == {"/cache", "/tmp"} and "XDG_CACHE_HOME=/cache" in dockerfile
    volumes = {volume["name"] for volume in spec["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_gpu_overlay_has_a_gpu_and_a_model() -> None:
    resources = render(KUBERNETES / "overlays" / "gpu")
    container = server_of(resources)
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    claim = one(resources, "PersistentVolumeClaim")["metadata"]["name"]
    volumes = {volume["name"]: volume for volume in pod_of(resources)["spec"]["volumes"]}
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": claim, "readOnly": True}
    (mount,) = (m for m in container["volumeMounts"] if m["name"] == "models")
    config = yaml.safe_load(one(resources, "ConfigMap")["data"]["serve.yaml"])["server"]
    assert config["model"].startswith(mount["mountPath"]) and config["device"] == "cuda"


def test_the_cpu_overlay_has_as_many_threads_as_cores() -> None:
    container = server_of(render(KUBERNETES / "overlays" / "cpu"))
    (threads,) = (v for v in container["env"] if v["name"] == "OMP_NUM_THREADS")
    assert threads["valueFrom"]["resourceFieldRef"] == {"resource": "limits.cpu"}
    assert float(container["resources"]["limits"]["cpu"]) >= 1


def test_everything_selects_the_server_s_pods(with_components: list[Resource]) -> None:
    labels = pod_of(with_components)["metadata"]["labels"]
    service = one(with_components, "Service")
    for selector in (
        one(with_components, "Deployment")["spec"]["selector"]["matchLabels"],
        one(with_components, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        service["spec"]["selector"],
    ):
        assert selector.items() <= labels.items()
    monitor = one(with_components, "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert endpoint["path"] in {getattr(route, "path", None) for route in router.routes}


def test_the_autoscaler_reads_a_metric_of_the_server(with_components: list[Resource]) -> None:
    scaler = one(with_components, "HorizontalPodAutoscaler")["spec"]
    deployment = one(with_components, "Deployment")
    assert scaler["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"], "two masters would fight over it"
    (metric,) = scaler["metrics"]
    gauges = {f"astrai_{name}" for name, _, _ in metrics._GAUGES}
    assert metric["pods"]["metric"]["name"] in gauges


def test_the_page_names_what_there_is() -> None:
    page = (REPO / "docs" / "guide" / "kubernetes.md").read_text(encoding="utf-8")
    named = set(re.findall(r"deploy/kubernetes/((?:overlays|components)/\w+)", page))
    expected = {f"overlays/{name}" for name in OVERLAYS}
    assert named == expected | {f"components/{name}" for name in COMPONENTS}
    assert "--from-literal=api-key=" in page and "secret generic astrai-api-key" in page
    assert f"{OLDEST} to {NEWEST}" in page
