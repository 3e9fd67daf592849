"""The gate of public applications: its replies, its bounds, and what it counts, without any of the applications."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytest.importorskip("public.server", reason="no benchmarks beside the tests")

from public.bounds import DATA, RAG, Needs, bound_s, depends
from public.replies import MARK, Script, filled, message, vector
from public.server import Asked
from public.worker import spending, told_of_threads

SCHEMA = {
    "type": "object",
    "properties": {
        "score": {"type": "string", "description": "'yes' or 'no'"},
        "route": {"enum": ["store", "web"]},
        "steps": {"type": "array", "items": {"$ref": "#/$defs/Step"}, "maxItems": 2},
    },
    "$defs": {"Step": {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}},
}


def asked(kind: str, text: str, start_s: float, end_s: float, gives: str = "") -> Asked:
    return Asked(kind, text, text, MARK.findall(text), start_s, end_s, MARK.findall(gives))


def chat(content: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": content}], **more}


def test_a_reply_depends_on_the_request_alone_and_not_on_how_it_is_sent() -> None:
    first, again = (message(Script(), chat("why", **more)) for more in ({}, {"stream": True}))
    assert first == again
    assert first != message(Script(), chat("how"))
    assert MARK.search(first["content"])


@pytest.mark.parametrize("seed", [str(n) for n in range(20)])
def test_a_schema_is_filled_with_what_it_allows(seed: str) -> None:
    value = filled(Script(), SCHEMA, SCHEMA, seed, "")
    assert value["score"] in ("yes", "no")
    assert value["route"] in ("store", "web")
    assert 0 < len(value["steps"]) <= 2
    assert all(isinstance(step["n"], int) and MARK.search(step["name"]) for step in value["steps"])


def test_an_agent_calls_tools_for_some_rounds_and_then_answers() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]
    body = chat("why", tools=tools)
    for _ in range(3):
        reply = message(Script(), body)
        if not reply.get("tool_calls"):
            break
        json.loads(reply["tool_calls"][0]["function"]["arguments"])
        body["messages"] += [reply, {"role": "tool", "content": "seen", "tool_call_id": "call_1"}]
    assert reply["content"]
    assert len(body["messages"]) > 1


def test_texts_that_share_words_have_near_vectors() -> None:
    question, near, far = (vector(text) for text in ("red wine glass", "a glass of red wine", "rusty old bicycle"))
    dots = [sum(a * b for a, b in zip(question, other, strict=True)) for other in (near, far)]
    assert dots[0] > dots[1] + 0.3


def test_the_bound_is_the_longest_path_with_the_time_between_requests() -> None:
    judges = [asked("chat", "relevance of a retrieved document", n, n + 1) for n in (1, 2, 3)]
    run = [asked("embed", "q", 0, 1), *judges, asked("chat", "write", 4, 5, gives="z00000001")]
    assert bound_s("crag", run, 5.5) == pytest.approx(3.5)
    assert bound_s("self_discover", run, 5.5) == pytest.approx(5.5)


def test_a_request_waits_for_the_replies_it_holds_and_for_those_that_its_table_names() -> None:
    run = [
        asked("chat", "plan", 0, 1, gives="z00000001 z00000002"),
        asked("search", "z00000001", 1, 2, gives="z00000003"),
        asked("search", "z00000002", 2, 3),
        asked("chat", "about z00000003", 3, 4),
    ]
    assert [depends(DATA, run, n) for n in range(4)] == [set(), {0}, {0}, {1}]
    assert depends(Needs(after={"chat": ("search",)}), run, 3) == {1, 2}
    assert depends(Needs(), run, 3) == {0, 1, 2}
    assert depends(RAG, run, 3) == {1, 2}


def test_the_time_of_threads_counts_for_the_call_that_has_them_work() -> None:
    spent: dict[str, list[float]] = {"apart": [], "pool": [], "thread": [], "none": []}

    def compute(until_s: float = 0.05) -> None:
        began_s = time.thread_time()
        while time.thread_time() < began_s + until_s:
            pass

    with ThreadPoolExecutor(1) as pool, told_of_threads():
        pool.submit(compute).result()
        with spending(spent["apart"]):
            compute()
        with spending(spent["pool"]):
            pool.submit(compute).result()
        with spending(spent["thread"]):
            thread = threading.Thread(target=compute)
            thread.start()
        with spending(spent["none"]):
            thread.join()
    least_ms = {name: 50 if name != "none" else 0 for name in spent}
    assert all(least_ms[name] <= sum(each) < least_ms[name] + 25 for name, each in spent.items()), spent
