"""Names of engines and primitives in a graph, for all frameworks."""

from __future__ import annotations

import keyword
import re
from collections.abc import Container

from teola_plugin.engines import EngineSpec
from teola_plugin.graph import PIPELINE, READER

ENGINE_NAMES = {
    "embedding": "embedder",
    "searching": "store",
    "reranking": "reranker",
    "decoding": "llm",
    "prefilling": "llm",
}
"""The name of an unnamed engine, by its first operation."""


def unique(name: str, taken: Container[str]) -> str:
    """Return an identifier like `name` that is not taken."""
    name = re.sub(r"\W+", "_", name).strip("_") or "value"
    if name[0].isdigit() or keyword.iskeyword(name):
        name = f"_{name}"
    candidate, number = name, 2
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate


def name_engine(engines: dict[str, EngineSpec], spec: EngineSpec, kind: str) -> str:
    """Return the name of an engine among `engines`, and add a new engine there."""
    for name, known in engines.items():
        if known.key == spec.key:
            return name
    name = unique(spec.name or ENGINE_NAMES.get(kind, kind), {*engines, PIPELINE, READER})
    engines[name] = spec
    return name
