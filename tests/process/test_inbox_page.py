"""The inbox page in a real browser: what an operator sees, and what the page must never do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from smtplib import SMTP
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect, sync_playwright

from deliveryd.sandbox.server import Sandbox
from support.plain_http import NO_TLS
from support.sandboxes import open_sandbox

CHROMIUM = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
AT = "2026-01-31T12:00:00.000001Z"
HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=1</script>'

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium (apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrowserContext]:
    with sync_playwright() as playwright:
        profile: Path = tmp_path_factory.mktemp("profile")
        context = playwright.chromium.launch_persistent_context(
            profile,
            executable_path=CHROMIUM,
            args=FLAGS,
            viewport={"width": 1280, "height": 900},
        )
        yield context
        context.close()


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with open_sandbox() as opened:
        yield opened


@pytest.fixture
def page(browser: BrowserContext, sandbox: Sandbox) -> Iterator[Page]:
    """The inbox, opened; a test that ends with an error in the page's console has failed."""
    opened = browser.new_page()
    complaints: list[str] = []
    opened.on("console", lambda entry: complaints.append(entry.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.goto(sandbox.base_url)
    yield opened
    opened.close()
    # A browser announces what it refused to hostile mail; that is the policy at work.
    assert [each for each in complaints if "Content Security Policy" not in each] == []


def post(sandbox: Sandbox, path: str, body: Any) -> None:
    answer = httpx.post(sandbox.base_url + path, json=body, trust_env=False, verify=NO_TLS)
    answer.raise_for_status()


def report(sandbox: Sandbox, number: int, *statuses: str, **more: str) -> None:
    events = [{"messageId": number, "status": each, "timestamp": AT, **more} for each in statuses]
    post(sandbox, "/events", events)


def send_mail(sandbox: Sandbox, number: int, subject: str, html: str) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", "ann@example.com", subject
    mail["X-Deliveryd-Message"] = str(number)
    mail.set_content(html, subtype="html")
    with SMTP("127.0.0.1", sandbox.smtp_port) as smtp:
        smtp.send_message(mail)


def send_one_of_each(sandbox: Sandbox) -> None:
    post(sandbox, "/sms", {"to": "+49123", "text": "Your parcel is on its way", "reference": 1})
    button = {"text": "Track it", "url": "https://shop.example/track"}
    image = "https://images.example/parcel.jpg"
    messenger = {"to": "ann", "text": "A picture for you", "image": image, "button": button, "reference": 2}
    post(sandbox, "/messenger", messenger)
    push = {"title": "120 points", "body": "Thank you"}
    post(sandbox, "/inApp", {"to": "device", "name": "Points", "notification": push, "reference": 3})
    send_mail(sandbox, 4, "Welcome", "<style>p { color: red }</style><p>Dear <b>Ann</b></p>")


def test_each_channel_has_a_card_that_looks_like_it(page: Page, sandbox: Sandbox) -> None:
    send_one_of_each(sandbox)
    expect(page.locator(".card")).to_have_count(4)
    expect(page.locator(".card.sms .bubble")).to_have_text("Your parcel is on its way")
    messenger = page.locator(".card.messenger")
    expect(messenger.locator(".bubble")).to_contain_text("A picture for you")
    expect(messenger.locator(".pic")).to_have_text("https://images.example/parcel.jpg")
    expect(messenger.locator(".act b")).to_have_text("Track it")
    expect(page.locator(".card.inApp .push")).to_contain_text("120 points")
    email = page.locator(".card.email")
    expect(email.locator("h2")).to_have_text("Welcome")
    expect(email.locator("iframe")).to_have_attribute("sandbox", "")
    expect(email.frame_locator("iframe").locator("b")).to_have_text("Ann")


def test_the_life_of_a_message_stands_beside_it_and_grows_by_itself(page: Page, sandbox: Sandbox) -> None:
    post(sandbox, "/sms", {"to": "+49123", "text": "Hello", "reference": 1})
    report(sandbox, 1, "dequeued", "sent")
    line = page.locator(".card.sms .line li b")
    expect(line).to_have_text(["dequeued", "sent"])
    report(sandbox, 1, "delivered", channel="sms", reportedAt=AT)
    expect(line).to_have_text(["dequeued", "sent", "delivered"])
    expect(page.locator("#tally")).to_have_text("1 messages · 1 delivered")


def test_a_message_that_was_never_sent_shows_why(page: Page, sandbox: Sandbox) -> None:
    report(sandbox, 7, "dequeued")
    report(sandbox, 7, "error", details="missing placeholders: city, order.id")
    card = page.locator(".card")
    expect(card).to_contain_text("Never sent")
    expect(card).to_contain_text("missing placeholders: city, order.id")


def test_search_and_channel_narrow_what_is_shown(page: Page, sandbox: Sandbox) -> None:
    send_one_of_each(sandbox)
    expect(page.locator(".card")).to_have_count(4)
    page.get_by_label("Search messages").fill("PARCEL way")
    expect(page.locator(".card")).to_have_count(1)
    expect(page.locator(".card.sms")).to_be_visible()
    page.get_by_label("Search messages").fill("nothing like this")
    expect(page.get_by_text("No message matches.")).to_be_visible()
    page.get_by_label("Search messages").fill("")
    page.get_by_role("button", name="Messenger").click()
    expect(page.locator(".card")).to_have_count(1)
    expect(page.locator(".card.messenger")).to_be_visible()
    page.get_by_role("button", name="All").click()
    expect(page.locator(".card")).to_have_count(4)


def test_hostile_text_is_shown_as_text_everywhere(page: Page, sandbox: Sandbox) -> None:
    post(sandbox, "/sms", {"to": HOSTILE, "text": HOSTILE, "reference": 1})
    button = {"text": HOSTILE, "url": f"javascript:{HOSTILE}"}
    image = f"https://images.example/{HOSTILE}"
    post(sandbox, "/messenger", {"to": "ann", "text": HOSTILE, "image": image, "button": button})
    push = {"title": HOSTILE, "body": HOSTILE}
    post(sandbox, "/inApp", {"to": "device", "description": HOSTILE, "notification": push})
    send_mail(sandbox, 2, HOSTILE, f"<p>Dear Ann {HOSTILE}</p>")
    report(sandbox, 3, "error", details=HOSTILE)
    expect(page.locator(".card")).to_have_count(5)
    expect(page.locator(".card.sms .bubble")).to_have_text(HOSTILE)
    expect(page.locator(".card.sms .who strong")).to_have_text(HOSTILE)
    expect(page.locator(".card.inApp .push b")).to_have_text(HOSTILE)
    expect(page.locator(".card.email h2")).to_have_text(HOSTILE)
    expect(page.locator(".card.none .unsent")).to_contain_text(HOSTILE)
    inside = page.locator(".card.email").frame_locator("iframe")
    expect(inside.locator("p")).to_contain_text("Dear Ann")
    expect(inside.locator("script, img")).to_have_count(0)
    assert page.locator(".card img, .card script").count() == 0
    expect(page).to_have_title("Inbox · deliveryd sandbox")


def test_the_page_asks_nobody_else_for_anything(page: Page, sandbox: Sandbox) -> None:
    asked: list[str] = []
    page.on("requestfinished", lambda request: asked.append(request.url))  # one that CSP stops never is
    page.reload()
    with open_sandbox() as other:
        elsewhere = f"{other.base_url}/queue?"
        send_mail(
            sandbox,
            5,
            "Pixels",
            f'<html><head><link rel="stylesheet" href="{elsewhere}a.css"><base href="{elsewhere}">'
            f'<meta http-equiv="refresh" content="0;url={elsewhere}r">'
            f"<style>@import url({elsewhere}b.css); p {{ background: url( '{elsewhere}c.png' ) }}</style>"
            "</head>"
            f'<body style="background: url({elsewhere}h.png)"><img src="{elsewhere}d.png"><p>Text</p>'
            f'<a href="{elsewhere}e">Link</a><iframe src="{elsewhere}f"></iframe>'
            f'<video poster="{elsewhere}g.png"></video></body></html>',
        )
        inside = page.locator(".card.email").frame_locator("iframe")
        expect(inside.locator("body")).to_contain_text(f"{elsewhere}d.png")
        inside.get_by_text("Link").click()
        send_one_of_each(sandbox)
        expect(page.locator(".card")).to_have_count(5)
        assert not other.state.requests
    own = (sandbox.base_url, "data:", "about:")
    assert [url for url in asked if not url.startswith(own)] == []
    assert any(url.startswith(sandbox.base_url) for url in asked)


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390), ("dark", 390)]
)
def test_the_page_fits_wide_and_narrow_light_and_dark(
    page: Page, sandbox: Sandbox, scheme: Any, width: int
) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.emulate_media(color_scheme=scheme)
    send_one_of_each(sandbox)
    expect(page.locator(".card")).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert (sum(ground) / 3 > 128) == (scheme == "light")
