"""Web interfaces and pages that a function reads by `requests.get`: each call is a request to an outside service.

    for city in cities:
        reply = requests.get(URL, params={"q": city}, timeout=10)      all are sent at once
        found.append(reply.json()["temperature"])

GET is a safe method: it only reads (RFC 9110, section 9.2.1). Not every service keeps to that. So a GET is sent early
only once every request before it has been answered, except GETs of the same address with other parameters, and GETs of
other hosts. The run of the framework takes the reply; the reader works on a copy.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from teola_plugin.adapters import web_clients
from teola_plugin.adapters.clients import is_plain_session, send_alone
from teola_plugin.adapters.interception import Met, sharing
from teola_plugin.adapters.methods import is_installed, method_of
from teola_plugin.adapters.reader.asking import NOT_MINE, Request
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee, Opaque, Undecided
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.adapters.service import is_json
from teola_plugin.engines import EngineSpec
from teola_plugin.seams import Session
from teola_plugin.value_keys import is_comparable, value_key

_OPTIONS = frozenset({"params", "headers", "cookies", "timeout", "allow_redirects", "auth"})
_SESSION = ("headers", "proxies", "params", "verify", "cert", "max_redirects", "trust_env", "stream")
_FIELDS = frozenset({"status_code", "ok", "text", "content", "reason", "url", "encoding", "is_redirect"})
_METHODS = frozenset({"json", "raise_for_status"})
_PROVIDER = ("web pages",)


def instrument_loaded() -> None:
    """Make GETs of requests share early requests, if the package is loaded."""
    if (requests := _requests()) is not None:
        _SHARED.replace(requests.Session, "request")


def _requests() -> Any:
    found = sys.modules.get("requests")
    return found if hasattr(found, "Session") and hasattr(found, "Response") else None


def gets(function: Any) -> bool:
    """Whether the function is the published `requests.get`, whose requests can be shared."""
    requests = _requests()
    if requests is None or function is not getattr(requests.api, "get", None) or not is_installed(function):
        return False
    is_shared = "__teola_original__" in vars(vars(requests.Session)["request"])
    return is_shared and is_installed(requests.api.request) and is_plain_session(requests.Session()) and send_alone(())


# --- the reader's side -----------------------------------------------------------------------------------------------


def getting(
    run: Run, function: Any, args: Arguments, kwargs: Mapping[str, Any], source: Hashable,
    apart: Callable[[Callable[[], Any]], Any],
) -> Any:  # fmt: skip
    """Return the reply to a GET that is read. `apart` makes the request beside the call.

    Raises: Barrier for options that the client may treat in any way, and for a path that is only assumed.
    """
    if run.has_assumed:
        raise Barrier("it reads from the web on a path that may not be taken")
    exchange = Exchange(run)
    try:
        given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
    except Undecided:
        return unknown_from(run, [list(args), dict(kwargs)], "reply", is_safe=False, more=frozenset([source]))
    named = {**dict(zip(("url", "params"), given, strict=False)), **named}
    if len(given) > 2 or (key := _key("GET", named)) is None:
        raise Barrier("it calls requests.get with options that are not read")
    request = Request(
        ("get", key, _address(named["url"])), _spec(), "act", None, {}, _copied, "reply", False, source,
        "requests.get", lambda: apart(lambda: function(**named)), may_pass=_may_pass,
    )  # fmt: skip
    found = run.ask(request)
    if not _is_sent(named):
        run.raises()
    return found


def attribute(owner: Opaque, name: str) -> Any:
    """Return an attribute of the reader's copy of a reply; NOT_MINE for other objects and attributes."""
    held = owner.held
    if not owner.is_own or type(held) is not _response() or not is_installed(method_of(type(held), name)):
        return NOT_MINE
    if name in _FIELDS:
        return getattr(held, name)
    return (
        Callee(lambda run, args, kwargs: _called(run, held, name, args, kwargs), name) if name in _METHODS else NOT_MINE
    )


def _called(run: Run, held: Any, name: str, args: Arguments, kwargs: Mapping[str, Any]) -> Any:
    if args or kwargs:
        raise Barrier(f"it calls {name} of a reply with arguments")
    return Exchange(run).back(outcome(getattr(held, name)))


def _response() -> Any:
    return _requests().Response


def _copied(reply: Any) -> Opaque:
    """Return a copy of a reply for the reader, without the connection."""
    copy = type(reply)()
    for name in ("status_code", "url", "encoding", "reason"):
        setattr(copy, name, getattr(reply, name))
    copy.headers.update(reply.headers)
    copy._content, copy._content_consumed = reply.content, True
    return Opaque(copy, is_own=True)


def _address(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower(), parts.path


def _may_pass(own: Request, other: Request) -> bool:
    """Whether a GET may be sent while an earlier request is under way."""
    if other.key[0] != "get":  # type: ignore[index]
        return False
    (host, path), (other_host, other_path) = own.key[-1], other.key[-1]  # type: ignore[index]
    return bool(host != other_host or path == other_path)


def _is_sent(named: Mapping[str, Any]) -> bool:
    """Whether the client does not refuse the arguments: an address of the web, plain parameters and headers."""
    texts = [each for name in ("headers", "cookies") for each in (named.get(name) or {}).values()]
    is_plain = all(type(each) is str and each.isascii() and each.isprintable() for each in texts)
    host = _address(named["url"])[0]
    return is_plain and host.startswith(("http://", "https://")) and len(host) > 8 and is_json(named.get("params"))


# --- the framework's side --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Get(Met):
    """A GET. The reply belongs to the caller; the reader copies it."""


def _meet(
    session: Session, original: Callable[..., Any], client: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | None:  # fmt: skip
    named = {**dict(zip(("method", "url"), args, strict=False)), **kwargs}
    method = named.pop("method", None)
    if len(args) > 2 or type(method) is not str or web_clients.is_in_tool() or not _is_new(client):
        return None
    if (key := _key(method.upper(), named)) is None:
        return None
    return _Get(session.claim(_spec(), "tool", key, {}))


_SHARED = sharing(_meet)


def _is_new(client: Any) -> bool:
    """Whether the session is as `requests.get` makes it, without cookies and user code."""
    if not is_plain_session(client) or len(client.cookies):
        return False
    new = type(client)()
    return all(getattr(client, name) == getattr(new, name) for name in _SESSION) and send_alone(())


def _key(method: str, named: Mapping[str, Any]) -> Hashable:
    """Return the key of a GET; None for other methods, and for arguments that cannot be compared."""
    given = {name: value for name, value in named.items() if value is not None}
    if given.get("allow_redirects") is True:  # what `get` adds
        del given["allow_redirects"]
    is_known = method == "GET" and type(given.get("url")) is str and given.keys() <= _OPTIONS | {"url"}
    key = value_key(given) if is_known else None
    return key if is_comparable(key) else None


def _spec() -> EngineSpec:
    return EngineSpec("python", _requests().Session, "requests.get", _PROVIDER)
