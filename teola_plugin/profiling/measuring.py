"""Measures one engine, declared or built, on the event loop of the host, and stores the profiles in a file."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from teola_plugin import loops, runtime
from teola_plugin.engines import Engine
from teola_plugin.errors import EngineError, ProfileError
from teola_plugin.profile import LlmProfile, Profile, load, save
from teola_plugin.profiling.batches import TOP_K, Scratch, Texts, batch_run, dim_of
from teola_plugin.profiling.llm import measure_llm
from teola_plugin.profiling.steps import Budget, Part, Progress, measure_sizes
from teola_plugin.registry import EngineConfig

T = TypeVar("T")

OPS = {
    "EmbeddingEngine": "embedding",
    "ProfileEmbedding": "embedding",
    "RerankingEngine": "reranking",
    "ProfileReranker": "reranking",
    "ChromaEngine": "searching",
    "VllmEngine": "decoding",
    "ProfileLLM": "decoding",
    "OpenAIEngine": "decoding",
}
"""The measured operations of each of our engines."""

LENGTHS: Mapping[str, tuple[int, ...]] = {
    "embedding": (16, 64, 256),
    "reranking": (32, 128, 384),
    "ingestion": (64,),
    "decoding": (64, 256, 1024),
}
"""Tokens of an item; for a pair, of both texts."""

INGESTION_ITEMS = 256
INGESTION = ".ingestion"
"""Suffix of a store's engine name: the name of the profile of additions."""

STOP_TIMEOUT_S = 10.0
"""The most seconds for the clean-up of an interrupted measurement: the running batch must end first."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of one engine. `profiles`: for the file, by name; `notes`: unmeasurable operations."""

    name: str
    parts: tuple[Part, ...]
    profiles: Mapping[str, Profile | LlmProfile]
    notes: tuple[str, ...] = ()


def measure(
    engine: Engine | EngineConfig, *, op: str | None = None, max_items: int | None = None,
    lengths: Sequence[int] | None = None, budget_s: float = 60.0, clock: Callable[[], float] = time.perf_counter,
) -> Profile | LlmProfile:  # fmt: skip
    """Return the latency profile of an engine: seconds of batches by items and tokens.

    `op`: the operation to measure, for a custom engine, or "ingestion" for a Chroma engine. `max_items`: the largest
    batch (by default the engine's). `lengths`: tokens per item. `clock`: counts the seconds of waiting.

    Raises: EngineError if the engine cannot be made, fails, or has nothing to measure.
    """
    found = measured(engine, op=op, max_items=max_items, lengths=lengths, budget_s=budget_s, clock=clock)
    return next(iter(found.profiles.values()))


def measured(
    engine: Engine | EngineConfig, *, op: str | None = None, max_items: int | None = None,
    lengths: Sequence[int] | None = None, budget_s: float = 60.0, clock: Callable[[], float] = time.perf_counter,
    progress: Progress = lambda text: None,
) -> Measured:  # fmt: skip
    """`measure`, with the samples. For a declared store both searches and additions are measured."""
    _check(max_items, lengths, budget_s)
    made, is_ours = _made(engine)

    async def work() -> Measured:
        try:
            if start := getattr(made, "start", None):
                progress("starting")
                await start()
            ops, notes = ([op], ()) if op else _ops_of(made, with_writes=is_ours)
            share_s = budget_s / len(ops)
            found = [await _measured(made, o, Budget(share_s, clock), max_items, lengths, progress) for o in ops]
        finally:
            if is_ours:
                await made.close()
        profiles = {name: profile for one in found for name, profile in one.profiles.items()}
        return Measured(made.name, tuple(part for one in found for part in one.parts), profiles, notes)

    return _on_host(work())


def _check(max_items: int | None, lengths: Sequence[int] | None, budget_s: float) -> None:
    if max_items is not None and max_items < 1:
        raise EngineError(f"max_items: expected at least 1, got {max_items}")
    if lengths is not None and (not lengths or min(lengths) < 1):
        raise EngineError(f"lengths: expected numbers of tokens, at least 1 each, got {list(lengths)}")
    if not budget_s > 0:
        raise EngineError(f"budget_s: expected seconds above 0, got {budget_s}")


def _made(engine: Engine | EngineConfig) -> tuple[Engine, bool]:
    if not isinstance(engine, EngineConfig):
        return engine, False
    from teola_plugin.runtime.engines.build import build

    return build(replace(engine, profile=engine.profile if engine.kind.startswith("profile_") else None)), True


def _ops_of(engine: Engine, *, with_writes: bool) -> tuple[list[str], tuple[str, ...]]:
    """Return the operations to measure, and notes on unmeasurable operations.

    Writes only for an engine made to be measured.
    """
    if type(engine).__name__ not in OPS:
        raise EngineError(f"engine {engine.name!r} is a {type(engine).__qualname__}: say what to measure with op=")
    op = OPS[type(engine).__name__]
    if op != "searching" or not with_writes:
        return [op], ()
    if dim_of(_collection(engine)) is None:
        return ["ingestion"], (f"{engine.name}: the collection is empty, so searching was not measured",)
    return [op, "ingestion"], ()


async def _measured(
    engine: Engine, op: str, budget: Budget, max_items: int | None, lengths: Sequence[int] | None, progress: Progress
) -> Measured:
    most = max_items or engine.capabilities.max_items
    source = f"measured: {engine.name}, {time.strftime('%Y-%m-%d')}"
    given = tuple(lengths or LENGTHS.get(op, LENGTHS["embedding"]))
    match op:
        case "decoding":
            llm, parts = await measure_llm(engine, most, given, budget, progress, source)
            return Measured(engine.name, parts, {engine.name: llm})
        case "ingestion":
            scratch = Scratch(_collection(engine))
            try:
                run = scratch.run(Texts(engine), budget.clock)
                part = await measure_sizes(op, run, max_items or INGESTION_ITEMS, given[:1], budget, progress, source)
            finally:
                await asyncio.shield(scratch.drop())
            return Measured(engine.name, (part,), {engine.name + INGESTION: part.profile})
        case "searching":
            if (dim := dim_of(_collection(engine))) is None:
                raise EngineError(f"engine {engine.name!r}: its collection is empty, so there is nothing to search")
            run = batch_run(engine, op, budget.clock, {"top_k": TOP_K})
            part = await measure_sizes(op, run, most, (dim,), budget, progress, source)
        case _:
            run = batch_run(engine, op, budget.clock)
            part = await measure_sizes(op, run, most, sorted(set(given)), budget, progress, source)
    return Measured(engine.name, (part,), {engine.name: part.profile})


def _collection(engine: Any) -> Any:
    if type(engine).__name__ != "ChromaEngine":
        raise EngineError(f"engine {engine.name!r} is a {type(engine).__qualname__}; only Chroma's can be measured so")
    return engine._collection()


def _on_host(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine on the host's event loop, to which engines may belong, and return its result.

    Ctrl-C cancels the coroutine and waits for the clean-up.
    """
    ended = threading.Event()

    async def watched() -> T:
        try:
            return await work
        finally:
            ended.set()

    loops.check_may_wait()
    future = asyncio.run_coroutine_threadsafe(watched(), runtime.host.loop)
    try:
        return future.result()
    except BaseException:
        if future.cancel():
            ended.wait(STOP_TIMEOUT_S)
        raise


def store(path: Path, profiles: Mapping[str, Profile | LlmProfile]) -> dict[str, Profile | LlmProfile]:
    """Put profiles into a file, beside profiles of other names, and read the file back.

    The file is replaced in one step: a reader sees only the old or only the new content.

    Raises: ProfileError naming file and field if the file's content is invalid, or the file cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        there = load(path) if path.exists() else {}
        try:
            save(beside, {**there, **profiles})
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as e:
        raise ProfileError(f"cannot write {path}: {e}") from e
    return load(path)
