"""Functions that ask the models they hold: they run ahead with their questions, and nobody hears of it."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from itertools import product
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler, get_usage_metadata_callback
from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough

from teola_plugin import explain, optimize, optimized, pure
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.runtime.engines.simulated import ProfileLLM
from tests.adapters.langchain.test_langchain_foreign import Hosted
from tests.support.langchain_world import Engines, Recorder, ask
from tests.support.tiny_profiles import TINY_CPU_LLM

llm = EngineChatModel(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=8)
store = Engines().store("asked")
retriever = store.as_retriever(search_kwargs={"k": 2})
summarize = ask("Summarize {text}") | llm | StrOutputParser()
hosted = Hosted()
said: list[str] = []


class Tool:
    def __init__(self, model: Any) -> None:
        self.model = model

    def run(self, x: dict[str, str]) -> str:
        return str(self.model.invoke(f"tool {x['q']}").content)


def to_text(x: dict[str, str]) -> str:
    return str(llm.invoke("a " + x["q"]).content)


def with_messages(x: dict[str, str]) -> str:
    reply = llm.invoke([SystemMessage("be brief"), HumanMessage(content=f"why {x['q']}")])
    return str(reply.content)


def with_documents(x: dict[str, str]) -> str:
    docs = retriever.invoke(x["q"])
    return summarize.invoke({"text": " ".join(d.page_content for d in docs)})


def by_helper(x: dict[str, str]) -> str:
    return to_text({"q": x["q"]}).upper()


def hosted_one(x: dict[str, str]) -> str:
    return str(hosted.invoke("ask " + x["q"]).content)


async def in_coroutine(x: dict[str, str]) -> str:
    first, second = await asyncio.gather(llm.ainvoke("one " + x["q"]), summarize.ainvoke({"text": x["q"]}))
    third = await llm.ainvoke(str(first.content) + second)
    return str(third.content)


async def in_many(x: dict[str, str]) -> str:
    replies = await asyncio.gather(*[llm.ainvoke(f"{i} {x['q']}") for i in range(3)])
    return " ".join(str(r.content) for r in replies)


def shouting(x: dict[str, str]) -> str:
    said.append(x["q"])
    return str(llm.invoke(x["q"]).content)


def blocking() -> Any:
    async def block(x: dict[str, str]) -> str:
        return str(llm.invoke("blocks " + x["q"]).content)

    return block


def sleeping() -> Any:
    async def sleep(x: dict[str, str]) -> str:
        await asyncio.sleep(0)
        return str((await llm.ainvoke(x["q"])).content)

    return sleep


SYNC = [to_text, with_messages, with_documents, by_helper, hosted_one, Tool(llm).run]
ASYNC = [in_coroutine, in_many]


def chain(function: Any) -> Runnable[Any, Any]:
    """Two steps in turn that need not wait for each other, and one about both."""
    slow = RunnablePassthrough.assign(slow=ask("Slow {q}") | llm | StrOutputParser())
    return slow | RunnablePassthrough.assign(found=RunnableLambda(function)) | ask("{slow} {found}") | llm


def call(pipeline: Any, recorder: Recorder, *, is_async: bool) -> Any:
    config: Any = {"callbacks": [recorder]}
    value = {"q": "the sky"}
    return (asyncio.run(pipeline.ainvoke(value, config)) if is_async else pipeline.invoke(value, config)).content


@pytest.mark.parametrize(("function", "is_async"), [*product(SYNC, [False, True]), *product(ASYNC, [True])])
def test_a_function_that_asks_runs_ahead_unheard(function: Any, is_async: bool) -> None:
    plain, heard, ahead = chain(function), Recorder(), Recorder()
    fast = optimize(plain)
    assert not optimized(fast).traced.breaks
    before = len(hosted._calls)
    expected = call(plain, heard, is_async=is_async)
    asked = len(hosted._calls) - before
    assert call(fast, ahead, is_async=is_async) == expected
    assert ahead.tree() == heard.tree()
    assert len(hosted._calls) - before == 2 * asked
    report = optimized(fast).reports[-1]
    assert (report.misses, report.wasted, report.fallbacks) == (0, 0, ())
    assert report.hits + report.shared >= 3


@pytest.mark.parametrize("function", [shouting, blocking(), sleeping()])
def test_a_function_that_does_more_is_read_or_told(function: Any) -> None:
    fast, before = optimize(chain(function)), len(hosted._calls)
    is_async = inspect.iscoroutinefunction(function)
    expected = call(chain(function), Recorder(), is_async=is_async)
    asked = len(hosted._calls) - before
    assert call(fast, Recorder(), is_async=is_async) == expected
    assert len(hosted._calls) - before == 2 * asked


def test_a_function_that_only_holds_what_it_asks_is_a_pipeline_too() -> None:
    lone = RunnableLambda(lambda x: llm.invoke(x["a"]).content) | RunnableLambda(lambda x: llm.invoke(x).content)
    assert "call(mode, a, fn='function') @ reader, reads(outside)" in explain(optimize(lone))


def test_a_hosted_model_that_fails_ahead_in_a_function_is_asked_again() -> None:
    def fails(x: dict[str, str]) -> str:
        return str(hosted.invoke("fail " + x["q"]).content)

    rescued = chain(fails).with_fallbacks([RunnableLambda(lambda x: HumanMessage("rescued"))])
    fast = optimize(rescued)
    assert call(fast, Recorder(), is_async=False) == call(rescued, Recorder(), is_async=False) == "rescued"


def test_a_message_that_was_read_ahead_has_the_framework_s_own_id() -> None:
    """The run-ahead does not know it, and marks its own copy. The framework waits until it has gone on from that."""

    class Noting(Hosted):
        def _said(self, how: str, messages: list[BaseMessage], kwargs: dict[str, Any]) -> str:
            if str(messages[0].content).startswith("second"):
                has_gone_on.set()
            return super()._said(how, messages, kwargs)

    class Late(BaseCallbackHandler):
        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            has_gone_on.wait(20)

    def twice(x: dict[str, str]) -> list[Any]:
        first = model.invoke("first " + x["q"])
        return [first, model.invoke(f"second {first.content}")]

    has_gone_on, model = threading.Event(), pure(Noting)()
    slow = RunnablePassthrough.assign(slow=ask("Slow {q}") | llm)
    fast = optimize(slow | RunnableLambda(twice))
    said = fast.invoke({"q": "x"}, {"callbacks": [Late()]})
    assert all("run-" in message.id for message in said)
    assert (optimized(fast).reports[-1].misses, optimized(fast).reports[-1].wasted) == (0, 0)


def test_a_function_that_holds_another_model_by_now_asks_that() -> None:
    tool = Tool(llm)
    fast = optimize(chain(tool.run))
    tool.model = Hosted()
    expected = call(chain(tool.run), Recorder(), is_async=False)
    assert call(fast, Recorder(), is_async=False) == expected
    assert len(tool.model._calls) == 2
    assert optimized(fast).reports[-1].wasted == 0


def test_what_it_asks_is_not_streamed_ahead_where_events_are_watched() -> None:
    async def events(pipeline: Any) -> list[str]:
        return [e["event"] async for e in pipeline.astream_events({"q": "x"}, version="v2")]

    plain = chain(hosted_one)
    fast = optimize(plain)
    before = len(hosted._calls)
    expected = asyncio.run(events(plain))
    streamed = len(hosted._calls) - before
    assert sorted(asyncio.run(events(fast))) == sorted(expected)
    assert len(hosted._calls) - before == 2 * streamed


def test_what_a_library_hooks_into_every_run_counts_each_reply_once() -> None:
    """As `get_usage_metadata_callback` does: a handler that nobody hands over, found in the context."""
    chain = RunnableParallel(a=RunnableLambda(to_text), b=RunnableLambda(with_messages), c=RunnableLambda(by_helper))
    used = []
    for pipeline in (chain, optimize(chain)):
        with get_usage_metadata_callback() as usage:
            pipeline.invoke({"q": "bees"})
        used.append(usage.usage_metadata)
    assert used[0] == used[1]
    assert used[0]


@pytest.mark.parametrize("function", [to_text, hosted_one, with_documents])
def test_what_is_printed_for_debugging_tells_each_run_once(
    function: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler that LangChain adds to every run of the process, also where it makes a message of a reply ahead."""
    monkeypatch.setattr("langchain_core.globals._debug", True)
    printed = []
    for pipeline in (chain(function), optimize(chain(function))):
        pipeline.invoke({"q": "bees"})
        lines = capsys.readouterr().out.splitlines()
        printed.append(sorted(re.sub(r" \[[0-9.]+m?s\]", "", line) for line in lines if line.startswith("\x1b")))
    assert printed[1] == printed[0] != []
