"""Embedding models of hosted services: the vector of a query, as requested by retrievers.

A call of a stock model leaves nothing behind, so the framework's run can take the reply of an early call. Only queries
are shared; the embedding of documents is part of storing them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from teola_plugin.adapters import sdk_clients, web_clients, web_httpx, web_pages
from teola_plugin.adapters.configured import Vector
from teola_plugin.adapters.interception import Alone, Met, sharing
from teola_plugin.adapters.langchain import faiss_stores, models
from teola_plugin.adapters.methods import is_shared
from teola_plugin.adapters.reader.facts import plain_text
from teola_plugin.adapters.service import hold_retries
from teola_plugin.engines import EngineSpec, Foreign
from teola_plugin.seams import Session
from teola_plugin.value_keys import is_comparable

HOSTED = {"langchain_openai": ("OpenAIEmbeddings", "AzureOpenAIEmbeddings")}
"""Packages, and their classes of server clients without memory of requests."""

_CALLED = (
    "embed_query", "aembed_query", "embed_documents", "aembed_documents", "_get_len_safe_embeddings",
    "_aget_len_safe_embeddings", "_tokenize", "_ensure_sync_client_available",
)  # fmt: skip
"""The methods of a call."""


def provider_spec(embeddings: Any) -> EngineSpec | None:
    """Return the service as an engine, with its `provider`; None unless the model is a known stock client.

    Also None where the framework's run may be in a call that is not shared: calls of the class are, from now on.
    """
    if not _is_stock(embeddings):
        return None
    was_shared = is_shared(cls := type(embeddings), "embed_query")
    _share(cls)
    return models.spec_of(embeddings) if was_shared else None


def instrument_loaded() -> None:
    """Make calls of all loaded classes of hosted models, and of clients of web searches, share early requests.

    A function may find a model that no search finds before the function is read, and by then the framework's run may be
    calling the model.
    """
    models.instrument_loaded()
    faiss_stores.instrument_loaded()
    sdk_clients.instrument_loaded()
    web_clients.instrument_loaded()
    web_pages.instrument_loaded()
    web_httpx.instrument_loaded()
    for package, names in HOSTED.items():
        for name in names if package in sys.modules else ():
            _share(getattr(sys.modules[package], name))


def _share(cls: type) -> None:
    hold_retries()
    _SHARED.replace(cls, "embed_query", coroutines=["aembed_query"])


def _is_stock(embeddings: Any) -> bool:
    """Whether a call only requests vectors: no progress bar, no function or transport of the user's.

    So the synchronous and the asynchronous client are interchangeable.
    """
    cls = type(embeddings)
    if cls.__name__ not in HOSTED.get(cls.__module__.split(".")[0], ()) or not models.is_known_by_settings(embeddings):
        return False
    is_plain = embeddings.http_client is None and embeddings.http_async_client is None
    return is_plain and not embeddings.show_progress_bar and models.is_as_published(embeddings, _CALLED)


def _meet(
    session: Session, original: Callable[..., Any], embeddings: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | Alone | None:  # fmt: skip
    if len(args) + len(kwargs) != 1:
        return None
    if models.is_known_by_settings(embeddings):
        request = session.ask_alone(partial(models.named, embeddings), "embedding")
        if request is not None:
            return Alone(request, partial(_is_stock, embeddings))
    text = plain_text(args[0] if args else kwargs.get("text"))
    if getattr(session, "is_at_rest", False):  # nothing runs ahead in this call: no reply to look for
        return None
    if type(text) is not str or not _is_stock(embeddings):
        return None
    now = models.as_set_now(embeddings)
    key = now.key(text)
    if not is_comparable(key):
        return None
    return Vector(session.claim(models.spec_of(embeddings), "embedding", Foreign(key, lambda: None), {}), now)


_SHARED = sharing(_meet)
