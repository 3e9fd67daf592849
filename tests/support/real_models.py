"""Real models and stores for tests, loaded once per process, and a session that runs engines on the spot."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from teola_plugin.demo.tiny_model import minilm_path, tiny_cross_encoder
from teola_plugin.engines import Batch, Done, Engine, EngineSpec, Failed, Item, Outcome
from teola_plugin.runtime.engines import engine_for
from teola_plugin.seams import Reply, Session

_names = (f"collection-{number}" for number in itertools.count())

TEXTS = ["The cat sat on the mat.", "Out-of-order execution retires in order.\nAlways.", "", "Nine words, " * 9]


@cache
def minilm() -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(minilm_path()), device="cpu")


@cache
def cross_encoder() -> Any:
    from sentence_transformers import CrossEncoder

    return CrossEncoder(str(tiny_cross_encoder()), device="cpu")


def collection(rows: int = 6) -> Any:
    """A new collection of two-dimensional rows."""
    import chromadb

    made = chromadb.EphemeralClient().create_collection(next(_names), embedding_function=None)
    if rows:
        made.add(
            ids=[str(i) for i in range(rows)],
            embeddings=[[float(i), 1.0] for i in range(rows)],
            documents=[f"document {i}" for i in range(rows)],
            metadatas=[{"parity": i % 2, "tags": ["a", "b"]} for i in range(rows)],
        )
    return made


def outcomes(engine: Engine, op: str, payloads: Sequence[Any], **settings: Any) -> list[Outcome]:
    """What the engine says of a batch, in order."""
    said: dict[int, Outcome] = {}
    batch = Batch(op, settings, tuple(Item(payload, id=i) for i, payload in enumerate(payloads)))
    asyncio.run(engine.run(batch, said.__setitem__))
    return [said[i] for i in range(len(payloads))]


def values(engine: Engine, op: str, payloads: Sequence[Any], **settings: Any) -> list[Any]:
    """The values of a batch that must not fail."""
    found = []
    for outcome in outcomes(engine, op, payloads, **settings):
        assert isinstance(outcome, Done), outcome
        found.append(outcome.value)
    return found


class InlineSession(Session):
    """Computes what it is asked on the engine, there and then, and remembers it. `ahead` is what ran ahead."""

    def __init__(self) -> None:
        self.asked: list[tuple[EngineSpec, str, Any, dict[str, Any]]] = []
        self.broken: Callable[[], BaseException] | None = None

    def ask(self, spec: EngineSpec, op: str, payloads: Sequence[Any], settings: Mapping[str, Any]) -> list[Reply]:
        self.asked += [(spec, op, payload, dict(settings)) for payload in payloads]
        replies = [Reply() for _ in payloads]
        if self.broken:
            said: list[Outcome] = [Failed(self.broken()) for _ in payloads]
        else:
            said = outcomes(engine_for(spec), op, payloads, **settings)
        for reply, outcome in zip(replies, said, strict=True):
            reply.put(outcome)
        return replies

    def claim(self, spec: EngineSpec, op: str, payload: Any, settings: Mapping[str, Any]) -> tuple[Reply, bool]:
        raise AssertionError("these seams do not claim")

    def observe(self, component: object, value: Any) -> None:
        raise AssertionError("these seams do not observe")


def same(left: Any, right: Any) -> bool:
    """Equal in type, shape and kind of numbers, and in value but for rounding."""
    assert type(left) is type(right), (type(left), type(right))
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    if hasattr(left, "dtype"):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
    if type(left).__module__ == "torch":
        assert left.device == right.device
        assert left.is_inference() == right.is_inference()
        left, right = left.numpy(), right.numpy()
    return bool(np.allclose(left, right, atol=1e-5))
