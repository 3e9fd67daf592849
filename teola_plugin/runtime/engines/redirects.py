"""Requests stay where they were sent: a redirect that leads to another origin is an error.

What is asked holds prompts, and often a key. Who may read them was decided by whoever gave the address, and not by the
server there. A redirect within one origin (scheme, host and port), such as to a path with a slash at its end, is
followed as ever.
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
    """Scheme, host and port."""
    return url.scheme, url.host, url.port or PORTS.get(url.scheme)


def stays_there(where: str) -> Callable[[httpx.Response], Awaitable[None]]:
    """A hook of httpx for each response. Raises: EngineError for a redirect to another origin."""

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
