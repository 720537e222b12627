"""The program: `deliveryd`, and `python -m deliveryd`."""

from __future__ import annotations

import gc
import os
import signal
import sys

from deliveryd import __version__


def open_standard_streams() -> None:
    """Open the descriptors 0 to 2 that are closed: a journal would take a number that others write to."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            stream = os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def main() -> None:
    """Run the command line, which is loaded unless a few lines answer."""
    open_standard_streams()
    if os.getpid() == 1:  # of a container: the kernel ignores what PID 1 has no handler for
        signal.signal(signal.SIGTERM, lambda _signal, _frame: os._exit(128 + signal.SIGTERM))
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"deliveryd {__version__}")  # noqa: T201  # the program's answer
        return
    if sys.argv[1:2] == ["health"]:
        from deliveryd.commands.watch.quick_health import answer_health  # noqa: PLC0415  # without the program

        if (status := answer_health(sys.argv[2:])) is not None:
            sys.exit(status)
    gc.disable()  # until the command is loaded
    from deliveryd.commands import app  # noqa: PLC0415  # after the handler, since loading it takes long

    app.run_program()


if __name__ == "__main__":
    main()
