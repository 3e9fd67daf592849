"""Clients of web searches, such as Tavily's: a search in a function that is read is a request to an outside service.

    for query in queries:
        found += client.search(query, max_results=2)["results"]        all searches are sent at once

A search leaves nothing behind in the client, and its reply is plain data. So the searches of a function are requested
ahead under the conditions for hosted models, and the framework's run takes the replies. Only published clients without
user code count: no replaced method, no session with hooks or adapters of the user's.
"""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

from teola_plugin.adapters.clients import is_plain_session, send_alone
from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.interception import Alone, Met, sharing
from teola_plugin.adapters.methods import is_installed, is_replaced_by_us, method_of
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.asking import Request
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Opaque,
    Undecided,
    Unknown,
    isinstance_of,
    type_name,
)
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.adapters.search_classes import CLIENTS, client_of
from teola_plugin.adapters.service import is_json
from teola_plugin.engines import EngineSpec
from teola_plugin.errors import Cancelled
from teola_plugin.seams import Session
from teola_plugin.value_keys import is_comparable, value_key


def instrument_loaded() -> None:
    """Make the searches of all loaded clients share early requests."""
    for cls in loaded():
        _SHARED.replace(cls, *CLIENTS[foreign.module_of(cls)].methods)


def loaded() -> list[type]:
    """Return the classes of clients whose modules are loaded."""
    found: Iterator[Any] = (vars(sys.modules.get(module, sys)).get(each.name) for module, each in CLIENTS.items())
    return [cls for cls in found if foreign.is_class(cls) and foreign.module_of(cls) in CLIENTS]


def searches(held: Any, name: str) -> bool:
    """Whether the method of an object is a search whose reply the framework's run can take."""
    cls = type(held)
    if not is_client_class(cls):
        return False
    asked = _asked_by(cls, name)
    return asked is not None and is_replaced_by_us(cls, asked) and _settings(held) is not None


def _asked_by(cls: type, name: str) -> str | None:
    """Return the name of the search that a method of a client is, or makes."""
    known = CLIENTS[foreign.module_of(cls)]
    return name if name in known.methods else known.methods[0] if name in known.telling else None


def is_client_class(cls: type) -> bool:
    """Whether the class is a published client with the published methods. Making a client leaves nothing behind."""
    module, name = foreign.module_of(cls), type_name(cls)
    if client_of(module, name) is None or not foreign.has_known_classes(cls):
        return False
    if vars(sys.modules.get(module, sys)).get(name) is not cls:
        return False
    return all(is_installed(method_of(cls, each)) for each, held in vars(cls).items() if type(held) is FunctionType)


def made(run: Run, cls: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Opaque:
    """Return a new client for the reader. Raises: Undecided, errors of the constructor."""
    exchange = Exchange(run)
    given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
    return Opaque(outcome(lambda: cls(*given, **named)), is_own=True)


def _settings(held: Any) -> Hashable:
    """Return the key of a client's settings; None for a client with user code."""
    own = foreign.own_attributes(held)
    if own is None:
        return None
    sessions = {name for name, value in own.items() if is_plain_session(value)}
    plain = {name: value for name, value in own.items() if name not in sessions}
    key = value_key(plain)
    return key if is_comparable(key) and is_free_of_code(plain) and send_alone(()) else None


def _named(held: Any) -> tuple[str, Hashable]:
    """Return the name of a client's engine, and the service."""
    name = type_name(type(held))
    return name, ("web search", name, (foreign.own_attributes(held) or {}).get("base_url"))


def _spec_of(held: Any) -> EngineSpec:
    return EngineSpec("python", type(held), *_named(held))


@dataclass(frozen=True, slots=True)
class _Search(Met):
    """A search. Each caller gets a copy of the reply, since the reader may still read the first."""

    def asking(self) -> contextlib.AbstractContextManager[Any]:
        """See `Met.asking`."""
        return in_tool()

    def taken(self, value: Any) -> Any:
        """See `Met.taken`."""
        return copy.deepcopy(value)


_is_in_tool: ContextVar[bool] = ContextVar("teola_web_search_in_tool", default=False)


def is_in_tool() -> bool:
    """Whether a tool or a client of searches is making its request."""
    return _is_in_tool.get()


@contextlib.contextmanager
def in_tool() -> Iterator[None]:
    """Share no search inside the block: the call of the tool that searches is shared as a whole."""
    token = _is_in_tool.set(True)
    try:
        yield
    finally:
        _is_in_tool.reset(token)


def _meet(
    session: Session, original: Callable[..., Any], client: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | Alone | None:  # fmt: skip
    if _is_in_tool.get():
        return None
    if request := session.ask_alone(partial(_named, client), "tool"):
        return Alone(request, lambda: is_client_class(type(client)) and _settings(client) is not None, in_tool)
    if not is_client_class(type(client)) or (settings := _settings(client)) is None:
        return None
    key = value_key((original.__name__, tuple(args), dict(kwargs)))
    return _Search(session.claim(_spec_of(client), "tool", (key, settings), {})) if is_comparable(key) else None


_SHARED = sharing(_meet)


def searching(
    held: Any, name: str, source_of: Callable[[Any], Hashable], apart: Callable[[Callable[[], Any]], Any]
) -> Callee:
    """Return the method of a client for the reader. `apart` runs a search beside the call."""
    cls: Any = type(held)
    client = CLIENTS[foreign.module_of(cls)]
    is_told = name in client.telling
    kind = "text" if is_told else "any"

    def search(run: Run, args: Arguments, kwargs: dict[str, Any]) -> Any:
        exchange, source, settings = Exchange(run), source_of(cls), _settings(held)
        run.require_settings_kept(held, settings)
        try:
            given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
        except Undecided:
            return unknown_from(run, [list(args), dict(kwargs)], kind, is_safe=False, more=frozenset([source]))
        key = ("search", name, value_key((settings, given, named)))
        if not is_comparable(key[-1]):
            raise Barrier(f"what {type_name(cls)} is asked cannot be compared")

        def asked(name: str, *args: Any, **kwargs: Any) -> Any:
            if settings is None or _settings(held) != settings:
                raise Cancelled("the client was changed after this search was foreseen")
            return getattr(held, name)(*args, **kwargs)

        early: Callable[[], Any] = partial(asked, name, *given, **named)
        made: Callable[[Any], Any] = _own
        if is_told:
            early, made = _telling(held, name, asked, given, named)
        request = Request(
            key, _spec_of(held), "act", None, {}, made, kind, is_told, source, name, partial(apart, early)
        )
        found = run.ask(request)
        may_raise = (client.raises_if_empty and not is_told) or not _is_sent(name, given, named)
        if isinstance_of(found, Unknown) and may_raise:  # what has come back was not refused
            run.raises()
        return found

    return Callee(search, name)


def _telling(
    held: Any, name: str, asked: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Return the search behind a method which makes a text of the reply, and the function from the reply to the text.

    The text counts as a part of the reply, like the value that a parser makes of a model's reply.
    """
    cls: Any = type(held)
    own, searched = copy.deepcopy(dict(foreign.own_attributes(held) or {})), _asked_by(cls, name)

    def told(search: Callable[..., Any]) -> Any:
        return vars(cls)[name](_Like(cls, own, searched, search), *given, **named)

    def search(*args: Any, **kwargs: Any) -> Any:
        raise _Found(asked(searched or "", *args, **kwargs))

    def early() -> Any:
        try:
            told(search)
        except _Found as e:
            return e.args[0]
        raise Cancelled("the client made no search")

    return early, lambda reply: told(lambda *args, **kwargs: copy.deepcopy(reply))


class _Found(BaseException):
    """The reply to a search, on the way past the code that computes the text."""


class _Like:
    """A client as it was, whose search is another function."""

    def __init__(self, cls: Any, own: dict[str, Any], name: str | None, search: Callable[..., Any]) -> None:
        self._held = cls, own
        self._search = name, search

    def __getattr__(self, name: str) -> Any:
        cls, own = self._held
        searched, search = self._search
        if name == searched:
            return search
        found = own[name] if name in own else foreign.in_mro(cls, name)
        return MethodType(found, self) if type(found) is FunctionType and name not in own else found


def _own(value: Any) -> Any:
    return value


def _is_sent(name: str, given: Sequence[Any], named: Mapping[str, Any]) -> bool:
    """Whether no client refuses the arguments: a single text, and plain options."""
    asked = [*given, *named.values()]
    is_text = bool(asked) and type(asked[0]) is str and is_json(asked[0])
    known = _OPTIONS | _OF_TAVILY if name == "search" else _OPTIONS
    return is_text and len(given) <= 1 and named.keys() <= known and is_json(dict(named))


_OPTIONS = frozenset({
    "query", "max_results", "search_depth", "topic", "include_answer", "include_raw_content", "include_images",
})  # fmt: skip
_OF_TAVILY = frozenset({
    "days", "time_range", "start_date", "end_date", "include_domains", "exclude_domains", "country", "include_favicon",
    "auto_parameters",
})  # fmt: skip
"""Options that `TavilyClient.search` sends as they are, in all its versions: those that it does not know, too."""
