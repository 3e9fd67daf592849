"""The p-graphs of real LangChain pipelines, as text.

A file in `pipelines/` holds a graph and, below a line of dashes, what was left to the framework. Update with
`pytest --update-golden`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from langchain_classic.output_parsers import OutputFixingParser
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import StreamingStdOutCallbackHandler
from langchain_core.example_selectors import BaseExampleSelector
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.output_parsers import MarkdownListOutputParser, NumberedListOutputParser, StrOutputParser
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotPromptTemplate,
    HumanMessagePromptTemplate,
    MessagesPlaceholder,
    PromptTemplate,
)
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_core.runnables import (
    ConfigurableField,
    Runnable,
    RunnableBinding,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langchain_openai import ChatOpenAI

from teola_plugin import optimize, pure, reads, writes
from teola_plugin.adapters.langchain import adapter
from teola_plugin.graph import parse
from teola_plugin.models.langchain import EngineChatModel, EngineEmbeddings, EngineReranker
from teola_plugin.trace import Traced
from tests.support.langchain_world import PIPELINES, Engines, ask

FOLDER = Path(__file__).parents[2] / "pipelines"


def shown(traced: Traced) -> str:
    breaks = [re.sub(r" \(line \d+\)", "", f"{b.code} {b.what} at {b.origin.split(' (')[0]}") for b in traced.breaks]
    return "\n".join([str(traced.graph), "-----", *breaks]) + "\n"


def hosted(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o", base_url="http://127.0.0.1:1/v1", api_key="none", **fields)  # type: ignore[arg-type]


def foreign(e: Engines) -> Runnable[Any, Any]:
    model = hosted()
    return (
        RunnableParallel(
            pro=ask("For {claim}") | model | StrOutputParser(), con=ask("Against {claim}") | model | StrOutputParser()
        )
        | ask("Judge {pro} {con}")
        | model
    )


@pytest.mark.parametrize("name", [*PIPELINES, "foreign"])
def test_pipeline(name: str, update_golden: bool) -> None:
    build = {**PIPELINES, "foreign": foreign}[name]
    traced = adapter.trace(build(Engines()))
    path = FOLDER / f"langchain_{name}.txt"
    if update_golden:
        path.write_text(shown(traced))
    assert shown(traced) == path.read_text()
    assert parse(str(traced.graph)) == traced.graph
    assert set(traced.observed.values()) <= {p.name for p in traced.graph}
    assert {p.setting("fn") for p in traced.graph} - {None} == set(traced.functions)


def traced_lines(chain: Runnable[Any, Any]) -> list[str]:
    return str(adapter.trace(chain).graph).splitlines()


def codes(chain: Runnable[Any, Any]) -> list[str]:
    return [b.code for b in adapter.trace(chain).breaks]


def test_templates_that_cannot_be_cut_are_one_piece() -> None:
    e = Engines()
    for template in (
        PromptTemplate.from_template("{x!r}"),
        PromptTemplate.from_template("{x:>10}"),
        PromptTemplate.from_template("{{ x }}", template_format="jinja2"),
        ChatPromptTemplate.from_messages([MessagesPlaceholder("x")]),
    ):
        lines = traced_lines(template | e.chat)
        assert lines[1:3] == ["prompt_2 = call(x, fn='prompt_2') @ python", "kv = prefilling(prompt_2) @ llm"]


def test_partial_variables_are_part_of_the_text() -> None:
    template = PromptTemplate.from_template("{a} and {b}").partial(a="first")
    assert "kv = prefilling('first and ', b) @ llm" in traced_lines(template | Engines().completion)


def test_the_users_code_inside_a_template_is_left_to_the_framework() -> None:
    class Selector(BaseExampleSelector):
        def add_example(self, example: dict[str, str]) -> None: ...

        def select_examples(self, input_variables: dict[str, str]) -> list[dict[str, str]]:
            return []

    one = PromptTemplate.from_template("{i}")
    few = FewShotPromptTemplate(example_selector=Selector(), example_prompt=one, suffix="{a}", input_variables=["a"])
    inner = PromptTemplate.from_template("{a} {b}").partial(a=lambda: str(print()))
    for template in (few, ChatPromptTemplate.from_messages([HumanMessagePromptTemplate(prompt=inner)])):
        assert codes(template | Engines().chat) == ["TB109"]


def test_the_users_code_inside_a_retriever_is_left_to_the_framework() -> None:
    class Loud(EnsembleRetriever):
        def weighted_reciprocal_rank(self, doc_lists: Any) -> Any:
            print(doc_lists)

    e = Engines()
    store = e.store("inside")
    loud = Loud(retrievers=[store.as_retriever()], weights=[1.0])
    assert codes(RunnableParallel(a=loud, b=ask("{q}") | e.chat)) == ["TB105"]
    threshold = store.as_retriever(search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.5})
    assert traced_lines(threshold)[-2:] == ["answer = call(hit, fn='documents') @ pipeline", "outputs(answer)"]
    store.override_relevance_score_fn = lambda distance: print(distance)  # type: ignore[assignment,func-returns-value]
    assert codes(RunnableParallel(a=threshold, b=ask("{q}") | e.chat)) == ["TB105"]


def test_searches_that_items_cannot_express_are_left_to_the_framework() -> None:
    store = Engines().store("strange")
    for arguments in ({"k": 2, "ids": ["note-0", "note-1"]}, {"include": ["data"]}):
        assert codes(store.as_retriever(search_kwargs=arguments)) == ["TB105"]


def test_what_raises_while_a_pipeline_is_read_is_a_break() -> None:
    e = Engines()
    twice = e.store("twice").as_retriever(search_kwargs={"query": "given twice"})
    assert codes(twice) == ["TB213"]

    def render(messages: Any) -> str:
        raise TemplateError("roles must alternate")

    e.llm.render_chat = render  # type: ignore[attr-defined]
    assert codes(ask("{a}") | e.chat) == ["TB213"]


def test_partial_functions_with_effects_are_left_to_the_framework() -> None:
    seen: list[int] = []
    template = PromptTemplate.from_template("{a} {b}").partial(a=lambda: str(seen.append(1)))
    assert codes(template | Engines().chat) == ["TB109"]


def test_a_template_that_strips_its_messages() -> None:
    e = Engines()
    e.llm.render_chat = lambda messages: "".join(f"[{m['content'].strip()}]" for m in messages)  # type: ignore[attr-defined]
    assert traced_lines(ask("{a} or {b}") | e.chat)[1:4] == [
        "a_stripped = call(a, fn='lstrip') @ python",
        "b_stripped = call(b, fn='rstrip') @ python",
        "kv = prefilling('[', a_stripped, ' or ', b_stripped, ']') @ llm",
    ]


def test_bound_arguments_are_settings() -> None:
    model = Engines().chat.bind(stop=["\n"], temperature=0.5)
    assert "answer = decoding(kv, temperature=0.5, stop=['\\n']) @ llm" in traced_lines(ask("{a}") | model)


def test_what_a_binding_says_to_tracers_alone_is_no_setting() -> None:
    model = Engines().chat.bind(stop=["x"], ls_structured_output_format={"schema": {}})
    assert "answer = decoding(kv, stop=['x']) @ llm" in traced_lines(ask("{a}") | model)


def test_a_reply_that_may_call_tools_is_the_frameworks() -> None:
    """Its text alone is known early, which is not all of it."""
    tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}}
    chain = ask("{a}") | Engines().chat.bind(tools=[tool]) | StrOutputParser()
    traced = adapter.trace(chain | ask("{x}") | Engines().chat)
    assert [each.code for each in traced.breaks] == ["TB114"]
    assert "reply = call(text, fn='EngineChatModel') @ pipeline" in str(traced.graph)


def test_a_list_whose_text_is_wanted_too_is_taken_whole() -> None:
    e = Engines()
    both = RunnableParallel(text=StrOutputParser(), parts=NumberedListOutputParser())
    chain = ask("A numbered list of {q}") | e.chat | both | ask("{text} {parts}") | e.chat
    assert "items=" not in str(adapter.trace(chain).graph)
    assert optimize(chain).invoke({"q": "x"}).content == chain.invoke({"q": "x"}).content


def test_the_outermost_bound_argument_counts() -> None:
    """As in LangChain, where a binding hands its arguments on to the one in it; a sequence gives them to its first."""
    e = Engines()
    inner = RunnableBinding(bound=e.chat, kwargs={"stop": ["inner"], "seed": 1})
    for model in (RunnableBinding(bound=inner, kwargs={"stop": ["outer"]}), inner.bind(stop=["outer"])):
        assert "answer = decoding(kv, stop=['outer'], seed=1) @ llm" in traced_lines(ask("{a}") | model)
    sequence = (e.chat | StrOutputParser() | e.completion).bind(stop=["first"])
    decodings = [p for p in adapter.trace(sequence).graph if p.kind == "decoding"]
    assert [p.setting("stop") for p in decodings] == [["first"], None]


def test_what_a_config_may_change_is_left_to_the_framework() -> None:
    e = Engines()
    chosen = e.chat.configurable_fields(max_tokens=ConfigurableField("length"))
    assert codes(ask("{a}") | chosen) == []
    assert codes(ask("{a}") | chosen.with_config(configurable={"length": 3})) == ["TB112"]
    assert codes((ask("{a}") | chosen).with_config(configurable={"length": 3})) == ["TB112"]
    assert codes(ask("{a}") | chosen.with_config(max_concurrency=1)) == ["TB112"]
    assert codes(ask("{a}") | chosen.with_config(tags=["t"])) == []
    assert codes(ask("{a}") | e.chat.with_config(max_concurrency=1)) == ["TB112"]
    assert codes(ask("{a}") | e.chat.with_config(tags=["t"])) == []


def test_a_list_parser_with_a_pattern_of_its_own_is_no_item_grammar() -> None:
    e = Engines()
    for parser in (
        NumberedListOutputParser(pattern=r"([^\n]+)"),
        MarkdownListOutputParser(pattern=r"([^\n]+)"),
    ):
        lines = traced_lines(ask("{a}") | e.chat | parser)
        assert "items=" not in "\n".join(lines)
        assert lines[-2].startswith(f"answer = call(text, fn='{type(parser).__name__}')")
    assert "items='numbered'" in "\n".join(traced_lines(ask("{a}") | e.chat | NumberedListOutputParser()))


def test_a_parser_that_asks_a_model_again_is_left_to_the_framework() -> None:
    e = Engines()
    fixing = OutputFixingParser.from_llm(parser=NumberedListOutputParser(), llm=e.chat)
    assert codes(ask("{a}") | e.chat | fixing) == ["TB101"]


def test_a_function_that_a_passthrough_calls_may_have_effects() -> None:
    async def note(x: Any) -> None:
        print(x)

    for passing in (RunnablePassthrough(afunc=note), RunnablePassthrough(lambda x: print(x))):
        assert codes(passing | ask("{a}") | hosted()) == ["TB101"]
        (answer,) = [p for p in adapter.trace(passing | ask("{a}") | hosted()).graph if p.kind == "decoding"]
        assert answer.after == ("passed",)


def test_models_behind_a_cache_or_a_limiter() -> None:
    e = Engines()
    limited = e.chat.model_copy(update={"rate_limiter": InMemoryRateLimiter()})
    assert codes(ask("{a}") | limited) == ["TB103"]
    assert codes(ask("{a}") | e.chat.model_copy(update={"cache": InMemoryCache()})) == ["TB103"]
    set_llm_cache(InMemoryCache())
    try:
        assert codes(ask("{a}") | e.chat) == ["TB103"]
        assert codes(ask("{a}") | e.chat.model_copy(update={"cache": False})) == []
    finally:
        set_llm_cache(None)


def test_foreign_models() -> None:
    fake = FakeListChatModel(responses=["a", "b"])
    assert codes(ask("{a}") | fake) == ["TB104"]

    @pure
    class Stateless(FakeListChatModel):
        pass

    class Metered(ChatOpenAI):
        def _get_request_payload(self, *args: Any, **kwargs: Any) -> Any:
            print("one more")
            return super()._get_request_payload(*args, **kwargs)

    assert codes(ask("{a}") | Stateless(responses=["a"])) == []
    assert codes(ask("{a}") | hosted()) == []
    assert codes(ask("{a}") | optimize(hosted())) == []
    assert codes(ask("{a}") | Metered(model="gpt-4o", api_key="none")) == ["TB104"]  # type: ignore[arg-type]
    assert codes(ask("{a}") | pure(Metered)(model="gpt-4o", api_key="none")) == []  # type: ignore[arg-type]
    assert codes(ask("{a}") | hosted(streaming=True)) == []
    assert codes(ask("{a}") | hosted(streaming=True, callbacks=[StreamingStdOutCallbackHandler()])) == ["TB103"]


@pytest.mark.parametrize("package", ["ollama", "mistralai", "fireworks", "google_vertexai", "aws"])
def test_models_that_tell_their_callbacks_more_than_the_framework_does(package: str) -> None:
    cls = type("Model", (ChatOpenAI,), {"__module__": f"langchain_{package}.chat_models", "__annotations__": {}})
    assert codes(ask("{a}") | cls(model="gpt-4o", api_key="none")) == ["TB104"]


def test_subclasses_of_our_models_are_the_users() -> None:
    class Audited(EngineChatModel):
        def request_for(self, *args: Any, **kwargs: Any) -> Any:
            seen.append(args)
            return super().request_for(*args, **kwargs)

    class AuditedEmbeddings(EngineEmbeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            seen.append(texts)
            return super().embed_documents(texts)

    class AuditedReranker(EngineReranker):
        def compress_documents(self, documents: Any, *args: Any, **kwargs: Any) -> Any:
            seen.append(documents)
            return super().compress_documents(documents, *args, **kwargs)

    seen: list[Any] = []
    e = Engines()
    retriever = e.store("audited").as_retriever()
    reranked = ContextualCompressionRetriever(
        base_retriever=retriever, base_compressor=AuditedReranker(engine=e.reranker)
    )
    assert codes(ask("{a}") | Audited(engine=e.llm)) == ["TB104"]
    assert codes(reranked) == ["TB105"]
    retriever.vectorstore._embedding_function = AuditedEmbeddings(e.embedder)  # type: ignore[attr-defined]
    assert codes(retriever) == ["TB105"]
    assert seen == []
    assert "answer = decoding(kv, temperature=0.0, max_tokens=256) @ llm" in traced_lines(
        ask("{a}") | pure(Audited)(engine=e.llm)
    )


def test_hosted_models_wait_for_what_may_touch_anything() -> None:
    def unknown(x: dict[str, str]) -> None:
        with open(os.devnull) as file:
            file.read()

    @writes("ingested")
    def ingest(x: dict[str, str]) -> None: ...

    @writes("outside")
    def send(x: dict[str, str]) -> None: ...

    docs = (lambda x: x["q"]) | Engines().store("ingested").as_retriever()

    def asked(function: Any, model: Any) -> str:
        steps = RunnablePassthrough.assign(a=ask("{q}") | model, docs=docs)
        made = traced_lines(RunnablePassthrough.assign(ok=function) | steps)
        return next(line.partition(" @ ")[2] for line in made if line.startswith("a = "))

    assert asked(unknown, hosted()) == asked(send, hosted()) == "gpt_4o, reads(outside), after(ok)"
    assert asked(ingest, hosted()) == "gpt_4o, reads(outside)"
    assert asked(unknown, Engines().chat) == "llm"


def test_declared_writes_and_the_collections_of_a_pipeline_with_a_hosted_model() -> None:
    @writes("outside")
    def send(x: dict[str, str]) -> None: ...

    docs = (lambda x: x["q"]) | Engines().store("sent").as_retriever()
    chain = RunnablePassthrough.assign(a=ask("{q}") | hosted()) | RunnablePassthrough.assign(ok=send)
    (hit,) = [p for p in adapter.trace(chain | RunnablePassthrough.assign(docs=docs)).graph if p.kind == "searching"]
    assert (hit.reads, hit.after) == (("sent",), ("ok",))


def test_reads_wait_for_writes_of_other_names() -> None:
    @reads("notes")
    def lookup(x: str) -> str:
        return x

    def unknown(x: str) -> str:
        with open(os.devnull) as file:
            return x + file.read()

    chain = RunnableLambda(unknown) | RunnableLambda(lookup) | ask("{a}") | Engines().chat
    assert traced_lines(chain)[1:3] == [
        "unknown = call(mode, input, fn='unknown') @ reader, writes(notes)",
        "lookup = call(unknown, fn='lookup') @ python, reads(notes), after(unknown)",
    ]


def test_values_for_the_inputs() -> None:
    e = Engines()
    single = adapter.trace(ask("Tell {topic}") | e.chat)
    assert single.bind({"topic": "bees", "more": 1}) == {"topic": "bees"} == single.bind("bees")
    assert single.bind({}) == {}
    both = adapter.trace(ask("{a} {b}") | e.chat)
    assert both.bind({"a": 1}) == {"a": 1}
    mapped = adapter.trace((ask("{a}") | e.chat).map())
    assert mapped.bind(["x", "y"]) == {"input": ["x", "y"]}
    whole = adapter.trace(RunnablePassthrough() | e.chat)
    assert whole.bind([HumanMessage("hi")]) == {"input": [HumanMessage("hi")]}


def test_nothing_of_the_users_runs_while_a_pipeline_is_read() -> None:
    def explode(x: Any) -> Any:
        raise AssertionError

    chain = RunnableLambda(explode) | RunnablePassthrough(explode) | {"a": explode} | ask("{a}") | Engines().chat
    assert adapter.trace(chain).graph.outputs


def test_messages_are_what_a_function_sees() -> None:
    chain = ask("{a}") | Engines().chat | (lambda m: m.content)
    traced = adapter.trace(chain)
    assert "message = call(text, fn='message') @ python" in str(traced.graph)
    assert traced.functions["message"].call("text") == AIMessage("text")
