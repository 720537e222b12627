"""`deliveryd config`: the configuration file as text."""

from __future__ import annotations

from pathlib import Path

from support.places import ROOT
from support.terminal import command


def test_the_example_is_printed_as_it_is() -> None:
    """Byte for byte config.example.toml, with nothing on standard error."""
    example = (ROOT / "config.example.toml").read_text(encoding="utf-8")
    assert command("config", "example") == (0, example, "")


def test_the_example_is_a_valid_configuration(tmp_path: Path) -> None:
    """`check` finds no error in what `config example` prints."""
    file = tmp_path / "config.toml"
    file.write_text(command("config", "example").out, encoding="utf-8")
    answered = command("check", "--offline", "--config", file)
    assert (answered.status, answered.err) == (0, "")
