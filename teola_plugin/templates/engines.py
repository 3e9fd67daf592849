"""The engines of an application: objects, declarations, or registered names, with their operations.

A declaration is built once per process, so applications which name the same declaration share an engine and its
batches.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Iterable, Mapping

from teola_plugin import shown
from teola_plugin.engines import Engine
from teola_plugin.errors import GraphError
from teola_plugin.graph import DECODES, PREFILLS, Primitive
from teola_plugin.registry import EngineConfig, registered
from teola_plugin.runtime.engines.build import build

OPS: Mapping[str, tuple[str, ...]] = {
    "VllmEngine": ("decoding",),
    "OpenAIEngine": ("decoding",),
    "ProfileLLM": ("decoding",),
    "EmbeddingEngine": ("embedding",),
    "ProfileEmbedding": ("embedding",),
    "RerankingEngine": ("reranking",),
    "ProfileReranker": ("reranking",),
    "ChromaEngine": ("searching",),
    "ProfileStore": ("searching", "ingestion"),
    "SearchEngine": ("websearch",),
}
"""The operations of our engines. A user's engine may declare operations in an attribute `ops`; otherwise nothing is
checked.
"""

_built: dict[str, tuple[EngineConfig, Engine]] = {}
_building = threading.Lock()


def engine_of(app: str, name: str, given: object) -> Engine:
    """Return the engine of an object, a declaration or a registered name.

    Raises: GraphError for any other object; EngineError, EngineUnavailable, ProfileError for an engine which cannot be
    made.
    """
    if isinstance(given, str):
        known = registered()
        if given not in known:
            there = f"registered are {', '.join(known) or 'none'}{hint(given, known)}"
            raise GraphError(f"app {app!r}: engines: {name}: there is no engine {given!r}; {there}")
        given = known[given]
    if isinstance(given, EngineConfig):
        with _building:
            found = _built.get(given.name)
            if found is None or found[0] != given:
                found = _built[given.name] = (given, build(given))
            return found[1]
    if isinstance(given, Engine):
        return given
    raise GraphError(
        f"app {app!r}: engines: {name}: expected an Engine, an EngineConfig or the name of a registered one,"
        f" got {shown.outline(given):.80}"
    )


def check_op(app: str, p: Primitive, engines: Mapping[str, Engine]) -> None:
    """Check that the primitive's engine exists and supports the operation.

    Raises: GraphError naming component and engine.
    """
    where = f"app {app!r}: component {p.origin}: engine"
    if p.engine not in engines:
        there = f"there are {', '.join(engines) or 'none'}{hint(p.engine, engines)}"
        raise GraphError(f"{where}: there is no engine {p.engine!r}; {there}")
    op = "decoding" if p.kind in (*DECODES, *PREFILLS) else p.kind
    if (known := _ops(engines[p.engine])) is not None and op not in known:
        what = type(engines[p.engine]).__name__
        raise GraphError(f"{where}: {p.engine!r}, of type {what}, does not understand {op!r}, but {', '.join(known)}")


def _ops(engine: Engine) -> tuple[str, ...] | None:
    instances = getattr(engine, "instances", None)
    one = instances[0] if instances else engine
    said = getattr(one, "ops", None)
    return tuple(said) if said is not None else OPS.get(type(one).__name__)


def hint(got: str, known: Iterable[str]) -> str:
    """Return a hint at the closest known name."""
    near = difflib.get_close_matches(got, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
