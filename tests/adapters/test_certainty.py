"""Certainty: a request leaves this process only once nothing before it in the pipeline can still raise.

Each pipeline is run as it is and optimized; the hosted model must be asked for exactly the same, above all where
something raises in between. Guards are slow enough for a request that does not wait for them to get out.
"""

from __future__ import annotations

import asyncio
import json
import operator
import re
import time
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.prompts import PromptTemplate as LangChainPromptTemplate
from langchain_core.prompts import PromptTemplate as PromptTemplateOfLangChain
from langchain_core.runnables import (
    RouterRunnable,
    Runnable,
    RunnableBranch,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
)
from langgraph.graph import END, START, StateGraph
from llama_index.core import PromptTemplate
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import SubQuestionQueryEngine
from llama_index.core.question_gen import LLMQuestionGenerator
from llama_index.core.question_gen.prompts import DEFAULT_SUB_QUESTION_PROMPT_TMPL
from llama_index.core.tools import QueryEngineTool
from pydantic import BaseModel

from teola_plugin import explain, optimize, optimized, pure
from teola_plugin.adapters.langchain.binding import Bindings
from teola_plugin.adapters.langchain.draft import Draft
from teola_plugin.adapters.langchain.values import Prompt, Record
from teola_plugin.adapters.llamaindex.reachable import asks_outside
from teola_plugin.engines import EngineSpec
from teola_plugin.graph import Graph
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.models.llamaindex import EngineLLM
from teola_plugin.runtime.engines.openai import OpenAIEngine
from tests.adapters.langchain.test_langchain_foreign import Hosted, HostedNatively
from tests.support.fakes import FakeTransport
from tests.support.langchain_world import Engines, ask
from tests.support.llamaindex_world import Engines as LlamaIndexEngines
from tests.support.llamaindex_world import index_of

assign = RunnablePassthrough.assign
SLOW = 400_000
"""Steps of a loop that takes some 20 ms: a request that did not wait would be out by then."""


def pii(x: dict[str, str]) -> bool:
    """A plain guard: pure, and it raises."""
    if re.search(r"\d{3}-\d{2}-\d{4}", x["q"]):
        sum(range(SLOW))
        raise PermissionError("personal data")
    return True


class Grade(BaseModel):
    grade: int


def asked(model: Any) -> list[Any]:
    return sorted(model._calls)


def outcome(run: Callable[[], Any]) -> Any:
    """The value, or what was raised."""
    try:
        return run()
    except Exception as e:
        return type(e), str(e)


def both(
    build: Callable[[Any], Runnable[Any, Any]], given: Any, form: str = "invoke", cls: type = Hosted, **kwargs: Any
) -> tuple[list[Any], list[Any]]:
    """What the original and the optimized pipeline asked the model; the outcomes must be equal."""
    plain, fast = cls(), cls()
    original, chain = build(plain), optimize(build(fast), **kwargs.pop("options", {}))

    def run(pipeline: Any) -> Any:
        if form.startswith("a"):
            return outcome(lambda: asyncio.run(getattr(pipeline, form)(given, **kwargs)))
        return outcome(lambda: getattr(pipeline, form)(given, **kwargs))

    assert _shown(run(original)) == _shown(run(chain))
    return asked(plain), asked(fast)


def _shown(value: Any) -> str:
    """Errors and messages, less their ids."""
    return re.sub(r"run-+[0-9a-f-]+|id='[^']*'", "", repr(value))


@pure
class Says(Hosted):
    """Says whatever its prompt says after `say`."""

    def _said(self, how: str, messages: Any, kwargs: Any) -> str:
        made = super()._said(how, messages, kwargs)
        return str(messages[0].content).partition("say ")[2] or made


def guarded(model: Any) -> Runnable[Any, Any]:
    return assign(ok=pii) | assign(a=ask("A {q}") | model | StrOutputParser()) | ask("B {a} {ok}") | model


def parsed(model: Any) -> Runnable[Any, Any]:
    first = ask("say {q}") | model | JsonOutputParser()
    return assign(first=first) | assign(second=ask("B {q}") | model | StrOutputParser())


def validated(model: Any) -> Runnable[Any, Any]:
    first = ask("say {q}") | model | PydanticOutputParser(pydantic_object=Grade)
    return assign(first=first) | assign(second=ask("B {q}") | model)


def missing_key(model: Any) -> Runnable[Any, Any]:
    return assign(a=operator.itemgetter("missing")) | assign(b=ask("B {q}") | model)


def missing_variable(model: Any) -> Runnable[Any, Any]:
    return assign(a=ask("A {q} {missing}") | model) | assign(b=ask("B {q}") | model)


def formatted(model: Any) -> Runnable[Any, Any]:
    first = ChatPromptTemplate.from_template("A {q:.2f}") | RunnableLambda(lambda prompt: prompt.to_string())
    return assign(a=first) | assign(b=ask("B {q}") | model)


def routed(model: Any) -> Runnable[Any, Any]:
    router = RouterRunnable({"known": ask("K {q}") | model | StrOutputParser()})
    given = RunnableParallel(key=operator.itemgetter("q"), input=RunnablePassthrough())
    return assign(a=given | router) | assign(b=ask("B {q}") | model)


def branched(model: Any) -> Runnable[Any, Any]:
    def is_long(x: dict[str, str]) -> bool:
        sum(range(SLOW))
        return int(x["q"]) > 3

    branch = RunnableBranch((is_long, RunnableLambda(lambda x: "long")), RunnableLambda(lambda x: "short"))
    return assign(a=branch) | assign(b=ask("B {q}") | model)


def formatted_for_nobody(model: Any) -> Runnable[Any, Any]:
    """A prompt that goes to no model."""
    return assign(t=PromptTemplateOfLangChain.from_template("{q:.2f}")) | assign(b=ask("B {q}") | model)


def not_a_dict(model: Any) -> Runnable[Any, Any]:
    made = RunnableLambda(lambda x: x["q"])
    return made | RunnablePassthrough.assign(b=ChatPromptTemplate.from_template("constant") | model)


def list_of(model: Any) -> Runnable[Any, Any]:
    def check(item: str) -> str:
        if item == "bad":
            sum(range(SLOW))
            raise ValueError(item)
        return item

    split = RunnableLambda(lambda x: x["q"].split())
    return split | (RunnableLambda(check) | ask("A {q}") | model).map()


ATTACKS: list[tuple[Callable[[Any], Runnable[Any, Any]], Any, Any]] = [
    (guarded, {"q": "my number is 078-05-1120"}, {"q": "hello"}),
    (parsed, {"q": "no json"}, {"q": "[1]"}),
    (validated, {"q": '{"grade": "none"}'}, {"q": '{"grade": 3}'}),
    (missing_key, {"q": "x"}, {"q": "x", "missing": 1}),
    (missing_variable, {"q": "x"}, {"q": "x", "missing": 1}),
    (formatted, {"q": "text"}, {"q": 1.5}),
    (formatted_for_nobody, {"q": "text"}, {"q": 1.5}),
    (routed, {"q": "unknown"}, {"q": "known"}),
    (branched, {"q": "many"}, {"q": "7"}),
    (not_a_dict, {"q": "text"}, {"q": {"c": "d"}}),
    (list_of, {"q": "a bad c"}, {"q": "a b c"}),
]


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
@pytest.mark.parametrize(("build", "bad", "good"), ATTACKS, ids=lambda value: getattr(value, "__name__", ""))
def test_nothing_is_asked_behind_what_raises(build: Any, bad: Any, good: Any, form: str) -> None:
    def after_another(model: Any) -> Runnable[Any, Any]:
        return assign(z=ask("Z {q}") | model) | build(model)

    original, optimized_ = both(after_another, bad, form, Says)
    assert optimized_ == original
    assert original
    original, optimized_ = both(after_another, good, form, Says)
    assert optimized_ == original
    assert len(original) > 1


@pytest.mark.parametrize("given", [{"other": 1}, "text", 7, None, ["q"]])
def test_nothing_is_asked_for_an_input_that_the_pipeline_cannot_take(given: Any) -> None:
    def build(model: Any) -> Runnable[Any, Any]:
        constant = ChatPromptTemplate.from_template("constant") | model
        return assign(a=ask("A {q}") | model) | assign(b=constant)

    original, optimized_ = both(build, given)
    assert optimized_ == original == []


@pytest.mark.parametrize("form", ["batch", "abatch"])
@pytest.mark.parametrize("keeps_errors", [False, True])
def test_a_batch_asks_nothing_behind_the_step_at_which_one_input_raises(form: str, keeps_errors: bool) -> None:
    given = [{"q": "one"}, {"q": "078-05-1120"}, *({"q": f"x{n}"} for n in range(260))]
    original, optimized_ = both(guarded, given, form, return_exceptions=keeps_errors)
    assert optimized_ == original
    assert bool(original) is keeps_errors
    original, optimized_ = both(guarded, [{"q": "one"}, {"q": "two"}], form)
    assert len(original) == 4
    assert optimized_ == original


def test_a_batch_asks_nothing_more_when_a_reply_cannot_be_parsed() -> None:
    given = [{"q": "[1]"}, {"q": "no json"}, {"q": "[2]"}]
    original, optimized_ = both(parsed, given, "batch", Says)
    first = {("call", f"say {each['q']}") for each in given}  # when one raises, calls not begun are given up
    for requests in (original, optimized_):
        assert set(requests) <= first
        assert len(requests) == len(set(requests)) >= 2


def test_a_guard_in_one_branch_does_not_hold_up_the_other() -> None:
    """Nor does it in the original: both are begun before either can raise."""

    def build(model: Any) -> Runnable[Any, Any]:
        return RunnableParallel(ok=pii, a=ask("A {q}") | model | StrOutputParser())

    original, optimized_ = both(build, {"q": "078-05-1120"})
    assert optimized_ == original
    assert len(original) == 1


def test_independent_requests_still_run_ahead() -> None:
    model = HostedNatively()

    def step(name: str) -> Runnable[Any, Any]:
        return ask(f"{name} {{q}}") | model | StrOutputParser()

    chain = optimize(assign(a=step("A")) | assign(b=step("B")) | assign(c=step("C")))
    assert _gates(optimized(chain).optimized.graph) == {}
    chain.invoke({"q": "x"})
    assert len(model._calls) == 3
    report = optimized(chain).reports[-1]
    assert report.hits + report.shared >= 2
    assert report.wasted == 0


def test_an_engine_of_this_process_is_asked_early_and_the_waste_is_counted() -> None:
    e = Engines()
    chain = optimize(assign(ok=pii) | assign(a=ask("A {q}") | e.chat) | assign(b=ask("B {q}") | e.chat))
    assert _gates(optimized(chain).optimized.graph) == {}
    with pytest.raises(PermissionError):
        chain.invoke({"q": "078-05-1120"})
    assert optimized(chain).reports[-1].wasted == 2


def test_the_user_may_ask_for_more_than_what_is_certain() -> None:
    model = Hosted()

    @pure
    def late(x: dict[str, str]) -> None:
        for _ in range(1000):
            if len(model._calls) == 2:
                raise PermissionError
            time.sleep(0.01)

    asks = assign(a=ask("A {q}") | model) | assign(b=ask("B {q}") | model)
    chain = optimize(assign(ok=late) | asks, speculate="branches")
    with pytest.raises(PermissionError):
        chain.invoke({"q": "x"})
    assert len(model._calls) == 2
    assert "TR804" in explain(chain)


def test_explain_names_the_gates() -> None:
    assert "gated(ok)" in explain(optimize(guarded(Hosted())))


def test_a_remote_engine_of_ours_is_outside_too() -> None:
    engine = OpenAIEngine("m", base_url="http://127.0.0.1:1/v1", prefix="off")
    assert "gated(ok)" in explain(optimize(guarded(EngineChatModel(engine=engine, max_tokens=4))))


# --- LangGraph --------------------------------------------------------------------------------------------------------


class State(TypedDict, total=False):
    q: str
    a: str
    b: str
    log: Annotated[list[str], operator.add]


def graph_of(model: Any, first: Callable[[State], Any]) -> Any:
    """`first` beside a node that asks, then one that asks and reads neither."""
    chain, other = ask("A {q}") | model | StrOutputParser(), ask("B {q}") | model | StrOutputParser()
    builder = StateGraph(State)
    builder.add_node("first", first)
    builder.add_node("a", lambda state: {"a": chain.invoke({"q": state["q"]})})
    builder.add_node("b", lambda state: {"b": other.invoke({"q": state["q"]})})
    builder.add_edge(START, "first")
    builder.add_edge(START, "a")
    builder.add_edge("first", "b")
    builder.add_edge("b", END)
    return builder.compile()


def raises(state: State) -> dict[str, Any]:
    sum(range(SLOW))
    raise PermissionError(state["q"])


def no_update(state: State) -> Any:
    sum(range(SLOW))
    return "no update"


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
@pytest.mark.parametrize("first", [raises, no_update])
def test_no_superstep_asks_behind_one_that_fails(first: Callable[[State], Any], form: str) -> None:
    original, optimized_ = both(lambda model: graph_of(model, first), {"q": "x", "log": []}, form)
    assert optimized_ == original
    assert ("call", "Human: B x") not in original


@pure
class Slow(Hosted):
    """Takes its time."""

    def _said(self, how: str, messages: list[Any], kwargs: dict[str, Any]) -> str:
        said = super()._said(how, messages, kwargs)
        time.sleep(0.2)
        return said


def test_no_superstep_asks_before_the_replies_that_a_node_before_it_may_stumble_over() -> None:
    def build(model: Any) -> Any:
        builder = StateGraph(State)
        builder.add_node("check", lambda state: {"a": int(model.invoke(f"A {state['q']}").content, base=2)})
        builder.add_node("tell", lambda state: {"log": ["told"]})
        builder.add_node("then", lambda state: {"b": model.invoke(f"B {state['q']}").content})
        builder.add_edge(START, "check")
        builder.add_edge(START, "tell")
        builder.add_edge(["check", "tell"], "then")
        return builder.compile()

    original, optimized_ = both(build, {"q": "x", "log": []}, cls=Slow)
    assert optimized_ == original == [("call", "A x")]


# --- LlamaIndex -------------------------------------------------------------------------------------------------------


class _Raw:
    """A server's raw replies, by what the prompt contains, and the prompts."""

    def __init__(self, replies: dict[str, str]) -> None:
        self.replies = replies
        self.prompts: list[str] = []

    def reply(self, prompt: str) -> str:
        self.prompts.append(prompt)
        return next((reply for mark, reply in self.replies.items() if mark in prompt), "fine")


def hosted_llm(raw: _Raw) -> Any:
    """`OpenAILike` on a transport in this process."""
    import httpx
    from llama_index.llms.openai_like import OpenAILike

    def handle(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        text = raw.reply(str(body.get("messages") or body["prompt"]))
        choice = {"index": 0, "text": text, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "object": "chat.completion", "model": "m", "choices": [choice]})

    transport = FakeTransport(handle)
    return OpenAILike(
        model="m", api_key="none", api_base="http://service/v1", max_retries=0, is_chat_model=True,
        http_client=httpx.Client(transport=transport), async_http_client=httpx.AsyncClient(transport=transport),
    )  # fmt: skip


@pytest.mark.parametrize(
    "reply",
    [
        "no json",
        '[{"sub_question": "s1", "tool_name": "t"}, oops',
        '[{"sub_question": "s1", "tool_name": "t"}, {"sub_question": "s2", "tool_name": "unknown"}, '
        '{"sub_question": "s3", "tool_name": "t"}]',
        '[{"sub_question": "s1", "tool_name": "t"}, {"sub_question": "s2", "tool_name": "t"}]',
    ],
)
def test_no_sub_question_is_asked_of_a_list_that_cannot_be_parsed(reply: str) -> None:
    def build(raw: _Raw) -> Any:
        llm = hosted_llm(raw)
        tool = QueryEngineTool.from_defaults(_engine(llm), name="t", description="all")
        prompt = PromptTemplate(DEFAULT_SUB_QUESTION_PROMPT_TMPL)
        generator = LLMQuestionGenerator.from_defaults(llm, prompt_template_str=prompt.template)
        return SubQuestionQueryEngine.from_defaults([tool], llm=llm, question_gen=generator, use_async=False)

    _same_prompts(build, {"sub_question": reply})


def test_no_further_prompt_of_a_reranker_whose_reply_cannot_be_parsed() -> None:
    def build(raw: _Raw) -> Any:
        llm = hosted_llm(raw)
        return _engine(llm, node_postprocessors=[LLMRerank(llm=llm, choice_batch_size=1, top_n=1)])

    _same_prompts(build, {"relevance": "Doc: none, Relevance: much"})


def test_models_whose_requests_leave_this_process() -> None:
    own, service = LlamaIndexEngines(), OpenAIEngine("m", base_url="http://127.0.0.1:1/v1", prefix="off")
    index = index_of(own, ["passage"])
    elsewhere = EngineLLM(engine=service, max_tokens=4)
    assert not asks_outside(index.as_query_engine(llm=own.model))
    assert asks_outside(index.as_query_engine(llm=elsewhere))
    assert asks_outside(index.as_query_engine(llm=hosted_llm(_Raw({}))))


def _engine(llm: Any, **kwargs: Any) -> Any:
    index = index_of(LlamaIndexEngines(), [f"passage {n}" for n in range(3)])
    return index.as_query_engine(llm=llm, similarity_top_k=3, **kwargs)


def _same_prompts(build: Callable[[_Raw], Any], replies: dict[str, str]) -> None:
    plain, fast = _Raw(replies), _Raw(replies)
    original, chain = build(plain), optimize(build(fast))
    assert chain is not original
    assert outcome(lambda: str(chain.query("what?"))) == outcome(lambda: str(original.query("what?")))
    assert sorted(fast.prompts) == sorted(plain.prompts) != []


# --- effects in between ----------------------------------------------------------------------------------------------

CHANGES: list[Callable[[Any], Any]] = [
    lambda x: x["l"].append("z"),
    lambda x: x["l"].sort(),
    lambda x: x["l"].__setitem__(0, "z"),
    lambda x: x["d"].update(k="z"),
    eval("""lambda x: x["l"].append("z")"""),  # a function whose source cannot be read
]


@pytest.mark.parametrize("form", ["invoke", "ainvoke"])
@pytest.mark.parametrize("change", CHANGES)
def test_nothing_is_asked_about_what_an_effect_before_it_changes_in_place(
    change: Callable[[Any], Any], form: str
) -> None:
    def build(model: Any) -> Runnable[Any, Any]:
        asks = assign(b=ask("B {l} {d}") | model | StrOutputParser()) | assign(c=ask("C {q}") | model)
        return assign(a=ask("A {q}") | model) | assign(n=change) | asks

    plain, fast = Hosted(), Hosted()
    for pipeline in (build(plain), optimize(build(fast))):
        given = {"q": "x", "l": ["b", "a"], "d": {"k": "v"}}
        asyncio.run(pipeline.ainvoke(given)) if form == "ainvoke" else pipeline.invoke(given)
    assert asked(fast) == asked(plain)


def test_a_run_of_a_component_inside_another_one_tells_nothing() -> None:
    def build(model: Any) -> Runnable[Any, Any]:
        log: list[str] = []

        def noted(x: dict[str, str]) -> str:
            log.append(x["q"])
            time.sleep(0.05)  # by then a request about what it was told first would be out
            return x["q"] + "!"

        inner = RunnableLambda(noted)

        def first(x: dict[str, str]) -> str:
            return str(inner.invoke({"q": "inner"}))

        asks = assign(a=ask("A {g}") | model | StrOutputParser()) | assign(b=ask("B {q}") | model)
        return assign(z=first) | assign(g=inner) | asks

    for form in ("invoke", "ainvoke", "batch"):
        given: Any = [{"q": "x"}] if form == "batch" else {"q": "x"}
        original, optimized_ = both(build, given, form)
        assert optimized_ == original
        assert len(original) == 2


# --- copies -----------------------------------------------------------------------------------------------------------


def test_early_code_changes_copies() -> None:
    rows = [["a"], ["b"]]

    def change(x: dict[str, Any]) -> list[Any]:
        mine = list(x["rows"])
        mine[0] += ["z"]
        return mine

    chain = assign(changed=change) | assign(seen=lambda x: [list(row) for row in x["rows"]])
    e = Engines()
    fast = optimize(chain | assign(said=ask("{seen}") | e.chat))
    for _ in range(6):
        given = {"rows": [list(row) for row in rows]}
        assert fast.invoke(given)["seen"] == [["a", "z"], ["b"]]
        assert given == {"rows": [["a", "z"], ["b"]]}


def test_what_the_framework_changes_of_a_reply_is_its_own() -> None:
    """A reply that the framework asked for first is shared with what runs ahead."""

    def sign(x: dict[str, Any]) -> dict[str, Any]:
        x["a"].content += " signed"
        return x

    def build(model: Any) -> Runnable[Any, Any]:
        said = RunnableLambda(lambda x: {"q": x["a"].content}) | ask("B {q}") | model
        return assign(a=ask("A {q}") | model) | RunnableLambda(sign) | assign(b=said) | assign(c=ask("C {q}") | model)

    original, optimized_ = both(build, {"q": "x"})
    assert optimized_ == original


def test_what_only_the_framework_computes_is_a_gate_without_effects_too() -> None:
    draft, hosted = Draft(), EngineSpec("python", object(), provider="service")
    asked = draft.bindings.whole()
    draft.await_run("told", RunnableLambda(str), "str", [asked], None, is_pure=True)
    kv = draft.ask("kv", "prefilling", hosted, asked)
    assert _gates(draft.traced(draft.ask("text", "decoding", hosted, kv)).graph) == {"kv": ("told",)}


def test_what_is_no_prompt_is_not_taken_to_become_one() -> None:
    draft = Draft()
    assert not draft.is_total(draft.bindings.whole())
    template, key = LangChainPromptTemplate.from_template("A {q}"), draft.bindings.key("q")
    assert draft.is_total(Prompt(template, {"q": key}))
    assert not draft.is_total(Prompt(template, {"q": draft.call("made", "str", str, key)}))


def test_of_an_input_that_asks_for_something_else_nothing_is_known() -> None:
    bindings = Bindings(lambda name: name, lambda name: None)
    bindings.only("q")
    assert bindings.bind("text") == {"q": "text"}
    bindings.refuse("other")
    assert bindings.bind({"q": "text"}) == {"q": "text"}
    assert bindings.bind({"q": "text", "other": 1}) == {}
    bindings.require_dict()
    assert bindings.bind("text") == {}


def test_what_is_bound_of_an_input_is_a_copy_and_plain_data() -> None:
    bindings = Bindings(lambda name: name, lambda name: None)
    for key in ("rows", "client"):
        bindings.key(key)
    given = {"rows": [["a"]], "client": object()}
    bound = bindings.bind(given)
    given["rows"][0].append("b")  # type: ignore[index]
    assert bound == {"rows": [["a"]]}


def test_branches_have_no_gates_of_one_another_and_what_follows_has_all() -> None:
    draft, hosted = Draft(), EngineSpec("python", object(), provider="service")
    asked = draft.bindings.whole()
    with draft.side_by_side() as branch:
        branch()
        draft.call("first", "str", str, asked)
        branch()
        draft.call("second", "repr", repr, asked)
        beside = draft.ask("beside", "prefilling", hosted, asked)
    behind = draft.ask("behind", "prefilling", hosted, asked)
    texts = [draft.ask("text", "decoding", hosted, kv) for kv in (beside, behind)]
    gates = _gates(draft.traced(Record({str(n): text for n, text in enumerate(texts)})).graph)
    assert gates["beside"] == ("second",)
    assert gates["behind"] == ("first", "second")


# --- helpers ----------------------------------------------------------------------------------------------------------


def _gates(graph: Graph) -> dict[str, tuple[str, ...]]:
    return {p.name: p.gated for p in graph if p.gated}
