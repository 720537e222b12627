"""Opens the directory of customers that is configured; no other one is loaded."""

from __future__ import annotations

from deliveryd.config import Config
from deliveryd.directory.base import Directory
from deliveryd.directory.file_options import FileOptions
from deliveryd.directory.none import NoDirectory, NoOptions
from deliveryd.directory.registry import open_source
from deliveryd.runtime.threads import in_thread
from deliveryd.telemetry.log_events import Event, log


async def open_directory(config: Config) -> Directory:
    """The customer directory. Must be called within an event loop; raises ConfigError."""
    customers = config.customers
    match customers.options:
        case NoOptions():
            return NoDirectory()
        case FileOptions(path=path):
            from deliveryd.directory.file import FileDirectory  # noqa: PLC0415  # loaded only where it is configured

            return await in_thread(
                lambda: FileDirectory.load(
                    path, lambda problem: log(Event.CUSTOMERS_FILE_PROBLEM, reason=problem)
                )
            )
        case options:
            from deliveryd.directory.remote import RemoteDirectory  # noqa: PLC0415  # loaded only where it is configured

            source = open_source(customers.source, options, customers.terms)
            return RemoteDirectory(source, customers.terms)
