"""The generated reference is what the code says, and the documents are easy to find one's way in."""

from __future__ import annotations

import re
import runpy
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deliveryd.sandbox.impersonation import SigningForm, body_values, values_of
from support.places import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LONGEST_PAGE = 300
LINK = re.compile(r"\]\(([^)#\s]+\.md)[^)]*\)")

GENERATOR: dict[str, Any] = runpy.run_path(str(DOCS / "generate_reference.py"))


def links(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link in LINK.findall(page.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("name", GENERATOR["PAGES"])
def test_a_generated_page_is_what_the_generator_writes(name: str) -> None:
    """Fails after a change of a model, command, event or metric: run python docs/generate_reference.py."""
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == GENERATOR["page"](name)


@pytest.mark.slow
def test_every_key_and_option_has_a_meaning() -> None:
    """No row of a generated table ends with an empty cell."""
    for name in GENERATOR["PAGES"]:
        assert "|  |\n" not in GENERATOR["page"](name), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_no_page_is_too_long(page: Path) -> None:
    """At most 300 lines."""
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LONGEST_PAGE


def test_every_placeholder_of_the_sandbox_is_on_the_page_of_presets() -> None:
    now = datetime.now(UTC)
    values = {*values_of("1", "1", "r", now), *body_values(SigningForm("mailgun"), "secret", now)}
    text = (DOCS / "reference" / "presets.md").read_text(encoding="utf-8")
    assert [name for name in sorted(values) if f"`{{{name}}}`" not in text] == []


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """Once each; a page that is left out would be built and found by nobody."""
    site = tomllib.loads((DOCS.parent / "zensical.toml").read_text(encoding="utf-8"))["project"]
    listed = [DOCS / page for page in pages_of(site["nav"])]
    assert sorted(listed) == PAGES


def pages_of(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            yield from [value] if isinstance(value, str) else pages_of(value)


def test_every_page_can_be_reached_from_the_first_one() -> None:
    """Following links alone, without the search."""
    found: set[Path] = set()
    open_pages = {DOCS / "index.md"}
    while open_pages:
        found |= open_pages
        open_pages = {link for page in open_pages for link in links(page) if DOCS in link.parents} - found
    assert set(PAGES) - found == set()


@pytest.mark.parametrize("first", [DOCS / "index.md", DOCS.parent / "README.md"], ids=["site", "README"])
def test_every_page_for_the_night_is_two_clicks_away(first: Path) -> None:
    """Whoever is woken up reaches the page from the first page of the site, and from the README."""
    near = links(first)
    near |= {link for page in near for link in links(page)}
    assert set((DOCS / "how-to" / "night").glob("*.md")) - near == set()
