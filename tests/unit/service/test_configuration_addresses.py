"""Which addresses entity configurations may come from: hosts, where their names lead, and paths."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import pytest

from deliveryd.errors import ServiceRefused, ServiceUnavailable
from deliveryd.http.client import build_client
from deliveryd.http.target import target_of
from deliveryd.service.client import ServiceClient
from deliveryd.service.configuration_access import (
    ConfigurationAccess,
    Host,
    HostRules,
    parse_host,
    parse_network,
)
from deliveryd.service.hosts import AllowedHosts, NameServers, OwnPaths

pytestmark = pytest.mark.anyio


# which hosts

BASE = target_of("https://service.example:8443/api")


def hosts(
    *names: str, networks: Sequence[str] = (), allow_http: bool = False, found: Sequence[str] = ()
) -> AllowedHosts:
    async def look_up(name: str, port: int) -> Sequence[str]:
        await anyio.lowlevel.checkpoint()
        return found

    rules = HostRules(
        [parse_host(name) for name in names] or None, [parse_network(each) for each in networks], allow_http
    )
    return AllowedHosts(BASE, rules, look_up)


@pytest.mark.parametrize(
    "url",
    [
        "https://evil.example/x",
        "https://service.example/x",
        "http://service.example:8443/x",
        "https://service.example.evil.example:8443/",
        "https://evil-service.example:8443/",
        "https://service.example:8444/",
        "https://127.0.0.1:8443/",
        "https://service.example%2eevil.example:8443/",
    ],
)
def test_without_a_list_only_the_services_own_host_is_asked(url: str) -> None:
    """By scheme, name and port; another port of it is another server."""
    hosts().check(target_of("https://SERVICE.example:8443/anything"))
    with pytest.raises(ServiceRefused, match="isn't a host that configurations come from"):
        hosts().check(target_of(url))


def test_a_list_replaces_the_default() -> None:
    """Names are compared as names; without a port they mean that of the scheme; http has to be allowed."""
    listed = hosts("Config.Example", "other.example:8000", "[2001:db8::7]", "10.1.2.3:81", "bücher.example")
    for url in (
        "https://config.example/a",
        "https://config.example:443/a",
        "https://other.example:8000/",
        "https://[2001:DB8:0::7]/",
        "https://10.1.2.3:81/",
        "https://xn--bcher-kva.example/",
    ):
        listed.check(target_of(url))
    for url in ("https://service.example:8443/", "https://config.example:444/", "https://other.example/",
                "https://[::ffff:10.1.2.3]:81/"):  # fmt: skip
        with pytest.raises(ServiceRefused, match="isn't a host"):
            listed.check(target_of(url))
    with pytest.raises(ServiceRefused, match="without TLS"):
        listed.check(target_of("http://config.example/a"))
    hosts("config.example", allow_http=True).check(target_of("http://config.example/a"))


@pytest.mark.parametrize(
    "text", ["", "https://h", "h/a", "u@h", "h:x", "h:0", "h:70000", "*.example", "a b", "h?", "h#", "::1"]
)
def test_a_host_of_the_list_that_is_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|host|port"):
        parse_host(text)
    assert parse_host("H.example:8443") == Host("h.example", 8443)


INWARD = {
    "127.0.0.1": "loopback", "127.8.8.8": "loopback", "::1": "loopback", "::ffff:127.0.0.1": "loopback",
    "10.0.0.7": "private", "172.16.0.1": "private", "192.168.1.1": "private", "100.64.0.1": "private",
    "fd00::1": "private", "fec0::1": "private", "::ffff:10.0.0.1": "private", "64:ff9b::a00:1": "private",
    "2002:a00:1::": "private", "0.0.0.1": "private", "::": "private", "240.0.0.1": "private",
    "169.254.169.254": "link-local", "fe80::1": "link-local", "fe80::1%eth0": "link-local",
    "::ffff:169.254.169.254": "link-local", "224.0.0.1": "multicast", "ff02::1": "multicast",
    "2001:0:1::": "private", "0.0.0.0": "private",  # noqa: S104
    "10.255.255.255": "private", "100.127.255.255": "private",
    "127.255.255.255": "loopback", "169.254.0.1": "link-local", "172.31.255.255": "private",
    "192.0.0.0": "private", "192.0.0.8": "private", "192.0.0.9": "private", "192.0.0.10": "private",
    "192.0.0.171": "private", "192.0.0.255": "private", "192.0.2.1": "documentation",
    "192.88.99.1": "private", "198.18.0.0": "private", "198.19.255.255": "private",
    "198.51.100.1": "documentation", "203.0.113.255": "documentation", "239.255.255.255": "multicast",
    "255.255.255.255": "private", "::127.0.0.1": "private", "::1.1.1.1": "private",
    "::ffff:0:7f00:1": "private", "64:ff9b::7f00:1": "loopback",
    "64:ff9b::6440:1": "private", "64:ff9b:1::1": "private", "64:ff9b:1:7f00:0:100::": "private",
    "100::1": "private", "100:0:0:1::1": "private", "2001::1": "private", "2001:2::1": "private",
    "2001:10::1": "private", "2001:20::1": "private", "2001:1ff:ffff::": "private",
    "2001:db8::1": "documentation", "2002:101:101::1": "private", "2002:7f00:1::": "private",
    "3ffe::1": "private", "3fff::1": "documentation", "3fff:fff::1": "documentation", "4000::1": "private",
    "5f00::1": "private", "1fff:ffff::1": "private", "fc00::1": "private", "fdff::1": "private",
    "fe00::1": "private", "febf::1": "link-local", "feff::1": "private", "ffff::1": "multicast",
}  # fmt: skip


METADATA = [
    "169.254.169.254", "169.254.169.253", "169.254.170.2", "169.254.170.23", "169.254.0.23", "169.254.42.42",
    "100.100.100.200", "192.0.0.192", "168.63.129.16", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254",
    "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1", "fd00:100::100:200",
    "fd00:42::42", "fe80::a9fe:a9fe", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "::ffff:a83f:8110",
    "64:ff9b::a83f:8110", "::ffff:192.0.0.192",
]  # fmt: skip
PUBLIC = [
    "1.1.1.1", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0",
    "168.63.129.15", "168.63.129.17", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0",
    "191.255.255.255", "192.0.1.0", "192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255",
    "192.169.0.0", "198.17.255.255", "198.20.0.0", "198.51.99.255", "198.51.101.0", "203.0.112.255",
    "203.0.114.0", "223.255.255.255", "2000::", "2001:200::", "2001:4860:4860::8888", "2001:db7:ffff::",
    "2001:db9::", "2003::", "2606:4700::1111", "2a00:1450::1", "3ffd:ffff::", "3fff:1000::", "3fff:ffff::",
    "::ffff:1.1.1.1", "64:ff9b::101:101",
]  # fmt: skip


@pytest.mark.parametrize("address", INWARD)
async def test_a_name_that_leads_inward_is_refused(address: str) -> None:
    """Also when only one of its addresses does, and when IPv6 wraps an IPv4 address."""
    target = target_of("https://config.example/a")
    for found in ([address], ["93.184.216.34", address]):
        reason = f"config.example leads to {address}, a {INWARD[address]} address"
        with pytest.raises(ServiceRefused, match=reason.replace(".", r"\.")):
            await hosts("config.example", found=found).addresses(target)


@pytest.mark.parametrize("address", METADATA)
async def test_where_clouds_hand_out_credentials_is_never_asked(address: str) -> None:
    """Neither by a name, nor where the list or the networks have it."""
    written = f"[{address}]" if ":" in address else address
    for name in ("config.example", written):
        listed = hosts(name, networks=["0.0.0.0/0", "::/0"], found=[address])
        with pytest.raises(ServiceRefused, match="of a cloud's credentials service, which is always refused"):
            await listed.addresses(target_of(f"https://{name}/a"))


async def test_a_scope_leads_past_nothing() -> None:
    """Through whichever interface it is reached, the address is the same."""
    listed = hosts("config.example", networks=["fe80::/10"], found=["fe80::a9fe:a9fe%1"])
    with pytest.raises(ServiceRefused, match="of a cloud's credentials service"):
        await listed.addresses(target_of("https://config.example/a"))


@pytest.mark.parametrize("address", PUBLIC)
async def test_a_public_address_is_asked(address: str) -> None:
    """Also right beside what isn't."""
    target = target_of("https://config.example/a")
    assert await hosts("config.example", found=[address]).addresses(target) == [address]


async def test_a_network_that_is_allowed_may_be_led_into() -> None:
    """The operator's own network, by IPv4 or wrapped in IPv6; its neighbours stay refused."""
    listed = ["10.20.0.0/16", "fd12::/16"]
    target = target_of("https://config.example/a")
    for found in (["10.20.3.4"], ["::ffff:10.20.3.4"], ["fd12::9"], ["93.184.216.34", "2606:4700::1"]):
        assert await hosts("config.example", networks=listed, found=found).addresses(target) == found
    with pytest.raises(ServiceRefused):
        await hosts("config.example", networks=listed, found=["10.21.0.1"]).addresses(target)


async def test_real_names_are_looked_up() -> None:
    """`localhost` leads where it leads, and a name that nobody has leads nowhere."""
    rules = HostRules([parse_host("localhost"), parse_host("nobody.invalid")])
    with pytest.raises(ServiceRefused, match=r"localhost leads to .*, a loopback address"):
        await AllowedHosts(BASE, rules, NameServers()).addresses(target_of("https://localhost/"))
    with pytest.raises(ServiceUnavailable, match=r"nobody\.invalid has no address"):
        await AllowedHosts(BASE, rules, NameServers()).addresses(target_of("https://nobody.invalid/"))


# which paths are the service's own

OWN_PATHS = [
    "/api/v1/queue?take=100", "/api/v1/queue", "/api/v1/events", "/api/v1/settings/5",
    "/api/v1/customers/18/all", "/api/v1/customers/18/merchants/5", "/api/v1/queue/", "/api/v1/QUEUE",
    "/API/V1/Queue", "/api/v1/%71ueue",
    "/%61pi/v1/queue", "/api/v1/queue;a=b", "/api/v1;x/queue", "/api/v1/queue.json", "/api/v1/queue:take",
    "/api/v1/queue%20", "/api/v1/queue%2A", "/queue?take=100", "/api/queue", "/customers/18/all?language=*",
    "/gateway/queue", "/gateway/v2/settings/5", "/gateway/customers/18/all/", "/a/b/c/customers/-18/All.json",
]  # fmt: skip
ODD_PATHS = [
    "/api/v1/x/../queue", "/api/v1/./queue", "/api/v1//queue", "//api/v1/queue", "/api//v1/queue", "//queue",
    "/api/v1/x/%2e%2e/queue", "/api/v1/x/.%2E/queue", "/api/v1/%2e/queue", "/api%2fv1%2fqueue",
    "/api/v1/x%2f..%2fqueue", "/api/v1\\queue", "/api/v1/x\\..\\queue", "/api/v1%5cqueue",
    "/api/v1/%2571ueue", "/api/v1/%252571ueue", "/api/v1/x/%252e%252e/queue", "/api/v1/x/..;/queue",
    "/api/v1/;/queue",
    "/api/v1/x/..;a=b/queue", "/api/v1/queue%00", "/api/v1/queue%0d%0a", "/api/v1/queue%3ftake=1",
    "/api/v1/queue%23", "/api/v1/queue%3bx", "/api/v1/x/%c0%ae%c0%ae/queue", "/api/v1%c0%afqueue",
    "/api/v1/%ef%bd%91ueue", "/api/v1/\uff51ueue", "/api/v1/%u0071ueue", "/api/v1/%7", "/api/v1/%20/queue",
    "/api/v1/.../queue", "/api/v1/x/.. /queue", "/api/v1/que\u0131e", "/api/v1/que|ue", "/x/..", "/x/.",
]  # fmt: skip
PLAIN_PATHS = [
    "/api/v4/merchants/5/1/en", "/api/v4/merchants/5/1/*", "/api/v1/merchants/5/1/en?v=2&at=/queue", "/", "",
    "/api/v1", "/queues/5/1/en", "/api/v4/events/5/1/en", "/api/v4/offers/5/1/en/", "/customer/18/all",
    "/api/v1/merch%61nts/5/1/en", "/linden/customers/all/5/1/en", "/api/v4/settings/en",
    "/x.y/z~!$&'()*+,=:@-_",
]  # fmt: skip


@pytest.mark.parametrize("path", [*OWN_PATHS, *ODD_PATHS])
async def test_nothing_of_the_services_own_interface_is_a_configuration(path: str) -> None:
    """However a path is spelled, and on every host of the list: any may be the service by another name."""
    listed = HostRules([parse_host("service.example"), parse_host("alias.example")], allow_http=True)
    access = ConfigurationAccess(listed, build_client(timeout=1.0))
    reason = "belongs to the service's own" if path in OWN_PATHS else "is ambiguous"
    async with ServiceClient(
        build_client(timeout=1.0), "https://service.example/api/v1/", configurations=access
    ) as client:
        for origin in ("https://service.example", "https://alias.example", "http://SERVICE.example:80"):
            with pytest.raises(ServiceRefused, match=f"the path of the address is refused: it {reason}"):
                await client.configuration(f"{origin}{path}")


@pytest.mark.parametrize("path", PLAIN_PATHS)
def test_all_other_paths_are_configurations(path: str) -> None:
    """Also ones that only look a little like the service's own."""
    url = f"https://service.example{path}"
    OwnPaths(target_of("https://service.example/api/v1")).check(url, target_of(url))
