"""Answers of OpenAI-compatible servers that break the protocol: said as what they are, asked for once, never taken."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from teola_plugin.engines import Delta, Failed
from teola_plugin.errors import EngineError
from tests.runtime.engines.test_openai_engine import TEXT, Clock, decode, opened, outcomes
from tests.support.openai_service import ANSWER, Raw, Service, event, served

PROMPT = "Tell me the patient's diagnosis, please."
PIECE = {"text": "Bees "}
END = {"text": "", "finish_reason": "stop"}


@pytest.fixture
def hosted() -> Iterator[Service]:
    with served(Service("hosted", endpoints=("completions",))) as service:
        yield service


def sse(*events: object, done: bool = True, newline: str = "\n") -> bytes:
    """Events as a server sends them; a text stands for itself."""
    texts = [each if isinstance(each, str) else json.dumps(each) for each in events]
    parts = [f"data: {text}{newline}{newline}" for text in [*texts, *(["[DONE]"] if done else [])]]
    return "".join(parts).encode()


def piece(**choice: object) -> dict[str, object]:
    return event(**choice)


BROKEN = {
    "no JSON": (sse(piece(**PIECE), '{"choices": [oops'), "no JSON .*oops"),
    "no JSON, long": (sse("x" * 500), "no JSON .*'x{60}' and 440 more characters"),
    "the prompt": (sse(f"I got: {PROMPT}"), "no JSON .*47 characters, with some of the prompt"),
    "no choices": (sse({"id": "x"}), "an event without choices"),
    "choices of null": (sse({"choices": None}), "an event without choices"),
    "choices of another type": (sse({"choices": "Bees"}), "'choices' of type str"),
    "a choice of another type": (sse({"choices": ["Bees"]}), "a str in place of an object"),
    "a text of another type": (sse(piece(text=7)), "'text' of type int, not str"),
    "a text that is a list": (sse(piece(text=["Bees"])), "'text' of type list, not str"),
    "a delta of another type": (sse(piece(delta="Bees")), "a str in place of an object"),
    "a content of another type": (sse(piece(delta={"content": {"a": 1}})), "in place of an object with 'content'"),
    "calls of another type": (sse(piece(delta={"tool_calls": "f"})), "in place of an object with 'content'"),
    "a reason of another type": (sse(piece(**PIECE, finish_reason=7)), "'finish_reason' of type int"),
    "a count of another type": (sse({"choices": [], "usage": {"prompt_tokens": "7"}}), "'prompt_tokens' of type str"),
    "a second choice": (sse(piece(**PIECE), {"choices": [{"index": 1, "text": "Wasps"}]}), "a second choice"),
    "an event that is a list": (sse([1]), "an event without choices|cannot be read"),
    "an event that is a number": (sse("7"), "an event without choices|cannot be read"),
    "an event that is null": (sse("null"), "an event without choices|ended an answer early"),
    "a nested event": (sse("[" * 100_000), "no JSON|cannot be read"),
    "half a character": (sse(piece(**PIECE)) [:-14] + b'data: "\xc3\n\n', "bytes that are no UTF-8"),
    "no reason": (sse(piece(**PIECE)), "ended an answer early, without a reason$"),
    "no reason and no end": (sse(piece(**PIECE), done=False), "ended an answer early, without a reason$"),
    "nothing": (b"", "ended an answer early, without a reason$"),
    "only an end": (sse(), "ended an answer early, without a reason$"),
    "an error": (sse(piece(**PIECE), {"error": {"message": "out of memory"}}), "broke off its answer .*out of memory"),
    "an error that is a text": (sse({"error": "out of memory"}), "broke off its answer with an error"),
    "an abort": (sse(piece(**PIECE), piece(text="", finish_reason="abort")), "broke off its answer .*'abort'"),
}  # fmt: skip


@pytest.mark.parametrize(("body", "said"), BROKEN.values(), ids=BROKEN)
async def test_an_answer_that_is_none_is_said_as_what_it_is_and_not_asked_for_again(
    body: bytes, said: str, hosted: Service
) -> None:
    clock = Clock()
    hosted.faults.append(Raw(body))
    async with opened(hosted.url, clock=clock, sleep=clock.sleep) as engine:
        ((*_, last),) = await outcomes(engine, "decoding", [PROMPT])
        assert isinstance(last, Failed)
        with pytest.raises(EngineError, match=said) as raised:
            raise last.error
        assert "connection failed" not in str(raised.value)
        assert "diagnosis" not in str(raised.value)
        assert (len(hosted.seen), clock.slept) == (1, [])
        assert await decode(engine, PROMPT) == TEXT


@pytest.mark.parametrize("media_type", ["text/html", "application/json"])
async def test_a_page_in_place_of_a_stream_is_said(media_type: str, hosted: Service) -> None:
    hosted.faults.append(Raw(b"<html>\n\n<body>Log in first</body>\n\n</html>", media_type))
    async with opened(hosted.url) as engine:
        with pytest.raises(EngineError, match=f"but sent {media_type} in place of a stream"):
            await decode(engine, PROMPT)
    assert len(hosted.seen) == 1


GOOD = {
    "CRLF": sse(piece(text=TEXT), piece(**END), newline="\r\n"),
    "CR": sse(piece(text=TEXT), piece(**END), newline="\r"),
    "no end mark": sse(piece(text=TEXT), piece(**END), done=False),
    "comments": b": hello\n\n" + sse(piece(text=TEXT), done=False) + b": ping\n\n" + sse(piece(**END)),
    "several lines": sse(json.dumps(piece(text=TEXT), indent=1).replace("\n", "\ndata: "), piece(**END)),
    "other fields": b"retry: 3\n" + sse(piece(text=TEXT), piece(**END)),
    "usage alone": sse(piece(text=TEXT), piece(**END), {"usage": {"prompt_tokens": 7, "completion_tokens": 5}}),
}


@pytest.mark.parametrize("body", GOOD.values(), ids=GOOD)
async def test_an_answer_may_be_written_in_all_ways_of_the_protocol(body: bytes, hosted: Service) -> None:
    hosted.faults.append(Raw(body))
    async with opened(hosted.url) as engine:
        ((*pieces, _),) = await outcomes(engine, "decoding", [PROMPT])
        assert "".join(each.text for each in pieces if isinstance(each, Delta)) == TEXT
    assert len(hosted.seen) == 1


async def test_what_was_told_of_a_broken_answer_is_not_told_twice(hosted: Service) -> None:
    hosted.faults.append(Raw(sse(piece(text=ANSWER[0]), "oops")))
    async with opened(hosted.url) as engine:
        ((*pieces, last),) = await outcomes(engine, "decoding", [PROMPT])
        assert (pieces, isinstance(last, Failed)) == ([Delta(ANSWER[0])], True)


async def test_a_call_that_began_before_a_failure_is_no_part_of_the_next_answer(hosted: Service) -> None:
    clock, hosted.endpoints, hosted.calls = Clock(), ("chat/completions",), [("look", '{"at": 1}')]
    begun = piece(delta={"tool_calls": [{"index": 0, "function": {"name": "look", "arguments": '{"a'}}]})
    async with opened(hosted.url, clock=clock, sleep=clock.sleep) as engine:
        whole = await decode(engine, PROMPT)
        hosted.faults.append(Raw(sse(begun, {"error": {"message": "overloaded", "code": 503}})))
        assert await decode(engine, PROMPT) == whole
    assert '{"at": 1}' in whole
    assert len(clock.slept) == 1
