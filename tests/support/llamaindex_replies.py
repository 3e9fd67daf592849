"""What the fake model of `llamaindex_parts` says.

`reply` extends the digest of `llamaindex_world.answer` with what selectors, question generators, evaluators, FLARE and
structured outputs can read: well formed, and still a digest of the prompt. `spoiled` and `failing` are worse models.
`ToolCaller` is a model of its own, on no engine, that calls tools.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llama_index.core.base.llms.types import ChatMessage, ChatResponse, CompletionResponse, LLMMetadata
from llama_index.core.llms import CustomLLM
from llama_index.core.llms.function_calling import FunctionCallingLLM
from llama_index.core.llms.llm import ToolSelection
from pydantic import BaseModel

from teola_plugin.engines import Completion
from tests.support.fakes import says
from tests.support.llamaindex_world import answer, digest

TOPICS = ("bees", "hives", "honey")


class Keeper(BaseModel):
    """A structured answer."""

    name: str
    hive: int


def reply(prompt: str) -> Completion:
    """A digest of the prompt in the form that the component wants."""
    mark = digest(prompt)
    number = int(mark[:6], 16)
    for sign, form in FORMATS.items():
        if sign in prompt:
            return says(form(prompt, mark, number))
    return answer(prompt)


def _one_choice(prompt: str, mark: str, number: int) -> str:
    return json.dumps([{"choice": 1 + number % _choices(prompt), "reason": mark[:8]}])


def _two_choices(prompt: str, mark: str, number: int) -> str:
    choices = _choices(prompt)
    picked = [1 + number % choices, 1 + (number + 1) % choices]
    return json.dumps([{"choice": choice, "reason": mark[i : i + 8]} for i, choice in enumerate(picked)])


def _choices(prompt: str) -> int:
    return int(re.search(r"\(1 to (\d+)\)", prompt)[1])  # type: ignore[index]


def _sub_questions(prompt: str, mark: str, number: int) -> str:
    tools = json.loads(prompt.split("```json")[-1].split("```")[0])
    names = [list(tools)[(number + i) % len(tools)] for i in range(3)]
    items = [{"sub_question": f"What of {mark[i : i + 6]}?", "tool_name": name} for i, name in enumerate(names)]
    return "```json\n" + json.dumps({"items": items}, indent=1) + "\n```"


def _verdict(prompt: str, mark: str, number: int) -> str:
    return json.dumps({"passing": "previous bad answer" in prompt, "feedback": f"Say {mark[:6]}."})


def _next_question(prompt: str, mark: str, number: int) -> str:
    reasoning = prompt.rsplit("Previous reasoning:", 1)[1]
    return "None" if reasoning.count("\n- ") >= 4 else f"What of {mark[:6]}?"


def _lookahead(prompt: str, mark: str, number: int) -> str:
    existing = prompt.rsplit("Existing Answer:", 1)[1].split("Answer:")[0]
    if len(existing.split()) > 6:
        return f"{mark[:6]} done"
    return f"They are {mark[:6]} [Search(What of {mark[6:12]}?)] and [Search(Why {mark[12:18]}?)]."


def _keeper(prompt: str, mark: str, number: int) -> str:
    return json.dumps({"name": mark[:8], "hive": number % 100})


def _keywords(prompt: str, mark: str, number: int) -> str:
    return f"KEYWORDS: {TOPICS[number % 3]}, bees, {mark[:6]}"


FORMATS: dict[str, Callable[[str, str, int], str]] = {
    "return the choice that is most relevant": _one_choice,
    "return the top choices": _two_choices,
    "<User Question>": _sub_questions,
    "constructive criticism": _verdict,
    "Previous reasoning:": _next_question,
    "[Search(query)]\" where": _lookahead,
    "JSON schema": _keeper,
    "KEYWORDS:": _keywords,
}  # fmt: skip


SPOILED = (
    "", "no JSON at all", "[]", "{}", '[{"choice": 99, "reason": "there is none"}]', '[{"choice": 1, "rea',
    '{"items": [{"sub_question": "What?", "tool_name": "nobody"}, {"sub_question": "Who?", "tool_name": "bees"}]}',
    '{"items": []}', "[Search(", "bees\n\nbees\nbees",
)  # fmt: skip
"""What a poor model says where a form was asked for."""


def spoiled(text: str) -> Callable[[str], Completion]:
    """A model that says `text` where a form was asked for."""
    return lambda prompt: says(text) if _wants_form(prompt) else answer(prompt)


def failing(which: str, error: Exception) -> Callable[[str], Completion]:
    """A model that raises a new error of this kind: where a form was asked for, where none was, or half of the time."""

    def fail(prompt: str) -> Completion:
        is_odd = int(digest(prompt)[:6], 16) % 2 == 1
        if {"forms": _wants_form(prompt), "answers": not _wants_form(prompt), "half": is_odd}[which]:
            raise type(error)(*error.args)  # LlamaIndex writes on it
        return reply(prompt)

    return fail


def _wants_form(prompt: str) -> bool:
    return any(sign in prompt for sign in (*FORMATS, "search queries", "Relevance: 7"))


class ToolCaller(FunctionCallingLLM, CustomLLM):
    """Calls two tools and then answers from what they said; newer releases have a mock of this kind.

    One after the other, as results come in the order in which tools happen to end.
    """

    @property
    def metadata(self) -> LLMMetadata:
        return LLMMetadata(is_function_calling_model=True, is_chat_model=True)

    def complete(self, prompt: str, formatted: bool = False, **settings: Any) -> CompletionResponse:
        return CompletionResponse(text=prompt)

    def stream_complete(self, prompt: str, formatted: bool = False, **settings: Any) -> Iterator[CompletionResponse]:
        yield CompletionResponse(text=prompt, delta=prompt)

    def chat(self, messages: Sequence[ChatMessage], **settings: Any) -> ChatResponse:
        results = [str(message.content) for message in messages if message.role == "tool"]
        called = {"called": TOPICS[len(results)]} if len(results) < 2 else {}
        text = "" if called else digest("".join(results))
        return ChatResponse(message=ChatMessage(role="assistant", content=text, additional_kwargs=called), delta=text)

    def stream_chat(self, messages: Sequence[ChatMessage], **settings: Any) -> Iterator[ChatResponse]:
        yield self.chat(messages)

    def _prepare_chat_with_tools(self, tools: Any, chat_history: Any = None, **settings: Any) -> dict[str, Any]:
        return {"messages": chat_history}

    def get_tool_calls_from_response(self, response: ChatResponse, **settings: Any) -> list[ToolSelection]:
        topic = response.message.additional_kwargs.get("called")
        if topic is None:
            return []
        return [ToolSelection(tool_id=f"call-{topic}", tool_name=topic, tool_kwargs={"input": f"What of {topic}?"})]
