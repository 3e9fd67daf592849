"""Common code of our models: request items from the engine, wait for replies, and cancel replies.

A caller which stops waiting (an exception, a closed stream, a cancelled task) cancels the unfinished replies.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any

from teola_plugin import runtime
from teola_plugin.chat import Message, Tool, render_for
from teola_plugin.engines import Completion, Delta, Done, Engine, EngineSpec, Outcome
from teola_plugin.errors import EngineError
from teola_plugin.items.tool_calls import Said, ToolCall, ToolCallParser
from teola_plugin.seams import Reply, current
from teola_plugin.turns import Turn

DEFAULT_MAX_TOKENS = 256


def spec_of(engine: Engine) -> EngineSpec:
    """Return the engine's name in a graph."""
    provider = (getattr(engine, "provider", None) or engine.name) if engine.capabilities.remote else None
    return EngineSpec("engine", engine, engine.name, provider)


def identity_of(engine: Engine) -> dict[str, str]:
    """Return the identity of the engine's answers, from which response caches make their keys."""
    model = getattr(engine, "model", None)
    return {"engine": engine.name, **({"model": model} if model and isinstance(model, str) else {})}


def ask(engine: Engine, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
    """Request the payloads; return one reply per payload."""
    return runtime.ask(spec_of(engine), op, payloads, settings) if payloads else []


def results(replies: Sequence[Reply]) -> list[Any]:
    """Return all values. Raises: the error of the first failed reply; the others are cancelled."""
    try:
        return [reply.result() for reply in replies]
    except BaseException:
        _cancel(replies)
        raise


async def aresults(replies: Sequence[Reply]) -> list[Any]:
    """`results` for a coroutine; cancelling the coroutine cancels the work."""
    try:
        return [await reply.aresult() for reply in replies]
    except BaseException:
        _cancel(replies)
        raise


def pieces(reply: Reply) -> Generator[str, None, None]:
    """Yield the answer piece by piece, or in one piece if the engine did not stream."""
    is_streamed = False
    with contextlib.closing(reply.stream()) as deltas:  # type: ignore[type-var]
        for piece in deltas:
            is_streamed = True
            yield piece
    if not is_streamed and (whole := str(reply.result())):
        yield whole


async def apieces(reply: Reply) -> AsyncGenerator[str, None]:
    """`pieces` for a coroutine."""
    is_streamed = False
    async with contextlib.aclosing(reply.astream()) as deltas:  # type: ignore[type-var]
        async for piece in deltas:
            is_streamed = True
            yield piece
    if not is_streamed and (whole := str(await reply.aresult())):
        yield whole


def tell_of_calls(reply: Reply, turn: Turn) -> None:
    """Tell the session of each tool call as soon as the call is written."""
    session = current()
    if session is None or session.is_unheard:
        return
    session.observe(Turn, turn)
    on_call, on_end = turn.on_call, turn.on_end
    if on_call is None:
        return
    parser, position = ToolCallParser(), itertools.count()
    is_streamed = False

    def hear(outcome: Outcome) -> None:
        nonlocal is_streamed
        parts: Sequence[Said] = ()
        if isinstance(outcome, Delta):
            is_streamed = True
            parts = parser.feed(outcome.text)
        elif isinstance(outcome, Done):
            parts = [*([] if is_streamed else parser.feed(str(outcome.value))), *parser.close()]
        for call in parts:
            if isinstance(call, ToolCall) and call.arguments is not None:
                on_call(next(position), call.name, call.arguments)
        if isinstance(outcome, Done) and on_end:
            on_end()

    reply.listen(hear)


def sampling_settings(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a decoding; later layers take precedence, and None leaves a setting to the engine."""
    merged = {name: value for layer in layers for name, value in layer.items()}
    if isinstance(stop := merged.get("stop"), str):
        merged["stop"] = [stop]
    elif stop is not None:
        merged["stop"] = list(stop) or None
    return {name: value for name, value in merged.items() if value is not None}


def render(engine: Engine, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
    """Return the prompt of a conversation, by the template of the engine's model if there is one."""
    for message in messages:
        if not isinstance(message["content"], str):
            raise EngineError(f"engine {engine.name!r} takes text only, not {type(message['content']).__name__}")
    return render_for(engine, messages, tools)


def usage(completion: str) -> dict[str, int] | None:
    """Return input and output tokens, if the engine counted them."""
    if not isinstance(completion, Completion):
        return None
    return {
        "input_tokens": completion.prompt_tokens,
        "output_tokens": completion.output_tokens,
        "total_tokens": completion.prompt_tokens + completion.output_tokens,
    }


def finish_reason(completion: str) -> str:
    """Return the reason why the answer ended: `stop` or `length`."""
    return completion.finish_reason if isinstance(completion, Completion) else "stop"


def _cancel(replies: Sequence[Reply]) -> None:
    for reply in replies:
        reply.cancel_unless_ended()
