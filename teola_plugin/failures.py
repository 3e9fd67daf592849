"""Classification of service errors: raised by the service or not, perhaps caused by concurrent requests, outage or not.

An error counts as the service's if the error or `response` has an HTTP status, or if the transport below failed; all
client libraries share these signs. Routers of models tell errors in replies, as `{"error": {"code": 429, "message":
"..."}}`, which clients raise as they are. Any other error may be caused by the way the run-ahead made the call.

| error                                    | of the service | may come of company | outage |
|------------------------------------------|----------------|---------------------|--------|
| 408, 409, 425, 429, 502, 503, 504, 529   | yes            | yes                 | yes    |
| any other, where its text says the same  | yes            | yes                 | yes    |
| 500 and other 5xx                        | yes            | no                  | yes    |
| 400, 401, 404, ... (of the request)      | yes            | no                  | no     |
| connection refused, reset, timed out     | yes            | yes                 | yes    |
| told in a reply (status 200), no status  | yes            | yes                 | no     |
| anything else                            | no             | no                  | no     |
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import Any

CROWDED = frozenset({408, 409, 425, 429, 502, 503, 504, 529})
"""Statuses by which a service, or a proxy in front of the service, refuses too many requests."""

TELLS_OF_CROWD = re.compile(r"rate.?limit|too.?many|throttl|concurren|quota|overloaded|slow.?down", re.IGNORECASE)
"""Names and texts of such refusals with other statuses: 400 (AWS), 402, 403 (Google, GitHub), 418 (firewalls)."""


class Withheld(BaseException):
    """An early request was not made, or not retried, since the provider has failed.

    Not an `Exception`: a user function which runs ahead must not take the error for an answer of the service.
    """


def is_of_service(error: BaseException) -> bool:
    """Whether the service or its connection raised the error: the same request would fail without running ahead."""
    is_known = status_of(error) is not None or _is_of_transport(error) or _is_told(error)
    return isinstance(error, Exception) and is_known


def may_come_of_company(error: BaseException) -> bool:
    """Whether the service may have failed only because of several concurrent requests."""
    status = status_of(error)
    return _is_of_transport(error) or _is_told(error) if status is None else _refuses_many(error, status)


def is_outage(error: BaseException) -> bool:
    """Whether other requests to the service will probably fail as well."""
    status = status_of(error)
    return _is_of_transport(error) if status is None else _refuses_many(error, status) or status >= 500


def _refuses_many(error: BaseException, status: int) -> bool:
    return status in CROWDED or any(TELLS_OF_CROWD.search(_shown(each)) for each in _chain(error))


def _shown(error: BaseException) -> str:
    """Return the name and the text of an error; a class of the user's may not be able to give a text."""
    try:
        return f"{type(error).__name__} {error}"
    except Exception:
        return ""


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of the error, or of an error which caused it."""
    for each in _chain(error):
        for holder in (each, getattr(each, "response", None), *_told(each)):
            for name in ("status_code", "code", "status"):
                status = holder.get(name) if type(holder) is dict else getattr(holder, name, None)
                if isinstance(status, int) and 400 <= status < 600:
                    return int(status)
    return None


def _told(error: BaseException) -> list[dict[str, Any]]:
    """Return the objects of a reply in which the service tells the error."""
    return [each for each in error.args if type(each) is dict and "message" in each]


def _is_told(error: BaseException) -> bool:
    return any(map(_told, _chain(error)))


def _is_of_transport(error: BaseException) -> bool:
    httpx = sys.modules.get("httpx")  # an error of httpx implies a loaded httpx
    kinds = (ConnectionError, TimeoutError, *((httpx.TransportError,) if httpx else ()))
    return any(isinstance(each, kinds) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and each `__cause__`. Contexts are left out: a context may be any error handled before."""
    seen: set[int] = set()
    each: BaseException | None = error
    while isinstance(each, Exception | Withheld) and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__
