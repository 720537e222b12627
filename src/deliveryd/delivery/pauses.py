"""The pauses in force, in memory: for the stations, which ask before each step of a message."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from deliveryd.journal.pauses import Pause, PauseKind
from deliveryd.model import Entry, channel_of

_PLACES = frozenset({PauseKind.CHANNEL, PauseKind.PROVIDER})


class Pauses:
    """What is paused. `version` changes with each change.

    A message is held by the first of these that is paused: itself, its settings, its channel, its provider.
    """

    def __init__(self) -> None:
        self.all: Sequence[Pause] = ()
        """All, those that aren't in force among them."""

        self.version = 0
        self.intake: Pause | None = None
        """The pause of the intake."""

        self.next_end = math.inf
        """When the first of them ends by itself."""

        self._messages: Mapping[int, Pause] = {}
        self._settings: Mapping[int, Pause] = {}
        self._channels: Mapping[str, Pause] = {}
        self._providers: Mapping[str, Pause] = {}
        self._waits: frozenset[str] = frozenset()
        self.any = False
        """Whether anything is paused: each step of a message asks."""

    def replace(self, pauses: Sequence[Pause], providers: Collection[str]) -> Collection[str]:
        """Set the pauses; return what the messages of those wait for that are in force no more.

        `providers` are those of all workers; pauses of other channels and providers aren't in force.
        """
        before = self._waits
        configured = {*providers, *map(channel_of, providers)}
        self.all = tuple(pauses)
        pauses = [each for each in pauses if each.kind not in _PLACES or each.key in configured]
        by_kind: dict[PauseKind, dict[str, Pause]] = {kind: {} for kind in PauseKind}
        for pause in pauses:
            by_kind[pause.kind][pause.key] = pause
        self.version += 1
        self.intake = next(iter(by_kind[PauseKind.INTAKE].values()), None)
        self.next_end = min((each.until for each in self.all if each.until is not None), default=math.inf)
        self._messages = {int(key): pause for key, pause in by_kind[PauseKind.MESSAGE].items()}
        self._settings = {int(key): pause for key, pause in by_kind[PauseKind.SETTINGS].items()}
        self._channels = by_kind[PauseKind.CHANNEL]
        self._providers = by_kind[PauseKind.PROVIDER]
        self._waits = frozenset(pause.waits_for for pause in pauses)
        self.any = bool(self._waits)
        return before - self._waits

    @property
    def intake_obstacle(self) -> str | None:
        """Why nothing is taken; None: the intake isn't paused."""
        return None if self.intake is None else f"paused: {self.intake}"

    @property
    def hold_messages(self) -> bool:
        """Whether single messages or settings are paused."""
        return bool(self._messages or self._settings)

    def is_in_force(self, waits_for: str) -> bool:
        """Whether the pause is in force whose end messages wait for."""
        return waits_for in self._waits

    def of_message(self, entry: Entry) -> Pause | None:
        """The pause of a message or of its settings."""
        return self._messages.get(entry.id) or self._settings.get(entry.settings_id)

    def of_channel(self, channel: str) -> Pause | None:
        """The pause of a channel."""
        return self._channels.get(channel)

    def of_provider(self, provider: str) -> Pause | None:
        """The pause of a provider alone."""
        return self._providers.get(provider)

    def at(self, provider: str) -> Pause | None:
        """The pause of a provider's channel, or of the provider."""
        return self._channels.get(channel_of(provider)) or self._providers.get(provider)

    def holding(self, entry: Entry, provider: str) -> Pause | None:
        """The pause that holds a message which would go to a provider."""
        return self.of_message(entry) or self.at(provider)
