"""Construction of the engine that an `EngineConfig` declares, in this process.

Errors in the declaration are reported here, in words, and not by the first batch: a missing package or model, an
argument that the library does not have, a model other than the model that `identity` names. An LLM on vLLM is still
loaded on first use.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from teola_plugin import shown
from teola_plugin.engines import Engine
from teola_plugin.errors import EngineError, EngineUnavailable, ModelMismatch, TeolaError
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.registry import EngineConfig, object_named
from teola_plugin.runtime.hosts.pool import EnginePool

DIM = 384
"""The dimension of the vectors of a profile engine, as MiniLM's; `config.dim` sets another."""

CHROMA_CONFIG = ("collection", "create", "per_query", "tenant", "database", "headers")
SEARCH_CONFIG = (
    "shape", "api_key", "api_key_variable", "top_k", "fetch", "pages", "timeout_s", "max_attempts",
)  # fmt: skip
OF_FIELDS = ("model", "model_name_or_path", "modules", "name", "max_items", "profile", "keep", "self")
"""Arguments of libraries and engines that are not allowed in `config`."""

_Profile = Any
"""A profile of the class that the kind needs, as checked by `EngineConfig`."""


def build(config: EngineConfig) -> Engine:
    """Return the declared engine, with profile, limit on items and policy; for several instances a pool.

    Raises: EngineUnavailable if a package, a model or a server is missing; EngineError naming the fault in the config,
    or if the model is not the model that `config.identity` names; ProfileError.
    """
    profile = config.latency_profile()
    made = [_MAKERS[config.kind](config, profile) for _ in range(config.instances)]
    if config.identity:
        _check_identity(config, made[0])
    engine = made[0] if len(made) == 1 else EnginePool(config.name, made)
    if config.policy is not None:
        cast(Any, engine).policy = config.policy
    return engine


def _check_identity(config: EngineConfig, engine: Engine) -> None:
    from teola_plugin.runtime.engines.identity import identity

    if (found := identity(engine)) != config.identity:
        raise ModelMismatch(
            f"engine {config.name!r}: {shown.address(config.model) or config.kind!r} is not the model that was meant:"
            f" its identity is {found}, expected {config.identity}. Was it trained or replaced since?"
        )


# --- models -------------------------------------------------------------------------------------------------


def _vllm(config: EngineConfig, profile: _Profile) -> Engine:
    from teola_plugin.runtime.engines import vllm_core
    from teola_plugin.runtime.engines.vllm import VllmEngine

    vllm_core.require("vllm", config.name, config.model)
    _check_folder(config)
    loaded = sys.modules.get("vllm.engine.arg_utils")  # else vLLM reports unknown arguments at the start
    known = loaded and [*(f.name for f in fields(loaded.AsyncEngineArgs)), "start_method", "shortest_prefill"]
    _check_keys(config, known, "vLLM")
    given = dict(config.config)
    if config.max_items is not None:
        given["max_num_seqs"] = config.max_items
    return VllmEngine(config.model, name=config.name, profile=profile, **given)


def _openai(config: EngineConfig, profile: _Profile) -> Engine:
    from teola_plugin.runtime.engines.openai import OpenAIEngine

    _check_call(config, OpenAIEngine)
    return _dressed(config, profile, OpenAIEngine(config.model, name=config.name, **config.config))


def _embedding(config: EngineConfig, profile: _Profile) -> Engine:
    _require(config, "sentence_transformers", "embeddings")
    _check_folder(config)
    from sentence_transformers import SentenceTransformer

    from teola_plugin.runtime.engines.embedding import EmbeddingEngine

    model = _loaded(config, SentenceTransformer)
    return EmbeddingEngine(model, name=config.name, max_items=config.max_items, profile=profile)


def _reranking(config: EngineConfig, profile: _Profile) -> Engine:
    _require(config, "sentence_transformers", "embeddings")
    _check_folder(config)
    from sentence_transformers import CrossEncoder

    from teola_plugin.runtime.engines.reranking import RerankingEngine

    model = _loaded(config, CrossEncoder)
    return RerankingEngine(model, name=config.name, max_items=config.max_items, profile=profile)


def _loaded(config: EngineConfig, load: Callable[..., Any]) -> Any:
    """Load a model of sentence-transformers with `max_seq_length`; the rest of the config are arguments."""
    given = dict(config.config)
    longest = given.pop("max_seq_length", None)
    _check_call(config, load, ("max_seq_length",))
    if isinstance(name := given.get("activation_fn"), str):
        given["activation_fn"] = _activation(config, name)
    try:
        model = load(config.model, **given)
    except Exception as e:  # whatever the error, there is no engine, and the caller must get the reason
        raise EngineUnavailable(f"engine {config.name!r}: cannot load {config.model!r}: {e}") from e
    if longest is not None and longest != model.max_seq_length:
        model.max_seq_length = longest
    if "prompts" in given:
        model.prompts = dict(given["prompts"])  # only these, without the empty defaults
    return model


def _activation(config: EngineConfig, name: str) -> Any:
    """Return the activation function of a dotted name in torch; names in other modules are refused."""
    module, _, leaf = name.rpartition(".")
    found = getattr(importlib.import_module(module), leaf, None) if module.startswith("torch.nn") else None
    if not inspect.isclass(found):
        raise EngineError(
            f"engine {config.name!r}: config.activation_fn: expected a class of torch.nn, such as"
            f" torch.nn.modules.activation.Sigmoid, got {name!r}"
        )
    return found()


# --- stores -------------------------------------------------------------------------------------------------


def chroma_client(config: EngineConfig) -> Any:
    """Return the client of the store of a `chroma` engine. Raises: EngineUnavailable."""
    _require(config, "chromadb", "chroma")
    is_folder = "://" not in config.model
    if is_folder and not config.config.get("create"):
        _check_folder(config)
    import chromadb

    place = {key: config.config[key] for key in ("tenant", "database") if key in config.config}
    if is_folder:
        connect: Callable[[], Any] = lambda: chromadb.PersistentClient(path=config.model, **place)  # noqa: E731
    else:
        address = urlsplit(config.model)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise EngineError(
                f"engine {config.name!r}: model: expected http://host:port, got {shown.address(config.model)!r}"
            )
        connect = lambda: chromadb.HttpClient(  # noqa: E731
            address.hostname, address.port or (443 if address.scheme == "https" else 8000),
            ssl=address.scheme == "https", headers=config.config.get("headers"), **place,
        )  # fmt: skip
    try:
        return connect()
    except Exception as e:  # chromadb raises ValueError, its own errors and those of its HTTP client
        raise EngineUnavailable(f"engine {config.name!r}: no Chroma at {shown.address(config.model)}: {e}") from e


def _chroma(config: EngineConfig, profile: _Profile) -> Engine:
    _check_keys(config, CHROMA_CONFIG, "a chroma engine")
    if config.config.get("per_query"):
        return _chroma_documents(config, profile)
    name = config.config.get("collection")
    if not isinstance(name, str) or not name:
        raise EngineError(f"engine {config.name!r}: config.collection: expected the collection's name, got {name!r}")
    client = chroma_client(config)
    from teola_plugin.runtime.engines.chroma import MAX_ITEMS, ChromaEngine

    if config.config.get("create"):
        collection = client.get_or_create_collection(name, embedding_function=None)
    elif name in (there := [c.name for c in client.list_collections()]):
        collection = client.get_collection(name, embedding_function=None)
    else:
        raise EngineUnavailable(
            f"engine {config.name!r}: {shown.address(config.model)} has no collection {name!r}{_hint(name, there)};"
            f" there are: {', '.join(there) or 'none'} (config.create = true makes it)"
        )
    return ChromaEngine(collection, name=config.name, max_items=config.max_items or MAX_ITEMS, profile=profile)


def _chroma_documents(config: EngineConfig, profile: _Profile) -> Engine:
    """Return an engine with a collection for each query; "memory://" is a store of this process."""
    if config.instances > 1:
        raise EngineError(f"engine {config.name!r}: instances: what a query brings is in one place, so expected 1")
    if config.config.get("collection"):
        raise EngineError(f"engine {config.name!r}: config.collection: with per_query each query has its own")
    _require(config, "chromadb", "chroma")
    from teola_plugin.runtime.engines.chroma_documents import MAX_ITEMS, ChromaDocumentsEngine

    client = None if config.model == "memory://" else chroma_client(config)
    return ChromaDocumentsEngine(client, name=config.name, max_items=config.max_items or MAX_ITEMS, profile=profile)


def _search(config: EngineConfig, profile: _Profile) -> Engine:
    from teola_plugin.runtime.engines.search import SearchEngine

    _check_keys(config, SEARCH_CONFIG, "a search engine")
    return _dressed(config, profile, SearchEngine(config.model, name=config.name, **config.config))


# --- engines that wait, and the user's own ------------------------------------------------------------------


def _profile_engine(config: EngineConfig, profile: _Profile) -> Engine:
    from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker

    allowed = {"profile_llm": ("max_prefill_tokens",), "profile_embedding": ("dim",), "profile_reranking": ()}
    _check_keys(config, allowed[config.kind], f"a {config.kind} engine")
    more: dict[str, Any] = {} if config.max_items is None else {"max_items": config.max_items}
    match profile:
        case LlmProfile():
            return ProfileLLM(config.name, profile, **config.config, **more)
        case Profile() if config.kind == "profile_embedding":
            return ProfileEmbedding(config.config.get("dim", DIM), profile, name=config.name, **more)
        case _:
            return ProfileReranker(profile, name=config.name, **more)


def _custom(config: EngineConfig, profile: _Profile) -> Engine:
    try:
        make = object_named(config.executable)
    except TeolaError as e:
        raise EngineUnavailable(f"engine {config.name!r}: executable: {e}") from e
    _check_call(config, make)
    engine = make(**config.config)
    if not isinstance(engine, Engine):
        raise EngineError(
            f"engine {config.name!r}: executable: {config.executable} gave a {type(engine).__qualname__}, not an"
            " Engine (name, capabilities, run, abort, close)"
        )
    return _dressed(config, profile, engine)


def _dressed(config: EngineConfig, profile: _Profile, engine: Engine) -> Engine:
    """Return the engine with the declared name, profile and limit."""
    changed: Any = engine
    changed.name = config.name
    if profile is not None:
        changed.profile = profile
    if config.max_items is not None:
        changed.capabilities = replace(engine.capabilities, max_items=config.max_items)
    return engine


_MAKERS: Mapping[str, Callable[[EngineConfig, _Profile], Engine]] = {
    "vllm": _vllm,
    "openai": _openai,
    "embedding": _embedding,
    "reranking": _reranking,
    "chroma": _chroma,
    "search": _search,
    "profile_llm": _profile_engine,
    "profile_embedding": _profile_engine,
    "profile_reranking": _profile_engine,
    "custom": _custom,
}


# --- checks -------------------------------------------------------------------------------------------------


def _require(config: EngineConfig, package: str, extra: str) -> None:
    if find_spec(package) is None:
        raise EngineUnavailable(
            f"engine {config.name!r} of kind {config.kind!r} needs the package {package}: install teola-plugin[{extra}]"
        )


def _check_folder(config: EngineConfig) -> None:
    """Check that a path exists; a model that does not look like a path is a name of the hub."""
    if config.model.startswith(("/", ".", "~")) and not Path(config.model).exists():
        raise EngineUnavailable(f"engine {config.name!r}: model: there is no {config.model}")


def _check_call(config: EngineConfig, make: Callable[..., Any], more: Iterable[str] = ()) -> None:
    """Check that the config consists of arguments of `make`, as far as the signature tells."""
    parameters = inspect.signature(make).parameters.values()
    is_open = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = None if is_open else [*(p.name for p in parameters if p.name not in OF_FIELDS), *more]
    _check_keys(config, known, getattr(make, "__qualname__", repr(make)))


def _check_keys(config: EngineConfig, known: Iterable[str] | None, what: str) -> None:
    """Check that each key of the config is known (None: not known yet), and none is a field of the engine."""
    names = None if known is None else list(known)
    for key in config.config:
        if key in OF_FIELDS and (names is None or key not in names):
            raise EngineError(f"engine {config.name!r}: config.{key}: it is a field of the engine, or comes by itself")
        if names is not None and key not in names:
            raise EngineError(
                f"engine {config.name!r}: config.{key}: no argument of {what}{_hint(key, names)};"
                f" known are {', '.join(names) or 'none'}"
            )


def _hint(got: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(got, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
