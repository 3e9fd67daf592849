"""Embedding models of hosted services: the vector of a query or of one text, intercepted at the model's raw methods.

A call of a stock client asks for a vector and leaves nothing behind, so the framework's run can take the reply of an
early call, made by either of the model's two clients. Batches of texts are part of storing them: they are the
framework's own, and a rehearsal ends there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from teola_plugin.adapters.configured import AsSetNow, Vector
from teola_plugin.adapters.interception import intercept, sharing
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.llamaindex.models import is_as_published
from teola_plugin.adapters.methods import is_shared
from teola_plugin.adapters.rehearsal import end_rehearsal
from teola_plugin.adapters.service import hold_retries, service_of
from teola_plugin.engines import EngineSpec, Foreign
from teola_plugin.seams import Session, active

MODULE, NAME = "llama_index.embeddings.openai.base", "OpenAIEmbedding"

_WHICH = {"_get_query_embedding": "_query_engine", "_get_text_embedding": "_text_engine"}
"""The raw methods, and the model's attributes with the model name sent to the service."""

_BATCHES = ("_get_text_embeddings",)

_CALLED = (
    *_WHICH, *(f"_a{name[1:]}" for name in _WHICH), "get_query_embedding", "aget_query_embedding", "get_text_embedding",
    "aget_text_embedding", "_get_client", "_get_aclient", "_get_credential_kwargs", "_create_retry_decorator",
)  # fmt: skip
"""Methods used in a call."""


def is_hosted(model: Any) -> bool:
    """Whether a model is a known service's stock client without foreign code.

    False where the framework's run may be in a call that is not shared: calls of the class are, from now on.
    """
    cls = getattr(sys.modules.get(MODULE), NAME, None)
    if cls is None or plain_class(model) is not cls or not is_as_published(model, _CALLED):
        return False
    if not vars(model).keys().isdisjoint(_CALLED):
        return False
    if any(getattr(model, name, None) is not None for name in ("_http_client", "_async_http_client")):
        return False
    was_shared = all(is_shared(cls, name) for name in _WHICH)
    _share(cls)
    return was_shared


def instrument_loaded() -> None:
    """Make the requests of the class share early requests, if loaded.

    A step may find a model that no search finds before the step is read, and by then the framework's run may be calling
    the model.
    """
    if (cls := getattr(sys.modules.get(MODULE), NAME, None)) is not None:
        _share(cls)


def _share(cls: type) -> None:
    hold_retries()
    _SHARED.replace(cls, *_WHICH, coroutines=[f"_a{name[1:]}" for name in _WHICH])
    for method in _BATCHES:
        intercept(cls, method, _unrehearsed)
        intercept(cls, f"_a{method[1:]}", _unrehearsed)


def _early(now: AsSetNow, method: str, text: str) -> Any:
    with active(None):
        return now.call(partial(getattr(now.model, method), text))


def _meet(
    session: Session, original: Callable[..., Any], model: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Vector | None:  # fmt: skip
    if kwargs or len(args) != 1 or type(args[0]) is not str or not is_hosted(model):
        end_rehearsal()
        return None
    method = f"_{original.__name__[2:]}" if is_async else original.__name__
    (text,), now = args, AsSetNow.of(model)
    key = now.key((method, getattr(model, _WHICH[method], None), text))
    spec = EngineSpec("python", model, "embedder", service_of(model))
    return Vector(session.claim(spec, "embedding", Foreign(key, partial(_early, now, method, text)), {}), now)


_SHARED = sharing(_meet)


def _unrehearsed(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        end_rehearsal()
        return original(self, *args, **kwargs)

    return method
