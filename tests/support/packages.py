"""Wheels, and environments of their own that hold what a wheel needs and no more."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def build_wheel(project: Path, out: Path) -> Path:
    """Build the wheel of the project in a folder; it is the only one in `out` afterwards."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


class Environment:
    """A virtual environment without pip, and without the packages and the paths of this one."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        self.python = folder / "bin" / "python"
        (self.site,) = folder.glob("lib/python*/site-packages")
        self._present: set[str] = set()

    def install(self, wheel: Path, *extras: str) -> None:
        """Install a wheel by pip, and link what it and its extras require from this environment."""
        self._pip("install", "--no-deps", "--no-index", "--no-compile", str(wheel))
        name, version, *_ = wheel.name.split("-")
        self._present.add(canonicalize_name(name))
        installed = Distribution.at(self.site / f"{name}-{version}.dist-info")
        self._link_requirements(installed, frozenset(extras))

    def check(self) -> None:
        """Have pip check that every requirement is met."""
        self._pip("check")

    def run(self, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python, without PYTHONPATH."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [self.python, *arguments], cwd=cwd, env=environ, capture_output=True, text=True, check=False
        )

    def _pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--quiet", f"--python={self.python}", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _link_requirements(self, of: Distribution, extras: frozenset[str]) -> None:
        for requirement in map(Requirement, of.requires or ()):
            name = canonicalize_name(requirement.name)
            if name in self._present or not _applies(requirement, extras):
                continue
            self._present.add(name)
            found = distribution(name)
            for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
                if not (self.site / top).exists():
                    (self.site / top).symlink_to(Path(str(found.locate_file(top))))
            self._link_requirements(found, frozenset(requirement.extras))


def _applies(requirement: Requirement, extras: frozenset[str]) -> bool:
    """Whether a requirement holds here, with these extras of the package that states it."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras | {""})
