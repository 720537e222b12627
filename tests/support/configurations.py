"""Parts of configurations that several harnesses write the same, as templates for `str.format`."""

FILES = """\
[settings]
cache_dir = "cache"

[customers]
source = "file"
path = "customers.jsonl"

[journal]
url = "sqlite:///journal.db"
"""
"""Cache, customers and journal in the folder of the configuration; more keys of the journal may follow."""

SMS_GATEWAY = """\
[channels.sms]
adapter = "http"
url = "{base_url}/sms"
json = {{ to = "{{customer.phone}}", text = "{{content.text}}", reference = "{{message.id}}" }}
provider_id = "/id"
"""
"""The channel sms over a gateway at `base_url`; more keys of the channel may follow."""
