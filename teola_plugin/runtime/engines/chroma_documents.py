"""Documents that come with a query: in Chroma, in a separate collection per query, deleted when the query is over.

    ingestion   payload (vector, text)                  value None
    searching   payload a vector; setting `top_k`       value {"documents": [...], "distances": [...]}

The items of a batch are processed query by query (`Item.owner`): a single `add`, or a single `query` for all vectors. A
search before the first ingestion finds nothing. `release(owner)` drops the collection; later items of the same query
are refused, so nothing is left behind by a query that failed, was cancelled, or went on too long.
"""

from __future__ import annotations

import itertools
import uuid
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from teola_plugin.engines import Batch, Capabilities, Done, Emit, Failed
from teola_plugin.errors import Cancelled, EngineError
from teola_plugin.profile import Profile
from teola_plugin.runtime.engines.worker import Worker, isolate

MAX_ITEMS = 64
REMEMBERED = 10_000
"""The number of finished queries that are remembered, to refuse late items."""


class ChromaDocumentsEngine:
    """An engine with a collection per query. `client`: of Chroma; None: a store in memory."""

    ops = ("ingestion", "searching")
    is_per_query = True

    def __init__(
        self, client: Any = None, *, name: str = "store", max_items: int = MAX_ITEMS, profile: Profile | None = None
    ) -> None:
        self.name = name
        self.profile = profile
        self.capabilities = Capabilities(max_items=max_items)
        self._client = client
        self._prefix = f"teola-{uuid.uuid4().hex[:12]}"  # clients in memory share their collections
        self._worker = Worker(name)
        self._queries: set[Hashable] = set()
        self._over: OrderedDict[Hashable, None] = OrderedDict()
        self._collections: dict[Hashable, Any] = {}
        self._numbers = itertools.count()

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        owners: dict[Hashable, list[int]] = {}
        for position, item in enumerate(batch.items):
            if item.owner in self._over:
                emit(position, Failed(Cancelled(f"engine {self.name!r}: the query is over")))
            else:
                owners.setdefault(item.owner, []).append(position)
        self._queries.update(owners)
        for position, outcome in await self._worker.call(lambda: self._outcomes(batch, owners)):
            emit(position, outcome)

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    def release(self, owner: Hashable) -> None:
        """Drop the documents of a query that is over, after all earlier batches of the query."""
        self._over[owner] = None
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)
        if owner in self._queries:
            self._queries.remove(owner)
            self._worker.submit(lambda: self._drop(owner))

    async def close(self) -> None:
        """Drop everything and end the thread; a later batch starts a new thread."""
        await self._worker.call(self._drop_all)
        self._worker.stop()

    # --- on the worker's thread --------------------------------------------------------------------------------------

    def _outcomes(self, batch: Batch, owners: Mapping[Hashable, list[int]]) -> list[tuple[int, Done | Failed]]:
        found: list[tuple[int, Done | Failed]] = []
        for owner, positions in owners.items():
            payloads = [batch.items[position].payload for position in positions]
            outcomes = isolate(self._work(batch, owner), payloads)
            found += zip(positions, outcomes, strict=True)
        return found

    def _work(self, batch: Batch, owner: Hashable) -> Callable[[Sequence[Any]], Sequence[Any]]:
        def work(payloads: Sequence[Any]) -> Sequence[Any]:
            if owner == 0:
                raise EngineError(f"engine {self.name!r} keeps documents for queries; this item belongs to none")
            match batch.op:
                case "ingestion":
                    return self._add(owner, payloads)
                case "searching":
                    return self._search(owner, payloads, int(batch.settings["top_k"]))
                case op:
                    raise EngineError(f"engine {self.name!r} understands {', '.join(self.ops)}, not {op!r}")

        return work

    def _add(self, owner: Hashable, payloads: Sequence[tuple[Any, str]]) -> list[None]:
        if owner not in self._collections:
            name = f"{self._prefix}-{next(self._numbers)}"
            self._collections[owner] = self._connected().create_collection(name, embedding_function=None)
        self._collections[owner].add(
            ids=[str(next(self._numbers)) for _ in payloads],
            embeddings=[np.asarray(vector, dtype=np.float32) for vector, _ in payloads],
            documents=[text for _, text in payloads],
        )
        return [None] * len(payloads)

    def _search(self, owner: Hashable, vectors: Sequence[Any], top_k: int) -> list[dict[str, Any]]:
        collection = self._collections.get(owner)
        if collection is None:
            return [{"documents": [], "distances": []} for _ in vectors]
        found = collection.query(
            query_embeddings=[np.asarray(vector, dtype=np.float32) for vector in vectors], n_results=top_k,
            include=["documents", "distances"],
        )  # fmt: skip
        if {len(found["documents"]), len(found["distances"])} != {len(vectors)}:
            raise EngineError(f"engine {self.name!r}: Chroma gave results for another number of vectors than was asked")
        columns = zip(found["documents"], found["distances"], strict=True)
        return [{"documents": documents, "distances": distances} for documents, distances in columns]

    def _drop(self, owner: Hashable) -> None:
        if collection := self._collections.pop(owner, None):
            self._connected().delete_collection(collection.name)

    def _drop_all(self) -> None:
        for owner in list(self._collections):
            self._drop(owner)

    def _connected(self) -> Any:
        if self._client is None:
            import chromadb

            self._client = chromadb.EphemeralClient()
        return self._client
