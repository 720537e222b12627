"""`deliveryd presets`: the skeleton of a preset, and the cases of presets, run offline."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from deliveryd.channels.presets.catalogue import PACKAGED, Catalogue
from support.places import TESTS
from support.presets import POSTBOX
from support.terminal import command

CASES = TESTS / "presets"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the skeleton of the preset `gate`."""
    folder = tmp_path / "presets"
    assert command("presets", "new", "gate", "--presets-dir", folder).status == 0
    return folder


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


# presets new


def test_a_skeleton_is_complete_and_its_cases_are_good(folder: Path, tmp_path: Path) -> None:
    assert command("presets", "test", folder) == (0, "gate  12 cases, 0 differ\n", "")
    shown = command("channels", "show", "gate", "--presets-dir", folder)
    assert shown.status == 0
    token = tmp_path / "gate-token"
    token.touch(mode=0o600)
    token.write_text("t", encoding="utf-8")
    customers = tmp_path / "c.jsonl"
    customers.write_text('{"id": 1, "phone": "+447700900123"}\n', encoding="utf-8")
    config = tmp_path / "config.toml"
    config.write_text(
        '[service]\nbase_url = "https://queue.example.com"\n'
        '[customers]\nsource = "file"\npath = "c.jsonl"\n'
        '[receipts]\npublic_url = "https://receipts.example.com"\n'
        f'[journal]\nurl = "sqlite:///{tmp_path}/journal.db"\n[settings]\ncache_dir = "{tmp_path}/cache"\n'
        '[channels]\npresets_dir = "presets"\n'
        '[channels.sms]\nadapter = "gate"\nfrom = "Linden Club"\nsecrets = { token = "gate-token" }\n',
        encoding="utf-8",
    )
    config.chmod(0o600)
    checked = command("check", "--offline", "--config", config)
    assert checked.status == 0, checked


def test_a_skeleton_says_where_it_is_and_what_to_do(tmp_path: Path) -> None:
    written = command("presets", "new", "gate", "--presets-dir", tmp_path)
    preset, cases = tmp_path / "gate.toml", tmp_path / "cases" / "gate.toml"
    assert written.out == (
        f"{preset}: fill in what the comments ask for\n"
        f"{cases}: put the provider's examples in\n"
        f"then: deliveryd presets test {tmp_path} gate\n"
    )
    assert preset.stat().st_mode & 0o022 == 0
    assert tomllib.loads(preset.read_text(encoding="utf-8"))["title"] == "gate"
    assert f"`deliveryd presets test {tmp_path} gate`" in preset.read_text(encoding="utf-8")


def test_a_skeleton_goes_into_the_folder_of_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    text = '[service]\nbase_url = "http://127.0.0.1:1"\n'
    config.write_text(text, encoding="utf-8")
    refused = command("presets", "new", "gate", "--config", config)
    assert refused.status == 2
    assert "has no channels.presets_dir; set it, or give --presets-dir" in refused.err
    (tmp_path / "own").mkdir()
    config.write_text(f'{text}[channels]\npresets_dir = "own"\n', encoding="utf-8")
    written = command("presets", "new", "gate", "--config", config, "--json")
    assert written.data == {
        "preset": str(tmp_path / "own" / "gate.toml"),
        "cases": str(tmp_path / "own" / "cases" / "gate.toml"),
    }


@pytest.mark.parametrize("there", ["gate.toml", "cases/gate.toml"])
def test_nothing_is_overwritten(tmp_path: Path, there: str) -> None:
    path = tmp_path / there
    path.parent.mkdir(exist_ok=True)
    path.symlink_to("nowhere")
    refused = command("presets", "new", "gate", "--presets-dir", tmp_path)
    assert refused.status == 1
    assert f"{path} is there already" in refused.err
    assert [file for _, _, files in os.walk(tmp_path) for file in files] == ["gate.toml"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("twilio", "deliveryd has a preset of this name"),
        ("http", "there is an adapter of this name"),
        ("smtp", "there is an adapter of this name"),
        ("../x", "lower-case letters"),
        ("Gate", "lower-case"),
    ],
)
def test_a_name_that_cannot_be_is_refused(tmp_path: Path, name: str, told: str) -> None:
    refused = command("presets", "new", name, "--presets-dir", tmp_path / "presets")
    assert refused.status == 2
    assert told in refused.err
    assert not (tmp_path / "presets").exists()


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    refused = command("presets", "new", "gate", "--presets-dir", tmp_path / "a" / "b")
    assert refused.status == 1
    assert refused.err == f"deliveryd: the folder {tmp_path / 'a'} doesn't exist: create it first\n"


def test_a_configuration_that_is_not_there_is_not_the_only_way_to_name_a_folder(tmp_path: Path) -> None:
    refused = command("presets", "new", "gate", "--config", tmp_path / "none.toml")
    assert refused.status == 2
    assert "none.toml doesn't exist; --config names another file, --presets-dir the folder" in refused.err


def test_the_command_that_lists_presets_is_named() -> None:
    refused = command("presets", "list")
    assert refused.status == 2
    assert "deliveryd channels list lists presets" in refused.err


# presets test


@pytest.mark.slow  # a thousand cases
@pytest.mark.parametrize("name", Catalogue().names())
def test_the_cases_of_the_package_are_good_offline_too(name: str) -> None:
    """The same files as `make presets` runs on real sockets."""
    tried = command("presets", "test", PACKAGED, name, "--cases", CASES)
    assert tried.status == 0, tried.out


DIFFERING = [
    ('path = "/v1/messages"', 'path = "/v2/messages"',
     "  request 1: a text\n    path: expected '/v2/messages', got '/v1/messages'\n"),
    ("unreachable = true", "unfit = true",
     "  request 2: a customer without a number\n    reaches the customer: False\n"),
    ('verdict = "stopped"', 'verdict = "refused"',
     "    verdict: expected 'refused', got 'stopped'\n    decided by row 1 of answers (4xx; /error/code is "),
    ("only_this = true", "only_this = false",
     "    only_this: expected False, got True\n    decided by row 2"),
    ("after = 7\n", "after = 9\n",
     "    after: expected 9.0, got 7.0\n    decided by the status; no row of answers fits\n"),
    ('json = { }\nverdict = "in_doubt"', 'json = { }\nverdict = "accepted"',
     "    decided by row 5 of answers (2xx; no conditions)\n"),
    ('meaning = "delivered"', 'meaning = "failed"',
     "  receipt 1: delivered\n    report 1: meaning: expected 'failed', got 'delivered'\n"),
    ('status = "queued"', 'status = "expired"',
     "    report 1: word: expected 'queued', got 'expired'\n    report 1: meaning: expected 'none', got "),
    ('expect = "valid"', 'expect = "invalid"',
     "  signature 1: a signed report\n    signature: expected invalid, got valid\n"),
    ('expect = "invalid"', 'expect = "valid"', "    signature: expected valid, got invalid: "),
    ('keys = { from = "Linden Club" }', "keys = { }",
     "  request 1: a text\n    given: from is missing: sender of the messages, such as 'Linden Club'\n"),
    ('message = { key = "m-12-1" }', "message = { number = 5 }", "    given.message: there is no number\n"),
    ('secrets = { token = "tok123" }', "", "    given.secrets.token is missing: its value (API token)\n"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "told"), DIFFERING)
def test_a_case_that_differs_is_shown(folder: Path, old: str, new: str, told: str) -> None:
    change(folder / "cases" / "gate.toml", old, new)
    tried = command("presets", "test", folder)
    assert tried.status == 1
    assert told in tried.out
    assert tried.out.startswith("gate  12 cases, ")


def test_a_mistake_that_all_cases_have_is_shown_once(folder: Path) -> None:
    change(folder / "cases" / "gate.toml", "keys = { from", 'keys = { base_url = "http://h:x", from')
    tried = command("presets", "test", folder)
    assert tried.status == 1
    assert tried.out.count("table.url: ") == 1
    assert tried.out.count("    as in request 1\n") == 11
    assert "pydantic" not in tried.out


def test_an_instant_that_differs_is_shown_as_one(folder: Path) -> None:
    change(folder / "cases" / "gate.toml", "at = 2026-11-21T18:40:03Z", "at = 2026-11-21T18:40:04Z")
    told = "at: expected '2026-11-21T18:40:04.000000Z', got '2026-11-21T18:40:03.000000Z'"
    assert told in command("presets", "test", folder).out


def test_a_lookup_that_differs_is_shown(folder: Path) -> None:
    change(
        folder / "gate.toml",
        "# What the provider reports.",
        '[table.lookup]\nurl = "{key.base_url}/v1/messages/{message.key}"\n'
        'answers = [{ status = [200], verdict = "taken" }, { status = [404], verdict = "not_taken" }]\n'
        'headers = { Authorization = "Bearer {secret.token}" }\n\n#',
    )
    with (folder / "cases" / "gate.toml").open("a", encoding="utf-8") as file:
        file.write(
            '\n[[lookup]]\nstatus = 404\njson = {}\nverdict = "taken"\n'
            '[lookup.expect]\nmethod = "GET"\npath = "/v1/messages/m-12-2"\n'
        )
    tried = command("presets", "test", folder)
    assert tried.status == 1
    assert tried.out == (
        "gate  13 cases, 1 differs\n"
        "  lookup 1\n"
        "    verdict: expected 'taken', got 'not_taken'\n"
        "    path: expected '/v1/messages/m-12-2', got '/v1/messages/m-12-1'\n"
    )


def test_differences_as_json(folder: Path) -> None:
    change(folder / "cases" / "gate.toml", 'verdict = "stopped"', 'verdict = "refused"')
    assert command("presets", "test", folder, "--json").data == [
        {
            "preset": "gate",
            "cases": 12,
            "missing": None,
            "failures": [
                {
                    "kind": "answer",
                    "number": 2,
                    "says": "the recipient opted out",
                    "differences": ["verdict: expected 'refused', got 'stopped'"],
                    "decided_by": "row 1 of answers (4xx; /error/code is opted_out)",
                }
            ],
            "rows_without_case": [],
            "kinds_without_case": [],
        }
    ]


def test_what_has_no_case_is_shown(folder: Path) -> None:
    """A note: nothing differs."""
    cases = folder / "cases" / "gate.toml"
    text = cases.read_text(encoding="utf-8").partition("\n[[signature]]")[0]
    for says in ("a wrong number", "a 200 that says nothing"):
        begin = text.index(f'[[answer]]\nsays = "{says}"')
        text = text[:begin] + text[text.index("\n\n", begin) + 2 :]
    cases.write_text(text, encoding="utf-8")
    told = "gate  8 cases, 0 differ\n  rows of answers without a case: 2, 5; no [[signature]]\n"
    assert command("presets", "test", folder) == (0, told, "")
    (tried,) = command("presets", "test", folder, "--json").data
    assert (tried["rows_without_case"], tried["kinds_without_case"]) == ([2, 5], ["signature"])
    cases.write_text(text[: text.index("\n[[answer]]")], encoding="utf-8")
    assert command("presets", "test", folder).out == (
        "gate  2 cases, 0 differ\n  no [[answer]]; no [[receipt]]; no [[signature]]\n"
    )


def test_a_preset_without_cases_is_named(folder: Path) -> None:
    (folder / "postbox.toml").write_text(POSTBOX, encoding="utf-8")
    tried = command("presets", "test", folder)
    assert tried.status == 1
    cases = folder / "cases" / "postbox.toml"
    assert tried.out == f"gate     12 cases, 0 differ\npostbox  no cases; they belong in {cases}\n"
    assert command("presets", "test", folder, "gate").status == 0
    cases.write_text("[given]\n", encoding="utf-8")
    assert "postbox  no cases in its file" in command("presets", "test", folder).out


def test_mistakes_in_presets_and_case_files_are_named_together(folder: Path) -> None:
    cases = folder / "cases"
    change(folder / "gate.toml", "title", "titel")
    change(cases / "gate.toml", "status = 201", "staus = 201")
    (folder / "postbox.toml").write_text(POSTBOX.replace('"{key.sender}"', '"{key.sendr}"'), encoding="utf-8")
    (cases / "other.toml").touch()
    tried = command("presets", "test", folder)
    assert tried.status == 78
    for told in (
        "gate.toml:titel: unknown key; did you mean title?",
        "postbox.toml: table.json.from: {key.sendr} isn't declared in keys",
        f"{cases}/other.toml: there is no preset of this name",
    ):
        assert told in tried.err
    change(folder / "gate.toml", "titel", "title")
    assert "cases/gate.toml:answer.0.staus: unknown key" in command("presets", "test", folder, "gate").err


def test_a_channel_that_there_is_not_is_a_mistake(folder: Path) -> None:
    change(folder / "gate.toml", 'channels = ["sms"]', 'channels = ["SMS"]')
    tried = command("presets", "test", folder)
    assert tried.status == 78
    told = "gate.toml:channels.0: must be inApp, messenger, sms or email; did you mean sms?\n"
    assert tried.err.endswith(told)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("twilio", "deliveryd has a preset of this name"),
        ("http", "there is an adapter of this name"),
        ("Gate", "a preset's name may hold lower-case letters"),
    ],
)
def test_a_name_that_no_configuration_could_use_is_a_mistake(folder: Path, name: str, told: str) -> None:
    """As `check` says it."""
    (folder / "gate.toml").rename(folder / f"{name}.toml")
    (folder / "cases" / "gate.toml").rename(folder / "cases" / f"{name}.toml")
    tried = command("presets", "test", folder)
    assert tried.status == 78
    assert f"{folder}/{name}.toml: {told}" in tried.err
    assert tried.err.endswith("; rename the file\n")


def test_answers_without_a_request_are_a_mistake(folder: Path) -> None:
    cases = folder / "cases" / "gate.toml"
    cases.write_text('[[answer]]\nstatus = 200\nverdict = "accepted"\n', encoding="utf-8")
    tried = command("presets", "test", folder)
    assert tried.status == 78
    assert "answers need a request" in tried.err


def test_a_name_or_a_folder_that_is_not_there_is_an_error(folder: Path, tmp_path: Path) -> None:
    assert command("presets", "test", folder, "gaet").err.endswith("there is no preset gaet\n")
    nothing = command("presets", "test", tmp_path / "none")
    assert (nothing.status, nothing.err) == (1, f"deliveryd: no such folder: {tmp_path}/none\n")
    file = command("presets", "test", folder / "gate.toml")
    assert file.status == 1
    assert file.err.endswith("gate.toml is a file: name its folder, then the preset\n")
    empty = command("presets", "test", tmp_path)
    assert (empty.status, empty.err) == (1, f"deliveryd: {tmp_path}: there are no presets in it\n")


def test_a_file_of_cases_is_not_read_as_a_preset(folder: Path) -> None:
    tried = command("presets", "test", folder / "cases")
    assert tried.status == 78
    told = "gate.toml: looks like a file of cases; it belongs in the folder cases beside the preset\n"
    assert tried.err == f"{folder}/cases/{told}"


@pytest.mark.parametrize("scheme", ['"token", at = "path"', '"basic", username = "acme"'])
def test_a_secret_of_a_case_that_is_too_short_is_named(folder: Path, scheme: str) -> None:
    change(folder / "gate.toml", '"hmac", header = "X-Signature", algorithm = "hmac-sha256"', scheme)
    tried = command("presets", "test", folder)
    assert tried.status == 1
    assert "  request 1: a text\n    given.secrets.token: at least 16 characters\n" in tried.out
    assert "openssl" not in tried.out


@pytest.mark.parametrize(
    "written",
    [
        'json = {\n"id": "p-1"\n}',
        'json = { "id": "p-1" }',
        'json = [\n{"id": "p-1"}\n]',
        "json = { id = null }",
    ],
)
def test_json_where_toml_is_expected_is_pointed_out(folder: Path, written: str) -> None:
    change(folder / "cases" / "gate.toml", 'json = { id = "p-1" }', written)
    tried = command("presets", "test", folder)
    assert tried.status == 78
    assert "invalid TOML: " in tried.err
    assert tried.err.endswith("; JSON goes into body = '''...'''\n")


def test_other_invalid_toml_is_told_as_it_is(folder: Path) -> None:
    change(folder / "cases" / "gate.toml", "status = 201", "status = ")
    assert "JSON" not in command("presets", "test", folder).err


MISTAKEN = [
    ('provider_id = "/id"  ', 'provider_id = "id"  ',
     'table.provider_id: id is read as a regular expression; a JSON Pointer begins with "/"'),
    ('provider_id = "/id"  ', 'provider_id = "$.message.id"',
     'table.provider_id: $.message.id is read as a regular expression; a JSON Pointer begins with "/"'),
    ('only_this = true, reason = "/error/message"', 'only_this = true, reason = "error/message"',
     'table.answers.1.reason: error/message is read as a regular expression; a JSON Pointer begins with "/"'),
    ('reference = "/reference"', 'reference = "/reference"\neach = "/"',
     'table.receipt.each: no list is there; "/*" is a body that is the list itself'),
    ('delivered = ["', 'deliverd = ["', "table.receipt.deliverd: unknown key; did you mean delivered?"),
    ('title = "gate"', 'title = "gate"\nrequest = "POST"', "request: unknown key"),
    ("[table.receipt]\nprovider", "[receipt]\nprovider", "receipt: unknown key; did you mean table.receipt?"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "told"), MISTAKEN)
def test_a_mistake_in_a_preset_is_told_alone(folder: Path, old: str, new: str, told: str) -> None:
    change(folder / "gate.toml", old, new)
    tried = command("presets", "test", folder)
    assert (tried.status, tried.err) == (78, f"{folder}/gate.toml:{told}\n")


def test_one_case_is_counted_as_one(folder: Path) -> None:
    cases = folder / "cases" / "gate.toml"
    text = cases.read_text(encoding="utf-8")
    receipt = '[[receipt]]\njson = { id = "p-1", event = "x" }\nreports = [{ meaning = "delivered" }]\n'
    cases.write_text(text[: text.index("# What goes out")] + receipt, encoding="utf-8")
    ignored = '\nignore = [{ at = "/event", is = ["x"] }]\nreported_at'
    change(folder / "gate.toml", "\nreported_at", ignored)
    tried = command("presets", "test", folder)
    assert tried.out.startswith("gate  1 case, 1 differs\n")
    assert "    expected 1 report, got []\n" in tried.out


def test_a_report_means_something_for_the_message_and_for_the_recipient(folder: Path) -> None:
    """A case says both, as `receipts test` does."""
    change(
        folder / "gate.toml",
        "\n[table.receipt]",
        '\n[table.receipt]\ncode = "/code"\nstopped = ["failed/5"]\nrecipient = "/to"',
    )
    failed = (
        '[[receipt]]\njson = { id = "p-1", status = "failed", code = 5, to = "447700900123" }\n'
        'reports = [{ provider_id = "p-1", word = "failed", meaning = "failed", consent = "stopped" }]\n'
        "# Who sent"
    )
    cases = folder / "cases" / "gate.toml"
    change(cases, "# Who sent", failed)
    assert command("presets", "test", folder) == (0, "gate  13 cases, 0 differ\n", "")
    change(cases, ', consent = "stopped"', "")
    told = "    report 1: consent: expected None, got 'stopped'\n"
    assert told in command("presets", "test", folder).out
    change(cases, 'word = "failed", meaning = "failed"', 'meaning = "stopped"')
    assert "receipt.2.reports.0.meaning: must be" in command("presets", "test", folder).err


def test_reports_of_deliveries_need_words_that_mean_delivered(folder: Path) -> None:
    change(folder / "gate.toml", 'delivered = ["delivered"]', "delivered = []")
    tried = command("presets", "test", folder)
    assert tried.status == 78
    assert "promises.receipts needs the words of table.receipt.delivered" in tried.err


UNSETTLED = (
    'promises.settles_doubt = "receipt" needs table.receipt.reference, and {message.key} in the request'
)
PROMISES = [
    ('reference = "/reference"  ', "# ", UNSETTLED),
    (', reference = "{message.key}" }', " }", UNSETTLED),
    (', reference = "{message.key}" }', ', reference = "{message.keys}" }', UNSETTLED),
    ("receipts = true ", "receipts = false ",
     "promises.receipts is false, but there is [table.receipt] that reports deliveries"),
    ("receipts = true ", "receipts = false ",
     'promises.settles_doubt = "receipt" needs promises.receipts = true'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "told"), PROMISES)
def test_a_promise_that_the_table_does_not_keep_is_a_mistake(
    folder: Path, old: str, new: str, told: str
) -> None:
    change(folder / "gate.toml", old, new)
    tried = command("presets", "test", folder)
    assert tried.status == 78
    assert told in tried.err


def test_a_block_whose_request_lacks_the_reference_is_a_mistake(folder: Path) -> None:
    change(folder / "gate.toml", 'channels = ["sms"]', 'channels = ["sms", "email"]')
    change(
        folder / "gate.toml",
        "# What the provider reports.",
        '[blocks.email]\njson = { to = "{customer.email}", text = "{content.body}" }\n\n#',
    )
    assert UNSETTLED in command("presets", "test", folder).err


def test_receipts_of_recipients_or_of_failures_alone_promise_no_deliveries(folder: Path) -> None:
    change(folder / "gate.toml", 'settles_doubt = "receipt"', 'settles_doubt = "no"')
    change(folder / "gate.toml", "receipts = true ", "receipts = false ")
    change(folder / "gate.toml", 'delivered = ["delivered"]', "delivered = []")
    assert command("presets", "test", folder).status == 1, "only the case of a delivery differs"


def test_the_sandbox_can_play_a_skeleton_below_a_path(folder: Path) -> None:
    """`sandbox --as NAME` writes a `base_url` with a path for each provider."""
    change(
        folder / "cases" / "gate.toml",
        "keys = { from",
        'keys = { base_url = "http://127.0.0.1:8080/providers/gate", from',
    )
    change(folder / "cases" / "gate.toml", 'path = "/v1/messages"', 'path = "/providers/gate/v1/messages"')
    assert command("presets", "test", folder) == (0, "gate  12 cases, 0 differ\n", "")


SANDBOX = """
[sandbox]
to = "/to"
id = "p-{number}"
accepted = { status = 201, json = { id = "{id}" } }
refused = { status = 400, json = { error = { code = "invalid_number", message = "no such number" } } }
delivered = { json = { id = "{id}", status = "delivered", at = "{at.utc}" } }
signature = { scheme = "hmac", secret = "token", header = "X-Signature", signed = "{timestamp}.{body}" }
"""


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "{at.utc}",
            "{at.uct}",
            "sandbox.delivered.json.at: unknown placeholder {at.uct}; did you mean at.utc?",
        ),
        ("p-{number}", "p-{id}", "sandbox.id: unknown placeholder {id}"),
        ('to = "/to"', 'to = "/recipient"', "sandbox.to: the request of the block sms has no /recipient"),
        ('to = "/to"', 'to = "to"', 'sandbox.to: a JSON Pointer must start with "/"'),
    ],
)
def test_a_sandbox_that_could_not_play_the_provider_is_a_mistake(
    folder: Path, old: str, new: str, told: str
) -> None:
    preset = folder / "gate.toml"
    preset.write_text(preset.read_text(encoding="utf-8") + SANDBOX, encoding="utf-8")
    assert command("presets", "test", folder).status == 0
    text = preset.read_text(encoding="utf-8")
    begin = text.index("[sandbox]")
    preset.write_text(text[:begin] + text[begin:].replace(old, new, 1), encoding="utf-8")
    tried = command("presets", "test", folder)
    assert tried.status == 78
    assert told in tried.err
