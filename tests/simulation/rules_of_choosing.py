"""Rules about which channel and which of its providers a message goes to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from deliveryd.delivery.refusals import JUST_NOW, MOST_IN_A_ROW
from deliveryd.journal.orders import Action, ItemKind
from simulation.case import FOR_GOOD, TAKEN_FOR_SENT, Case
from simulation.expectation import Choice, channels_open_in, choices, enabled_in, providers_of, rendered
from simulation.ledger import Asked, TokenAsked, channel_served_by
from simulation.plan import CHANNELS, SMS, Life, Trouble
from simulation.rules_of_rejecting import tries_at
from simulation.serving import may_be_unserved, serving_in
from simulation.world import SECOND

OTHER_REASONS = (
    "missing placeholders",
    "no address",
    "unknown",
    "operator",
    "reported",
    "expired at",
    "not confirmed",
    "stopped",
    "installation",
    "is not in channels.",
    "premium-rate",
)
"""Words of the reasons that no provider gave when it was asked."""

LONGEST_BREAKER_PAUSE = 4.0
"""Seconds of `max_pause` of the breakers, see `worker.py`."""

WITHIN = 20.0
"""Seconds after which a message is sent, or a channel known to be down."""


def _first_by_order(case: Case) -> Iterator[str]:
    """The first channel is the best one that has a block and an address, and isn't down for long.

    Where a budget leads to the next one, it is a later one once that is spent.
    """
    if any(rule.get("spent") == "next" for rule in case.history.lives[0].limits):
        return
    if case.asked and case.asked[0].channel not in _best_at_first(case, case.asked[0]):
        yield f"went over {case.asked[0].channel} first"


def _best_at_first(case: Case, asked: Asked) -> set[str]:
    """The best channel now, and in earlier lives that may have died between an intent and its request."""
    plan, lives = case.history.plan, case.history.lives
    died = [earlier for earlier in range(asked.life) if earlier in case.history.ledger.crashed]
    best: set[str] = set()
    for one in (*case.history.ledger.process_of(asked.life), *died):
        for options in choices(plan, case.message, channels_open_in(plan, lives[one])):
            channels = [option.channel for option in options]
            last = next((each for each in channels if not _may_be_passed_over(case, each, asked)), None)
            best.update(channels if last is None else channels[: channels.index(last) + 1])
    return best


def _may_be_passed_over(case: Case, channel: str, by: Asked) -> bool:
    if _may_be_unavailable(case, channel, by) or case.may_be_stopped(channel, by.order):
        return True
    return may_be_unserved(case, channel)


def _may_be_unavailable(case: Case, channel: str, by: Asked) -> bool:
    """Whether all providers of a channel may have been down for so long that its messages go elsewhere."""
    plan, history = case.history.plan, case.history
    # A clock that was put forward counts over a restart, and for what another worker saw.
    jumped = sum(max(jump.seconds, 0.0) for jump in plan.jumps) if by.life or history.is_shared else 0.0
    # Since when a channel is down is kept by the clock of the worker that saw it, and judged by another one,
    # which may have other providers of it.
    apart = 2 * history.skew / SECOND
    lives = history.lives if history.is_shared else [history.lives[by.life]]
    waited = max(_down_for(case, channel, by, life) for life in lives)
    return waited + jumped + apart >= plan.tuning.unavailable_after


def _down_for(case: Case, channel: str, by: Asked, life: Life) -> float:
    """Seconds since the first failures of all providers that a life has of a channel, spent ones aside."""
    asked = case.history.ledger.asked
    before = [one for one in case.asked if one.order < by.order]
    failures = (
        min(
            next((one.at for one in asked if _is_failure(case, one, provider)), by.at),
            next((one.at for one in _without_token(case, provider)), by.at),
        )
        for provider in enabled_in(case.history.plan, life)
        if provider in _providers(case, channel)
        and not _is_spent(case, [one for one in before if one.provider == provider])
    )
    return by.at - max(failures, default=by.at)


def _without_token(case: Case, provider: str) -> Iterator[TokenAsked]:
    """The requests for tokens that left a provider without one."""
    ledger = case.history.ledger
    return (one for one in ledger.tokens_asked if one.client == provider and not ledger.brought_token(one))


def _is_failure(case: Case, asked: Asked, provider: str) -> bool:
    is_taken = asked.trouble in TAKEN_FOR_SENT and not case.may_be_doubtful(asked)
    return asked.provider == provider and not is_taken


def _channel_left_rightly(case: Case) -> Iterator[str]:
    """Another channel only after all providers refused or gave up, or configuration or address changed."""
    if Action.RESEND_ANEW in case.orders or case.history.plan.renewal is not None:
        return
    for earlier, later in pairwise(case.asked):
        is_better = _rank(case, later) <= _rank(case, earlier)  # a channel that was down is tried again
        if is_better or _may_be_passed_over(case, earlier.channel, later):
            continue
        if case.may_go_on and case.went_on(earlier.key, later):
            continue
        first, last = sorted((earlier.life, later.life))
        lives = case.history.lives[first : last + 1]
        own = [each for each in _steadily_enabled(case, lives) if each in _providers(case, earlier.channel)]
        before = [asked for asked in case.asked if asked.order <= earlier.order]
        for provider in own:
            at_it = [asked for asked in before if asked.provider == provider]
            if not _is_spent(case, at_it) and not _was_passed_over(case, at_it, earlier):
                yield f"left {earlier.channel} though {provider} could send"


def _rank(case: Case, asked: Asked) -> int:
    """The place of its channel among those that a message can take; without a place it is the last one."""
    known = next(choices(case.history.plan, case.message, CHANNELS))
    channels = [choice.channel for choice in known]
    return channels.index(asked.channel) if asked.channel in channels else len(channels)


def _providers(case: Case, channel: str) -> list[str]:
    life = Life((channel,), (), None)
    return providers_of(case.history.plan, life)


def _steadily_enabled(case: Case, lives: Sequence[Life]) -> list[str]:
    """The providers that get new messages in each of these lives, in none another one than in the next."""
    each = [enabled_in(case.history.plan, life) for life in lives]
    return each[0] if all(one == each[0] for one in each) else []


def _is_spent(case: Case, asked: Sequence[Asked]) -> bool:
    """Whether a provider refused a message, or had it as often as it may be tried."""
    tries = tries_at(case, asked)
    return any(one.trouble in FOR_GOOD for one in asked) or tries >= case.history.plan.tuning.attempts


def _was_passed_over(case: Case, asked: Sequence[Asked], last: Asked) -> bool:
    """Whether a provider was left for another one of its channel, and may have the message all the same."""
    return last not in asked and any(map(case.may_have_arrived, asked))


def _configured_for_it(case: Case) -> Iterator[str]:
    """Only providers of the configuration; one that isn't enabled repeats what may have arrived there."""
    for asked in case.asked:
        lives = [case.history.lives[each] for each in case.history.ledger.process_of(asked.life)]
        if not any(asked.provider in providers_of(case.history.plan, life) for life in lives):
            yield f"went to {asked.provider}, which isn't configured"
        elif all(asked.provider in life.disabled for life in lives) and not _may_be_there(case, asked):
            yield f"went to {asked.provider}, which isn't enabled"


def _may_be_there(case: Case, asked: Asked) -> bool:
    """Whether an earlier try at the provider may have arrived."""
    before = [one for one in case.under_key(asked.key) if one.order < asked.order]
    if case.is_to_device(asked):  # with the others that may have it, or may take it
        before = [one for one in case.asked if one.provider == asked.provider and one.order < asked.order]
    known = any(case.may_have_arrived(one) or case.may_be_doubtful(one) for one in before)
    return known or case.may_have_been_begun_before(asked)


def _weights_heeded(case: Case) -> Iterator[str]:
    """Weight 0 is chosen only while each other provider fails or is paused, or failed with the message."""
    plan = case.history.plan
    seen: set[str] = set()
    for asked in case.asked:
        if asked.provider not in seen and not plan.weights[asked.provider]:
            lives = case.history.lives[: asked.life + 1]
            for other in _providers(case, asked.channel):
                has_been_out = any(other not in enabled_in(plan, life) for life in lives) or any(
                    (halt.kind, halt.key) == (ItemKind.PROVIDER, other) and halt.at <= asked.at
                    for halt in plan.halts
                )
                if plan.weights[other] and not has_been_out and not _has_failed(case, other, asked):
                    yield f"went to {asked.provider} of weight 0, though {other} never failed"
        seen.add(asked.provider)


def _has_failed(case: Case, provider: str, by: Asked) -> bool:
    """Whether a provider didn't take some message before a request, for a reason that the worker knew."""
    failed = [one.order for one in case.history.ledger.asked if _is_failure(case, one, provider)]
    failed += [one.order for one in _without_token(case, provider)]
    return min(failed, default=by.order) < by.order


def _ended_when_all_were_spent(case: Case) -> Iterator[str]:
    """An error that gives providers' reasons alone comes when all that reach the customer are spent."""
    if not case.asked or Action.RESEND_ANEW in case.orders:
        return
    asked_of = {
        one.provider: [each for each in case.asked if each.provider == one.provider] for one in case.asked
    }
    for heard in case.heard:
        if heard.event.status != "error" or not _is_about(heard.event.details or "", asked_of):
            continue
        history = case.history
        lives = history.lives if history.is_shared else history.lives[case.asked[-1].life :]
        if not any(
            all(_is_over(case, asked_of.get(each, ())) for each in reaching)
            for life in lives
            for reaching in _reaching(case, life)
        ):
            yield f"ended in error before all providers were spent: {heard.event.details}"


def _is_over(case: Case, asked: Sequence[Asked]) -> bool:
    """Whether a provider is spent, or was left since it was down and may have the message all the same."""
    return _is_spent(case, asked) or any(map(case.may_have_arrived, asked))


def _is_about(details: str, tried: Collection[str]) -> bool:
    """Whether an error's details say nothing but why providers didn't take the message."""
    return all(
        (reason.partition(": ")[0] in tried or reason.startswith("device "))
        and not any(words in reason for words in OTHER_REASONS)
        for reason in details.split("; ")
    )


def _reaching(case: Case, life: Life) -> Iterator[list[str]]:
    """The enabled providers of the channels that a message can take, for each state of the directory."""
    plan = case.history.plan
    for options in choices(plan, case.message, channels_open_in(plan, life)):
        channels = {option.channel for option in options if not case.may_be_stopped(option.channel)}
        yield [
            each
            for each in enabled_in(plan, life)
            if channel_served_by(each) in channels
            and (channel_served_by(each) != SMS or serving_in(case, life, [each]))
        ]


def _taken_by_the_others(case: Case) -> Iterator[str]:
    """A provider that is down holds nothing that another one, or later another channel, could send."""
    plan = case.history.plan
    if not plan.has_spare or not case.asked or any(map(case.may_be_doubtful, case.asked)):
        return
    if case.may_have_been_begun_before(case.asked[0]):
        return
    if _may_wait_for_its_settings(case):
        return
    down = {outage.provider for outage in plan.outages}
    working = {channel_served_by(provider) for provider in plan.weights if provider not in down}
    most = max(
        _longest_hold(case, options, working)
        for life in plan.lives
        for options in choices(plan, case.message, channels_open_in(plan, life))
    )
    taken = (asked.at for asked in case.asked if asked.trouble in TAKEN_FOR_SENT)
    seconds = next(taken, float("inf")) - case.offered_at
    if any(asked.trouble is Trouble.UNAUTHORIZED for asked in case.asked):
        # While others were accepted just now, the message is at fault; then each rejection counts.
        most += JUST_NOW + plan.tuning.breaker * LONGEST_BREAKER_PAUSE
    if seconds > most:
        yield f"was held up for {seconds:.1f} s, though a provider works that could send it"


def _may_wait_for_its_settings(case: Case) -> bool:
    """Whether a provider refused so many messages with the same settings that the others wait there."""
    settings = {message.id: message.settings_id for message in case.history.plan.messages}
    refused = Counter(
        asked.provider
        for asked in case.history.ledger.asked
        if asked.trouble in FOR_GOOD and settings.get(asked.message_id) == case.message.settings_id
    )
    return any(refused[asked.provider] >= MOST_IN_A_ROW for asked in case.asked)


def _longest_hold(case: Case, options: Sequence[Choice], working: Collection[str]) -> float:
    """How many seconds a message may take that has these options, while some channels work."""
    plan = case.history.plan
    first = next((place for place, option in enumerate(options) if option.channel in working), None)
    if first is None or any(rendered(plan, case.message, option)[1] for option in options[: first + 1]):
        return float("inf")
    return WITHIN + first * (WITHIN + plan.tuning.unavailable_after)


RULES = (_first_by_order, _configured_for_it, _weights_heeded, _taken_by_the_others)
RULES_OF_EACH = (_channel_left_rightly, _ended_when_all_were_spent)
