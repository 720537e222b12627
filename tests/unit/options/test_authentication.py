"""How requests prove who sends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from deliveryd.options.authentication import AuthOptions
from deliveryd.options.credentials import file_headers


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text("s3cret\n")
    path.chmod(0o600)
    return path


def test_nothing_configured_sends_nothing() -> None:
    """The interface asks for no authentication, so there is none by default."""
    assert list(file_headers(AuthOptions())) == []


def test_each_way_is_one_header(secret: Path) -> None:
    """A token, a user with a password, or any header; the secret without the line break of its file."""
    ways: dict[str, dict[str, Any]] = {
        "Bearer s3cret": {"token_file": secret},
        "Basic YWRhOnMzY3JldA==": {"username": "ada", "password_file": secret},
    }
    for value, options in ways.items():
        assert list(file_headers(AuthOptions(**options))) == [(b"authorization", value.encode())]
    assert list(file_headers(AuthOptions(header="X-Api-Key", value_file=secret))) == [
        (b"x-api-key", b"s3cret")
    ]


def test_basic_authentication_is_utf8(secret: Path) -> None:
    """Names and passwords beyond ASCII are fine where they are encoded anyway (RFC 7617)."""
    secret.write_text("пароль")
    [(_, value)] = file_headers(AuthOptions(username="Ada", password_file=secret))
    assert value == b"Basic QWRhOtC/0LDRgNC+0LvRjA=="


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"username": "ada"}, "must be given together"),
        ({"password_file": "S"}, "must be given together"),
        ({"header": "x-key"}, "must be given together"),
        ({"token_file": "S", "username": "ada", "password_file": "S"}, "give one of"),
        ({"token_file": "S", "header": "x", "value_file": "S"}, "give one of"),
        ({"header": "x key", "value_file": "S"}, "isn't a name of"),
        ({"header": "x\r\ny", "value_file": "S"}, "isn't a name of"),
        ({"header": "Host", "value_file": "S"}, "written by the client itself"),
        ({"header": "content-length", "value_file": "S"}, "written by the client itself"),
        ({"username": "ada:x", "password_file": "S"}, "must not contain a colon"),
        ({"token": "s3cret"}, "Extra inputs"),
    ],
)
def test_what_makes_no_sense_is_told(options: dict[str, str], problem: str, secret: Path) -> None:
    """Mistakes come out when the configuration is read, and name no secret."""
    given = {name: str(secret) if value == "S" else value for name, value in options.items()}
    with pytest.raises(ValidationError, match=problem):
        AuthOptions(**given)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("a\nb", "more than one line"),
        ("ключ", "only ASCII"),
        ("a\x00b", "control characters"),
    ],
)
def test_a_secret_that_no_header_can_carry_is_told(secret: Path, content: str, problem: str) -> None:
    """A file that can't be used is named, what stands in it isn't."""
    secret.write_text(content)
    for options in ({"token_file": secret}, {"header": "x-key", "value_file": secret}):
        with pytest.raises(ValueError, match=problem) as caught:
            file_headers(AuthOptions(**options))
        assert str(secret) in str(caught.value)
        assert content not in str(caught.value) or not content


def test_secrets_are_read_when_they_are_needed(secret: Path) -> None:
    """A file that was replaced counts from the next reading on; a copy of the options shows no secret."""
    options = AuthOptions(token_file=secret)
    assert "s3cret" not in repr(options)
    assert "s3cret" not in options.model_dump_json()
    secret.write_text("n3w")
    assert list(file_headers(options)) == [(b"authorization", b"Bearer n3w")]
    secret.unlink()
    with pytest.raises(ValueError, match="can't be read"):
        file_headers(options)
