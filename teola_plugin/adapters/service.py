"""Which service a model is a client of, and the hold on its client's retries while it runs ahead."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Hashable
from operator import attrgetter
from typing import Any

from teola_plugin.providers import hold_retry, origin_of, reply_came
from teola_plugin.seams import instrument

ADDRESSES = [
    attrgetter(path)
    for path in ("root_client.base_url", "client._client.base_url", "_client.base_url", "base_url", "api_base")
]
"""Where models keep the address that they ask: in the client of an SDK, or in a field of their own."""


def service_of(model: object) -> Hashable:
    """The origin of the address that a model asks; for a model without one, its class."""
    for address in ADDRESSES:
        try:
            url = address(model)
        except AttributeError:
            continue
        if url and (origin := origin_of(str(url))):
            return origin
    return f"{type(model).__module__}.{type(model).__qualname__}"


_seen = [0]
"""How many modules were loaded when they were last looked through."""


def hold_retries() -> None:
    """Let the clients of the SDKs that are loaded repeat no request that runs ahead. Idempotent.

    The SDKs of OpenAI, Anthropic, Groq and others are made by one generator and share their base client.
    """
    if len(sys.modules) == _seen[0]:
        return
    _seen[0] = len(sys.modules)
    for name in [name for name in sys.modules if name.endswith("._base_client") and name.count(".") == 1]:
        module = sys.modules[name]
        for cls, wrapper in (("SyncAPIClient", _held), ("AsyncAPIClient", _aheld)):
            if client := getattr(module, cls, None):
                instrument(client, "_sleep_for_retry", wrapper)
                instrument(client, "_process_response", _areplied if wrapper is _aheld else _replied)


def _replied(original: Callable[..., Any]) -> Callable[..., Any]:
    def process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        reply_came()
        return original(self, *args, **kwargs)

    return process_response


def _areplied(original: Callable[..., Any]) -> Callable[..., Any]:
    async def process_response(self: Any, *args: Any, **kwargs: Any) -> Any:
        reply_came()
        return await original(self, *args, **kwargs)

    return process_response


def _held(original: Callable[..., Any]) -> Callable[..., Any]:
    def sleep_for_retry(self: Any, *args: Any, **kwargs: Any) -> Any:
        hold_retry()
        return original(self, *args, **kwargs)

    return sleep_for_retry


def _aheld(original: Callable[..., Any]) -> Callable[..., Any]:
    async def sleep_for_retry(self: Any, *args: Any, **kwargs: Any) -> Any:
        hold_retry()
        return await original(self, *args, **kwargs)

    return sleep_for_retry


def is_json(value: Any) -> bool:
    """It can be written as a client writes it."""
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return False
    return True
