"""Requests to an OpenAI-compatible server: endpoints, fields, and errors.

A request is a text or a chat. Either can be sent to both endpoints:

              /completions                          /chat/completions
    text      prompt                                one message of the user
    chat      its messages as plain lines           its messages and tools

The settings have vLLM's names (sampling.py). Each kind of server takes the settings that have a field there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from teola_plugin.chat import Chat, render_plainly
from teola_plugin.errors import DeadlineExceeded, EngineError, TeolaError
from teola_plugin.runtime.engines.openai_limits import likely_tokens
from teola_plugin.runtime.engines.openai_probe import Kind, Server
from teola_plugin.runtime.engines.sampling import KNOWN, LISTS

Endpoint = Literal["completions", "chat"]

LIKELY_ANSWER_TOKENS = 256
"""The tokens taken from the budget for an answer without `max_tokens`, until the length is known."""

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
"""Fields that a kind of server has beyond `EVERYWHERE`, by vLLM's names."""

RENAMED = {
    ("sglang", "include_stop_str_in_output"): "no_stop_trim",
    ("llama.cpp", "repetition_penalty"): "repeat_penalty",
}


TOO_LONG = re.compile("context|length|too long|tokens")
OPTIONAL = ("priority", "return_token_ids", "stream_options")
"""Fields that do not change an answer."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: a chat, or a text. `extra`: fields added by the engine."""

    text: str
    chat: Chat | None
    settings: Mapping[str, Any]
    extra: Mapping[str, Any]

    @property
    def tokens(self) -> int:
        """The maximum number of tokens that the request may need."""
        return likely_tokens(self.text) + int(self.settings.get("max_tokens") or LIKELY_ANSWER_TOKENS)

    def body(self, endpoint: Endpoint, kind: Kind) -> dict[str, Any]:
        """Return the fields for an endpoint. Raises: EngineError for settings without a field there."""
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
            if kind == "vllm":  # its parsers may be off; unparsed, the answer is as from VllmEngine
                asked["tool_choice"] = "none"
        if kind == "vllm" and not self.chat.is_whole:  # elsewhere a few tokens of the template follow the cut
            asked |= {"continue_final_message": True, "add_generation_prompt": False}
        return asked


def fields_of(settings: Mapping[str, Any], kind: Kind, *, is_chat: bool) -> dict[str, Any]:
    """Return the fields of a request for its settings. `extra_body` may hold any other fields.

    Raises: EngineError for an unknown setting, or a setting without a field at this kind of server.
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
    """Return `structured_outputs` (vLLM's) in the form of the server."""
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
    """Return the fields that a server names as unknown."""
    if getattr(error, "status_code", None) not in (400, 422):
        return set()
    said = str(error).lower()
    names = {name for name in OPTIONAL if name in fields and name in said}
    return names | ({"max_tokens"} if "max_tokens" in fields and "max_completion_tokens" in said else set())


def failure(error: Exception, where: str, server: Server, model: str, key: str) -> Exception:
    """Return a failure at the server `where` as an error of this package.

    The text is without the key, which a server may repeat.
    """
    if isinstance(error, TeolaError | UnicodeEncodeError):  # for example, the client's package is missing
        return error
    import httpx
    import openai

    match error:
        case TimeoutError():  # the item's; the client's own are of its kind
            return DeadlineExceeded(f"{where} gave no answer before the deadline")
        case openai.APIStatusError():
            said = error.body.get("message") if isinstance(error.body, Mapping) else None
            text = f"{where} answered {error.status_code}: {said or error}{_hint(error, server, model)}"
        case openai.APIConnectionError() if isinstance(error.__cause__, TeolaError):
            return error.__cause__
        case openai.APIConnectionError() | httpx.RequestError():
            why = error.__cause__ or error
            text = f"{where} was there, but the connection failed: {str(why) or type(why).__name__}"
        case openai.APIError():
            text = f"{where} broke off its answer with an error: {error}"
        case _:
            text = f"{where}: {type(error).__name__}: {error}"
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
