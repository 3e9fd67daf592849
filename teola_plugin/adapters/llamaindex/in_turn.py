"""Stock loops that make one request after the other, although no request needs the reply before.

    for batch in batches:                                     the retriever's own loop
        reply = self._llm.predict(prompt, batch)    <--claim--   slots of all batches, asked as the loop begins
        chosen += parse(reply)

A rehearsal of the same method, with empty replies, yields the loop's requests. Only methods of a closed list qualify,
in which a reply does not affect later requests. Where an unreadable reply ends the loop, only models on engines of ours
are asked early.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from inspect import iscoroutinefunction
from itertools import repeat
from typing import Any

from llama_index.core.extractors import TitleExtractor
from llama_index.core.indices.document_summary import DocumentSummaryIndexLLMRetriever
from llama_index.core.indices.list.retrievers import SummaryIndexLLMRetriever

from teola_plugin.adapters.early import is_harmless
from teola_plugin.adapters.interception import intercept
from teola_plugin.adapters.leaf import is_stock, is_stock_of
from teola_plugin.adapters.llamaindex.known import is_local_docstore, is_plain_template, reads_any_choice
from teola_plugin.adapters.llamaindex.models import is_model
from teola_plugin.adapters.llamaindex.reachable import asks_outside
from teola_plugin.adapters.llamaindex.rehearsal import stand_in
from teola_plugin.adapters.rehearsal import is_rehearsing, rehearse
from teola_plugin.engines import Foreign
from teola_plugin.seams import current


@dataclass(frozen=True, slots=True)
class _Loop:
    """A method of a class. `is_known`: whether a component's loop has no user code."""

    cls: type
    method: str
    is_known: Callable[[Any], bool]


def _chooses(retriever: Any) -> bool:
    """Whether the retriever only shows batches of nodes to a known model, which chooses some of each."""
    reads = retriever._parse_choice_select_answer_fn
    is_plain = is_harmless(retriever._format_node_batch_fn) and is_plain_template(retriever._choice_select_prompt)
    is_sure = reads_any_choice(reads) or (is_harmless(reads) and not asks_outside(retriever))
    index = retriever._index
    is_local = is_stock_of(index, "llama_index.core") and is_local_docstore(index.docstore)
    return is_plain and is_sure and is_local and is_model(retriever._llm)


LOOPS = (
    _Loop(DocumentSummaryIndexLLMRetriever, "_retrieve", _chooses),
    _Loop(SummaryIndexLLMRetriever, "_retrieve", _chooses),
    _Loop(TitleExtractor, "get_title_candidates", lambda extractor: is_model(extractor.llm)),
)


def loops_in(components: Iterable[Any]) -> tuple[str, ...]:
    """Return the predictable loops of these components."""
    found = [f"{type(each).__name__}.{loop.method}" for each in components for loop in LOOPS if _is_known(loop, each)]
    return tuple(dict.fromkeys(found))


def install() -> None:
    """Instrument the methods. Idempotent."""
    for loop in LOOPS:
        intercept(loop.cls, loop.method, _ahead_of(loop))


def _ahead_of(loop: _Loop) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            _ask(loop, original, self, args, kwargs)
            return original.__get__(self, type(self))(*args, **kwargs)

        async def amethod(self: Any, *args: Any, **kwargs: Any) -> Any:
            _ask(loop, original, self, args, kwargs)
            return await original.__get__(self, type(self))(*args, **kwargs)

        return amethod if iscoroutinefunction(original) else method

    return wrapper


def _is_known(loop: _Loop, component: Any) -> bool:
    return isinstance(component, loop.cls) and is_stock(component, loop.cls) and loop.is_known(component)


def _ask(loop: _Loop, original: Callable[..., Any], component: Any, args: Any, kwargs: Any) -> None:
    will_ask = getattr(current(), "will_ask", None)
    if will_ask is None or is_rehearsing() or not _is_known(loop, component):
        return
    run = original.__get__(stand_in(component))
    act = (lambda: _driven(run(*args, **kwargs))) if iscoroutinefunction(original) else lambda: run(*args, **kwargs)
    with contextlib.suppress(Exception):  # the run itself will raise the same
        asked = rehearse(act, decoding=repeat(""))
        if len(asked) > 1:
            will_ask([each._replace(payload=_here(each.payload)) for each in asked])


def _here(payload: Any) -> Any:
    """Return the payload bound to this event loop, which may differ from the caller's, if a coroutine of a model."""
    is_coroutine = isinstance(payload, Foreign) and payload.is_async
    return replace(payload, loop=asyncio.get_running_loop()) if is_coroutine else payload


def _driven(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine which waits for nothing, up to the end or the first suspension."""
    with contextlib.suppress(StopIteration):
        coroutine.send(None)
    coroutine.close()
