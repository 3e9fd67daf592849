"""Whether the client of a hosted model certainly sends a request: some requests are refused with an error.

Every client sends texts. Other parts of an OpenAI-style request are put together by the model itself; the client takes
the arguments of its method, as JSON.
"""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

from teola_plugin.adapters.langchain.models import HOSTED, KNOWN_BY_SETTINGS, Model
from teola_plugin.adapters.leaf import plain_class
from teola_plugin.adapters.service import is_json
from teola_plugin.value_keys import is_comparable, value_key

_PLAIN = (HumanMessage, SystemMessage, AIMessage, ToolMessage)
_USUAL = frozenset({"tools", "tool_choice", "response_format", "temperature", "max_tokens", "top_p"})
"""Arguments that each client takes."""


class Sending:
    """The answers known for the models of one call."""

    def __init__(self) -> None:
        self._taken: dict[Hashable, tuple[Model, bool]] = {}

    def is_sent(self, model: Model, content: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether the client sends the request. Classes declared pure give no evidence, and are assumed to send."""
        if plain_class(model).__module__.split(".")[0] not in HOSTED:
            return True
        rest = {name: held for name, held in kwargs.items() if name != "stop"}
        stop = kwargs.get("stop")
        if not (stop is None or is_json(stop)) or not is_json([getattr(each, "content", each) for each in content]):
            return False
        if not all(map(_is_plain, content)):
            return _is_taken(model, content, rest)
        if not rest and not vars(model).get("model_kwargs"):
            return True
        key = id(model), value_key(rest)
        known = self._taken.get(key)
        if known is None or not is_comparable(key[1]):
            known = self._taken[key] = model, _is_taken(model, [HumanMessage("?")], rest)
        return known[1]


def _is_plain(message: Any) -> bool:
    if type(message) is str:
        return True
    is_of_text = type(message) in _PLAIN and type(message.content) is str and not message.additional_kwargs
    return is_of_text and not getattr(message, "tool_calls", None) and not getattr(message, "invalid_tool_calls", None)


def _is_taken(model: Any, content: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    if plain_class(model).__module__.split(".")[0] not in KNOWN_BY_SETTINGS:
        return kwargs.keys() <= _USUAL and is_json({**kwargs}) and all(isinstance(each, _PLAIN) for each in content)
    try:
        payload = model._get_request_payload(list(content), **kwargs)
        resource = model.root_client.responses if model._use_responses_api(payload) else model.client
        takes = inspect.signature(type(resource).create).parameters.keys()
    except Exception:  # any kind of refusal
        return False
    schema = payload.pop("response_format", None)
    if schema is not None and not isinstance(schema, type):
        payload["extra_body"] = schema
    is_parsed = schema is None or all(_is_strict(tool) for tool in payload.get("tools", ()))
    return payload.keys() <= takes and is_json(payload) and is_parsed


def _is_strict(tool: Any) -> bool:
    """Whether a tool is strict; a parsing client refuses all non-strict tools."""
    return isinstance(tool, dict) and bool(tool.get("function", {}).get("strict"))
