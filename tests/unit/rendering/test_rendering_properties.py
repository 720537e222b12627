"""What holds for every template and every value."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from deliveryd.channels.sms_text import sms_parts
from deliveryd.errors import LanguageUnreadable
from deliveryd.model import Customer, LanguageContent, Rendered, Settings
from deliveryd.rendering.content import Broken, Missing, compile_settings
from deliveryd.rendering.language import candidates
from deliveryd.rendering.template import Template, is_words

ANY = st.text(st.characters())  # halves of surrogate pairs too
NAMES = st.text("ab.-_é1", min_size=1, max_size=3)
BRACY = st.text('{}ab <>&"\n\u00a0\u200b\ufe0f', max_size=12)
VARIABLES = st.dictionaries(st.one_of(NAMES, BRACY), BRACY, max_size=5)


def render(texts: Mapping[str, str], variables: Mapping[str, str], block: str) -> Rendered | Missing | Broken:
    """Render without a customer, with greetings that ask for something."""
    content = LanguageContent("Hello {a}", "Dear {customer.name}", {block: texts})
    compiled = compile_settings(Settings(1, None, {"en": content}))
    return compiled.languages["en"].blocks[block].render(variables, None)


def by_the_book(text: str, variables: Mapping[str, str]) -> str | None:
    """The grammar read brace by brace, slowly: the text, or None when a value is missing."""
    result = ""
    place = 0
    name: str | None
    while place < len(text):
        ahead = text[place:]
        keys = [key for key in variables if ahead.startswith("{" + key + "}")]
        if keys:
            written = name = max(keys, key=len)
        elif match := re.match(r"\{([^{}]*)\}", ahead):
            written, name = match[1], re.sub("[\u200b\ufe0f]", "", match[1]).strip()
        else:
            written, name = "", None
        if name is not None and name in variables:
            result += variables[name]
            place += len(written) + 2
        elif name is not None and re.fullmatch(r"[\w.-]+(\s[\w.-]+)*", name):
            return None
        else:
            result += text[place]
            place += 1
    return result


@given(text=BRACY, variables=VARIABLES)
def test_rendering_follows_the_grammar(text: str, variables: dict[str, str]) -> None:
    """Cutting templates up beforehand gives what a reading brace by brace gives."""
    assume("greeting" not in text)
    expected = by_the_book(text, variables)
    result = render({"text": text}, variables, "messenger")
    if expected is None:
        assert isinstance(result, Missing)
    else:
        assert result == Rendered("messenger", "en", {"text": expected})


@given(parts=st.lists(st.tuples(st.text("xyz ", max_size=5), NAMES), max_size=8), value=BRACY)
def test_known_names_leave_nothing_behind(parts: list[tuple[str, str]], value: str) -> None:
    """Every placeholder with a value is gone, and every value is there verbatim, braces and all."""
    variables = {name: f"<{name}|{value}>" for _, name in parts}
    text = "".join(f"{literal}{{{name}}}" for literal, name in parts)
    filled = "".join(f"{literal}{variables[name]}" for literal, name in parts)
    assert render({"text": text}, variables, "messenger") == Rendered("messenger", "en", {"text": filled})


@given(names=st.lists(NAMES, min_size=1), known=st.sets(NAMES))
def test_every_missing_name_is_reported_once(names: list[str], known: set[str]) -> None:
    """What is reported is exactly what is used and unknown, in the order of the text."""
    missing = tuple(dict.fromkeys(name for name in names if name not in known))
    result = render(
        {"text": " ".join(f"{{{name}}}" for name in names)}, dict.fromkeys(known, "x"), "messenger"
    )
    if missing:
        assert result == Missing(missing)
    else:
        assert isinstance(result, Rendered)


@given(text=st.text(st.characters(exclude_characters="{}", exclude_categories=["Cs"])), variables=VARIABLES)
def test_text_without_braces_is_unchanged(text: str, variables: dict[str, str]) -> None:
    """A template without braces is sent as it is written, whatever the variables."""
    assert render({"text": text}, variables, "messenger") == Rendered("messenger", "en", {"text": text})


@pytest.mark.slow
@given(value=st.text())
def test_html_shows_values_as_they_are(value: str) -> None:
    """What a reader of HTML sees for a value is the value, and no tag of it is left."""
    result = render({"subject": "s", "body": "<p>{a}</p>"}, {"a": value}, "email")
    assert isinstance(result, Rendered)
    inner = result.fields["body"].removeprefix("<p>").removesuffix("</p>")
    assert inner == html.escape(value)
    assert not set(inner) & set("<>\"'")


@given(
    subject=ANY,
    body=st.one_of(ANY, BRACY),
    variables=st.dictionaries(ANY, ANY, max_size=4),
    tag=ANY,
    name=st.none() | ANY,
)
def test_no_input_raises(
    subject: str, body: str, variables: dict[str, str], tag: str, name: str | None
) -> None:
    """Whatever arrives, the outcome is a rendered block, missing names or a reason."""
    content = {
        tag: LanguageContent(body, subject, {"email": {"subject": subject + "{greeting}", "body": body}})
    }
    customer = None if name is None else Customer(1, {"name": name})
    for language in compile_settings(Settings(1, None, content)).languages.values():
        result = language.blocks["email"].render(variables, customer)
        assert isinstance(result, Rendered | Missing | Broken)


@given(text=st.one_of(ANY, BRACY), keys=st.sets(BRACY, max_size=4))
def test_a_template_is_no_larger_than_its_text(text: str, keys: set[str]) -> None:
    """Splitting loses nothing, and the number of pieces is bounded by the text's own braces."""
    for template in (
        Template.compile(text, is_words),
        Template.compile(text, is_words).with_keys(keys),
    ):
        assert "".join(template.pieces) == text
        assert len(template.pieces) <= 2 * text.count("{") + 1


@pytest.mark.slow
@given(tag=st.one_of(ANY, st.from_regex(r"[A-Za-z]{1,4}([-_][A-Za-z0-9]{1,8}){0,6}", fullmatch=True)))
@example(tag="00_AAA_00A")  # can be standardized, and not be read then
def test_any_tag_is_read_or_refused(tag: str) -> None:
    """A language tag gives candidates that end with the configured one, or the one error there is for it."""
    try:
        tags = candidates(tag, ["en"])
    except LanguageUnreadable:
        return
    assert "en" in tags
    assert len(set(tags)) == len(tags)
    assert all(candidate == candidate.lower() for candidate in tags)


@given(text=ANY)
def test_sms_parts_are_bounded(text: str) -> None:
    """The units fit into the parts, each of which lacks one unit at most for a pair that didn't fit."""
    parts = sms_parts(text)
    size = 153 if parts.encoding == "GSM-7" else 67
    assert parts.parts >= parts.units / (size + 7)
    assert parts.parts <= 1 + parts.units // (size - 1)
