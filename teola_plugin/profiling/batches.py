"""Batches to measure an engine: generated texts, pairs and vectors, never repeated."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from teola_plugin import runtime
from teola_plugin.engines import Batch, Completion, Delta, Done, Engine, Failed, Item, Outcome
from teola_plugin.errors import EngineError
from teola_plugin.profile import Sample
from teola_plugin.profiling.steps import Run
from teola_plugin.runtime.engines.lengths import count_tokens
from teola_plugin.runtime.engines.worker import Worker

WORDS = (  # noqa: SIM905  a list would have one word a line
    "the a of and to in is was for on with as by at from his her they have this not are but had were been which one all"
    " when there will more out can only some time what up no new year people way day man world life hand part place"
    " work week case point state water room home night money story month right study book word side kind head house"
    " power hour game line end law car city team name idea body back level office door health person art war history"
).split()
"""Common words: most tokenizers have one token for each."""

QUERY_SHARE = 0.25
"""The query's share of a pair's tokens."""

DIM = 384
TOP_K = 4
SEED = 20240700


class Texts:
    """Random texts with about the requested number of tokens, all different."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._random = random.Random(SEED)
        self._words_per_token: dict[int, float] = {}

    def make(self, tokens: int) -> str:
        """Return one text."""
        if tokens not in self._words_per_token:  # subwords and special tokens: learned once
            tried = " ".join(self._random.choices(WORDS, k=tokens))
            self._words_per_token[tokens] = tokens / max(tokens, count_tokens(self._engine, tried))
        return " ".join(self._random.choices(WORDS, k=max(1, round(tokens * self._words_per_token[tokens]))))


def batch_run(engine: Engine, op: str, clock: Callable[[], float], settings: Mapping[str, Any] | None = None) -> Run:
    """Return a function which runs batches of `op` on an engine, with texts, pairs or vectors."""
    texts, vectors = Texts(engine), np.random.default_rng(SEED)

    async def run(items: int, length: int) -> Sample:
        if op == "searching":
            payloads: list[Any] = list(vectors.standard_normal((items, length), dtype=np.float32))
            tokens = 0
        elif op == "reranking":
            asked = max(1, round(length * QUERY_SHARE))
            payloads = [(texts.make(asked), texts.make(max(1, length - asked))) for _ in range(items)]
            tokens = sum(count_tokens(engine, *pair) for pair in payloads)
        else:
            payloads = [texts.make(length) for _ in range(items)]
            tokens = sum(count_tokens(engine, text) for text in payloads)
        seconds, _ = await timed(engine, op, payloads, settings or {}, clock)
        return Sample(items, tokens, seconds)

    return run


async def timed(
    engine: Engine, op: str, payloads: Sequence[Any], settings: Mapping[str, Any], clock: Callable[[], float]
) -> tuple[float, list[list[tuple[float, Outcome]]]]:
    """Return the seconds of one batch, and the outcomes of each item with times.

    Raises: EngineError if an item failed.
    """
    said: list[list[tuple[float, Outcome]]] = [[] for _ in payloads]
    items = tuple(Item(payload, id=runtime.host.new_id()) for payload in payloads)
    began_s = clock()
    await engine.run(Batch(op, settings, items), lambda at, outcome: said[at].append((clock(), outcome)))
    seconds = clock() - began_s
    for outcomes in said:
        last = outcomes[-1][1] if outcomes else None
        if isinstance(last, Failed):
            raise EngineError(f"engine {engine.name!r} failed while it was measured: {last.error}") from last.error
        if not isinstance(last, Done):
            raise EngineError(f"engine {engine.name!r} gave no answer while it was measured")
    return max(seconds, 1e-9), said


def written(said: Sequence[tuple[float, Outcome]]) -> tuple[Completion | None, list[float]]:
    """Return the completion of one item, and the time of each piece."""
    done = next((o.value for _, o in said if isinstance(o, Done)), None)
    return (done if isinstance(done, Completion) else None), [at_s for at_s, o in said if isinstance(o, Delta)]


# --- stores -------------------------------------------------------------------------------------------------


def dim_of(collection: Any) -> int | None:
    """Return the length of a Chroma collection's vectors; None if the collection is empty."""
    rows = collection.get(limit=1, include=["embeddings"])["embeddings"]
    return len(rows[0]) if rows is not None and len(rows) else None


class Scratch:
    """A temporary collection beside another, to measure additions without touching user data; `drop` deletes it."""

    def __init__(self, collection: Any) -> None:
        self._worker = Worker("ingestion")
        self._client, self._place = collection._client, {"tenant": collection.tenant, "database": collection.database}
        self._dim = dim_of(collection) or DIM
        self._name = f"teola-profile-{uuid.uuid4().hex[:12]}"
        self._model = self._client.create_collection(self._name, **self._place)
        self._vectors, self._ids = np.random.default_rng(SEED), itertools.count()

    def run(self, texts: Texts, clock: Callable[[], float]) -> Run:
        """Return a function which adds batches of rows: vector, document, one field of metadata."""

        async def run(items: int, length: int) -> Sample:
            rows: dict[str, Any] = {
                "ids": [str(next(self._ids)) for _ in range(items)],
                "embeddings": list(self._vectors.standard_normal((items, self._dim), dtype=np.float32)),
                "documents": [texts.make(length) for _ in range(items)],
                "metadatas": [{"source": "profile"} for _ in range(items)],
            }

            def add() -> float:
                began_s = clock()
                self._client._add(collection_id=self._model.id, uris=None, **rows, **self._place)
                return clock() - began_s

            return Sample(items, items * length, max(1e-9, await self._worker.call(add)))

        return run

    async def drop(self) -> None:
        """Delete the collection, after unfinished work."""

        def drop() -> None:
            with suppress(ValueError):  # somebody was quicker
                self._client.delete_collection(self._name, **self._place)

        await self._worker.call(drop)
        self._worker.stop()
