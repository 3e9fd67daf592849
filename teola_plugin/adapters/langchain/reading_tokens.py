"""The number of tokens of a text for an OpenAI model, which counts by a table of tiktoken's."""

from __future__ import annotations

import sys
import types
from typing import Any

from teola_plugin.adapters.reader import foreign, natives_tokens
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee

METHODS = frozenset(["get_num_tokens", "get_token_ids"])

_CALLED = (*METHODS, "_get_encoding_model")
_MODULES = ("langchain_openai.chat_models.base", "langchain_core.language_models.base")


def counts(model: Any) -> bool:
    """Whether the model counts tokens with its package's own methods."""
    module = sys.modules.get(_MODULES[0])
    base = vars(module).get("BaseChatOpenAI") if type(module) is types.ModuleType else None
    own = foreign.own_attributes(model)
    if base is None or own is None or not foreign.is_kind_of(model, base):
        return False
    if own.get("custom_get_token_ids") is not None or own.keys() & set(_CALLED):
        return False
    methods = ((foreign.in_mro(type(model), name), name) for name in _CALLED)
    return all(natives_tokens.is_published(method, name, _MODULES) for method, name in methods)


def counting(model: Any, name: str) -> Callee:
    """Return one of `METHODS` of a counting model."""

    def count(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
        given = [*args, *(held for key, held in kwargs.items() if key == "text")]
        if len(given) != 1 or len(args) + len(kwargs) != 1:
            raise Barrier(f"it calls {name} in an unusual way")
        own = foreign.own_attributes(model) or {}
        named = own.get("tiktoken_model_name")
        called = own.get("model_name") if named is None else named
        if type(called) is not str:
            raise Barrier("it counts the tokens of a model without a name")
        found = natives_tokens.tokens(run, natives_tokens.table_of(called), given[0])
        return len(found) if name == "get_num_tokens" else found

    return Callee(count, name)
