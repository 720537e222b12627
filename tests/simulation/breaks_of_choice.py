"""Deliberate breaks of the choice among a channel's providers, and of what happens while one is down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import pytest

from deliveryd import model
from deliveryd.delivery import attempts
from deliveryd.delivery.choice import Choice, Sender
from deliveryd.delivery.waiting import Waiting
from deliveryd.journal.sql import recovery
from deliveryd.model import Entry, channel_of

Patch = pytest.MonkeyPatch


def doubt_moved_to_another_provider(patch: Patch) -> None:
    """What is in doubt at a provider that is down goes to one that works."""
    patch.setattr(Choice, "open_to", _enabled)
    patch.setattr(Choice, "has_other_for", lambda self, entry, name: any(self._others(entry, name)))
    patch.setattr(Choice, "can_move", lambda self, entry, _, name: any(self._others(entry, name)))


def _enabled(choice: Choice, entry: Entry) -> Mapping[str, Sender]:
    spent = {each.provider for each in entry.spent}
    return {name: sender for name, sender in choice.enabled.items() if name not in spent}


def one_key_for_all_providers(patch: Patch) -> None:
    """The key belongs to the message on its channel: two providers are asked under the same one."""
    key = model.message_key
    patch.setattr(
        attempts,
        "message_key",
        lambda namespace, id_, provider, generation: key(namespace, id_, channel_of(provider), generation),
    )


def new_key_on_the_way_back(patch: Patch) -> None:
    """A message that comes back to a provider is a new one there."""
    left = Entry.left
    patch.setattr(
        Entry, "left", lambda self, reason: left(self, reason)._replace(generation=self.generation + 1)
    )


def messages_kept_by_a_provider_that_is_down(patch: Patch) -> None:
    """Nothing leaves a provider whose breaker is open."""

    async def nothing(_self: Waiting, _provider: str) -> bool:
        return False

    patch.setattr(Choice, "has_other", lambda *_: False)
    patch.setattr(Choice, "has_other_for", lambda *_: False)
    patch.setattr(Choice, "can_move", lambda *_: False)
    patch.setattr(Waiting, "release", nothing)


def busy_answer_taken_for_a_doubt(patch: Patch) -> None:
    """What a provider that is down answered 503 for stays there."""
    for name in ("has_other_for", "can_move"):
        whole = getattr(Choice, name)
        patch.setattr(Choice, name, _only_what_never_arrived(whole))
    patch.setattr(recovery, "FREE", ())


def _only_what_never_arrived(whole: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, entry, *rest: not entry.may_have_arrived and whole(self, entry, *rest)


def disabled_provider_chosen(patch: Patch) -> None:
    """A provider that isn't enabled gets its share of new messages."""
    init = Choice.__init__

    def all_enabled(self: Choice, senders: Mapping[str, Sender]) -> None:
        init(self, {name: sender._replace(is_enabled=True) for name, sender in senders.items()})

    patch.setattr(Choice, "__init__", all_enabled)


def weight_0_chosen_like_the_others(patch: Patch) -> None:
    """A provider that stands by sends beside those that work."""
    init = Choice.__init__

    def all_weighted(self: Choice, senders: Mapping[str, Sender]) -> None:
        init(self, {name: sender._replace(weight=max(sender.weight, 1)) for name, sender in senders.items()})

    patch.setattr(Choice, "__init__", all_weighted)


def given_up_only_with_the_whole_channel(patch: Patch) -> None:
    """A message waits for the last provider that is left to it, while those that refused it work."""
    give_up = Choice.give_up

    def all_or_none(self: Choice, providers: Collection[str]) -> None:
        give_up(self, providers if self.enabled.keys() <= set(providers) else ())

    patch.setattr(Choice, "give_up", all_or_none)


def channel_given_up_with_its_first_provider(patch: Patch) -> None:
    """After a provider refused a message, or its tries are used up, no other one of the channel is tried."""
    patch.setattr(Entry, "given_up", Entry.off_channel)
