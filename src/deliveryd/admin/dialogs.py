"""The parts of the status page that its actions need: buttons that are shown once the token was typed in."""

from __future__ import annotations

from html import escape

_KINDS = (
    ("settings", "settings id"),
    ("channel", "channel"),
    ("provider", "provider, as CHANNEL/PROVIDER"),
    ("message", "message id"),
    ("intake", "intake of messages"),
)
_REASON = (
    '<label>Reason, kept with the decision <input name="reason" maxlength="500" autocomplete="off"></label>'
)

SESSION = """\
<button type="button" id="unlock" hidden>Unlock actions</button>
<button type="button" id="lock" hidden>Lock</button>
"""


def button(action: str, text: str, kind: str = "", key: str = "") -> str:
    """A button that orders something, or asks for what it needs to."""
    what = f' data-kind="{escape(kind)}" data-key="{escape(key)}"' if kind else ""
    label = f' aria-label="{escape(f"{text} {kind} {key}".strip())}"' if kind else ""
    return f'<button type="button" class="act" data-action="{action}"{what}{label}>{escape(text)}</button>'


def _dialog(name: str, title: str, fields: str, verb: str) -> str:
    return (
        f'<dialog id="{name}-dialog" aria-labelledby="{name}-title"><form method="dialog">'
        f'<h2 id="{name}-title">{title}</h2>{fields}'
        '<p class="choices"><button type="button" data-cancel>Cancel</button>'
        f'<button type="submit">{verb}</button></p></form></dialog>'
    )


_OPTIONS = "".join(f'<option value="{kind}">{text}</option>' for kind, text in _KINDS)

DIALOGS = "".join((
    _dialog(
        "token",
        "Unlock actions",
        '<label>Token, from the file that admin.token_file names'
        ' <input name="token" type="password" required autocomplete="off"></label>',
        "Unlock",
    ),
    _dialog(
        "pause",
        "Pause",
        f'<label>What <select name="kind">{_OPTIONS}</select></label>'
        '<label>Which <input name="key" autocomplete="off"></label>'
        '<label>For how long (30m, 2h, 1d; empty: until it is resumed)'
        ' <input name="lasts" autocomplete="off"></label>' + _REASON,
        "Pause",
    ),
    _dialog(
        "resume",
        "Resume",
        '<label>What <input name="kind" readonly></label><label>Which <input name="key" readonly></label>'
        + _REASON,
        "Resume",
    ),
    _dialog(
        "retry",
        "Send failed messages again",
        '<label>That failed for <select name="failure" required></select></label>'
        "<output hidden>There are more than could be counted: see deliveryd failed list.</output>" + _REASON,
        "Send again",
    ),
))  # fmt: skip
