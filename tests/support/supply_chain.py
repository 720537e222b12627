"""What deliveryd is made of: `audit` holds the locks against locks/advisories.toml, `sbom` writes their list.

    python tests/support/supply_chain.py audit
    python tests/support/supply_chain.py sbom dist

Neither asks anybody anything. The SBOM (CycloneDX 1.6) is the same for the same locks, to the byte.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from deliveryd import __version__

ROOT = Path(__file__).parent.parent.parent
ADVISORIES, VEX = "advisories.toml", "vex.json"
STALE = 45
"""Days after which a list that nobody looked through is spoken of."""

_PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)")
_VIA = re.compile(r"^    # (?:via |  )([A-Za-z0-9._-]+)")
_SPACE = uuid.UUID("9e6f0b7e-4b8f-5f0e-8f6d-6a7c9d8e1f20")


class Advisory(NamedTuple):
    """A flaw of a package; `fixed` is the first version without it, None: there is none."""

    id: str
    package: str
    fixed: Version | None


class Package(NamedTuple):
    """A locked package, and who asks for it."""

    name: str
    version: str
    asked_by: tuple[str, ...]


def advisories(locks: Path) -> Iterator[Advisory]:
    """What the list says."""
    for entry in _toml(locks / ADVISORIES)["advisory"]:
        fixed = Version(entry["fixed"]) if "fixed" in entry else None
        yield Advisory(entry["id"], canonicalize_name(entry["package"]), fixed)


def packages(lock: Path) -> list[Package]:
    """The packages of a lock, in its order."""
    found: list[Package] = []
    for line in lock.read_text(encoding="utf-8").splitlines():
        if pinned := _PINNED.match(line):
            found.append(Package(canonicalize_name(pinned[1]), pinned[2], ()))
        elif found and (via := _VIA.match(line)):
            found[-1] = found[-1]._replace(asked_by=(*found[-1].asked_by, canonicalize_name(via[1])))
    return found


def findings(root: Path) -> Iterator[str]:
    """What is known to be flawed in what the locks hold or the project's bounds let in."""
    locks = root / "locks"
    known = list(advisories(locks))
    answered = _answered(locks)
    for lock in sorted(locks.glob("*.txt")):
        for package in packages(lock):
            held = f"{lock.name}: {package.name} {package.version}"
            for advisory in (each for each in known if each.package == package.name):
                if advisory.fixed is not None:
                    if Version(package.version) < advisory.fixed:
                        yield f"{held}: {advisory.id}, fixed in {advisory.fixed}"
                elif (advisory.id, package.name, package.version) not in answered:
                    yield f"{held}: {advisory.id}, not in {VEX}"
    yield from _loose_bounds(root, known)


def _answered(locks: Path) -> set[tuple[str, str, str]]:
    """Flaws that don't affect deliveryd, with the package's version that this was said of."""
    found = set()
    for statement in json.loads((locks / VEX).read_text(encoding="utf-8"))["statements"]:
        if statement["status"] == "not_affected":
            for product in statement["products"]:
                for part in product["subcomponents"]:
                    name, _, version = part["@id"].removeprefix("pkg:pypi/").partition("@")
                    found.add((statement["vulnerability"]["name"], name, version))
    return found


def _loose_bounds(root: Path, known: list[Advisory]) -> Iterator[str]:
    project = _toml(root / "pyproject.toml")["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    for requirement in map(Requirement, [*project["dependencies"], *extras]):
        least = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        for advisory in (each for each in known if each.package == canonicalize_name(requirement.name)):
            if advisory.fixed is not None and (not least or max(least) < advisory.fixed):
                yield f"pyproject.toml: {requirement} lets in {advisory.id}, fixed in {advisory.fixed}"


def sbom(root: Path) -> Mapping[str, Any]:
    """What the image and an installation hold, as CycloneDX 1.6."""
    project = _toml(root / "pyproject.toml")["project"]
    held = packages(root / "locks" / "runtime.txt")
    own = _component(project["name"], __version__, "application")
    references = {package.name: _purl(package.name, package.version) for package in held}
    references[project["name"]] = own["bom-ref"]
    asks: dict[str, list[str]] = {reference: [] for reference in references.values()}
    for package in held:
        for asking in package.asked_by:
            asks[references[asking]].append(references[package.name])
    body = {
        "metadata": {"component": own | {"licenses": [{"license": {"id": project["license"]}}]}},
        "components": [_component(package.name, package.version, "library") for package in held],
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in sorted(asks.items())],
    }
    serial = f"urn:uuid:{uuid.uuid5(_SPACE, json.dumps(body, sort_keys=True))}"
    return {"bomFormat": "CycloneDX", "specVersion": "1.6", "serialNumber": serial, "version": 1} | body


def _component(name: str, version: str, kind: str) -> dict[str, Any]:
    purl = _purl(name, version)
    return {"type": kind, "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _audit() -> int:
    found = list(findings(ROOT))
    reviewed: datetime.date = _toml(ROOT / "locks" / ADVISORIES)["reviewed"]
    age = (datetime.datetime.now(datetime.UTC).date() - reviewed).days
    old = f"; that is {age} days ago: look through them again" if age > STALE else ""
    known = len(list(advisories(ROOT / "locks")))
    print(*found, f"{len(found)} flawed by {known} advisories, looked through on {reviewed}{old}", sep="\n")
    return 1 if found else 0


def _write(folder: Path) -> int:
    bom = sbom(ROOT)
    own = bom["metadata"]["component"]
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{own['name']}-{own['version']}"
    text = f"{json.dumps(bom, indent=2)}\n"
    (folder / f"{name}.cdx.json").write_text(text, encoding="utf-8")
    (folder / f"{name}.vex.json").write_bytes((ROOT / "locks" / VEX).read_bytes())
    print(f"{folder / name}.cdx.json: {len(bom['components'])} components; beside it {name}.vex.json")
    return 0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["audit"]:
            sys.exit(_audit())
        case ["sbom", folder]:
            sys.exit(_write(Path(folder)))
        case _:
            sys.exit(__doc__)
