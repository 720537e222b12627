"""How deliveryd is run in production: the systemd units, and the image that the Containerfile describes."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from deliveryd.config import RunOptions
from deliveryd.worker.supervisor import LAST_MOMENTS
from support.patience import PATIENCE
from support.places import ROOT
from support.systemd_units import UNITS, unit_settings

USER = 10001
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
needs_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")


@pytest.mark.slow
@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_nothing_wrong_with_the_unit(name: str, tmp_path: Path) -> None:
    """systemd-analyze checks the unit with a program in the place where deliveryd would be installed."""
    text = (ROOT / "systemd" / name).read_text(encoding="utf-8")
    (tmp_path / name).write_text(text.replace("/opt/deliveryd/bin/deliveryd", "/bin/true"), encoding="utf-8")
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")


@pytest.mark.slow
@needs_systemd
@pytest.mark.parametrize("name", UNITS)
def test_the_unit_is_exposed_no_more_than_its_network_needs(name: str) -> None:
    """systemd's own measure, from 0 to 10, stays at 1.5 or below."""
    rated = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=yes",
            "--threshold=15",
            "--no-pager",
            ROOT / "systemd" / name,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert rated.returncode == 0, rated.stdout + rated.stderr


@pytest.mark.parametrize("name", UNITS)
def test_a_configuration_error_stops_the_unit_instead_of_restarting_it(name: str) -> None:
    """Only the main process's status prevents a restart, so the check before it must not be what fails."""
    settings = unit_settings(name)
    assert settings["RestartPreventExitStatus"] == ["2 78"]
    assert all(command.startswith("-") for command in settings["ExecStartPre"])


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_waits_longer_than_a_drain_takes(name: str) -> None:
    """The drain may take 20 s, and the process 10 s more, before systemd would kill what is being sent."""
    (stop,) = unit_settings(name)["TimeoutStopSec"]
    assert int(stop.removesuffix("s")) > RunOptions().drain_timeout + LAST_MOMENTS


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_waits_for_the_clock_and_names_its_manual(name: str) -> None:
    """Due times and expiries are times of day. Its files are enough for what a configuration may open."""
    settings = unit_settings(name)
    assert "time-sync.target" in settings["After"][0].split()
    assert settings["Documentation"] == ["man:deliveryd(1)"]
    assert int(settings["LimitNOFILE"][0]) >= 65536


def test_a_drop_in_for_another_folder_replaces_every_command_of_the_unit() -> None:
    """One that is left out would still run the old version."""
    page = (ROOT / "docs" / "how-to" / "stop-and-upgrade.md").read_text(encoding="utf-8")
    commands = {
        key for key, values in unit_settings("deliveryd.service").items() if "/bin/deliveryd" in values[0]
    }
    assert commands == {"ExecStart", "ExecStartPre", "ExecReload"}
    for key in commands:
        assert re.search(rf"^{key}=\n{key}=-?/opt/deliveryd-new/bin/deliveryd ", page, re.MULTILINE)


def test_the_image_says_what_it_is() -> None:
    labels = dict(re.findall(r'org\.opencontainers\.image\.([a-z.]+)="([^"]+)"', of_image("LABEL")[0]))
    assert labels["title"] == "deliveryd"
    assert labels["licenses"] == "Apache-2.0"
    assert labels["description"]


@pytest.mark.slow
@pytest.mark.parametrize("is_first", [True, False], ids=["as PID 1", "as any process"])
def test_sigterm_ends_a_worker_that_has_only_begun(tmp_path: Path, is_first: bool) -> None:
    """The kernel ignores signals that PID 1 has no handler for: an engine would wait, and kill it then."""
    if is_first and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("takes root and unshare")
    config = tmp_path / "config.toml"
    os.mkfifo(config)  # whoever reads it waits for a writer
    isolated = ["unshare", "--pid", "--fork", "--kill-child"] if is_first else []
    with (
        subprocess.Popen(
            [*isolated, sys.executable, "-m", "deliveryd", "run", "--config", config]
        ) as started,
        config.open("w"),
    ):
        (worker,) = _children(started.pid) if is_first else (started.pid,)
        os.kill(worker, signal.SIGTERM)
        status = started.wait(PATIENCE)
    assert status == (128 + signal.SIGTERM if is_first else -signal.SIGTERM)


def _children(parent: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def test_instances_share_neither_configuration_nor_directories() -> None:
    settings = unit_settings("deliveryd@.service")
    for key in ("ExecStart", "EnvironmentFile", "StateDirectory", "CacheDirectory", "RuntimeDirectory"):
        assert "%i" in settings[key][0]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the Containerfile, with the stage that it belongs to."""

    stage: int
    word: str
    rest: str


def instructions() -> list[Instruction]:
    text = re.sub(r"\\\n\s*", " ", (ROOT / "Containerfile").read_text(encoding="utf-8"))
    found: list[Instruction] = []
    stage = -1
    for line in filter(None, text.splitlines()):
        word, _, rest = line.partition(" ")
        stage += word == "FROM"
        found.append(Instruction(stage, word, rest))
    return found


def of_image(word: str) -> list[str]:
    """What the final stage says with this word."""
    everything = instructions()
    return [one.rest for one in everything if one.word == word and one.stage == everything[-1].stage]


def test_the_image_runs_as_a_numbered_user_and_starts_programs_without_a_shell() -> None:
    """An orchestrator can tell that the user is not root, and signals reach deliveryd itself."""
    assert of_image("USER") == [f"{USER}:{USER}"]
    assert json.loads(of_image("ENTRYPOINT")[0]) == ["/opt/venv/bin/deliveryd"]
    assert json.loads(of_image("CMD")[0])[0] == "run"
    assert json.loads(of_image("HEALTHCHECK")[0].partition("CMD ")[2])[-1] == "health"


def test_the_base_image_is_named_by_its_digest_in_every_stage() -> None:
    """A tag is whatever somebody pushed last."""
    (base,) = (one.rest for one in instructions() if one.word == "ARG" and one.stage == -1)
    assert re.fullmatch(r"BASE=python:3\.11-slim@sha256:[0-9a-f]{64}", base)
    assert {one.rest.split()[0] for one in instructions() if one.word == "FROM"} == {"${BASE}"}


def test_only_the_volumes_need_to_be_writable() -> None:
    (volumes,) = of_image("VOLUME")
    (prepared,) = of_image("RUN")
    assert all(f"{directory}" in prepared for directory in json.loads(volumes))
    assert f"-o {USER} -g {USER} -m 0700" in prepared


@dataclass(frozen=True, slots=True)
class Image:
    """What the Containerfile's first stage made, below a directory instead of at /."""

    root: Path

    def run(self, *arguments: str, timeout: float) -> subprocess.CompletedProcess[str]:
        """Run deliveryd as the image would: that user, no home, only a temporary directory to write to."""
        with tempfile.TemporaryDirectory(prefix="deliveryd-tmp-") as writable:
            os.chown(writable, USER, USER)
            identity = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs"]
            return subprocess.run(
                ["env", *identity, "deliveryd", *arguments],
                cwd="/",
                env={"TMPDIR": writable, **self.variables()},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )

    def variables(self) -> dict[str, str]:
        pairs = dict(pair.split("=", 1) for line in of_image("ENV") for pair in line.split())
        return {name: re.sub("^/(opt|etc)/", rf"{self.root}/\1/", value) for name, value in pairs.items()}


def copy_context(root: Path, names: str) -> None:
    """COPY: what .dockerignore lets through of the repository, into the working directory."""
    allowed = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line[0] == "!"
    ]
    source = names.split(maxsplit=1)[0]
    for name in allowed if source == "." else [source]:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, root / "src" / name, ignore=ignore, dirs_exist_ok=True)
        elif (ROOT / name).exists():
            shutil.copy2(ROOT / name, root / "src" / name)


def run_step(root: Path, command: str) -> None:
    """RUN: the same command with the image's directories below `root`, and its python first on the path."""
    here = re.sub(r"(?<![\w.])/opt/", f"{root}/opt/", command)
    environment = {**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}", "PIP_REQUIRE_VIRTUALENV": "1"}
    environment.pop("VIRTUAL_ENV", None)
    arguments = (one.rest.split("=", 1) for one in instructions() if (one.word, one.stage) == ("ARG", 0))
    environment.update((name, value) for name, value in arguments)
    done = subprocess.run(
        ["sh", "-c", here], cwd=root / "src", env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def everyones_python() -> Path:
    """A Python that the image's user may run too, so none that lies in a closed home directory."""
    candidates = [Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}"), Path("/usr/bin/python3")]
    for candidate in filter(Path.exists, candidates):
        if all(parent.stat().st_mode & 0o001 for parent in candidate.resolve().parents):
            return candidate
    pytest.skip("no Python here that another user may run")


@pytest.fixture(scope="module")
def image() -> Iterator[Image]:
    """The first stage of the Containerfile carried out without an engine, then made read-only."""
    with tempfile.TemporaryDirectory(prefix="deliveryd-image-") as name:
        root = Path(name)
        for directory in ("bin", "src", "opt"):
            (root / directory).mkdir()
        python = root / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec "{everyones_python()}" "$@"\n', encoding="utf-8")
        python.chmod(0o755)
        for step in instructions():
            if step.stage == 0 and step.word == "COPY":
                copy_context(root, step.rest)
            elif step.stage == 0 and step.word == "RUN":
                run_step(root, step.rest)
        root.joinpath("etc/deliveryd").mkdir(parents=True)
        shutil.copy2(ROOT / "config.example.toml", root / "etc/deliveryd/config.toml")
        subprocess.run(["chmod", "-R", "a-w,a+rX", str(root)], check=True)
        yield Image(root)
        subprocess.run(["chmod", "-R", "u+w", str(root)], check=True)


@pytest.mark.slow
@needs_root
@needs_setpriv
def test_the_image_starts_as_its_user_from_a_read_only_tree(image: Image) -> None:
    shown = image.run("--help", timeout=60)
    assert shown.returncode == 0, shown.stderr
    assert "run" in shown.stdout


@pytest.mark.slow
@needs_root
@needs_setpriv
def test_the_demo_runs_to_its_end_in_the_image(image: Image) -> None:
    """The whole worker needs no home, no configuration and nothing writable but a temporary directory."""
    shown = image.run("demo", timeout=120)
    assert shown.returncode == 0, shown.stdout[-2000:] + shown.stderr[-2000:]


@pytest.mark.slow
@needs_root
@needs_setpriv
def test_the_image_finds_its_configuration_and_listens_where_a_container_must(image: Image) -> None:
    """Without a path and --config: program, file and servers are where orchestrators look for them."""
    shown = image.run("check", "--json", timeout=60)
    found = {each["key"]: each["text"] for each in json.loads(shown.stdout)["checks"]}
    assert "0.0.0.0:9470" in found["admin.listen"]
    assert image.variables()["DELIVERYD_RECEIPTS__LISTEN"] == "0.0.0.0:9471"
