"""docs/how-to/read-customer-data.md: its program runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.places import ROOT
from support.world import World, open_world

pytestmark = pytest.mark.slow

DOCUMENT = ROOT / "docs" / "how-to" / "read-customer-data.md"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


def test_the_program_of_the_document_runs(world: World) -> None:
    """Beside a configuration it prints each merchant with its name and what the service says about it."""
    (program,) = re.findall(
        r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    world.state.page_size = 2
    world.state.customers[17] = {"merchants": [{"id": number, "level": "gold"} for number in range(5)]}
    for number in range(5):
        world.state.add_entity("merchants", number, {"en": {"id": number, "marketName": f"Shop {number}"}})
    world.folder.joinpath("program.py").write_text(program, encoding="utf-8")
    words = [sys.executable, "-W", "error", "program.py"]
    done = subprocess.run(words, cwd=world.folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [f"{number} Shop {number} {{'level': 'gold'}}" for number in range(5)]
