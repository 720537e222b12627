"""Which addresses are public, and which are those of a cloud's own services.

They are in tables of our own, since `ipaddress` differs between versions: IANA's special-purpose registries
and other ranges outside the public internet. Of IPv6, only 2000::/3 is public.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

IpAddress = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


def literal_address(name: str) -> IpAddress | None:
    """Return the address that a host is written as; None: it is a name."""
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


METADATA: frozenset[IpAddress] = frozenset(
    [
        IPv4Address("169.254.169.254"),  # AWS, Azure, Google, Oracle, DigitalOcean, OpenStack and others
        IPv4Address("169.254.169.123"),  # AWS: time
        IPv4Address("169.254.169.253"),  # AWS: names
        IPv4Address("169.254.170.2"),  # AWS ECS: credentials of a task
        IPv4Address("169.254.170.23"),  # AWS EKS: credentials of a pod
        IPv4Address("169.254.0.23"),  # Tencent
        IPv4Address("169.254.42.42"),  # Scaleway
        IPv4Address("100.100.100.200"),  # Alibaba
        IPv4Address("192.0.0.192"),  # Oracle, classic
        IPv4Address("168.63.129.16"),  # Azure: the host of a virtual machine, at a public address
        IPv6Address("fd00:ec2::254"),  # AWS
        IPv6Address("fd00:ec2::253"),
        IPv6Address("fd00:ec2::123"),
        IPv6Address("fd00:ec2::23"),
        IPv6Address("fd20:ce::254"),  # Google
        IPv6Address("fd00:c1::a9fe:a9fe"),  # Oracle
        IPv6Address("fd00:a9fe:a9fe::1"),  # Akamai
        IPv6Address("fd00:100::100:200"),  # Alibaba
        IPv6Address("fd00:42::42"),  # Scaleway
        IPv6Address("fe80::a9fe:a9fe"),  # OpenStack
    ]
)
"""Addresses where clouds give credentials to their machines."""

_IPV4: Sequence[tuple[IPv4Network, str]] = [
    (IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "private"),  # this network; 0.0.0.0 is this machine
        ("10.0.0.0/8", "private"),
        ("100.64.0.0/10", "private"),  # shared by a carrier's customers
        ("127.0.0.0/8", "loopback"),
        ("168.63.129.16/32", "metadata"),
        ("169.254.0.0/16", "link-local"),
        ("172.16.0.0/12", "private"),
        ("192.0.0.0/24", "private"),  # IETF protocol assignments
        ("192.0.2.0/24", "documentation"),
        ("192.88.99.0/24", "private"),  # 6to4 relays
        ("192.168.0.0/16", "private"),
        ("198.18.0.0/15", "private"),  # benchmarks
        ("198.51.100.0/24", "documentation"),
        ("203.0.113.0/24", "documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "private"),  # reserved, and broadcast
    )
]
_PUBLIC_IPV6 = IPv6Network("2000::/3")
_IPV6: Sequence[tuple[IPv6Network, str]] = [
    (IPv6Network(network), kind)
    for network, kind in (
        ("::1/128", "loopback"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
        ("2001::/23", "private"),  # IETF protocol assignments: Teredo, benchmarks, ORCHID
        ("2001:db8::/32", "documentation"),
        ("2002::/16", "private"),  # 6to4: reaches an IPv4 address through unknown relays
        ("3ffe::/16", "private"),  # 6bone, given back
        ("3fff::/20", "documentation"),
    )
]
_MAPPED = IPv6Network("::ffff:0:0/96")
_TRANSLATED = IPv6Network("64:ff9b::/96")  # NAT64 (RFC 6052)


def reached(address: IpAddress) -> IpAddress:
    """Return the IPv4 address behind an IPv6 one, if it has one for certain; else the address itself.

    The scope is removed: the address is the same on every interface.
    """
    if isinstance(address, IPv4Address):
        return address
    if address in _MAPPED or address in _TRANSLATED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return IPv6Address(int(address))


def kind_of(address: IpAddress) -> str | None:
    """Return the kind of a non-public address; None for a public one."""
    if isinstance(address, IPv4Address):
        return next((kind for network, kind in _IPV4 if address in network), None)
    kind = next((kind for network, kind in _IPV6 if address in network), None)
    return kind if kind is not None or address in _PUBLIC_IPV6 else "private"


def refusal(address: IpAddress, networks: Sequence[Network]) -> str | None:
    """Return why no request goes to an address: it is neither public nor in an allowed network."""
    at = reached(address)
    if METADATA & {address, at}:
        return f"a {kind_of(at)} address of a cloud's credentials service, which is always refused"
    if (kind := kind_of(at)) is None:
        return None
    if any(each in network for network in networks for each in (address, at)):
        return None
    return f"a {kind} address that isn't in an allowed network"
