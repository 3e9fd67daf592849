"""Nodes with several requests, branches, loops, helpers, and asynchronous ones."""
# ruff: noqa: SIM108
# ruff: noqa: I001

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial, wraps
from operator import itemgetter
from typing import Any

from langchain_community.callbacks import get_openai_callback
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from tests.adapters.reader.forms_world import LLM, RETRIEVER, STORE, Form, State
from tests.adapters.reader.forms_common import CHAIN, FORMS, GRADER, PROMPT, TEXT_PROMPT, Grade, form, log
from tests.adapters.reader.forms_making import chain_in_the_body

# --- contexts ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def spanned(name: str) -> Iterator[str]:
    log.info("%s begins", name)
    started = time.perf_counter()
    try:
        yield f"[{name}]"
    finally:
        log.info("%s ends after %.2f s", name, time.perf_counter() - started)


@contextlib.asynccontextmanager
async def spanned_async(name: str) -> AsyncIterator[str]:
    with spanned(name) as shown:
        yield shown


class Timer:
    def __init__(self) -> None:
        self.started = self.seconds = 0.0

    def __enter__(self) -> "Timer":
        self.started = time.time()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self.seconds = time.time() - self.started


@form(4)
def in_contexts(state: State) -> Any:
    with spanned("form") as name, Timer() as timer:
        first = LLM.invoke(name + state["question"]).content
        with contextlib.suppress(KeyError):
            return {"out": first + LLM.invoke("again " + state["question"]).content}
    log.info("%.1f", timer.seconds)
    return {"out": ""}


@form(4)
async def in_a_context_of_coroutines(state: State) -> Any:
    async with spanned_async("form") as name:
        first = await LLM.ainvoke(name + state["question"])
        return {"out": first.content + (await LLM.ainvoke("again " + state["question"])).content}


@form(4)
def counting_tokens(state: State) -> Any:
    with get_openai_callback() as counted, get_usage_metadata_callback() as usage:
        first = LLM.invoke(state["question"]).content
        log.info("%d tokens, $%.4f, %s", counted.total_tokens, counted.total_cost, usage.usage_metadata)
        second = LLM.invoke("again " + state["question"]).content
    print(f"cost: ${counted.total_cost:.4f}")
    return {"out": f"{first} {second}"}


# --- several requests -------------------------------------------------------------------------------------------------


@form(4)
def judged_documents(state: State) -> Any:
    kept = []
    for each in state["documents"]:
        score = GRADER.invoke(f"JSON {each} {state['question']}")
        if score.score == "yes":
            print("---GRADE: RELEVANT---")
            kept.append(each)
        else:
            print("---GRADE: NOT RELEVANT---")
            continue
    return {"documents": kept, "out": state["question"]}


@form(4)
def judged_by_a_chain_for_each(state: State) -> Any:
    kept = []
    for each in state["documents"]:
        asked = ChatPromptTemplate.from_messages([SystemMessage("Judge."), HumanMessage(f"JSON {each}")])
        judge = asked | LLM.with_structured_output(Grade)
        if judge.invoke({}).score == "yes":
            kept.append(each)
    return {"documents": kept, "out": state["question"]}


@form(3)
def judged_by_two_models(state: State) -> Any:
    found = []
    for model in (LLM, ChatOpenAI(model="other")):
        judge = PROMPT | model.with_structured_output(Grade)
        found.append(judge.invoke({"question": "JSON " + state["question"]}).score)
    return {"out": found}


@form(5)
def asks_in_a_comprehension(state: State) -> Any:
    return {"out": [LLM.invoke(f"sum up {each}").content for each in state["documents"]]}


@form(5)
def found_documents_in_a_loop(state: State) -> Any:
    found: list[Any] = []
    for each in state["documents"]:
        found.extend(RETRIEVER.invoke(each))
    return {"out": str(len(found))}


@form(5)
def found_documents_added_in_a_loop(state: State) -> Any:
    found: list[Any] = []
    for each in state["documents"]:
        found += RETRIEVER.invoke(each)
    return {"out": str(len(found))}


@form(4)
def found_documents_in_a_nested_comprehension(state: State) -> Any:
    found = [one.page_content for each in state["documents"] for one in RETRIEVER.invoke(each) if one.page_content]
    return {"out": " ".join(found)}


@form(4)
def lines_of_replies_in_a_loop(state: State) -> Any:
    lines: list[str] = []
    for each in state["documents"]:
        lines.extend(LLM.invoke(f"sum up {each}").text.split("\n"))
    return {"out": "; ".join(lines)}


@form(5)
def asks_about_each_found_in_a_nested_comprehension(state: State) -> Any:
    every = [LLM.invoke(one.page_content).content for each in state["documents"] for one in RETRIEVER.invoke(each)]
    return {"out": str(every)}


@form(5)
def batch(state: State) -> Any:
    prompts = [{"question": each} for each in state["documents"]]
    return {"out": CHAIN.batch(prompts)}


@form(5)
def batch_of_messages(state: State) -> Any:
    replies = LLM.batch([[HumanMessage(each)] for each in state["documents"]])
    return {"out": "\n".join(reply.content for reply in replies)}


@form(4)
def parallel_in_a_node(state: State) -> Any:
    both = RunnableParallel(one=TEXT_PROMPT | LLM, two=PROMPT | LLM | StrOutputParser())
    found = both.invoke({"question": state["question"]})
    return {"out": found["one"].content + found["two"]}


@form(3)
def chain_with_lambdas(state: State) -> Any:
    chain = (
        {"question": itemgetter("question"), "again": lambda x: x["question"].upper()}
        | RunnablePassthrough.assign(size=lambda x: len(x["again"]))
        | RunnableLambda(lambda x: f"{x['question']} {x['again']} {x['size']}")
        | LLM
        | StrOutputParser()
    )
    return {"out": chain.invoke({"question": state["question"]})}


@form(3)
def dependent_asks(state: State) -> Any:
    draft = LLM.invoke("draft " + state["question"]).content
    return {"out": LLM.invoke("improve " + draft).content}


@form(3)
def retrieved(state: State) -> Any:
    documents = RETRIEVER.invoke(state["question"])
    context = "\n".join(doc.page_content for doc in documents)
    return {"documents": documents, "out": LLM.invoke(f"{context}: {state['question']}").content}


@form(3)
def searched(state: State) -> Any:
    documents = STORE.similarity_search(state["question"], k=2)
    return {"documents": [doc.page_content for doc in documents]}


@form(3)
def made_documents(state: State) -> Any:
    text = LLM.invoke("one " + state["question"]).content
    return {"documents": [*state["documents"], Document(page_content=text, metadata={"source": "model"})]}


# --- control flow -----------------------------------------------------------------------------------------------------


@form(3)
def guarded_ask(state: State) -> Any:
    try:
        reply = LLM.invoke("one " + state["question"]).content
    except Exception as e:
        log.exception("failed")
        reply = f"Error: {e}"
    return {"out": reply}


@form(3)
def guarded_structured(state: State) -> Any:
    try:
        found = GRADER.invoke("JSON " + state["question"])
        return {"out": found.score}
    except Exception as e:
        print(f"error {e}")
        return {"out": "no"}


def rating(text: str) -> int:
    try:
        return int(LLM.invoke("rate " + text).content)
    except ValueError:
        return 0


@form(4)
def ratings_of_a_helper_that_catches(state: State) -> Any:
    return {"out": [rating(d) for d in ("one", "two")]}


@form(4)
def ratings_are_written_down(state: State) -> Any:
    found = [{"text": d} for d in ("one", "two")]
    for each in found:
        try:
            each["score"] = int(LLM.invoke("rate " + each["text"]).content)
        except ValueError:
            each["score"] = 0
        log.info(f"{each['text']}: {each.get('score')}")
    return {"out": [each["text"] for each in found if each.get("score", 0) > 7]}


@form(3)
def verdicts_as_json(state: State) -> Any:
    verdicts = []
    for text in ("one", "two"):
        reply = LLM.invoke("JSON " + text)
        try:
            data = json.loads(reply.content)
            verdicts.append({"text": text, "is_good": data["score"] == "yes", "why": data.get("why", "")})
        except (json.JSONDecodeError, KeyError) as e:
            log.warning(f"no JSON: {e}")
            verdicts.append({"text": text, "is_good": False, "why": "unreadable"})
    return {"out": [each["text"] for each in verdicts if each["is_good"]]}


@form(3)
def finally_logs(state: State) -> Any:
    try:
        return {"out": LLM.invoke("one " + state["question"]).content}
    finally:
        log.info("done")


@form(3)
def raises_without_a_question(state: State) -> Any:
    if not state.get("question"):
        raise ValueError("no question")
    return {"out": LLM.invoke(state["question"]).content}


@form(3)
def either_or(state: State) -> Any:
    if state["steps"] > 1:
        prompt = "many " + state["question"]
    else:
        prompt = "few " + state["question"]
    reply = LLM.invoke(prompt).content
    answer = "long" if len(reply) > 100 else "short"
    return {"out": answer}


@form(3)
def matches(state: State) -> Any:
    match state["question"]:
        case "why" | "how":
            prompt = "explain"
        case _:
            prompt = "tell"
    return {"out": LLM.invoke(prompt).content}


@form(4)
def while_loop(state: State) -> Any:
    found, n = [], 0
    while n < state["steps"]:
        found.append(LLM.invoke(f"{n}: {state['question']}").content)
        n += 1
    return {"out": found}


@form(2)
def improves_until_good(state: State) -> Any:
    draft = state["question"]
    for n in range(2):
        grade = GRADER.invoke(f"JSON {n} {draft}")
        if grade.score == "yes":
            break
        draft = LLM.invoke("improve " + draft).content
    return {"out": draft}


# --- functions --------------------------------------------------------------------------------------------------------


def say(llm: Any, text: str, *, style: str = "kind") -> str:
    return llm.invoke([SystemMessage(content=f"Be {style}."), HumanMessage(content=text)]).content


def format_docs(docs: list[str]) -> str:
    return "\n\n".join(docs)


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        log.info("begin %s", function.__name__)
        made = function(*args, **kwargs)
        log.info("end")
        return made

    return inner


def retried(times: int = 2) -> Callable[..., Any]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            for attempt in range(times):
                try:
                    return function(*args, **kwargs)
                except Exception:
                    if attempt == times - 1:
                        raise
            return None

        return inner

    return decorate


@form(4)
def helpers(state: State) -> Any:
    one = say(LLM, format_docs(state["documents"]))
    two = say(LLM, state["question"], style="short")
    return {"out": one + two}


@form(4)
def nested_function(state: State) -> Any:
    def about(text: str) -> str:
        return LLM.invoke(f"{text} of {state['question']}").content

    return {"out": [about("origin"), about("purpose")]}


@form(4)
def partial_and_map(state: State) -> Any:
    kind = partial(say, LLM, style="rude")
    return {"out": list(map(kind, ["one", "two"]))}


@form(3)
@traced
def decorated(state: State) -> Any:
    return {"out": LLM.invoke("one " + state["question"]).content}


@form(3)
@retried(times=3)
def retrying(state: State) -> Any:
    return {"out": LLM.invoke("one " + state["question"]).content}


def made_node(name: str, llm: Any) -> Callable[[State], Any]:
    def node(state: State) -> Any:
        return {"out": llm.invoke(f"{name}: {state['question']}").content}

    return node


FORMS["closure"] = Form(made_node("kim", LLM), 3)
FORMS["partial_node"] = Form(partial(lambda state, llm: {"out": llm.invoke(state["question"]).content}, llm=LLM), 3)
FORMS["lambda"] = Form(lambda state: {"out": LLM.invoke(state["question"]).content}, 3)
FORMS["chain_as_node"] = Form((lambda state: {"question": state["question"]}) | CHAIN | (lambda text: {"out": text}), 3)


def pieces(texts: list[str]) -> Any:
    for at, text in enumerate(texts):
        yield f"{at}: {text}"


@form(5)
def generator(state: State) -> Any:
    return {"out": [LLM.invoke(piece).content for piece in pieces(state["documents"])]}


def counted(texts: list[str]) -> Any:
    length = 0
    for text in texts:
        length += len(text)
        yield f"{length}: {text}"


@form(1, "counted is a generator function")
def generator_that_counts(state: State) -> Any:
    return {"out": [LLM.invoke(piece).content for piece in counted(state["documents"])]}


# --- asynchronous -----------------------------------------------------------------------------------------------------


@form(4)
async def awaits(state: State) -> Any:
    one = await LLM.ainvoke("one " + state["question"])
    two = await CHAIN.ainvoke({"question": state["question"]})
    return {"out": one.content + two}


@form(5)
async def gathers(state: State) -> Any:
    replies = await asyncio.gather(*(LLM.ainvoke(f"sum up {each}") for each in state["documents"]))
    return {"out": [reply.content for reply in replies]}


@form(4)
async def tasks(state: State) -> Any:
    one = asyncio.create_task(LLM.ainvoke("one " + state["question"]))
    two = asyncio.create_task(LLM.ainvoke("two " + state["question"]))
    return {"out": [(await one).content, (await two).content]}


async def asay(text: str) -> str:
    reply = await LLM.ainvoke(text)
    return reply.content


@form(5)
async def gathers_helpers(state: State) -> Any:
    async def about(text: str) -> str:
        return await asay(f"{text} of {state['question']}")

    work = [about(each) for each in state["documents"]]
    return {"out": await asyncio.gather(*work)}


@form(5)
async def abatch(state: State) -> Any:
    replies = await LLM.abatch([[("user", each)] for each in state["documents"]])
    return {"out": [reply.content for reply in replies]}


@form(5)
def batch_that_returns_errors(state: State) -> Any:
    prompts = [{"question": each} for each in state["documents"]]
    found = CHAIN.batch([*prompts, {"other": "no question"}], return_exceptions=True)
    return {"out": [each if isinstance(each, str) else type(each).__name__ for each in found]}


def doubted(text: str) -> Any:
    return ValueError(text) if len(text) > 1 else text


@form(3)
def batch_in_which_a_step_returns_an_error(state: State) -> Any:
    chain = RunnableLambda(lambda text: LLM.invoke(text).content) | doubted | (lambda _: "done")
    found = chain.batch(["one", "two"], return_exceptions=True)
    return {"out": LLM.invoke(str([isinstance(each, Exception) for each in found])).content}


@tool
async def aresearch(query: str) -> str:
    """Asks the model."""
    reply = await LLM.ainvoke("research " + query)
    return reply.content


@form(5)
async def abatch_of_a_tool(state: State, config: RunnableConfig) -> Any:
    found = await aresearch.abatch(state["documents"], config, return_exceptions=True)
    return {"out": [each for each in found if not isinstance(each, Exception)]}


@tool
def research(query: str) -> str:
    """Asks the model."""
    return LLM.invoke("research " + query).content


@form(6)
def runs_a_tool(state: State) -> Any:
    return {"out": [research.run(each) for each in state["documents"]] + [research.run({"query": "more"})]}


@form(2)
def swaps_roles(state: State) -> Any:
    reply = LLM.invoke(state["question"])
    reply.name = "expert"
    turned = HumanMessage(**reply.model_dump(exclude={"type"}))
    return {"out": [LLM.invoke([turned, HumanMessage(each)]).content for each in state["documents"]]}


FORMS["sync_node_in_an_async_graph"] = Form(chain_in_the_body, 4, is_async=True)
