"""What others run deliveryd with: the manifests of Kubernetes and the compose file, and their schemas."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
COMPOSE = DEPLOY / "compose"
OLDEST, NEWEST = "1.30", kubernetes_validate.latest_version()
"""The versions of Kubernetes whose schemas the manifests must fit."""

FOREIGN = {"ScaledObject": Path(__file__).parent / "scaled_object.schema.json"}
"""Schemas of kinds that aren't Kubernetes' own."""

Manifest = dict[str, Any]


def built(directory: Path) -> list[Manifest]:
    """What `kubectl kustomize` makes of a directory. Raises CalledProcessError; `stderr` says why."""
    kubectl = Path(sys.executable).with_name("kubectl")
    told = subprocess.run(
        [kubectl, "kustomize", directory],
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": "/nowhere"},
    )
    return list(YAML(typ="safe").load_all(told.stdout))


def complaints(manifest: Manifest, version: str) -> list[str]:
    """What a manifest's schema says against it; unknown keys count."""
    foreign = FOREIGN.get(manifest["kind"])
    if foreign is not None:
        schema = json.loads(foreign.read_text(encoding="utf-8"))
        return [error.message for error in Draft202012Validator(schema).iter_errors(manifest)]
    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return []


def only(manifests: list[Manifest], kind: str, name: str | None = None) -> Manifest:
    """The one manifest of a kind, and of a name if there are several."""
    (found,) = (
        each for each in manifests if each["kind"] == kind and name in {None, each["metadata"]["name"]}
    )
    return found


def compose_complaints(file: Path) -> str:
    """What the compose file's schema, as check-jsonschema brings it, says against a file; empty: nothing."""
    told = subprocess.run(
        [
            sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec",
            "--output-format", "json", file,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return "" if told.returncode == 0 else told.stdout + told.stderr


def read_yaml(file: Path) -> Mapping[str, Any]:
    """A YAML file with one document, its anchors and merges resolved."""
    loaded: Mapping[str, Any] = YAML(typ="safe").load(file.read_text(encoding="utf-8"))
    return loaded
