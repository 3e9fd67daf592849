"""Searching in the user's Chroma collection: a single `query` for the vectors of a whole batch.

Payload: a vector, float32, shape (dim,). Settings: `top_k`, and, if given, `where`, `where_document` and `include`.
Value: the columns of Chroma's `QueryResult` for the vector; a column that was not requested is None.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from teola_plugin.engines import Batch, Capabilities, Emit
from teola_plugin.errors import EngineError
from teola_plugin.profile import Profile
from teola_plugin.resources import held, version
from teola_plugin.runtime.engines.worker import Worker, run_batch

MAX_ITEMS = 64
"""The largest batch: a search costs a few milliseconds, and more searches per call would only delay later requests."""


class ChromaEngine:
    """An engine on a Chroma collection.

    `keep=False`: the engine does not keep the collection alive, and ends when the collection does.
    """

    def __init__(
        self, collection: Any, *, name: str = "chroma", max_items: int = MAX_ITEMS, keep: bool = True,
        profile: Profile | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.profile = profile
        self.capabilities = Capabilities(max_items=max_items)
        self._worker = Worker(name)
        self._id: Hashable = collection.id
        self._collection = held(collection, keep)

    def stamp(self) -> Hashable:
        """Return the version of the collection: results of another version are out of date."""
        return version(self._id)

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        await run_batch(self._worker, batch, emit, "searching", lambda vectors: self._search(vectors, batch.settings))

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    async def close(self) -> None:
        """End the thread; a later batch starts a new thread."""
        self._worker.stop()

    def _search(self, vectors: Sequence[Any], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
        collection = self._collection()
        arguments = dict(settings)
        if "include" in arguments:
            arguments["include"] = list(arguments["include"])
        result = type(collection).query(
            collection,
            query_embeddings=[np.asarray(vector, dtype=np.float32) for vector in vectors],
            n_results=arguments.pop("top_k"),
            **arguments,
        )
        for name, column in result.items():
            if _is_by_vector(name, column) and len(column) != len(vectors):
                raise EngineError(f"Chroma gave {len(column)} rows of {name} for {len(vectors)} vectors")
        return [
            {name: column[i] if _is_by_vector(name, column) else column for name, column in result.items()}
            for i in range(len(vectors))
        ]


def _is_by_vector(name: str, column: Any) -> bool:
    """Whether a column has an entry for each vector; the list of included columns is common to all vectors."""
    return column is not None and name != "included"
