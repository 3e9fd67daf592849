"""Chains of langchain-classic with documents in prompts, by their model calls:

    LLMChain                  prompt -> model -> parser
    StuffDocumentsChain       the same, with all documents in one prompt
    MapReduceDocumentsChain   a prompt for each document, then a prompt of all answers if they fit unchanged
    MapRerankDocumentsChain   a prompt for each document, then the answer of the highest rank
    RefineDocumentsChain      a prompt of the first document; the prompts of later documents wait for the answer before

`invoke` asks a chat model for each document in turn, so these chains gain most. Prompts and results come from
the chains' own methods. The rest is left to the chain's own run: refinements, answers too long for one prompt (a
tokenizer or a service of the model's counts them), memories, and methods of the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, BaseLLM
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import Runnable

from teola_plugin.adapters.langchain.draft import Draft, describe, snake
from teola_plugin.adapters.langchain.models import trace_model
from teola_plugin.adapters.langchain.parsers import is_pure, trace_parser
from teola_plugin.adapters.langchain.prompts import trace_prompt
from teola_plugin.adapters.langchain.retrievers import passages
from teola_plugin.adapters.langchain.templates import runs_code
from teola_plugin.adapters.langchain.values import Constant, Record, Root, Symbol, Untraceable, Value
from teola_plugin.adapters.leaf import is_stock, plain_class

Trace = Callable[[Runnable[Any, Any], Symbol, str, Mapping[str, Any]], Symbol]

_MODULES = {
    "LLMChain": "langchain_classic.chains.llm",
    "StuffDocumentsChain": "langchain_classic.chains.combine_documents.stuff",
    "MapReduceDocumentsChain": "langchain_classic.chains.combine_documents.map_reduce",
    "MapRerankDocumentsChain": "langchain_classic.chains.combine_documents.map_rerank",
    "RefineDocumentsChain": "langchain_classic.chains.combine_documents.refine",
    "ReduceDocumentsChain": "langchain_classic.chains.combine_documents.reduce",
}


def is_chain(component: object) -> bool:
    """Whether the component is a `Chain` of langchain-classic."""
    known = ("Chain", "langchain_classic.chains.base")
    return any((c.__name__, c.__module__) == known for c in type(component).__mro__)


def trace_chain(draft: Draft, chain: Any, given: Symbol, name: str, trace: Trace) -> Record:
    """Return a chain's output dict for its input. Raises: Untraceable."""
    reader = _Reader(draft, chain, given, name, trace)
    match _kind(chain):
        case "LLMChain" if chain.return_final_only:
            return reader.output({chain.output_key: reader.answer(chain, {}, name)})
        case "StuffDocumentsChain":
            return reader.output({chain.output_key: reader.stuffed(chain, lambda docs: docs, reader.documents())})
        case "MapReduceDocumentsChain":
            return reader.map_reduced()
        case "MapRerankDocumentsChain":
            return reader.map_reranked()
        case "RefineDocumentsChain":
            return reader.refined()
        case _:
            raise Untraceable("TB102", f"{type(chain).__module__}.{type(chain).__qualname__}")


def _kind(chain: Any) -> str:
    """Return the name of the chain's class, if the chain behaves exactly as the class; else ""."""
    name = plain_class(chain).__name__
    is_known = _MODULES.get(name) == plain_class(chain).__module__ and is_stock(chain, plain_class(chain))
    return name if is_known and chain.memory is None else ""


def _is_harmless(chain: Any) -> bool:
    """Whether a chain, and the chains inside, only ask models."""
    if _kind(chain) in ("", "LLMChain"):
        return bool(_kind(chain)) and isinstance(chain.llm, BaseChatModel | BaseLLM)
    parts = (getattr(chain, field) for field in type(chain).model_fields)
    return all(_is_harmless(part) for part in parts if is_chain(part))


S = TypeVar("S", bound=Symbol)
STOP = "stop"
STOPS = "its input has stop words for the model"


def without_stop(given: Any) -> Any:
    """Return the input of a chain unchanged. Raises: LookupError for an input with stop words."""
    if STOP in given:
        raise LookupError(STOPS)
    return given


class _Reader:
    """The reader of a chain and of the chain's input."""

    def __init__(self, draft: Draft, chain: Any, given: Symbol, name: str, trace: Trace) -> None:
        if not isinstance(given, Record | Root | Value):
            raise Untraceable("TB108", "its input is no dict")
        self.draft, self.chain, self.name, self.trace = draft, chain, name, trace
        self.known = given.fields if isinstance(given, Record) else {}
        if STOP in self.known:
            raise Untraceable("TB110", STOPS)
        self.given: Record | Root | Value = self._without_stop(given)
        if isinstance(given, Record) and given.rest is not None:
            self.given = replace(given, rest=self._without_stop(given.rest))

    def _without_stop(self, given: S) -> S | Value:
        """Return the input; unknown if `stop` is in the input, because an `LLMChain` hands `stop` to its model."""
        if isinstance(given, Root):
            self.draft.bindings.refuse(STOP)
        if isinstance(given, Value):
            return self.draft.call("given", "without_stop", without_stop, given, identity=STOP)
        return given

    # --- in and out --------------------------------------------------------------------------------------------------

    def documents(self) -> Value:
        """Return the documents, as a list."""
        variable = getattr(self.chain, "document_variable_name", "")
        if variable in self.known and variable != self.chain.input_key:
            raise Untraceable("TB108", f"its input has another {variable!r}")
        each = self.draft.items(self.draft.field(self.given, self.chain.input_key))
        return replace(each, level=each.level - 1)

    def output(self, made: Mapping[str, Symbol], whole: Callable[[], Value] | None = None) -> Record:
        """Return the result of the chain: the input and the added keys."""
        rest = self.given.rest if isinstance(self.given, Record) else self.given
        return Record({**self.known, **made}, rest, whole)

    def left(self, code: str, why: str, known: Value) -> Record:
        """Return a result from the chain's own run; `known`: the value from which the chain makes the result."""
        fn = describe(self.chain)
        self.draft.leave(code, self.chain, why)
        value = self.draft.await_run(self.name or snake(fn), self.chain, fn, [known], None, _is_harmless(self.chain))
        return self.output({key: self.draft.field(value, key) for key in self.chain.output_keys}, lambda: value)

    # --- prompts and answers -----------------------------------------------------------------------------------------

    def answer(self, llm_chain: Any, own: Mapping[str, Symbol], name: str) -> Value:
        """Return an `LLMChain`'s result from its model's reply. `own`: variables absent from the input."""
        reply = self._reply(llm_chain, own, name)
        parsed = trace_parser(self.draft, llm_chain.output_parser, reply, name)
        if parsed is None:
            raise Untraceable("TB101", f"the parser {type(llm_chain.output_parser).__name__} may have effects")
        return parsed

    def _reply(self, llm_chain: Any, own: Mapping[str, Symbol], name: str) -> Symbol:
        if _kind(llm_chain) != "LLMChain":
            raise Untraceable("TB102", f"{type(llm_chain).__module__}.{type(llm_chain).__qualname__}")
        template, llm, kwargs = llm_chain.prompt, llm_chain.llm, llm_chain.llm_kwargs
        fields = {v: own[v] if v in own else self._variable(v) for v in template.input_variables}
        prompt = trace_prompt(self.draft, template, Record(fields))
        if isinstance(llm, BaseChatModel | BaseLLM):
            return trace_model(self.draft, llm, prompt, kwargs, name, streams=False)
        return self.trace(llm, prompt, name, {"stop": None, **kwargs})

    def _variable(self, name: str) -> Symbol:
        if name == getattr(self.chain, "input_key", None):
            raise Untraceable("TB108", f"its prompt asks for {name!r}, which is its documents")
        return self.draft.field(self.given, name)

    def replies(self) -> tuple[Value, Value]:
        """Return the documents, and the model's reply on each, inside the map over the documents."""
        docs = self.documents()
        each = replace(docs, level=docs.level + 1)
        passage = passages(self.draft, each)
        name = f"{self.name}_each" if self.name else "each"
        self.draft.level += 1
        try:
            made = self.answer(self.chain.llm_chain, {self.chain.document_variable_name: passage}, name)
        finally:
            self.draft.level -= 1
        if self.draft.is_untold(made):
            raise Untraceable("TB106")
        return docs, made

    # --- chains of documents -----------------------------------------------------------------------------------------

    def stuffed(self, chain: Any, documents: Callable[..., Sequence[Document]], *values: Value) -> Value:
        """Return the answer to a prompt of all documents that `documents` makes of the values."""
        template, variable = _stock(self.draft, chain.document_prompt), chain.document_variable_name

        def context(*values: Any) -> Any:
            return chain._get_inputs(documents(*values))[variable]

        text = self.draft.call(variable, "stuffed", context, *values, is_glue=not runs_code(template), holds="text")
        return self.answer(chain.llm_chain, {variable: text}, self.name)

    def map_reduced(self) -> Record:
        docs, each = self.replies()
        texts = replace(each, level=docs.level)
        reduce = self.chain.reduce_documents_chain
        if _kind(reduce) != "StuffDocumentsChain":
            return self.left("TB113", "whether the answers fit one prompt is for it to count", texts)

        def answers(docs: Sequence[Document], texts: Sequence[str]) -> list[Document]:
            pairs = zip(docs, texts, strict=True)
            return [Document(page_content=text, metadata=doc.metadata) for doc, text in pairs]

        steps = {"intermediate_steps": texts} if self.chain.return_intermediate_steps else {}
        return self.output({**steps, self.chain.output_key: self.stuffed(reduce, answers, docs, texts)})

    def map_reranked(self) -> Record:
        docs, each = self.replies()
        texts = replace(each, level=docs.level)
        chain = self.chain
        if not is_pure(chain.llm_chain.prompt.output_parser):
            return self.left("TB101", "the parser of its prompt may have effects", texts)

        def best(docs: Sequence[Document], texts: Sequence[str]) -> dict[str, Any]:
            results = chain.llm_chain._parse_generation([{chain.llm_chain.output_key: text} for text in texts])
            answer, more = chain._process_results(docs, results)
            return {**more, chain.output_key: answer}

        value = self.draft.call("best", "best", best, docs, texts, identity=("best", id(chain)), is_glue=False)
        return self.output({key: self.draft.field(value, key) for key in reversed(chain.output_keys)})

    def refined(self) -> Record:
        chain, docs = self.chain, self.documents()
        template, variable = _stock(self.draft, chain.document_prompt), chain.document_variable_name

        def first(docs: Sequence[Document]) -> Any:
            return chain._construct_initial_inputs(docs)[variable]

        text = self.draft.call("first", "first", first, docs, is_glue=not runs_code(template), holds="text")
        return self.left("TB214", "", self.answer(chain.initial_llm_chain, {variable: text}, "first_answer"))


def _stock(draft: Draft, template: BasePromptTemplate[Any]) -> BasePromptTemplate[Any]:
    """Return the template, if formatting a document with it has no effects. Raises: Untraceable."""
    trace_prompt(draft, template, Record(dict.fromkeys(template.input_variables, Constant(""))))
    return template
