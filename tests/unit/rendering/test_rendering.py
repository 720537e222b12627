"""How content becomes text: the rules of interface 2.7 and the decisions of design 5, one row each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import langcodes
import pytest

from deliveryd.errors import LanguageUnreadable
from deliveryd.model import Customer, LanguageContent, Rendered, Settings
from deliveryd.rendering.content import Broken, CompiledBlock, Missing, compile_settings, general_stands_in
from deliveryd.rendering.escaping import EmailFormat, is_html
from deliveryd.rendering.language import STANDING, candidates, matching, standard_tag
from deliveryd.rendering.template import Template, is_words

ANN = Customer(7, {"name": "Ann"})
NAMELESS = Customer(8, {"phone": "+4915112345"})
BLANK = Customer(9, {"name": " \t"})


def block_of(
    texts: Mapping[str, str],
    *,
    block: str = "sms",
    general: str | None = None,
    personal: str | None = None,
    email_format: EmailFormat = "auto",
) -> CompiledBlock:
    """A block as the pipeline would find it."""
    content = {"en": LanguageContent(general, personal, {block: texts})}
    return compile_settings(Settings(1, None, content), email_format).languages["en"].blocks[block]


def sms(
    text: str,
    variables: Mapping[str, str] | None = None,
    customer: Customer | None = None,
    *,
    general: str | None = None,
    personal: str | None = None,
) -> str | tuple[str, ...]:
    """The text of a rendered SMS, or the names that were missing."""
    result = block_of({"text": text}, general=general, personal=personal).render(variables or {}, customer)
    if isinstance(result, Missing):
        return result.names
    assert isinstance(result, Rendered)
    return result.fields["text"]


class Case(NamedTuple):
    """A template, what is known, and what the customer reads (or the names that lack a value)."""

    text: str
    variables: Mapping[str, str]
    expected: str | tuple[str, ...]


PLACEHOLDERS = {
    "a name in braces is replaced": Case("Hi {who}!", {"who": "you"}, "Hi you!"),
    "names may hold dots": Case("{tid.0}/{tid.1}", {"tid.0": "a", "tid.1": "b"}, "a/b"),
    "names may hold dashes and underscores": Case("{order-id_2}", {"order-id_2": "x"}, "x"),
    "names may be of any script": Case("{имя} {नाम} {1}", {"имя": "a", "नाम": "b", "1": "c"}, "a b c"),
    "a name of any script can be missing": Case("{имя} {नाम}", {}, ("имя", "नाम")),
    "the same name twice": Case("{a}{a}", {"a": "x"}, "xx"),
    "numbers appear as the JSON wrote them": Case("{n} EUR", {"n": "10.50"}, "10.50 EUR"),
    "an empty value is a value": Case("[{a}]", {"a": ""}, "[]"),
    "names are case-sensitive": Case("{Name}", {"name": "x"}, ("Name",)),
    "unused variables do no harm": Case("Hi", {"a": "x", "b c": "y", "{": "z"}, "Hi"),
    "a missing value is named": Case("{city}", {}, ("city",)),
    "all missing names, once, in order": Case("{b} {a} {b} {c}", {"c": "x"}, ("b", "a")),
    "CSS stays": Case("p{color: red}\np { margin: 0 }", {}, "p{color: red}\np { margin: 0 }"),
    "JSON stays": Case('{"a": {"b": [1]}}', {"a": "x"}, '{"a": {"b": [1]}}'),
    "empty braces stay": Case("{} {{}}", {"a": "x"}, "{} {{}}"),
    "lone braces stay": Case("{ } }{ {a", {"a": "x"}, "{ } }{ {a"),
    "blanks just inside the braces don't count": Case("{ a }{b }{ c}", {"a": "x", "b": "y", "c": "z"}, "xyz"),
    "nor do blanks of any other kind": Case("{\u00a0a\n}{\u3000a\t\u2028}", {"a": "x"}, "xx"),
    "nor do invisible characters": Case("{a\u200b}{\ufeff\u00ada}{a\ufe0f}{\u2060 a}", {"a": "x"}, "xxxx"),
    "wherever in the name they are": Case("{or\u200bder\u200d.\U000e0100id}", {"order.id": "x"}, "x"),
    "blanks around a missing name": Case("{ a }{b }{\u00a0c}{a}", {}, ("a", "b", "c")),
    "invisible characters in a missing name": Case("{a\u200b}{\u2066or\ufe0fder\u2069}", {}, ("a", "order")),
    "invisible characters alone are no name": Case("{\u200b}{\ufe0f }", {"a": "x"}, "{\u200b}{\ufe0f }"),
    "double braces keep the outer ones": Case("{{a}}", {"a": "x"}, "{x}"),
    "a placeholder after a lone brace": Case("{ {a}", {"a": "x"}, "{ x"),
    "a placeholder inside CSS": Case("p{color:{c}}", {"c": "red"}, "p{color:red}"),
    "words with single blanks are a name": Case("{first name}", {"first name": "x"}, "x"),
    "which can be missing": Case("{first name} { of my\u00a0cat }", {}, ("first name", "of my\u00a0cat")),
    "words with more than one blank are text": Case("{first  name}", {}, "{first  name}"),
    "unless they are a key": Case("{ first  name }", {"first  name": "x"}, "x"),
    "words with other characters are text": Case("{see: below} {a, b}", {}, "{see: below} {a, b}"),
    "a number after a colon is no name": Case("{tid:0}", {"tid": "x"}, "{tid:0}"),
    "a key is taken as written first": Case("{ a }{a }{a}", {" a ": "x", "a": "y"}, "xyy"),
    "an invisible character in a key as well": Case("{a\u200b}{a}", {"a\u200b": "x", "a": "y"}, "xy"),
    "a key as written, and others without a value": Case("{ a }{a }{a}", {" a ": "x"}, ("a",)),
    "as written beside a key with braces": Case("{ a }{b}c}{ b }", {" a ": "x", "b}c": "y", "b": "z"}, "xyz"),
    "a key with a line break": Case("{a\nb}", {"a\nb": "x"}, "x"),
    "an empty key is a key": Case("{}", {"": "x"}, "x"),
    "a key with an opening brace": Case("{a{b}", {"a{b": "x"}, "x"),
    "a key with a closing brace": Case("{a}b}", {"a}b": "x"}, "x"),
    "the longer key wins": Case("{a}{b}", {"a": "1", "b": "2", "a}{b": "x"}, "x"),
    "the shorter key elsewhere": Case("{a} {a}{b}", {"a": "1", "b": "2", "a}{b": "x"}, "1 x"),
    "the leftmost key wins": Case("{{a}}", {"a": "1", "{a}": "x"}, "x"),
    "names swallowed by a longer key need no value": Case("{a}{b}", {"a}{b": "x"}, "x"),
    "a key that is a pattern is taken literally": Case("{.*} {a+}", {"{.*": "z", "a+": "x"}, "{.*} x"),
    "values are not looked at again": Case("{a}", {"a": "{b}", "b": "x"}, "{b}"),
    "values don't grow together": Case("{a}{b}", {"a": "{", "b": "c}", "c": "x"}, "{c}"),
    "values go in as they are": Case("{a}", {"a": " \\1 <&> \n"}, " \\1 <&> \n"),
}


@pytest.mark.parametrize("case", PLACEHOLDERS.values(), ids=PLACEHOLDERS.keys())
def test_placeholder(case: Case) -> None:
    """Placeholders are what the grammar says, values go in once, and everything else stays."""
    assert sms(case.text, case.variables) == case.expected


class Greeted(NamedTuple):
    """What decides on a greeting, and what the customer reads (or the names that lack a value)."""

    general: str | None
    personal: str | None
    customer: Customer | None
    variables: Mapping[str, str]
    expected: str | tuple[str, ...]
    text: str = "{greeting}!"


DEAR = "Dear {customer.name}"
GREETINGS = {
    "name and personal": Greeted("Hello", DEAR, ANN, {}, "Dear Ann!"),
    "no name and general": Greeted("Hello", DEAR, NAMELESS, {}, "Hello!"),
    "a blank name is none": Greeted("Hello", DEAR, BLANK, {}, "Hello!"),
    "unknown customer and general": Greeted("Hello", DEAR, None, {}, "Hello!"),
    "name but no personal": Greeted("Hello", None, ANN, {}, ("greeting",)),
    "no name and no general": Greeted(None, DEAR, NAMELESS, {}, ("greeting",)),
    "neither greeting": Greeted(None, None, ANN, {}, ("greeting",)),
    "an empty greeting is a greeting": Greeted("Hello", "", ANN, {}, "!"),
    "a variable goes before both": Greeted("Hello", DEAR, ANN, {"greeting": "Yo"}, "Yo!"),
    "a variable stands in for neither": Greeted(None, None, ANN, {"greeting": "Yo"}, "Yo!"),
    "variables inside a greeting": Greeted("Hi {who}", None, None, {"who": "you"}, "Hi you!"),
    "names missing inside are named": Greeted(
        "{b} {a}", None, None, {}, ("x", "b", "a", "y"), "{x}{greeting}{a}{y}"
    ),
    "a greeting has no greeting inside": Greeted("{greeting}", None, None, {}, ("greeting",)),
    "a general greeting can't name the nameless": Greeted(DEAR, None, None, {}, ("customer.name",)),
    "a variable names the nameless in it": Greeted(DEAR, "P", None, {"customer.name": "Bob"}, "Dear Bob!"),
    "a variable goes before the name in it": Greeted("G", DEAR, ANN, {"customer.name": "Bob"}, "Dear Bob!"),
    "odd keys inside a greeting": Greeted("{a b}{c}d}", None, None, {"a b": "1", "c}d": "2"}, "12!"),
    "blanks around it": Greeted("Hello", "Dear { customer.name }", ANN, {}, "Dear Ann!", "{ greeting }!"),
    "blanks around it, for the nameless": Greeted("Hello", DEAR, None, {}, "Hello!", "{greeting\u200b}!"),
    "blanks around one that nobody has": Greeted(None, DEAR, None, {}, ("greeting",), "{ greeting}"),
    "a variable spelled like it": Greeted(
        "Hi", None, None, {" greeting ": "Yo"}, "Yo Hi", "{ greeting } {greeting}"
    ),
    "a variable spelled like a name in it": Greeted("{ a } {a}", None, None, {" a ": "1", "a": "2"}, "1 2!"),
    "words inside a greeting": Greeted("Hi {first name}", None, None, {}, ("first name",)),
    "braces in the name stay": Greeted("G", DEAR, Customer(1, {"name": "{x}"}), {}, "Dear {x}!"),
    "an unused greeting may lack values": Greeted("{nope}", "{nope}", ANN, {}, "text", "text"),
    "the other greeting may lack values": Greeted("{nope}", DEAR, ANN, {}, "Dear Ann!"),
}


@pytest.mark.parametrize("case", GREETINGS.values(), ids=GREETINGS.keys())
def test_greeting(case: Greeted) -> None:
    """The customer's own name picks the greeting; its placeholders follow the same rules (interface 2.7)."""
    result = sms(case.text, case.variables, case.customer, general=case.general, personal=case.personal)
    assert result == case.expected


@pytest.mark.parametrize(
    ("general", "personal", "customer", "expected"),
    [
        pytest.param("Hello", None, ANN, "Hello", id="the general one for a name without personal"),
        pytest.param("Hello", DEAR, ANN, "Dear Ann", id="the personal one where there is one"),
        pytest.param("Hello", None, None, "Hello", id="the general one for the nameless"),
        pytest.param(None, DEAR, None, None, id="the personal one never stands in"),
        pytest.param(None, None, ANN, None, id="nothing where there is neither"),
    ],
)
def test_greeting_fallback(
    general: str | None, personal: str | None, customer: Customer | None, expected: str | None
) -> None:
    """With `content.greeting_fallback` the general greeting stands in for a missing personal one."""
    content = {"en": LanguageContent(general, personal, {"sms": {"text": "{greeting}"}})}
    compiled = compile_settings(Settings(1, None, content), greetings=general_stands_in)
    result = compiled.languages["en"].blocks["sms"].render({}, customer)
    filled = Missing(("greeting",)) if expected is None else Rendered("sms", "en", {"text": expected})
    assert result == filled


@pytest.mark.parametrize(
    ("variables", "customer", "expected"),
    [
        pytest.param({}, ANN, "Ann", id="from the customer"),
        pytest.param({"customer.name": "Bob"}, ANN, "Bob", id="a variable goes first"),
        pytest.param({"customer.name": "Bob"}, None, "Bob", id="a variable needs no customer"),
        pytest.param({}, NAMELESS, ("customer.name",), id="no name"),
        pytest.param({}, BLANK, ("customer.name",), id="a blank name"),
        pytest.param({}, None, ("customer.name",), id="unknown customer"),
    ],
)
def test_customer_name(
    variables: Mapping[str, str], customer: Customer | None, expected: str | tuple[str, ...]
) -> None:
    """`{customer.name}` is the variable of that name, else the customer's own name, else missing."""
    assert sms("{customer.name}", variables, customer) == expected


def test_the_name_is_found_however_its_placeholder_is_spaced() -> None:
    """`{customer.name }` is the customer's name, and missing where there is none: never sent as written."""
    for text in ("{customer.name }", "{ customer.name}", "{customer.name\u200b}", "{\u00a0customer.name}"):
        assert sms(text, {}, ANN) == "Ann"
        assert sms(text, {}, NAMELESS) == ("customer.name",)
        assert block_of({"text": text}).needs_name({})


def test_only_the_name_of_a_customer_is_looked_up() -> None:
    """Other fields of the directory aren't values for content (interface 2.6)."""
    assert sms("{customer.phone}", {}, NAMELESS) == ("customer.phone",)


def test_all_fields_of_the_block_count_and_no_others() -> None:
    """Missing names come from every field of the chosen block, in order, and from no other block."""
    blocks = {
        "messenger": {"text": "{b}", "image": "", "button.text": "Go", "button.url": "https://x/{a}?{b}"},
        "sms": {"text": "{other}"},
    }
    languages = compile_settings(Settings(1, None, {"en": LanguageContent(blocks=blocks)})).languages
    block = languages["en"].blocks["messenger"]
    assert block.render({}, None) == Missing(("b", "a"))
    fields = {"text": "2", "image": "", "button.text": "Go", "button.url": "https://x/1?2"}
    assert block.render({"a": "1", "b": "2"}, None) == Rendered("messenger", "en", fields)


def test_a_block_without_fields_is_no_block() -> None:
    """A language whose only block is empty offers nothing to send."""
    content = {"en": LanguageContent(general="Hi", blocks={"inApp": {}})}
    assert compile_settings(Settings(1, None, content)).languages["en"].blocks == {}


def test_compiled_settings_carry_id_and_expiry() -> None:
    """What the pipeline asks of settings besides their content is still there."""
    compiled = compile_settings(Settings(41, 1_700_000_000_000_000, {}))
    assert (compiled.id, compiled.expires_at, compiled.languages) == (41, 1_700_000_000_000_000, {})


LETTER = {"subject": "About {x}", "body": '<p title="{x}">{x} {greeting}</p>'}


def test_html_bodies_show_values_as_they_are() -> None:
    """Values are escaped in an HTML body and its greeting; the greeting's own tags and the subject aren't."""
    block = block_of(LETTER, block="email", personal="<b>{customer.name}</b>")
    rendered = block.render({"x": "<\"'&"}, Customer(1, {"name": "A<br>"}))
    escaped = "&lt;&quot;&#x27;&amp;"
    assert rendered == Rendered(
        "email",
        "en",
        {
            "format": "html",
            "subject": "About <\"'&",
            "body": f'<p title="{escaped}">{escaped} <b>A&lt;br&gt;</b></p>',
        },
    )


@pytest.mark.parametrize(
    ("text", "in_html", "in_text"),
    [
        pytest.param("{ x }", ("x",), ("x",), id="blanks around a word"),
        pytest.param("{x\u200b}", ("x",), ("x",), id="an invisible character"),
        pytest.param("{ greeting }", ("greeting",), ("greeting",), id="a greeting"),
        pytest.param("{first name}", (), ("first name",), id="words"),
        pytest.param("p{margin 0}", (), ("margin 0",), id="broken CSS"),
        pytest.param("p { margin: 0 }", (), (), id="CSS"),
    ],
)
def test_names_in_a_body(text: str, in_html: tuple[str, ...], in_text: tuple[str, ...]) -> None:
    """A word in braces must have a value everywhere; several words only where braces can't be CSS."""
    body = f"<p>{text}</p>"
    formats: tuple[tuple[EmailFormat, tuple[str, ...]], ...]
    formats = (("auto", in_html), ("html", in_html), ("text", in_text))
    for email_format, missing in formats:
        block = block_of({"subject": "s", "body": body}, block="email", email_format=email_format)
        rendered = block.render({}, None)
        if missing:
            assert rendered == Missing(missing)
        else:
            assert isinstance(rendered, Rendered)
            assert rendered.fields["body"] == body


def test_words_in_the_subject_of_an_html_email_are_a_name() -> None:
    """Only the body is HTML."""
    block = block_of({"subject": "{first name}", "body": "<p>{first name}</p>"}, block="email")
    assert block.render({}, None) == Missing(("first name",))
    rendered = block.render({"first name": "<"}, None)
    assert isinstance(rendered, Rendered)
    assert (rendered.fields["subject"], rendered.fields["body"]) == ("<", "<p>&lt;</p>")


@pytest.mark.parametrize(
    ("block", "field"),
    [
        ("sms", "text"), ("messenger", "image"), ("messenger", "button.url"), ("messenger", "button.text"),
        ("inApp", "name"), ("inApp", "notification.body"), ("email", "subject"), ("email", "body"),
    ],
)  # fmt: skip
def test_no_field_sends_a_placeholder_as_it_is_written(block: str, field: str) -> None:
    """Images and links are filled by the same rules as texts are."""
    texts = {"subject": "s", "body": "b"} if block == "email" else {}
    found = block_of({**texts, field: "https://x/{ id }?{a\u200b}{my key}"}, block=block)
    assert found.render({}, None) == Missing(("id", "a", "my key"))
    rendered = found.render({"id": "1", "a": "2", "my key": "3"}, None)
    assert isinstance(rendered, Rendered)
    assert rendered.fields[field] == "https://x/1?23"


def test_a_greeting_given_as_a_variable_is_a_value() -> None:
    """A variable called greeting is escaped as any other, and once."""
    rendered = block_of(LETTER, block="email").render({"x": "", "greeting": "<&"}, None)
    assert isinstance(rendered, Rendered)
    assert rendered.fields["body"] == '<p title=""> &lt;&amp;</p>'


@pytest.mark.parametrize(
    ("email_format", "body", "expected"),
    [
        pytest.param("auto", "<p>{x}</p>", ("html", "<p>&lt;</p>"), id="auto sees a tag"),
        pytest.param("auto", "{x} & co", ("text", "< & co"), id="auto sees none"),
        pytest.param("html", "{x} & co", ("html", "&lt; & co"), id="html whatever it looks like"),
        pytest.param("text", "<p>{x}</p>", ("text", "<p><</p>"), id="text whatever it looks like"),
    ],
)
def test_email_format(email_format: EmailFormat, body: str, expected: tuple[str, str]) -> None:
    """The format is what the configuration says, or what the body's template looks like."""
    block = block_of({"subject": "s", "body": body}, block="email", email_format=email_format)
    rendered = block.render({"x": "<"}, None)
    assert isinstance(rendered, Rendered)
    assert (rendered.fields["format"], rendered.fields["body"]) == expected


def test_a_value_cannot_make_an_email_html() -> None:
    """The template decides on the format, not what a customer is called."""
    rendered = block_of({"subject": "s", "body": "{x}"}, block="email").render({"x": "<b>x</b>"}, None)
    assert rendered == Rendered("email", "en", {"format": "text", "subject": "s", "body": "<b>x</b>"})


@pytest.mark.parametrize(
    "text",
    [
        "<p>",
        "</p>",
        "<BR/>",
        "<br />",
        '<a href="{url}">',
        "<!DOCTYPE html>",
        "x <h1 class='a'\n>y",
        "<my-tag>",
    ],
)
def test_looks_like_html(text: str) -> None:
    """Anything shaped like a tag or a doctype is HTML."""
    assert is_html(text)


@pytest.mark.parametrize(
    "text",
    ["", "a < b > c", "<3", "<info@example.com>", "<https://example.com/>", "1<2", "<{tag}>", "< p >", "<p"],
)
def test_looks_like_text(text: str) -> None:
    """Angle brackets that aren't tags are text."""
    assert not is_html(text)


@pytest.mark.parametrize(
    "char", ["\r", "\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\0"]
)
def test_a_subject_is_one_line(char: str) -> None:
    """A line break in a subject is an error that names no value, wherever the break came from."""
    texts = {"subject": "Hi {x}", "body": "ok{x}"}
    expected = Broken("email.subject holds a line break")
    assert block_of(texts, block="email").render({"x": f"a{char}Bcc: b"}, None) == expected
    assert block_of({"subject": f"a{char}b", "body": ""}, block="email").render({}, None) == expected


def test_bodies_and_texts_may_have_lines() -> None:
    """Only subjects have to fit on a line."""
    assert sms("{x}\n", {"x": "a\r\nb"}) == "a\r\nb\n"


def test_half_a_surrogate_pair_is_told_before_a_provider_chokes_on_it() -> None:
    """Text that no encoding can carry is an error of its own."""
    assert block_of({"text": "{x}"}).render({"x": "\ud83d"}, None) == Broken(
        "sms.text holds half a surrogate pair"
    )


@pytest.mark.parametrize("value", ["", " ", "\n\t", "\u00a0"])
def test_an_sms_that_says_nothing_is_an_error(value: str) -> None:
    """After rendering; blocks of other channels have more than one field."""
    assert block_of({"text": "{x}"}).render({"x": value}, None) == Broken("sms.text is empty")
    rendered = block_of({"text": "{x}", "image": "i"}, block="messenger").render({"x": value}, None)
    assert isinstance(rendered, Rendered)


def test_missing_names_go_before_a_broken_subject() -> None:
    """A message with both faults reports the placeholders."""
    block = block_of({"subject": "\n{x}", "body": ""}, block="email")
    assert block.render({}, None) == Missing(("x",))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        pytest.param("{" * 1_000_000, 1, id="opening braces"),
        pytest.param("}" * 1_000_000, 1, id="closing braces"),
        pytest.param("{a" * 500_000, 1, id="unfinished placeholders"),
        pytest.param("{" + "a" * 1_000_000, 1, id="one unfinished placeholder"),
        pytest.param("{a}" * 300_000, 600_001, id="placeholders"),
    ],
)
def test_hostile_templates_are_split_in_one_scan(text: str, pieces: int) -> None:
    """A megabyte of braces gives no more pieces than it has placeholders, and they add up to the text."""
    template = Template.compile(text, is_words)
    assert len(template.pieces) == pieces
    assert "".join(template.pieces) == text


@pytest.mark.parametrize("key", ["a{b", " a "])
def test_a_text_of_very_many_braces_is_not_read_anew_for_a_message(key: str) -> None:
    """For keys with braces, or written as a placeholder is, each message would take up to a second."""
    block = block_of({"text": "{ a }" + "{" * 1_000_000})
    broken = "the text contains too many braces for the names of the variables"
    assert block.render({"a": "x", key: "y"}, None) == Broken(broken)
    assert isinstance(block.render({"a": "x"}, None), Rendered)


@pytest.mark.parametrize(
    ("customer", "configured", "expected"),
    [
        pytest.param("de", ["en"], ("de", "en"), id="the customer's first"),
        pytest.param(None, ["en", "fr"], ("en", "fr"), id="unknown: as configured"),
        pytest.param(" ", ["en"], ("en",), id="blank: as configured"),
        pytest.param("pt-BR", ["en"], ("pt-br", "pt", "en"), id="region falls back"),
        pytest.param("pt_BR", ["en"], ("pt-br", "pt", "en"), id="underscore for dash"),
        pytest.param("PT-br", [], ("pt-br", "pt"), id="any case"),
        pytest.param(" pt ", [], ("pt",), id="blanks around"),
        pytest.param("zh-Hant-TW", [], ("zh-hant-tw", "zh-hant", "zh"), id="script and region"),
        pytest.param("de-DE-x-aa-bb", [], ("de-de-x-aa-bb", "de-de-x-aa", "de-de", "de"), id="private parts"),
        pytest.param("iw", ["en"], ("he", "en"), id="withdrawn code"),
        pytest.param("deu", [], ("de",), id="three letters for two"),
        pytest.param("de-AT", ["de-CH", "en", "de"], ("de-at", "de", "de-ch", "en"), id="no doubles"),
        pytest.param("\u200bde\u00a0", ["en"], ("de", "en"), id="blanks that aren't seen"),
        pytest.param("\u200b", ["en"], ("en",), id="nothing that is seen"),
        pytest.param("nb", ["en"], ("nb", "no", "nn", "en"), id="a form of Norwegian"),
        pytest.param("nn-NO", [], ("nn-no", "nn", "no", "nb"), id="the other form, with a region"),
        pytest.param("no", ["en"], ("no", "nb", "nn", "en"), id="Norwegian of either form"),
        pytest.param("cmn-TW", [], ("zh-tw", "zh-hant", "zh"), id="the main member of a macrolanguage"),
        pytest.param("yue", [], ("yue", "zh-hant", "zh"), id="another member, in its script"),
        pytest.param("arz-EG", ["en"], ("arz-eg", "arz", "ar", "en"), id="a member in the same script"),
        pytest.param("sr-ME", [], ("sr-me", "sr-latn", "sr"), id="a region with a script of its own"),
        pytest.param("hr", ["en"], ("hr", "en"), id="a macrolanguage whose code is withdrawn"),
        pytest.param("uk", ["en"], ("uk", "en"), id="no language of the neighbours"),
    ],
)
def test_languages(customer: str | None, configured: list[str], expected: tuple[str, ...]) -> None:
    """The customer's language and what it falls back to, then the configured ones (design 5)."""
    assert candidates(customer, configured) == expected


@pytest.mark.parametrize("tag", ["english", "e", "de_DE.UTF-8", "*", "日本語", "de--DE", "a" * 10_000])
def test_unreadable_language(tag: str) -> None:
    """What is no language tag is an error, never a guess, and quotes only its beginning."""
    with pytest.raises(LanguageUnreadable) as caught:
        candidates(tag, ["en"])
    assert str(caught.value) == f"not a language tag: {tag[:20]!r}"


@pytest.mark.parametrize("tag", sorted(STANDING))
def test_tags_that_are_taken_as_they_are(tag: str) -> None:
    """What is passed by the tables of languages would have come out of them unchanged."""
    assert langcodes.standardize_tag(tag) == tag == standard_tag(tag)


@pytest.mark.parametrize(
    ("customer", "there", "expected"),
    [
        pytest.param("de", ["en", "de-DE"], ("de-de",), id="with a region that goes without saying"),
        pytest.param("de-AT", ["de-CH", "de-DE"], ("de-de",), id="the region that goes without saying"),
        pytest.param("pt-BR", ["pt-PT", "en"], (), id="no other region"),
        pytest.param("es-MX", ["es-ES", "es-419"], ("es-419", "es-es"), id="its part of the world"),
        pytest.param("es-MX", ["es", "es-419"], ("es-419", "es"), id="that before the language itself"),
        pytest.param("zh-Hant", ["zh", "zh-TW"], ("zh-tw", "zh"), id="the same script first"),
        pytest.param("zh-HK", ["zh-CN", "zh-TW"], ("zh-tw", "zh-cn"), id="its own script first"),
        pytest.param("nb-NO", ["en", "no-NO"], ("no-no",), id="a related language with a region"),
        pytest.param("arb", ["ar"], ("ar",), id="the main member: the macrolanguage"),
        pytest.param("ar", ["arb"], ("ar",), id="and the other way round"),
        pytest.param("fr", ["de", "no tag"], (), id="nothing of it"),
    ],
)
def test_languages_of_settings(customer: str, there: list[str], expected: tuple[str, ...]) -> None:
    """Of the languages of some settings those are used that a customer's language leads to."""
    content = {tag: LanguageContent(blocks={"sms": {"text": tag}}) for tag in there}
    languages = compile_settings(Settings(1, None, content)).languages
    assert matching(candidates(customer, []), tuple(languages)) == expected


def test_content_languages_are_found_however_they_are_spelled() -> None:
    """Content keyed by an old or odd spelling is found under the standard one, which itself goes first."""
    content = {
        tag: LanguageContent(blocks={"sms": {"text": tag}}) for tag in ("iw", "EN", "pt_BR", "he", "no tag")
    }
    languages = compile_settings(Settings(1, None, content)).languages
    texts = {tag: language.blocks["sms"].render({}, None) for tag, language in languages.items()}
    assert texts == {
        "he": Rendered("sms", "he", {"text": "he"}),
        "en": Rendered("sms", "en", {"text": "EN"}),
        "pt-br": Rendered("sms", "pt-br", {"text": "pt_BR"}),
        "no tag": Rendered("sms", "no tag", {"text": "no tag"}),
    }
