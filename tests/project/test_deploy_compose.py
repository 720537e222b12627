"""The compose file of deploy/compose and what it mounts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.manifests import COMPOSE, compose_complaints, read_yaml
from support.prometheus import MISSING, PROMTOOL, RULES

pytestmark = pytest.mark.slow

FILE = COMPOSE / "compose.yaml"
PREPARE = COMPOSE / "prepare.py"
SERVICES: dict[str, Any] = read_yaml(FILE)["services"]
OURS = {"worker-1", "worker-2", "sandbox", "prepare"}


def test_the_compose_file_fits_its_schema() -> None:
    assert compose_complaints(FILE) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("stop_grace_period:", "stop_grace_periods:"),
        ("condition: service_healthy", "condition: service_wealthy"),
        ("read_only: true", "read_only: [true]"),
    ],
)
def test_a_misspelled_key_is_found(right: str, wrong: str, tmp_path: Path) -> None:
    """The check above can fail."""
    text = FILE.read_text(encoding="utf-8")
    assert right in text
    copy = tmp_path / "compose.yaml"
    copy.write_text(text.replace(right, wrong), encoding="utf-8")
    assert compose_complaints(copy) != ""


def test_what_it_mounts_is_there() -> None:
    """Every file of a config exists, and every config and volume that a service names is one."""
    whole = read_yaml(FILE)
    assert all((COMPOSE / config["file"]).is_file() for config in whole["configs"].values())
    for service in SERVICES.values():
        assert {each["source"] for each in service.get("configs", ())} <= set(whole["configs"])
        volumes = {each.split(":")[0] for each in service.get("volumes", ())}
        assert volumes <= set(whole["volumes"])
        assert set(service.get("depends_on", ())) <= set(SERVICES)


def test_two_workers_share_a_journal_and_nothing_else_that_they_write_to() -> None:
    """Both are made from the Containerfile with the database's driver, and differ only in their port."""
    one, other = ({**SERVICES[name], "ports": None} for name in ("worker-1", "worker-2"))
    assert one == other
    assert one["build"]["args"] == {"LOCK": "postgresql"}
    assert (COMPOSE / one["build"]["context"] / one["build"]["dockerfile"]).is_file()
    writable = [each for each in one["volumes"] if not each.endswith(":ro")]
    assert writable == ["socket:/run/postgresql"]


def test_nothing_is_published_beyond_this_machine() -> None:
    """And no service may gain rights; only what makes the passwords may change owners."""
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        if name != "database":
            assert service["cap_drop"] == ["ALL"]
            assert service["read_only"]
    assert {name for name, service in SERVICES.items() if "cap_add" in service} == {"prepare"}


def test_no_secret_is_in_a_file_or_a_variable() -> None:
    """Passwords are made at the first start; variables only say where they are."""
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            assert name.endswith("_FILE") or "PASSWORD" not in name
            assert not re.search(r"password=\S", str(value))
    assert not list(COMPOSE.glob("*password*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_each_password_is_made_once_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    """The workers and the database get the same one; a second start changes none."""
    folders = [tmp_path / name for name in ("workers", "database", "grafana")]
    for folder in folders:
        folder.mkdir()
    made = []
    for _ in range(2):
        subprocess.run([sys.executable, PREPARE, *folders], check=True)
        files = [folders[0] / "database-password", folders[1] / "database-password"]
        files.append(folders[2] / "admin-password")
        made.append([file.read_text(encoding="utf-8") for file in files])
        assert [file.stat().st_mode & 0o777 for file in files] == [0o400] * 3
        assert [file.stat().st_uid for file in files] == [10001, 999, 472]
    (workers, database, grafana), again = made
    assert again == [workers, database, grafana]
    assert workers == database != grafana
    assert len(workers) == 48


@pytest.mark.skipif(PROMTOOL is None, reason=MISSING)
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    """It scrapes both workers as the job that the rules expect."""
    (tmp_path / "rules.yml").write_text(RULES.read_text(encoding="utf-8"), encoding="utf-8")
    config = tmp_path / "prometheus.yml"
    config.write_text((COMPOSE / "prometheus.yml").read_text(encoding="utf-8"), encoding="utf-8")
    told = subprocess.run(
        [str(PROMTOOL), "check", "config", config], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    (job,) = read_yaml(config)["scrape_configs"]
    assert job["job_name"] == "deliveryd"
    assert job["static_configs"] == [{"targets": ["worker-1:9470", "worker-2:9470"]}]
