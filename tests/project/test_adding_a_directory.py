"""The document about directories of one's own: its source is installed, configured and asked as it says."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from deliveryd.config import load
from deliveryd.directory.base import find_customer
from deliveryd.errors import DirectoryUnavailable
from deliveryd.model import Customer
from deliveryd.testing.gateway import Reply, open_gateway
from deliveryd.worker.outside import open_directory
from support.directories import importable
from support.documents import blocks_of, page

pytestmark = pytest.mark.anyio

DOCUMENT = page("write-a-directory.md")
SOURCE = blocks_of(DOCUMENT, "python")[0]
PACKAGE, CONFIG = blocks_of(DOCUMENT, "toml")


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[None]:
    """The package, as an installer would leave it."""
    project = tomllib.loads(PACKAGE)["project"]
    ((name, target),) = project["entry-points"]["deliveryd.customers"].items()
    info = tmp_path / f"{project['name']}-{project['version']}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 1.0\n")
    info.joinpath("entry_points.txt").write_text(f"[deliveryd.customers]\n{name} = {target}\n")
    module = target.partition(":")[0]
    (tmp_path / f"{module}.py").write_text(SOURCE)
    with importable(tmp_path):
        yield
    del sys.modules[module]


async def test_the_source_of_the_document_answers(installed: None, tmp_path: Path) -> None:
    """By the configuration that is shown, against a server that speaks as it is said."""
    async with open_gateway() as gateway:
        gateway.script += [Reply(200, b'{"7": {"name": "Ann"}}'), Reply(500), Reply(200, b"{}")]
        path = tmp_path / "config.toml"
        path.write_text(CONFIG.replace("https://lighthouse.example.com", gateway.url), encoding="utf-8")
        directory = await open_directory(load(path, {}))
        assert await find_customer(directory, 7) == Customer(7, {"name": "Ann"})
        assert gateway.json() == {"tenant": "linden", "ids": [7]}
        with pytest.raises(DirectoryUnavailable, match="Lighthouse answered 500"):
            await find_customer(directory, 8)
        assert await find_customer(directory, 8) is None
        assert len(gateway.seen) == 3
        assert await directory.probe() is None
        await directory.aclose()
