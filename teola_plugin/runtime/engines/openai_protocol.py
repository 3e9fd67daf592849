"""How a request is put to an OpenAI-compatible server, and how its answer is read.

A request is a text or a chat. Either can be put to both endpoints:

              /completions                          /chat/completions
    text      prompt                                one message of the user
    chat      its messages as plain lines           its messages and tools

The settings have vLLM's names (sampling.py). Each kind of server takes those it has a field for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from teola_plugin.chat import Chat, render_plainly
from teola_plugin.engines import Completion, Delta, Outcome
from teola_plugin.errors import DeadlineExceeded, EngineError, TeolaError
from teola_plugin.items.tool_calls import BEGIN, END
from teola_plugin.runtime.engines.openai_limits import likely_tokens
from teola_plugin.runtime.engines.openai_probe import Kind, Server
from teola_plugin.runtime.engines.sampling import KNOWN, LISTS

Endpoint = Literal["completions", "chat"]

LIKELY_ANSWER_TOKENS = 256
"""Taken from the budget for an answer without `max_tokens`, until its length is known."""

EVERYWHERE = (
    "max_tokens", "temperature", "top_p", "seed", "presence_penalty", "frequency_penalty", "stop", "logit_bias",
)  # fmt: skip
"""Fields of the API itself."""

MORE: Mapping[Kind, tuple[str, ...]] = {
    "vllm": tuple(name for name in KNOWN if name not in EVERYWHERE),
    "sglang": (
        "top_k", "min_p", "min_tokens", "repetition_penalty", "ignore_eos", "skip_special_tokens", "stop_token_ids",
        "include_stop_str_in_output", "structured_outputs",
    ),
    "llama.cpp": ("top_k", "min_p", "repetition_penalty", "ignore_eos", "structured_outputs"),
    "unknown": ("structured_outputs",),
}  # fmt: skip
"""Fields that a server has beyond these, by vLLM's names."""

RENAMED = {
    ("sglang", "include_stop_str_in_output"): "no_stop_trim",
    ("llama.cpp", "repetition_penalty"): "repeat_penalty",
}


TOO_LONG = re.compile("context|length|too long|tokens")
OPTIONAL = ("priority", "return_token_ids", "stream_options")
"""Fields that change no answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: a chat, or a text. `extra`: fields of the engine's own."""

    text: str
    chat: Chat | None
    settings: Mapping[str, Any]
    extra: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """As many as it may need."""
        return likely_tokens(self.text) + int(self.settings.get("max_tokens") or LIKELY_ANSWER_TOKENS)

    def body(self, endpoint: Endpoint, kind: Kind) -> dict[str, Any]:
        """The fields for this endpoint. Raises: EngineError for settings that it has none for."""
        is_chat = endpoint == "chat"
        fields = fields_of(self.settings, kind, is_chat=is_chat)
        return (self._messages(kind) if is_chat else self._prompt()) | fields | dict(self.extra)

    def _prompt(self) -> dict[str, Any]:
        if self.chat is None:
            return {"prompt": self.text}
        prompt = render_plainly(self.chat.messages, self.chat.tools)
        return {"prompt": prompt if self.chat.is_whole else prompt.removesuffix("\nAssistant:")}

    def _messages(self, kind: Kind) -> dict[str, Any]:
        if self.chat is None:
            return {"messages": [{"role": "user", "content": self.text}]}
        asked: dict[str, Any] = {"messages": [_message(message) for message in self.chat.messages]}
        if self.chat.tools:
            asked["tools"] = list(self.chat.tools)
            if kind == "vllm":  # its parsers may be off; unparsed, the answer is what VllmEngine gives
                asked["tool_choice"] = "none"
        if kind == "vllm" and not self.chat.is_whole:  # elsewhere a few tokens of the template follow what is cut
            asked |= {"continue_final_message": True, "add_generation_prompt": False}
        return asked


def fields_of(settings: Mapping[str, Any], kind: Kind, *, is_chat: bool) -> dict[str, Any]:
    """The fields of a request that say what the settings say. `extra_body` may hold any others.

    Raises: EngineError for a setting that nobody knows, or that this kind of server has no field for.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    extra = dict(given.pop("extra_body", {}))
    known = (*EVERYWHERE, *MORE[kind])
    if unknown := sorted(set(given) - set(known)):
        where = "this server" if kind == "unknown" else kind
        raise EngineError(
            f"no setting {', '.join(unknown)} for {where}; there are {', '.join(known)}, and extra_body, a dict of"
            " fields that are sent as they are"
        )
    constraint = given.pop("structured_outputs", None)
    fields = {RENAMED.get((kind, name), name): _plain(name, value) for name, value in given.items()}
    return fields | (_constraint(dict(constraint), kind, is_chat) if constraint else {}) | extra


def _plain(name: str, value: Any) -> Any:
    if name == "logit_bias":
        return {str(token): float(bias) for token, bias in dict(value).items()}
    if name in LISTS or (name == "stop" and not isinstance(value, str)):
        return list(value)
    return value


def _constraint(constraint: dict[str, Any], kind: Kind, is_chat: bool) -> dict[str, Any]:
    """`structured_outputs` (vLLM's) as the server has it."""
    if kind == "vllm":
        return {"structured_outputs": constraint}
    match constraint:
        case {"json": schema, **rest} if not rest:
            schema = json.loads(schema) if isinstance(schema, str) else schema
            if kind == "llama.cpp" and not is_chat:
                return {"json_schema": schema}
            form = {"name": "answer", "schema": schema, "strict": True}
            return {"response_format": {"type": "json_schema", "json_schema": form}}
        case {"json_object": True, **rest} if not rest:
            return {"response_format": {"type": "json_object"}}
        case {"regex": regex, **rest} if kind == "sglang" and not rest:
            return {"regex": regex}
        case {"grammar": grammar, **rest} if kind != "unknown" and not rest:
            return {"ebnf" if kind == "sglang" else "grammar": grammar}
        case _:
            raise EngineError(f"no server but vLLM can be held to structured_outputs with {', '.join(constraint)}")


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return dict(message)
    return {**message, "tool_calls": [_as_text(call) for call in message["tool_calls"]]}


def _as_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function", **call, "function": {**function, "arguments": text}}


def refused_fields(error: Exception, fields: Mapping[str, Any]) -> set[str]:
    """The fields that a server names which does not know them."""
    if getattr(error, "status_code", None) not in (400, 422):
        return set()
    said = str(error).lower()
    names = {name for name in OPTIONAL if name in fields and name in said}
    return names | ({"max_tokens"} if "max_tokens" in fields and "max_completion_tokens" in said else set())


def failure(error: Exception, where: str, server: Server, model: str, key: str) -> Exception:
    """What went wrong at the server `where`, as an error of ours, without the key, which a server may repeat."""
    if isinstance(error, TeolaError | UnicodeEncodeError):  # maybe that the client's package is missing
        return error
    import openai

    match error:
        case TimeoutError():  # the item's; the client's own are of its kind
            return DeadlineExceeded(f"{where} gave no answer before the deadline")
        case openai.APIStatusError():
            said = error.body.get("message") if isinstance(error.body, Mapping) else None
            text = f"{where} answered {error.status_code}: {said or error}{_hint(error, server, model)}"
        case _:
            why = error.__cause__ or str(error) or type(error).__name__
            text = f"{where} was there, but the connection failed: {why}"
    told = EngineError(text.replace(key, "***") if key else text)
    told.__cause__ = None if key and key in str(error) else error
    return told


def _hint(error: Any, server: Server, model: str) -> str:
    hints = []
    if error.status_code in (401, 403):
        hints.append("give the right api_key")
    if missing := server.misses(model):
        hints.append(missing)
    if server.max_model_len and TOO_LONG.search(str(error)):
        hints.append(f"the model takes {server.max_model_len} tokens")
    return "".join(f"; {hint}" for hint in hints)


class Answer:
    """What was read of an answer."""

    def __init__(self, tell: Callable[[Outcome], None]) -> None:
        self._tell = tell
        self.begin()

    def begin(self) -> None:
        """Nothing is read yet, or not any more."""
        self.pieces: list[str] = []
        self.prompt_tokens = 0
        self.finish_reason = ""
        self._token_ids: list[int] = []
        self._told_tokens = 0
        self._call = ("", "")

    @property
    def output_tokens(self) -> int:
        """As the server counts them, if it does."""
        return self._told_tokens or len(self._token_ids)

    def read(self, chunk: Any) -> None:
        """One event of the stream."""
        if chunk.usage:
            self.prompt_tokens = chunk.usage.prompt_tokens or 0
            self._told_tokens = chunk.usage.completion_tokens or 0
        for choice in chunk.choices or ():
            delta = getattr(choice, "delta", None)
            token_ids = getattr(choice, "token_ids", None) or ()
            self._token_ids += token_ids
            text = getattr(choice, "text", None) if delta is None else delta.content
            if text or token_ids:
                self._say(text or "")
            for call in getattr(delta, "tool_calls", None) or ():
                if call.function:
                    self._read_call(call.function)
            if choice.finish_reason:
                self._say_call()
                self.finish_reason = choice.finish_reason

    def completion(self) -> Completion:
        """The whole of it."""
        return Completion(
            "".join(self.pieces), token_ids=self._token_ids, pieces=self.pieces, prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            finish_reason="stop" if self.finish_reason == "tool_calls" else self.finish_reason,
        )  # fmt: skip

    def _say(self, text: str) -> None:
        self.pieces.append(text)
        self._tell(Delta(text))

    def _read_call(self, function: Any) -> None:
        """Part of a call; the first one has the name."""
        if function.name:
            self._say_call()
            self._call = (function.name, "")
        self._call = (self._call[0], self._call[1] + (function.arguments or ""))

    def _say_call(self) -> None:
        """The call that is complete; whether its arguments are JSON is the reader's matter."""
        name, arguments = self._call
        self._call = ("", "")
        if name:
            self._say(f'{BEGIN}{{"name": {json.dumps(name)}, "arguments": {arguments or "{}"}}}{END}')
