"""`generate` of a chat model with several prompts, which LangChain's synchronous code asks one after the other.

All of the requests are certain as `generate` begins, but for a failure of the service: they are sent at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import copy_context
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables.config import var_child_runnable_config

from teola_plugin.adapters.interception import intercept
from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langchain.reading_models import require_readable
from teola_plugin.adapters.langchain.sending import Sending
from teola_plugin.adapters.langchain.watched import are_tokens_heard, hears_tokens, is_refusable, is_watched
from teola_plugin.adapters.reader.values import Barrier
from teola_plugin.effects import assuming
from teola_plugin.seams import current

_OF_LANGCHAIN = ("tags", "metadata", "run_name", "run_id")
"""Arguments of `generate` that a model does not get."""


def install() -> None:
    """Instrument `BaseChatModel.generate`. Idempotent."""
    intercept(BaseChatModel, "generate", _at_once)


def _at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    def generate(self: Any, messages: Any, stop: Any = None, callbacks: Any = None, **kwargs: Any) -> Any:
        if type(messages) is list and len(messages) > 1 and current() is not None:
            _ask(self, messages, stop, callbacks, kwargs)
        return original(self, messages, stop, callbacks, **kwargs)

    return generate


def _ask(model: Any, messages: Sequence[Any], stop: Any, callbacks: Any, kwargs: Mapping[str, Any]) -> None:
    session = current()
    config = {"callbacks": callbacks or []}
    if (var_child_runnable_config.get() or {}).get("max_concurrency") is not None:
        return
    if session is None or not session.sends_ahead or models.is_ours(model):
        return
    if is_refusable(config) or is_watched(config) or kwargs.get("stream"):
        return
    context = copy_context()
    if models.collects_chunks(model) and (hears_tokens(callbacks or []) or are_tokens_heard(context)):
        return
    rest = {"stop": stop, **{name: value for name, value in kwargs.items() if name not in _OF_LANGCHAIN}}
    with contextlib.suppress(Barrier), assuming(session.assumed):
        require_readable(model)
        models.instrument_model(type(model))  # or each prompt would be asked twice
        spec = models.spec_of(model)
        calls = [models.foreign_call(model, each, False, rest, context) for each in _certain(model, messages, rest)]
        session.will_ask([(spec, "decoding", call, {}) for call in calls])


def _certain(model: Any, messages: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the prompts up to the first one that the client may refuse to send: the others may not be asked about."""
    sending = Sending()
    for each in messages:
        if not sending.is_sent(model, each, kwargs):
            return
        yield each
