"""The text of a page that a search found: fetched within bounds, and stripped of markup.

    page = await fetch(SafeTransport(), "https://site.example/a", PageRules())      # (bytes, content type, charset)
    text = readable(page)

Every hop of a redirect is a separate request through the transport, which checks the address anew (safe_transport.py).
Of a page longer than `max_bytes` only the beginning is used, before and after unpacking alike. No cookies are kept and
no body of a redirect is read. Pages are untrusted, so the parser takes time in proportion to the length, whatever the
content: `html.parser` takes 37 s for 240 kB of opened comments.
"""

from __future__ import annotations

import html
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import NamedTuple

import httpx

from teola_plugin.errors import EngineError
from teola_plugin.runtime.engines.safe_transport import PORTS

TYPES = ("text/html", "application/xhtml+xml", "text/plain")
HEADERS = {"User-Agent": "teola-plugin", "Accept": ", ".join(TYPES), "Accept-Encoding": "gzip"}

CHARSETS = re.compile(
    r"utf-?8|us-ascii|iso-8859-\d{1,2}|windows-125\d|shift_jis|euc-(jp|kr)|gb(k|2312|18030)|big5|koi8-[ru]"
)
"""The allowed charsets. Python has others, some of which are no charsets, and some slow on malicious input."""


@dataclass(frozen=True, slots=True)
class PageRules:
    """The bounds on fetched pages. `networks` and `ports`: see `SafeTransport`."""

    timeout_s: float = 10.0
    max_bytes: int = 512 << 10
    max_redirects: int = 5
    ports: Sequence[int] = PORTS
    networks: Sequence[str] = ()

    def __post_init__(self) -> None:
        for network in self.networks:
            try:
                ip_network(network)
            except ValueError as e:
                raise EngineError(f"pages.networks: expected networks such as '10.1.0.0/16' ({e})") from e


class Page(NamedTuple):
    """The answer of a server, unpacked."""

    body: bytes
    content_type: str
    charset: str


async def fetch(transport: httpx.AsyncBaseTransport, address: str, rules: PageRules) -> Page:
    """Fetch the page at an address, following at most `max_redirects` redirects. The caller limits the time in all.

    Raises: EngineError for a refused page; errors of httpx for failures.
    """
    url = httpx.URL(address)
    for _ in range(rules.max_redirects + 1):
        timeout = httpx.Timeout(rules.timeout_s).as_dict()
        request = httpx.Request("GET", url, headers=HEADERS, extensions={"timeout": timeout})
        response = await transport.handle_async_request(request)
        try:
            if not response.has_redirect_location:
                return await _page(response, url.host, rules.max_bytes)
            url = url.join(response.headers["location"])
        finally:
            await response.aclose()
    raise EngineError(f"{url.host}: more than {rules.max_redirects} redirects")


async def _page(response: httpx.Response, host: str, max_bytes: int) -> Page:
    content_type = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if not response.is_success:
        raise EngineError(f"{host}: it answered {response.status_code}")
    if content_type not in TYPES:
        raise EngineError(f"{host}: a page of type {content_type or 'unknown'} is not read, only {', '.join(TYPES)}")
    if encoding not in ("identity", "gzip"):
        raise EngineError(f"{host}: it sent {encoding}, and was asked for gzip")
    body = bytearray()
    async for part in response.aiter_raw():
        body += part
        if len(body) >= max_bytes:
            break
    unpacked = _unpacked(bytes(body), max_bytes, host) if encoding == "gzip" else bytes(body[:max_bytes])
    return Page(unpacked, content_type, (response.charset_encoding or "utf-8").lower())


def _unpacked(body: bytes, max_bytes: int, host: str) -> bytes:
    """Unpack up to `max_bytes`, of a single gzip member and layer: a few kB may unpack to all the memory there is."""
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(body, max_bytes)
    except zlib.error as e:
        raise EngineError(f"{host}: it sent no gzip ({e})") from e


# --- readable text ---------------------------------------------------------------------------------------------------

_MARK = re.compile(r"<!--|<[!?]|</?([a-zA-Z][^\s/>]*)")
_UNSEEN = {
    name: re.compile(f"</{name}", re.IGNORECASE | re.ASCII)
    for name in ("script", "style", "template", "noscript", "textarea", "iframe", "svg")
}
_INLINE = frozenset((
    "a", "abbr", "b", "bdi", "bdo", "cite", "code", "data", "em", "font", "i", "kbd", "mark", "q", "s", "samp",
    "small", "span", "strong", "sub", "sup", "u", "var",
))  # fmt: skip
_BLANKS = re.compile(r"\s+")
_ENDLESS = re.compile(r"&#\w{9,};?")
"""A malformed character reference; Python refuses to read a number of thousands of digits."""


def readable(page: Page) -> str:
    """Return the text of a page, a line for each block; of HTML without markup, scripts and styles.

    >>> readable(Page(b"<h1>Bees</h1><script>x</script><p>They <i>dance</i>&nbsp;well", "text/html", "utf-8"))
    'Bees\\nThey dance well'
    """
    charset = page.charset if CHARSETS.fullmatch(page.charset) else "utf-8"
    text = page.body.decode(charset, "replace")
    if page.content_type != "text/plain":
        text = html.unescape(_ENDLESS.sub(" ", "".join(_seen(text))))
    lines = (" ".join(line.split()) for line in text.splitlines())
    return "\n".join(filter(None, lines))


def _seen(text: str) -> list[str]:
    """Return the text between the tags. Each search continues at the last end; a failed search ends the scan."""
    pieces, at = [], 0
    while mark := _MARK.search(text, at):
        pieces.append(_BLANKS.sub(" ", text[at : mark.start()]))
        closing = "-->" if mark[0] == "<!--" else ">"
        end = text.find(closing, mark.end())
        if end < 0:
            return pieces
        at = end + len(closing)
        name = (mark[1] or "").lower()
        if name and name not in _INLINE:
            pieces.append("\n")
        if mark[0][1] != "/" and (shut := _UNSEEN.get(name)):
            closed = shut.search(text, at)
            if closed is None:
                return pieces
            at = closed.start()
    return [*pieces, _BLANKS.sub(" ", text[at:])]
