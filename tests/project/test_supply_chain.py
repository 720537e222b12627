"""What deliveryd is made of is known, and none of it is known to be flawed without an answer."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from support.supply_chain import ROOT, advisories, findings, packages, sbom

VEX = json.loads((ROOT / "locks" / "vex.json").read_text(encoding="utf-8"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Locks, list and bounds, to be changed."""
    shutil.copytree(ROOT / "locks", tmp_path / "locks")
    shutil.copy2(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def change(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.search(before, text)
    path.write_text(re.sub(before, after, text, count=1), encoding="utf-8")


def test_no_locked_package_and_no_lower_bound_is_known_to_be_flawed() -> None:
    assert list(findings(ROOT)) == []


def test_a_flawed_package_in_a_lock_is_found(copied: Path) -> None:
    change(copied / "locks" / "runtime.txt", r"starlette==\S+", "starlette==0.48.0")
    found = list(findings(copied))
    assert "runtime.txt: starlette 0.48.0: CVE-2025-62727, fixed in 0.49.1" in found
    assert all("starlette" in each for each in found)


def test_a_bound_that_lets_a_flawed_version_in_is_found(copied: Path) -> None:
    change(copied / "pyproject.toml", r"starlette>=[0-9.]+", "starlette>=0.47")
    assert any(
        each.startswith("pyproject.toml: starlette>=0.47 lets in CVE-2025-62727") for each in findings(copied)
    )


def test_a_flaw_without_a_fix_wants_an_answer_for_that_very_version(copied: Path) -> None:
    """The answer is about the version that somebody looked at, and about no other."""
    change(copied / "locks" / "runtime.txt", r"diskcache==\S+", "diskcache==5.6.4")
    assert "runtime.txt: diskcache 5.6.4: CVE-2025-69872, not in vex.json" in list(findings(copied))


def test_the_answers_name_tests_that_exist() -> None:
    """Whoever doubts that deliveryd isn't affected can run what shows it."""
    unfixed = {each.id for each in advisories(ROOT / "locks") if each.fixed is None}
    assert {each["vulnerability"]["name"] for each in VEX["statements"]} == unfixed
    for statement in VEX["statements"]:
        named = re.findall(r"(tests/[\w/]+\.py)::(\w+)", statement["impact_statement"])
        assert named
        for path, name in named:
            assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_the_sbom_lists_the_runtime_lock_and_who_asks_for_what() -> None:
    """Each component once, with its purl; httpx asks for httpcore; made twice it is the same."""
    bom = sbom(ROOT)
    held = packages(ROOT / "locks" / "runtime.txt")
    assert [each["purl"] for each in bom["components"]] == [f"pkg:pypi/{name}@{at}" for name, at, _ in held]
    asks = {each["ref"].rpartition("@")[0]: each["dependsOn"] for each in bom["dependencies"]}
    assert any(each.startswith("pkg:pypi/httpcore@") for each in asks["pkg:pypi/httpx"])
    assert any(each.startswith("pkg:pypi/starlette@") for each in asks["pkg:pypi/deliveryd"])
    assert json.dumps(sbom(ROOT)) == json.dumps(bom)
