"""Forks workers that have loaded the program already: `python -m support.fork_server DESCRIPTOR`.

Each order comes over that socket, with descriptors: the worker's standard streams, and one for the answer.
A process between this one and the worker writes there the worker's process id, and how it ended.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
from contextlib import suppress
from importlib import import_module

LARGEST = 1 << 17
DESCRIPTORS = 4
LOADED_LATER = (
    "anyio._backends._asyncio",
    "deliveryd.channels.http.adapter",
    "deliveryd.channels.smtp.adapter",
    "deliveryd.commands.run.run",
    "deliveryd.http.server",
    "deliveryd.journal.postgresql.opening",
    "deliveryd.receipts.endpoint",
    "deliveryd.worker.supervisor",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)
"""What a worker would import after its start."""


def become_a_worker(orders: socket.socket) -> bool:
    """Fork a worker for each order; return True in the worker, and False when no more orders come."""
    while True:
        order, descriptors, _, _ = socket.recv_fds(orders, LARGEST, DESCRIPTORS)
        if not order:
            return False
        if not os.fork():
            orders.close()
            *streams, answer = descriptors
            _see_end(answer, streams)
            _set_up(json.loads(order), answer, streams)
            return True
        for each in descriptors:
            os.close(each)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def _see_end(answer: int, streams: list[int]) -> None:
    """Fork; return in the worker alone, and tell how that ends."""
    pid = os.fork()
    if not pid:
        return
    for each in (*streams, 0, 1, 2):
        os.close(each)
    os.write(answer, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _set_up(order: dict[str, object], answer: int, streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for each in (answer, *streams):
        os.close(each)
    words, folder, environ = order["words"], order["folder"], order["environ"]
    assert isinstance(words, list)
    assert isinstance(folder, str)
    assert isinstance(environ, dict)
    sys.argv, sys.path[0] = words, folder
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)


def main() -> None:
    """Serve; where this returns, the process has ended, or is a worker that has."""
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal; the tests' end is ours
    program = import_module("deliveryd.__main__")
    for module in LOADED_LATER:
        import_module(module)
    gc.collect()
    gc.freeze()
    if become_a_worker(orders):
        signal.signal(signal.SIGINT, signal.default_int_handler)
        program.main()


if __name__ == "__main__":
    main()
