"""The event loops that async tests run on, and the rule that CI may skip nothing."""

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
