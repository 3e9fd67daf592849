"""Web interfaces that a function asks by `requests.get`, and models by `requests.post`: requests to outside services.

    for city in cities:
        reply = requests.get(URL, params={"q": city}, timeout=10)      all are sent at once
        found.append(reply.json()["temperature"])

A POST counts if its address and body are those of a model's inference (chat, completion, embedding, reranking) in the
protocols of OpenAI, Cohere and Ollama. Such a request leaves nothing behind, and is sent as that of any hosted model.

GET is a safe method: it only reads (RFC 9110, section 9.2.1). Not every service keeps to that. So a GET is sent early
only once every request before it has been answered, except GETs of the same address with other parameters, and GETs of
other hosts. The run of the framework takes the reply; the reader works on a copy.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from teola_plugin.adapters import web_clients
from teola_plugin.adapters.clients import is_plain_session, send_alone
from teola_plugin.adapters.interception import Met, intercept, sharing
from teola_plugin.adapters.methods import is_installed, is_shared, method_of
from teola_plugin.adapters.reader.asking import NOT_MINE, Request
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.facts import plain_text
from teola_plugin.adapters.reader.partly import unknown_from
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Arguments, Barrier, Callee, Opaque, Undecided
from teola_plugin.adapters.rehearsal import outcome
from teola_plugin.adapters.service import is_json
from teola_plugin.engines import EngineSpec
from teola_plugin.errors import Cancelled
from teola_plugin.providers import origin_of
from teola_plugin.seams import Session, is_unheard
from teola_plugin.value_keys import is_comparable, value_key

_OPTIONS = frozenset({"params", "headers", "cookies", "timeout", "allow_redirects", "auth"})
_SESSION = ("headers", "proxies", "params", "verify", "cert", "max_redirects", "trust_env", "stream")
_FIELDS = frozenset({"status_code", "ok", "text", "content", "reason", "url", "encoding", "is_redirect"})
_METHODS = frozenset({"json", "raise_for_status"})
PROVIDER = ("web pages",)

_INFERENCE = (
    "/chat/completions", "/completions", "/embeddings", "/rerank", "/reranker", "/api/chat", "/api/generate",
    "/api/embed",
)  # fmt: skip
"""How the addresses of models end."""

FAILED = 400
"""The least status of an error."""

_ASKED = ("messages", "prompt", "input", "texts", "query", "documents")
_KEPT = ("stream", "store", "background")
"""Fields of a body by which a service streams the reply, or keeps something."""


def instrument_loaded() -> None:
    """Make what the package requests sends share early requests, if the package is loaded."""
    if (requests := _requests()) is not None:
        intercept(requests.Session, "request", _answering)


def _requests() -> Any:
    found = sys.modules.get("requests")
    return found if hasattr(found, "Session") and hasattr(found, "Response") else None


def method_of_call(function: Any) -> str:
    """Return "GET" or "POST" for the published `requests.get` and `post`, if their requests can be shared; else ""."""
    api = getattr(_requests(), "api", None)
    method = next((each for each in _POSITIONAL if function is getattr(api, each.lower(), None)), "")
    return method if method and is_installed(function) and _is_as_published() else ""


_POSITIONAL = {"GET": ("url", "params"), "POST": ("url", "data", "json")}


def _is_as_published() -> bool:
    requests = _requests()
    is_plain = is_installed(requests.api.request) and is_plain_session(requests.Session()) and send_alone(())
    return is_plain and is_shared(requests.Session, "request")


# --- the reader's side -----------------------------------------------------------------------------------------------


def requesting(
    run: Run, function: Any, args: Arguments, kwargs: Mapping[str, Any], source: Hashable,
    apart: Callable[[Callable[[], Any]], Any],
) -> Any:  # fmt: skip
    """Return the reply to a request that is read. `apart` makes the request beside the call.

    Raises: Barrier for options that the client may treat in any way, and for a path that is only assumed.
    """
    if run.has_assumed:
        raise Barrier("it reads from the web on a path that may not be taken")
    exchange, method = Exchange(run), method_of_call(function)
    names = _POSITIONAL[method]
    try:
        given, named = exchange.out(list(args)), exchange.out(dict(kwargs))
    except Undecided:
        if method != "GET" and not _may_be_inference({**dict(zip(names, args, strict=False)), **kwargs}):
            raise Barrier("it calls requests.post, and it is not known yet for what") from None
        return unknown_from(run, [list(args), dict(kwargs)], "reply", is_safe=False, more=frozenset([source]))
    named = {**dict(zip(names, given, strict=False)), **named}
    if len(given) > len(names) or (key := _key(method, named)) is None:
        raise Barrier(f"it calls requests.{method.lower()} with options that are not read")

    def early() -> Any:
        if method_of_call(function) != method:
            raise changed()
        with claiming():
            return function(**named)

    request = Request(
        (method, key, address_of(named["url"])), _spec(named["url"], method), "act", None, {}, _copied, "reply", False,
        source, "requests", lambda: apart(early), may_pass=may_pass_get if method == "GET" else None,
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


def address_of(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower(), parts.path


def may_pass_get(own: Request, other: Request) -> bool:
    """Whether a GET may be sent while an earlier request is under way: not while the same is, which may count calls."""
    if type(other.key) is not tuple or other.key[0] != "GET" or other.key == own.key:
        return False
    (host, path), (other_host, other_path) = own.key[-1], other.key[-1]  # type: ignore[index]
    return bool(host != other_host or path == other_path)


def _is_sent(named: Mapping[str, Any]) -> bool:
    """Whether the client does not refuse the arguments: an address of the web, plain parameters and headers."""
    texts = [each for name in ("headers", "cookies") for each in (named.get(name) or {}).values()]
    is_plain = all(type(each) is str and each.isascii() and each.isprintable() for each in texts)
    host = address_of(named["url"])[0]
    return (
        is_plain
        and host.startswith(("http://", "https://"))
        and len(host) > 8
        and is_json([named.get("params"), named.get("json")])
    )


# --- the framework's side --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sent(Met):
    """A request. The reply belongs to the caller; the reader copies it."""

    def reply(self, value: Any) -> Any:
        """See `Met.reply`. Raises: Refused."""
        if value.status_code >= FAILED:
            raise Refused(value)
        return value


is_claiming: ContextVar[bool] = ContextVar("teola_web_page_early", default=False)


@contextlib.contextmanager
def claiming() -> Iterator[None]:
    """Make only requests inside the block which the framework's run can take."""
    token = is_claiming.set(True)
    try:
        yield
    finally:
        is_claiming.reset(token)


def _meet(
    session: Session, original: Callable[..., Any], client: Any, args: Sequence[Any], kwargs: Mapping[str, Any],
    is_async: bool,
) -> Met | None:  # fmt: skip
    found = _claim_of(client, args, kwargs)
    return None if found is None else Sent(session.claim(*found, {}))


def _claim_of(client: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[EngineSpec, str, Hashable] | None:
    """Return the service, the operation and the key of a request; None if the request is nobody else's."""
    if web_clients.is_in_tool():
        return None
    given = {**dict(zip(("method", "url"), args, strict=False)), **kwargs}
    named = {name: plain_text(value) for name, value in given.items()}
    method = named.pop("method", None)
    if len(args) > 2 or type(method) is not str or not _is_new(client):
        return None
    if (key := _key(method.upper(), named)) is None:
        return None
    return _spec(named["url"], method.upper()), "tool", key


_SHARED = sharing(_meet)


def changed() -> Cancelled:
    """Return the error for an early request which the framework's run could not take."""
    return Cancelled("the client was changed after this request was foreseen")


class Refused(Exception):
    """A reply with the status of an error, as an error: others' early requests may have caused it (failures.py)."""

    def __init__(self, response: Any) -> None:
        reason = getattr(response, "reason", None) or getattr(response, "reason_phrase", "")
        super().__init__(f"{response.status_code} {reason} {response.text[:TOLD]}")
        self.response = response


TOLD = 1_000
"""Characters of a refusal that are looked at."""


def _answering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method with shared replies. A refusal is a reply for the program, and an error for early requests."""
    shared = _SHARED.sync(original)

    def request(self: Any, *args: Any, **kwargs: Any) -> Any:
        if is_claiming.get() and _claim_of(self, args, kwargs) is None:
            raise changed()
        try:
            return shared(self, *args, **kwargs)
        except Refused as e:
            if is_unheard():
                raise
            return e.response

    return request


def _is_new(client: Any) -> bool:
    """Whether the session is as `requests.get` makes it, without cookies and user code."""
    if not is_plain_session(client) or len(client.cookies):
        return False
    new = type(client)()
    return all(getattr(client, name) == getattr(new, name) for name in _SESSION) and send_alone(())


def _key(method: str, named: Mapping[str, Any]) -> Hashable:
    """Return the key of a request; None for other requests, and for arguments that cannot be compared."""
    given = {name: value for name, value in named.items() if value is not None}
    if given.get("allow_redirects") is True:  # what `get` adds
        del given["allow_redirects"]
    if type(given.get("url")) is not str or given.keys() - _OPTIONS - ({"url"} if method == "GET" else {"url", "json"}):
        return None
    if method != "GET" and not (method == "POST" and _is_inference(given["url"], given.get("json"))):
        return None
    key = value_key((method, given))
    return key if is_comparable(key) else None


def _may_be_inference(named: Mapping[str, Any]) -> bool:
    """Whether a POST asks a model, although some values of its body are not known yet."""
    body = named.get("json")
    try:
        return type(named.get("url")) is str and type(body) is dict and _is_inference(named["url"], body)
    except Undecided:
        return False


def _is_inference(url: str, body: Any) -> bool:
    """Whether a POST asks a model for a whole reply, and the service keeps nothing."""
    if (
        type(body) is not dict
        or any(body.get(name) not in (None, False) for name in _KEPT)
        or not any(name in body for name in _ASKED)
    ):
        return False
    is_of_ollama = "/api/" in url  # which streams unless told otherwise
    is_whole = body.get("stream") is False or "/api/embed" in url or not is_of_ollama
    return "model" in body and urlsplit(url).path.rstrip("/").endswith(_INFERENCE) and is_whole


def _spec(url: str, method: str) -> EngineSpec:
    """Return the service: all pages are one, as most hosts are asked once; a model's is known by its origin."""
    return EngineSpec("python", _requests().Session, "requests", PROVIDER if method == "GET" else origin_of(url))
