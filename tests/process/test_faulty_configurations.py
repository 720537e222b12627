"""A mistake in the file of a worker that runs well must not take its operators' commands away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.messages import message, sms_settings
from support.terminal import command
from support.world import World, open_world

pytestmark = pytest.mark.slow

FAULTS = {
    "a bad value": ("[queue]", "[queue]\nbatch_size = 0"),
    "a bad value in a channel": ('adapter = "http"', 'adapter = "http"\nconcurrency = 0'),
    "an order that is none": ("[channels.sms]", '[channels]\norder = "sms"\n[channels.sms]'),
    "a bad retention": ("[journal]", '[journal]\nretention = "soon"'),
    "an unknown adapter": ('adapter = "http"', 'adapter = "htpp"'),
    "an unknown table": ("[queue]", "[queu]\nx = 1\n[queue]"),
    "a service without an address": ("base_url", "base_ulr"),
    "a customers' password that isn't there": (
        "[customers]",
        '[customers]\nauth = { token_file = "/run/none" }',
    ),
    "a credential that isn't there": ("[queue]", 'auth = { token_file = "/run/credentials/none" }\n[queue]'),
}

COMMANDS = (
    "explain 1", "find --customer 1", "failed list", "failed retry 1", "dead list", "in-doubt list",
    "paused", "decisions", "audit", "stopped list", "pause channel sms", "resume channel sms",
    "pause settings 501", "resume settings 501", "pause intake", "resume intake", "forget 77",
    "erase --customer 77", "overdue", "stopped export --channel sms",
)  # fmt: skip
"""What operators do; the last ones change something."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A journal with one message that was sent; no worker runs."""
    for world in open_world(tmp_path_factory.mktemp("faulty")):
        world.customers([{"id": 1, "phone": "+447700900101"}])
        world.state.settings[1] = sms_settings("{word}")
        world.state.enqueue(message(1))
        world.run_until_idle()
        yield world


@pytest.mark.parametrize("fault", FAULTS)
def test_commands_that_need_only_the_journal_pass_over_a_mistake(world: World, fault: str) -> None:
    """Each answers as it does without the mistake, and says once that there is one; `check` lists it."""
    good = world.config.read_text(encoding="utf-8")
    expected = {words: command(*_with(world, words)) for words in COMMANDS}
    world.write_config(good.replace(*FAULTS[fault], 1))
    try:
        for words in COMMANDS:
            answered = command(*_with(world, words))
            assert answered.status == expected[words].status, (words, answered)
            assert "which deliveryd check lists" in answered.err, (words, answered)
        assert command("check", "--offline", "--config", world.config).status == 78
        assert command("run", "--until-idle", "--config", world.config).status == 78
    finally:
        world.write_config(good)


@pytest.mark.parametrize("fault", FAULTS)
def test_recipients_are_imported_unless_the_mistake_is_in_their_channel(world: World, fault: str) -> None:
    """With a mistake there it isn't known how their addresses are written: they might be sent to still."""
    good = world.config.read_text(encoding="utf-8")
    change = FAULTS[fault]
    is_own = change[0].startswith(("adapter", "[channels"))
    world.write_config(good.replace(*change, 1))
    try:
        answered = command("stopped", "import", "--channel", "sms", "/dev/null", "--config", world.config)
        lifted = command("stopped", "lift", "--channel", "sms", "07700 900101", "--config", world.config)
        overdue = command("overdue", "--config", world.config)
    finally:
        world.write_config(good)
    assert (answered.status, ":channels." in answered.err) == (78 if is_own else 0, is_own), answered
    assert lifted.status == (78 if is_own else 1), lifted
    hides = change[0].startswith("adapter")
    assert ("a mistake hides when messages are overdue at sms\n" in overdue.err) == hides


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (('[journal]\nurl = "sqlite', '[journal]\nretension = "1d"\nurl = "sqlite'), "journal.retension"),
        (("[journal]", '[control]\nsocket = "/run/x"\n[journal]'), "control.socket"),
        (("[journal]", "[journal"), "invalid TOML"),
    ],
)
def test_a_mistake_in_what_a_command_needs_is_an_error(
    world: World, change: tuple[str, str], named: str
) -> None:
    """It could be about another journal than the worker's."""
    good = world.config.read_text(encoding="utf-8")
    assert change[0] in good
    world.write_config(good.replace(*change, 1))
    try:
        answered = command("explain", "--config", world.config, 1)
    finally:
        world.write_config(good)
    assert answered.status == 78
    assert named in answered.err


def test_a_variable_with_a_mistake_is_passed_over_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named as it is set; one of the journal's place is an error."""
    monkeypatch.setenv("DELIVERYD_QUEUE__BATCH_SIZE", "none")
    answered = command("explain", "--config", world.config, 1)
    assert answered.status == 0
    assert "DELIVERYD_QUEUE__BATCH_SIZE" in answered.err
    monkeypatch.setenv("DELIVERYD_JOURNAL__RETENTION", "none")
    assert command("explain", "--config", world.config, 1).status == 0
    monkeypatch.setenv("DELIVERYD_JOURNAL__LEASE", "none")
    assert command("explain", "--config", world.config, 1).status == 78


def _with(world: World, words: str) -> list[object]:
    return [*words.split(), "--config", world.config]
