"""Plain addresses are taken apart as httpx does it, which takes all others apart."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from deliveryd.http.target import _PLAIN, _any_target, plain_target

ODD = st.text(st.sampled_from("htps:/.-_~?#%&=@[]0192xn aZ\\\té"), max_size=30)


@pytest.mark.slow
@given(st.from_regex(_PLAIN, fullmatch=True) | ODD.map("http://h".__add__) | ODD)
@example("http://127.0.0.1:8080/a/b?c=d&e")
@example("https://a.example.com:443//x?")
@example("http://a.example.com:65536/")
@example("http://xn--nxasmq6b/")
@example("http://xn--a-/")
@example("http://1.2.3.256/")
@example("http://010.2.3.4/")
@example("http://a..b/")
@example("http://-/")
def test_an_address_that_counts_as_plain_has_the_parts_that_httpx_finds(url: str) -> None:
    """What the short way makes of an address is what the long way makes of it."""
    plain = plain_target(url)
    assert plain is None or plain == _any_target(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8080/sms", "https://api.example.com/v1/messages?region=eu", "https://localhost"]
)
def test_usual_addresses_are_plain(url: str) -> None:
    """The short way is worth something only if the addresses of providers and services go it."""
    assert plain_target(url) is not None


@pytest.mark.parametrize(
    "url",
    [
        "http://h/a/../b",
        "http://H/",
        "http://h/ä",
        "http://u:p@h/",
        "http://h/%41",
        "http://[::1]/",
        "http://h/#",
    ],
)
def test_an_address_that_may_need_normalizing_goes_the_long_way(url: str) -> None:
    """Nothing is said of an address that could be spelled in another way too."""
    assert plain_target(url) is None
