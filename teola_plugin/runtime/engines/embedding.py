"""Embedding on the user's SentenceTransformer: a single `encode` for the texts of a whole batch.

Payload: a text, as the component passes the text to `encode`. Value: a row of the result of `encode`, shape (dim,),
float32 unless the model computes in float16. The rows of a batch differ from single rows by rounding (about 1e-7).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from teola_plugin.engines import Batch, Capabilities, Emit
from teola_plugin.profile import Profile
from teola_plugin.resources import held, lock_for
from teola_plugin.runtime.engines.encoders import prompted, usual_items, version_of
from teola_plugin.runtime.engines.worker import Worker, run_batch


class EmbeddingEngine:
    """An engine on a SentenceTransformer.

    `keep=False`: the engine does not keep the model alive, and ends when the model does.
    """

    def __init__(
        self, model: Any, *, name: str = "embedder", max_items: int | None = None, keep: bool = True,
        profile: Profile | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.profile = profile
        self.capabilities = Capabilities(max_items=max_items or usual_items(model), pads=True)
        self._worker = Worker(name)
        self._model = held(model, keep)

    @property
    def model(self) -> str:
        """Where the model was loaded from, if the model tells."""
        transformer = next(iter(getattr(self._model(), "children", tuple)()), None)
        config = getattr(getattr(transformer, "auto_model", None), "config", None)
        return str(getattr(config, "name_or_path", ""))

    def stamp(self) -> Hashable:
        """See `teola_plugin.engines`."""
        return version_of(self._model())

    async def run(self, batch: Batch, emit: Emit) -> None:
        """See `teola_plugin.engines`."""
        await run_batch(self._worker, batch, emit, "embedding", lambda texts: self._embed(texts, batch.settings))

    def abort(self, ids: Sequence[int]) -> None:
        """Do nothing: batches are short and run to the end."""

    async def close(self) -> None:
        """End the thread; a later batch starts a new thread."""
        self._worker.stop()

    def _embed(self, texts: Sequence[str], settings: Mapping[str, Any]) -> list[Any]:
        model = self._model()
        arguments = prompted(model, settings)
        with lock_for(model):
            rows = type(model).encode(model, list(map(str, texts)), show_progress_bar=False, **arguments)
        return list(rows)
