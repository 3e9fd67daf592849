"""Which clients send requests without running the user's code: no hook, transport or method of the user's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import httpx
import openai
import pytest

from teola_plugin.adapters.clients import are_own_clients, has_own_caches


class Transport(httpx.HTTPTransport):
    """A transport of the user's."""


class Wrapper:
    """A client of an SDK that nothing is known of, as far as its attributes tell. Stands in for an installed class."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


@pytest.fixture(autouse=True)
def wrapper_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    from teola_plugin.adapters import clients

    is_installed = clients._is_installed
    monkeypatch.setattr(clients, "_is_installed", lambda cls: cls is Wrapper or is_installed(cls))


def hooked() -> httpx.Client:
    return httpx.Client(event_hooks={"request": [print]})


def with_own_method() -> httpx.Client:
    client = httpx.Client()
    vars(client)["send"] = print
    return client


WORKLOAD = {"client_id": "x", "provider": {"token_type": "jwt", "get_token": lambda: "token"}}

PLAIN: dict[str, Callable[[], Any]] = {
    "httpx": httpx.Client,
    "httpx, asynchronous": httpx.AsyncClient,
    "openai": lambda: openai.OpenAI(api_key="x"),
    "a client with a client": lambda: Wrapper(_client_wrapper=Wrapper(httpx_client=httpx.Client()), retries=None),
    "functions of packages": lambda: Wrapper(middleware=(httpx.get,), kind=httpx.Client),
}
WITH_USER_CODE: dict[str, Callable[[], Any]] = {
    "a hook": hooked,
    "a transport": lambda: httpx.Client(transport=Transport()),
    "a mounted transport": lambda: httpx.Client(mounts={"http://": Transport()}),
    "a method on the client": with_own_method,
    "a hook of openai's": lambda: openai.OpenAI(api_key="x", http_client=hooked()),
    "a hook of an inner client's": lambda: Wrapper(_client_wrapper=Wrapper(httpx_client=hooked())),
    "an object of the user's": lambda: Wrapper(tracer=Transport()),
    "a function": lambda: Wrapper(_key_of=lambda: "key"),
    "a partial of a function": lambda: Wrapper(_key_of=partial(str, "key")),
    "a partial in openai's client": lambda: openai.OpenAI(api_key=partial(str, "key")),  # type: ignore[arg-type]
    "a cached function in openai's client": lambda: openai.OpenAI(api_key=cache(lambda: "key")),  # type: ignore[arg-type]
    "a class in openai's client": lambda: openai.OpenAI(api_key=Transport),  # type: ignore[arg-type]
    "a function in a dict of openai's client": lambda: openai.OpenAI(workload_identity=WORKLOAD),  # type: ignore[arg-type]
    "a function in a list": lambda: Wrapper(middleware=[lambda request: request]),
    "a method of an object": lambda: Wrapper(_after=Transport().__init__, _before=hooked),
    "a function in a dict": lambda: Wrapper(headers={"key": lambda: "x"}),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_client_without_user_code_is_its_own(name: str) -> None:
    assert are_own_clients([PLAIN[name]()])


@pytest.mark.parametrize("name", WITH_USER_CODE)
def test_a_client_with_user_code_is_not(name: str) -> None:
    assert not are_own_clients([WITH_USER_CODE[name]()])


@pytest.mark.parametrize(
    ("cls", "method"),
    [(httpx.Client, "send"), (httpx.Client, "build_request"), (httpx.HTTPTransport, "handle_request")],
)
def test_a_method_of_the_http_client_replaced_on_the_class(
    cls: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = openai.OpenAI(api_key="x")
    assert are_own_clients([client])
    monkeypatch.setattr(cls, method, lambda self, *args, **kwargs: None)
    assert not are_own_clients([client])


@pytest.mark.parametrize(("look", "name"), [(are_own_clients, "_is_part"), (has_own_caches, "_is_made_when_read")])
def test_another_thread_may_use_a_client_meanwhile(
    monkeypatch: pytest.MonkeyPatch, look: Callable[[Any], bool], name: str
) -> None:
    """A client makes its resources when they are first used."""
    from teola_plugin.adapters import clients

    client = openai.OpenAI(api_key="x")
    assert client.chat.completions
    before, resources = getattr(clients, name), iter(("embeddings", "models", "files"))
    monkeypatch.setattr(clients, name, lambda *given: (getattr(client, next(resources, "chat")), before(*given))[1])
    assert look([client] if look is are_own_clients else client)
