"""The event loops that async tests run on, the rule that CI may skip nothing, the simulation's sums."""

import importlib
import os

import pytest

NO_SKIPS = "DELIVERYD_NO_SKIPS"


@pytest.fixture(scope="module", params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops, one after the other; a module bound to one of them overrides this."""
    backend: str = request.param
    return backend


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Where DELIVERYD_NO_SKIPS is set, a run that skipped anything has failed; `-ra` lists the reasons."""
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
