"""The parts of a prompt template."""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.prompts import (
    AIMessagePromptTemplate,
    ChatMessagePromptTemplate,
    ChatPromptTemplate,
    HumanMessagePromptTemplate,
    PromptTemplate,
    SystemMessagePromptTemplate,
)

_MESSAGES = (
    HumanMessagePromptTemplate,
    AIMessagePromptTemplate,
    SystemMessagePromptTemplate,
    ChatMessagePromptTemplate,
)


def runs_code(template: Any) -> bool:
    """Whether formatting runs more than concatenation of texts: a user function or a template language."""
    return any(
        getattr(part, "template_format", "f-string") != "f-string" or any(map(callable, partials_of(part).values()))
        for part in parts_of(template)
    )


def parts_of(template: Any) -> Iterator[Any]:
    """Yield the template and its inner templates."""
    yield template
    prompts = getattr(template, "prompt", None) or ()
    inner = [*getattr(template, "messages", ()), *(prompts if isinstance(prompts, list | tuple) else [prompts])]
    inner += [prompt for _, prompt in getattr(template, "pipeline_prompts", ())]
    inner += [part for part in [getattr(template, "final_prompt", None)] if part is not None]
    for part in [*inner, getattr(template, "example_prompt", None)]:
        if part is not None and not isinstance(part, BaseMessage):
            yield from parts_of(part)


def partials_of(template: Any) -> Mapping[str, Any]:
    """Return the template's own variables: values, or functions called at formatting."""
    return getattr(template, "partial_variables", None) or {}


def is_transparent(template: Any) -> bool:
    """Whether the formatted text is the variables' texts inside constant text."""
    match template:
        case PromptTemplate():
            return type(template) is PromptTemplate and _is_plain(template)
        case ChatPromptTemplate():
            return type(template) is ChatPromptTemplate and all(map(_is_plain_message, template.messages))
        case _:
            return False


def _is_plain_message(message: Any) -> bool:
    if isinstance(message, BaseMessage):
        return True
    return type(message) in _MESSAGES and isinstance(message.prompt, PromptTemplate) and _is_plain(message.prompt)


def _is_plain(template: PromptTemplate) -> bool:
    if template.template_format != "f-string" or any(callable(p) for p in template.partial_variables.values()):
        return False
    fields = [field for field in string.Formatter().parse(template.template) if field[1] is not None]
    return all(name and name.isidentifier() and not spec and conversion is None for _, name, spec, conversion in fields)
