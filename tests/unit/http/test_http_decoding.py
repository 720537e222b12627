"""Compressed answers are bounded by what they stand for, and by what they are."""

from __future__ import annotations

import gzip
import zlib

import pytest

from deliveryd.http.content_coding import (
    LARGER_AT_MOST,
    MOST_GZIP_MEMBERS,
    PIECE,
    Decoder,
    Layers,
    Undecodable,
    decoder_of,
)


def squeezed(size: int) -> bytes:
    """A gzip body that stands for so many bytes."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(size >> 20)) + packer.flush()


def all_of(decoder: Decoder | Layers, data: bytes) -> bytes:
    return b"".join(decoder.decode(data))


def test_a_body_that_stands_for_far_more_is_left_at_its_bound() -> None:
    """64 MiB in 64 kB: one byte more than the bound comes out, so that whoever reads it knows."""
    bomb = squeezed(64 << 20)
    assert len(bomb) < 100_000
    decoder = Decoder("gzip", 1000)
    assert len(all_of(decoder, bomb[:5000])) == 1001
    assert all_of(decoder, bomb[5000:]) == b""


@pytest.mark.parametrize("size", [1, 7, 1000, 1 << 20])
def test_a_body_comes_out_whole_in_small_pieces(size: int) -> None:
    """However it came in, also where a few bytes of it stand for many pieces."""
    text = b"ab" * 1000 + bytes(3 * PIECE) + bytes(range(256)) * 100
    for encoding, body in (("gzip", gzip.compress(text)), ("deflate", zlib.compress(text, 9))):
        decoder = Decoder(encoding, len(text))
        came = [piece for at in range(0, len(body), size) for piece in decoder.decode(body[at : at + size])]
        decoder.end()
        assert b"".join(came) == text
        assert max(map(len, came)) <= PIECE


def test_a_body_without_end_that_stands_for_nothing_is_ended() -> None:
    """Empty blocks, of which there can be any number."""
    empty = b"\x00\x00\x00\xff\xff" * 1000
    decoder = Decoder("gzip", 1000)
    all_of(decoder, gzip.compress(b"")[:10])
    for _ in range((1000 + LARGER_AT_MOST) // len(empty)):
        assert all_of(decoder, empty) == b""
    with pytest.raises(Undecodable, match="the compressed answer is larger than 1000 bytes"):
        all_of(decoder, empty)


def test_members_are_counted() -> None:
    member = gzip.compress(b"")
    decoder = Decoder("gzip", 1 << 20)
    assert all_of(decoder, member * MOST_GZIP_MEMBERS) == b""
    decoder.end()
    with pytest.raises(Undecodable, match="followed by more data"):
        all_of(decoder, member)


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, br", "gzip, gzip, br", "gzip," * 1000])
def test_what_can_not_be_read_is_named(encoding: str) -> None:
    with pytest.raises(Undecodable, match=r"^the answer is encoded as '.{0,40}', which can't be read$"):
        all_of(decoder_of(encoding, 1000) or pytest.fail("no decoder"), b"\x0b\x01\x80ok\x03")


@pytest.mark.parametrize("encoding", ["", "identity", "UTF-8", "none", "x" * 1000, "identity, binary"])
def test_what_is_no_encoding_says_nothing(encoding: str) -> None:
    assert decoder_of(encoding, 1000) is None


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip", "deflate"])
def test_a_text_that_claims_to_be_encoded_is_one(encoding: str) -> None:
    """Proxies decompress a body and leave its header as it was."""
    decoder = Decoder(encoding, 1000)
    assert all_of(decoder, '{"ok": "\u00e9"}'.encode()) == '{"ok": "\u00e9"}'.encode()
    decoder.end()


@pytest.mark.parametrize("text", [b'{"ok": 1}', b'[{"id": 1}]', b"{}", b'{\n "ok": 1}'])
def test_a_text_that_claims_to_be_deflated_may_come_in_pieces(text: bytes) -> None:
    """A byte at a time as well."""
    decoder = Decoder("deflate", 1000)
    assert b"".join(piece for byte in text for piece in decoder.decode(bytes([byte]))) == text
    decoder.end()


@pytest.mark.parametrize("text", [b'{"ok": 1}', b"\xef\xbb\xbf{}", "\u0800".encode(), b"[1]", b"x"])
def test_a_deflated_text_is_never_taken_for_json(text: bytes) -> None:
    """Without the header that it should have, and in one block or a stored one."""
    for level in (0, 1, 9):
        packer = zlib.compressobj(level, zlib.DEFLATED, -15)
        decoder = Decoder("deflate", 1000)
        assert all_of(decoder, packer.compress(text) + packer.flush()) == text
        decoder.end()


GZIP = gzip.compress(b"ok")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip, gzip", gzip.compress(GZIP)),
        ("gzip, gzip", GZIP),
        ("gzip, deflate", zlib.compress(GZIP)),
        ("deflate, gzip", gzip.compress(zlib.compress(b"ok"))),
        ("gzip, identity", GZIP),
        ("gzip;q=1.0", GZIP),
        ("application/x-gzip", GZIP),
        ('"gzip"', GZIP),
    ],
    ids=["twice", "said twice", "deflate last", "gzip last", "identity", "weight", "x-gzip", "quoted"],
)
def test_codings_are_undone_from_the_last_one(encoding: str, body: bytes) -> None:
    """RFC 9110 8.4; also if a second server names it again, or it is named with more."""
    decoder = decoder_of(encoding, 1000)
    assert decoder is not None
    assert b"".join(piece for byte in body for piece in decoder.decode(bytes([byte]))) == b"ok"
    decoder.end()


def test_a_text_that_claims_to_be_encoded_is_whole() -> None:
    decoder = Decoder("br", 1000)
    all_of(decoder, b"\xc3")
    with pytest.raises(Undecodable):
        decoder.end()
