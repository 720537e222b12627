"""What is shipped and how it is set up: wheel, locks, Makefile, and the rule that CI may skip nothing."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import deliveryd
from support.packages import build_wheel
from support.places import ROOT

DATABASES = ["sql", "postgresql", "mysql"]
EXTRAS = [*DATABASES, "apns", "aws", "google", "otlp"]
LOCKS = ["build", "dev", "runtime", "test", *EXTRAS]
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)", re.MULTILINE)


def locked(name: str) -> dict[str, str]:
    """The versions of a lock file by normalized package name."""
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    return {canonicalize_name(package): pinned for package, pinned in PINNED.findall(text)}


def hashed(name: str) -> dict[str, list[str]]:
    """The hashes of a lock file by normalized package name."""
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    parts = PINNED.split(text)[1:]
    return {
        canonicalize_name(package): sorted(re.findall(r"--hash=(\S+)", rest))
        for package, rest in zip(parts[::3], parts[2::3], strict=True)
    }


def project() -> dict[str, dict[str, Any]]:
    document: dict[str, dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return document


def in_group(name: str) -> Iterator[str]:
    """The requirements of a dependency group and of the groups that it includes."""
    for entry in project()["dependency-groups"][name]:
        if isinstance(entry, str):
            yield entry
        else:
            yield from in_group(entry["include-group"])


def unmet(requirements: Iterable[str], lock: dict[str, str]) -> list[str]:
    """The requirements that a lock leaves out or holds at a version they exclude."""
    parsed = [Requirement(line) for line in requirements]
    return [
        str(one) for one in parsed if not one.specifier.contains(lock.get(canonicalize_name(one.name), "0"))
    ]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as the Containerfile builds it."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def files_below(folder: Path) -> dict[str, bytes]:
    """The content of each file by its path in the folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.mark.slow
def test_the_wheel_holds_the_package_the_units_and_the_manual_page(wheel: Path) -> None:
    """Every file of the package, units below share/deliveryd, the page where man looks; nothing else."""
    expected = files_below(ROOT / "src")
    data = f"deliveryd-{deliveryd.__version__}.data/data/share"
    for name, content in files_below(ROOT / "systemd").items():
        expected[f"{data}/deliveryd/systemd/{name}"] = content
    expected[f"{data}/man/man1/deliveryd.1"] = (ROOT / "man" / "deliveryd.1").read_bytes()
    with zipfile.ZipFile(wheel) as archive:
        shipped = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    assert shipped == expected
    assert "deliveryd/py.typed" in shipped
    assert (
        shipped["deliveryd/commands/config/config.example.toml"]
        == (ROOT / "config.example.toml").read_bytes()
    )


def test_the_manual_page_is_what_the_command_line_says() -> None:
    """`make man` writes it again."""
    printed = "\n".join(runpy.run_path(str(ROOT / "man" / "generate.py"))["page"]()) + "\n"
    assert (ROOT / "man" / "deliveryd.1").read_text(encoding="utf-8") == printed


def test_the_image_is_built_from_all_that_the_wheel_needs() -> None:
    """What .dockerignore lets through covers every path that the build reads."""
    allowed = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())
    build = project()["tool"]["hatch"]["build"]["targets"]["wheel"]
    paths = [*build["packages"], *build["shared-data"], "config.example.toml", "README.md", "LICENSE"]
    assert {f"!{path.partition('/')[0]}" for path in paths} <= allowed


@pytest.mark.slow
def test_the_wheel_says_its_licence_its_python_and_its_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name.partition(".dist-info/")[2]: name for name in archive.namelist()}
        metadata = Parser().parsestr(archive.read(files["METADATA"]).decode())
        assert metadata["License-Expression"] == "Apache-2.0"
        assert metadata["Requires-Python"] == ">=3.11"
        assert "Apache License" in archive.read(files["licenses/LICENSE"]).decode()
        assert "deliveryd = deliveryd.__main__:main" in archive.read(files["entry_points.txt"]).decode()


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_a_hash_and_no_lock_names_an_address(name: str) -> None:
    text = (ROOT / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=[A-Za-z0-9])", text.split("\n", 2)[2])
    assert [entry.partition(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []
    assert "://" not in text
    assert "--index-url" not in text


def test_the_locks_meet_what_the_project_asks_for() -> None:
    asked = project()["project"]
    assert unmet(asked["dependencies"], locked("runtime")) == []
    for group in ("build", "test", "dev"):
        assert unmet(in_group(group), locked(group)) == []
    assert unmet(project()["build-system"]["requires"], locked("build")) == []


@pytest.mark.parametrize("extra", DATABASES)
def test_each_database_has_a_lock_that_is_installed_in_place_of_the_runtime_one(extra: str) -> None:
    """With the packages of the runtime lock at its versions, and the driver beside them."""
    lock, extras = locked(extra), project()["project"]["optional-dependencies"]
    assert {name: lock.get(name) for name in locked("runtime")} == locked("runtime")
    assert unmet([*extras["sql"], *extras[extra]], lock) == []


def test_no_driver_of_mysql_lets_a_server_read_files() -> None:
    """CVE-2025-62611 was fixed in aiomysql 0.3."""
    (driver,) = map(Requirement, project()["project"]["optional-dependencies"]["mysql"][1:])
    assert not driver.specifier.contains("0.2.0")
    assert driver.specifier.contains(locked("mysql")["aiomysql"])


@pytest.mark.parametrize("tested", ["dev", "test"])
@pytest.mark.parametrize("shipped", ["runtime", *EXTRAS])
def test_what_is_tested_is_what_is_shipped(shipped: str, tested: str) -> None:
    """The locks of tests and of development hold every package of the others: their versions and hashes."""
    for read in (locked, hashed):
        lock = read(tested)
        assert {name: lock.get(name) for name in read(shipped)} == read(shipped)


@pytest.mark.slow
def test_the_version_stands_in_one_place(wheel: Path) -> None:
    """The package says it; wheel and installation take it from there, and the changelog has a part for it."""
    assert "version" in project()["project"]["dynamic"]
    assert f"-{deliveryd.__version__}-" in wheel.name
    assert version("deliveryd") == deliveryd.__version__
    released = re.findall(
        r"^## (\S+) - \d{4}-\d\d-\d\d$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    assert released[0] == deliveryd.__version__


def test_nothing_that_only_development_needs_is_published() -> None:
    assert list(project()["project"]["optional-dependencies"]) == [*EXTRAS, "testing"]


def test_the_installed_packages_are_the_locked_ones() -> None:
    runtime = {name: pinned for name, pinned in locked("runtime").items() if name != "colorama"}
    assert {name: version(name) for name in runtime} == runtime


def make(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {
        name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}
    }
    return subprocess.run(
        ["make", *arguments], cwd=cwd, env=clean, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_plain_make_lists_every_target() -> None:
    listed = set(re.findall(r"^  make (\w+)", make(cwd=ROOT).stdout, re.MULTILINE))
    assert listed >= {"setup", "demo", "test", "lint", "types", "layers", "lock", "lockcheck", "ci"}


@pytest.mark.slow
def test_the_demo_installs_what_the_program_needs_and_no_more(tmp_path: Path) -> None:
    """In a fresh clone: the runtime lock and the builder, said in words before each long step."""
    for name in ("Makefile", "pyproject.toml", "locks"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    steps = make("--dry-run", "demo", cwd=tmp_path).stdout
    assert "--require-hashes -r locks/runtime.txt" in steps
    assert "-r locks/dev.txt" not in steps
    said = [
        steps.index(words)
        for words in ("Installing into .venv what deliveryd needs", "Starting the stand-in")
    ]
    assert said[0] < steps.index("-r locks/runtime.txt") < said[1] < steps.index("deliveryd demo")
    assert "--require-hashes -r locks/dev.txt" in make("--dry-run", "test", cwd=tmp_path).stdout


@pytest.mark.parametrize("name", ["Makefile", "Containerfile", "docs/how-to/install.md"])
def test_a_lock_is_installed_as_it_is(name: str) -> None:
    """Nothing is resolved: pip 23.2 refuses a lock once a newer release of `package[extra]` in it exists."""
    installs = re.findall(r"^.*--require-hashes.*$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
    assert installs
    assert [line for line in installs if "--no-deps --require-hashes" not in line] == []


@pytest.mark.slow
def test_an_old_python_is_refused_with_a_way_out(tmp_path: Path) -> None:
    """Someone whose python3 is too old reads which version is needed and how to name another."""
    for name in ("Makefile", "pyproject.toml", "locks"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, tmp_path / name)
    old = tmp_path / "python3"
    old.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.2" && exit 0\nexit 1\n', encoding="utf-8"
    )
    old.chmod(0o755)
    refused = make("setup", f"PYTHON={old}", cwd=tmp_path)
    assert refused.returncode != 0
    assert "Python 3.11 or newer; found Python 3.9.2" in refused.stderr
    assert "make setup PYTHON=" in refused.stderr
    assert not (tmp_path / ".venv").exists()


def copy_rules(folder: Path) -> None:
    """Put the configuration of these tests into a folder with others."""
    folder.joinpath("support").mkdir()
    for name in ("conftest.py", "support/memory.py"):
        shutil.copy2(ROOT / "tests" / name, folder / name)


@pytest.mark.slow
@pytest.mark.parametrize(("value", "status"), [("1", 1), ("", 0)])
def test_ci_fails_a_run_that_skips_and_says_why(tmp_path: Path, value: str, status: int) -> None:
    """A skipped test passes on a laptop, and fails in CI with its reason in the output."""
    copy_rules(tmp_path)
    case = "import pytest\ndef test_a(): pass\ndef test_b(): pytest.skip('no such tool')\n"
    (tmp_path / "test_case.py").write_text(case, encoding="utf-8")
    environment = {**os.environ, "DELIVERYD_NO_SKIPS": value}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-ra",
        "-p",
        "no:cacheprovider",
        f"--rootdir={tmp_path}",
    ]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == status
    assert "no such tool" in run.stdout
    assert ("DELIVERYD_NO_SKIPS is set" in run.stdout) == bool(value)


def test_the_interpreters_that_are_named_are_the_ones_that_are_tested() -> None:
    """The classifiers, what CI looks for, and the oldest that an installation accepts."""
    named = [
        each.removeprefix("Programming Language :: Python :: ")
        for each in project()["project"]["classifiers"]
    ]
    versions = [each for each in named if re.fullmatch(r"\d\.\d+", each)]
    (tested,) = re.findall(
        r"^readonly VERSIONS=\((.*)\)$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE
    )
    assert versions == tested.split()
    assert project()["project"]["requires-python"] == f">={versions[0]}"


def test_the_hooks_use_the_locked_tools_and_no_repository() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    assert re.findall(r"^ *- repo: (.*)$", hooks, re.MULTILINE) == ["local"]
    tools = re.findall(r"entry: \.venv/bin/([\w-]+)", hooks)
    assert len(tools) == hooks.count("entry:")
    assert {each.replace("lint-imports", "import-linter") for each in tools} <= set(locked("dev"))


@pytest.mark.slow
def test_a_test_outside_of_the_slow_tier_starts_no_process(tmp_path: Path) -> None:
    """The same test passes with the mark."""
    copy_rules(tmp_path)
    case = "import subprocess, pytest\ndef test_a(): subprocess.run(['true'], check=True)\n"
    case += "@pytest.mark.slow\ndef test_b(): subprocess.run(['true'], check=True)\n"
    (tmp_path / "test_case.py").write_text(case, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 failed, 1 passed" in run.stdout
    assert "subprocess.Popen in a test of the quick tier: mark the test with pytest.mark.slow" in run.stdout
