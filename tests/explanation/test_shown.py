"""What a user may see of engines holds none of their secrets."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from teola_plugin import shown
from teola_plugin.engines import Capabilities
from teola_plugin.errors import TeolaError
from teola_plugin.registry import EngineConfig, load_engines
from teola_plugin.runtime.engines.build import build
from teola_plugin.runtime.engines.openai import OpenAIEngine
from teola_plugin.runtime.engines.search import SearchEngine
from teola_plugin.runtime.engines.search_shapes import Shape
from teola_plugin.runtime.hosts.ray.actor import _identity
from teola_plugin.runtime.hosts.ray.engines import Running, _check
from teola_plugin.runtime.hosts.remote.messages import EngineInfo
from teola_plugin.templates.engines import engine_of

SECRET = "s3cret"
WITH_KEY = EngineConfig(
    "llm", "openai", model="tiny",
    config={
        "api_key": SECRET, "base_url": f"https://me:{SECRET}@llm.test/v1?key={SECRET}", "max_items": 3,
        "extra_body": {"password": SECRET}, "headers": {"Authorization": f"Bearer {SECRET}"},
    },
)  # fmt: skip
STORE = EngineConfig("store", "chroma", model=f"https://me:{SECRET}@db.test:8000", config={"collection": "docs"})
SEARCH = EngineConfig("web", "search", model=f"https://me:{SECRET}@api.test/find?key={SECRET}")


def hello_of(config: EngineConfig) -> EngineInfo:
    said = config.to_json()
    return EngineInfo(
        4, "0", "3", config.name, config.kind, config.model, "i", said, Capabilities(), None, 1, "node", 1
    )


class Bare:
    """An engine that says nothing of its model."""

    name = "bare"


@pytest.mark.parametrize("config", [WITH_KEY, STORE, SEARCH], ids=lambda config: config.name)
@pytest.mark.parametrize("show", [repr, str, lambda config: f"{[config]}", lambda config: f"{config!r:.200}"])
def test_a_declaration_shows_no_secret(config: EngineConfig, show: Callable[[Any], str]) -> None:
    for thing in (config, hello_of(config), Running(config.name, hello_of(config), {})):
        assert SECRET not in show(thing)
        assert config.name in show(thing)


def test_a_declaration_shows_what_is_no_secret() -> None:
    assert repr(replace(WITH_KEY, num_cpus=2, resources={"tpu": 1.0})) == (
        "EngineConfig(name='llm', kind='openai', model='tiny', config={'api_key': ..., 'base_url': ...,"
        " 'max_items': 3, 'extra_body': ..., 'headers': ...}, num_cpus=2, resources={'tpu': 1.0})"
    )
    assert "https://api.test/find" in repr(SEARCH)


def test_a_parameter_of_a_search_may_be_a_key() -> None:
    assert SECRET not in repr(Shape(parameters={"api_key": SECRET}))


WRONG: dict[str, Callable[[], object]] = {
    "config that is no JSON": lambda: EngineConfig("a", "openai", "m", config={"api_key": SECRET, "x": object()}),
    "key among the resources": lambda: EngineConfig("a", "openai", "m", resources={"key": SECRET}),  # type: ignore[dict-item]
    "model that is a mapping": lambda: EngineConfig("a", "openai", {"api_key": SECRET}),  # type: ignore[arg-type]
    "unknown argument": lambda: build(EngineConfig("a", "openai", "m", config={"api_kye": SECRET})),
    "base_url of another scheme": lambda: OpenAIEngine("m", f"ftp://me:{SECRET}@llm.test"),
    "endpoint of another scheme": lambda: SearchEngine(f"ftp://me:{SECRET}@api.test"),
    "address of no store": lambda: build(replace(STORE, model=f"ftp://me:{SECRET}@db.test")),
    "engine that is a mapping": lambda: engine_of("app", "llm", {"api_key": SECRET}),
    "another model": lambda: _check(hello_of(SEARCH), replace(SEARCH, model="http://other.test")),
    "another identity": lambda: _check(
        replace(hello_of(WITH_KEY), identity=_identity(WITH_KEY, Bare())), replace(WITH_KEY, identity="other")  # type: ignore[arg-type]
    ),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_no_message_shows_a_secret(wrong: Callable[[], object]) -> None:
    with pytest.raises(TeolaError) as raised:
        wrong()
    assert SECRET not in "".join(traceback.format_exception_only(raised.value))


def test_a_table_that_is_none_is_not_shown(tmp_path: Any) -> None:
    path = tmp_path / "engines.toml"
    path.write_text(f'[engines]\nllm = "{SECRET}"\n')
    with pytest.raises(TeolaError, match="got a str") as raised:
        load_engines(path)
    assert SECRET not in str(raised.value)


def test_an_engine_shows_its_address_without_credentials_and_calls_it_with_them() -> None:
    engine = OpenAIEngine("m", f"http://me:{SECRET}@llm.test")
    assert (engine.address, engine._base_url) == ("http://llm.test/v1", f"http://me:{SECRET}@llm.test/v1")
    assert SearchEngine(SEARCH.model).address == "https://api.test/find"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("org/model", "org/model"),
        ("/models/a@b?c", "/models/a@b?c"),
        ("http://host:8000", "http://host:8000"),
        ("http://me@host/a@b", "http://host/a@b"),
        ("http://me:x@y@host/", "http://host/"),
        ("https://host?key=1", "https://host"),
        ("https://host/#key", "https://host/"),
    ],
)
def test_addresses_are_shown_without_what_may_be_secret(given: str, expected: str) -> None:
    assert shown.address(given) == expected
