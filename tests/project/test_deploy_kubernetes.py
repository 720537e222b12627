"""The manifests of deploy/kubernetes: built by kubectl, checked against the schemas of Kubernetes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from deliveryd.admin.exposition import expose
from deliveryd.config import load
from deliveryd.metrics import Levels, Metrics
from support.manifests import (
    COMPOSE,
    KUBERNETES,
    NEWEST,
    OLDEST,
    ROOT,
    Manifest,
    built,
    complaints,
    only,
    read_yaml,
)
from support.prometheus import MISSING, PROMTOOL

pytestmark = pytest.mark.slow

VARIANTS = ["base", "autoscale", "one-worker"]
CONFIGS = [KUBERNETES / "base", KUBERNETES / "one-worker", COMPOSE]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_manifest_fits_its_schema(variant: str, version: str) -> None:
    """Nothing is misspelled or missing, for the oldest and the newest Kubernetes."""
    manifests = built(KUBERNETES / variant)
    assert len(manifests) >= 5
    assert {each["kind"]: complaints(each, version) for each in manifests if complaints(each, version)} == {}


MISSPELLED = [
    ("base/deployment.yaml", "maxUnavailable: 0", "maxUnavailible: 0"),
    ("base/deployment.yaml", "readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"),
    ("base/deployment.yaml", "replicas: 2", "replicas: two"),
    ("base/disruption.yaml", "unhealthyPodEvictionPolicy", "unhealthyPodsEvictionPolicy"),
    ("common/network.yaml", "policyTypes:", "policyType:"),
    ("autoscale/scaling.yaml", "maxReplicaCount: 6", "maxReplicas: 6"),
]


@pytest.mark.parametrize(("file", "right", "wrong"), MISSPELLED, ids=[wrong for *_, wrong in MISSPELLED])
def test_a_misspelled_key_is_found(file: str, right: str, wrong: str, tmp_path: Path) -> None:
    """The check above can fail: one mistake in any of the files does it."""
    copy = shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    text = (copy / file).read_text(encoding="utf-8")
    assert right in text
    (copy / file).write_text(text.replace(right, wrong), encoding="utf-8")
    manifests = [*built(copy / "base"), *built(copy / "autoscale")]
    assert any(complaints(each, NEWEST) for each in manifests)


def configuration(directory: Path, secrets: Path) -> str:
    """A configuration with its secrets elsewhere."""
    text = (directory / "config.toml").read_text(encoding="utf-8")
    return re.sub(r'"(/run/secrets/deliveryd|/var/lib/deliveryd)/', rf'"{secrets}/', text)


def pod_of(manifest: Manifest) -> Any:
    return manifest["spec"]["template"]["spec"]


@pytest.mark.parametrize(("variant", "kind"), [("base", "Deployment"), ("one-worker", "StatefulSet")])
def test_a_worker_runs_with_as_little_as_it_needs(variant: str, kind: str) -> None:
    """Not as root, without a writable root or capabilities, its secrets as files that others can't read."""
    pod = pod_of(only(built(KUBERNETES / variant), kind))
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not pod["automountServiceAccountToken"]
    assert not [each for each in container.get("env", ()) if "FILE" in each["name"] or "PASS" in each["name"]]
    (secret,) = (volume["secret"] for volume in pod["volumes"] if "secret" in volume)
    assert secret["defaultMode"] & 0o037 == 0


@pytest.mark.parametrize(("variant", "kind"), [("base", "Deployment"), ("one-worker", "StatefulSet")])
def test_a_pod_is_given_more_time_than_its_drain_takes(variant: str, kind: str) -> None:
    """The pause before the signal counts, too."""
    pod = pod_of(only(built(KUBERNETES / variant), kind))
    config = configuration(KUBERNETES / variant, KUBERNETES / "nowhere")
    drain = re.search(r'drain_timeout = "(\d+)s"', config)
    before = pod["containers"][0].get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    assert pod["terminationGracePeriodSeconds"] >= before + int(drain[1] if drain else 20) + 10


def test_an_upgrade_starts_a_worker_before_it_stops_one() -> None:
    """And each new configuration is such an upgrade: the name of its map changes with it."""
    deployment = only(built(KUBERNETES / "base"), "Deployment")
    rolling = deployment["spec"]["strategy"]["rollingUpdate"]
    assert (rolling["maxUnavailable"], rolling["maxSurge"]) == (0, 1)
    (name,) = (each["configMap"]["name"] for each in pod_of(deployment)["volumes"] if "configMap" in each)
    assert re.fullmatch(r"deliveryd-[a-z0-9]{10}", name)
    assert name == only(built(KUBERNETES / "base"), "ConfigMap")["metadata"]["name"]


def test_receipts_go_to_who_can_record_them(tmp_path: Path) -> None:
    """Readiness is that for receipts, unless nothing listens for them: then there is no Service either."""
    manifests = built(KUBERNETES / "base")
    (container,) = pod_of(only(manifests, "Deployment"))["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz/receipts"
    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert only(manifests, "Service", "deliveryd-receipts")["spec"]["ports"][0]["port"] == 9471

    copy = shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    (copy / "mine").mkdir()
    (copy / "mine" / "kustomization.yaml").write_text(
        "resources: [../base]\ncomponents: [../without-receipts]\n", encoding="utf-8"
    )
    without = built(copy / "mine")
    (container,) = pod_of(only(without, "Deployment"))["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert [each["metadata"]["name"] for each in without if each["kind"] == "Service"] == ["deliveryd-admin"]


def test_the_autoscaler_asks_for_metrics_that_there_are() -> None:
    """And nobody but it says how many workers there are."""
    manifests = built(KUBERNETES / "autoscale")
    assert "replicas" not in only(manifests, "Deployment")["spec"]
    metrics = Metrics(["sms"], "0.1.0")
    metrics.levels = lambda: Levels({}, 0, 0, {}, {})
    exposed = expose(metrics, "")[0].decode()
    for trigger in only(manifests, "ScaledObject")["spec"]["triggers"]:
        named = re.findall(r"\bdeliveryd_\w+", trigger["metadata"]["query"])
        assert named
        assert all(f"# TYPE {name} " in exposed for name in named)


@pytest.mark.skipif(PROMTOOL is None, reason=MISSING)
def test_prometheus_understands_the_autoscalers_queries(tmp_path: Path) -> None:
    """Each is a rule that promtool finds nothing wrong with."""
    triggers = only(built(KUBERNETES / "autoscale"), "ScaledObject")["spec"]["triggers"]
    rules = "".join(f"  - record: x:{t['name']}\n    expr: '{t['metadata']['query']}'\n" for t in triggers)
    file = tmp_path / "rules.yml"
    file.write_text(f"groups:\n- name: scaling\n  rules:\n{rules}", encoding="utf-8")
    told = subprocess.run(
        [str(PROMTOOL), "check", "rules", str(file)], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize("directory", CONFIGS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_configuration_can_be_used_in_the_image(directory: Path, tmp_path: Path) -> None:
    """It has no mistake, together with the variables of the image and of the container."""
    text = configuration(directory, tmp_path)
    for file in re.findall(rf'"{tmp_path}/([\w-]+)"', text):
        (tmp_path / file).touch(mode=0o600)
        (tmp_path / file).write_text("secret-word-of-a-test", encoding="utf-8")
    config = tmp_path / "config.toml"
    config.write_text(text, encoding="utf-8")
    variables = dict(re.findall(r"\b(DELIVERYD_\w+__\w+)=(\S+)", (ROOT / "Containerfile").read_text("utf-8")))
    assert load(config, environ=variables | container_variables(directory)).channels.configured


def container_variables(directory: Path) -> dict[str, str]:
    """What the container of a worker adds to the variables of its image."""
    if directory == COMPOSE:
        worker = read_yaml(COMPOSE / "compose.yaml")["services"]["worker-1"]
        return dict(worker.get("environment", {}))
    (pod,) = (pod_of(each) for each in built(directory) if each["kind"] in {"Deployment", "StatefulSet"})
    return {each["name"]: each["value"] for each in pod["containers"][0].get("env", ())}
