"""The units of the configuration: what is read, what is refused in which words, and files with secrets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from deliveryd.model import format_duration
from deliveryd.options.units import (
    Duration,
    FilePath,
    Rate,
    RateLimit,
    SecretPath,
    Size,
    format_rate,
    format_size,
    parse_duration,
    parse_rate,
    parse_size,
)
from deliveryd.runtime.secret_file import SecretFile

NUMBERS: list[object] = [0, 1, 2.5, float("inf"), float("nan"), True, None, [], {}]


class Sample(BaseModel):
    """A table with one value of each kind."""

    duration: Duration = 10.0
    size: Size = 1024
    rate: RateLimit = Rate(50, 1.0)
    path: FilePath = Path("/a")
    secret: SecretPath = SecretFile(Path("/b"))


@pytest.fixture
def secret(tmp_path: Path) -> SecretFile:
    """A good secret file."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_bytes(b"s3cret\n")
    return SecretFile(path)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("10s", 10), ("5m", 300), ("2h", 7200), ("7d", 604800), ("1.5 s", 1.5), (" 0s ", 0)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [*NUMBERS, "", "10", "s", "10 sec", "10S", "-1s", "1e3s", "1,5s", "1s2s", "٣s", "9" * 400 + "s"]
)
def test_what_is_no_duration_is_refused(value: object) -> None:
    """A bare number too: nobody should have to guess its unit."""
    with pytest.raises(ValueError, match="units ms, s, m, h, d"):
        parse_duration(value)


def test_a_duration_ends_within_a_lifetime() -> None:
    """No later sum can run over."""
    with pytest.raises(ValueError, match="100 years"):
        parse_duration("36501d")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0B", 0), ("1kB", 1000), ("64KiB", 65536), ("256MiB", 268435456), ("1.5GiB", 1610612736)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", [*NUMBERS, "", "10", "10mb", "MiB", "-1B", "1 B B", "9" * 400 + "B"])
def test_what_is_no_size_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="units B, KiB, MiB, GiB, kB, MB, GB"):
        parse_size(value)


def test_a_size_fits_a_disk() -> None:
    with pytest.raises(ValueError, match="1024 TiB"):
        parse_size("2000000GiB")


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50/s", Rate(50, 1.0)),
        (" 1000 / m ", Rate(1000, 60.0)),
        ("1/ms", Rate(1, 0.001)),
        ("5/d", Rate(5, 86400.0)),
        ("50 parts/s", Rate(50, 1.0, in_parts=True)),
        ("1 part/s", Rate(1, 1.0, in_parts=True)),
        ("50 part/s", Rate(50, 1.0, in_parts=True)),
        ("3000 parts / m", Rate(3000, 60.0, in_parts=True)),
    ],
)
def test_rates(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "value",
    [
        *NUMBERS,
        "",
        "50",
        "0/s",
        "000/s",
        "-1/s",
        "5/sec",
        "5/2s",
        "1.5/s",
        "5/s/s",
        "5 pts/s",
        "9" * 400 + "/s",
    ],
)
def test_what_is_no_rate_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="50/s"):
        parse_rate(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0ms"),
        (0.25, "250ms"),
        (1, "1s"),
        (90, "90s"),
        (300, "5m"),
        (86400, "1d"),
        (1.2345678, "1234.5678ms"),
    ],
)
def test_durations_are_written_in_the_largest_unit_that_divides_them(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(0, 3e9))
def test_a_duration_is_read_as_it_was_written(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-8, abs=1e-9)


@given(st.integers(0, 1 << 40))
def test_a_size_is_read_as_it_was_written(size: int) -> None:
    assert parse_size(format_size(size)) == size


@given(st.integers(1, 1_000_000), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_rate_is_read_as_it_was_written(permits: int, unit: str) -> None:
    for parts in ("", " part" if permits == 1 else " parts"):
        assert format_rate(parse_rate(f"{permits}{parts}/{unit}")) == f"{permits}{parts}/{unit}"


def test_a_model_is_written_as_the_file_says_it_and_shows_no_secret(secret: SecretFile) -> None:
    sample = Sample(secret=secret)
    assert sample.model_dump() == {
        "duration": "10s",
        "size": "1KiB",
        "rate": "50/s",
        "path": "/a",
        "secret": str(secret.path),
    }
    assert "s3cret" not in f"{sample!r} {sample} {secret} {sample.model_dump_json()}"


@pytest.mark.parametrize(("value", "path"), [("x/y", "/etc/d/x/y"), ("/x", "/x"), ("../x", "/etc/d/../x")])
def test_relative_paths_are_relative_to_the_folder_of_the_file(value: str, path: str) -> None:
    sample = Sample.model_validate({"path": value, "secret": value}, context={"base_dir": Path("/etc/d")})
    assert (sample.path, sample.secret) == (Path(path), SecretFile(Path(path)))


@pytest.mark.parametrize("value", ["", "a\0b", "a\nb", 1, [], None])
def test_what_is_no_path_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="expected a path"):
        Sample.model_validate({"path": value})
    with pytest.raises(ValidationError, match="expected a path"):
        Sample.model_validate({"secret": value})


def test_a_secret_is_read_without_the_white_space_around_it(secret: SecretFile) -> None:
    assert secret.read() == "s3cret"
    assert secret.problem() is None


def test_the_lines_of_a_key_in_pem_become_one(secret: SecretFile) -> None:
    secret.path.write_bytes(
        b"-----BEGIN PRIVATE KEY-----\r\nMIIE+/w=\r\nAAAA\r\n-----END PRIVATE KEY-----\r\n"
    )
    assert secret.read() == "-----BEGIN PRIVATE KEY-----MIIE+/w=AAAA-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("contents", "problem"),
    [
        (b"", "is empty"),
        (b"-----BEGIN A-----\nAAAA\n-----END B-----\n", "contains more than one line, or control characters"),
        (b" \n", "is empty"),
        (b"s3cret\nmore\n", "contains more than one line, or control characters"),
        (b"s3cret\0", "contains more than one line, or control characters"),
        (b"\xffs3cret", "is not UTF-8 text"),
    ],
)
def test_a_secret_that_cannot_be_used_is_named_and_not_shown(
    secret: SecretFile, contents: bytes, problem: str
) -> None:
    secret.path.write_bytes(contents)
    assert secret.problem() == f"{secret.path} {problem}"


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o666])
def test_a_secret_that_everybody_can_read_or_change_is_refused(secret: SecretFile, mode: int) -> None:
    """And the operator is told what to do."""
    secret.path.chmod(mode)
    assert secret.problem() == f"{secret.path} may be read by all users; run: chmod o-rwx {secret.path}"
    secret.path.chmod(0o640)
    assert secret.problem() is None


def test_a_secret_that_is_not_there_is_named(tmp_path: Path) -> None:
    absent = SecretFile(tmp_path / "absent")
    assert absent.problem() == f"{absent.path} can't be read: No such file or directory"
    assert SecretFile(tmp_path).problem() == f"{tmp_path} can't be read: Is a directory"


def test_secrets_are_equal_by_their_paths() -> None:
    assert SecretFile(Path("/a")) == SecretFile(Path("/a")) != SecretFile(Path("/b"))
    assert len({SecretFile(Path("/a")), SecretFile(Path("/a"))}) == 1
