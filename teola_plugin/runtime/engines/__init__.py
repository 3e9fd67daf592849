"""The engines, and the engine behind a component's `EngineSpec`.

Each object of the user (a model, a collection) has a single engine, made on first use. The engine holds the object
weakly and is freed with the object. The libraries behind an engine are imported by the code that made the object.
"""

from __future__ import annotations

from teola_plugin.engines import Engine, EngineSpec
from teola_plugin.errors import EngineError
from teola_plugin.resources import IdentityMap

KINDS = ("engine", "sentence_transformer", "cross_encoder", "chroma", "python")

_engines: dict[str, IdentityMap[Engine]] = {kind: IdentityMap() for kind in KINDS}
_elsewhere: IdentityMap[Engine] = IdentityMap()
"""Engines that replace an engine of this process, by the object that the replaced engine would use."""


class _Shared:
    """A stand-in for all objects that cannot be held weakly."""


_SHARED = _Shared()


def engine_for(spec: EngineSpec) -> Engine:
    """Return the engine of `spec.resource`: always the same engine for the same object. Safe to call from any thread.

    Raises: EngineError if there is no such kind of engine, or a model or store cannot be held weakly.
    """
    if hosted := _elsewhere.get(spec.resource):
        return hosted
    if spec.kind == "engine":
        return spec.resource  # type: ignore[no-any-return]
    if spec.kind not in _engines:
        raise EngineError(f"{spec.kind!r} is no kind of engine; the kinds are {', '.join(KINDS)}")
    try:
        return _engines[spec.kind].get_or_make(spec.resource, lambda: _make(spec))
    except TypeError as e:  # the resource cannot be held weakly
        if spec.kind == "python":  # which does not need to know the object
            return _engines["python"].get_or_make(_SHARED, lambda: _make(EngineSpec("python", _SHARED)))
        raise EngineError(f"no {spec.kind} engine can stand on a {type(spec.resource).__name__}: {e}") from e


def run_on(spec: EngineSpec, engine: Engine) -> None:
    """Let an engine run all requests for `spec.resource` from now on."""
    _elsewhere.forget(spec.resource)
    _elsewhere.get_or_make(spec.resource, lambda: engine)


def run_here(spec: EngineSpec) -> None:
    """Undo `run_on`."""
    _elsewhere.forget(spec.resource)


def is_hosted(spec: EngineSpec) -> bool:
    """Whether the requests for `spec.resource` run on another engine, or on an engine elsewhere."""
    return engine_for(spec).capabilities.is_scheduled


def _make(spec: EngineSpec) -> Engine:
    match spec.kind:
        case "sentence_transformer":
            from teola_plugin.runtime.engines.embedding import EmbeddingEngine

            return EmbeddingEngine(spec.resource, name=spec.name or "embedder", keep=False)
        case "cross_encoder":
            from teola_plugin.runtime.engines.reranking import RerankingEngine

            return RerankingEngine(spec.resource, name=spec.name or "reranker", keep=False)
        case "chroma":
            from teola_plugin.runtime.engines.chroma import ChromaEngine

            return ChromaEngine(spec.resource, name=spec.name or "chroma", keep=False)
        case _:
            from teola_plugin.runtime.engines.python import PythonEngine

            return PythonEngine(name=spec.name or "python")
