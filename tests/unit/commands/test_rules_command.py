"""`deliveryd rules test`, and what is said of rules that can't work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.messages import message, sms_settings
from support.terminal import command
from support.world import World, open_world

RULES = """
[[rules]]
settings = [501, 502]
priority = "high"
window = { from = "00:00", to = "24:00" }
[[rules]]
channels = ["sms"]
window = { days = "Mon-Sat", from = "08:00", to = "20:00", holidays_file = "holidays" }
"""
AT = ("--at", "2026-12-24T21:30:00Z")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    for world in open_world(tmp_path):
        (tmp_path / "holidays").write_text("2026-12-25  # Christmas\n\n2026-12-26\n", "utf-8")
        text = world.config.read_text("utf-8")
        world.config.write_text(
            text.replace("[content]", '[content]\nzone = "Europe/Berlin"') + RULES, "utf-8"
        )
        world.customers([{"id": 17, "phone": "+447700900101", "zone": "Europe/Lisbon"}])
        yield world


def tried(world: World, *options: object) -> list[str]:
    """The lines that the command prints."""
    answered = command("rules", "test", "--config", world.config, *options)
    assert (answered.status, answered.err) == (0, "")
    return answered.out.splitlines()


def test_what_holds_for_a_message_is_shown_with_its_rule(world: World) -> None:
    assert tried(world, "--settings", 500, "--customer", 17, *AT) == [
        "settings 500, priority normal",
        "customer 17, zone Europe/Lisbon, at 2026-12-24T21:30:00.000000Z",
        "sms  waits until Mon 2026-12-28 08:00 Europe/Lisbon: rules.1",
    ]
    assert tried(world, "--settings", 501, *AT)[2:] == ["sms  may be sent: rules.0"]
    assert tried(world, "--settings", 500, "--customer", 99, *AT) == [
        "settings 500, priority normal",
        "customer 99, not in the directory, zone not known, at 2026-12-24T21:30:00.000000Z",
        "sms  is not sent: no address of the customer",
    ]
    assert tried(world, "--settings", 500, *AT)[2:] == [
        "sms  waits until Mon 2026-12-28 08:00 Europe/Berlin: rules.1"
    ]
    found = json.loads("\n".join(tried(world, "--settings", 501, "--json", *AT)))
    assert found["priority"] == "high"
    (shown,) = json.loads("\n".join(tried(world, "--settings", 500, "--json", *AT)))["channels"]
    assert shown["opens_at"] == "2026-12-28T07:00:00.000000Z"
    assert (shown["channel"], shown["rule"], shown["may_be_sent"]) == ("sms", 1, False)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"08:00"', '"8:00"', 'rules.1.window.from: expected a time such as "08:00"'),
        ('"Mon-Sat"', '"Mo-Sa"', 'rules.1.window.days: expected days such as "Mon-Sat"'),
        ('"20:00"', '"08:00"', "rules.1.window: from and to are the same"),
        ('"holidays"', '"none"', "none: No such file or directory"),
        ('"holidays"', '"."', "is no regular file"),
        ('["sms"]', '["smss"]', "rules.1.channels: no channel 'smss' is configured; did you mean sms?"),
        ('zone = "Europe/Berlin"', "", "rules.1.window.zone: customers whose field zone names none need"),
        ('"Europe/Berlin"', '"Berlin"', "content.zone: 'Berlin' is no time zone"),
        ("2026-12-26", "26.12.2026", "holidays: line 3 is no date such as 2026-12-25"),
        ("[501, 502]", '["501"]', "rules.0.settings"),
        ("[501, 502]", "[]", "rules.0.settings: names none; name at least one, or leave the key out for all"),
        ('"high"', '"hihg"', 'rules.0.priority: must be "high" or "low"; did you mean high?'),
        ("settings = [501, 502]", "", "rules.0: priority needs settings: add the ids, such as settings ="),
        (
            'priority = "high"',
            'priority = "high"\nchannels = ["sms"]',
            "priority holds on all channels:",
        ),
        ('"high"', '"normal"', "all other settings ids are normal: leave it out"),
        ("[501, 502]", "501", "rules.0.settings: expected a list of settings ids, such as [501, 502]"),
        ('"08:00"', "8", 'rules.1.window.from: write "08:00", in quotes'),
        ('"20:00"', "20:30:00", 'rules.1.window.to: write "20:30", in quotes'),
        ('"Mon-Sat"', '"mon-sat"', 'Sun; did you mean "Mon-Sat"?'),
        ('"Mon-Sat"', '"Monday, wednesday"', 'Sun; did you mean "Mon, Wed"?'),
        ('"08:00"', '"08:00", zone = "Customer"', "'Customer' is no time zone; did you mean \"customer\"?"),
        ("settings =", "setings =", "rules.0.setings: unknown key; did you mean settings?"),
        (
            'channels = ["sms"]',
            'settings = [501]\npriority = "low"',
            "rules.1.settings: 501: rules.0 sets a priority too; remove one",
        ),
    ],
)
def test_a_rule_that_cannot_work_is_named(world: World, old: str, new: str, problem: str) -> None:
    for file in (world.config, world.folder / "holidays"):
        file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")
    answered = command("check", "--offline", "--config", world.config)
    assert answered.status == 78
    assert problem in answered.err


def test_a_single_table_of_rules_is_told_what_to_write(world: World) -> None:
    """Not that a list is expected."""
    text = world.config.read_text("utf-8").replace(RULES, "")
    world.config.write_text(f'{text}\n[rules]\nsettings = [501]\npriority = "high"\n', "utf-8")
    answered = command("check", "--offline", "--config", world.config)
    assert f"{world.config}:rules: write [[rules]], with two brackets on each side" in answered.err


def test_what_a_message_counts_for_is_shown(world: World) -> None:
    """The caps and budgets, what becomes of more, and when the period ends."""
    text = world.config.read_text("utf-8").replace(
        "[channels.sms]", '[channels.sms]\nbudget = "9 parts/day"', 1
    )
    rule = '[[rules]]\nsettings = [501]\ncap = { messages = 3, per = "7d", over = "error" }\n'
    world.config.write_text(text + rule, "utf-8")
    capped, counted = tried(world, "--settings", 501, *AT)[3:]
    assert capped == (
        "sms  counts for the cap of settings 501: 3 messages per customer within 7d,"
        " more ends as error: rules.2"
    )
    assert counted == (
        "sms  counts for the budget of channel sms per day: 9 parts/day until 2026-12-24T23:00:00.000000Z,"
        " more waits: channels.sms"
    )


@pytest.mark.parametrize(
    ("customer", "channel", "more", "why"),
    [
        ({}, "", "", "no address of the customer"),
        ({"phone": "020 to 5"}, "", "", "the phone number can't be read"),
        (
            {"phone": "+33612345678"}, 'countries = ["DE"]', "",
            "a number in FR is not in channels.sms.countries",
        ),
        (
            {"phone": "+491701234567"}, "", "[safety]\nonly_to = ['customer:1']",
            "not on the list of this installation",
        ),
        (
            {"phone": "+491701234567"}, 'budget = "0 messages/day"\nspent = "next"', "",
            "it needs 1 message, more than the whole budget of channel sms, 0 messages/day",
        ),
        (
            {"phone": "+491701234567"}, 'budget = "0 parts/day"', "",
            "it ends as error: it needs 1 part, more than the whole budget of channel sms, 0 parts/day",
        ),
    ],
)  # fmt: skip
def test_why_nothing_is_sent_to_a_customer_is_shown(
    world: World, customer: dict[str, str], channel: str, more: str, why: str
) -> None:
    """It is all that is said of the channel, also of budgets and caps: nothing counts for them."""
    world.customers([{"id": 17, **customer}])
    text = world.config.read_text("utf-8").replace("[channels.sms]", f"[channels.sms]\n{channel}")
    text = text.replace("{customer.phone}", "{customer.phone|e164}")
    budget = '[[rules]]\nbudget = "9 parts/day"\ncap = { messages = 3, per = "7d" }\n'
    world.config.write_text(f"{text}{budget}{more}\n", "utf-8")
    assert tried(world, "--settings", 500, "--customer", 17, *AT)[2:] == [f"sms  is not sent: {why}"]
    [shown] = json.loads("\n".join(tried(world, "--settings", 500, "--customer", 17, "--json", *AT)))[
        "channels"
    ]
    assert (shown["may_be_sent"], shown["why_not"], shown["limits"]) == (False, why, [])


@pytest.mark.parametrize(
    ("outside", "becomes", "limits"),
    [
        ("send", "is sent at once: it would expire before its window opens", 1),
        ("expire", "expires at 2026-12-25T21:30:00.000000Z, before its window opens", 0),
    ],
)
def test_what_becomes_of_a_message_that_expires_first_is_shown(
    world: World, outside: str, becomes: str, limits: int
) -> None:
    """The window opens after three days, and the default lifetime is one; with four it waits."""
    world.change('"holidays" }', f'"holidays", outside = "{outside}" }}\nbudget = "9 parts/day"')
    world.change("[content]", '[content]\ndefault_lifetime = "1d"')
    text, *counted = tried(world, "--settings", 500, *AT)[2:]
    assert text == f"sms  {becomes} (content.default_lifetime): rules.1"
    assert len(counted) == limits
    [shown] = json.loads("\n".join(tried(world, "--settings", 500, "--json", *AT)))["channels"]
    assert shown["expires_at"] == "2026-12-25T21:30:00.000000Z"
    assert shown["may_be_sent"] is (outside == "send")
    world.change('"1d"', '"4d"')
    assert "waits until Mon 2026-12-28 08:00" in tried(world, "--settings", 500, *AT)[2]


@pytest.mark.slow
def test_the_expiry_of_cached_settings_is_shown(world: World) -> None:
    """It holds instead of the default lifetime; what is expired by then isn't sent."""
    delivery = {"expiresAt": "2096-12-24T22:00:00Z"}
    world.state.settings[1] = {**sms_settings(), "delivery": delivery}
    world.state.enqueue(message(1))
    world.customers([{"id": 1, "phone": "+447700900101"}])
    world.change("[501, 502]", "[501, 502, 1]")
    world.run_until_idle()
    world.change("[501, 502, 1]", "[501, 502]")
    expires = "expires at 2096-12-24T22:00:00.000000Z, before its window opens"
    because = " (delivery.expiresAt of its settings): rules.1"
    assert tried(world, "--settings", 1, "--at", "2096-12-24T21:30:00Z")[2:] == [f"sms  {expires}{because}"]
    late = tried(world, "--settings", 1, "--at", "2096-12-24T23:00:00Z")[2:]
    assert late == ["sms  is not sent: expired at 2096-12-24T22:00:00.000000Z"]


def test_whom_an_installation_sends_to_is_shown_where_no_customer_is_given(world: World) -> None:
    """Nobody can say then whether the message would be sent."""
    world.add("[safety]\nonly_to = ['customer:1']\n")
    assert tried(world, "--settings", 500, *AT)[0].startswith("this installation sends only to the 1 entry")


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ('budget = "9 part/week"', "rules.2.budget: expected a string such as"),
        ('spent = "next"\nsettings = [1]\npriority = "high"', "spent has no effect without budget"),
        ('budget = "9 parts/day"\nspent = "nxt"', 'must be "next", "wait" or "error"; did you mean'),
        ('channels = ["sms"]\ncap = { messages = 3, per = "7d" }', "leave channels out"),
    ],
)
def test_what_is_wrong_with_a_limit_is_said_at_its_key(world: World, rule: str, problem: str) -> None:
    """With what to write instead."""
    world.config.write_text(f"{world.config.read_text('utf-8')}[[rules]]\n{rule}\n", "utf-8")
    answered = command("check", "--offline", "--config", world.config)
    assert problem in answered.out + answered.err


def test_providers_that_are_not_sent_the_number_are_shown(world: World) -> None:
    """The channel may be taken as long as one of them is."""
    text = world.config.read_text("utf-8")
    text, _, rest = text.partition("[channels.sms]\n")
    table, _, more = rest.partition("\n[")
    world.config.write_text(
        f"{text}[channels.sms.providers.one]\n{table}\n"
        f'[channels.sms.providers.two]\n{table}\ncountries = ["DE"]\n[{more}',
        "utf-8",
    )
    refused = "a number in no country is not in channels.sms.providers.two.countries"
    assert tried(world, "--settings", 501, "--customer", 17, *AT)[2:] == [
        "sms  may be sent: rules.0",
        f"     not by sms/two: {refused}",
    ]
    [shown] = json.loads("\n".join(tried(world, "--settings", 501, "--customer", 17, "--json", *AT)))[
        "channels"
    ]
    assert (shown["may_be_sent"], shown["refused"]) == (True, {"sms/two": refused})


@pytest.mark.parametrize(
    ("first", "is_named"),
    [("", True), ('channels = ["sms"]', True), ("settings = [7]", False), ("settings = [501]", False)],
)
def test_a_window_behind_one_for_all_its_messages_is_named(world: World, first: str, is_named: bool) -> None:
    """`check` hints at it: the first window counts, so it is never in force."""
    text = world.config.read_text("utf-8").replace(RULES, "")
    window = 'window = { from = "08:00", to = "20:00", zone = "UTC" }'
    rules = f"\n[[rules]]\n{first}\n{window}\n[[rules]]\nsettings = [501, 7]\nchannels = ['sms']\n{window}\n"
    world.config.write_text(text + rules, "utf-8")
    answered = command("check", "--offline", "--config", world.config)
    hint = "has no effect: rules.0 names all messages that it names"
    assert (hint in answered.out + answered.err) is is_named
