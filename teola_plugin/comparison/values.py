"""Equality of two answers, and the places of differences.

Numbers may differ by 1e-5: an embedding computed in a batch differs in the last bits from an embedding computed alone,
in the unoptimized pipeline too. The ids which LangChain invents for each message, and models for each tool call, are
left out; ids which LlamaIndex gives to nodes made in a call are only numbered.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

TOLERANCE = 1e-5
_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def plain(value: Any) -> Any:
    """Return nested dicts, lists, texts and numbers with the same content; an object's type is under the key `type`."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case Mapping():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case set() | frozenset():
            return sorted((plain(item) for item in value), key=repr)
        case np.ndarray() | np.generic():
            return value.tolist()
    if isinstance(fields := getattr(type(value), "model_fields", None), Mapping):  # a pydantic model
        content = plain({name: getattr(value, name) for name in fields} | (getattr(value, "model_extra", None) or {}))
        if _is_message(value):
            _leave_out_ids(content)
        return {"type": type(value).__qualname__, **content}
    if dataclasses.is_dataclass(value):
        return {"type": type(value).__qualname__} | {
            f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if any("__repr__" in vars(base) for base in type(value).__mro__[:-1]):
        return repr(value)
    return {"type": type(value).__qualname__, **{k: plain(v) for k, v in getattr(value, "__dict__", {}).items()}}


def without_new_ids(first: Any, second: Any) -> tuple[Any, Any]:
    """Return both plain values, with the ids found in only one value numbered in order.

    LlamaIndex gives random ids to nodes made in a call: sub-questions, citations, chunks.
    """
    ids = [dict.fromkeys(_IDS.findall(json.dumps(value, default=repr))) for value in (first, second)]
    return _numbered(first, ids[0].keys() - ids[1].keys(), ids[0]), _numbered(
        second, ids[1].keys() - ids[0].keys(), ids[1]
    )


def _numbered(value: Any, new: Collection[str], ids: Iterable[str]) -> Any:
    if not new:
        return value
    numbers = {each: f"<new id {n}>" for n, each in enumerate(each for each in ids if each in new)}

    def renamed(text: str) -> str:
        return _IDS.sub(lambda found: numbers.get(found[0], found[0]), text)

    def walk(value: Any) -> Any:
        match value:
            case str():
                return renamed(value)
            case dict():
                return {renamed(key): walk(item) for key, item in value.items()}
            case list():
                return [walk(item) for item in value]
        return value

    return walk(value)


def differences(first: Any, second: Any, at: str = "") -> Iterator[str]:
    """Yield each place where two plain values differ, as one line: `[0].score: 0.5 != 0.6`."""
    if isinstance(first, dict) and isinstance(second, dict):
        for key in sorted(first.keys() | second.keys()):
            if key not in first or key not in second:
                yield f"{at}.{key}: only in the {'original' if key in first else 'optimized'}"
            else:
                yield from differences(first[key], second[key], f"{at}.{key}")
    elif isinstance(first, list) and isinstance(second, list):
        if len(first) != len(second):
            yield f"{at}: {len(first)} items != {len(second)} items"
        for i, (a, b) in enumerate(zip(first, second, strict=False)):
            yield from differences(a, b, f"{at}[{i}]")
    elif not _same(first, second):
        yield f"{at or 'answer'}: {first!r:.80} != {second!r:.80}"


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, float) or isinstance(second, float):
        if not isinstance(first, int | float) or not isinstance(second, int | float):
            return False
        return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=TOLERANCE) or (
            first != first and second != second
        )
    return type(first) is type(second) and bool(first == second)


def _leave_out_ids(message: dict[str, Any]) -> None:
    message.pop("id", None)
    message.pop("tool_call_id", None)
    for fields in (message, message.get("additional_kwargs") or {}):
        for calls in ("tool_calls", "invalid_tool_calls", "tool_call_chunks"):
            for call in fields.get(calls) or ():
                call.pop("id", None)


def _is_message(value: Any) -> bool:
    """Whether the value is a LangChain message or a message chunk."""
    return any(base.__name__ == "BaseMessage" for base in type(value).__mro__)
