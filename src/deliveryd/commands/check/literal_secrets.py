"""What looks like a secret that was written into the configuration instead of into a file."""

from __future__ import annotations

import re

from deliveryd.channels.http.options import SECRET_HEADERS

_NAME = re.compile(
    r"(?:.*[_.-])?(?:api-?key|access-?key|key|token|secret|password|passphrase|passwd|pass|pwd|pin|auth|authorization|signature|sig"
    r"|credentials?)",
    re.IGNORECASE,
)
_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
"""Between the words of a name such as accessToken or SMSPassword."""

_CREDENTIAL = re.compile(r"(?:bearer|basic|token|digest|(?:api-?)?key) +\S+", re.IGNORECASE)
_RANDOM = re.compile(r"(?=[^/]*[0-9])(?=[^/]*[A-Za-z])[A-Za-z0-9+/=_.~-]{20,}")
_PLACEHOLDER = re.compile(r"\{secret\.[^{}]*\}")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,31}")


def is_secret_name(name: str) -> bool:
    """Whether a key, a parameter or a header of this name has a secret."""
    spellings = (name, _BORDER.sub("_", name))
    return any(_NAME.fullmatch(each) for each in spellings) or name.lower() in SECRET_HEADERS


def is_literal_secret(name: str, value: str) -> bool:
    """Whether the value of a key is a secret by the key's name.

    It isn't if it refers to one, or is a name or a scheme where those are usual.
    """
    if not is_secret_name(name) or _PLACEHOLDER.search(value):
        return False
    return name not in ("secret", "signature") or _WORD.fullmatch(value) is None


def is_credential(value: str) -> bool:
    """Whether a value is a credential by its looks: a scheme with a word behind it."""
    return "{" not in value and _CREDENTIAL.fullmatch(value) is not None


def is_random(value: str) -> bool:
    """Whether a value may be a credential by its looks: one long word of letters and digits."""
    return "{" not in value and _RANDOM.fullmatch(value) is not None
