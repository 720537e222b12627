"""`deliveryd customers`: what a person or a program at the terminal gets, from a sandbox over sockets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deliveryd.commands.customers.customers import UNKNOWN_CUSTOMER
from deliveryd.sandbox.faults import FaultAnswer, Pass
from deliveryd.service.wire import GROUPS
from support.shops import CUSTOMER, fill, lines, shops
from support.terminal import command
from support.world import World, open_world


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from open_world(tmp_path)


def read_all(world: World, *options: object) -> Any:
    return command("customers", "all", CUSTOMER, "--config", world.config, *options)


# everything


@pytest.mark.slow
def test_ten_thousand_entities_over_hundreds_of_pages(world: World) -> None:
    """All there, once, in order, in both formats; the sandbox's tokens hold `&=%+/ ü`."""
    expected = fill(world.state, 10_000)
    written = read_all(world, "--format", "jsonl")
    assert (written.status, written.err) == (0, "")
    assert [(line["group"], line["id"]) for line in lines(written.out)] == expected
    assert world.state.requests["customers"] == 1 + 2 * (1667 // 30) + 2 * (1666 // 30)
    whole = read_all(world)
    assert (whole.status, whole.err) == (0, "")
    assert [(group, entity["id"]) for group, listed in whole.data.items() for entity in listed] == expected
    assert all("group" not in entity for entity in whole.data["offers"])


def test_only_the_groups_that_are_asked_for(world: World) -> None:
    """In the interface's order, also empty ones; language and flags go with each request."""
    fill(world.state, 60, page_size=4)
    written = read_all(
        world, "--include", "rewards", "--include", "offers", "--include", "rewards", "--language", "en"
    )
    assert {group: len(listed) for group, listed in written.data.items()} == {"offers": 10, "rewards": 10}
    assert list(written.data) == ["offers", "rewards"]
    assert all("merchants" not in seen.target and "language=en" in seen.target for seen in world.state.seen)
    world.state.customers[CUSTOMER] = {}
    assert read_all(world, "--include", "regions").data == {"regions": []}
    assert read_all(world, "--include", "regions", "--format", "jsonl").out == ""


def test_an_entitys_own_fields_stay_beside_ours(world: World) -> None:
    """Fields that have a name of ours are written as `entity.NAME`; numbers and texts as they came."""
    shops(world, 1, group="mine", config=[1], note="\x9b31m\u202e \u2028 ok", rate=1.25, points=2**70)
    [line] = lines(read_all(world, "--include", "merchants", "--with-config", "--language", "en",
                            "--format", "jsonl").out)  # fmt: skip
    assert (line["group"], line["entity.group"], line["entity.config"]) == ("merchants", "mine", [1])
    assert line["config"]["marketName"] == "Shop 1"
    assert (line["note"], line["rate"], line["points"]) == ("\x9b31m\u202e \u2028 ok", 1.25, 2**70)


def test_nothing_in_the_output_steers_a_terminal(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What JSON wouldn't escape, and a terminal obeys, is escaped; the table shows it harmlessly."""
    monkeypatch.setenv("COLUMNS", "300")
    shops(world, 1, note="\x1b[31m\x9b31m\u202e\x7f")
    world.state.add_entity(
        "merchants", 1, {"en": {"marketName": "\x1b]0;x\x07Evil\u202e\r\n[red]Shop\x9b2J"}}
    )
    out = ""
    for form in ("json", "jsonl", "table"):
        out = read_all(world, "--include", "merchants", "--language", "en", "--format", form).out
        assert not set(out) & set("\x1b\x9b\x07\x7f\u202e\r")
    assert r"\x1b]0;x\x07Evil\u202e\r\n[red]Shop\x9b2J" in out


# configurations


def test_each_configuration_is_fetched_once_and_then_kept(world: World) -> None:
    """Entities with one address are one request; a second call makes none."""
    shops(world, *range(150))
    merchants = world.state.customers[CUSTOMER]["merchants"]
    merchants += [{"id": 1000 + number, "configUrl": _address(world, 3)} for number in range(150)]
    for _ in range(2):
        written = read_all(world, "--include", "merchants", "--language", "en", "--with-config")
        names = [entity["config"]["marketName"] for entity in written.data["merchants"]]
        assert names == [f"Shop {number}" for number in range(150)] + ["Shop 3"] * 150
        assert (written.status, world.state.requests["entities"]) == (0, 150)


def test_an_old_copy_is_asked_about(world: World) -> None:
    """After its time the host is asked by the tag of the copy, and answers 304."""
    shops(world, 1)
    url = _address(world, 1)
    stale = FaultAnswer(
        200, b'{"value": {"marketName": "Old"}}', (("etag", '"t"'), ("cache-control", "max-age=0"))
    )
    world.state.fail("entities", stale, FaultAnswer(304, b"", (("cache-control", "max-age=60"),)))
    for _ in range(3):
        shown = command("customers", "entity", url, "--config", world.config)
        assert shown.data == {"marketName": "Old"}
    asked = [seen.headers.get("if-none-match") for seen in world.state.seen]
    assert asked == [None, '"t"']


def test_one_configuration_shown(world: World) -> None:
    """As its host wrote it; one that isn't there is an error that says what its host said."""
    shops(world, 1)
    shown = command("customers", "entity", _address(world, 1), "--config", world.config)
    assert shown.data == {"id": 1, "marketName": "Shop 1", "category": "Food"}
    absent = command("customers", "entity", _address(world, 2), "--config", world.config)
    assert (absent.status, absent.out) == (1, "")
    assert absent.err == "deliveryd: the configuration is unavailable: the service answered 404\n"


def _address(world: World, number: int) -> str:
    return f"{world.state.base_url}/api/v4/merchants/{number}/1/en"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://foreign.example/x", "foreign.example isn't a host that configurations come from"),
        ("http://169.254.169.254/latest", "169.254.169.254 isn't a host that configurations come from"),
        ("http://127.0.0.1:1/x", "127.0.0.1:1 isn't a host that configurations come from"),
        ("file:///etc/passwd", "the configuration's address is invalid"),
        ("http://user:pw@127.0.0.1/", "the configuration's address is invalid"),
        ("", "the configuration's address is invalid"),
    ],
)
def test_an_address_anywhere_else_is_refused_with_its_reason(world: World, url: str, reason: str) -> None:
    """Asked for alone it is an error; among others it costs only itself its configuration."""
    alone = command("customers", "entity", url, "--config", world.config)
    assert (alone.status, alone.err) == (1, f"deliveryd: the configuration is unavailable: {reason}\n")
    shops(world, 1, 2)
    world.state.customers[CUSTOMER]["merchants"][0]["configUrl"] = url
    among = read_all(world, "--include", "merchants", "--language", "en", "--with-config")
    first, second = among.data["merchants"]
    assert (first["configProblem"], "config" in first) == (reason, False)
    assert second["config"]["marketName"] == "Shop 2"
    assert among.status == 1
    assert among.err == f"deliveryd: 1 configuration unavailable:\n  1: {reason}\n"


def test_a_page_of_hostile_addresses_reaches_nothing_of_the_services_own(world: World) -> None:
    """No message is taken, no event told, no other customer's data read; the rest has its configurations."""
    world.state.enqueue({"id": 1, "settingsId": 1, "customerId": 18, "variables": {}})
    shops(world, *range(9))
    paths = [
        "/queue?take=100", "/QUEUE?take=100", "/%71ueue?take=100", "/x/../queue?take=100", "//queue?take=100",
        "/queue;a?take=100", "/customers/18/all?merchants.include=true", "/settings/1",
    ]  # fmt: skip
    for merchant, path in zip(world.state.customers[CUSTOMER]["merchants"], paths, strict=False):
        merchant["configUrl"] = world.state.base_url + path
    read = read_all(world, "--include", "merchants", "--language", "en", "--with-config")
    problems = [merchant.get("configProblem", "") for merchant in read.data["merchants"]]
    assert all(problem.startswith("the path of the address is refused: ") for problem in problems[:-1])
    assert read.data["merchants"][-1]["config"]["marketName"] == "Shop 8"
    assert world.state.requests == {"customers": 1, "entities": 1}
    assert world.state.taken == []


def test_a_name_on_the_list_that_leads_inward_is_refused(world: World) -> None:
    """`localhost` may be on the list; where it leads has to be allowed as well."""
    shops(world, 1)
    port = world.sandbox.port
    url = _address(world, 1).replace("127.0.0.1", "localhost")
    world.add(f'[entities]\nhosts = ["localhost:{port}"]\nallow_http = true\n')
    refused = command("customers", "entity", url, "--config", world.config)
    assert (refused.status, world.state.requests["entities"]) == (1, 0)
    assert "a loopback address that isn't in an allowed network" in refused.err
    world.change("allow_http = true", 'allow_http = true\nnetworks = ["127.0.0.0/8", "::1/128"]')
    assert command("customers", "entity", url, "--config", world.config).data["id"] == 1
    world.change("allow_http = true\n", "")
    plain = command("customers", "entity", f"{url}?b", "--config", world.config)
    assert plain.err.endswith(f"localhost:{port} would be called without TLS, which isn't allowed\n")


def test_a_redirect_is_refused(world: World) -> None:
    """With where it would have led."""
    world.state.fail("entities", FaultAnswer(302, b"", (("location", "http://10.0.0.7/x"),)))
    shown = command("customers", "entity", _address(world, 1), "--config", world.config)
    assert shown.err.endswith("answered 302, a redirect to http://10.0.0.7: redirects aren't followed\n")
    assert (shown.status, world.state.requests["entities"]) == (1, 1)


def test_a_host_that_is_down_ends_the_reading(world: World) -> None:
    """After some failures in a row the rest isn't tried; what was read is written, with how far it came."""
    shops(world, *range(500))
    world.state.fail_until_healed("entities", FaultAnswer(503, b"", (("retry-after", "600"),)))
    written = read_all(world, "--include", "merchants", "--with-config", "--language", "en")
    assert written.status == 1
    assert len(written.data["merchants"]) == 50
    assert (
        "configurations in a row were unavailable: the service answered 503; 50 entities were read"
        in written.err
    )


# what goes wrong


def page(group: str, *ids: int, token: str | None = None) -> FaultAnswer:
    listed: dict[str, Any] = {"list": [{"id": each, "configUrl": "http://127.0.0.1/"} for each in ids]}
    listed |= {} if token is None else {"continuationToken": token}
    return FaultAnswer(200, json.dumps({"value": {group: listed}}).encode())


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_a_token_that_comes_again_is_an_error_after_what_was_read(world: World, form: str) -> None:
    """Status 1, the reason, how far it came; what was read is in the output, which is whole JSON."""
    world.state.customers[CUSTOMER] = {}
    world.state.fail("customers", page("offers", 1, 2, token="&=%+/ ü"), page("offers", 3, token="&=%+/ ü"))
    written = read_all(world, "--include", "offers", "--format", form)
    assert written.status == 1
    assert written.err == (
        "deliveryd: customer 7: offers: the continuation token of page 2 was used before:"
        " the chain would never end; 3 entities were read (offers 3) from 2 pages\n"
    )
    read = written.data["offers"] if form == "json" else lines(written.out)
    assert [entity["id"] for entity in read] == [1, 2, 3]


def test_a_chain_without_end(world: World) -> None:
    """`--max-pages` says when it is enough."""
    fill(world.state, 600, page_size=1)
    written = read_all(world, "--include", "offers", "--max-pages", 9, "--format", "jsonl")
    assert (written.status, len(lines(written.out))) == (1, 9)
    assert "offers: there are more than 9 pages; 9 entities were read" in written.err


def test_an_outage_in_the_middle(world: World) -> None:
    """What was read before is there, and how far it came is told."""
    fill(world.state, 600, page_size=10)
    world.state.fail("customers", Pass(), Pass(), *[FaultAnswer(503, b"", (("retry-after", "900"),))])
    written = read_all(world, "--include", "merchants", "--include", "offers")
    assert (written.status, len(written.data["merchants"])) == (1, 20)
    assert written.err == (
        "deliveryd: customer 7: the service answered 503; 20 entities were read (merchants 20) from 2 pages\n"
    )


@pytest.mark.parametrize("form", ["json", "jsonl", "table"])
def test_a_customer_that_nobody_knows_looks_like_no_empty_answer(world: World, form: str) -> None:
    """Nothing on standard output, status 1, and what the 404 may mean."""
    assert read_all(world, "--include", "offers", "--format", form) == (
        1,
        "",
        f"deliveryd: customer 7: the service answered 404{UNKNOWN_CUSTOMER}; nothing was read\n",
    )


def test_an_answer_without_any_group_is_no_customer_without_data(world: World) -> None:
    """The interface shows a group for each flag; where all are missing, somebody should know."""
    world.state.fail("customers", FaultAnswer(200, b'{"value": {}}'))
    answered = read_all(world)
    assert (answered.status, answered.out) == (1, "")
    assert "the service returned no group; it may not have this customer" in answered.err
    world.state.customers[CUSTOMER] = {}
    assert read_all(world).data == {group: [] for group in GROUPS}


def test_json_can_be_asked_for_as_in_every_command(world: World) -> None:
    """As the default says anyway, for one who types it."""
    shops(world, 1)
    assert read_all(world, "--json").out == read_all(world).out
    url = f"{world.state.base_url}/api/v4/merchants/1/1/en"
    assert command("customers", "entity", url, "--json", "--config", world.config).data["id"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["all", "seven"], "Invalid value for 'ID': 'seven' isn't an integer"),
        (["all", 2**63], "Invalid value for 'ID': 9223372036854775808 isn't a 64-bit integer"),
        (["all", "9" * 5000], "Invalid value for 'ID': "),
        (["all", 7, "--include", "merchant"], "there is no group 'merchant'; did you mean merchants?; "),
        (["all", 7, "--include", "\x1b[31m"], "there is no group '\\x1b[31m'"),
        (["all", 7, "--format", "xml"], "'xml' is not one of"),
        (["all", 7, "--max-pages", 0], "Invalid value for '--max-pages': "),
        (["all"], "Missing argument 'ID'"),
        (["entity"], "Missing argument 'URL'"),
    ],
    ids=range(9),
)  # fmt: skip
def test_what_was_typed_wrongly_is_said(
    world: World, arguments: list[object], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is asked for, with status 2."""
    monkeypatch.setenv("COLUMNS", "300")
    answered = command("customers", *arguments, "--config", world.config)
    assert (answered.status, answered.out) == (2, "")
    assert told in " ".join(answered.err.replace("│", " ").split())
    assert not world.state.requests


def test_a_cache_that_can_not_be_used_is_told_once(world: World) -> None:
    """The configurations come all the same."""
    shops(world, *range(20))
    world.folder.joinpath("blocked").write_text("a file")
    world.add('[entities]\ncache_dir = "blocked"\n')
    written = read_all(world, "--include", "merchants", "--with-config", "--language", "en")
    assert (written.status, len(written.data["merchants"])) == (0, 20)
    assert written.err == "deliveryd: the cache is bypassed: File exists\n"


def test_a_group_that_cannot_be_read_hides_no_other(world: World) -> None:
    """The others are written, the reason is told, and the status is 1."""
    fill(world.state, 12)
    groups = dict(world.state.customers[CUSTOMER])
    groups["offers"] = [{"id": "Ada", "configUrl": "u"}]
    world.state.customers[CUSTOMER] = groups
    read = read_all(world)
    assert read.status == 1
    assert "offers" in read.err
    assert "Ada" not in read.err
    assert set(read.data) == set(GROUPS) - {"offers"}
