"""What both kinds of models of sentence-transformers have in common, SentenceTransformer and CrossEncoder."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from teola_plugin.value_keys import Same

MAX_ITEMS = 32
"""The batch size of `encode` and `predict` themselves."""

ITEMS_PER_THREAD = 4
"""On a CPU larger batches only take longer: all-MiniLM-L6-v2, texts of 28, 67, 141 and 230 tokens, on one thread takes
6, 15, 37 and 64 ms for each in batches of 4 and 8, 24, 71 and 77 ms in batches of 32; on two threads it is alike."""


def usual_items(model: Any) -> int:
    """The largest batch, for an engine of which nobody said it, by where the model computes."""
    if getattr(getattr(model, "device", None), "type", "") != "cpu":
        return MAX_ITEMS
    import torch

    threads: int = torch.get_num_threads()
    return min(MAX_ITEMS, ITEMS_PER_THREAD * threads)


def version_of(model: Any) -> Hashable:
    """Changes when somebody sets on the model what is no argument of a call: how much it reads, and its modules."""
    modules = (*getattr(model, "_modules", {}).values(), getattr(model, "activation_fn", None))
    return (getattr(model, "max_seq_length", None), *map(Same, modules))


def prompted(model: Any, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, in which no prompt is really none, whatever the model's default."""
    if getattr(model, "default_prompt_name", None) is not None:
        return {"prompt": "", **settings}
    return dict(settings)
