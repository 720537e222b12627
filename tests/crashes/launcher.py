"""Starts workers that are watched.

`python -m crashes.launcher [--failpoint NAME[:N]] [--counts FILE] -- run --config FILE ...` is one worker;
`python -m crashes.launcher --serve` forks one for each order on its standard input, so that a start costs no
imports. A worker that was forked waits for a line "go", since somebody may want to watch it from the start.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import anyio
import anyio.to_thread

import deliveryd.journal.sqlite.journal as journals
from crashes.failpoints import Failpoint, Watch, install
from deliveryd.commands.app import run_program as deliveryd
from deliveryd.delivery import availability, deadlines
from deliveryd.runtime.threads import Blocking, in_thread
from support.fork_server import LOADED_LATER

OFTEN = 0.1
"""Seconds between two looks for what passes unnoticed otherwise."""


def main() -> None:
    """Start one worker, or serve."""
    parser = argparse.ArgumentParser(prog="python -m crashes.launcher", description=__doc__)
    parser.add_argument("--serve", action="store_true", help="fork a worker for each line of JSON")
    parser.add_argument("--failpoint", metavar="NAME[:N]", type=failpoint_of, help="where to die")
    parser.add_argument("--counts", metavar="FILE", help="where to write how often each boundary was passed")
    parser.add_argument("arguments", nargs="*", help="the worker's own, after --")
    options = parser.parse_args()
    if options.serve:
        serve()
    else:
        live(options.arguments, options.failpoint, options.counts)


def failpoint_of(text: str) -> Failpoint:
    """Read `NAME` or `NAME:N`."""
    name, _, passing = text.partition(":")
    return Failpoint(name, int(passing or 1))


def live(arguments: Sequence[str], failpoint: Failpoint | None, counts: str | None) -> NoReturn:
    """Be a worker, to the end of this process."""
    watch = Watch(failpoint)
    install(watch)
    look_often()
    sys.argv = ["deliveryd", *arguments]
    status = 0
    try:
        deliveryd()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        if counts is not None:
            Path(counts).write_text(json.dumps(watch.counts), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def look_often() -> None:
    """Have the worker look often for deadlines and channels that are down, so that lives stay short."""
    deadlines.LENIENCE = 0.0
    for module, name in ((deadlines, "TICK"), (availability, "HEARTBEAT_INTERVAL")):
        setattr(module, name, OFTEN)


def serve() -> None:
    """Fork workers, one at a time, until the input ends: each line starts one and is answered twice.

    First by its process id, then, when it has ended, by its status; a signal's number is negative.
    """
    for module in LOADED_LATER:
        import_module(module)
    gc.collect()
    gc.freeze()
    while line := _read_line():
        if not line.startswith(b"{"):  # what a worker didn't read that was killed before it began
            continue
        pid = os.fork()
        if not pid:
            _become_a_worker(json.loads(line))
        _say({"pid": pid})
        _, status = os.waitpid(pid, 0)
        _say({"status": os.waitstatus_to_exitcode(status)})


def _become_a_worker(order: dict[str, Any]) -> NoReturn:
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if _read_line() != b"go\n":
        os._exit(0)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, standard in ((null, 0), (log, 1), (log, 2)):
        os.dup2(ours, standard)
    os.closerange(3, max(log, null) + 1)
    if order["one_thread"]:
        use_one_thread()
    failpoint = Failpoint(*order["failpoint"]) if order["failpoint"] else None
    live(order["arguments"], failpoint, order["counts"])


def use_one_thread() -> None:
    """Let one thread do all that blocks, so that the number of a system call means the same in every run."""
    run_sync = anyio.to_thread.run_sync
    limiters: list[anyio.CapacityLimiter] = []

    async def run_in_the_one(work: Callable[..., Any], *arguments: Any, **how: Any) -> Any:
        if not limiters:
            limiters.append(anyio.CapacityLimiter(1))
        return await run_sync(work, *arguments, **{**how, "limiter": limiters[0]})

    @asynccontextmanager
    async def the_one(_name: str) -> AsyncIterator[Blocking]:
        yield in_thread

    anyio.to_thread.run_sync = run_in_the_one  # type: ignore[assignment]
    vars(journals)["own_thread"] = the_one


def _read_line() -> bytes:
    """A line of the input, and not a byte more: what follows may be for the worker that is forked now."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            return b""
        line += byte
    return line


def _say(answer: dict[str, int]) -> None:
    os.write(1, json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    main()
