"""Reading LangChain: the same requests as the framework's own run makes, as early as they are known, and its values."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from operator import itemgetter
from typing import Annotated, Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_classic.retrievers.multi_query import LineListOutputParser, MultiQueryRetriever
from langchain_core.callbacks import StreamingStdOutCallbackHandler
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, get_buffer_string, trim_messages
from langchain_core.output_parsers import JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder, PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableBranch, RunnableLambda, RunnableParallel, RunnablePassthrough, chain
from langchain_core.tools import InjectedToolArg, create_retriever_tool, tool
from langchain_openai import ChatOpenAI
from langgraph.graph.message import add_messages
from pydantic import BaseModel, field_validator

from teola_plugin import reads
from teola_plugin.adapters.langchain import models
from teola_plugin.adapters.langchain.models import as_set_now
from tests.adapters.reader.langchain_reading import ASYNC_CLIENT, CLIENT, check, hosted, read, stopped
from tests.support.langchain_world import Engines, ask, format_docs

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
    branch = RunnableBranch((lambda x: "code" in x["x"], ask("Code {x}") | model), ask("Text {x}") | model)
    assert check(branch, {"x": "code"}).shown == [1]
    assert check(branch, {"x": "text"}).shown == [1]


def test_a_branch_that_a_reply_decides(model: Any) -> None:
    judge = ask("Judge {x}") | model | (lambda m: m.content < "8")
    branch = RunnableBranch((judge, ask("Low {x}") | model), ask("High {x}") | model)
    found = read(branch, {"x": "a"})
    assert found.shown[0] == 3
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
        return [
            model.invoke(template.format(x=state["x"])),
            model.invoke(messages),
            model.invoke(template.invoke({"x": "q"})),
        ]

    assert check(node, {"x": "a"}).shown == [3]


@pytest.mark.parametrize(
    "held", [OrderedDict(b=1, a=2), Counter("aba"), defaultdict(list, b=[1], a=[]), deque([2, 1], 3), {2: (1, {3})}]
)
def test_a_template_shows_containers_as_they_are(model: Any, held: Any) -> None:
    def node(state: dict[str, Any]) -> Any:
        return model.invoke(ask("{held}").invoke({"held": held}))

    assert check(node, {"x": "a"}).shown == [1]


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


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("model", ["gpt-3.5-turbo", "gpt-4", "gpt-4-turbo"])
@pytest.mark.parametrize("options", [{}, {"method": "json_schema"}, {"method": "function_calling"}, {"strict": True}])
def test_structured_output_of_a_model_that_has_none(model: str, options: Any) -> None:
    llm = hosted(model=model)

    def node(state: dict[str, Any]) -> Any:
        grades = [llm.with_structured_output(Grade, **options).invoke(doc).score for doc in state["docs"]]
        return [*grades, LLM.invoke("after").content]

    found = check(node, {"docs": ["a", "b"]})
    assert found.shown == [3]
    assert found.certain[0][:2] == [True, True]


@pytest.mark.filterwarnings("error::UserWarning")
def test_structured_output_that_raises_its_warning_is_a_branch() -> None:
    llm = hosted(model="gpt-4")

    def node(state: dict[str, Any]) -> Any:
        first = LLM.invoke(state["x"])
        return [first, llm.with_structured_output(Grade).invoke("a"), LLM.invoke("b")]

    assert read(node, {"x": "a"}).certain[0] == [True, False, False]


@pytest.mark.parametrize("is_counted", [True, False])
def test_votes_are_counted_before_they_are_there(is_counted: bool) -> None:
    """How many there are cannot raise; what is summed may."""

    def node(state: dict[str, Any]) -> Any:
        kept = []
        for doc in state["docs"]:
            votes = [LLM.invoke(doc + each).content for each in "12"]
            if is_counted:
                count = sum(1 for vote in votes if vote.startswith("a"))
            else:
                count = sum(vote for vote in votes if vote.startswith("no such"))
            if count < 2:
                continue
            kept.append(doc)
        return [*kept, LLM.bind(stop="x").invoke("after").content]

    found = check(node, {"docs": ["a", "b", "c"]})
    assert found.certain[0][:6] == [True, True, *[is_counted] * 4]


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
    assert "stream" in stopped(hosted(streaming=True, callbacks=[StreamingStdOutCallbackHandler()]), "a")
    assert "limits" in stopped(LLM.with_config(max_concurrency=1), "a")


def test_no_loop_lets_a_model_in_that_is_set_otherwise() -> None:
    """Equal keys only for models that no service can tell apart."""
    same = as_set_now(hosted()).configured
    assert as_set_now(hosted()).configured == same
    others = [
        hosted(temperature=0.5), hosted(model="n"), hosted(api_key="other"), hosted(base_url="http://other/v1"),
        hosted(max_retries=7), hosted(timeout=3), hosted(default_headers={"a": "b"}), hosted(organization="o"),
        ChatOpenAI(model="m", api_key="key", base_url="http://service/v1"),
    ]  # fmt: skip
    keys = [as_set_now(model).configured for model in others]
    assert same not in keys
    assert len({str(index) for index, key in enumerate(keys) if key in keys[:index]}) == 0


def test_a_client_that_was_changed_is_another() -> None:
    same = as_set_now(hosted()).configured
    for change in (_replace_method, _replace_wrapped_method, _replace_key, _replace_client):
        model = hosted()
        model.invoke("a")
        assert as_set_now(model).configured == same
        change(model)
        assert as_set_now(model).configured != same, change


def _replace_method(model: Any) -> None:
    model.client.create = lambda **kwargs: None


def _replace_wrapped_method(model: Any) -> None:
    model.client.with_raw_response.create = lambda **kwargs: None


def _replace_key(model: Any) -> None:
    model.root_client.api_key = "other"


def _replace_client(model: Any) -> None:
    model.root_client.chat.completions = object()


def test_a_model_of_the_users_own_class_is_known_by_itself() -> None:
    class Mine(ChatOpenAI):
        pass

    one = [as_set_now(Mine(model="m", api_key="key", http_client=CLIENT)).key(0) for _ in range(2)]
    assert one[0] != one[1]


# --- what is asked by others -----------------------------------------------------------------------------------------


class Reordering(BaseRetriever):
    """Of the user's own class: searches a store and asks a model."""

    store: Any
    llm: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        better = self.llm.invoke("Better: " + query).content
        return self.store.similarity_search(better, k=1) + self.store.similarity_search(query, k=1)


def test_a_retriever_of_the_users_own_is_read() -> None:
    retriever = Reordering(store=E.store("reading3"), llm=E.chat)
    found = read(retriever | format_docs, "a")
    assert not found.stopped, found.stopped
    assert found.shown == [2, 1]
    assert found.value == (retriever | format_docs).invoke("a")


def test_queries_of_a_multi_query_retriever() -> None:
    queries = PromptTemplate.from_template("Rewrite in lines: {question}") | E.completion | LineListOutputParser()
    retriever = MultiQueryRetriever(retriever=E.store("reading4").as_retriever(), llm_chain=queries, verbose=False)
    found = read(retriever, "a")
    assert not found.stopped, found.stopped
    assert found.value == retriever.invoke("a")
    assert found.shown[0] == 1


def test_a_tool_whose_function_is_read(model: Any) -> None:
    @tool
    def look_up(word: str, times: int = 1) -> str:
        """Looks up a word."""
        return model.invoke("Look up " + word * times).content

    def node(state: dict[str, Any]) -> Any:
        return look_up.invoke({"word": state["x"], "times": 2})

    assert check(node, {"x": "a"}).shown == [1]


def test_a_tool_whose_function_has_arguments_that_no_model_gives_is_read(model: Any) -> None:
    @tool
    def look_up(word: str, times: Annotated[int, InjectedToolArg] = 2, *, say: Annotated[str, InjectedToolArg]) -> str:
        """Looks up a word."""
        return model.invoke(say + word * times).content

    @tool
    def note(word: str, times: Annotated[int, InjectedToolArg] = 2) -> str:
        """Notes a word."""
        return model.invoke("Note " + word * times).content

    def node(state: dict[str, Any]) -> Any:
        return [note.invoke({"word": state["x"]}), note.invoke({"word": state["x"], "times": 3})]

    assert check(node, {"x": "a"}).shown == [2]
    assert "whose arguments" in read(lambda x: look_up.invoke({"word": x, "say": "Say "}), "a").stopped


def test_many_inputs_at_once(model: Any) -> None:
    def node(state: dict[str, Any]) -> Any:
        return [m.content for m in (ask("Say {x}") | model).batch([{"x": word} for word in state["words"]])]

    assert check(node, {"words": ["a", "b", "a"]}).shown == [3]


def test_ids_that_are_made_up_are_not_known(model: Any) -> None:
    def node(state: dict[str, Any]) -> Any:
        first = model.invoke(state["x"])
        return model.invoke(f"About {first.id}: {state['x']}").content

    found = read(node, {"x": "a"})
    assert found.shown == [1]


def test_tools_are_bound_in_the_body() -> None:
    @tool
    def look_up(word: str) -> str:
        """Looks up a word."""
        return word

    def node(state: dict[str, Any]) -> Any:
        reply = LLM.bind_tools([look_up]).invoke(state["x"])
        return [call["args"] for call in reply.tool_calls]

    assert check(node, {"x": "a"}).shown == [1]


def test_helpers_of_langchain_take_replies(model: Any) -> None:
    def node(state: dict[str, Any]) -> Any:
        history = add_messages([HumanMessage("hi", id="1")], [model.invoke(state["x"])])
        history = add_messages(history, [history[-1], HumanMessage("more", id="2")])
        last = trim_messages(history, max_tokens=2, token_counter=len)
        return [len(history), len(last), model.invoke(get_buffer_string(history)).content]

    assert check(node, {"x": "a"}).shown == [1, 1]


def test_a_tool_that_is_said_to_read_is_asked() -> None:
    asked = []

    @tool
    @reads("web")
    def search(word: str) -> list[str]:
        """Searches."""
        asked.append(word)
        return [word, word]

    def node(state: dict[str, Any]) -> Any:
        return E.chat.invoke(" ".join(search.invoke({"word": state["x"]}))).content

    found = read(node, {"x": "a"})
    assert not found.stopped, found.stopped
    assert (found.shown, asked) == ([1, 1], ["a"])
    assert found.value == node({"x": "a"})


@pytest.mark.parametrize("is_hinted", [False, True])
def test_a_tool_that_may_refuse_is_a_branch(is_hinted: bool) -> None:
    """A search of LangChain's own documents may only fail as its engines do; rounds of one tool are a batch."""

    def check(word: str) -> str:
        """Might refuse."""
        return word

    checked = tool(check if is_hinted else reads("policy")(check))
    checked.metadata = {"readOnlyHint": True} if is_hinted else None
    kb = create_retriever_tool(E.store("refusals").as_retriever(), "kb", "Finds.")

    def guarded(state: dict[str, Any]) -> Any:
        checked.invoke({"word": state["x"]})
        return hosted().invoke(state["x"]).content

    def found(state: dict[str, Any]) -> Any:
        return [kb.invoke({"query": state["x"]}), hosted().invoke(state["x"]).content]

    def all_checked(state: dict[str, Any]) -> Any:
        return [checked.invoke({"word": word}) for word in state["x"]]

    assert read(guarded, {"x": "a"}).certain[0] == [True, False]
    assert read(found, {"x": "a"}).certain[0] == [True, True]
    assert read(all_checked, {"x": ["a", "b"]}).certain[0] == [True, True]


class Text(str):
    """A text that acts when it is formatted."""

    def __format__(self, spec: str) -> str:
        raise AssertionError("it ran")


def test_texts_of_the_users_own_class_are_not_formatted() -> None:
    template = ChatPromptTemplate.from_template("{x} {y}").partial(y=Text("a"))
    assert "prompt" in stopped(template | LLM, {"x": "a"})
    assert stopped(ask("{x}") | LLM, {"x": Text("a")})


def test_a_request_is_put_together_once_for_equal_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply begins an evaluation of the whole program, which meets the same texts again."""
    made: list[Any] = []
    original = models.foreign_call

    def foreign_call(*args: Any) -> Any:
        made.append(args)
        return original(*args)

    model = hosted()
    question = ChatPromptTemplate.from_template("Is {x} prime?")
    chain, other = question | model | StrOutputParser(), question | model.bind(stop=["a"]) | StrOutputParser()

    def program(texts: list[str]) -> str:
        said = [chain.invoke({"x": text}) for text in texts]
        said.append(other.invoke({"x": texts[0]}))
        said.append(str(model.invoke(texts[0]).content))
        return str(chain.invoke({"x": " ".join(said)}))

    monkeypatch.setattr(models, "foreign_call", foreign_call)
    found = check(program, ["1", "2", "1"])
    assert found.shown == [5, 1]
    assert len(made) == 5  # one for both times of "1"


def test_what_rounds_of_a_loop_ask_holds_up_no_reading() -> None:
    llm = hosted()

    def program(text: str) -> Any:
        said = "nothing"
        for word in llm.invoke(text).content.split():  # type: ignore[union-attr]
            said = str(llm.invoke(f"{word} {said}").content)
        return said, llm.invoke("behind").content

    assert read(program, "a").certain[0] == [True, True]
