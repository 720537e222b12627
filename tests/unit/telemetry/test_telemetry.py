"""What the log says, and above all what it doesn't, read from real streams."""

import asyncio
import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
import pytest
import structlog

from deliveryd.errors import ConfigError, ServiceUnavailable
from deliveryd.states import State
from deliveryd.telemetry import log_events, log_writing
from deliveryd.telemetry.log_events import Event, log
from deliveryd.telemetry.log_writing import choose_layout

CANARY = "Canary-Greta+491701234567"


@pytest.fixture(autouse=True)
def _unconfigured() -> Iterator[None]:
    """Each test starts and ends with a log that nobody has configured."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], logging.getLogger("deliveryd").level
    yield
    root.handlers[:] = handlers
    logging.getLogger("deliveryd").setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def out() -> io.StringIO:
    """A stream that gets everything from debug upwards, as JSON."""
    stream = io.StringIO()
    log_writing.configure("debug", "json", stream)
    return stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


# ---- lines


def test_a_json_line_has_time_level_event_and_fields(out: io.StringIO) -> None:
    """Each line is one object; the time is UTC and always carries six decimals."""
    log(Event.QUEUE_TAKEN, count=100, seconds=0.25, state=State.IN_DOUBT, channels=["sms", "email"])

    [line] = lines(out)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line.pop("timestamp"))
    assert line == {
        "level": "info",
        "event": "queue.taken",
        "count": 100,
        "seconds": 0.25,
        "state": "in_doubt",
        "channels": "sms, email",
    }


def test_a_level_keeps_what_lies_below_it_out() -> None:
    """At info, what happens to single messages isn't written, and `enabled` says so beforehand."""
    stream = io.StringIO()
    log_writing.configure("info", "json", stream)

    log(Event.MESSAGE_SENT, message_id=1)
    log(Event.QUEUE_TAKEN, count=1)

    assert [line["event"] for line in lines(stream)] == ["queue.taken"]
    assert not log_events.enabled(log_events.DEBUG)
    assert log_events.enabled(log_events.INFO)


def test_nothing_is_written_before_configuration(capfd: pytest.CaptureFixture[str]) -> None:
    """A command that never configures the log has its output for itself."""
    log(Event.WORKER_DIED, reason="early")

    assert not log_events.enabled(log_events.ERROR)
    assert capfd.readouterr() == ("", "")


def test_the_last_configuration_counts(out: io.StringIO) -> None:
    """Configuring again moves all lines, those of libraries too, and doubles none."""
    second = io.StringIO()
    log_writing.configure("info", "json", second)

    log(Event.WORKER_READY)
    logging.getLogger("somewhere").warning("attention")

    assert out.getvalue() == ""
    assert [line["event"] for line in lines(second)] == ["worker.ready", "library.message"]


def test_lines_of_several_threads_stay_whole(out: io.StringIO) -> None:
    """The journal's thread and the loop write at the same time without mixing their lines."""

    def write() -> None:
        for number in range(200):
            log(Event.MESSAGE_SENT, message_id=number, channel="sms")

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(lines(out)) == 800


def test_every_event_has_a_name_a_level_and_a_meaning() -> None:
    """Names are `part.happening`, each said once, and each explained in one line."""
    for event in Event:
        assert re.fullmatch(r"[a-z]+\.[a-z_]+", event)
        assert event.name.lower() == event.replace(".", "_")
        assert event.level in (log_events.DEBUG, log_events.INFO, log_events.WARNING, log_events.ERROR)
        assert 10 < len(event.meaning) < 90
    assert len({event.meaning for event in Event}) == len(Event)


# ---- redaction


class Form(pydantic.BaseModel):
    age: int


def broken_form() -> Exception:
    """A library's error that repeats its input, raised where a local variable holds it too."""
    secret = CANARY
    try:
        Form.model_validate({"age": secret})
    except pydantic.ValidationError as error:
        error.add_note(CANARY)
        return error
    raise AssertionError


def wrapped(cause: BaseException, error: BaseException) -> BaseException:
    try:
        raise error from cause
    except type(error) as raised:
        return raised


def test_a_field_that_is_not_on_the_list_is_only_counted(out: io.StringIO) -> None:
    """Neither the value nor the name of a stray field gets out, whatever it is called."""
    stray: Any = {"text": CANARY, CANARY: 1, "count": 3}
    log(Event.MESSAGE_SENT, **stray)

    [line] = lines(out)
    assert line["count"] == 3
    assert line["redacted"] == 2
    assert CANARY not in out.getvalue()


def test_a_structure_in_an_allowed_field_does_not_get_out(out: io.StringIO) -> None:
    """Only plain values pass; a mapping or an object could hold anything."""
    variables: Any = {"name": CANARY}
    log(Event.MESSAGE_FAILED, reason=variables)

    assert lines(out)[0]["reason"] == "[redacted]"


@pytest.mark.parametrize(
    "error",
    [
        broken_form(),
        wrapped(broken_form(), ServiceUnavailable("the queue can't be read")),
        wrapped(ValueError(CANARY), RuntimeError(CANARY)),
        ExceptionGroup(CANARY, [ValueError(CANARY), ExceptionGroup(CANARY, [broken_form()])]),
        FileNotFoundError(2, CANARY, CANARY),
        KeyError(CANARY),
    ],
    ids=["pydantic", "a cause", "two causes", "groups", "a path", "a key"],
)
def test_messages_and_locals_of_foreign_exceptions_stay_inside(
    out: io.StringIO, error: BaseException
) -> None:
    """Of a library's exception only its type, its error code and its way through the code are told."""
    log(Event.CACHE_BROKEN, error=error)

    assert CANARY not in out.getvalue()
    assert type(error).__name__ in lines(out)[0]["error"]


def test_an_exception_of_ours_speaks_for_itself(out: io.StringIO) -> None:
    """The words of our own errors are kept, with the types of what lies below them and no trace."""
    error = wrapped(ConnectionRefusedError(111, CANARY), ServiceUnavailable("the queue can't be reached"))
    log(Event.QUEUE_UNAVAILABLE, error=error)

    [line] = lines(out)
    assert line["error"] == (
        "ServiceUnavailable: the queue can't be reached <- ConnectionRefusedError ECONNREFUSED"
    )
    assert "exception" not in line


def test_an_unforeseen_exception_shows_where_it_came_from(out: io.StringIO) -> None:
    """The trace names files, lines and functions, through causes and groups."""
    log(Event.WORKER_DIED, error=ExceptionGroup("several", [broken_form()]))

    trace = lines(out)[0]["exception"]
    assert "ExceptionGroup" in trace
    assert re.search(r"test_telemetry\.py:\d+ in broken_form", trace)
    assert "ValidationError" in trace


def test_a_text_cannot_forge_a_line_or_steer_a_terminal(out: io.StringIO) -> None:
    """Control characters become spaces and long texts are cut, also in the words of our own errors."""
    log(Event.CHANNEL_MISCONFIGURED, reason="one\nlevel=error \x1b[31mred" + "x" * 10_000)
    log(Event.CHANNEL_MISCONFIGURED, error=ConfigError(["one", "two\u2028three"]))

    first, second = lines(out)
    assert first["reason"].startswith("one level=error  [31mredxxx")
    assert len(first["reason"]) < 510
    assert second["error"] == "ConfigError: one two three"


# ---- libraries


def test_constant_words_of_a_library_are_kept_and_all_else_is_not(out: io.StringIO) -> None:
    """A record's arguments never get out, nor does a message that was put together before logging."""
    library = logging.getLogger("aiosmtplib")
    prepared = f"rejected {CANARY}"
    library.warning("connection lost")
    library.warning("rejected %s", CANARY)
    library.warning(prepared)
    library.error(ValueError(CANARY))
    library.critical("gone\n", exc_info=ValueError(CANARY))

    written = lines(out)
    assert CANARY not in out.getvalue()
    assert [line.get("words") for line in written] == ["connection lost", "rejected %s", None, None, "gone"]
    assert [line["level"] for line in written] == ["warning", "warning", "warning", "error", "error"]
    assert {line["library"] for line in written} == {"aiosmtplib"}
    assert all(re.fullmatch(r"test_telemetry:\d+", line["source"]) for line in written)
    assert written[4]["error"] == "ValueError"


def test_chatter_of_libraries_stays_out_even_at_debug(out: io.StringIO) -> None:
    """httpx logs every address that it asks at info: nothing below a warning is taken over."""
    for name in ("httpx", "httpcore", "uvicorn.access", "diskcache", "asyncio"):
        logging.getLogger(name).info("GET %s", CANARY)
        logging.getLogger(name).debug("GET %s", CANARY)

    assert out.getvalue() == ""


def test_a_record_whose_arguments_do_not_fit_is_no_accident(
    out: io.StringIO, capfd: pytest.CaptureFixture[str]
) -> None:
    """The standard library would print such a record's arguments; here it is a line like any other."""
    root = logging.getLogger()
    root.handlers[:] = [
        ours for ours in root.handlers if type(ours).__module__ == "deliveryd.telemetry.log_writing"
    ]
    template = "%d of %d"
    logging.getLogger("sloppy").warning(template, CANARY)

    assert lines(out)[0]["words"] == "%d of %d"
    assert capfd.readouterr() == ("", "")


def test_what_the_event_loop_reports_is_told_without_its_words(out: io.StringIO) -> None:
    """asyncio writes exceptions out in its messages: only the type and the trace remain."""

    async def main() -> None:
        def fail() -> None:
            raise ValueError(CANARY)

        asyncio.get_running_loop().call_soon(fail)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(main())

    [line] = lines(out)
    assert line["library"] == "asyncio"
    assert line["error"] == "ValueError"
    assert "in fail" in line["exception"]
    assert CANARY not in out.getvalue()


# ---- layouts and outputs


def test_a_pipe_gets_json_and_a_terminal_gets_lines_for_people() -> None:
    """`auto` looks at the stream."""
    reading, writing = os.pipe()
    with open(reading) as reader, open(writing, "w") as stream:  # noqa: PTH123 - a descriptor, no path
        log_writing.configure("info", "auto", stream)
        log(Event.QUEUE_TAKEN, count=7)
        assert json.loads(reader.readline())["count"] == 7

    master, terminal = pty.openpty()
    with open(terminal, "w") as stream:  # noqa: PTH123
        log_writing.configure("info", "auto", stream)
        log(Event.QUEUE_TAKEN, count=7)
        shown = os.read(master, 1000).decode()
    os.close(master)
    assert "queue.taken" in shown
    assert not shown.startswith("{")


def test_without_its_socket_the_journal_gets_a_priority_and_no_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When the stream is the one that systemd connected to its journal, lines start with their priority."""
    reading, writing = os.pipe()
    status = os.fstat(writing)
    monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
    with open(reading) as reader, open(writing, "w") as stream:  # noqa: PTH123
        log_writing.configure("debug", "auto", stream, tmp_path / "nowhere")
        log(Event.MESSAGE_SENT, message_id=5)
        log(Event.QUEUE_TAKEN, count=7)
        log(Event.CHANNEL_MISCONFIGURED, channel="sms", reason="no answer within 10 s")
        log(Event.WORKER_DIED, error=wrapped(ValueError(CANARY), RuntimeError(CANARY)))

        assert reader.readline() == "<7>message.sent message_id=5\n"
        assert reader.readline() == "<6>queue.taken count=7\n"
        assert reader.readline() == '<3>channel.misconfigured channel=sms reason="no answer within 10 s"\n'
        died = reader.readline()
        assert died.startswith('<3>worker.died error="RuntimeError <- ValueError" exception="RuntimeError\\n')


def test_a_stranger_to_the_journal_is_no_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A redirected stream inherits JOURNAL_STREAM but isn't the journal."""
    monkeypatch.setenv("JOURNAL_STREAM", "1:1")
    assert choose_layout(io.StringIO(), os.environ) == "json"
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as stream:  # noqa: PTH123
        assert choose_layout(stream, os.environ) == "json"


@pytest.mark.slow
def test_an_output_that_is_gone_costs_the_lines_only() -> None:
    """With nobody reading standard error any more, and with it closed, the process goes on to its end."""
    program = """
import os, sys
from deliveryd.telemetry import log_events, log_writing
from deliveryd.telemetry.log_events import Event
log_writing.configure("debug", "json")
sys.stdin.readline()
for number in range(20_000):
    log_events.log(Event.MESSAGE_SENT, message_id=number)
sys.stderr.close()
log_events.log(Event.WORKER_STOPPED)
print("done", flush=True)
os._exit(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stderr.close()
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
    assert process.returncode == 0


# ---- for those who look at a running worker


def test_the_last_warnings_are_kept_as_they_were_logged(out: io.StringIO) -> None:
    """The latest fifty, with their instants; nothing of what a line may not have is in them either."""
    assert log_writing.last_warnings() == []
    log(Event.QUEUE_TAKEN, count=1)
    for number in range(60):
        log(Event.QUEUE_UNAVAILABLE, reason=f"no answer {number}", delay=1.0, secret=CANARY)  # type: ignore[call-arg]
    error = ServiceUnavailable("down")
    log(Event.WORKER_DIED, error=ValueError(CANARY))
    log(Event.EVENTS_UNAVAILABLE, error=error)

    kept = log_writing.last_warnings()
    assert len(kept) == log_writing.MOST_WARNINGS
    assert kept[-3]["reason"] == "no answer 59"
    assert {"at", "level", "event"} <= kept[-1].keys()
    assert "exception" not in kept[-2]
    assert CANARY not in json.dumps(kept)


def test_without_a_log_there_are_no_warnings() -> None:
    """A worker within another program may leave the log to that."""
    assert log_writing.last_warnings() == []
