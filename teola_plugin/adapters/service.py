"""The service behind a model's client, and the hold on the client's retries during early requests."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Hashable
from operator import attrgetter
from typing import Any

from teola_plugin.adapters.interception import around
from teola_plugin.providers import hold_retry, origin_of, reply_came
from teola_plugin.resources import IdentityMap

ADDRESSES = [
    attrgetter(path)
    for path in ("root_client.base_url", "client._client.base_url", "_client.base_url", "base_url", "api_base")
]
"""Where models keep their service's address: in the client of an SDK, or in a field of their own."""


def service_of(model: object) -> Hashable:
    """Return the origin of a model's service address; for a model without an address, its class."""
    for address in ADDRESSES:
        try:
            url = address(model)
        except AttributeError:
            continue
        if url and (origin := _origin(url)) is not None:
            return origin
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _origin(url: object) -> Hashable:
    if type(url).__module__ != "httpx":
        return origin_of(str(url))
    return _origins.get_or_make(url, lambda: origin_of(str(url)))


_origins: IdentityMap[Hashable] = IdentityMap()
"""Of the addresses of SDKs' clients: writing an `httpx.URL`, which never changes, as a text takes 10 us."""

_seen = [0]
"""The number of loaded modules at the last search."""


def hold_retries() -> None:
    """Stop the clients of the loaded SDKs from repeating early requests. Idempotent.

    The SDKs of OpenAI, Anthropic, Groq and others come from one generator and share a base client.
    """
    if len(sys.modules) == _seen[0]:
        return
    _seen[0] = len(sys.modules)
    loaded = sys.modules.copy()  # another thread may import meanwhile
    for module in [loaded[name] for name in loaded if name.endswith("._base_client") and name.count(".") == 1]:
        for forms, method in ((_HELD, "_sleep_for_retry"), (_REPLIED, "_process_response")):
            if client := getattr(module, "SyncAPIClient", None):
                forms.replace(client, method)
            if client := getattr(module, "AsyncAPIClient", None):
                forms.replace(client, coroutines=[method])


def _replied(client: Any, args: Any, kwargs: Any, is_async: bool) -> None:
    reply_came()


def _held(client: Any, args: Any, kwargs: Any, is_async: bool) -> None:
    hold_retry()


_REPLIED, _HELD = around(_replied), around(_held)


def is_json(value: Any) -> bool:
    """Whether the value can be written as a client writes JSON."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True


_NAME, _VALUE = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"), re.compile(r"[!-~](?:[ -~]*[!-~])?")
_OF_THE_CLIENT = ("connection", "content-", "expect", "host", "transfer-", "upgrade", "x-stainless-")
"""Beginnings of headers by which a client tells how it sends a request, or reads the reply."""


def are_headers(value: Any) -> bool:
    """Whether each client sends these as further headers of a request, and sends the request as it would without."""
    return type(value) is dict and all(
        type(name) is type(held) is str
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(held)
        and not name.lower().startswith(_OF_THE_CLIENT)
        for name, held in value.items()
    )
