"""The page of each preset: its configuration can be copied, and `check` accepts it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deliveryd.channels.presets.catalogue import Catalogue
from deliveryd.sandbox.impersonation import private_key
from support.issued_keys import issued
from support.places import ROOT
from support.terminal import command

PAGES = ROOT / "docs" / "reference" / "providers"
CREDENTIALS = "/run/credentials/deliveryd.service"
SECRET = "whsec_c2FuZGJveC1zZWNyZXQtb2YtMzItY2hhcmFjdGVycyE="


def shown(name: str) -> str:
    """The configuration on a page."""
    (text,) = re.findall(
        r"^```toml\n(.*?)^```$", (PAGES / f"{name}.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return str(text)


def test_every_preset_has_a_page() -> None:
    assert sorted(page.stem for page in PAGES.glob("*.md")) == Catalogue().names()


@pytest.mark.parametrize("name", Catalogue().names())
def test_the_configuration_of_a_page_is_accepted(name: str, tmp_path: Path) -> None:
    """As it stands; its secrets and its journal are files of this machine."""
    text = shown(name)
    for file in re.findall(rf"{CREDENTIALS}/([\w-]+)", text):
        (tmp_path / file).touch(mode=0o600)
        secret = private_key() if file.endswith("private_key") else SECRET
        (tmp_path / file).write_text(issued(file) or secret, encoding="utf-8")
    config = tmp_path / "config.toml"
    config.write_text(
        text.replace(CREDENTIALS, str(tmp_path)) + f'\n[journal]\nurl = "sqlite:///{tmp_path}/journal.db"\n',
        encoding="utf-8",
    )
    checked = command("check", "--offline", "--config", config)
    assert checked.status == 0, checked
