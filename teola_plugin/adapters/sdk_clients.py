"""OpenAI's client itself, without a framework's model around it: a request in a function that is read.

    for part in parts:
        reply = client.chat.completions.create(model="m", messages=[{"role": "user", "content": part}])
        found.append(reply.choices[0].message.content)                 all are sent at once

Chats, embeddings and responses count, whole replies only. The requests are made ahead under the conditions for hosted
models, and the framework's run takes the replies. A client may be the user's object, or be made in the function. Only
published clients without user code count: no replaced method, no foreign HTTP client, no hook, no function for a key.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from teola_plugin.adapters.clients import are_own_clients, client_key, has_own_caches, send_alone
from teola_plugin.adapters.interception import Met, sharing
from teola_plugin.adapters.methods import are_installed, is_replaced_by_us, method_of
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.asking import NOT_MINE, Request
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.pydantic_schemas import is_clean_schema
from teola_plugin.adapters.reader.records import new_record
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Opaque,
    Pending,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.adapters.service import hold_retries, is_json, service_of
from teola_plugin.engines import EngineSpec, Foreign
from teola_plugin.errors import Cancelled
from teola_plugin.seams import Session
from teola_plugin.value_keys import Incomparable, configuration_key, is_comparable, value_key

_CLIENTS = ("OpenAI", "AzureOpenAI", "AsyncOpenAI", "AsyncAzureOpenAI")

_CHAT = "openai.resources.chat.completions.completions", "Completions"
_METHODS: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("chat", "completions", "create"): _CHAT,
    ("chat", "completions", "parse"): _CHAT,
    ("beta", "chat", "completions", "parse"): _CHAT,
    ("embeddings", "create"): ("openai.resources.embeddings", "Embeddings"),
    ("responses", "create"): ("openai.resources.responses.responses", "Responses"),
}
"""Paths in a client to methods that make one request, with the class of each; its name begins with Async for async
clients."""

_SENDING = ("post", "request", "_prepare_options", "_prepare_request", "_process_response", "_calculate_retry_timeout")

_FRAMEWORKS = foreign.words(
    "openai langchain langchain_core langchain_classic langchain_community langchain_openai langchain_deepseek "
    "langchain_xai llama_index"
)
"""Packages whose own uses of a client are parts of a greater request, which is shared as a whole."""

_KEPT = ("stream", "store", "background", "previous_response_id", "conversation")
"""Arguments by which a service streams the reply, or keeps something."""

_FREE = ("extra_headers", "extra_query", "extra_body")
"""Arguments that may change a request in any way."""

Apart = Callable[[Callable[[], Any]], Any]
"""Runs a function beside the call; a coroutine function as a coroutine."""


def instrument_loaded() -> None:
    """Make the requests of OpenAI's clients share early requests, if the package is loaded."""
    if "openai" not in sys.modules:
        return
    hold_retries()
    for path, (module, name) in _METHODS.items():
        loaded = importlib.import_module(module)  # the package loads its resources when a client first uses them
        _SHARED.replace(getattr(loaded, name), path[-1])
        _SHARED.replace(getattr(loaded, "Async" + name), coroutines=[path[-1]])


def loaded() -> list[type]:
    """Return the classes of clients, if the package is loaded."""
    package = vars(sys.modules.get("openai", sys))
    return [package[name] for name in _CLIENTS if name in package]


def is_client_class(cls: Any) -> bool:
    """Whether the class is a published client. Making a client leaves nothing behind."""
    return foreign.is_one_of(cls, tuple(loaded()))


# --- the reader's side -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """A resource of a client, for example `client.chat`: `path` leads to the resource."""

    client: Any
    path: tuple[str, ...]


def attribute(owner: Opaque, name: str, source_of: Callable[[Any], Hashable], apart: Apart, aapart: Apart) -> Any:
    """Return an attribute of a client, or of a client's resource; NOT_MINE for all further objects and attributes."""
    held = owner.held
    if type(held) is _Part:
        client, path = held.client, (*held.path, name)
    elif is_client_class(type(held)):
        client, path = held, (name,)
    else:
        return NOT_MINE
    if path in _METHODS:
        return _asking(client, path, source_of, apart, aapart)
    if any(each[: len(path)] == path for each in _METHODS):
        return Opaque(_Part(client, path), is_own=True)
    if held is client:
        return NOT_MINE
    raise Barrier(f"it uses {'.'.join(path)} of {type_name(type(client))}")


def made(run: Run, cls: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Opaque:
    """Return a client for the reader. Clients of equal arguments are one object: to make one takes some 20 ms.

    Raises: Undecided, Barrier, errors of the constructor.
    """
    exchange = Exchange(run)
    given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
    key = value_key((cls, given, named, dict(os.environ)))
    if not is_comparable(key):
        raise Barrier(f"what {type_name(cls)} is made of cannot be compared")
    if (found := _made.get(key)) is None:
        if len(_made) >= _MOST_MADE:
            _made.clear()
        found = _made[key] = outcome(lambda: cls(*given, **named))
    return Opaque(found, is_own=True)


_made: dict[Hashable, Any] = {}
_MOST_MADE = 16


def _asking(
    client: Any, path: tuple[str, ...], source_of: Callable[[Any], Hashable], apart: Apart, aapart: Apart
) -> Callee:
    name, is_async, source = ".".join(path), _is_async(client), source_of(type(client))

    def ask(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
        return Pending(lambda: asked(run, args, kwargs)) if is_async else asked(run, args, kwargs)

    def asked(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
        exchange = Exchange(run)
        run.require_settings_kept(client, configuration_key(client, _part_key))
        try:
            named = {name: _out(exchange, name, value) for name, value in kwargs.items()}
        except Undecided:
            return unknown_from(run, dict(kwargs), "any", is_safe=False, more=frozenset([source]))
        if args or not _is_whole(named) or (owner := _owner_of(client, path)) is None:
            raise Barrier(f"it calls {name} in a way that is not read", "ask for whole replies, by keyword arguments")
        if not is_comparable(key := _key(client, path[-1], named)):
            raise Barrier(f"what {name} is asked cannot be compared")

        def early() -> Any:
            if _key(client, path[-1], named) != key or _owner_of(client, path) is None:
                raise Cancelled("the client was changed after this request was foreseen")
            return reduce(getattr, path, client)(**named)

        async def aearly() -> Any:
            reply: Awaitable[Any] = early()
            return await reply

        begin = partial(aapart, aearly) if is_async else partial(apart, early)
        request = Request(
            ("sdk", key), *_claimed(client, key, is_async), _own, "any", False, source, name, begin, is_async
        )
        found = run.ask(request)
        if not isinstance_of(found, Unknown):
            return found
        if not _is_sent(owner, path, named):
            run.raises()
        return _reply(run, found, path, named)

    return Callee(ask, name)


def _own(value: Any) -> Any:
    return value


def _is_whole(named: Mapping[str, Any]) -> bool:
    """Whether the arguments ask for a whole reply, and the service keeps nothing."""
    return not any(named.get(each) not in (None, False) for each in (*_KEPT, *_FREE))


def _out(exchange: Exchange, name: str, value: Any) -> Any:
    """Return an argument for a client: a copy, or the program's class for the reply. Raises: Undecided, Barrier."""
    if name != "response_format" or not isinstance_of(value, Opaque):
        return exchange.out(value)
    if foreign.is_class(value.held) and foreign.has_known_classes(value.held) and is_clean_schema(value.held):
        return value.held
    raise Barrier("it asks for a class that has code of its own")


def _is_async(client: Any) -> bool:
    return type_name(type(client)).startswith("Async")


def _owner_of(client: Any, path: tuple[str, ...]) -> type | None:
    """Return the class whose method the path leads to; None if a request by it runs user code or is not shared."""
    module, name = _METHODS[path]
    cls: Any = vars(sys.modules.get(module, sys)).get("Async" + name if _is_async(client) else name)
    if not foreign.is_class(cls) or not is_replaced_by_us(cls, path[-1]):
        return None
    return cls if are_installed(cls, path[-1:]) and _is_plain(client) else None


def _is_plain(client: Any) -> bool:
    """Whether a request of the client runs no user code."""
    return (
        foreign.own_attributes(client) is not None
        and are_installed(type(client), _SENDING)
        and has_own_caches(client)
        and are_own_clients([client])
        and send_alone(())
    )


def _is_sent(owner: type, path: tuple[str, ...], named: Mapping[str, Any]) -> bool:
    """Whether the method of the class that the path leads to refuses none of the arguments."""
    method: Any = method_of(owner, path[-1])
    method = getattr(method, "__wrapped__", method)
    needed = {"messages", "model"} if "chat" in path else {"input", "model"}
    takes = inspect.signature(method).parameters.keys() - {"timeout"}
    is_known = needed <= named.keys() <= takes and type(named["model"]) is str
    return path[-1] == "create" and is_known and is_json(dict(named))


def _reply(run: Run, found: Unknown, path: tuple[str, ...], named: Mapping[str, Any]) -> Any:
    """Return the unknown reply; to a chat, one choice with a message, all of whose fields are unknown.

    A reply without that choice is a fault of the service, like a reply that is no JSON.
    """
    types = vars(sys.modules["openai.types.chat.chat_completion"])
    if path[-1] != "create" or "chat" not in path or named.get("n") not in (None, 1):
        return found

    def unknown(cls: Any, **known: Any) -> Any:
        fields = {name: run.unknown(found, holds="any", is_safe=True) for name in cls.model_fields}
        return new_record(cls, {**fields, **known})

    message = unknown(types["ChatCompletionMessage"])
    return unknown(types["ChatCompletion"], choices=[unknown(types["Choice"], message=message)])


# --- the framework's side --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Asked(Met):
    """A request. Each caller gets a copy of the reply, since the reader may still read the first."""

    def taken(self, value: Any) -> Any:
        """See `Met.taken`."""
        return copy.deepcopy(value)


def _key(client: Any, method: str, named: Mapping[str, Any]) -> Hashable:
    asked, settings = value_key((type(client), method, dict(named))), configuration_key(client, _part_key)
    return (asked, settings) if is_comparable(asked) and is_comparable(settings) else Incomparable()


def _part_key(value: Any, tell: Callable[[Any], Any]) -> Any:
    """Return the key of a part of a client; of an HTTP client that OpenAI's package made, the settings."""
    made_by = vars(sys.modules["openai._base_client"])
    if type(value) not in (made_by["SyncHttpxClientWrapper"], made_by["AsyncHttpxClientWrapper"]):
        return client_key(value, tell)
    settings = [repr(getattr(value, name)) for name in ("base_url", "timeout", "params", "trust_env", "auth")]
    return type(value), value.follow_redirects, value.max_redirects, *settings, *value.headers.items(), *value.cookies


def _spec_of(client: Any) -> EngineSpec:
    return EngineSpec("python", type(client), type_name(type(client)), service_of(client))


def _meet(
    session: Session, original: Callable[..., Any], resource: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | None:  # fmt: skip
    caller = str(sys._getframe(2).f_globals.get("__name__")).split(".")[0]
    if caller in _FRAMEWORKS or args or not _is_whole(kwargs):
        return None
    client = (foreign.own_attributes(resource) or {}).get("_client")
    if not (is_client_class(type(client)) and _is_plain(client)):
        return None
    if not is_comparable(key := _key(client, original.__name__, kwargs)):
        return None
    return _Asked(session.claim(*_claimed(client, key, is_async)))


def _claimed(client: Any, key: Hashable, is_async: bool) -> tuple[EngineSpec, str, Foreign, dict[str, Any]]:
    """Return the arguments of `seams.Session.claim` for a request."""
    return _spec_of(client), "tool", Foreign(key, lambda: None, is_async), {}


_SHARED = sharing(_meet)
