"""Stock loops that make one request after the other, although no request needs the reply before.

    for batch in batches:                                     the retriever's own loop
        reply = self._llm.predict(prompt, batch)    <--claim--   slots of all batches, asked as the loop begins
        chosen += parse(reply)

A rehearsal of the same method, with empty replies, yields the loop's requests. Only methods of a closed list qualify,
in which a reply does not affect later requests. Where an unreadable reply ends the loop, only models on engines of ours
are asked early.

The loops that build an index write to it between their requests. So not these methods are rehearsed, but what they call
for each request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from itertools import repeat
from pathlib import Path
from typing import Any

from llama_index.core import utils
from llama_index.core.data_structs.data_structs import KeywordTable
from llama_index.core.extractors import TitleExtractor
from llama_index.core.indices.common_tree.base import GPTTreeIndexBuilder
from llama_index.core.indices.document_summary import DocumentSummaryIndex, DocumentSummaryIndexLLMRetriever
from llama_index.core.indices.document_summary import base as document_summary
from llama_index.core.indices.keyword_table.base import KeywordTableIndex
from llama_index.core.indices.list.retrievers import SummaryIndexLLMRetriever
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.schema import BaseNode, MetadataMode, NodeWithScore
from llama_index.core.storage.kvstore import SimpleKVStore

from teola_plugin.adapters.early import is_free_of_code, is_harmless
from teola_plugin.adapters.interception import intercept
from teola_plugin.adapters.leaf import is_stock, is_stock_of
from teola_plugin.adapters.llamaindex.known import is_local_docstore, is_plain_template, reads_any_choice
from teola_plugin.adapters.llamaindex.models import is_model
from teola_plugin.adapters.llamaindex.parts import is_asked_beside
from teola_plugin.adapters.llamaindex.postprocessors import is_in_graph
from teola_plugin.adapters.llamaindex.reachable import asks_outside
from teola_plugin.adapters.llamaindex.rehearsal import stand_in
from teola_plugin.adapters.llamaindex.synthesizers import certain_requests
from teola_plugin.adapters.reader.foreign import is_library_class
from teola_plugin.adapters.reader.outlets import logs, prints
from teola_plugin.adapters.rehearsal import Asked, rehearse
from teola_plugin.engines import Foreign
from teola_plugin.seams import current


@dataclass(frozen=True, slots=True)
class _Loop:
    """A method of a class. `is_known`: whether a component's loop has no user code.

    `rounds`: the requests of each round, from the component and the method's arguments; None if the method itself is
    rehearsed.
    """

    cls: type
    method: str
    is_known: Callable[[Any], bool]
    rounds: Callable[..., Iterable[Sequence[Asked]]] | None = None


def _chooses(retriever: Any) -> bool:
    """Whether the retriever only shows batches of nodes to a known model, which chooses some of each."""
    reads = retriever._parse_choice_select_answer_fn
    is_plain = is_harmless(retriever._format_node_batch_fn) and is_plain_template(retriever._choice_select_prompt)
    is_sure = reads_any_choice(reads) or (is_harmless(reads) and not asks_outside(retriever))
    index = retriever._index
    is_local = is_stock_of(index, "llama_index.core") and is_local_docstore(index.docstore)
    return is_plain and is_sure and is_local and is_model(retriever._llm)


def _ranks(reranker: Any) -> bool:
    """Whether the reranker only shows batches of nodes to a known model, which chooses some of each; see `_chooses`.

    A graph with the reranker asks by itself.
    """
    reads = reranker._parse_choice_select_answer_fn
    is_plain = is_harmless(reranker._format_node_batch_fn) and is_plain_template(reranker.choice_select_prompt)
    is_sure = reads_any_choice(reads) or (is_harmless(reads) and not asks_outside(reranker))
    return is_plain and is_sure and is_model(reranker.llm) and not is_in_graph(reranker)


def _rankings(reranker: Any, nodes: Sequence[NodeWithScore], *args: Any, **kwargs: Any) -> Iterator[list[Asked]]:
    if _are_plain(each.node for each in nodes):
        rank = partial(stand_in(reranker)._postprocess_nodes, nodes, *args, **kwargs)
        yield rehearse(rank, decoding=repeat(""))


def _is_kept_here(docstore: Any) -> bool:
    """Whether nodes are written to a dictionary of this process, which raises nothing."""
    return is_local_docstore(docstore) and type(getattr(docstore, "_kvstore", None)) is SimpleKVStore


def _are_plain(nodes: Iterable[BaseNode]) -> bool:
    """Whether the nodes' texts are made by no user code."""
    return all(
        type(node).__module__ == BaseNode.__module__
        and is_library_class(type(node))
        and all(type(each) in _PLAIN for each in node.metadata.values())
        for node in nodes
    )


_PLAIN = (str, int, float, bool, type(None))


def _extracts(index: Any) -> bool:
    """Whether the index only asks a known model for the keywords of each node."""
    return is_model(index._llm) and is_plain_template(index.keyword_extract_template)


def _has_stop_words() -> bool:
    """Whether the words that LlamaIndex leaves out of keywords are there: they come with it, but may be elsewhere."""
    bundled = Path(utils.__file__).parent / "_static" / "nltk_cache"
    is_bundled = (bundled / "corpora" / "stopwords" / "english").is_file() and (bundled / "tokenizers").is_dir()
    return utils.globals_helper._stopwords is not None or ("NLTK_DATA" not in os.environ and is_bundled)


def _keywords(index: Any, table: Any, nodes: Sequence[BaseNode], *_: Any, **__: Any) -> Iterator[list[Asked]]:
    if type(table) is KeywordTable and _are_plain(nodes) and _has_stop_words():
        double = stand_in(index)
        for node in nodes:
            text = node.get_content(metadata_mode=MetadataMode.LLM)
            yield rehearse(partial(double._extract_keywords, text), decoding=repeat(""))


def _summaries(index: Any, struct: Any, nodes: Sequence[BaseNode], *_: Any, **__: Any) -> Iterator[list[Asked]]:
    documents = defaultdict[str | None, list[BaseNode]](list)
    for node in nodes:
        documents[node.ref_doc_id].append(node)
    is_heard = prints([None]) and logs(document_summary.logger, logging.INFO)[0]
    if None not in documents and is_heard and _are_plain(nodes) and _is_kept_here(index.docstore):
        for each in documents.values():
            found = [NodeWithScore(node=node) for node in each]
            yield certain_requests(index._response_synthesizer, index._summary_query, found)


def _levels(builder: Any, graph: Any, ids: Any, *_: Any, **__: Any) -> Iterator[list[Asked]]:
    """Yield the requests of one level of a tree: those of the next show the replies."""
    if len(ids) > builder.num_children and _are_plain(builder.docstore.get_nodes(list(ids.values()))):
        double = stand_in(builder)

        def level() -> None:
            for text in double._prepare_node_and_text_chunks(ids)[2]:
                double._llm.predict(double.summary_prompt, context_str=text)

        yield rehearse(level, decoding=repeat(""))


def _summarizes_levels(builder: Any) -> bool:
    is_plain = is_plain_template(builder.summary_prompt) and is_free_of_code(builder._prompt_helper)
    return is_plain and not builder._use_async and is_local_docstore(builder.docstore) and is_model(builder._llm)


LOOPS = (
    _Loop(DocumentSummaryIndexLLMRetriever, "_retrieve", _chooses),
    _Loop(SummaryIndexLLMRetriever, "_retrieve", _chooses),
    _Loop(LLMRerank, "_postprocess_nodes", _ranks, _rankings),
    _Loop(TitleExtractor, "get_title_candidates", lambda extractor: is_model(extractor.llm)),
    _Loop(KeywordTableIndex, "_add_nodes_to_index", _extracts, _keywords),
    _Loop(DocumentSummaryIndex, "_add_nodes_to_index", lambda index: True, _summaries),
    _Loop(GPTTreeIndexBuilder, "build_index_from_nodes", _summarizes_levels, _levels),
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
    session = current()
    if session is None or not session.sends_ahead or not _is_known(loop, component) or is_asked_beside():
        return
    will_ask = session.will_ask
    if loop.rounds is not None:
        with contextlib.suppress(Exception):
            _ask_rounds(will_ask, loop.rounds(component, *args, **kwargs))
        return
    run = original.__get__(stand_in(component))
    act = (lambda: _driven(run(*args, **kwargs))) if iscoroutinefunction(original) else lambda: run(*args, **kwargs)
    with contextlib.suppress(Exception):  # the run itself will raise the same
        asked = rehearse(act, decoding=repeat(""))
        if len(asked) > 1:
            will_ask([each._replace(payload=_here(each.payload)) for each in asked])


def _ask_rounds(will_ask: Callable[[list[Asked]], None], rounds: Iterable[Sequence[Asked]]) -> None:
    """Ask round after round, from the second request on: the method itself is about to make the first."""
    asked, is_begun = list[Asked](), False
    for each in rounds:
        asked += each
        if is_begun or len(asked) > 1:
            will_ask(asked)
            asked, is_begun = [], True


def _here(payload: Any) -> Any:
    """Return the payload bound to this event loop, which may differ from the caller's, if a coroutine of a model."""
    is_coroutine = isinstance(payload, Foreign) and payload.is_async
    return replace(payload, loop=asyncio.get_running_loop()) if is_coroutine else payload


def _driven(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Run a coroutine which waits for nothing, up to the end or the first suspension."""
    with contextlib.suppress(StopIteration):
        coroutine.send(None)
    coroutine.close()
