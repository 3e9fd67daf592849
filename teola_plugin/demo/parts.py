"""Engines of the demo's pipelines: one LLM engine for both frameworks, and small separate models for each.

`real`: vLLM, MiniLM, a tiny cross-encoder. `profile`: engines which wait by published profiles, and answer from a hash
of the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from teola_plugin.demo.corpus import Passage
from teola_plugin.demo.tiny_model import tiny_model
from teola_plugin.engines import Engine
from teola_plugin.runtime import host

LINE = "[a-z]{3,9}( [a-z]{3,9}){2,4}"
THREE_LINES = f"{LINE}\\n{LINE}\\n{LINE}"
"""The grammar of the writer of queries: a model of random weights needs to be held to three lines."""

QUERIES = {"max_tokens": 64, "temperature": 0.0, "structured_outputs": {"regex": THREE_LINES}}
MAX_TOKENS = {"real": 16, "profile": 32}
"""Tokens of an answer. Sixteen tokens of noise are about forty tokens of a real text: three such answers fit into one
prompt.
"""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of stored passages, the size of a question's document, and the number of reranked passages kept."""

    passages: Sequence[Passage]
    document_passages: int = 9
    top_n: int = 3


@dataclass(frozen=True, slots=True)
class Parts:
    """The LLM, and the settings for answers and for queries."""

    kind: Literal["real", "profile"]
    llm: Engine
    answer: Mapping[str, Any] = field(default_factory=dict)
    queries: Mapping[str, Any] = field(default_factory=dict)


def chroma_without(collection: str) -> Any:
    """Return a client in memory without the collection: all such clients of a process share their collections."""
    import chromadb

    client = chromadb.EphemeralClient()
    if collection in [c.name for c in client.list_collections()]:
        client.delete_collection(collection)
    return client


def llm_parts(
    kind: str, model: str | None = None, *, tokens: int | None = None, profile: str = "7b",
    runtime: Literal["local", "ray"] = "local",
) -> Parts:  # fmt: skip
    """Start and return the LLM engine of the kind."""
    if kind == "profile":
        from teola_plugin.profile import PAPER_LLM
        from teola_plugin.runtime.engines.simulated import ProfileLLM

        tokens = tokens or MAX_TOKENS["profile"]
        simulated = ProfileLLM("llm", PAPER_LLM[profile])
        llm = on_ray(simulated) if runtime == "ray" else simulated
        return Parts("profile", llm, {"max_tokens": tokens}, {"max_tokens": tokens, "shape": "lines:3"})
    from teola_plugin.runtime.engines.vllm import VllmEngine

    is_tiny = model is None
    engine = VllmEngine(model or tiny_model(), dtype="float32" if is_tiny else "auto", max_model_len=4096)
    if runtime == "ray":
        return real_parts(on_ray(engine), is_tiny=is_tiny)
    asyncio.run_coroutine_threadsafe(engine.start(), host.loop).result()
    return real_parts(engine, is_tiny=is_tiny)


def on_ray(engine: Engine) -> Engine:
    """Return an equal engine on Ray, started or found there."""
    from teola_plugin.runtime.engines.identity import describe
    from teola_plugin.runtime.hosts.ray.engines import start

    config = describe(engine)
    assert config is not None, "the demo's engines can be made anywhere"
    return start(replace(config, num_cpus=0))


def real_parts(engine: Engine, *, is_tiny: bool = True) -> Parts:
    """Return the parts for a model on vLLM.

    The tiny model never ends an answer by itself, so all answers have one length.
    """
    answer = {"max_tokens": MAX_TOKENS["real"], "temperature": 0.0, "ignore_eos": is_tiny}
    return Parts("real", engine, answer, QUERIES)
