"""Keys of the clients of hosted models: clients with equal requests have equal keys.

A stock model makes its clients from its own fields. So models built anew for each call, with the same fields, have
distinct but equivalent clients: same class of an SDK, same address, credentials, headers, retries and timeouts, and the
same connection object underneath.

    client_key(OpenAI(api_key="x", http_client=c)) == client_key(OpenAI(api_key="x", http_client=c))

An attribute not set by the client's SDK (a method replaced by a test, a foreign client in place of an inner client) is
compared by identity.
"""

from __future__ import annotations

import functools
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from pydantic import SecretStr

from teola_plugin.adapters.handlers import any_raises
from teola_plugin.adapters.methods import is_installed, without_replacements
from teola_plugin.adapters.reader.outlets import hearers_of, makes_records
from teola_plugin.adapters.reader.values import is_installed_file
from teola_plugin.effects import declared_effects
from teola_plugin.resources import IdentityMap
from teola_plugin.value_keys import Same

_SDKS = ("openai",)
"""Packages whose clients come from one generator: objects hold their arguments, and resources linked to the client."""

_FOUND_OUT = frozenset({"_platform"})
"""Attributes found out by the client."""

_ATOMS = (str, int, float, bool, type(None))

Tell = Callable[[Any], Any]


class Clients:
    """The keys of the clients of one model; each part of a client is inspected once."""

    def __init__(self) -> None:
        self._looked_at: set[int] = set()

    def key(self, value: Any, tell: Tell) -> Any:
        """See `value_keys.configuration_key`."""
        return client_key(value, tell, self._looked_at)


def client_key(value: Any, tell: Tell, looked_at: set[int] | None = None) -> Any:
    """Return the key of a client or of a client's part; any other object is compared by identity.

    `looked_at`: parts known to be unchanged, by `id`.
    """
    cls = type(value)
    if _is_of_httpx(cls, "URL"):
        return cls, str(value)
    if not _is_of_sdk(cls) or _keeps_connections(cls):  # type: ignore[arg-type]
        return Same(value)
    known = _known.get(value)
    if known is not None and _is_as_seen(known[0], tell, looked_at if looked_at is not None else set()):
        return known[1]
    _known.forget(value)
    seen, key = _seen(value, tell), _key(value, tell)
    return _known.get_or_make(value, lambda: (seen, key))[1]


def _key(value: Any, tell: Tell) -> Any:
    cls = type(value)
    told = []
    for name, held in sorted(vars(value).items()):
        if name in _FOUND_OUT:
            continue
        if _is_made_when_read(cls, name):
            if not _is_genuine(held, {id(value)}):
                told.append((name, Same(held)))
        elif type(held) is types.MethodType:
            told.append((name, _method_key(held, value)))
        else:
            told.append((name, tell(SecretStr(held) if name.endswith("key") and type(held) is str else held)))
    return cls, tuple(told)


def _method_key(method: types.MethodType, owner: Any) -> Any:
    """Return the key of a client's method that a resource refers to."""
    client = vars(owner).get("_client")
    is_own = method.__self__ is client and getattr(type(client), method.__func__.__name__, None) is method.__func__
    return method.__func__.__name__ if is_own else Same(method)


def _is_class_of(module: str, name: str, cls: type) -> bool:
    return vars(sys.modules.get(module, types)).get(name) is cls


_HTTPX = ("httpx", "httpx2")
"""Packages of HTTP clients, with the same names; the second is the one that Anthropic's SDK has."""


def _is_of_httpx(cls: type, *names: str) -> bool:
    return any(_is_class_of(module, name, cls) for module in _HTTPX for name in names)


@functools.lru_cache(maxsize=1024)
def _keeps_connections(cls: type) -> bool:
    """Whether the class is one of httpx's clients or a subclass, whose objects record their use."""
    return any(_is_of_httpx(base, "Client", "AsyncClient") for base in cls.__mro__)


def _is_of_sdk(cls: type) -> bool:
    """Whether the class is an SDK's own, held by its module under the class's name."""
    package = cls.__module__.split(".")[0]
    module = sys.modules.get(cls.__module__)
    return package in _SDKS and getattr(module, cls.__qualname__, None) is cls


def _is_made_when_read(cls: type, name: str) -> bool:
    return isinstance(getattr(cls, name, None), functools.cached_property)


_SDKS_THAT_LOG = ("openai", "anthropic", "groq", "together", "perplexity")
_LOGGERS = {
    "httpx": logging.INFO,
    "google_genai.models": logging.INFO,
    **dict.fromkeys([f"{sdk}._base_client" for sdk in _SDKS_THAT_LOG], logging.DEBUG),
    **dict.fromkeys([f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy")], logging.DEBUG),
    "urllib3.connectionpool": logging.DEBUG,
}
"""The loggers for clients' requests, with the lowest level of the records."""


def send_alone(http_clients: Iterable[Any]) -> bool:
    """Whether sending runs no user code: no hook, authentication or transport, no raising handler of the clients' logs.

    Handlers and filters hear of an early request when the framework's run takes the reply. A handler that raises would
    refuse the request.
    """
    return all(map(_sends_alone, http_clients)) and all(_is_held(logger, level) for logger, level in _loggers())


def _sends_alone(http_client: Any) -> bool:
    if any((getattr(http_client, "event_hooks", None) or {}).values()):
        return False
    auth: Any = type(getattr(http_client, "_auth", None))
    is_function = any(_is_class_of(f"{module}._auth", "FunctionAuth", auth) for module in _HTTPX)
    if is_function or not (auth is type(None) or _is_installed(auth)) or not _are_of_packages(http_client, _ASKING):
        return False
    return all(map(_is_transport, _transports(http_client)))


def _transports(http_client: Any) -> list[Any]:
    """Return the transports of a client; None stands for the absence of a proxy."""
    mounted = getattr(http_client, "_mounts", None)
    return [getattr(http_client, "_transport", None), *(mounted.values() if type(mounted) is dict else ())]


def _is_transport(value: Any) -> bool:
    """Whether the value is an unchanged transport that sends over the network, or declared pure."""
    if value is None:
        return True
    cls = type(value)
    is_known = _is_of_httpx(cls, "HTTPTransport", "AsyncHTTPTransport") or _is_class_of(*_AIOHTTP, cls)
    if is_known:
        return _are_of_packages(value, _SENDING)
    return (declared := declared_effects(cls)) is not None and declared.pure


def is_plain_session(value: Any) -> bool:
    """Whether the value is a session of requests that sends over the network without user code."""
    requests: Any = sys.modules.get("requests")
    if requests is None or type(value) is not vars(requests).get("Session"):
        return False
    adapters = [each for each in value.adapters.values() if type(each) is not requests.adapters.HTTPAdapter]
    has_code = value.auth is not None or any(value.hooks.values()) or adapters
    return not has_code and all(
        _are_of_packages(each, names)
        for each, names in ((value, _ASKED_SESSION), (value.get_adapter("http://"), ("send",)))
    )


_ASKED_SESSION = ("request", "send", "get", "post", "prepare_request", "get_adapter")
_SENDING = ("handle_request", "handle_async_request")
_ASKING = ("send", "request", "post", "build_request")
_AIOHTTP = ("httpx_aiohttp", "AiohttpTransport")


def _are_of_packages(value: Any, methods: Iterable[str]) -> bool:
    """Whether the methods are code of installed packages (httpx, or one that traces requests), none on the object."""
    own = getattr(value, "__dict__", ())
    return all(
        name not in own and is_installed(without_replacements(getattr(type(value), name, None))) for name in methods
    )


def _loggers() -> Iterator[tuple[Any, int]]:
    """Return the loggers of clients that exist so far."""
    made = logging.root.manager.loggerDict
    return ((made[name], level) for name, level in _LOGGERS.items() if name in made)


def _is_held(logger: Any, level: int) -> bool:
    """Whether the log records of an early request are held until the framework's run takes the reply."""
    if type(logger) is not logging.Logger:
        return type(logger) is logging.PlaceHolder
    return not logger.isEnabledFor(level) or (makes_records() and not any_raises(hearers_of(logger)))


def told_of_requests() -> list[Any]:
    """Return the handlers and filters of logging that hear of requests."""
    heard = (logger for logger, level in _loggers() if type(logger) is logging.Logger and logger.isEnabledFor(level))
    return [each for logger in heard for each in hearers_of(logger) if each is not None]


def are_own_clients(clients: Iterable[Any]) -> bool:
    """Whether clients, and resources of clients, are an SDK's own, with no foreign object in place of parts.

    For SDKs other than `_SDKS`: whether the classes of a client's attributes, and of the clients that the client has,
    stand in installed packages under their own names.
    """
    seen: set[int] = set()
    return all(_is_own(each, seen) for each in clients)


def _is_own(value: Any, seen: set[int]) -> bool:
    if id(value) in seen:
        return True
    seen.add(id(value))
    cls: Any = type(value)
    if _keeps_connections(cls) and not _sends_alone(value):
        return False
    if cls.__module__.split(".")[0] not in _SDKS:
        return _is_installed(cls) and all(_is_installed_part(*each, seen) for each in _attributes(value))
    own = dict(vars(value))  # another thread's use of a client adds resources
    inner = [own[name] for name in ("_client", "with_raw_response") if name in own]
    inner = [each for each in inner if _is_of_sdk(type(each)) or _keeps_connections(type(each))]  # type: ignore[arg-type]
    return all(_is_part(held, own.get("_client")) for held in own.values()) and all(
        _is_own(each, seen) for each in inner
    )


def has_own_caches(client: Any) -> bool:
    """Whether the resources that a client of `_SDKS` keeps, and the methods of these, are the SDK's own."""
    seen = {id(client)}
    held = [each for name, each in list(vars(client).items()) if _is_made_when_read(type(client), name)]
    return all(_is_genuine(each, seen) for each in held)


_IS_COMPILED = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object of an unknown SDK; none of httpx's clients, which `_sends_alone` looks at."""
    cls: Any = type(value)
    return [] if _keeps_connections(cls) else list(getattr(value, "__dict__", {}).items())


def _is_installed_part(name: str, held: Any, seen: set[int]) -> bool:
    """Whether an attribute of a client of an unknown SDK, and what a collection holds, is no code of the user's."""
    for each in held if type(held) in (list, tuple) else held.values() if type(held) is dict else [held]:
        cls: Any = type(each)
        function = each.__func__ if cls is types.MethodType else each
        if type(function) is types.FunctionType:
            if not is_installed(function):
                return False
        elif "client" in name.lower():
            if not _is_own(each, seen):
                return False
        elif _is_wrapper(each) or not (isinstance(each, type) or cls.__flags__ & _IS_COMPILED or _is_installed(cls)):
            return False
    return True


def _is_part(held: Any, client: Any) -> bool:
    """Whether the value belongs to the SDK's own parts of a client: data, clients, and functions of the SDK."""
    cls = type(held)
    if cls in _ATOMS:
        return True
    if cls is types.MethodType:
        is_own = held.__self__ is client or _is_of_sdk(type(held.__self__))
        return is_own and _is_part(held.__func__, client)
    if cls is types.FunctionType:
        return _is_of_sdks(held) and _is_part(vars(held).get("__wrapped__"), client)
    if cls in (list, tuple, dict):
        return all(_is_part(each, client) for each in (held.values() if cls is dict else held))
    if isinstance(held, type):
        return _is_installed(held)
    return _is_installed(cls) and (_is_of_sdk(cls) or not callable(held))  # type: ignore[arg-type]


def _is_wrapper(value: Any) -> bool:
    """Whether the value calls a function that may be the user's: `functools.partial`, `functools.cache`, a mock."""
    return callable(value) and type(value).__module__ in ("functools", "unittest.mock")


@functools.lru_cache(maxsize=1024)
def _is_installed(cls: type) -> bool:
    """Whether the class stands under its name in a module of the standard library or of an installed package."""
    module = sys.modules.get(cls.__module__)
    root = cls.__module__.split(".")[0]
    file = getattr(module, "__file__", None) or ""
    is_there = root in sys.stdlib_module_names or is_installed_file(file)
    return is_there and root != "__main__" and vars(module).get(cls.__qualname__) is cls


def _is_genuine(value: Any, seen: set[int]) -> bool:
    """Whether the value is the SDK's own cache on a client: resources, and methods wrapped by functions of the SDK."""
    if id(value) in seen:
        return True
    seen.add(id(value))
    if type(value) is types.MethodType:
        return _is_genuine(value.__func__, seen) and _is_genuine(value.__self__, seen)
    if type(value) is types.FunctionType:
        return _is_of_sdks(value) and _is_genuine(vars(value).get("__wrapped__", value), seen)
    code = [held for held in list(vars(value).values()) if _is_code(held)] if _is_of_sdk(type(value)) else None
    return code is not None and all(_is_genuine(held, seen) for held in code)


def _is_of_sdks(function: types.FunctionType) -> bool:
    """Whether a function, or the method that we have replaced, is an SDK's."""
    return without_replacements(function).__globals__.get("__name__", "").split(".")[0] in _SDKS


def _is_code(value: Any) -> bool:
    return not isinstance(value, type) and (callable(value) or _is_of_sdk(type(value)))


# --- keys that still hold --------------------------------------------------------------------------------------------

Seen = list[tuple["weakref.ref[Any]", int, list[tuple[str, bool, Any]]]]
"""Each part of a client: the number of its attributes, and each attribute, by value (if plain) or by weak reference."""

_known: IdentityMap[tuple[Seen, Any]] = IdentityMap()


def _seen(value: Any, tell: Tell) -> Seen:
    """Return all that the key of a client depends on, without keeping the client alive."""
    return [
        (
            weakref.ref(part),
            len(vars(part)),
            [(name, *_reference(held, tell)) for name, held in list(vars(part).items())],
        )
        for part in _parts(value)
    ]


def _parts(value: Any) -> Iterator[Any]:
    todo, found = [value], set[int]()
    while todo:
        part = todo.pop()
        if id(part) in found:
            continue
        found.add(id(part))
        yield part
        for held in list(vars(part).values()):
            owner = held.__self__ if type(held) is types.MethodType else held
            if _is_of_sdk(type(owner)):
                todo.append(owner)


def _reference(held: Any, tell: Tell) -> tuple[bool, Any]:
    if type(held) in _ATOMS:
        return True, held
    if type(held) is dict:
        return True, tell(held)
    return False, weakref.ref(held)


def _is_as_seen(seen: Seen, tell: Tell, looked_at: set[int]) -> bool:
    for reference, count, attributes in seen:
        part = reference()
        if part is None or len(own := vars(part)) != count:
            return False
        if id(part) in looked_at:
            continue
        for name, is_plain, kept in attributes:
            held = own.get(name, _MISSING)
            if is_plain:
                now = tell(held) if type(held) is dict else held
                if now is not kept and (type(now) is not type(kept) or now != kept) and name not in _FOUND_OUT:
                    return False
            elif held is not kept():
                return False
        looked_at.add(id(part))
    return True


_MISSING: Any = object()
