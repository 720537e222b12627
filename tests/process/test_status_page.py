"""The status page in a real browser: what an operator sees, what they can order, and what nobody else can."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.from_thread
import httpx
import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from deliveryd.admin.actions import Actions
from deliveryd.admin.app import admin_app
from deliveryd.http import server
from deliveryd.http.addresses import bind, url_of
from deliveryd.metrics import Metrics
from deliveryd.telemetry.overview import Failure, Overview, Paused, Points
from support.overviews import BUSY, DOWN, IDLE, TOKEN, Operator, Worker, hour, provider

CHROMIUM = shutil.which("chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
DESKTOP, PHONE = (1280, 900), (390, 844)
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>'

FAINT = """() => {
  const light = (text) => {
    const [r, g, b] = text.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4));
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = getComputedStyle(at).backgroundColor;
      if (color !== "rgba(0, 0, 0, 0)") return color;
    }
    return "rgb(255, 255, 255)";
  };
  const faint = [];
  for (const element of document.querySelectorAll("body *")) {
    const has = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!has || !element.checkVisibility()) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(ground(element))];
    if ((Math.max(a, b) + .05) / (Math.min(a, b) + .05) < 4.5) faint.push(element.outerHTML);
  }
  return faint;
}"""
"""Texts whose contrast is below what WCAG asks for (AA, 4.5 to 1)."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@dataclass
class Site:
    """The pages of a worker, in a thread, which a test can stop and start again at the same address."""

    worker: Worker = field(default_factory=Worker)
    operator: Operator | None = None
    url: str = "http://127.0.0.1:0"

    @contextmanager
    def served(self) -> Iterator[str]:
        """Serve the pages for as long as the block lasts."""
        actions = None if self.operator is None else Actions(self.operator, lambda: TOKEN)
        app = admin_app(self.worker, Metrics(["sms"], "0.1.0"), (), actions)
        bound = bind("admin.listen", self.url.removeprefix("http://"))
        self.url = url_of(bound)
        with anyio.from_thread.start_blocking_portal() as portal:
            stop = portal.call(anyio.Event)
            done = portal.start_task_soon(partial(server.serve, app, bound, stop))
            try:
                yield self.url
            finally:
                portal.call(stop.set)
                done.result()


@contextmanager
def opened(browser: Browser, url: str, size: tuple[int, int] = DESKTOP, **options: Any) -> Iterator[Page]:
    """The page in a window of its own; an error in its console fails the test."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, **options)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda entry: complaints.append(entry.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url)
    yield page
    context.close()
    assert [each for each in complaints if "ERR_" not in each and "status of 401" not in each] == []


def show(site: Site, overview: Overview, past: Points | None = None) -> None:
    site.worker.shown = overview
    site.worker.past = past if past is not None else Points(10.0)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize(
    ("overview", "past", "word", "words"),
    [
        (IDLE, Points(10.0), "Well", "Taking messages."),
        (BUSY, hour(), "Needs attention", "2 messages are held in doubt"),
        (
            DOWN,
            hour(0.8),
            "Needs attention",
            "Down for 20 min: the connection was refused. 183,921 messages wait for it.",
        ),
        (
            replace(IDLE, ready=False, reason="the queue gives no usable answer"),
            Points(10.0),
            "Not ready",
            "The queue gives no usable answer.",
        ),
    ],
    ids=["empty", "busy", "provider down", "not ready"],
)
def test_one_screen_says_whether_it_is_well_and_why_not(  # noqa: PLR0917 - three axes, and what to expect
    browser: Browser,
    tmp_path: Path,
    overview: Overview,
    past: Points,
    word: str,
    words: str,
    size: tuple[int, int],
    scheme: Any,
) -> None:
    """Every text is readable, nothing sticks out, and the answer stands on the first screen."""
    site = Site()
    show(site, overview, past)
    with site.served() as url, opened(browser, url, size, color_scheme=scheme) as page:
        expect(page.locator("#link.live")).to_have_text("live")
        expect(page.locator(".word")).to_have_text(word)
        why = page.get_by_text(words)
        expect(why).to_be_in_viewport()
        expect(page.locator("#providers th")).to_have_count(
            len(overview.providers) + (len(overview.providers) > 2)
        )
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate(FAINT) == []
        page.screenshot(path=tmp_path / "page.png", full_page=True)


def test_the_page_shows_the_same_without_a_script(browser: Browser) -> None:
    """What the script only keeps up to date is drawn by the worker."""
    site = Site()
    show(site, DOWN, hour())
    with site.served() as url, opened(browser, url, java_script_enabled=False) as page:
        expect(page.locator(".word")).to_have_text("Needs attention")
        expect(page.locator("tr", has_text="sms")).to_contain_text("down")
        expect(page.locator("#plot-sent path.line")).to_have_count(1)


def test_what_changes_is_shown_within_a_moment(browser: Browser) -> None:
    site = Site()
    with site.served() as url, opened(browser, url) as page:
        expect(page.locator(".word")).to_have_text("Well")
        show(site, DOWN, hour())
        expect(page.locator(".word")).to_have_text("Needs attention")
        expect(page.locator("#paused li")).to_have_count(2)
        expect(page.locator("#plot-sent")).to_contain_text("highest 2,695/s")


def test_a_lost_connection_is_told_and_forgotten_when_the_worker_is_back(browser: Browser) -> None:
    """What is shown is dimmed meanwhile, since it isn't true any more."""
    site = Site()
    show(site, BUSY)
    with site.served() as url:
        window = opened(browser, url)
        page = window.__enter__()
        expect(page.locator("#link.live")).to_be_visible()
    expect(page.locator("#link.lost")).to_contain_text("Connection lost since", timeout=10_000)
    expect(page.locator("html.stale main")).to_have_css("opacity", "0.5")
    show(site, IDLE)
    with site.served():
        expect(page.locator("#link.live")).to_be_visible(timeout=15_000)
        expect(page.locator("html.stale")).to_have_count(0)
        expect(page.locator(".word")).to_have_text("Well")
        window.__exit__(None, None, None)


def test_what_comes_from_elsewhere_is_only_text(browser: Browser) -> None:
    """A reason may quote a provider, and an operator may have typed anything."""
    site = Site()
    failing = provider("sms", last_failure=Failure("refused", HOSTILE, IDLE.at))
    pause = Paused("settings", "1", IDLE.at, None, 1, HOSTILE, None, HOSTILE)
    line = {"at": IDLE.at, "level": "warning", "event": "x", "reason": HOSTILE}
    show(site, replace(IDLE, providers=[failing], paused=[pause], warnings=[line], reason=HOSTILE))
    with site.served() as url, opened(browser, url) as page:
        expect(page.locator("#link.live")).to_be_visible()
        expect(page.locator("#providers td").last).to_contain_text(HOSTILE)
        assert page.title() == "deliveryd"
        assert page.locator("img, main script").count() == 0


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_longest_names_stick_out_nowhere(browser: Browser, size: tuple[int, int]) -> None:
    site, longest = Site(), f"{'c' * 64}/{'p' * 64}"
    pause = Paused("provider", longest, IDLE.at, None, 1, "u" * 64, None, "r" * 500)
    down = provider(longest, breaker="open", since=IDLE.at, waiting=1)
    show(site, replace(IDLE, providers=[down, provider("sms")], paused=[pause]))
    with site.served() as url, opened(browser, url, size) as page:
        expect(page.locator("#link.live")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_with_the_token_an_operator_pauses_and_resumes(browser: Browser) -> None:
    """Buttons appear once the token was typed in, and the page shows what it led to."""
    site = Site()
    site.operator = Operator(site.worker)
    show(site, BUSY)
    with site.served() as url, opened(browser, url) as page:
        row = page.locator("tr", has_text="south")
        expect(row.locator("button")).to_be_hidden()
        page.get_by_role("button", name="Unlock actions").click()
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Unlock", exact=True).click()
        expect(page.locator("#outcome")).to_have_text("Not done: wrong token")
        expect(row.locator("button")).to_be_hidden()
        unlock(page)
        row.locator("button").click()
        page.get_by_label("For how long").fill("2h")
        page.locator("#pause-dialog").get_by_label("Reason").fill("their night")
        page.locator("#pause-dialog").get_by_role("button", name="Pause").click()
        expect(page.locator("#outcome")).to_have_text("paused: messenger/south.")
        expect(row).to_contain_text("paused")
        page.locator("#paused li").get_by_role("button").click()
        page.locator("#resume-dialog").get_by_role("button", name="Resume").click()
        expect(page.locator("#paused")).to_have_text("Nothing is paused.")
        expect(row.locator("button")).to_be_visible()
        assert site.operator.orders == [
            ("pause", "provider", "messenger/south", 7200.0, "their night"),
            ("resume", "provider", "messenger/south", None),
        ]
        page.reload()
        expect(row.locator("button")).to_be_visible()  # the tab still knows the token
        page.get_by_role("button", name="Lock").click()
        expect(row.locator("button")).to_be_hidden()


def unlock(page: Page) -> None:
    page.get_by_role("button", name="Unlock actions").click()
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Unlock", exact=True).click()
    expect(page.locator("html.unlocked")).to_be_visible()


def test_what_failed_is_sent_once_more_and_the_configuration_read_anew(browser: Browser) -> None:
    site = Site(operator=Operator())
    with site.served() as url, opened(browser, url, PHONE) as page:
        unlock(page)
        page.get_by_role("button", name="Send again …").click()
        expect(page.get_by_label("That failed for")).to_have_value("no")
        page.locator("#retry-dialog").get_by_role("button", name="Send again").click()
        expect(page.locator("#outcome")).to_have_text("begin again: 1, 2.\n3: it has expired")
        page.get_by_role("button", name="Reload").click()
        expect(page.locator("#outcome")).to_have_text("Configuration: applied.")


def test_a_page_that_only_reads_has_no_buttons(browser: Browser) -> None:
    site = Site()
    show(site, DOWN)
    with site.served() as url, opened(browser, url) as page:
        expect(page.locator("#link.live")).to_be_visible()
        expect(page.locator("button:visible")).to_have_count(0)


def test_a_page_of_another_origin_can_order_nothing_even_with_the_token(browser: Browser) -> None:
    """The browser asks first, and is given no leave; what it may send unasked has no token."""
    site, other = Site(operator=Operator()), Site()
    send = """async ([url, token, simple]) => {
        const given = { Authorization: `Bearer ${token}`, "Content-Type": "application/json" };
        const headers = simple ? {} : given;
        const mode = simple ? "no-cors" : "cors";
        try { return (await fetch(url, { method: "POST", body: "{}", headers, mode })).type; }
        catch { return "refused"; }
    }"""
    with site.served() as url, other.served() as elsewhere:
        context = browser.new_context(bypass_csp=True)
        page = context.new_page()
        page.goto(elsewhere)
        for each in (url, url.replace("127.0.0.1", "localhost")):
            assert page.evaluate(send, [f"{each}/actions/reload", TOKEN, False]) == "refused"
            assert page.evaluate(send, [f"{each}/actions/reload", TOKEN, True]) == "opaque"
        context.close()
    assert site.operator is not None
    assert site.operator.orders == []


def test_a_name_that_leads_here_shows_and_orders_nothing(browser: Browser) -> None:
    """DNS rebinding: the browser takes the page for that name's own."""
    site = Site(operator=Operator())
    with site.served() as url:
        port = url.rpartition(":")[2]
        answer = httpx.post(
            f"{url}/actions/reload",
            json={},
            headers={"Host": f"evil.example:{port}", "Origin": f"http://evil.example:{port}",
                     "Authorization": f"Bearer {TOKEN}"},
            trust_env=False,
        )  # fmt: skip
        assert answer.status_code == 421
    assert site.operator is not None
    assert site.operator.orders == []


class Counted(Worker):
    """Counts how often it is drawn."""

    drawn = 0

    def overview(self) -> Overview:
        """As set."""
        self.drawn += 1
        return super().overview()


def test_viewers_are_bounded_and_share_what_is_made(browser: Browser) -> None:
    """For the 21st viewer the first one leaves; the others are sent the same."""
    site = Site(worker=Counted())
    assert isinstance(site.worker, Counted)
    with site.served() as url:
        streams = [httpx.stream("GET", f"{url}/page/stream", trust_env=False) for _ in range(20)]
        readers = [stream.__enter__().iter_lines() for stream in streams]
        for reader in readers:
            next(line for line in reader if line.startswith("data:"))
        with httpx.stream("GET", f"{url}/status/stream", trust_env=False) as another:
            assert next(line for line in another.iter_lines() if line.startswith("data:"))
            assert not [line for line in readers[0] if line.startswith("event:")]  # its stream has ended
        before = site.worker.drawn
        for _ in range(4):
            next(line for line in readers[-1] if line.startswith("data:"))
        assert 2 <= site.worker.drawn - before <= 6  # not twenty times as often
        for stream in streams:
            stream.__exit__(None, None, None)
