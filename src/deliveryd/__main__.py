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


def end_at_once(status: int, text: bytes = b"") -> None:
    """Have Ctrl-C end this process at once, unless it is ignored.

    Python would raise KeyboardInterrupt in whatever is imported or finished just then, and print tracebacks.
    """
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, lambda _signal, _frame: (os.write(2, text), os._exit(status)))


def main() -> None:
    """Run the command line. While it loads, and when all is done, Ctrl-C ends it at once."""
    open_standard_streams()
    end_at_once(1, b"deliveryd: interrupted\n")
    status = 0
    try:
        _run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise
    except KeyboardInterrupt:  # a second one, while the first is reported
        status = 1
        sys.exit(status)
    finally:
        end_at_once(status)


def handle_interrupts() -> None:
    """Have Ctrl-C raise KeyboardInterrupt, unless it is ignored."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run() -> None:
    """Run the command line, which is loaded unless a few lines answer."""
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

    app.run_program(on_loaded=handle_interrupts)


if __name__ == "__main__":
    main()
