"""Real text found on every machine: the docstrings of the Python standard library, cut into passages.

Modules are parsed, never imported. The passages depend only on the Python version.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from teola_plugin.syntax import parse

MODULES = (
    "heapq", "bisect", "contextlib", "functools", "collections/__init__", "dataclasses", "enum", "textwrap", "queue",
    "sched", "shelve", "tempfile", "fnmatch", "glob", "difflib", "random", "statistics", "fractions", "string", "shlex",
)  # fmt: skip
"""The modules of the passages."""

PASSAGE_CHARACTERS = 400
SHORTEST_CHARACTERS = 260

QUESTIONS = (
    "How do I keep only the largest items of a long list?",
    "What does a context manager do when an exception is raised?",
    "How can I cache the results of a function?",
    "How are two texts compared line by line?",
)
DOCUMENT_MODULES = ("graphlib", "logging/__init__", "argparse", "socketserver")
"""The modules of the documents given with a question; none is among `MODULES`."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A piece of a docstring. `source` is the dotted name of the documented object."""

    text: str
    source: str


def passages(limit: int) -> list[Passage]:
    """Return the first `limit` passages; the modules take turns, so that a few passages cover many modules."""
    columns = [list(_of_module(name)) for name in MODULES]
    longest = max(map(len, columns))
    turns = [column[i] for i in range(longest) for column in columns if i < len(column)]
    return turns[:limit]


def document(limit: int) -> str:
    """Return a text to be stored with the question: as many paragraphs as `split` cuts into `limit` passages."""
    texts = [text for module in DOCUMENT_MODULES for _, text in _docstrings(module)]
    return "\n\n".join(split("\n\n".join(texts))[:limit])


def split(text: str, characters: int = PASSAGE_CHARACTERS) -> list[str]:
    """Return the paragraphs, joined up to `characters`."""
    pieces: list[str] = []
    for paragraph in filter(None, (part.strip() for part in text.split("\n\n"))):
        if pieces and len(pieces[-1]) + len(paragraph) + 2 <= characters:
            pieces[-1] += "\n\n" + paragraph
        else:
            pieces.append(paragraph[:characters])
    return pieces


def _of_module(name: str) -> Iterator[Passage]:
    for source, text in _docstrings(name):
        for piece in split(text):
            if len(piece) >= SHORTEST_CHARACTERS:
                yield Passage(piece, source)


@cache
def _docstrings(name: str) -> tuple[tuple[str, str], ...]:
    path = Path(sysconfig.get_paths()["stdlib"]) / f"{name}.py"
    dotted = name.removesuffix("/__init__").replace("/", ".")
    return tuple(_walk(parse(path.read_bytes()), dotted))


def _walk(node: ast.AST, dotted: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        if text := ast.get_docstring(node):
            yield dotted, inspect.cleandoc(text)
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _walk(child, f"{dotted}.{child.name}")
