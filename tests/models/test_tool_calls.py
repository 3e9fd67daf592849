"""Calls of tools in the text of a model: the same however the text is cut, and as LangChain's messages."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from pydantic import BaseModel

from teola_plugin.chat import render_plainly
from teola_plugin.errors import EngineError
from teola_plugin.items.tool_calls import BEGIN, END, ToolCall, ToolCallParser, parse_tool_calls, write_tool_calls
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.runtime.engines.vllm import VllmEngine
from tests.support.fakes import FakeEngine, says

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda j: st.lists(j) | st.dictionaries(st.text(), j)
)
CALL = st.builds(
    lambda name, arguments: write_tool_calls([{"name": name, "arguments": arguments}]),
    st.text(min_size=1),
    st.dictionaries(st.text(), JSON, max_size=3),
)
PARTS = st.sampled_from([
    BEGIN, END, "<tool_", "<", "</tool_call", "}", "{", "[]", "no call", " ", "\n",
    '{"name": "a"', ', "arguments": {}}', '{"name": "a", "arguments": {"b": "</tool_call>"}}',
    '{"name": 1, "arguments": {}}', '{"arguments": {}}',
])  # fmt: skip
TEXT = st.lists(PARTS | CALL | st.text(max_size=5), max_size=8).map("".join)


def fed(pieces: list[str]) -> tuple[str, list[Any]]:
    parser = ToolCallParser()
    said = [part for piece in pieces for part in parser.feed(piece)] + parser.close()
    calls = [(c.name, c.arguments) for c in said if isinstance(c, ToolCall)]
    return "".join(part for part in said if isinstance(part, str)), calls


@given(TEXT, st.lists(st.integers(1, 7), min_size=1))
def test_the_same_however_the_text_is_cut(text: str, sizes: list[int]) -> None:
    pieces, at = [], 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    content, calls = parse_tool_calls(text)
    assert fed(pieces) == (content, [(c.name, c.arguments) for c in calls])


@given(st.lists(st.tuples(st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3)), max_size=4))
def test_what_is_written_is_read(calls: list[tuple[str, Any]]) -> None:
    text = write_tool_calls([{"name": name, "arguments": arguments} for name, arguments in calls])
    if END in json.dumps(calls, ensure_ascii=False):
        return  # the mark inside a string ends the call, as in every parser of this form
    assert [(c.name, c.arguments) for c in parse_tool_calls(f"So: {text}")[1]] == calls


def test_a_call_is_told_with_its_last_bracket() -> None:
    parser = ToolCallParser()
    assert parser.feed('<tool_call>{"name": "a", "arguments": {"b": {}}') == []
    (call,) = parser.feed("}")
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == ("a", {"b": {}})
    assert parser.feed("</tool_call> \n") == []
    assert parser.feed("and") == ["and"]


def test_the_last_call_may_lack_its_mark_and_has_to_have_arguments() -> None:
    written = '{"name": "a", "arguments": {"b": 1}'
    for text in (f"{BEGIN}{written}", f"{BEGIN}{written}}}", f"{BEGIN}{{"):
        assert len(parse_tool_calls(text)[1]) == 1, text
    (call,) = parse_tool_calls(f'{BEGIN}{{"name": "a"}}{END}')[1]
    assert (call.name, call.arguments, call.text) == ("a", None, '{"name": "a"}')


def test_calls_are_written_as_a_model_reads_them() -> None:
    assert "Bücher" in write_tool_calls([{"name": "search", "arguments": {"query": "Bücher"}}])


# --- the chat model --------------------------------------------------------------------------------------------------


@tool
def search(query: str) -> str:
    """Look it up."""
    return query


def call_of(**arguments: Any) -> str:
    return write_tool_calls([{"name": "search", "arguments": arguments}])


ANSWER = f"Let me see. {call_of(query='bees')}\n{call_of(query='wasps')} {BEGIN}oh{END}"


def model_that_says(text: str) -> tuple[EngineChatModel, FakeEngine]:
    engine = FakeEngine(lambda prompt: says(text), concurrent=True)
    return EngineChatModel(engine=engine), engine


def check(message: AIMessage) -> None:
    assert message.content == "Let me see. "
    assert [(c["name"], c["args"]) for c in message.tool_calls] == [
        ("search", {"query": "bees"}),
        ("search", {"query": "wasps"}),
    ]
    assert [c["args"] for c in message.invalid_tool_calls] == ["oh"]
    assert len({c["id"] for c in message.tool_calls}) == 2


def test_a_reply_has_the_calls() -> None:
    model, _ = model_that_says(ANSWER)
    bound = model.bind_tools([search])
    check(bound.invoke("?"))
    check(asyncio.run(bound.ainvoke("?")))
    chunks = list(bound.stream("?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        assert isinstance(chunk, AIMessageChunk)
        whole += chunk
    check(whole)


def test_without_tools_it_is_all_text() -> None:
    model, _ = model_that_says(ANSWER)
    assert model.invoke("?").content == ANSWER
    assert model.bind_tools([]).invoke("?").tool_calls == []


def test_the_prompt_has_the_tools_the_calls_and_the_answers() -> None:
    model, engine = model_that_says("fine")
    history = [
        HumanMessage("Who?"),
        AIMessage("Hm. ", tool_calls=[{"name": "search", "args": {"query": "bees"}, "id": "1"}]),
        ToolMessage("They hum.", tool_call_id="1"),
    ]
    model.bind_tools([search]).invoke(history)
    (prompt,) = engine.seen
    assert '"description": "Look it up."' in prompt
    assert prompt.endswith(f"User: Who?\nAssistant: Hm. {call_of(query='bees')}\nTool: They hum.\nAssistant:")
    assert render_plainly([{"role": "user", "content": "Who?"}]) == "User: Who?\nAssistant:"


def test_tool_choice() -> None:
    model, engine = model_that_says("fine")
    _, settings = model.request_for("?", tools=[TOOL], tool_choice="search")
    form = json.loads(settings["structured_outputs"]["structural_tag"])["format"]
    assert form["stop_after_first"]
    assert [tag["begin"] for tag in form["tags"]] == ['<tool_call>{"name": "search", "arguments": ']
    assert not model.request_for("?", tools=[TOOL], tool_choice="auto")[1].get("structured_outputs")
    model.bind_tools([search], tool_choice="none").invoke("?")
    assert "search" not in engine.seen[0]
    with pytest.raises(EngineError, match="'sing'"):
        model.bind_tools([search], tool_choice="sing").invoke("?")


TOOL = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
}


class Verdict(BaseModel):
    """What is to be thought of it."""

    is_good: bool
    grade: Literal[1, 2, 3]


@pytest.mark.real
def test_vllm_calls_a_tool_if_it_must(vllm_engine: VllmEngine) -> None:
    """Structured output too, as LangChain makes it of a call that must be made."""
    decoded = ((token, vllm_engine.tokenizer.decode([token])) for token in range(vllm_engine.tokenizer.vocab_size))
    no_blanks = {token: -100 for token, text in decoded if not text.strip()}  # the tiny model would write nothing else
    model = EngineChatModel(engine=vllm_engine, max_tokens=96, settings={"logit_bias": no_blanks})
    reply = model.bind_tools([Verdict], tool_choice="any").invoke("Is honey sweet?")
    assert [set(c["args"]) for c in reply.tool_calls] == [{"is_good", "grade"}], reply
    assert isinstance(model.with_structured_output(Verdict).invoke("Is honey sweet?"), Verdict)
    prompt = model.request_for([HumanMessage("a"), reply, ToolMessage("b", tool_call_id="1")], tools=[TOOL])[0]
    assert '"search"' in prompt
    assert '"is_good"' in prompt
