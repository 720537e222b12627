"""A small preset of a provider that doesn't exist."""

from __future__ import annotations

import tomllib

from deliveryd.channels.presets.file import PresetFile

POSTBOX = """
title = "Postbox"
channels = ["sms", "messenger"]
documentation = "https://postbox.example/docs"
notes = ["A doubt can't be settled, so it is held."]

[promises]
key = "ignored"
settles_doubt = "no"
receipts = false

[keys.base_url]
description = "address of the API"
example = "https://api.postbox.example"
default = "https://api.postbox.example"

[keys.account]
description = "account"
example = "A01"
required = true
pattern = "A[0-9]+"

[keys.sender]
description = "sender of the messages"
example = "Linden Club"

[keys.priority]
description = "priority of the messages"
example = 3
default = 1
type = "integer"

[secrets.token]
description = "API token"

[secrets.region]
description = "code of the region"
required = false

[table]
on_in_doubt = "hold"
timeout = "5s"
url = "{key.base_url}/{key.account}/messages"
headers = { Authorization = "Bearer {secret.token}", X-Region = "{secret.region}" }

[table.json]
to = "{customer.phone}"
text = "{content.text}"
from = "{key.sender}"
options = { rank = "{key.priority}" }

[blocks.messenger]
json = { to = "{customer.messenger}", text = "{content.text}" }

[[sources]]
fact = "everything"
source = "invented"
"""


def postbox() -> PresetFile:
    """The preset as a model."""
    return PresetFile.model_validate(tomllib.loads(POSTBOX))
