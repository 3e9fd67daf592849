"""A guard against redirects: a redirect to another origin is an error.

Requests hold prompts, and often a key. The author of the configured address decided who may read them, not the server
there. A redirect within the same origin (scheme, host and port), such as to a path with a slash at the end, is followed
as usual.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from teola_plugin import shown
from teola_plugin.errors import EngineError

if TYPE_CHECKING:
    import httpx

MAX_REDIRECTS = 5
PORTS = {"http": 80, "https": 443}


def origin(url: httpx.URL) -> tuple[str, str, int | None]:
    """Return scheme, host and port."""
    return url.scheme, url.host, url.port or PORTS.get(url.scheme)


def stays_there(where: str) -> Callable[[httpx.Response], Awaitable[None]]:
    """Return a hook of httpx for each response. Raises: EngineError for a redirect to another origin."""

    async def check(response: httpx.Response) -> None:
        if not response.has_redirect_location:
            return
        import httpx

        try:
            to = response.url.join(response.headers["location"])
        except (httpx.InvalidURL, ValueError) as e:
            raise EngineError(f"{where} redirects to what is no address") from e
        if origin(to) != origin(response.url):
            raise EngineError(
                f"{where} redirects to {shown.address(str(to))}: give that address, if it is the right one"
            )

    return check
