"""The sandbox itself, over real sockets: what every other test relies on when it relies on it."""

from __future__ import annotations

import json
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from deliveryd.sandbox.faults import (
    ApplyThenDelay,
    ApplyThenHangUp,
    CutInHalf,
    Delay,
    Drip,
    Fault,
    FaultAnswer,
    Hang,
    HangUp,
    Pass,
    StandInEndpoint,
    html_page,
)
from deliveryd.sandbox.inbox import elements, members
from deliveryd.sandbox.scenario import demo_scenario
from deliveryd.sandbox.server import Sandbox
from deliveryd.sandbox.state import CUSTOMER_GROUPS, SandboxState
from support.messages import message
from support.patience import PATIENCE
from support.places import ROOT
from support.plain_http import NO_TLS
from support.sandboxes import open_sandbox

AT = "2026-01-31T12:00:00.000001Z"


@pytest.fixture
def now() -> list[float]:
    """The sandbox's clock, moved by hand."""
    return [1000.0]


@pytest.fixture
def sandbox(now: list[float]) -> Iterator[Sandbox]:
    with open_sandbox(Sandbox(state=SandboxState(clock=lambda: now[0]))) as opened:
        yield opened


@pytest.fixture
def client(sandbox: Sandbox) -> Iterator[httpx.Client]:
    with httpx.Client(verify=NO_TLS, base_url=sandbox.base_url, trust_env=False, timeout=PATIENCE) as opened:
        yield opened


def event(number: int, status: str = "dequeued", **more: Any) -> dict[str, Any]:
    return {"messageId": number, "status": status, "timestamp": AT, **more}


# -- the queue


def test_queue_hands_out_in_order_and_remembers_how_many_were_asked_for(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    sandbox.state.enqueue(message(1), message(2), message(3))
    assert [each["id"] for each in client.get("/queue?take=2").json()] == [1, 2]
    assert [each["id"] for each in client.get("/queue?take=2").json()] == [3]
    assert client.get("/queue?take=2").json() == []
    assert sandbox.state.takes == [2, 2, 2]


def test_queue_serves_raw_elements_exactly_as_they_were_put_in(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    odd = ['{"id": 1, "variables": {"a": 10.50}}', '{"id": "x"}', "null", '{"id": 2, "id": 3}', "{broken"]
    sandbox.state.enqueue(*odd)
    assert client.get("/queue?take=9").text == "[" + ",".join(odd) + "]"


def test_a_message_is_offered_again_until_its_dequeued_arrives(
    sandbox: Sandbox, client: httpx.Client, now: list[float]
) -> None:
    sandbox.state.enqueue(message(1), message(2))
    client.get("/queue?take=2")
    client.post("/events", json=[event(1)])
    assert client.get("/queue?take=9").json() == []
    now[0] += 30.0
    assert [each["id"] for each in client.get("/queue?take=9").json()] == [2]
    now[0] += 29.0
    assert client.get("/queue?take=9").json() == []
    client.post("/events", json=[event(2)])
    now[0] += 3600.0
    assert client.get("/queue?take=9").json() == []


def test_no_other_event_than_dequeued_ends_a_message_being_offered(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    sandbox.state.redeliver_after = 0.0
    sandbox.state.enqueue(message(1), message(2), '{"id": 3.0}')
    client.get("/queue?take=3")
    client.post("/events", json=[event(1, "error"), event(2, "sent"), event(3)])
    assert [each["id"] for each in client.get("/queue?take=9").json()] == [1, 2]


@pytest.mark.parametrize("take", ["-1", "ten", "", "1.5"])
def test_queue_refuses_what_is_no_number_to_take(client: httpx.Client, take: str) -> None:
    assert client.get("/queue", params={"take": take}).status_code == 400


# -- events


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"messageId": 1, "status": "sent"}, "timestamp"),
        (event(1) | {"timestamp": "2026-01-31T12:00:00Z"}, "timestamp"),
        (event(1) | {"timestamp": "2026-01-31T12:00:00.000Z"}, "timestamp"),
        (event(1) | {"timestamp": "2026-01-31T12:00:00.000001+00:00"}, "timestamp"),
        (event(1) | {"timestamp": "2026-02-31T12:00:00.000001Z"}, "timestamp"),
        (event(1) | {"messageId": "1"}, "messageId"),
        (event(1) | {"messageId": True}, "messageId"),
        (event(1, "done"), "status"),
        (event(1, "delivered", channel="sms"), "reportedAt"),
        (event(1, "delivered", reportedAt=AT), "channel"),
    ],
)
def test_one_bad_event_refuses_its_whole_batch_and_says_which_field(
    sandbox: Sandbox, client: httpx.Client, bad: dict[str, Any], field: str
) -> None:
    answer = client.post("/events", json=[event(2), bad])
    assert answer.status_code == 400
    assert [(each["index"], each["field"]) for each in answer.json()["events"]] == [(1, field)]
    assert sandbox.state.events == []
    assert len(sandbox.state.refused_batches) == 1


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b"not json"])
def test_events_that_are_no_array_of_objects_are_refused(client: httpx.Client, body: bytes) -> None:
    assert client.post("/events", content=body).status_code == 400


def test_events_are_kept_as_received_and_found_by_message(sandbox: Sandbox, client: httpx.Client) -> None:
    batch = [event(1), event(2), event(1, "error", details="why"), event(2, "sent")]
    assert client.post("/events", json=batch).json() == {"accepted": 4}
    assert sandbox.state.events == batch
    assert sandbox.state.statuses(1) == ["dequeued", "error"]
    assert sandbox.state.events_of(1)[1]["details"] == "why"
    assert sandbox.state.statuses(3) == []


def test_an_event_can_be_made_unwelcome(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.state.reject_event = lambda each: each["messageId"] == 2
    assert client.post("/events", json=[event(1), event(2)]).status_code == 400
    assert client.post("/events", json=[event(1)]).status_code == 200
    assert sandbox.state.statuses(1) == ["dequeued"]


# -- settings, customers, entities, authentication


def test_settings_are_served_by_id_and_counted(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.state.settings = {7: {"content": {"en": {}}}, 8: '{"content": 1e400', -9: b"\xff"}
    assert client.get("/settings/7").json() == {"content": {"en": {}}}
    assert client.get("/settings/8").text == '{"content": 1e400'
    assert client.get("/settings/-9").content == b"\xff"
    assert client.get("/settings/10").status_code == 404
    assert client.get("/settings/x").status_code == 400
    assert client.get("/settings/9223372036854775808").status_code == 400
    client.get("/settings/7")
    assert sandbox.state.settings_requests == {7: 2, 8: 1, -9: 1, 10: 1}


def test_customer_lists_follow_their_flags_and_tokens_to_the_end(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    sandbox.state.page_size = 2
    sandbox.state.customers[5] = {group: [{"id": number} for number in range(5)] for group in CUSTOMER_GROUPS}
    flags = {f"{group}.include": "true" for group in CUSTOMER_GROUPS}
    value = client.get("/customers/5/all", params=flags | {"language": "*"}).json()["value"]
    assert set(value) == set(CUSTOMER_GROUPS)
    assert [len(value[group]["list"]) for group in ("benefits", "regions")] == [5, 5]
    assert not any("continuationToken" in value[group] for group in ("benefits", "regions"))

    seen = [each["id"] for each in value["offers"]["list"]]
    token = value["offers"].get("continuationToken")
    assert set(token) >= set("&=%+/ ü")
    while token is not None:
        asked = {"offers.include": "true", "offers.continuationToken": token}
        page = client.get("/customers/5/all", params=asked).json()["value"]
        assert set(page) == {"offers"}
        seen += [each["id"] for each in page["offers"]["list"]]
        token = page["offers"].get("continuationToken")
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "query",
    [
        {"offers.include": "yes"},
        {"offers.continuationToken": "offers&=2%+/ ü"},
        {"offers.include": "true", "offers.continuationToken": "merchants&=2%+/ ü"},
        {"offers.include": "true", "offers.continuationToken": "offers"},
    ],
)
def test_customer_data_refuses_flags_and_tokens_that_it_never_gave(
    sandbox: Sandbox, client: httpx.Client, query: dict[str, str]
) -> None:
    sandbox.state.customers[5] = {"offers": [{"id": 1}]}
    assert client.get("/customers/5/all", params=query).status_code == 400
    assert client.get("/customers/6/all").status_code == 404


def test_a_configuration_is_found_at_its_address_and_not_sent_twice(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    sandbox.state.customers[5] = {"merchants": [{"id": 7, "level": "gold"}]}
    sandbox.state.add_entity("merchants", 7, {"de": {"id": 7, "about": "Bäcker"}})
    answer = client.get("/customers/5/all", params={"merchants.include": "true", "language": "de"})
    (listed,) = answer.json()["value"]["merchants"]["list"]
    assert listed["level"] == "gold"
    assert listed["configUrl"] == f"{sandbox.base_url}/api/v4/merchants/7/1/de"
    first = client.get(listed["configUrl"])
    assert first.json() == {"value": {"id": 7, "about": "Bäcker"}}
    assert "max-age" in first.headers["cache-control"]
    again = client.get(listed["configUrl"], headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/api/v4/merchants/7/1/fr").status_code == 404


def test_with_a_token_set_requests_without_it_are_turned_away(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.state.token = "open sesame"
    for method, path in (("GET", "/queue"), ("POST", "/events"), ("GET", "/settings/1")):
        assert client.request(method, path).status_code == 401
        assert client.request(method, path, headers={"authorization": "Bearer no"}).status_code == 401
    assert client.get("/queue", headers={"authorization": "Bearer open sesame"}).status_code == 200


# -- faults


def test_faults_are_used_up_one_per_request_and_a_standing_one_stays_until_healed(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    sandbox.state.fail("queue", Pass(), FaultAnswer(500, b"{}"), html_page(502))
    sandbox.state.fail_until_healed("queue", FaultAnswer(429, b"", (("retry-after", "7"),)))
    answers = [client.get("/queue") for _ in range(5)]
    assert [each.status_code for each in answers] == [200, 500, 502, 429, 429]
    assert "<html>" in answers[2].text
    assert answers[3].headers["retry-after"] == "7"
    sandbox.state.heal("queue")
    assert client.get("/queue").status_code == 200


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (HangUp(), httpx.RemoteProtocolError, 0),
        (ApplyThenHangUp(), httpx.RemoteProtocolError, 1),
        (CutInHalf(), httpx.RemoteProtocolError, 1),
        (Delay(60.0), httpx.ReadTimeout, 0),
        (ApplyThenDelay(60.0), httpx.ReadTimeout, 1),
        (Hang(), httpx.ReadTimeout, 0),
    ],
)
def test_an_answer_can_be_lost_before_or_after_the_work_is_done(
    sandbox: Sandbox, client: httpx.Client, fault: Fault, error: type[Exception], applied: int
) -> None:
    sandbox.state.fail("provider.sms", fault)
    with pytest.raises(error):
        client.post("/sms", json={"to": "1", "text": "x"}, timeout=0.2)
    sandbox.state.wait_for(lambda state: len(state.received) == applied)
    assert client.post("/sms", json={"to": "1", "text": "x"}).status_code == 200
    assert len(sandbox.state.received) == applied + 1


def test_a_cut_answer_announces_its_whole_length(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.state.settings[1] = {"content": {"en": {"sms": {"text": "x" * 200}}}}
    sandbox.state.fail("settings", CutInHalf())
    received: list[bytes] = []
    with client.stream("GET", "/settings/1") as answer:
        with pytest.raises(httpx.RemoteProtocolError, match="peer closed"):
            received.extend(answer.iter_raw())
        announced = int(answer.headers["content-length"])
    assert len(b"".join(received)) == announced // 2


def test_a_dripping_answer_arrives_whole_at_last(sandbox: Sandbox, client: httpx.Client) -> None:
    sandbox.state.settings[1] = {"content": {}}
    sandbox.state.fail("settings", Drip(0.001))
    assert client.get("/settings/1").json() == {"content": {}}


@pytest.mark.parametrize("endpoint", ["queue", "provider.inApp"])
def test_closing_takes_less_than_a_second_even_when_clients_hang(endpoint: StandInEndpoint) -> None:
    path = {"queue": "/queue", "provider.inApp": "/inApp"}[endpoint]
    ended: queue.Queue[Exception] = queue.Queue()

    def wait_for_ever(base_url: str) -> None:
        with httpx.Client(verify=NO_TLS, base_url=base_url, trust_env=False, timeout=30.0) as client:
            try:
                client.get(path)
            except httpx.HTTPError as error:
                ended.put(error)

    with open_sandbox() as sandbox:
        sandbox.state.fail(endpoint, Hang())
        visitor = threading.Thread(target=wait_for_ever, args=[sandbox.base_url])
        visitor.start()
        sandbox.state.wait_for(lambda state: state.requests[endpoint] == 1)
        started = time.perf_counter()
    took = time.perf_counter() - started
    visitor.join(5.0)
    assert took < 1.0
    assert isinstance(ended.get_nowait(), httpx.HTTPError)


# -- the inbox's data


def test_enqueue_takes_one_message_an_array_or_messages_with_settings(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    assert client.post("/enqueue", json=message(1)).json() == {"queued": 1}
    assert client.post("/enqueue", json=[message(2), message(3)]).json() == {"queued": 2}
    both = {"messages": [message(4)], "settings": {"9": {"content": {}}}}
    assert client.post("/enqueue", json=both).status_code == 202
    client.post("/enqueue", json=message(5) | {"settings": {"10": {"content": {}}}})
    assert [each["id"] for each in client.get("/queue?take=9").json()] == [1, 2, 3, 4, 5]
    assert set(sandbox.state.settings) == {9, 10}


def test_the_tutorial_s_message_is_taken_with_its_settings(client: httpx.Client, sandbox: Sandbox) -> None:
    """As the line with curl has it."""
    page = ROOT.joinpath("docs/tutorial/first-messages.md").read_text(encoding="utf-8")
    (body,) = re.findall(r"^\$ curl \S+/enqueue --data '(.+?)'$", page, flags=re.MULTILINE | re.DOTALL)
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/enqueue", content=body, headers=form).json() == {"queued": 1}
    assert 77 in sandbox.state.settings


def test_enqueue_keeps_the_spelling_of_numbers(client: httpx.Client) -> None:
    text = '{"id": 1, "settingsId": 1, "customerId": 1, "variables": {"a": 10.50, "b": 1e3}}'
    for body in (text, f"[ {text} ]", f'{{"messages": [{text}]}}'):
        assert client.post("/enqueue", content=body).status_code == 202
    offered = client.get("/queue?take=9").text
    assert offered.count('{"a": 10.50, "b": 1e3}') == 3


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"nope", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"[] 2", "not JSON"),
        (b"[1 2]", "not JSON"),
        (b"3", "must be a message"),
        (b"\xff", "UTF-8"),
        (b"[3]", "message 0: a message is an object"),
        (b'{"id": "1"}', "id must be an integer"),
        (b'[{"id":1,"settingsId":1,"customerId":1}]', "variables must be an object"),
        (b'{"id":1,"settingsId":1,"customerId":1,"variables":{"a":null}}', "variable 'a'"),
        (b'{"messages": {}}', "messages must be an array"),
        (b'{"settings": {"x": {}}}', "settings 'x'"),
        (b'{"settings": []}', "settings must be an object"),
    ],
)
def test_enqueue_says_what_is_wrong(sandbox: Sandbox, client: httpx.Client, body: bytes, words: str) -> None:
    answer = client.post("/enqueue", content=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]
    assert sandbox.state.offers.waiting == 0


def test_another_site_cannot_put_messages_in(sandbox: Sandbox, client: httpx.Client) -> None:
    foreign = {"origin": "http://elsewhere.example"}
    assert client.post("/enqueue", json=message(1), headers=foreign).status_code == 403
    own = {"origin": sandbox.base_url}
    assert client.post("/enqueue", json=message(1), headers=own).status_code == 202


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "localhost.evil.example", "", "[::1"])
def test_a_site_whose_name_leads_here_reads_no_inbox(client: httpx.Client, host: str) -> None:
    foreign = {"host": host, "origin": f"http://{host}"}
    assert client.get("/", headers=foreign).status_code == 421
    assert client.get("/inbox.json", headers=foreign).status_code == 421
    assert client.post("/enqueue", json=message(1), headers=foreign).status_code == 421
    for own in ("localhost:8080", "127.0.0.1", "[::1]:8080"):
        assert client.get("/inbox.json", headers={"host": own}).status_code == 200


def test_inbox_joins_messages_with_their_events_and_shows_errors_of_the_unsent(
    sandbox: Sandbox, client: httpx.Client
) -> None:
    sandbox.state.enqueue(message(1, customer_id=11), message(2, customer_id=12))
    client.post("/events", json=[event(1), event(2), event(2, "error", details="missing placeholders: a")])
    client.post("/sms", json={"to": "+49123", "text": "hi", "reference": "1"})
    client.post("/events", json=[event(1, "delivered", channel="sms", reportedAt=AT)])
    answer = client.get("/inbox.json").json()
    cards = {card["id"]: card for card in answer["cards"]}
    assert (cards[1]["channel"], cards[1]["customerId"], cards[1]["content"]["text"]) == ("sms", 11, "hi")
    assert [each["status"] for each in cards[1]["events"]] == ["dequeued", "delivered"]
    assert cards[2]["channel"] is None
    assert cards[2]["events"][1]["details"] == "missing placeholders: a"
    assert client.get("/inbox.json", params={"after": answer["version"]}).status_code == 204


def test_raw_json_is_cut_where_its_parts_begin_and_end() -> None:
    assert elements(' [ 1.0 , "a,]" ,{"b": [2]} ] ') == ["1.0", '"a,]"', '{"b": [2]}']
    assert members('{"a" : 1.0, "b":[]}') == {"a": "1.0", "b": "[]"}
    assert (elements("[ ]"), members("{}")) == ([], {})


# -- the demo's story


def test_the_story_is_whole_and_always_the_same() -> None:
    scenario = demo_scenario()
    assert scenario == demo_scenario()
    assert len({exhibit.id for exhibit in scenario.exhibits}) == len(scenario.messages) >= 40
    assert all(json.loads(exhibit.text)["id"] == exhibit.id and exhibit.note for exhibit in scenario.exhibits)
    languages = {language for each in scenario.settings.values() for language in each["content"]}
    assert languages == {"en", "de", "pt", "uk"}
    blocks = {
        block
        for each in scenario.settings.values()
        for content in each["content"].values()
        for block in content
    }
    assert blocks == {"greetings", "sms", "messenger", "inApp", "email"}
    customers = [json.loads(line) for line in scenario.customers_jsonl.splitlines()]
    assert len({customer["id"] for customer in customers}) == len(customers)
    assert not any("15550102" in line or "timeout" in line for line in scenario.customers_jsonl.splitlines())


def test_the_story_can_be_loaded_and_taken(sandbox: Sandbox, client: httpx.Client) -> None:
    scenario = demo_scenario()
    scenario.load_into(sandbox.state)
    assert len(client.get("/queue?take=100").json()) == len(scenario.messages)
    assert client.get("/settings/501").json() == scenario.settings[501]
    assert "10.50" in "".join(sandbox.state.taken)


# -- opening and closing


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_sandbox_runs_in_an_asyncio_loop_and_leaves_signals_alone(anyio_backend: str) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    async with (
        Sandbox() as sandbox,
        httpx.AsyncClient(verify=NO_TLS, base_url=sandbox.base_url, trust_env=False) as client,
    ):
        assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
        await client.post("/events", json=[event(1)])
        assert sandbox.state.statuses(1) == ["dequeued"]


def test_waiting_in_vain_tells_what_was_seen(sandbox: Sandbox, client: httpx.Client) -> None:
    client.get("/queue")
    with pytest.raises(TimeoutError, match="'queue': 1"):
        sandbox.state.wait_for(lambda state: state.events, timeout=0.01)


def test_a_port_that_is_taken_is_an_error_and_leaves_nothing_open(sandbox: Sandbox) -> None:
    with pytest.raises(OSError, match="in use"), open_sandbox(Sandbox(port=sandbox.port)):
        pass


@pytest.mark.slow
def test_the_sandbox_stands_without_the_rest_of_deliveryd() -> None:
    script = (
        "import sys, deliveryd.sandbox.server, deliveryd.sandbox.scenario\n"
        "known = ('deliveryd', 'deliveryd.sandbox')\n"
        "print([name for name in sys.modules if name.startswith('deliveryd') and name not in known"
        " and not name.startswith('deliveryd.sandbox.')])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=30.0
    )
    assert printed.stdout.strip() == "[]"
