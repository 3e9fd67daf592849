"""What an error of a service says: who told it, whether it may be owed to asking too much at once, how bad it is.

Services are told apart from clients by what all clients have in common: an HTTP status on the error or on its
`response`, or an error of the transport below. Anything else may be owed to how the run-ahead made the call.

| error                                    | of the service | may come of company | outage |
|------------------------------------------|----------------|---------------------|--------|
| 408, 409, 425, 429, 502, 503, 504, 529   | yes            | yes                 | yes    |
| 500 and other 5xx                        | yes            | no                  | yes    |
| 400, 401, 404, ... (of the request)      | yes            | no                  | no     |
| connection refused, reset, timed out     | yes            | yes                 | yes    |
| anything else                            | no             | no                  | no     |
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

CROWDED = frozenset({408, 409, 425, 429, 502, 503, 504, 529})
"""Statuses by which a service, or a proxy in front of it, refuses what comes in too great a number."""


class Withheld(BaseException):
    """A request that runs ahead was not made, or not made again, for its provider has failed.

    Not an `Exception`: a function of the user's that runs ahead must not take it for an answer of the service.
    """


def is_of_service(error: BaseException) -> bool:
    """Whether the service, or the way to it, told this error: the same request would have met it without us."""
    return isinstance(error, Exception) and (status_of(error) is not None or _is_of_transport(error))


def may_come_of_company(error: BaseException) -> bool:
    """Whether the service may have failed only because several requests were under way at once."""
    status = status_of(error)
    return _is_of_transport(error) if status is None else status in CROWDED


def is_outage(error: BaseException) -> bool:
    """Whether other requests to the service will probably fail as well."""
    status = status_of(error)
    return _is_of_transport(error) if status is None else status in CROWDED or status >= 500


def status_of(error: BaseException) -> int | None:
    """The HTTP status that the error, or one that caused it, carries."""
    for each in _chain(error):
        for holder in (each, getattr(each, "response", None)):
            for name in ("status_code", "code", "status"):
                status = getattr(holder, name, None)
                if isinstance(status, int) and 400 <= status < 600:
                    return int(status)
    return None


def _is_of_transport(error: BaseException) -> bool:
    httpx = sys.modules.get("httpx")  # whoever has an error of it has loaded it
    kinds = (ConnectionError, TimeoutError, *((httpx.TransportError,) if httpx else ()))
    return any(isinstance(each, kinds) for each in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes. `__cause__` alone: a context may be any error that was handled before."""
    seen: set[int] = set()
    each: BaseException | None = error
    while isinstance(each, Exception | Withheld) and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__
