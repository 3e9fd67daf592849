"""Pages by httpx in functions: `httpx.get`, and `get` of synchronous and asynchronous clients.

    async with httpx.AsyncClient(timeout=15) as client:
        page = await client.get(url)                           the pages of all rounds of a loop are read at once

The rules of `requests.get` hold (web_pages.py). A new client makes each early request: with the settings of the
program's client, new connections and no cookies. A client keeps the cookies of a reply and sends the cookies again. So
a request waits for an earlier request of the same client which may bring cookies for the host. A request with a cookie
is not sent early, nor one that follows redirects once the client has cookies. The client of the framework's run gets
the cookies of all replies.

Only httpx as published counts: no subclass, hook, authentication, transport or proxy, and no replaced method (a mock of
a test, a tracer) in httpx or httpcore.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import os
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from teola_plugin.adapters.clients import send_alone
from teola_plugin.adapters.interception import Met, intercept, sharing
from teola_plugin.adapters.methods import is_shared, without_replacements
from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.asking import NOT_MINE, Request
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.facts import plain_text
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import (
    Arguments,
    Barrier,
    Callee,
    Managed,
    Opaque,
    Pending,
    Undecided,
    Unknown,
    isinstance_of,
)
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.adapters.web_clients import is_in_tool
from teola_plugin.adapters.web_pages import PROVIDER, Refused, Sent, changed, claiming, is_claiming, may_pass_get
from teola_plugin.engines import EngineSpec
from teola_plugin.seams import Session, is_unheard
from teola_plugin.value_keys import Same, is_comparable, value_key

_SETTINGS = frozenset({"params", "headers", "timeout", "follow_redirects", "max_redirects", "base_url"})
"""Arguments of clients made by functions."""

_OPTIONS = frozenset({"params", "headers", "timeout", "follow_redirects"})
_UNSEEN = {"verify": True, "cert": None, "http1": True, "http2": False, "transport": None}
"""Arguments of a client which the client does not show, with the defaults."""

_FIELDS = frozenset({
    "status_code", "text", "content", "reason_phrase", "encoding", "is_success", "is_error", "is_redirect",
    "is_client_error", "is_server_error", "has_redirect_location",
})  # fmt: skip
_METHODS = frozenset({"json", "raise_for_status"})

Apart = Callable[[Callable[[], Any]], Any]
"""Runs a function beside the call; a coroutine function as a coroutine."""


def instrument_loaded() -> None:
    """Make what httpx sends share early requests, if the package is loaded."""
    if (httpx := _httpx()) is not None:
        importlib.import_module("httpcore")  # which httpx loads with the first client
        for cls, wrapper in ((httpx.Client, _answering), (httpx.AsyncClient, _answering_async)):
            intercept(cls, "request", wrapper)
            intercept(cls, "__init__", _noting)


def _httpx() -> Any:
    found = sys.modules.get("httpx")
    return found if hasattr(found, "create_ssl_context") and "httpx._client" in sys.modules else None


def _inner() -> Any:
    return sys.modules["httpx._client"]


def is_client_class(cls: Any) -> bool:
    """Whether the class is one of httpx's clients. Making a client leaves nothing behind."""
    httpx = _httpx()
    return httpx is not None and foreign.is_one_of(cls, (httpx.Client, httpx.AsyncClient))


def is_get(function: Any) -> bool:
    """Whether the function is `httpx.get`, and its requests can be shared."""
    api = sys.modules.get("httpx._api")
    if type(function) is not FunctionType or function is not getattr(api, "get", None):
        return False
    cls = _httpx().Client
    return vars(api).get("Client") is cls and _is_of(api, "httpx") and _is_as_published(cls)


def _is_as_published(cls: Any) -> bool:
    """Whether requests by a client of the class run httpx's code alone, and are shared."""
    is_async = cls is _httpx().AsyncClient
    core: Any = sys.modules[_CORE[is_async]]
    transport = _transport_class(is_async)
    parts = [_inner().BaseClient, cls, transport, _httpx().Response, _httpx().Request, _httpx().Cookies]
    parts_of_core = [_pool_class(is_async), core.AsyncHTTPConnection if is_async else core.HTTPConnection]
    return (
        all(_is_of(each, "httpx") for each in (_inner(), *parts))
        and all(_is_of(each, "httpcore") for each in parts_of_core)
        and is_shared(cls, "request")
        and send_alone(())
    )


def _transport_class(is_async: bool) -> Any:
    return _httpx().AsyncHTTPTransport if is_async else _httpx().HTTPTransport


def _pool_class(is_async: bool) -> Any:
    core = sys.modules[_CORE[is_async]]
    return core.AsyncConnectionPool if is_async else core.ConnectionPool


_CORE = ("httpcore._sync", "httpcore._async")


def _is_of(owner: Any, package: str) -> bool:
    """Whether a module or class holds data, classes and functions of the package alone, with no mock or wrapper."""
    return all(_is_part(each, package) for each in list(vars(owner).values()))


def _is_part(value: Any, package: str) -> bool:
    kind = type(value)
    if kind is property:
        return all(each is None or _is_part(each, package) for each in (value.fget, value.fset, value.fdel))
    value = value.__func__ if kind in (classmethod, staticmethod) else value
    if type(value) is not FunctionType:
        return kind.__module__ != "unittest.mock" and not (callable(value) and kind.__name__ == "FunctionWrapper")
    code = without_replacements(value).__code__.co_filename
    return _is_in(code, package)


@lru_cache(maxsize=256)
def _is_in(filename: str, package: str) -> bool:
    """Whether a file belongs to the package, or to `contextlib`, which wraps functions of the package."""
    folder = os.path.dirname(sys.modules[package].__file__ or "")
    return filename.startswith(folder + os.sep) or filename == contextlib.__file__


# --- clients and keys ------------------------------------------------------------------------------------------------


_made: WeakKeyDictionary[Any, tuple[Any, Hashable]] = WeakKeyDictionary()
"""Clients with the first transport of each, and the transport's part of keys."""

_DEFAULT: Hashable = "as httpx makes a transport by default"


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method, which also notes clients with the default transport of httpx."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        is_usual = all(
            kwargs.get(name, usual) is usual or (name == "verify" and kwargs[name] is _context.found)
            for name, usual in _UNSEEN.items()
        )
        if is_client_class(type(self)) and is_usual and "limits" not in kwargs:
            _made[self] = self._transport, _DEFAULT

    return __init__


class _Context:
    """The SSL context of early requests, made as httpx does by default, in 20 ms."""

    def __init__(self) -> None:
        self.found: Any = None
        self._made_for: Any = None

    def get(self) -> Any:
        """Return the context for the environment variables of now."""
        names = ("SSL_CERT_FILE", "SSL_CERT_DIR", "SSLKEYLOGFILE")
        now = [os.environ.get(name) for name in names]
        if self.found is None or self._made_for != now:
            self.found, self._made_for = _httpx().create_ssl_context(), now
        return self.found


_context = _Context()


def _transport_of(client: Any) -> Hashable:
    """Return the transport's part of a key; None if the client calls user code, or limits the connections."""
    if client._auth is not None or any(client._event_hooks.values()) or any(map(_is_some, client._mounts.values())):
        return None
    transport = client._transport
    is_async = type(client) is _httpx().AsyncClient
    if type(transport) is not _transport_class(is_async) or vars(transport).keys() != {"_pool"}:
        return None
    pool = transport._pool
    backend, most = (getattr(pool, name, None) for name in ("_network_backend", "_max_connections"))
    if type(pool) is not _pool_class(is_async) or type(backend).__module__.split(".")[0] != "httpcore":
        return None
    if type(most) is not int or most < MANY or any(map(_has_own_methods, (client, pool))):
        return None
    noted = _made.get(client)
    return noted[1] if noted is not None and noted[0] is transport else Same(transport)


MANY = 100
"""The connections opened by httpx at most, by default. Fewer connections limit the requests."""


def _is_some(value: Any) -> bool:
    return value is not None


def _has_own_methods(value: Any) -> bool:
    return any(foreign.in_mro(type(value), name) is not foreign.MISSING for name in vars(value))


@dataclass(frozen=True, slots=True)
class _Get:
    """A GET as sent by a client. `key`: the whole request, and the way of sending."""

    key: Any
    request: Any
    follows: bool


def _built(client: Any, transport: Hashable, is_async: bool, url: Any, options: Mapping[str, Any]) -> _Get | None:
    """Return the GET for arguments of `get`; None for unread arguments, and where cookies of the client may be sent.

    `client`: a client, or a blank client with the settings of a client to be made.
    """
    given = {name: _plain(value) for name, value in options.items() if value is not _httpx().USE_CLIENT_DEFAULT}
    if type(url) is not str or given.keys() - _OPTIONS or not is_comparable(value_key([*given.values()])):
        return None
    if type(client._default_encoding) is not str:  # a function of the program's
        return None
    follows = given.pop("follow_redirects", client.follow_redirects)
    try:
        request = client.build_request("GET", url, **given)
    except Exception:  # httpx refuses the arguments
        return None
    if "cookie" in request.headers or (follows and len(client.cookies.jar)):
        return None
    how = follows, client.max_redirects, client._default_encoding, client.trust_env, request.extensions
    asked = value_key((is_async, str(request.url), request.headers.raw, how))
    if not is_comparable(asked):
        return None
    address = f"{request.url.scheme}://{request.url.netloc.decode()}".lower(), request.url.path
    return _Get(("GET", (asked, transport), address), request, bool(follows))


def _plain(value: Any) -> Any:
    """Return an argument of a class of httpx or LangChain as plain data."""
    if type(value) is _httpx().Timeout:
        return value.connect, value.read, value.write, value.pool
    return str(value) if type(value) is _httpx().URL else plain_text(value)


def _spec(is_async: bool) -> EngineSpec:
    httpx = _httpx()
    return EngineSpec("python", httpx.AsyncClient if is_async else httpx.Client, "httpx", PROVIDER)


# --- the reader's side -----------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Use:
    """The use of a client in a reading. `asked`: each GET and the reply.

    `settings`, `attributes`: of a client made by the program.
    """

    client: Any
    settings: Mapping[str, Any] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)
    is_entered: bool = False
    is_closed: bool = False
    is_vague: bool = False
    asked: list[tuple[_Get, Any]] = field(default_factory=list)

    @property
    def is_unchanged(self) -> bool:
        """Whether the program has stored no attribute of a client that the program has made."""
        own = vars(self.client)
        return own.keys() == self.attributes.keys() and all(own[name] is each for name, each in self.attributes.items())


_uses: WeakKeyDictionary[Run, dict[int, _Use]] = WeakKeyDictionary()


def made(run: Run, cls: Any, args: Arguments, kwargs: Mapping[str, Any]) -> Opaque:
    """Return a client for the reader. Raises: Undecided, Barrier."""
    settings = _out(Exchange(run), kwargs)
    if args or settings.keys() - _SETTINGS or (client := _blank(cls, settings)) is None:
        raise Barrier(f"it makes {cls.__name__} of httpx in a way that is not read")
    _uses.setdefault(run, {})[id(client)] = _Use(client, settings, dict(vars(client)))
    return Opaque(client, is_own=True)


def made_timeout(run: Run, args: Arguments, kwargs: Mapping[str, Any]) -> Opaque:
    """Return a `Timeout` of httpx for the reader. Raises: Undecided, errors of the constructor."""
    exchange = Exchange(run)
    given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
    return Opaque(outcome(lambda: _httpx().Timeout(*given, **named)), is_own=True)


def is_timeout_class(cls: Any) -> bool:
    """Whether the class is httpx's for time limits."""
    return _httpx() is not None and cls is _httpx().Timeout and _is_of(cls, "httpx")


def _out(exchange: Exchange, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of arguments. Raises: Undecided, Barrier."""
    return {
        name: value.held
        if type(value) is Opaque and type(value.held) is _httpx().Timeout
        else plain_text(exchange.out(value))
        for name, value in named.items()
    }


def _blank(cls: Any, settings: Mapping[str, Any]) -> Any:
    """Return a client without connections, which builds requests; None if httpx refuses the settings."""
    if not is_comparable(value_key([_plain(each) for each in settings.values()])):
        return None
    try:
        blank = cls.__new__(cls)
        _inner().BaseClient.__init__(blank, **settings)
    except Exception:  # httpx refuses the arguments
        return None
    return blank


def _has_proxies() -> bool:
    return any(map(_is_some, sys.modules["httpx._utils"].get_environment_proxies().values()))


def attribute(
    run: Run, owner: Opaque, name: str, source_of: Callable[[Any], Hashable], apart: Apart, aapart: Apart
) -> Any:
    """Return an attribute of a client, of the reader's copy of a reply, or of a part; NOT_MINE for the rest."""
    if (httpx := _httpx()) is None:
        return NOT_MINE
    held = owner.held
    kind = type(held)
    if owner.is_own and kind is httpx.Response:
        return _of_reply(held, name)
    if owner.is_own and kind is httpx.URL and name == "__str__":
        return Callee(lambda run, args, kwargs: str(held), name)
    if owner.is_own and kind is httpx.Headers and name == "get" and _is_of(kind, "httpx"):
        return Callee(lambda run, args, kwargs: _called(run, held, name, args, kwargs), name)
    if not is_client_class(kind) or not (owner.is_own or name == "get"):
        return NOT_MINE
    is_async = kind is httpx.AsyncClient
    if name == "get":
        get = partial(_get, owner, source_of(kind), aapart if is_async else apart, is_async)
        return Callee(lambda run, args, kwargs: _pending(is_async, partial(get, run, args, kwargs)), "get")
    if name == ("__aenter__" if is_async else "__enter__"):
        return Managed(partial(_inside, _use_of(run, owner), owner), [owner], is_async=is_async)
    raise Barrier(f"it uses {name} of a client of httpx")


def _pending(is_async: bool, force: Callable[[], Any]) -> Any:
    return Pending(force) if is_async else force()


def _inside(use: Any, owner: Opaque, within: Callable[[Any], Any]) -> Any:
    """Evaluate the body of a `with` statement, which closes the client."""
    if use is None or use.is_entered or use.is_closed or use.asked or use.is_vague:
        raise Barrier("it enters a client that it has used")
    use.is_entered = True
    try:
        return within(owner)
    finally:
        use.is_closed = True


def _get(
    owner: Opaque, source: Hashable, apart: Apart, is_async: bool, run: Run, args: Arguments, kwargs: Mapping[str, Any]
) -> Any:
    """Return the reply to a GET of a client. Raises: Barrier."""
    held, is_made, use = owner.held, owner.is_own, _use_of(run, owner)
    cls = type(held)
    if not _is_as_published(cls):
        raise Barrier("it asks a client of httpx that has been changed")
    if is_made and (use is None or use.is_closed or not use.is_unchanged or _has_proxies()):
        raise Barrier("it asks a client that it has closed or changed, or with a proxy")
    transport = _DEFAULT if is_made else _transport_of(held)
    if transport is None or (not is_made and held.is_closed):
        raise Barrier("it asks a client with hooks or a transport of its own")
    if not is_made:
        run.require_settings_kept(held, _settings_of(held))

    def client(url: str, options: Mapping[str, Any]) -> Any:
        if not _is_as_published(cls):
            raise changed()
        if is_made:
            return cls(**use.settings, verify=_context.get())
        if held.is_closed or _transport_of(held) != transport or not _built(held, None, is_async, url, options):
            raise changed()
        return _twin(held, transport)

    async def aearly(url: str, options: Mapping[str, Any]) -> Any:
        with claiming():
            async with client(url, options) as early:
                return await early.get(url, **options)

    def early(url: str, options: Mapping[str, Any]) -> Any:
        with claiming(), client(url, options) as early:
            return early.get(url, **options)

    return _asked(run, held, transport, is_async, use, args, kwargs, source, apart, aearly if is_async else early)


def _use_of(run: Run, owner: Opaque) -> Any:
    """Return the use of a client in a reading; None for a client made in an earlier reading."""
    uses, held = _uses.setdefault(run, {}), owner.held
    return uses.get(id(held)) if owner.is_own else uses.setdefault(id(held), _Use(held))


def _twin(client: Any, transport: Hashable) -> Any:
    """Return a client with the settings of the program's client, new connections and no cookies."""
    twin, pool = copy.copy(client), client._transport._pool
    twin._transport = type(client._transport)(
        verify=pool._ssl_context, http1=pool._http1, http2=pool._http2, retries=pool._retries, uds=pool._uds,
        local_address=pool._local_address, socket_options=pool._socket_options,
    )  # fmt: skip
    twin._cookies, twin._state = _httpx().Cookies(), _inner().ClientState.UNOPENED
    _made[twin] = twin._transport, transport
    return twin


def requesting(
    run: Run, function: Any, args: Arguments, kwargs: Mapping[str, Any], source: Hashable, apart: Apart
) -> Any:
    """Return the reply to `httpx.get`. Raises: Barrier."""
    try:
        settings = _out(Exchange(run), {name: kwargs[name] for name in ("timeout",) if name in kwargs})
    except Undecided:
        raise Barrier("it calls httpx.get with a timeout that is not known yet") from None
    if (base := _blank(_httpx().Client, settings)) is None or _has_proxies():
        raise Barrier("it calls httpx.get with options that are not read, or with a proxy")
    options = {name: value for name, value in kwargs.items() if name not in settings}

    def early(url: str, named: Mapping[str, Any]) -> Any:
        if not is_get(function):
            raise changed()
        with claiming():
            return function(url, **named, **settings, verify=_context.get())

    return _asked(run, base, _DEFAULT, False, _Use(None), args, options, source, apart, early)


def _asked(
    run: Run, base: Any, transport: Hashable, is_async: bool, use: _Use, args: Arguments, kwargs: Mapping[str, Any],
    source: Hashable, apart: Apart, early: Callable[[str, Mapping[str, Any]], Any],
) -> Any:  # fmt: skip
    if run.has_assumed:
        raise Barrier("it reads from the web on a path that may not be taken")
    named = {**dict(zip(("url",), args, strict=False)), **kwargs}
    if len(args) > 1 or (args and "url" in kwargs) or named.keys() - _OPTIONS - {"url"}:
        raise Barrier("it calls get of httpx with options that are not read")
    try:
        options = _out(Exchange(run), named)
    except Undecided:
        use.is_vague = True
        return unknown_from(run, named, "reply", is_safe=False, more=frozenset([source]))
    url = _plain(options.pop("url", None))
    if (get := _built(base, transport, is_async, url, options)) is None:
        raise Barrier("it calls get of httpx with options that are not read, or of a client with cookies")
    if use.is_vague or any(_brings_cookies(reply) for _, reply in use.asked):
        raise Barrier("it asks a client that may have got cookies")
    host = get.request.url.host
    blocked = {
        each.key for each, reply in use.asked
        if isinstance_of(reply, Unknown) and (each.follows or _may_share_cookies(each.request.url.host, host))
    }  # fmt: skip

    def may_pass(own: Request, other: Request) -> bool:
        return other.key not in blocked and may_pass_get(own, other)

    request = Request(
        get.key, _spec(is_async), "act", None, {}, _copied, "reply", False, source, "httpx",
        lambda: apart(partial(early, url, options)), is_async, may_pass,
    )  # fmt: skip
    found = run.ask(request)
    use.asked.append((get, found))
    if not _is_sent(get.request):
        run.raises()
    return found


def _may_share_cookies(one: str, other: str) -> bool:
    """Whether a reply of a host may set a cookie for another host."""
    ends = [each.split(".")[-2:] if "." in each.strip(".") else ["", "local"] for each in (one, other)]
    return ends[0] == ends[1] or (ends[0][-1] == "local" == ends[1][-1])


def _brings_cookies(reply: Any) -> bool:
    if isinstance_of(reply, Unknown):
        return False
    held = reply.held
    return any("set-cookie" in each.headers for each in (*held.history, held))


def _is_sent(request: Any) -> bool:
    """Whether httpx sends the request and does not refuse an address or a header."""
    texts = [part.decode("latin-1") for each in request.headers.raw for part in each]
    is_plain = all(each.isascii() and (each.isprintable() or not each) for each in texts)
    return is_plain and request.url.scheme in ("http", "https") and bool(request.url.host)


def _settings_of(client: Any) -> Hashable:
    own = vars(client)
    names = ("_base_url", "_params", "_headers", "_timeout", "follow_redirects", "max_redirects", "_trust_env")
    return tuple((name, repr(own.get(name))) for name in names)


# --- replies, for the reader -----------------------------------------------------------------------------------------


def _copied(reply: Any) -> Opaque:
    """Return a copy of a reply for the reader, without the connection."""
    found = copy.copy(reply)
    found.headers = _httpx().Headers(reply.headers)
    found.extensions = {name: reply.extensions[name] for name in ("reason_phrase",) if name in reply.extensions}
    return Opaque(found, is_own=True)


def _of_reply(held: Any, name: str) -> Any:
    if not _is_of(type(held), "httpx") or type(held) is not _httpx().Response:
        return NOT_MINE
    if name in _FIELDS:
        return getattr(held, name)
    if name in ("url", "headers"):
        return Opaque(getattr(held, name), is_own=True)
    if name in _METHODS:
        return Callee(lambda run, args, kwargs: _called(run, held, name, args, kwargs), name)
    return NOT_MINE


def _called(run: Run, held: Any, name: str, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    exchange = Exchange(run)
    given = exchange.out(list(args))
    if kwargs or (args and name != "get"):
        raise Barrier(f"it calls {name} of a reply with arguments")
    found = outcome(lambda: getattr(held, name)(*given))
    return Opaque(found, is_own=True) if found is held else exchange.back(found)


# --- the framework's side --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SentByClient(Sent):
    """A request of a client."""

    client: Any

    def taken(self, value: Any) -> Any:
        """See `Met.taken`."""
        if not self.claimed[1]:
            _leave_as_sent(self.client, value)
        return value


def _leave_as_sent(client: Any, reply: Any) -> None:
    """Leave a client as after a request with the reply: opened, and with the cookies."""
    states = _inner().ClientState
    client._state = states.OPENED if client._state is states.UNOPENED else client._state
    for each in (*reply.history, reply):
        client.cookies.extract_cookies(each)


def _meet(
    session: Session, original: Callable[..., Any], client: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | None:  # fmt: skip
    key = _claim_of(client, args, kwargs)
    return None if key is None else _SentByClient(session.claim(_spec(is_async), "tool", key, {}), client)


def _claim_of(client: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Hashable:
    """Return the key of a request; None for a request which is not shared."""
    cls = type(client)
    named = {**dict(zip(("method", "url"), args, strict=False)), **kwargs}
    method, url = named.pop("method", None), _plain(named.pop("url", None))
    options = {name: value for name, value in named.items() if value is not None or name in _OPTIONS}
    if options.get("auth") is _httpx().USE_CLIENT_DEFAULT:
        del options["auth"]
    if type(method) is not str or method.upper() != "GET" or len(args) > 2 or is_in_tool():
        return None
    if not is_client_class(cls) or client.is_closed or not _is_as_published(cls):
        return None
    transport = _transport_of(client)
    get = None if transport is None else _built(client, transport, cls is _httpx().AsyncClient, url, options)
    return get and get.key


_SHARED = sharing(_meet)


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with shared replies. A refusal is a reply for the program, and an error for early requests."""
    shared = _SHARED.sync(original)

    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        _require_claim(self, args, kwargs)
        try:
            return shared(self, *args, **kwargs)
        except Refused as e:
            return _refused(self, e)

    return request


def _answering_async(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the coroutine function with shared replies; see `_answering`."""
    shared = _SHARED.coroutine(original)

    async def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        _require_claim(self, args, kwargs)
        try:
            return await shared(self, *args, **kwargs)
        except Refused as e:
            return _refused(self, e)

    return request


def _require_claim(client: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if is_claiming.get() and _claim_of(client, args, kwargs) is None:
        raise changed()


def _refused(client: Any, refused: Refused) -> Any:
    if is_unheard():
        raise refused
    _leave_as_sent(client, refused.response)
    return refused.response
