"""What the gate knows of one application."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from public.replies import Script

QUESTIONS = (
    "How do I keep only the largest items of a long list?",
    "What does a context manager do when an exception is raised?",
    "How can I cache the results of a function?",
    "How are two texts compared line by line?",
)


@dataclass(frozen=True)
class Case:
    """One application.

    `source`: repository, path and licence; its text lies in the folder `name`. `module`, `pipeline`: where the object
    is that is optimized. `given`: makes the input from one of the `questions`, and from the module if it
    `needs_module`. `form`: the method called. `threads`: calls need a thread's id, for a checkpointer.
    """

    name: str
    source: str
    given: Callable[..., Any]
    pipeline: str | Callable[[Any], Any] = "app"
    module: str = "app"
    form: str = "invoke"
    questions: tuple[str, ...] = QUESTIONS
    script: Script = field(default_factory=Script)
    config: Mapping[str, Any] = field(default_factory=dict)
    threads: bool = False
    needs_module: bool = False
