"""What a prompt template consists of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.messages import BaseMessage


def runs_code(template: Any) -> bool:
    """Formatting it is more than putting texts together: a function of the user's or a template language is run."""
    return any(
        getattr(part, "template_format", "f-string") != "f-string" or any(map(callable, partials_of(part).values()))
        for part in parts_of(template)
    )


def parts_of(template: Any) -> Iterator[Any]:
    """The template and those it consists of."""
    yield template
    prompts = getattr(template, "prompt", None) or ()
    inner = [*getattr(template, "messages", ()), *(prompts if isinstance(prompts, list | tuple) else [prompts])]
    for part in [*inner, getattr(template, "example_prompt", None)]:
        if part is not None and not isinstance(part, BaseMessage):
            yield from parts_of(part)


def partials_of(template: Any) -> Mapping[str, Any]:
    """Variables that the template brings with it: values, or functions that are called when it is formatted."""
    return getattr(template, "partial_variables", None) or {}
