"""A provider that keeps failing is left alone but for probes, and its messages lose nothing by it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, Dispatch, InDoubt, Misconfigured, Refused, TryAgain, Verdict
from deliveryd.errors import OutOfFiles
from deliveryd.model import format_instant
from deliveryd.runtime.breaker import Breaker, BreakerPolicy
from support.endless import jumping_clock
from support.logs import LogLines, log_lines
from support.messages import message
from support.virtual import START, VirtualChannel, VirtualWorld, live

SECOND = 1_000_000
HOUR = 3600.0
BUSY = TryAgain("provider answered 503")
SMS = {"content": {"en": {"sms": {"text": "hello"}}}}


def at_ease(scene: Callable[[], Awaitable[None]]) -> None:
    """Play a scene in virtual time."""
    trio.run(scene, clock=jumping_clock())


def opened(failures: int = 3, pause: float = 1.0, max_pause: float = 60.0) -> Breaker:
    """A breaker that has just opened."""
    breaker = Breaker(BreakerPolicy(failures, pause, max_pause))
    for _ in range(failures):
        breaker.failed()
    return breaker


async def next_probe(breaker: Breaker) -> float:
    """Begin the next probe as soon as it may be; return for how long it had to wait."""
    began = trio.current_time()
    assert breaker.allowed(100) == 0
    await trio.sleep(breaker.wait())
    assert breaker.allowed(100) == 1
    breaker.probe()
    return trio.current_time() - began


COUNTED = """
SELECT (SELECT count(*) FROM message WHERE state = 4), (SELECT count(*) FROM message WHERE state IN (2, 3)),
    (SELECT count(*) FROM attempt), (SELECT max(counted_tries) FROM message)
"""
"""Messages that are being sent, and that wait; attempts; the tries that the unluckiest message used up."""

# The breaker by itself


def test_only_failures_in_a_row_open_it() -> None:
    """An answer in between, and the count begins anew; until then all attempts may begin."""

    async def scene() -> None:
        breaker = Breaker(BreakerPolicy(3, 1.0, 60.0))
        for _ in range(20):
            assert breaker.failed() is None
            assert breaker.failed() is None
            assert breaker.allowed(100) == 100
            assert breaker.answered() == 0
        breaker.failed()
        breaker.failed()
        assert breaker.allowed(100) == 100
        assert breaker.failed() is not None
        assert breaker.is_open
        assert breaker.allowed(100) == 0

    at_ease(scene)


def test_with_no_number_of_failures_it_never_opens() -> None:
    async def scene() -> None:
        breaker = Breaker(BreakerPolicy(0, 1.0, 60.0))
        assert [breaker.failed() for _ in range(1000)] == [None] * 1000
        assert breaker.allowed(100) == 100

    at_ease(scene)


def test_pauses_between_probes_double_up_to_a_bound_and_are_jittered() -> None:
    async def scene() -> None:
        breaker = opened()
        for most in (1, 2, 4, 8, 16, 32, 60, 60, 60):
            assert most / 2 <= await next_probe(breaker) <= most
            breaker.failed()

    at_ease(scene)


def test_the_pause_that_the_provider_asks_for_is_kept() -> None:
    """With the failure that opens, with a probe's, and with one of an attempt from before."""

    async def scene() -> None:
        breaker = Breaker(BreakerPolicy(1, 1.0, 60.0))
        breaker.failed(300.0)
        assert await next_probe(breaker) == pytest.approx(300)
        breaker.failed(900.0)
        assert await next_probe(breaker) == pytest.approx(900)
        breaker.failed()
        breaker.failed(120.0)
        assert await next_probe(breaker) == pytest.approx(120)

    at_ease(scene)


def test_attempts_that_began_before_it_opened_make_no_pause_longer() -> None:
    """A hundred time-outs at once are one outage, not a hundred."""

    async def scene() -> None:
        breaker = opened()
        assert [breaker.failed() for _ in range(100)] == [None] * 100
        assert await next_probe(breaker) <= 1

    at_ease(scene)


def test_one_probe_is_under_way_at_a_time() -> None:
    """The next one may begin after its failure, or at once when it was none, or when it is never heard of."""

    async def scene() -> None:
        breaker = opened()
        await next_probe(breaker)
        assert breaker.allowed(100) == 0
        breaker.withdraw()
        assert breaker.allowed(100) == 1
        breaker.probe()
        assert await next_probe(breaker) == 60

    at_ease(scene)


def test_the_first_answer_closes_it_and_says_how_long_it_was_open() -> None:
    async def scene() -> None:
        breaker = opened()
        await trio.sleep(100)
        assert breaker.answered() == 100
        assert breaker.allowed(100) == 100
        assert breaker.failures == 0

    at_ease(scene)


def test_a_provider_that_answers_just_now_and_then_is_asked_ever_more_rarely() -> None:
    """Pauses go on where they were when it fails again at once, and begin anew after a time that was good."""

    async def scene() -> None:
        breaker = opened()
        for most in (1, 2, 4, 8, 16, 32, 60, 60):
            assert most / 2 <= await next_probe(breaker) <= most
            breaker.answered()
            for _ in range(3):
                breaker.failed()
        await next_probe(breaker)
        breaker.answered()
        await trio.sleep(61)
        for _ in range(3):
            breaker.failed()
        assert await next_probe(breaker) <= 1

    at_ease(scene)


# The line


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = json.dumps(SMS)
    return world


@pytest.fixture
def lines() -> Iterator[LogLines]:
    """What was logged of channels."""
    with log_lines("debug") as logged:
        yield lambda: [line for line in logged() if line["event"].startswith("channel.")]


def enqueue(world: VirtualWorld, count: int) -> None:
    world.service.enqueue(*(message(id_) for id_ in range(1, count + 1)))


def failing_until(world: VirtualWorld, seconds: float, failure: Verdict = BUSY) -> None:
    """The provider fails until then, and takes everything afterwards."""
    world.channels["sms"].verdict = lambda dispatch: (
        failure if trio.current_time() < seconds else Accepted(dispatch.key)
    )


def all_sent(world: VirtualWorld, count: int) -> bool:
    return all(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in range(1, count + 1))


@pytest.mark.slow
@pytest.mark.parametrize("failure", [BUSY, Misconfigured("provider answered 401")], ids=["503", "401"])
def test_an_outage_costs_few_attempts_and_no_tries(world: VirtualWorld, failure: Verdict) -> None:
    """300 messages with two tries each live through an hour, which the provider hears of now and then."""
    world.add("concurrency = 20\nretry = { attempts = 2 }\n")
    enqueue(world, 300)
    failing_until(world, HOUR, failure)
    seconds = live(world.run_until_idle)
    assert HOUR < seconds < HOUR + 120
    assert all_sent(world, 300)
    during = [at for at, _ in world.channels["sms"].attempts if at < HOUR]
    assert 60 < len(during) < 150
    assert sum(at > 60 for at in during) < 125


@pytest.mark.parametrize("failures", [0, 10])
def test_an_outage_of_the_token_server_costs_no_try(world: VirtualWorld, failures: int) -> None:
    """Also where no breaker opens: messages with one try wait until there are tokens again."""
    world.add(f"retry = {{ attempts = 1 }}\nbreaker = {{ failures = {failures} }}\n")
    enqueue(world, 20)
    failing_until(world, 600, TryAgain("the token server answered 503", counts=False))
    seconds = live(world.run_until_idle)
    assert all_sent(world, 20)
    assert 600 < seconds < 720
    assert len([at for at, _ in world.channels["sms"].attempts if at < 600]) < 20 * 20


@pytest.mark.slow
def test_what_waits_for_a_provider_has_no_intent_and_no_attempt(world: VirtualWorld) -> None:
    """After half an hour the journal knows of the attempts that were made, and of none that is under way."""
    world.add("concurrency = 5\n[queue]\nmax_in_flight = 50\n")
    enqueue(world, 200)
    failing_until(world, HOUR)
    found: list[tuple[int, ...]] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.run_until_idle)
            await trio.sleep(1800)
            with closing(sqlite3.connect(world.folder / "journal.db")) as db:
                found.extend(db.execute(COUNTED))
            made = len(world.channels["sms"].attempts)
            assert found == [(0, 200, made, 1)]

    live(run)
    assert all_sent(world, 200)


@pytest.mark.slow
def test_when_the_provider_is_back_what_waited_flows_at_the_configured_rate(world: VirtualWorld) -> None:
    """No second sees more than the rate and a twentieth, and it takes little longer than the rate allows."""
    world.add('rate = "20/s"\n')
    enqueue(world, 400)
    failing_until(world, HOUR)
    live(world.run_until_idle)
    after = [at for at, _ in world.channels["sms"].attempts if at >= HOUR]
    assert len(after) == 400
    assert max(sum(start <= at < start + 1 for at in after) for start in after) <= 22
    assert after[-1] - after[0] < 400 / 20 + 60


def test_one_failure_among_successes_opens_nothing(
    world: VirtualWorld, lines: Callable[[], list[object]]
) -> None:
    """A third of the attempts fails, at random or at a message's first try: all go on at full speed."""
    enqueue(world, 300)
    seen: set[int] = set()

    def verdict(dispatch: Dispatch) -> Verdict:
        if dispatch.entry.id % 3 or dispatch.entry.id in seen:
            return Accepted(dispatch.key)
        seen.add(dispatch.entry.id)
        return BUSY

    world.channels["sms"].verdict = verdict
    assert live(world.run_until_idle) < 15
    assert all_sent(world, 300)
    assert not lines()


@pytest.mark.slow
@pytest.mark.parametrize(("failures", "longest"), [(1, 60.0), (2, 5.0), (10, 5.0)])
def test_a_message_that_always_fails_holds_up_nobody_and_comes_to_its_end(
    world: VirtualWorld, failures: int, longest: float
) -> None:
    """The probes are other messages in turn, so the breaker closes again, and the one uses up its tries."""
    world.add(f"retry = {{ attempts = 3 }}\nbreaker = {{ failures = {failures} }}\nconcurrency = 1\n")
    world.channels["sms"].verdict = lambda dispatch: (
        BUSY if dispatch.entry.id == 1 else Accepted(dispatch.key)
    )
    came: dict[int, float] = {}

    async def run() -> None:
        async with world.at_work():
            for id_ in range(1, 31):
                came[id_] = trio.current_time()
                world.service.enqueue(message(id_))
                await trio.sleep(5)

    live(run)
    waited = [at - came[one.entry.id] for at, one in world.channels["sms"].attempts if one.entry.id > 1]
    assert len(waited) == 29
    assert max(waited) < longest
    assert world.service.statuses(1) == ["dequeued", "error"]


def test_a_refusal_is_an_answer(world: VirtualWorld, lines: Callable[[], list[object]]) -> None:
    """A provider that wants none of a hundred messages is there all the same."""
    enqueue(world, 100)
    world.channels["sms"].verdict = lambda _dispatch: Refused("no such number")
    assert live(world.run_until_idle) < 15
    assert not lines()


@pytest.mark.slow
def test_a_temporary_answer_about_one_recipient_is_an_answer(
    world: VirtualWorld, lines: Callable[[], list[object]]
) -> None:
    """A server that puts off each recipient once is there: nobody waits for anybody else's second try."""
    enqueue(world, 100)
    seen: set[int] = set()

    def put_off_once(dispatch: Dispatch) -> Verdict:
        if dispatch.entry.id in seen:
            return Accepted(dispatch.key)
        seen.add(dispatch.entry.id)
        return TryAgain("451 at RCPT TO", only_this=True)

    world.channels["sms"].verdict = put_off_once
    assert live(world.run_until_idle) < 15
    assert all_sent(world, 100)
    assert not lines()


@pytest.mark.slow
def test_a_server_that_puts_off_everybody_again_and_again_is_down(world: VirtualWorld) -> None:
    """Its back end fails for two hours: all is sent afterwards, none has used up its tries."""
    enqueue(world, 300)
    world.channels["sms"].verdict = lambda dispatch: (
        TryAgain("451 at RCPT TO", only_this=True)
        if trio.current_time() < 2 * HOUR
        else Accepted(dispatch.key)
    )
    live(world.run_until_idle)
    assert all_sent(world, 300)


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["full mailbox", "no answer"])
def test_a_message_that_is_put_off_alone_ends_after_its_tries(world: VirtualWorld, reason: str) -> None:
    """Nothing else comes that could show whose fault it is."""
    enqueue(world, 1)
    world.channels["sms"].verdict = lambda _: TryAgain(reason, only_this=True)
    live(world.run_until_idle)
    assert world.service.statuses(1) == ["dequeued", "error"]


def longest_delay(
    world: VirtualWorld, is_bad: Callable[[int], bool], verdict: Verdict, each_second: Mapping[int, int]
) -> float:
    """Messages come in for two minutes; the longest delay of those of which the provider doesn't say that.

    `each_second`: how many, by settings id; those of id 2 are numbered from 200,000 on.
    """
    world.service.settings[2] = json.dumps(SMS)
    channel = world.channels["sms"]
    channel.verdict = lambda made: verdict if is_bad(made.entry.id) else Accepted(made.key)
    supervisor = world.supervisor()
    came: dict[int, float] = {}

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            for second in range(120):
                for settings_id, count in each_second.items():
                    for id_ in range(second * count, (second + 1) * count):
                        came[settings_id * 100_000 + id_] = trio.current_time()
                        world.service.enqueue(message(settings_id * 100_000 + id_, settings_id))
                await trio.sleep(1)
            await trio.sleep(10)
            supervisor.stop()

    live(run)
    sent = {made.entry.id: at for at, made in channel.attempts}
    return max(sent.get(id_, math.inf) - at for id_, at in came.items() if not is_bad(id_))


@pytest.mark.slow
@pytest.mark.parametrize(
    "verdict",
    [InDoubt("provider answered 500"), TryAgain("provider answered 503", may_have_arrived=True)],
    ids=["500", "503"],
)
def test_a_template_with_which_a_provider_fails_holds_up_no_other(
    world: VirtualWorld, verdict: Verdict
) -> None:
    """Five of seven messages have it, and are repeated again and again; the others are sent at once."""
    assert longest_delay(world, lambda id_: id_ >= 200_000, verdict, {2: 5, 1: 2}) < 5


@pytest.mark.slow
def test_a_route_that_is_down_holds_up_no_other(world: VirtualWorld) -> None:
    """One of five recipients, of one template, can't be reached by the provider."""
    assert longest_delay(world, lambda id_: id_ % 5 == 0, BUSY, {1: 20}) < 5


@pytest.mark.slow
def test_a_provider_that_turns_away_more_than_it_takes_counts_as_down(world: VirtualWorld) -> None:
    """It takes one message in 20 seconds: the others wait and use up no tries, and there is no storm."""
    taken_at = -20.0

    def seldom(dispatch: Dispatch) -> Verdict:
        nonlocal taken_at
        if trio.current_time() < taken_at + 20.0:
            return TryAgain("provider answered 429")
        taken_at = trio.current_time()
        return Accepted(dispatch.key)

    channel = world.channels["sms"]
    channel.verdict = seldom
    supervisor = world.supervisor()

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            enqueue(world, 100)
            await trio.sleep(1.25 * HOUR)
            supervisor.stop()

    live(run)
    assert not [event for event in world.service.events if event["status"] == "error"]
    seconds = Counter(int(at) for at, _ in channel.attempts)
    assert max(seconds.values()) < 150


@pytest.mark.slow
def test_a_provider_that_asks_for_a_quarter_of_an_hour_is_left_alone_for_it(world: VirtualWorld) -> None:
    """After the attempts that were under way nothing is sent until then, also of messages that come later."""
    world.add("concurrency = 10\n")
    enqueue(world, 100)
    failing_until(world, 60, TryAgain("provider answered 429", 900.0))
    live(world.run_until_idle)
    times = [at for at, _ in world.channels["sms"].attempts]
    (gap,) = [later - earlier for earlier, later in pairwise(times) if later - earlier > 60]
    assert 899 < gap < 902
    assert all_sent(world, 100)


@pytest.mark.slow
def test_what_expires_meanwhile_ends_in_time(world: VirtualWorld) -> None:
    """Five seconds after its expiry the error is out, though the provider is away for hours."""
    expires_at = START + 1000 * SECOND
    settings = {"delivery": {"expiresAt": format_instant(expires_at)}, **SMS}
    world.service.settings[1] = json.dumps(settings)
    enqueue(world, 200)
    failing_until(world, 5 * HOUR)
    assert live(world.run_until_idle) < 1010
    errors = [event for event in world.service.events if event["status"] == "error"]
    assert {event["details"] for event in errors} == {f"expired at {format_instant(expires_at)}"}
    assert len(errors) == 200
    assert max(str(event["timestamp"]) for event in errors) <= format_instant(expires_at + 5 * SECOND)


@pytest.mark.slow
def test_a_worker_ends_at_once_while_a_provider_is_away_and_the_next_one_goes_on(world: VirtualWorld) -> None:
    """The drain waits for no provider, and what waited for it is sent after the restart."""
    enqueue(world, 200)
    failing_until(world, HOUR)
    took: list[float] = []

    async def run() -> None:
        supervisor = world.supervisor()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(supervisor.run)
            await trio.sleep(1800)
            supervisor.stop()
            asked = trio.current_time()
        took.append(trio.current_time() - asked)
        await trio.sleep(HOUR)
        await world.run_until_idle()

    live(run)
    assert took[0] < 2
    assert all_sent(world, 200)


@pytest.mark.slow
def test_what_may_have_arrived_is_not_repeated_for_ever(world: VirtualWorld) -> None:
    """A probe in doubt uses up a try: each message is sent three times at most, under one key."""
    world.add("retry = { attempts = 3 }\nconcurrency = 2\n")
    enqueue(world, 12)
    world.channels["sms"].verdict = lambda _dispatch: InDoubt("no whole answer within 10 s")
    live(world.run_until_idle)
    attempts = [dispatch.key for _, dispatch in world.channels["sms"].attempts]
    assert len(attempts) == 36
    assert {attempts.count(key) for key in attempts} == {3}
    assert all(world.service.statuses(id_) == ["dequeued", "error"] for id_ in range(1, 13))


@pytest.mark.slow
def test_with_hold_what_is_in_doubt_stays_where_it_is(world: VirtualWorld) -> None:
    """A provider that hangs gets each message once; the rest waits, and is sent when it answers."""
    world.add('on_in_doubt = "hold"\nconcurrency = 5\n')
    enqueue(world, 300)
    failing_until(world, HOUR, InDoubt("no whole answer within 10 s"))
    live(world.run_until_idle)
    ids = [dispatch.entry.id for _, dispatch in world.channels["sms"].attempts]
    assert len(ids) == len(set(ids)) == 300
    assert sum(world.service.statuses(id_) == ["dequeued", "sent"] for id_ in ids) >= 180


@pytest.mark.slow
def test_the_log_has_a_line_for_the_beginning_and_one_for_the_end(
    world: VirtualWorld, lines: Callable[[], list[dict[str, object]]]
) -> None:
    """An hour without the provider, 200 messages: what for, and for how long. Probes are for debugging."""
    enqueue(world, 200)
    failing_until(world, HOUR)
    live(world.run_until_idle)
    told = [line for line in lines() if line["level"] != "debug"]
    assert [(line["event"], line["channel"]) for line in told] == [
        ("channel.unavailable", "sms"),
        ("channel.recovered", "sms"),
    ]
    assert told[0]["reason"] == "provider answered 503"
    assert told[1]["seconds"] == pytest.approx(HOUR, abs=65)
    assert 60 < sum(line["event"] == "channel.probe_failed" for line in lines()) < 130


class Lacking(VirtualChannel):
    """A provider to which no connection can be made for ten minutes for want of a file."""

    async def probe(self) -> str | None:
        if trio.current_time() < 600:
            raise OutOfFiles("no connection to sms.example:443: Too many open files")
        return None


@pytest.mark.slow
def test_a_probe_without_a_free_file_is_put_off(world: VirtualWorld) -> None:
    """It is said as what it is, and no failure of the provider, which would lengthen the pause."""
    world.channels["sms"] = Lacking()
    enqueue(world, 200)
    failing_until(world, 60)
    with log_lines("debug") as logged:
        assert live(world.run_until_idle) < 700
        said = [line["reason"] for line in logged() if line["event"] == "files.exhausted"]
        failed = [line["reason"] for line in logged() if line["event"] == "channel.probe_failed"]
    assert all_sent(world, 200)
    assert 5 <= len(said) <= 11
    assert said[0] == "no connection to sms.example:443: Too many open files"
    assert failed == []


@pytest.mark.slow
def test_wrong_credentials_are_an_error_in_the_log_that_is_told_once(
    world: VirtualWorld, lines: Callable[[], list[dict[str, object]]]
) -> None:
    enqueue(world, 200)
    failing_until(world, HOUR, Misconfigured("provider answered 401"))
    live(world.run_until_idle)
    told = [(line["event"], line["level"]) for line in lines() if line["level"] != "debug"]
    assert told == [
        ("channel.misconfigured", "error"),
        ("channel.unavailable", "warning"),
        ("channel.recovered", "info"),
    ]


@pytest.mark.slow
def test_turned_off_a_dead_provider_gives_its_messages_away(world: VirtualWorld) -> None:
    """With `failures = 0` tries are used up as without a breaker, and the next channel takes over."""
    world.add(
        "breaker = { failures = 0 }\nretry = { attempts = 3 }\n"
        '[channels.email]\nadapter = "http"\nurl = "http://provider/email"\n'
        'json = { text = "{content.body}" }\n'
    )
    both = {"sms": {"text": "hello"}, "email": {"subject": "s", "body": "b"}}
    world.service.settings[1] = json.dumps({"content": {"en": both}})
    enqueue(world, 50)
    world.channels["sms"].verdict = lambda _dispatch: BUSY
    assert live(world.run_until_idle) < 60
    assert len(world.channels["sms"].attempts) == 150
    assert len(world.channels["email"].attempts) == 50
    assert all_sent(world, 50)
