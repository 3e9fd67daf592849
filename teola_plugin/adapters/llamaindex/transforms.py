"""Query transforms as primitives: an LLM transforms the query before any search.

    HyDEQueryTransform, (Step)DecomposeQueryTransform     prefilling -> decoding -> call(transformed)
    IdentityQueryTransform                                nothing

The transformed query is made by the transform itself, in a rehearsal: its text, and the texts to search with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llama_index.core.indices.query.query_transform.base import (
    BaseQueryTransform,
    DecomposeQueryTransform,
    HyDEQueryTransform,
    IdentityQueryTransform,
    StepDecomposeQueryTransform,
)
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.schema import QueryBundle

from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.llamaindex.draft import Draft
from teola_plugin.adapters.llamaindex.known import is_plain_template
from teola_plugin.adapters.llamaindex.models import is_model
from teola_plugin.adapters.llamaindex.rehearsal import QUERY_MARK, pieces, stand_in
from teola_plugin.adapters.rehearsal import outcome, rehearse
from teola_plugin.graph import Ref

KNOWN = (HyDEQueryTransform, StepDecomposeQueryTransform, DecomposeQueryTransform)


@dataclass(frozen=True, slots=True)
class Query:
    """The names of the search text and of the question: `text`, and `question`, which is the same text.

    `strings`: the texts whose vectors are averaged for the search, if different from the text. `keeps_original`: the
    original query is among them.
    """

    text: str = "query"
    question: str = "question"
    strings: str | None = None
    keeps_original: bool = False


def add_transform(
    draft: Draft, transform: BaseQueryTransform, metadata: Mapping[str, Any], query: Query
) -> Query | None:
    """Add `transform` on `query`; None if the transform is left alone."""
    draft.reading(transform)
    if is_stock(transform, IdentityQueryTransform):
        return query
    if not any(is_stock(transform, known) for known in KNOWN) or query.strings:
        draft.leave("TB216", transform)
        return None
    llm: Any = getattr(transform, "_llm", None)
    if not is_model(llm):
        draft.leave("TB208", transform, type(llm).__name__)
        return None
    if not all(is_plain_template(t) for t in vars(transform).values() if isinstance(t, BasePromptTemplate)):
        draft.leave("TB212", transform)
        return None

    def run(text: str) -> QueryBundle:
        double: Any = stand_in(transform, verbose=False)
        return double.run(QueryBundle(text), metadata=dict(metadata))  # type: ignore[no-any-return]

    def transformed(text: str, written: str) -> QueryBundle:
        return outcome(lambda: run(text), decoding=[written])

    (first,) = rehearse(lambda: run(QUERY_MARK))
    draft.rely_on(transform, llm)
    if isinstance(first.payload, str):
        kv = draft.ask("transform_kv", "prefilling", first.spec, *pieces(first.payload, QUERY_MARK, query.text))
    else:
        request = draft.call("request", "request", lambda text: rehearse(lambda: run(text))[0].payload, query.text)
        kv = draft.ask("transform_kv", "prefilling", first.spec, Ref(request))
    written = draft.ask("written", "decoding", first.spec, Ref(kv), settings=first.settings)
    bundle = draft.call("bundle", "transformed", transformed, query.text, written, is_rehearsal=True)
    draft.cover(transform)
    return Query(
        draft.call("text", "text_of", lambda bundle: bundle.query_str, bundle),
        draft.call("asked_for", "question_of", lambda _, bundle: bundle.query_str, query.question, bundle),
        draft.call("strings", "strings_of", lambda bundle: list(bundle.embedding_strs), bundle, depth=1),
        keeps_original=QUERY_MARK in transformed(QUERY_MARK, "written").embedding_strs,
    )
