"""Common parts of engines on models of sentence-transformers, SentenceTransformer and CrossEncoder."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from teola_plugin.value_keys import Same

MAX_ITEMS = 32
"""The default batch size of `encode` and `predict`."""

ITEMS_PER_THREAD = 4
"""The items per thread of a batch on a CPU, where larger batches only take longer: on a single thread,
all-MiniLM-L6-v2 takes 6, 15, 37 and 64 ms for each text of 28, 67, 141 and 230 tokens in batches of 4, and 8, 24, 71
and 77 ms in batches of 32; two threads are alike."""


def usual_items(model: Any) -> int:
    """Return the largest batch, for an engine without a configured limit, by the model's device."""
    if getattr(getattr(model, "device", None), "type", "") != "cpu":
        return MAX_ITEMS
    import torch

    threads: int = torch.get_num_threads()
    return min(MAX_ITEMS, ITEMS_PER_THREAD * threads)


def version_of(model: Any) -> Hashable:
    """Return a version that changes when the maximum length or a module of the model is replaced outside of a call."""
    modules = (*getattr(model, "_modules", {}).values(), getattr(model, "activation_fn", None))
    return (getattr(model, "max_seq_length", None), *map(Same, modules))


def prompted(model: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, in which a missing prompt means no prompt, whatever the model's default."""
    if getattr(model, "default_prompt_name", None) is not None:
        return {"prompt": "", **settings}
    return dict(settings)
