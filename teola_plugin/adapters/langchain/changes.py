"""Whether the components of a pipeline are as they were read: changed components ask for something else.

A pipeline with a step, the text of a template or a method of LangChain's classes replaced after `optimize` is left to
the framework: the graph that was read does not hold any more. The settings of models are looked at for each request.
Attributes that the user's own classes add are theirs to change (a counter): the graph does not depend on them, unless
they hold components.

    chain.last.messages[0].prompt.template = "..."      the next calls run ahead of nothing
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import is_
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.prompts import BasePromptTemplate
from langchain_core.prompts.message import BaseMessagePromptTemplate
from langchain_core.runnables import Runnable

from teola_plugin.adapters.langchain.binding import Entered
from teola_plugin.adapters.langchain.templates import parts_of
from teola_plugin.adapters.methods import Methods, is_replaced
from teola_plugin.adapters.reader.foreign import is_library_class, mro_of
from teola_plugin.adapters.reader.values import isinstance_of

_METHODS = frozenset([
    "format_prompt", "format_messages", "format", "parse_result", "parse",
    "_get_relevant_documents", "_aget_relevant_documents",
])  # fmt: skip
"""Methods of prompts, parsers and retrievers that early code calls, or stands in for."""


class Components:
    """The components of a pipeline, as they were read."""

    def __init__(self) -> None:
        self._parts: dict[int, _Part] = {}
        self._methods = Methods(_METHODS)
        self._root: Any = None

    def add(self, component: Any) -> None:
        """Note a component, and the parts of a prompt template."""
        self._root = component if self._root is None else self._root
        if isinstance_of(component, BaseLanguageModel):
            return
        for part in _parts_of(component):
            self._parts[id(part)] = _Part(part)
            self._methods.note(type(part))

    def check(self, entered: Any) -> None:
        """Raise LookupError if a component was changed since. `entered`: an input of the call."""
        twin = entered.twin if isinstance(entered, Entered) else None
        if not self._are_as_read(twin):
            raise LookupError("a component was changed after it had been read; optimize the pipeline again")

    def _are_as_read(self, twin: Any) -> bool:
        """Whether nothing was changed. `twin`: the object called in place of the first component."""
        return self._methods.are_unchanged() and all(
            part.is_as_read(twin if part.part is self._root else None) for part in self._parts.values()
        )


def replaced_method(component: Any) -> str:
    """Return the name of a method of the library's that was replaced by code of the user's, or ""."""
    of_object = _METHODS.intersection(getattr(component, "__dict__", ()))
    return min([*of_object, *(name for name in _METHODS if is_replaced(type(component), name))], default="")


class _Part:
    """A component: the attributes that the graph depends on, and what lists and dicts among them hold."""

    def __init__(self, part: Any) -> None:
        counts = _counting(type(part))
        own = {name: value for name, value in getattr(part, "__dict__", {}).items() if counts(name, value)}
        self.part = part
        self._names, self._values = list(own), list(own.values())
        self._contents = [(value, held) for value in self._values if (held := _content(value)) is not None]

    def is_as_read(self, twin: Any) -> bool:
        """Whether nothing was replaced, in `twin` if given."""
        own = getattr(self.part if twin is None else twin, "__dict__", {})
        is_same = all(map(is_, map(own.get, self._names), self._values)) and _METHODS.isdisjoint(own)
        return is_same and all(_are_same(_content(value) or [], held) for value, held in self._contents)


def _counting(cls: type) -> Callable[[str, Any], bool]:
    """Return whether an attribute of an object of the class belongs to a class of the library, or holds components."""
    base = next((each for each in mro_of(cls) if is_library_class(each)), object)
    fields = getattr(base, "model_fields", ())

    def counts(name: str, value: Any) -> bool:
        if base is cls or name in fields:
            return True
        return any(isinstance_of(each, Runnable) for each in _content(value) or [value])

    return counts


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
