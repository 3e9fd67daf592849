"""Prompt templates: their variables, and the text around them.

A model's prompt is wanted in pieces, for early prefilling of the pieces known early. Templates, chat templates and role
markup are not parsed here. LangChain's own code formats the prompt with a marker for each variable, the model renders
the result, and the text is cut at the markers:

    'Context: {c}\\n{q}'                                     what the user wrote
    '<user>Context: \\n ⟨0⟩ \\n\\n\\n ⟨1⟩ \\n<end>'              formatted with markers, and rendered
    '<user>Context: ', c, '\\n', q, '<end>'                  cut

A marker carries white space on both sides. Where the white space is gone, the chat template strips the message, and the
piece is stripped likewise. Cutting works for f-string templates without conversions and format specifications; any
other prompt is one piece, made by a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.prompt_values import PromptValue, StringPromptValue
from langchain_core.prompts import BasePromptTemplate
from langchain_core.prompts.message import BaseMessagePromptTemplate

from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.langchain.draft import Draft
from teola_plugin.adapters.langchain.templates import is_transparent, partials_of, parts_of, runs_code
from teola_plugin.adapters.langchain.values import Constant, Prompt, Record, Root, Symbol, Untraceable, Value
from teola_plugin.adapters.reader.foreign import is_library_class

_MODULES = ("langchain_core.prompts.", "langchain_classic.prompts.")
_TEMPLATES = (BasePromptTemplate, BaseMessagePromptTemplate)
_MARKER = re.compile("(\n )?\ue000([0-9]+)\ue001( \n)?")


def trace_prompt(draft: Draft, template: BasePromptTemplate[Any], given: Symbol) -> Symbol:
    """Return the prompt that a template makes of a symbolic input. Raises: Untraceable.

    A template that may raise is also formatted in its own place: a gate for later requests, used or not.
    """
    prompt = _prompt(draft, template, given)
    if isinstance(prompt, Prompt) and not draft.is_total(prompt):
        draft.value(prompt)
    return prompt


def _prompt(draft: Draft, template: BasePromptTemplate[Any], given: Symbol) -> Symbol:
    _refuse_code(template)
    if template.optional_variables and not (isinstance(given, Record) and given.rest is None):
        whole = draft.value(given)
        return draft.call(
            "prompt", "prompt", lambda value: template.format_prompt(**value), whole, is_glue=not runs_code(template),
            holds="prompt",
        )  # fmt: skip
    if isinstance(given, Record) and given.rest is None:
        names = [n for n in (*template.input_variables, *template.optional_variables) if n in given.fields]
        missing = set(template.input_variables) - set(names)
        if missing:
            raise Untraceable("TB108", f"nothing before it makes {', '.join(sorted(missing))}")
        return Prompt(template, {n: given.fields[n] for n in names})
    names = template.input_variables
    if len(names) == 1:
        return Prompt(template, {names[0]: _only(draft, given, names[0])})
    return Prompt(template, {n: draft.field(given, n) for n in names})


def _refuse_code(template: Any) -> None:
    """Look for user code in a template, and in its inner templates. Raises: Untraceable."""
    for part in parts_of(template):
        cls = type(part)
        if not (cls.__module__.startswith(_MODULES) and is_library_class(cls)):
            raise Untraceable("TB109", cls.__name__)
        for name, partial in partials_of(part).items():
            if not is_free_of_code(partial):
                raise Untraceable(
                    "TB109", f"the partial variable {name!r} is code of the user's",
                    "declare it with @teola_plugin.pure if it has no effects",
                )  # fmt: skip
        if getattr(part, "example_selector", None) is not None:
            raise Untraceable("TB109", "its examples are selected by code of its own")
        for held in (getattr(part, "examples", None), getattr(part, "messages", None)):
            if not all(is_free_of_code(each) for each in held or () if not isinstance(each, _TEMPLATES)):
                raise Untraceable("TB109", "it holds objects of the user's")


def _only(draft: Draft, given: Symbol, variable: str) -> Symbol:
    """Return the value of a single variable, given in a dict or by itself."""

    def take(value: Any) -> Any:
        return value[variable] if isinstance(value, dict) else value

    match given:
        case Root():
            return draft.bindings.only(variable)
        case Value(holds="any") if not draft.is_dict(given):
            return draft.call(variable, f"only_{variable}", take, given, identity=("only", variable))
        case Prompt():
            return given
        case Value(holds=holds) if holds != "any":
            return given
        case _:
            return draft.field(given, variable)


# --- pieces ----------------------------------------------------------------------------------------------------------


def cut(draft: Draft, prompt: Symbol, render: Callable[[PromptValue], str]) -> list[Value | str] | None:
    """Return the pieces of the prompt's text as made by `render`; None if the pieces cannot be told apart."""
    match prompt:
        case Prompt(template, variables) if is_transparent(template):
            held = {k: v for k, v in variables.items() if not isinstance(v, Constant)}
            markers = {k: _marker(i) for i, k in enumerate(held)}
            constants = {k: v.value for k, v in variables.items() if isinstance(v, Constant)}
            values = [draft.value(v, k) for k, v in held.items()]
            return _pieces(draft, render(template.format_prompt(**markers, **constants)), values)
        case Value(holds="text", is_list=False):
            return _pieces(draft, render(StringPromptValue(text=_marker(0))), [prompt])
        case _:
            return None


def _marker(number: int) -> str:
    return f"\n \ue000{number}\ue001 \n"


def _pieces(draft: Draft, text: str, values: list[Value]) -> list[Value | str] | None:
    pieces: list[Value | str] = []
    at = 0
    for found in _MARKER.finditer(text):
        pieces.append(text[at : found.start()])
        pieces.append(_stripped(draft, values[int(found[2])], not found[1], not found[3]))
        at = found.end()
    pieces.append(text[at:])
    if any("\ue000" in piece for piece in pieces if isinstance(piece, str)):
        return None
    return [piece for piece in pieces if piece != ""]


def _stripped(draft: Draft, value: Value, left: bool, right: bool) -> Value:
    if not (left or right):
        return value
    name = "strip" if left and right else "lstrip" if left else "rstrip"
    return draft.call(
        f"{value.name}_stripped", name, lambda text: getattr(str(text), name)(), value, identity=name, holds="text",
        is_total=True,
    )  # fmt: skip


# --- prompts as one piece --------------------------------------------------------------------------------------------


def maker(
    draft: Draft, prompt: Symbol, convert: Callable[[Any], PromptValue]
) -> tuple[Callable[..., PromptValue], list[Value]]:
    """Return a function that makes the prompt value, and its arguments. `convert`: the model's input conversion."""
    if isinstance(prompt, Prompt):
        template = prompt.template
        constants: Mapping[str, Any] = {k: v.value for k, v in prompt.variables.items() if isinstance(v, Constant)}
        names = [k for k in prompt.variables if k not in constants]
        args = [draft.value(prompt.variables[k], k) for k in names]
        return lambda *a: template.format_prompt(**dict(zip(names, a, strict=True)), **constants), args
    return convert, [draft.value(prompt)]
