"""Embedding models of hosted services: the vector of a query or of one text, met at the model's raw methods.

A call of a stock client asks for a vector and leaves nothing behind, so that one that ran ahead is what the framework's
run gets, whichever of its two clients either of them uses. Batches of texts are part of storing them: they are the
framework's own, and a rehearsal ends there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from teola_plugin.adapters.configured import AsSetNow
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.llamaindex.models import is_as_published
from teola_plugin.adapters.rehearsal import end_rehearsal
from teola_plugin.adapters.service import hold_retries, service_of
from teola_plugin.engines import EngineSpec, Foreign
from teola_plugin.seams import active, ashare, current, instrument, share

MODULE, NAME = "llama_index.embeddings.openai.base", "OpenAIEmbedding"

_WHICH = {"_get_query_embedding": "_query_engine", "_get_text_embedding": "_text_engine"}
"""The raw methods, and where the model keeps the name that they ask the service for."""

_BATCHES = ("_get_text_embeddings",)

_CALLED = (
    *_WHICH, *(f"_a{name[1:]}" for name in _WHICH), "get_query_embedding", "aget_query_embedding", "get_text_embedding",
    "aget_text_embedding", "_get_client", "_get_aclient", "_get_credential_kwargs", "_create_retry_decorator",
)  # fmt: skip
"""What a call goes through."""


def is_hosted(model: Any) -> bool:
    """A stock client of a service that we know, with no transport or method of the user's. Its seams are in place."""
    cls = getattr(sys.modules.get(MODULE), NAME, None)
    if cls is None or plain_class(model) is not cls or not is_as_published(model, _CALLED):
        return False
    if not vars(model).keys().isdisjoint(_CALLED):
        return False
    if any(getattr(model, name, None) is not None for name in ("_http_client", "_async_http_client")):
        return False
    hold_retries()
    for method in _WHICH:
        instrument(cls, method, _sync_seam)
        instrument(cls, f"_a{method[1:]}", _async_seam)
    for method in _BATCHES:
        instrument(cls, method, _unrehearsed)
        instrument(cls, f"_a{method[1:]}", _unrehearsed)
    return True


@dataclass(frozen=True, slots=True)
class _Request:
    """The vector of a text. `call`: the raw method of the synchronous client; `now`: how the model is set."""

    model: Any
    method: str
    text: str
    now: AsSetNow

    @property
    def spec(self) -> EngineSpec:
        return EngineSpec("python", self.model, "embedder", service_of(self.model))

    @property
    def payload(self) -> Foreign:
        key = self.now.key((self.method, getattr(self.model, _WHICH[self.method], None), self.text))
        return Foreign(key, self._ahead)

    def _ahead(self) -> Any:
        with active(None):
            return self.now.call(partial(getattr(self.model, self.method), self.text))


def _sync_seam(original: Callable[..., Any]) -> Callable[..., Any]:
    def seam(self: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is None or type(text) is not str or args or kwargs or not is_hosted(self):
            end_rehearsal()
            return original(self, text, *args, **kwargs)
        request = _Request(self, original.__name__, text, AsSetNow.of(self))
        claimed = session.claim(request.spec, "embedding", request.payload, {})
        return _own(share(claimed, lambda: request.now.watch(lambda: original(self, text))))

    return seam


def _async_seam(original: Callable[..., Any]) -> Callable[..., Any]:
    async def seam(self: Any, text: Any, *args: Any, **kwargs: Any) -> Any:
        session = current()
        if session is None or type(text) is not str or args or kwargs or not is_hosted(self):
            end_rehearsal()
            return await original(self, text, *args, **kwargs)
        request = _Request(self, f"_{original.__name__[2:]}", text, AsSetNow.of(self))
        claimed = session.claim(request.spec, "embedding", request.payload, {})
        return _own(await ashare(claimed, lambda: request.now.awatch(lambda: original(self, text))))

    return seam


def _unrehearsed(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        end_rehearsal()
        return original(self, *args, **kwargs)

    return method


def _own(vector: Any) -> Any:
    """A copy for one taker, a list of numbers as the service tells them; what is none is handed on."""
    if isinstance(vector, np.ndarray):  # of a rehearsal
        return vector.tolist()
    return list(vector) if type(vector) is list else vector
