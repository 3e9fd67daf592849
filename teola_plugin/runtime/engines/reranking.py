"""Reranking on the user's CrossEncoder: a single `predict` for the pairs of a whole batch, across queries.

Payload: `(query, passage)`. Value: the result of `predict` for the pair, a float32 (or a row of float32 where the model
has several labels).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from teola_plugin.engines import Batch, Capabilities, Emit
from teola_plugin.profile import Profile
from teola_plugin.resources import held, lock_for
from teola_plugin.runtime.engines.encoders import prompted, usual_items, version_of
from teola_plugin.runtime.engines.worker import Worker, run_batch


class RerankingEngine:
    """An engine on a CrossEncoder.

    `keep=False`: the engine does not keep the model alive, and ends when the model does.
    """

    def __init__(
        self, model: Any, *, name: str = "reranker", max_items: int | None = None, keep: bool = True,
        profile: Profile | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.profile = profile
        self.capabilities = Capabilities(max_items=max_items or usual_items(model), pads=True)
        self._worker = Worker(name)
        self._model = held(model, keep)

    def stamp(self) -> Hashable:
        """See `teola_plugin.engines`."""
        return version_of(self._model())

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        await run_batch(self._worker, batch, emit, "reranking", lambda pairs: self._score(pairs, batch.settings))

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    async def close(self) -> None:
        """End the thread; a later batch starts a new thread."""
        self._worker.stop()

    def _score(self, pairs: Sequence[tuple[str, str]], settings: Mapping[str, Any]) -> list[Any]:
        model = self._model()
        texts = [[str(query), str(passage)] for query, passage in pairs]
        arguments = prompted(model, settings)
        with lock_for(model):
            scores = type(model).predict(model, texts, show_progress_bar=False, **arguments)
        return list(scores)
