"""What a provider's configuration says of its attempts, and of those in doubt (design 4, promise 2). Pure."""

from __future__ import annotations

from typing import NamedTuple

from deliveryd import transitions
from deliveryd.model import SECOND, Entry, Outcome, Transition, channel_of
from deliveryd.options.units import Rate
from deliveryd.runtime.breaker import BreakerPolicy, backoff
from deliveryd.states import State
from deliveryd.telemetry.log_events import Event, log


class RetryPolicy(NamedTuple):
    """How often a message is tried at a provider, and the seconds between: `base`, doubled, up to `max`."""

    attempts: int
    base: float
    max: float

    def pause(self, tries: int, at_least: float | None = None) -> float:
        """Seconds to wait after this many tries, jittered; never less than the provider asked for."""
        return backoff(self.base, self.max, tries, asked=at_least)


class DispatchPolicy(NamedTuple):
    """The limits of a provider's attempts.

    A repeat in doubt comes at least `lookup_after` seconds after the doubt. `timeout`: the seconds that an
    attempt takes at most.
    """

    concurrency: int
    rate: Rate | None
    retry: RetryPolicy
    breaker: BreakerPolicy
    resend_in_doubt: bool
    lookup_after: float = 0.0
    timeout: float = 10.0


class DoubtPolicy:
    """Decides whether a message in doubt is repeated (`on_in_doubt`), and when."""

    def __init__(self, provider: str, policy: DispatchPolicy) -> None:
        self._provider = provider
        self._channel = channel_of(provider)
        self._policy = policy

    def follow(self, policy: DispatchPolicy) -> None:
        """Decide by another policy from now on, about attempts that are under way as well."""
        self._policy = policy

    @property
    def repeats(self) -> bool:
        """Whether what is in doubt is sent again, and not held for an operator."""
        return self._policy.resend_in_doubt

    def after_try(
        self,
        entry: Entry,
        reason: str,
        now: int,
        at_least: float | None = None,
        *,
        words: str | None = None,
        provider_id: str | None = None,
        is_unreadable: bool = False,
    ) -> Transition:
        """The step after a try whose outcome is unknown; a repeat waits at least `at_least` seconds.

        `words` are the provider's own, and `provider_id` is its id of the message, if it gave one. After an
        answer that can't be read there is one repeat at most: the next answer may be the same each time.
        """
        is_held = not self.repeats
        if is_unreadable and entry.doubt:  # whatever the policy says by the next start
            is_held, reason = True, reason + transitions.UNREADABLE_TWICE
        outcome = Outcome("in_doubt", provider_id, reason, words)
        self._log(entry, reason)
        if is_held:
            return transitions.held_in_doubt(entry, now, outcome)
        return self._repeat(entry._replace(doubt=True), State.SENDING, now, outcome, at_least)

    def after_question(
        self, entry: Entry, reason: str, now: int, at_least: float | None = None
    ) -> Transition:
        """The step of a message about which its provider couldn't be asked: it waits for the next question.

        It does so by the policy, or by an operator's order that `reason` begins with.
        """
        outcome = Outcome("in_doubt", None, reason)
        self._log(entry, reason)
        if not self.repeats and not reason.startswith(transitions.REPEAT_ORDERED):
            return transitions.held_in_doubt(entry, now, outcome)
        return self._wait(entry, State.SENDING, now, outcome, at_least)

    def after_hold(self, entry: Entry, reason: str, now: int) -> Transition | None:
        """The step of a message that was held; None: it stays so, by the policy or for its reason.

        The policy is about doubts alone: what was only put off, and didn't fit, is tried again.
        """
        stays = transitions.CHANGED, transitions.UNREADABLE_TWICE
        if (entry.doubt and not self.repeats) or reason.endswith(stays):
            return None
        outcome = Outcome("in_doubt", None, reason)
        return self._repeat(entry, State.IN_DOUBT, now, outcome)

    def _repeat(
        self, entry: Entry, before: State, now: int, doubt: Outcome, at_least: float | None = None
    ) -> Transition:
        outcome = doubt if before is State.SENDING else None  # a held try has its outcome
        if entry.counted_tries >= self._policy.retry.attempts:
            details = f"{self._provider}: {doubt.reason} (tried {entry.counted_tries} times)"
            return transitions.exhausted(entry, before, now, details, outcome)
        return self._wait(entry, before, now, outcome, at_least)

    def _wait(
        self, entry: Entry, before: State, now: int, outcome: Outcome | None, at_least: float | None
    ) -> Transition:
        at_least = max(at_least or 0.0, self._policy.lookup_after) or None
        pause = self._policy.retry.pause(max(entry.stay_tries, 1), at_least)
        step = transitions.repeated(entry, before, now, now + int(pause * SECOND), outcome)
        expires_at = None if entry.content is None else entry.content.expires_at
        return step if expires_at is None else transitions.no_later_than(step, expires_at + 1)

    def _log(self, entry: Entry, reason: str) -> None:
        log(
            Event.MESSAGE_IN_DOUBT,
            channel=self._channel, provider=self._provider, message_id=entry.id, reason=reason,
        )  # fmt: skip
