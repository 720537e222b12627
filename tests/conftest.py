"""Event loops of async tests, the rules of the tiers, and the figures of the simulation."""

import gc
import importlib
import importlib.util
import os
import re
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from support.memory import folder_of_files

NO_SKIPS = "DELIVERYD_NO_SKIPS"
SOAK = "DELIVERYD_SOAK"
QUICK = "not slow"
SLOW_MODULE = re.compile(r"^pytestmark = (?:\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)
PROCESS_EVENTS = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
)

# Also where the environment says otherwise, as containers often do: compiling each time takes 0.2 s for each
# process that is started, and 11 s for the tests in each worker of a run.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest.register_assert_rewrite("journal")  # its modules hold the cases, and aren't named like tests

# Environments for the quick tier alone have no browser, see locks/test.txt.
BROWSER = [f"process/test_{name}.py" for name in ("inbox_page", "status_page", "status_page_of_a_worker")]
collect_ignore = [] if importlib.util.find_spec("playwright") else BROWSER


LOOPS = ["asyncio", pytest.param("trio", marks=pytest.mark.slow)]
"""Event loops: the quick tier runs on the one that workers have."""


class QuickTier:
    """Keeps the quick tier quick: a test without the mark `slow` can't start a process."""

    def __init__(self) -> None:
        self.is_running = False
        sys.addaudithook(self.audit)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Watch set-up and test."""
        self.is_running = item.get_closest_marker("slow") is None
        try:
            return (yield)
        finally:
            self.is_running = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self) -> None:
        """Watch no teardown: it may end a fixture of slow tests in the same module."""
        self.is_running = False

    def audit(self, event: str, _arguments: tuple[object, ...]) -> None:
        """Refuse the start of a process."""
        if self.is_running and event in PROCESS_EVENTS:
            raise PermissionError(f"{event} in a test of the quick tier: mark the test with pytest.mark.slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Half as many again as cores: a third of the time the tests wait for processes that they started.

    Those of the quick tier start none, and each further worker collects all tests once more.
    """
    cores = os.cpu_count() or 1
    return cores if config.option.markexpr == QUICK else cores * 3 // 2


def pytest_configure(config: pytest.Config) -> None:
    """Watch the quick tier in every run, also in those of all tests; keep `tmp_path` in memory."""
    gc.disable()  # until all tests are collected
    config.pluginmanager.register(QuickTier(), "quick_tier")
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(folder_of_files()))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import for the quick tier what holds slow tests alone."""
    if config.option.markexpr != QUICK or not collection_path.match("test_*.py"):
        return None
    return True if SLOW_MODULE.search(collection_path.read_text(encoding="utf-8")) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make soak` runs."""
    if os.environ.get(SOAK):
        return
    left_out = [item for item in items if item.get_closest_marker("soak") is not None]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]


def pytest_collection_finish() -> None:
    """Leave modules and tests out of every later look for garbage: they are most of what there is."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", params=LOOPS)
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops, one after the other; a module bound to one of them overrides this."""
    backend: str = request.param
    return backend


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where DELIVERYD_NO_SKIPS is set, a run that skipped anything has failed; `-ra` lists the reasons."""
    gc.unfreeze()  # Hypothesis, which pytest may load only now, looks for who holds a source of chance
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get(NO_SKIPS) or reporter is None or "skipped" not in reporter.stats:
        return
    reporter.write_line(f"\n{NO_SKIPS} is set, so the skipped tests listed below fail this run.", red=True)
    if session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What all shares of the simulation lived through, in whichever process."""
    reports = [report for same in terminalreporter.stats.values() for report in same]
    shares = [
        value
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "simulation" and report.when == "call"
    ]
    if shares:
        figures = importlib.import_module("simulation.figures")  # not needed by anyone else
        terminalreporter.section("simulation")
        for line in figures.summed(shares).lines():
            terminalreporter.write_line(line)
