"""Reading LangChain: the same requests as the framework's own run makes, as early as they are known, and its values."""

from __future__ import annotations

from operator import itemgetter
from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.runnables import RunnableBranch, RunnableLambda, RunnableParallel, RunnablePassthrough, chain
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, field_validator

from tests.langchain_world import Engines, ask, format_docs
from tests.reader.langchain_reading import ASYNC_CLIENT, CLIENT, check, hosted, read, stopped

E = Engines()
LLM = hosted()


class Grade(BaseModel):
    score: str


class Checked(BaseModel):
    score: str

    @field_validator("score")
    @classmethod
    def check(cls, value: str) -> str:
        return value


@pytest.fixture(params=["ours", "hosted"])
def model(request: pytest.FixtureRequest) -> Any:
    return E.chat if request.param == "ours" else LLM


# --- pipelines -------------------------------------------------------------------------------------------------------


def test_a_prompt_and_a_model(model: Any) -> None:
    assert check(ask("Say {x}") | model, {"x": "a"}).shown == [1]


def test_a_text_behind_a_text(model: Any) -> None:
    first = ask("Say {x}") | model | StrOutputParser()
    assert check(first | ask("More of {x}") | model | StrOutputParser(), {"x": "a"}).shown == [1, 1]


def test_branches_of_a_parallel_are_asked_together(model: Any) -> None:
    both = RunnableParallel(
        pro=ask("For {x}") | model | StrOutputParser(), con=ask("Against {x}") | model | StrOutputParser()
    )
    assert check(both | ask("Judge {pro} {con}") | model, {"x": "a"}).shown == [2, 1]


def test_an_assign_reads_only_what_it_needs(model: Any) -> None:
    steps = RunnablePassthrough.assign(a=ask("A {x}") | model | StrOutputParser()) | RunnablePassthrough.assign(
        b=ask("B {x}") | model | StrOutputParser()
    )
    assert check(steps | ask("{a} {b}") | model, {"x": "1"}).shown == [2, 1]


def test_functions_between_components_are_read(model: Any) -> None:
    def shout(x: dict[str, str]) -> dict[str, str]:
        return {"x": x["x"].upper()}

    steps = RunnableLambda(shout) | ask("Say {x}") | model | (lambda m: {"x": m.content + "!"}) | ask("So {x}") | model
    assert check(steps, {"x": "a"}).shown == [1, 1]


def test_a_function_may_return_a_runnable(model: Any) -> None:
    def route(x: dict[str, str]) -> Any:
        return ask("One {x}") | model if x["x"] == "1" else ask("Many {x}") | model

    assert check(RunnableLambda(route), {"x": "1"}).shown == [1]
    assert check(RunnableLambda(route), {"x": "2"}).shown == [1]


def test_a_chain_function_asks_in_its_body(model: Any) -> None:
    first = ask("Draft {x}") | model | StrOutputParser()

    @chain
    def twice(x: str) -> Any:
        draft = first.invoke({"x": x})
        other = model.invoke([("system", "Be short"), ("human", x)])
        return draft + other.content

    assert check(twice, "a").shown == [2]


def test_a_config_is_handed_on(model: Any) -> None:
    @chain
    def one(x: str, config: Any) -> Any:
        return model.invoke(x, config).content + model.invoke(x + "!", config={"tags": ["t"]}).content

    assert check(one, "a").shown == [2]


def test_a_branch_that_is_decided(model: Any) -> None:
    branch = RunnableBranch(
        (lambda x: "code" in x["x"], ask("Code {x}") | model), ask("Text {x}") | model
    )
    assert check(branch, {"x": "code"}).shown == [1]
    assert check(branch, {"x": "text"}).shown == [1]


def test_a_branch_that_a_reply_decides(model: Any) -> None:
    judge = ask("Judge {x}") | model | (lambda m: m.content < "8")
    branch = RunnableBranch((judge, ask("Low {x}") | model), ask("High {x}") | model)
    found = read(branch, {"x": "a"})
    assert [len(each) for each in found.rounds][0] == 3
    assert found.certain[0] == [True, False, False]


def test_what_each_item_asks_is_asked_together(model: Any) -> None:
    each = (lambda x: [{"x": word} for word in x.split()]) | (ask("On {x}") | model | StrOutputParser()).map()
    assert check(RunnablePassthrough() | each | "; ".join | ask("Sum {x}") | model, "a b c").shown == [3, 1]


def test_items_are_picked(model: Any) -> None:
    steps = {"x": itemgetter("a"), "b": RunnablePassthrough() | itemgetter("b")} | ask("{x} {b}") | model
    assert check(steps, {"a": "1", "b": "2"}).shown == [1]
    picked = RunnablePassthrough.assign(c=lambda x: x["a"] + x["b"]).pick(["a", "c"]) | ask("{a} {c}") | model
    assert check(picked, {"a": "1", "b": "2"}).shown == [1]


def test_messages_and_placeholders(model: Any) -> None:
    prompt = ChatPromptTemplate.from_messages([("system", "s"), MessagesPlaceholder("history"), ("human", "{x}")])
    steps = RunnablePassthrough.assign(history=lambda x: [("human", "h"), ("ai", x["x"])]) | prompt | model
    assert check(steps, {"x": "a"}).shown == [1]


def test_replies_are_handed_on_as_messages(model: Any) -> None:
    @chain
    def talk(x: str) -> Any:
        first = model.invoke(x)
        return model.invoke([("human", x), first, ("human", "go on")])

    assert check(talk, "a").shown == [1, 1]


def test_bound_arguments_are_asked_for(model: Any) -> None:
    assert check(ask("Say {x}") | model.bind(stop=["!"]), {"x": "a"}).shown == [1]


def test_retries_and_fallbacks_are_the_first_try(model: Any) -> None:
    steps = ask("Say {x}") | model.with_retry().with_fallbacks([E.chat]) | StrOutputParser()
    assert check(steps, {"x": "a"}).shown == [1]


def test_completion_models() -> None:
    assert check(PromptTemplate.from_template("Say {x}") | E.completion, {"x": "a"}).shown == [1]


@pytest.mark.parametrize("is_ours", [True, False])
def test_coroutines(is_ours: bool) -> None:
    model = E.chat if is_ours else LLM
    steps = ask("Say {x}") | model | StrOutputParser() | ask("More {x}") | model
    assert check(steps, {"x": "a"}, is_async=True).shown == [1, 1]

    async def node(x: str) -> Any:
        first = await model.ainvoke(x)
        return [first.content, model.invoke(x).content, await model.abatch([x + "1", x + "2"])]

    assert check(node, "a", is_async=True).shown == [4]


def test_a_missing_variable_raises_as_in_langchain(model: Any) -> None:
    check(ask("Say {x} {y}") | model, {"x": "a"})
    found = read(RunnablePassthrough.assign(z=LLM | StrOutputParser()) | ask("{y} {z}") | model, {"x": "a"})
    assert found.raised or found.stopped


# --- functions -------------------------------------------------------------------------------------------------------


def test_a_chain_is_built_in_the_body(model: Any) -> None:
    def node(state: dict[str, Any]) -> Any:
        prompt = ChatPromptTemplate.from_messages([("system", "s"), ("human", "{x}")])
        steps = prompt | model | StrOutputParser()
        return {"answer": steps.invoke({"x": state["x"]})}

    assert check(node, {"x": "a"}).shown == [1]


def test_a_template_is_filled_in_the_body(model: Any) -> None:
    template = PromptTemplate.from_template("Say {x} {y}").partial(y="p")

    def node(state: dict[str, Any]) -> Any:
        messages = ask("Say {x}").format_messages(x=state["x"])
        return [model.invoke(template.format(x=state["x"])), model.invoke(messages), model.invoke(template.invoke({"x": "q"}))]

    assert check(node, {"x": "a"}).shown == [3]


def test_a_model_is_built_in_the_body() -> None:
    def node(state: dict[str, Any]) -> Any:
        llm = ChatOpenAI(
            model="m", temperature=0, api_key="key", base_url="http://service/v1", http_client=CLIENT,
            http_async_client=ASYNC_CLIENT,
        )  # fmt: skip
        return llm.invoke(state["x"]).content

    assert check(node, {"x": "a"}).shown == [1]


def test_a_model_is_built_by_its_name_in_the_body() -> None:
    def node(state: dict[str, Any]) -> Any:
        llm = init_chat_model(
            "openai:m", temperature=0, api_key="key", base_url="http://service/v1", http_client=CLIENT,
            http_async_client=ASYNC_CLIENT,
        )  # fmt: skip
        return (ask("{x}") | llm).invoke({"x": state["x"]}).content

    assert check(node, {"x": "a"}).shown == [1]


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_structured_output(method: Any) -> None:
    grader = ask("Grade {x}") | LLM.with_structured_output(Grade, method=method)

    def node(state: dict[str, Any]) -> Any:
        kept = []
        for doc in state["docs"]:
            grade = grader.invoke({"x": doc})
            if grade.score == "yes":
                kept.append(doc)
        return kept

    found = check(node, {"docs": ["a", "b", "c", "d"]})
    assert found.shown == [4]
    assert found.certain == [[True] * 4]


@pytest.mark.parametrize("method", ["function_calling", "json_schema", "json_mode"])
def test_structured_output_in_the_body(method: Any) -> None:
    def node(state: dict[str, Any]) -> Any:
        grader = LLM.with_structured_output(Grade, method=method)
        return grader.invoke(state["x"]).score

    assert check(node, {"x": "a"}).shown == [1]


def test_json_of_a_reply() -> None:
    steps = ask("Grade {x}") | LLM.bind(response_format={"type": "json_object"}) | JsonOutputParser()
    assert check(steps, {"x": "a"}).shown == [1]


def test_a_reply_that_cannot_be_parsed_raises(model: Any) -> None:
    check(ask("Grade {x}") | model | JsonOutputParser(), {"x": "a"})


def test_instructions_of_a_parser(model: Any) -> None:
    parser = PydanticOutputParser(pydantic_object=Grade)

    def node(state: dict[str, Any]) -> Any:
        return model.invoke(parser.get_format_instructions() + state["x"]).content

    assert check(node, {"x": "a"}).shown == [1]


# --- retrievers ------------------------------------------------------------------------------------------------------


def test_a_retriever_is_asked_beside_the_call() -> None:
    retriever = E.store("reading").as_retriever(search_kwargs={"k": 2})
    steps = (
        {"context": retriever | format_docs, "question": RunnablePassthrough()}
        | ask("{context} {question}")
        | E.chat
        | StrOutputParser()
    )
    found = read(steps, "hives")
    assert found.shown == [1, 1]
    assert found.value == steps.invoke("hives")


def test_a_store_is_searched_in_a_function() -> None:
    store = E.store("reading2")

    def node(state: dict[str, Any]) -> Any:
        docs = store.similarity_search(state["x"], k=2)
        return [d.page_content for d in docs] + [str(len(E.embeddings.embed_query(state["x"])))]

    found = read(node, {"x": "a"})
    assert found.shown == [2]
    assert found.value == node({"x": "a"})


# --- barriers --------------------------------------------------------------------------------------------------------


def test_what_is_not_read() -> None:
    def partial_function() -> str:
        raise AssertionError("it ran")

    template = ChatPromptTemplate.from_template("{x} {y}").partial(y=partial_function)
    assert "partial" in stopped(template | LLM, {"x": "a"})
    assert "jinja2" not in stopped(ask("{x}") | LLM, {"x": "a"})
    assert "Checked" in stopped(LLM.with_structured_output(Checked), "a")
    assert "Checked" in stopped(ask("{x}") | LLM | PydanticOutputParser(pydantic_object=Checked), {"x": "a"})
    assert "stream" in stopped(lambda x: list(LLM.stream(x)), "a")
    assert "stream" in stopped(hosted(streaming=True), "a")
    assert "limits" in stopped(LLM.with_config(max_concurrency=1), "a")
