"""Adds up what a configuration may have open at once, and fits the attempts into the limit on open files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from deliveryd.config import Config
from deliveryd.delivery.policy import DispatchPolicy
from deliveryd.delivery.settings import MOST_FETCHES
from deliveryd.http.peers import MOST_UNFINISHED
from deliveryd.runtime.process import file_limit
from deliveryd.telemetry.log_events import Event, log

FILES_BESIDE = 128
"""Journal and caches with the threads that use them, the control socket and its clients, the service's queue
and events, the log, the collector, files that are read again, modules while they are loaded."""

OF_A_SERVER = 3 * MOST_UNFINISHED
"""Connections of one server: those that wait for their client, and complete requests."""


class OpenFiles(NamedTuple):
    """What a configuration may open at once: for attempts, for all else, and how much there may be."""

    attempts: int
    others: int
    limit: int

    @property
    def is_enough(self) -> bool:
        """Whether everything may be open at once."""
        return self.attempts + self.others <= self.limit

    def lowered(self, concurrency: int) -> int:
        """Return how many attempts of one provider fit. All give up the same part; half is for attempts."""
        room = max(self.limit - self.others, self.limit // 2)
        return concurrency if room >= self.attempts else max(concurrency * room // self.attempts, 1)

    def __str__(self) -> str:
        return f"{self.attempts + self.others} files may be open at once, and the limit is {self.limit}"


def open_files(config: Config) -> OpenFiles:
    """Return what may be open at once. A reload needs more, until attempts under way have ended."""
    attempts = sum(each.common.concurrency for each in config.channels.providers.values())
    directory = getattr(config.customers.options, "concurrency", 0)
    listening = [config.admin.listen, config.receipts.listen if config.channels.reporting else ""]
    servers = OF_A_SERVER * sum(map(bool, listening))
    return OpenFiles(attempts, FILES_BESIDE + MOST_FETCHES + directory + servers, file_limit())


def within_file_limit(config: Config, policies: Mapping[str, DispatchPolicy]) -> Mapping[str, DispatchPolicy]:
    """Return the policies of all providers, with less concurrency if not everything may be open at once."""
    files = open_files(config)
    if files.is_enough:
        return policies
    log(Event.FILES_FEW, reason=str(files))
    return {
        name: policy._replace(concurrency=files.lowered(policy.concurrency))
        for name, policy in policies.items()
    }
