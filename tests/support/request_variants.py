"""Requests that differ in one thing each, made from the signatures and fields of those who make them.

keys_asked(lambda: model.invoke("?"))        the keys under which that asks the session, which then ends
variants(value)                              values that somebody could tell from it
with_each_field(model)                       what to do to a model, for each of its fields
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import SecretStr

from teola_plugin.engines import EngineSpec
from teola_plugin.request_identity import request_key
from teola_plugin.seams import Reply, Session, active
from teola_plugin.value_keys import is_comparable

REASONING_FIRST = {"json": {"properties": {"reasoning": {"type": "string"}, "answer": {"type": "string"}}}}
ANSWER_FIRST = {"json": {"properties": {"answer": {"type": "string"}, "reasoning": {"type": "string"}}}}
"""Equal dicts, and two grammars: a model that has to answer first has not thought yet."""

VALUES: tuple[Any, ...] = (
    None, 0, 1, True, False, 0.0, -0.0, 1.0, 0.5, "a", "b", "", [], ["a"], ["b"], ["a", "b"], ["b", "a"], ("a",),
    {"a": 1}, {"a": True}, {"a": 1.0}, REASONING_FIRST, ANSWER_FIRST, [REASONING_FIRST], [ANSWER_FIRST],
)  # fmt: skip
"""For an argument of which nothing is known. No two are the same to an engine."""


class _Noted(BaseException):
    """The request is known, and nobody answers it."""


class Noting(Session):
    """A session that notes the key of what is asked."""

    is_unheard = False

    def __init__(self, *, is_unheard: bool = False) -> None:
        self.is_unheard = is_unheard
        self.keys: list[Hashable] = []
        self.requests: list[tuple[Any, Any]] = []

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        self.keys += [request_key(spec, op, payload, settings) for payload in payloads]
        self.requests += [(payload, dict(settings)) for payload in payloads]
        raise _Noted

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        self.ask(spec, op, [payload], settings)
        raise AssertionError


def noted(act: Callable[[], Any], *, is_unheard: bool = False) -> Noting:
    """What `act` asks for until its first request."""
    session = Noting(is_unheard=is_unheard)
    with active(session), contextlib.suppress(_Noted):
        act()
    return session


def keys_asked(act: Callable[[], Any]) -> tuple[Hashable, ...]:
    """The keys of what `act` asks for with its first request; of none if it asks for nothing."""
    return tuple(noted(act).keys)


def variants(value: Any) -> list[Any]:
    """Values that somebody could tell from this one."""
    match value:
        case None:
            return ["x", 0, {"x": 1}]
        case bool():
            return [not value, int(value)]
        case int():
            return [value + 1, float(value), str(value)]
        case float():
            return [value + 0.5, -value, int(value) if value.is_integer() else str(value)]
        case str():
            return [f"{value}x", [value], value.encode()]
        case SecretStr():
            return [SecretStr(f"{value.get_secret_value()}x")]
        case dict():
            turned = dict(reversed(value.items()))
            return [{**value, "x": 1}, {**value, "x": True}, {**value, "x": 1.0}, *([turned] if len(value) > 1 else [])]
        case list():
            return [[*value, "x"], tuple(value), *([value[::-1]] if len(value) > 1 else []), *([[]] if value else [])]
        case _:
            return [object()]


def with_each_field(model: Any, without: Sequence[str] = ()) -> Iterator[tuple[str, Callable[[], Any]]]:
    """For each field of a pydantic object and each other value of it, what sets it to that value."""
    for name in type(model).model_fields:
        if name not in without and name in vars(model):
            for number, value in enumerate(variants(vars(model)[name])):
                yield f"{name}-{number}", lambda name=name, value=value: vars(model).__setitem__(name, value)


def arguments_of(function: Callable[..., Any], without: Sequence[str] = ()) -> list[str]:
    """The names of what a function takes by keyword."""
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    found = [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]
    return [name for name in found if name not in ("self", *without)]


def assert_all_differ(keys: Mapping[str, Hashable]) -> None:
    """No two of these requests are the same; all could be asked for again."""
    seen: dict[Hashable, str] = {}
    for name, key in keys.items():
        assert key is not None
        assert name == seen.setdefault(key, name), f"{name} has the key of {seen[key]}"


def assert_each_can_be_found(keys: Mapping[str, Sequence[Hashable]]) -> None:
    """Each request has a key that another one could have."""
    for name, found in keys.items():
        assert found, f"{name} asks for nothing"
        assert all(map(is_comparable, found)), f"{name} is like nothing"
