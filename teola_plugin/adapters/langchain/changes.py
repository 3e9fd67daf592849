"""Whether the components of a pipeline are as they were read: changed components ask for something else.

Whoever replaces a step, the text of a template or a method of LangChain's classes after `optimize` gets the framework's
own run: the graph that was read does not hold any more. The settings of models are looked at for each request.

    chain.last.messages[0].prompt.template = "..."      the next calls run ahead of nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_
from types import FunctionType
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.prompts.message import BaseMessagePromptTemplate

from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.templates import parts_of
from teola_plugin.adapters.reader.foreign import is_library_class
from teola_plugin.adapters.reader.values import is_installed_file, isinstance_of

_METHODS = (
    "format_prompt", "format_messages", "format", "parse_result", "parse",
    "_get_relevant_documents", "_aget_relevant_documents",
)  # fmt: skip
"""Methods of prompts, parsers and retrievers that early code calls, or stands in for."""


class Components:
    """The components of a pipeline, as they were read."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._methods: dict[tuple[type, str], Any] = {}
        self._root: Any = None

    def add(self, component: Any) -> None:
        """Note a component, and the parts of a prompt template."""
        self._root = component if self._root is None else self._root
        if isinstance_of(component, BaseLanguageModel):
            return
        for part in _parts_of(component):
            self._parts[id(part)] = _Part(part)
            self._methods.update(((type(part), name), method) for name, method in _methods(type(part)))

    def are_as_read(self, twin: Any = None) -> bool:
        """Whether nothing was changed since. `twin`: the object called in place of the first component."""
        if not all(_method(cls, name) is method for (cls, name), method in self._methods.items()):
            return False
        return all(part.is_as_read(twin if part.part is self._root else None) for part in self._parts.values())

    def bind(self, bind: Callable[[Any], Mapping[str, Any]]) -> Callable[[Any], Mapping[str, Any]]:
        """Return `bind` for as long as the components are as they were read; then it raises LookupError."""

        def bind_as_read(entered: Any) -> Mapping[str, Any]:
            if not self.are_as_read(entered.twin if isinstance(entered, Entered) else None):
                raise LookupError("a component was changed after it had been read; optimize the pipeline again")
            return bind(entered)

        return bind_as_read


def replaced_method(component: Any) -> str:
    """Return the name of a method of the library's that was replaced by code of the user's, or ""."""
    if not is_library_class(type(component)):
        return ""
    return next((name for name, method in _methods(type(component)) if not _is_installed(method)), "")


class _Part:
    """A component: its attributes, and what lists and dicts among them hold."""

    def __init__(self, part: Any) -> None:
        own = getattr(part, "__dict__", {})
        self.part = part
        self._names, self._values = list(own), list(own.values())
        self._contents = [(value, held) for value in self._values if (held := _content(value)) is not None]

    def is_as_read(self, twin: Any) -> bool:
        """Whether nothing was replaced, in `twin` if given."""
        own = getattr(self.part if twin is None else twin, "__dict__", {})
        is_same = all(map(is_, map(own.get, self._names), self._values))
        return is_same and all(_are_same(_content(value) or [], held) for value, held in self._contents)


def _parts_of(component: Any) -> Iterator[Any]:
    yield component
    if isinstance_of(component, BasePromptTemplate) or isinstance_of(component, BaseMessagePromptTemplate):
        for part in parts_of(component):
            yield part
            yield from (each for each in getattr(part, "messages", ()) if isinstance_of(each, BaseMessage))


def _content(value: Any) -> list[Any] | None:
    """Return what a list or dict holds, None for any other value."""
    if type(value) is dict:
        return [*value, *value.values()]
    return [*value] if type(value) is list else None


def _are_same(now: list[Any], then: list[Any]) -> bool:
    return len(now) == len(then) and all(map(is_, now, then))


def _methods(cls: type) -> list[tuple[str, Any]]:
    return [(name, method) for name in _METHODS if (method := _method(cls, name)) is not None]


def _method(cls: type, name: str) -> Any:
    """Return a method without our own replacement."""
    method = getattr(cls, name, None)
    return getattr(method, "__teola_original__", method)


def _is_installed(method: Any) -> bool:
    return type(method) is not FunctionType or is_installed_file(method.__code__.co_filename)
