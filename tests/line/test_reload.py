"""A changed configuration takes the place of the running one: in virtual time, on the real line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from deliveryd.channels.base import Accepted, InDoubt, Misconfigured, TryAgain
from deliveryd.errors import ConfigError
from deliveryd.worker.reload import APPLIED, UNCHANGED, LastReload
from support.messages import message
from support.virtual import CONFIG, VirtualChannel, VirtualSupervisor, VirtualWorld, live

pytestmark = pytest.mark.slow

SMS = json.dumps({"content": {"en": {"sms": {"text": "hello {word}"}}}})
TWO = (
    CONFIG.partition("[channels.sms]")[0]
    + """
[channels.sms.providers.a]
adapter = "http"
url = "http://a/"
json = { text = "{content.text}" }
[channels.sms.providers.b]
adapter = "http"
url = "http://b/"
json = { text = "{content.text}" }
"""
)
A, B = "sms/a", "sms/b"
ONLY_A = TWO.partition("[channels.sms.providers.b]")[0]


@pytest.fixture
def world(tmp_path: Path) -> VirtualWorld:
    world = VirtualWorld(tmp_path)
    world.service.settings[1] = SMS
    world.write(TWO)
    return world


class Stage:
    """A worker that runs, and the world around it."""

    def __init__(self, world: VirtualWorld, worker: VirtualSupervisor) -> None:
        self.world = world
        self.worker = worker

    async def reload(self, *, accept_orphans: bool = False) -> LastReload:
        """Reload as the command does."""
        reloader = self.worker.reloader
        assert reloader is not None
        return await reloader.reload(accept_orphans=accept_orphans)

    async def refused(self, *, accept_orphans: bool = False) -> list[str]:
        """Reload, and return why nothing was changed; files are named without their folder."""
        with pytest.raises(ConfigError) as error:
            await self.reload(accept_orphans=accept_orphans)
        return [problem.replace(f"{self.world.folder}/", "") for problem in error.value.problems]

    def enqueue(self, *ids: int) -> None:
        """Put messages into the queue."""
        self.world.service.enqueue(*(message(id_) for id_ in ids))

    def sent(self, provider: str) -> list[int]:
        """The messages that a provider accepted or was given, in their order."""
        return [dispatch.entry.id for _, dispatch in self.world.channels[provider].attempts]


def play(world: VirtualWorld, scene: Callable[[Stage], Awaitable[None]]) -> None:
    """Play a scene with a running worker."""

    async def run() -> None:
        worker, ready = world.supervisor(), trio.Event()
        worker._on_ready = lambda _addresses: ready.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run)
            await ready.wait()
            await scene(Stage(world, worker))
            worker.stop()

    live(run)


def rows(world: VirtualWorld, query: str) -> list[tuple[object, ...]]:
    return world.journal_rows(query)


# what is applied


def test_a_file_that_says_the_same_changes_nothing(world: VirtualWorld) -> None:
    """The adapters stay open, and the outcome says so."""

    async def scene(stage: Stage) -> None:
        before = stage.worker.parts.stations.dispatchers[A].terms
        found = await stage.reload()
        assert (found.outcome, found.changes) == (UNCHANGED, ())
        assert stage.worker.parts.stations.dispatchers[A].terms is before

    play(world, scene)


def test_an_added_provider_is_shown_beside_the_others_of_its_channel(world: VirtualWorld) -> None:
    """In the order of the file, though it came last."""
    other = '[channels.messenger]\nadapter = "http"\nurl = "http://m/"\njson = { text = "{content.text}" }\n'
    world.write(ONLY_A + other)

    async def scene(stage: Stage) -> None:
        world.write(TWO + other)
        assert (await stage.reload()).changes == ("channels.sms.providers.b (added)",)
        overview = stage.worker.health.overview()
        assert [each.identity for each in overview.providers] == [A, B, "messenger"]

    play(world, scene)


def test_an_added_provider_gets_its_share_and_a_removed_one_nothing_more(world: VirtualWorld) -> None:
    """Each message is sent once."""
    world.write(ONLY_A)

    async def scene(stage: Stage) -> None:
        stage.enqueue(*range(1, 11))
        await trio.sleep(10)
        world.write(TWO)
        assert (await stage.reload()).changes == ("channels.sms.providers.b (added)",)
        stage.enqueue(*range(11, 51))
        await trio.sleep(10)
        both = [stage.sent(A), stage.sent(B)]
        assert all(both)
        world.write(ONLY_A)
        assert (await stage.reload()).changes == ("channels.sms.providers.b (removed)",)
        stage.enqueue(*range(51, 91))
        await trio.sleep(10)
        assert stage.sent(B) == both[1]
        assert Counter([*stage.sent(A), *stage.sent(B)]) == dict.fromkeys(range(1, 91), 1)

    play(world, scene)
    for id_ in range(1, 91):
        assert world.service.statuses(id_) == ["dequeued", "sent"]


def test_attempts_under_way_end_on_the_adapter_that_they_began_with(world: VirtualWorld) -> None:
    """It is closed after the last of them, and once; new ones are made with the new one."""
    world.write(ONLY_A)
    old = world.channels[A]
    old.seconds = 60.0

    async def scene(stage: Stage) -> None:
        stage.enqueue(1)
        await trio.sleep(10)
        world.write(ONLY_A + "weight = 7\n")
        assert (await stage.reload()).changes == ("channels.sms.providers.a.weight",)
        stage.enqueue(3)
        await trio.sleep(10)
        world.write(ONLY_A.replace("http://a/", "http://elsewhere/"))
        del world.channels[A]
        weight, url = "channels.sms.providers.a.weight", "channels.sms.providers.a.url"
        assert (await stage.reload()).changes == (weight, url)
        stage.enqueue(2)
        await trio.sleep(10)
        assert stage.sent(A) == [2]
        assert (old.under_way, old.closed) == (2, 0)
        await trio.sleep(90)
        assert [dispatch.entry.id for _, dispatch in old.attempts] == [1, 3]
        assert (old.closed, old.cut_off) == (1, 0)

    play(world, scene)
    assert old.closed == 1
    for id_ in (1, 2, 3):
        assert world.service.statuses(id_) == ["dequeued", "sent"]


def test_a_removed_provider_ends_what_is_under_way_and_leaves_the_rest_to_others(
    world: VirtualWorld,
) -> None:
    """Those that wait to be tried again there go to the other one."""
    world.write(TWO + 'retry = { base = "1h", max = "1h" }\n')
    b = world.channels[B]
    b.verdict = lambda _dispatch: TryAgain("busy", only_this=True)
    b.seconds = 1.0

    async def scene(stage: Stage) -> None:
        stage.enqueue(*range(1, 21))
        await trio.sleep(8)
        waiting = set(stage.sent(B))
        assert waiting
        world.write(ONLY_A)
        [problem] = await stage.refused()
        assert problem == (
            "config.toml:channels.sms.providers.b: removing it would orphan messages:"
            f" {len(waiting)} waiting. Set enabled = false and remove it when none are left, or reload with"
            " --accept-orphans"
        )
        assert (await stage.reload(accept_orphans=True)).outcome == APPLIED
        await trio.sleep(20)
        assert set(stage.sent(A)) == set(range(1, 21))

    play(world, scene)
    for id_ in range(1, 21):
        assert world.service.statuses(id_) == ["dequeued", "sent"]


def test_what_is_in_doubt_at_a_removed_provider_is_held_and_repeated_when_it_is_back(
    world: VirtualWorld,
) -> None:
    """No other provider takes it; back in the configuration, the provider gets it under its key."""
    b = world.channels[B]
    b.verdict = lambda _dispatch: InDoubt("no answer")
    world.channels[A].seconds = 0.01

    async def scene(stage: Stage) -> None:
        stage.enqueue(*range(1, 21))
        await trio.sleep(5)
        doubtful = set(stage.sent(B))
        world.write(ONLY_A)
        [problem] = await stage.refused()
        assert f"{len(doubtful)} in doubt" in problem
        await stage.reload(accept_orphans=True)
        await trio.sleep(200)
        assert rows(world, "SELECT count(*) FROM message WHERE state = 5") == [(len(doubtful),)]
        assert not doubtful & set(stage.sent(A))
        keys = {dispatch.entry.id: dispatch.key for _, dispatch in b.attempts}
        b.attempts.clear()
        b.verdict = lambda dispatch: Accepted(dispatch.key)
        world.write(TWO)
        await stage.reload()
        await trio.sleep(700)
        assert {dispatch.entry.id: dispatch.key for _, dispatch in b.attempts} == keys

    play(world, scene)
    for id_ in range(1, 21):
        assert world.service.statuses(id_) == ["dequeued", "sent"]


def test_a_doubt_under_way_at_a_removed_provider_is_held_when_it_ends(world: VirtualWorld) -> None:
    """The attempt ends after the provider is gone."""
    world.write(ONLY_A)
    world.channels[A].seconds = 20.0
    world.channels[A].verdict = lambda _dispatch: InDoubt("no answer")

    async def scene(stage: Stage) -> None:
        stage.enqueue(1)
        await trio.sleep(5)
        world.write(TWO.replace("providers.a]", "providers.c]"))
        await stage.reload(accept_orphans=True)
        await trio.sleep(60)
        assert rows(world, "SELECT state FROM message WHERE id = 1") == [(5,)]
        assert not stage.worker.parts.memory.in_flight.held

    play(world, scene)


def test_messages_that_wait_for_wrong_credentials_go_on_when_these_are_changed(world: VirtualWorld) -> None:
    """The provider is probed at once, however long its breaker's pause is."""
    world.write(ONLY_A + 'breaker = { failures = 3, pause = "1h", max_pause = "1h" }\n')
    world.channels[A].verdict = lambda _dispatch: Misconfigured("provider answered 401")

    async def scene(stage: Stage) -> None:
        stage.enqueue(*range(1, 101))
        await trio.sleep(60)
        assert stage.worker.parts.stations.dispatchers[A].terms.provider.is_down
        del world.channels[A]
        world.write(world.path.read_text().replace("http://a/", "http://a/right"))
        await stage.reload()
        await trio.sleep(30)
        assert set(stage.sent(A)) == set(range(1, 101))

    play(world, scene)


def test_a_breaker_stays_open_over_a_change_of_anything_else(world: VirtualWorld) -> None:
    """A new weight, or new pauses, say nothing of whether the provider works."""
    world.channels[A].verdict = lambda _dispatch: TryAgain("busy")

    async def scene(stage: Stage) -> None:
        stage.enqueue(*range(1, 101))
        await trio.sleep(60)
        assert stage.worker.parts.stations.dispatchers[A].terms.provider.is_down
        tried = len(stage.sent(A))
        world.write(TWO.replace('url = "http://a/"', 'url = "http://a/"\nweight = 5\nconcurrency = 7'))
        assert len((await stage.reload()).changes) == 2
        assert stage.worker.parts.stations.dispatchers[A].terms.provider.is_down
        stage.enqueue(*range(101, 151))
        await trio.sleep(5)
        assert len(stage.sent(A)) - tried < 8

    play(world, scene)


def test_what_is_queued_says_what_the_new_options_say(world: VirtualWorld) -> None:
    """A change of rendering concerns all messages without an intent."""
    world.write(ONLY_A + 'rate = "1/s"\n')
    world.service.settings[1] = json.dumps(
        {
            "content": {
                "en": {"sms": {"text": "english"}},
                "de": {"sms": {"text": "deutsch"}},
            }
        }
    )

    async def scene(stage: Stage) -> None:
        stage.enqueue(*range(1, 31))
        await trio.sleep(10)
        world.write('[content]\nlanguages = ["de"]\n' + world.path.read_text())
        assert (await stage.reload()).changes == ("content.languages",)
        began = len(stage.sent(A))
        await trio.sleep(60)
        texts = [dispatch.rendered.fields["text"] for _, dispatch in world.channels[A].attempts]
        assert set(texts[:began]) == {"english"}
        assert set(texts[began + 1 :]) == {"deutsch"}
        assert Counter(stage.sent(A)) == dict.fromkeys(range(1, 31), 1)

    play(world, scene)


def test_limits_are_in_force_at_once(world: VirtualWorld) -> None:
    """A long pause of an idle worker ends, and the new limits bound what is taken."""
    world.write('[queue]\npoll_interval = "20m"\nmax_poll_interval = "20m"\n' + TWO)

    async def scene(stage: Stage) -> None:
        await trio.sleep(100)
        stage.enqueue(*range(1, 11))
        world.write('[queue]\nmax_in_flight = 5\nbatch_size = 3\npoll_interval = "1s"\n' + TWO)
        assert len((await stage.reload()).changes) == 4
        await trio.sleep(20)
        assert len({*stage.sent(A), *stage.sent(B)}) == 10
        assert stage.worker.parts.memory.in_flight.most == 5

    play(world, scene)


# what is refused


def test_every_mistake_is_named_and_the_worker_goes_on_as_before(world: VirtualWorld) -> None:
    """The status has the outcome with all of them."""

    async def scene(stage: Stage) -> None:
        world.write(TWO.replace('url = "http://a/"', 'url = "ftp://a/"\nweight = -1'))
        problems = await stage.refused()
        assert [problem.partition(": ")[0] for problem in problems] == [
            "config.toml:channels.sms.providers.a.weight",
            "config.toml:channels.sms.providers.a.url",
        ] or len(problems) == 2
        stage.enqueue(1)
        await trio.sleep(5)
        assert [*stage.sent(A), *stage.sent(B)] == [1]
        assert stage.worker.reloader is not None
        last = stage.worker.reloader.last
        assert last is not None
        assert (last.outcome, len(last.problems)) == ("refused", 2)
        world.write("no TOML")
        assert "config.toml" in (await stage.refused())[0]
        world.path.unlink()
        assert "config.toml" in (await stage.refused())[0]
        world.write(TWO)
        assert (await stage.reload()).outcome == UNCHANGED

    play(world, scene)


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("journal.db", "other.db", "journal.url"),
        ('cache_dir = "cache"', 'cache_dir = "other"', "settings.cache_dir"),
        ('cache_dir = "cache"', 'cache_dir = "cache"\nsize_limit = "1GiB"', "settings.size_limit"),
        ('[admin]\nlisten = ""', '[admin]\nlisten = "127.0.0.1:9470"', "admin.listen"),
        ('[receipts]\nlisten = ""', '[receipts]\nlisten = "127.0.0.1:9471"', "receipts.listen"),
        ("[journal]", '[events]\ndetails_field = "why"\n[journal]', "events.details_field"),
        ("[journal]", "[journal]\nkeep_variables = true", "journal.keep_variables"),
    ],
)
def test_what_needs_a_restart_is_refused_by_name(
    world: VirtualWorld, before: str, after: str, key: str
) -> None:
    """Nothing is applied then, whatever else has changed."""

    async def scene(stage: Stage) -> None:
        assert before in TWO
        world.write(TWO.replace(before, after).replace("http://a/", "http://new/"))
        [problem] = await stage.refused()
        text = "needs a restart: a reload can't change it, and has changed nothing"
        assert problem == f"config.toml:{key}: {text}"
        assert stage.worker.config.channels.providers[A].options.url == "http://a/"  # type: ignore[attr-defined]

    play(world, scene)


def test_a_part_that_cant_be_opened_leaves_everything_as_it_was(world: VirtualWorld) -> None:
    """What was opened before it is closed again."""

    async def scene(stage: Stage) -> None:
        dispatchers = dict(stage.worker.parts.stations.dispatchers)
        world.unopenable = B
        world.write(TWO.replace("http://a/", "http://new/").replace("http://b/", "http://newer/"))
        assert await stage.refused() == ["channels.sms.providers.b: can't be opened"]
        assert world.channels[A].closed == 1
        assert stage.worker.parts.stations.dispatchers == dispatchers

    play(world, scene)


def test_two_reloads_at_once_are_done_one_after_the_other(world: VirtualWorld) -> None:
    """The second one finds nothing left to change."""

    async def scene(stage: Stage) -> None:
        world.write(ONLY_A)
        outcomes: list[str] = []

        async def once() -> None:
            outcomes.append((await stage.reload()).outcome)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(once)
            nursery.start_soon(once)
        assert sorted(outcomes) == [APPLIED, UNCHANGED]

    play(world, scene)


def test_an_adapter_that_fails_in_any_way_leaves_the_worker_alone(world: VirtualWorld) -> None:
    """A plug-in may raise whatever it does."""

    async def scene(stage: Stage) -> None:
        world.write(TWO.replace("http://a/", "http://new/"))
        world.channels.default_factory = _broken
        world.channels.clear()
        assert await stage.refused() == ["channels.sms.providers.a: RuntimeError"]
        stage.worker.reload()  # as SIGHUP does
        await trio.sleep(1)
        assert stage.worker.reloader is not None
        assert stage.worker.reloader.last is not None
        assert stage.worker.reloader.last.outcome == "refused"

    play(world, scene)


def _broken() -> VirtualChannel:
    raise RuntimeError("canary")
