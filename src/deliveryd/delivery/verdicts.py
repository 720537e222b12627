"""From verdicts to steps: what becomes of a message after its attempt, and what it shows of the provider."""

from __future__ import annotations

from deliveryd import transitions
from deliveryd.channels.base import (
    Accepted,
    AskLater,
    Attempted,
    InDoubt,
    Misconfigured,
    OneVerdict,
    Refused,
    Stopped,
    Taken,
    TryAgain,
)
from deliveryd.delivery.common import Common
from deliveryd.delivery.message import Delivery
from deliveryd.delivery.terms import DispatchTerms
from deliveryd.metrics import VERDICT_WORDS
from deliveryd.model import SECOND, Content, Customer, Entry, Outcome, Transition, channel_of
from deliveryd.runtime import waits
from deliveryd.runtime.breaker import backoff
from deliveryd.states import State
from deliveryd.telemetry.log_events import Event, log

UNSENT_PAUSE = 1.0
"""Seconds until a message goes on that wasn't sent for a reason of this worker."""


class VerdictHandler:
    """Decides the step that follows from a verdict of one provider."""

    def __init__(self, terms: DispatchTerms, common: Common) -> None:
        self._name = terms.provider.name
        self._channel = channel_of(self._name)
        self._choice = terms.choice
        self._policy = terms.policy
        self._doubt = terms.doubt
        self._provider = terms.provider
        self._refusals = terms.provider.refusals
        self._blame = terms.provider.blame
        self._outcomes = common.outcomes
        self._clock = common.clock
        self._metrics = common.metrics
        self._intermediate = terms.intermediate
        self._awaited = terms.awaited

    def accepted(self, entry: Entry, verdict: Accepted, reason: str | None = None) -> Transition:
        """The step of a message that the provider accepted; `reason` is about its devices."""
        if verdict.lacks_id:
            self._provider.lacks_id()
            self._metrics.without_id.add_at(self._name)
        self._refusals.accepted(entry.settings_id)
        self._provider.answered()
        if self._blame.has_failures:
            self._blame.served(entry.settings_id, is_first=entry.stay_tries <= 1)
        confirmation = self._awaited.confirmation() if self._awaited is not None else None
        return transitions.accepted(
            entry, self._clock.now(), verdict.provider_id, self._intermediate, confirmation, reason=reason
        )

    def in_part(self, taken: Transition, rest: Content, asked: float | None) -> Transition:
        """The step of a message that one device has and others don't, `rest` being what these are sent again.

        None is, if doubts are held or the tries are used up: the customer has the message.
        """
        retry, tries = self._policy.retry, taken.entry.counted_tries
        if not self._doubt.repeats or tries >= retry.attempts:
            return taken
        return transitions.sent_in_part(taken, rest, taken.at + int(retry.pause(tries, asked) * SECOND))

    def rest_refused(self, entry: Entry, verdict: OneVerdict) -> Transition:
        """The end of a message that some devices have, and that none of the others will take."""
        self._refusals.unanswered(entry.settings_id)
        self._provider.answered()
        word = VERDICT_WORDS[type(verdict)]
        reason = None if isinstance(verdict, Accepted) else verdict.reason
        return transitions.rest_ends(entry, State.SENDING, self._clock.now(), Outcome(word, None, reason))

    def _unanswered(self, entry: Entry) -> None:
        """Nothing was sent, which shows nothing of the provider: another message may be the probe."""
        self._refusals.unanswered(entry.settings_id)
        self._provider.breaker.withdraw()

    def found(self, entry: Entry, found: Taken) -> Transition:
        """The step of a message in doubt that the provider turned out to have."""
        self._unanswered(entry)
        confirmation = self._awaited.confirmation() if self._awaited is not None else None
        return transitions.found_taken(
            entry, self._clock.now(), found.provider_id, self._intermediate, confirmation
        )

    def ask_later(self, entry: Entry, found: AskLater) -> Transition:
        """The step of a message in doubt about which the provider couldn't be asked; no try is counted."""
        self._unanswered(entry)
        return self._doubt.after_question(entry, found.reason, self._clock.now(), found.after)

    def not_repeated(self, entry: Entry, before: State, reason: str) -> Transition:
        """The step of a message that may have arrived, and that can't be repeated as it was."""
        self._unanswered(entry)
        if not entry.is_sent_in_part:
            log(
                Event.MESSAGE_IN_DOUBT,
                channel=self._channel, provider=self._name, message_id=entry.id, reason=reason,
            )  # fmt: skip
        return transitions.not_repeated(entry, before, self._clock.now(), reason)

    def expired(self, message: Delivery, now: int) -> Transition:
        """The step of a message whose time ran out before the provider could have it."""
        self._unanswered(message.entry)
        return transitions.expired(message.entry, State.SENDING, now, message.expires_at or now)

    def unsent(self, entry: Entry, reason: str) -> Transition:
        """The step of a message that wasn't sent for a reason of this worker, not of the provider."""
        self._unanswered(entry)
        now = self._clock.now()
        log(
            Event.ATTEMPT_RETRY,
            channel=self._channel, provider=self._name, message_id=entry.id, reason=reason,
            tries=entry.counted_tries, delay=UNSENT_PAUSE,
        )  # fmt: skip
        return transitions.unsent(entry, now, now + int(UNSENT_PAUSE * SECOND), reason)

    def unfit(self, entry: Entry, verdict: Refused) -> Transition:
        """The step of a message that no request can be made of, which shows nothing of the provider."""
        if entry.may_have_arrived:
            return self.not_repeated(entry, State.SENDING, transitions.unfit(verdict.reason))
        self._unanswered(entry)
        outcome = Outcome("refused", None, verdict.reason)
        return transitions.given_up(entry, self._clock.now(), outcome, verdict.reason)

    def decide(self, entry: Entry, customer: Customer | None, verdict: Attempted) -> Transition:
        """The step that follows from a verdict about a message to this customer."""
        if isinstance(verdict, Accepted):
            return self.accepted(entry, verdict)
        now = self._clock.now()
        if isinstance(verdict, TryAgain) and verdict.new_key and not entry.may_have_arrived:
            entry = entry.under_a_new_key()
        self._provider.note_failure(VERDICT_WORDS[type(verdict)], verdict.reason)
        if isinstance(verdict, Misconfigured):
            return self._rejected(entry, customer, verdict, now)
        if isinstance(verdict, Refused) and self._counts(entry, verdict):
            if self._refused(entry.settings_id, verdict):
                return self._postponed(entry, customer, verdict, now)
        elif isinstance(verdict, Refused | Stopped):
            self._refusals.unanswered(entry.settings_id)
            self._provider.answered()
        else:
            was_down = self._provider.is_down
            self._failed(entry, verdict)
            # One in doubt uses up its try in any case: it may have arrived, and isn't repeated for ever. So
            # does what is said of its recipient, which may be true.
            if isinstance(verdict, TryAgain) and (not verdict.counts or (was_down and not verdict.only_this)):
                return self._postponed(entry, customer, verdict, now)
        entry = entry.tried()
        if isinstance(verdict, TryAgain):
            return self._after_failure(entry, customer, verdict, now)
        if isinstance(verdict, Refused | Stopped):
            return self._after_refusal(entry, verdict, now)
        return self._doubt.after_try(
            entry, verdict.reason, now, verdict.after,
            words=verdict.words,
            provider_id=verdict.provider_id,
            is_unreadable=verdict.unreadable,
        )  # fmt: skip

    def _failed(self, entry: Entry, verdict: TryAgain | InDoubt) -> None:
        """Count a failure of the provider, unless the message or its settings are at fault.

        What a provider says of one recipient is about the provider where it says that of several, again, and
        accepts nobody: it may put off each recipient once (greylisting).
        """
        refusals, is_first = self._refusals, entry.stay_tries <= 1
        refusals.unanswered(entry.settings_id)
        is_accepting = refusals.is_accepting
        is_alone = self._blame.failed(entry.id, entry.settings_id, is_first=is_first) and is_accepting
        if isinstance(verdict, TryAgain) and verdict.only_this:
            if is_accepting:
                self._provider.answered()
                return
            is_alone = is_first or not self._blame.several_failed
        if is_alone:
            self._provider.breaker.put_off()
        else:
            self._provider.failed(verdict)

    def _rejected(
        self, entry: Entry, customer: Customer | None, verdict: Misconfigured, now: int
    ) -> Transition:
        """The set-up is at fault, and the message waits; unless the provider accepts the others."""
        self._refusals.unanswered(entry.settings_id)
        has_uncounted = entry.stay_tries > entry.counted_tries + 1
        if self._refusals.rejects_alone(entry.id, has_uncounted=has_uncounted):
            self._provider.breaker.withdraw()
            # The first rejection wasn't counted, since nothing showed yet whose fault it is.
            entry = entry.tried() if entry.counted_tries else entry.tried().tried()
            return self._after_failure(entry, customer, verdict, now)
        if self._provider.is_down or not self._refusals.is_accepting:
            self._provider.failed(verdict)
        return self._postponed(entry, customer, verdict, now)

    def _after_refusal(self, entry: Entry, verdict: Refused | Stopped, now: int) -> Transition:
        """The provider is given up, or its whole channel, unless the refusal is about a repeat.

        A provider may refuse a repeat because it has the message.
        """
        if entry.may_have_arrived:
            return self._doubt.after_try(entry, verdict.reason, now, words=verdict.words)
        if isinstance(verdict, Stopped):
            outcome = Outcome("stopped", None, verdict.reason, verdict.words)
            return transitions.off_channel(entry, now, outcome, verdict.reason)
        outcome = Outcome("refused", None, verdict.reason, verdict.words)
        if verdict.ends_channel:
            return transitions.off_channel(entry, now, outcome, verdict.reason)
        return transitions.given_up(entry, now, outcome, verdict.reason)

    def _counts(self, entry: Entry, verdict: Refused) -> bool:
        """Whether a refusal is about the settings, and not about this message alone.

        One that may have arrived can be refused for that, unless all others with its settings are as well.
        """
        alone = entry.may_have_arrived and not self._refusals.affects(entry.settings_id)
        return verdict.by is not None and not alone

    def _refused(self, settings_id: int, verdict: Refused) -> bool:
        """Count a refusal by the provider's status; return whether the message waits, as others do.

        Messages that were refused before their settings began to wait stay refused.
        """
        if self._refusals.refuses_all:
            if self._refusals.probed(settings_id):
                self._provider.failed(verdict)
            else:  # shows nothing of those that were probed before: the pause doesn't grow
                self._provider.breaker.put_off()
            self._defer_queued(settings_id)
            return True
        self._provider.answered()
        waited = settings_id in self._refusals.waiting
        if self._refusals.refused(settings_id, verdict):
            self._defer_queued(settings_id)
        return waited

    def _defer_queued(self, settings_id: int) -> None:
        """Have queued messages with these settings wait in the journal."""
        for message in self._provider.queue.take_settings(settings_id):
            self._outcomes.add(self._provider.defer(message))

    def _after_failure(
        self, entry: Entry, customer: Customer | None, verdict: TryAgain | Misconfigured, now: int
    ) -> Transition:
        """Try again after a pause of the message's own, or give the provider up.

        A pause that the provider asked for is kept, also when it works again: it may be about this message.
        """
        outcome = Outcome(VERDICT_WORDS[type(verdict)], None, verdict.reason, verdict.words)
        if entry.counted_tries >= self._policy.retry.attempts:
            return self._give_up(entry, outcome, f"{verdict.reason} (tried {entry.counted_tries} times)", now)
        if self._provider.is_down and self._choice.can_move(entry, customer, self._name):
            return transitions.moved_on(entry, now, outcome)
        asked = verdict.after if isinstance(verdict, TryAgain) else None
        pause = self._policy.retry.pause(entry.counted_tries, asked)
        log(
            Event.ATTEMPT_RETRY,
            channel=self._channel, provider=self._name, message_id=entry.id, reason=verdict.reason,
            tries=entry.counted_tries, delay=pause,
        )  # fmt: skip
        waits_for = waits.recovery(self._name) if self._provider.is_down and not asked else None
        return transitions.retry_later(entry, now, now + int(pause * SECOND), outcome, waits_for)

    def _postponed(
        self,
        entry: Entry,
        customer: Customer | None,
        verdict: TryAgain | Misconfigured | Refused,
        now: int,
    ) -> Transition:
        """Go on with another provider, or wait, without using up a try: the message isn't at fault.

        While the provider is up, a rejection sends none to another: the message may be at fault.
        """
        if isinstance(verdict, TryAgain):
            outcome, after = Outcome("try_again", None, verdict.reason, verdict.words), verdict.after
        else:
            outcome, after = Outcome("misconfigured", None, verdict.reason, verdict.words), None
        leaves = self._provider.is_down or isinstance(verdict, Refused)
        if leaves and self._choice.can_move(entry, customer, self._name):
            return transitions.moved_on(entry, now, outcome)
        breaker = self._policy.breaker
        pause = backoff(breaker.pause, breaker.max_pause, entry.stay_tries, asked=after)
        waits_for = None if after else waits.recovery(self._name)
        return transitions.retry_later(entry, now, now + int(pause * SECOND), outcome, waits_for)

    def _give_up(self, entry: Entry, outcome: Outcome, reason: str, now: int) -> Transition:
        """This provider is spent; the next one may take the message, if there is one.

        None may while an earlier try is in doubt, whatever became of its repeats: it could be sent twice.
        """
        if entry.doubt:
            details = f"{self._name}: {reason}"
            return transitions.exhausted(entry, State.SENDING, now, details, outcome)
        return transitions.given_up(entry, now, outcome, reason)
