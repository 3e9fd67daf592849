"""The request and answer formats of search endpoints: parameters, and the place of the results in the JSON.

    Shape()                                                     GET ?q=..., {"results": [{"title", "url", "content"}]}
    Shape(count="count", results="web.results", snippet="description", key_header="X-Subscription-Token")
    Shape(method="POST", count="num", results="organic", url="link", snippet="snippet", key_header="X-API-KEY")

Named shapes are in SHAPES; a declaration may give the fields of another shape instead.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from teola_plugin.errors import EngineError

Result = dict[str, str]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Shape:
    """The format of requests and answers.

    `query`, `count`: the parameters for the query and the number of results (empty: no parameter). `parameters`: sent
    with each request. `results`: the path to the list, by keys and positions ("web.results"). `title`, `url`,
    `snippet`: the paths within a result. `key_header`: the header of the key, in the format `key_format`.
    `may_lack_results`: an answer without the list means no results; otherwise an error.
    """

    method: Literal["GET", "POST"] = "GET"
    query: str = "q"
    count: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    results: str = "results"
    title: str = "title"
    url: str = "url"
    snippet: str = "content"
    key_header: str = ""
    key_format: str = "{key}"
    may_lack_results: bool = False


SHAPES: Mapping[str, Shape] = {
    "searxng": Shape(parameters={"format": "json"}),
    "brave": Shape(
        count="count", results="web.results", snippet="description", key_header="X-Subscription-Token",
        may_lack_results=True,
    ),
}  # fmt: skip


def shape_of(given: str | Mapping[str, Any] | Shape) -> Shape:
    """Return the shape of a name, or of fields. Raises: EngineError."""
    if isinstance(given, Shape):
        return given
    if isinstance(given, str):
        if given not in SHAPES:
            raise EngineError(f"shape: expected one of {', '.join(SHAPES)}, or fields of one, got {given!r}")
        return SHAPES[given]
    shape = record(Shape, given, "shape")
    if shape.method not in ("GET", "POST"):
        raise EngineError(f"shape.method: expected GET or POST, got {shape.method!r}")
    return shape


def record(kind: type[T], given: Mapping[str, Any], name: str) -> T:
    """Return a dataclass of the fields. Raises: EngineError that names an unknown field."""
    known = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise EngineError(f"{name}.{key}: no such field{hint}; known are {', '.join(known)}")
    return kind(**given)


def read_results(shape: Shape, said: Any, top_k: int) -> list[Result]:
    """Return the first `top_k` results of an answer. A result without an address is left out; a missing text is empty.

    Raises: EngineError if the list is not at the path of the shape, or no result has an address.
    """
    found = _at(said, shape.results)
    if found is None and shape.may_lack_results and isinstance(said, Mapping):
        return []
    if not isinstance(found, list):
        raise EngineError(f"its answer has no list at {shape.results!r}, but {_outline(said)}; give the right shape")
    results = [
        {"title": _text(each, shape.title), "url": url, "snippet": _text(each, shape.snippet)}
        for each in found
        if (url := _text(each, shape.url))
    ]
    if found and not results:
        raise EngineError(f"its results have no {shape.url!r}, but {_outline(found[0])}; give the right shape")
    return results[:top_k]


def _at(said: Any, way: str) -> Any:
    """Return the value at a path; None if absent."""
    for step in filter(None, way.split(".")):
        if isinstance(said, Mapping):
            said = said.get(step)
        elif isinstance(said, Sequence) and not isinstance(said, str) and step.isdecimal() and int(step) < len(said):
            said = said[int(step)]
        else:
            return None
    return said


def _text(result: Any, way: str) -> str:
    found = _at(result, way)
    return found if isinstance(found, str) else ""


def _outline(said: Any) -> str:
    return f"the keys {', '.join(map(str, said))}" if isinstance(said, Mapping) else f"a {type(said).__name__}"
