"""Chains of langchain-classic in functions: `LLMChain`, `StuffDocumentsChain` and `RetrievalQA`, by their requests.

    qa.invoke({"query": question})      the requests of the retriever, then of the model about all documents

The prompts come from the chains' own methods. Chains with a memory, with handlers of their own, or with methods of the
user's are left to the framework.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core._api.deprecation import LangChainDeprecationWarning
from langchain_core.language_models import BaseChatModel, BaseLLM

from teola_plugin.adapters.langchain.reading_models import Way
from teola_plugin.adapters.langchain.reading_parts import (
    is_made_as_published,
    is_stock,
    require_clean_template,
    stock_class,
)
from teola_plugin.adapters.langchain.reading_retrievers import RunComponent
from teola_plugin.adapters.reader import foreign, outlets
from teola_plugin.adapters.reader.asking import NOT_MINE
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee, Undecided, type_name
from teola_plugin.adapters.rehearsal import outcome

_PACKAGES = ("langchain_classic.chains.", "langchain.chains.")
_KINDS = {
    "LLMChain": "llm",
    "StuffDocumentsChain": "combine_documents.stuff",
    "RetrievalQA": "retrieval_qa.base",
}
"""Chains that are read, by the ends of the names of their modules."""


def is_read_chain(held: Any) -> bool:
    """Whether a component is a chain that only asks its retriever and its model."""
    cls = stock_class(held)
    module, name = foreign.module_of(cls), type_name(cls)
    if name not in _KINDS or not module.endswith(_KINDS[name]) or not is_stock(held, *_PACKAGES):
        return False
    own = foreign.own_attributes(held) or {}
    return own.get("memory") is None and not own.get("callbacks")


def read_chain(run: Run, chain: Any, value: Any, way: Way, run_component: RunComponent) -> Any:
    """Return the output of a chain: its input and its result. Raises: Barrier, Undecided."""
    if way.kwargs:
        raise Barrier(f"a chain is given the arguments {', '.join(way.kwargs)}")
    if run.is_unknown(value) and type(value) is not dict:
        return unknown_from(run, value, "any", is_safe=False)
    inputs = value if type(value) is dict else {chain.input_keys[0]: value}
    if "stop" in inputs or any(key not in inputs for key in chain.input_keys):
        raise Barrier(f"a {type_name(stock_class(chain))} is given an unusual input")
    match type_name(stock_class(chain)):
        case "LLMChain":
            made = {chain.output_key: _answer(run, chain, inputs, way, run_component)}
        case "StuffDocumentsChain":
            others = {key: each for key, each in inputs.items() if key != chain.input_key}
            documents = inputs[chain.input_key]
            made = {chain.output_key: _stuffed(run, chain, documents, others, way, run_component)}
        case _:
            question = inputs[chain.input_key]
            documents = run_component(run, chain.retriever, question, way)
            combining = chain.combine_documents_chain
            if type_name(stock_class(combining)) != "StuffDocumentsChain" or not is_read_chain(combining):
                raise Barrier(f"it combines documents by a {type_name(stock_class(combining))}")
            answer = _stuffed(run, combining, documents, {"question": question}, way, run_component)
            made = {chain.output_key: answer}
            if chain.return_source_documents:
                made["source_documents"] = documents
    return {**inputs, **made}


def _stuffed(
    run: Run, chain: Any, documents: Any, others: Mapping[str, Any], way: Way, run_component: RunComponent
) -> Any:  # fmt: skip
    require_clean_template(chain.document_prompt)
    variable, llm_chain = chain.document_variable_name, chain.llm_chain
    if not is_read_chain(llm_chain) or type_name(stock_class(llm_chain)) != "LLMChain":
        raise Barrier(f"it asks by a {type_name(stock_class(llm_chain))}")
    exchange = Exchange(run)
    try:
        given = exchange.out(documents)
        text = exchange.back(outcome(lambda: chain._get_inputs(given)[variable]))
    except Undecided:
        text = unknown_from(run, documents, "text", is_safe=chain.document_prompt.input_variables == ["page_content"])
    wanted = llm_chain.prompt.input_variables
    return _answer(
        run, llm_chain, {**{k: v for k, v in others.items() if k in wanted}, variable: text}, way, run_component
    )


def _answer(run: Run, chain: Any, values: Mapping[str, Any], way: Way, run_component: RunComponent) -> Any:
    """Return the parsed reply of an `LLMChain`."""
    llm = chain.llm
    if not (foreign.is_kind_of(llm, BaseChatModel) or foreign.is_kind_of(llm, BaseLLM)) or not chain.return_final_only:
        raise Barrier("it asks by an LLMChain of an unusual kind")
    if any(name not in values for name in chain.prompt.input_variables):
        raise Barrier("an LLMChain is given an unusual input")
    prompt = run_component(run, chain.prompt, {name: values[name] for name in chain.prompt.input_variables}, way)
    reply = run_component(run, llm, prompt, replace(way, kwargs=dict(chain.llm_kwargs)))
    return run_component(run, chain.output_parser, reply, way)


def method(run: Run, chain: Any, name: str, way: Way, run_component: RunComponent) -> Any:
    """Return an older name of `invoke` of a chain: `run`, and `predict` of an `LLMChain`; NOT_MINE for any other."""
    is_predict = name == "predict" and type_name(stock_class(chain)) == "LLMChain"
    if name != "run" and not is_predict:
        return NOT_MINE

    def ask(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
        if len(args) + bool(kwargs) != 1 or "callbacks" in kwargs or len(chain.output_keys) != 1:
            raise Barrier(f"it calls {name} of a chain in an unusual way")
        found = read_chain(run, chain, args[0] if args else kwargs, way, run_component)
        return found[chain.output_keys[0]] if type(found) is dict else unknown_from(run, found, "any", is_safe=True)

    return Callee(ask, name)


# --- chains that the program makes -----------------------------------------------------------------------------------

MAKING = frozenset({"from_chain_type", "from_llm"})
"""Names of methods that make chains. LangChain does not warn of deprecated classes there."""


def is_chain_class(cls: type) -> bool:
    """Whether the class is that of a read chain, with the published constructor."""
    if not foreign.has_known_classes(cls):
        return False
    is_named = foreign.module_of(cls).endswith(_KINDS.get(type_name(cls), "?"))
    return is_named and is_made_as_published(cls, *_PACKAGES)


def constructor(run: Run, cls: Any) -> Callable[..., Any]:
    """Return the class as a function that does not warn: the framework's run does, once in a process."""
    if not outlets.warns(LangChainDeprecationWarning):
        run.raises()
    return partial(_without_warning, cls)


def _without_warning(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a normal object of the class, without LangChain's one-time warning of a deprecated class."""
    made = cls.__new__(cls)
    make = foreign.in_mro(cls, "__init__")
    getattr(make, "__wrapped__", make)(made, *args, **kwargs)
    return made
