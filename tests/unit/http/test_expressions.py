"""Regular expressions of the configuration: linear in the text, strict about what they can't do."""

from __future__ import annotations

import pytest

from deliveryd.http.expressions import SEARCHED_TEXT, compile_expression
from deliveryd.http.finder import ConditionOptions, Document, compile_condition, compile_finder

BACKTRACKING = [
    "(a+)+$",
    "(a|a)*$",
    "(a|aa)+$",
    r"(\w+\s?)*$",
    "(.*a){20}$",
    "a*a*a*a*a*a*b",
    "(?:a?){50}a{50}$",
    r"([a-zA-Z]+)*[^a-zA-Z]$",
]


@pytest.mark.parametrize("expression", BACKTRACKING)
def test_no_text_makes_an_expression_take_long(expression: str) -> None:
    """Each of these would run for seconds to years on this text where the engine backtracks."""
    compile_expression(expression).matches("a" * (SEARCHED_TEXT - 1) + "!")


@pytest.mark.parametrize(
    "expression", ["(.{1,500}){1,2}$x", "(?:a?){1000}b(?:[ac]?){900}", r"(\pL?){400}z", "(?:(a)|(.)){0,900}z"]
)
def test_an_expression_that_takes_long_on_any_text_is_refused(expression: str) -> None:
    """Linear in the text is long, too, if each character takes thousands of steps: up to 1 s for 4 KB."""
    with pytest.raises(ValueError, match=r"too large: [0-9]+ instructions, of at most 1500; repeats"):
        compile_expression(expression)


@pytest.mark.parametrize("expression", [r"^.{1,160}$", r"\pL+", "(?i)ref(?:erence)?: *([A-Z0-9]{8,64})"])
def test_an_expression_of_usual_size_is_used(expression: str) -> None:
    """Words of several alphabets, and repeats as long as an SMS."""
    assert compile_expression(expression).matches("Reference: ABCD1234")


@pytest.mark.parametrize(
    ("expression", "text", "found"),
    [
        ("^OK ([0-9]+)$", "OK 12", "12"),
        ("^OK ([0-9]+)$", "OK 12\r\n", "12"),
        ("OK", "not OK", "OK"),
        ("(?i)wait ([^ ]+)", "Wait \u00e9\u00fc please", "\u00e9\u00fc"),
        ("(b)?c", "c", None),
        ("x", "\ud83d x", "x"),
        ("^.$", "\ud83d", "?"),
        ("a", "b" * SEARCHED_TEXT + "a", None),
    ],
)
def test_what_is_found(expression: str, text: str, found: str | None) -> None:
    """The first group, or the whole match; a text's last line breaks don't count, and no text fails."""
    assert compile_expression(expression).found(text) == found


@pytest.mark.parametrize("expression", ["(", "(?=a)", r"(a)\1", "(?>a)", "a++", "a{1001}", r"\Z", "\ud83d"])
def test_what_cannot_be_searched_is_refused(expression: str, capfd: pytest.CaptureFixture[str]) -> None:
    """With a reason, and without a word of the engine's own on standard error."""
    with pytest.raises(ValueError, match="not a regular expression"):
        compile_expression(expression)
    assert capfd.readouterr().err == ""


def test_half_of_a_surrogate_pair_in_an_answer_fails_no_condition() -> None:
    """JSON may hold one, as part of an emoji that was cut."""
    answer = Document(b'{"text": "wait \\ud83d"}')
    condition = compile_condition(ConditionOptions.model_validate({"at": "/text", "matches": "^wait"}))
    assert condition.holds(answer)
    assert compile_finder("wait").find(answer) == "wait"
