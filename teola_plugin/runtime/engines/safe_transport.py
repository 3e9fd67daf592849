"""A safe HTTP transport for untrusted addresses: no request reaches a machine of the private network.

    transport = SafeTransport()
    client = httpx.AsyncClient(transport=transport)     # each request and each redirect goes through it

    http://site.example/  --resolved here, once-->  93.184.216.34  --is it public?-->  connected to that address

The transport resolves the name and connects to the very address that was checked, so a name server that answers
otherwise the second time (DNS rebinding) gains nothing. If any of several addresses is not public, none is used. The
certificate is still checked against the name. Also refused: schemes other than http and https, ports other than the
standard two, and credentials in the URL. Nothing is kept between requests: no connections, no cookies, no proxies.

Public addresses are defined by a positive list for IPv6 (global unicast), by IANA's special-purpose registries for both
families (RFC 6890 and updates; `ipaddress` of this Python lacks some), and by the IPv4 address within a NAT64 address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address

import httpx

from teola_plugin.errors import EngineError

IPAddress = IPv4Address | IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""A function that returns the addresses of a host, as texts. Raises: OSError."""

PORTS = (80, 443)

GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
NOT_PUBLIC = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.0.0.0/24",  # protocol assignments; a metadata service of one cloud among them
        "192.88.99.0/24",  # relays of 6to4
        "168.63.129.16/32",  # public by its number, but the wire server of Azure
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4: any IPv4 address, wrapped
        "3fff::/20",  # documentation
    )
)
ISATAP = (0x0000_5EFE, 0x0200_5EFE)
"""The marks in the middle of an address whose last 32 bits are an IPv4 address."""


def is_public(address: IPAddress) -> bool:
    """Whether an address belongs to the public internet, and not to the private network.

    >>> [is_public(ipaddress.ip_address(text)) for text in ("1.1.1.1", "10.0.0.1", "64:ff9b::10.0.0.1")]
    [True, False, False]
    """
    match address:
        case IPv4Address():
            is_right = address.is_global
        case IPv6Address() if address in NAT64:
            return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
        case IPv6Address():
            is_isatap = int(address) >> 32 & 0xFFFF_FFFF in ISATAP
            is_right = address in GLOBAL_UNICAST and address.is_global and not address.scope_id and not is_isatap
    return is_right and not any(address in network for network in NOT_PUBLIC)


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of the machine's resolver. Raises: OSError, UnicodeError for an invalid name."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class SafeTransport(httpx.AsyncBaseTransport):
    """A transport that raises EngineError for refused requests, and errors of httpx for failed requests.

    `networks` and `ports`: additional networks and ports of the user from which pages may come ("10.1.0.0/16").
    """

    def __init__(
        self, *, networks: Iterable[str] = (), ports: Iterable[int] = PORTS, resolve: Resolve = resolve,
        verify: ssl.SSLContext | bool = True,
    ) -> None:  # fmt: skip
        self._networks = [ipaddress.ip_network(network) for network in networks]
        self._ports = frozenset(ports)
        self._resolve = resolve
        # A kept connection is found by its address, and two sites may share one.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        self._inner = httpx.AsyncHTTPTransport(verify=verify, limits=limits)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """See httpx."""
        *others, last = await self._checked(request.url)
        for address in others:
            try:
                return await self._inner.handle_async_request(_at(request, address))
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
        return await self._inner.handle_async_request(_at(request, last))

    async def aclose(self) -> None:
        """See httpx."""
        await self._inner.aclose()

    async def _checked(self, url: httpx.URL) -> Sequence[IPAddress]:
        """Return the addresses to connect to: at least a single address, and only allowed addresses."""
        host, port = url.raw_host.decode("ascii"), url.port or (443 if url.scheme == "https" else 80)
        if url.scheme not in ("http", "https") or not host:
            raise EngineError(f"{url.scheme}: only http and https addresses are fetched")
        if url.userinfo:
            raise EngineError(f"{host}: its address holds credentials, so it is not fetched")
        if port not in self._ports:
            raise EngineError(f"{host}: port {port} is none of those that pages are fetched from")
        try:
            addresses = [ipaddress.ip_address(found) for found in await self._resolve(host, port)]
        except (OSError, UnicodeError) as e:
            raise httpx.ConnectError(f"{host}: no such host ({e})") from e
        if not addresses or not all(map(self._is_allowed, addresses)):
            raise EngineError(f"{host}: it is at no public address, so it is not fetched")
        return addresses

    def _is_allowed(self, address: IPAddress) -> bool:
        return is_public(address) or any(address in network for network in self._networks)


def _at(request: httpx.Request, address: IPAddress) -> httpx.Request:
    """Return the request to an address: the name stays only in the header and in the check of the certificate."""
    url = request.url
    headers = request.headers.copy()
    headers["Host"] = url.netloc.decode("ascii")
    extensions = dict(request.extensions)
    if not _is_address(url.host):
        extensions["sni_hostname"] = url.raw_host.decode("ascii")
    to = url.copy_with(host=str(address))
    return httpx.Request(request.method, to, headers=headers, stream=request.stream, extensions=extensions)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
