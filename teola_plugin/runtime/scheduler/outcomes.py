"""Checks of the outcomes that engines emit. A faulty custom engine must not answer an item with another item's value.

A position of no item in the batch, or a value that is no outcome, shows that the engine has lost count: the owners of
the remaining outcomes are not certain either. Whether a vector or a score makes sense (NaN, say) is not judged here:
the framework would get the same value from the model.
"""

from __future__ import annotations

import operator

from teola_plugin.engines import Batch, Delta, Done, Failed, Item, Outcome
from teola_plugin.errors import EngineError


def index_of(batch: Batch, position: object, outcome: object) -> int | None:
    """Return the item's place in the batch; None for a violation of the protocol."""
    if not isinstance(outcome, Outcome) or (isinstance(outcome, Delta) and not isinstance(outcome.text, str)):
        return None
    if isinstance(position, bool) or not hasattr(position, "__index__"):
        return None
    at = operator.index(position)
    return at if 0 <= at < len(batch.items) else None


def protocol_error(engine: str, batch: Batch, position: object, outcome: object) -> EngineError:
    """Return the error for a violation, without the value."""
    where = f"position {position!r:.40}, in a batch of {len(batch.items)}"
    return EngineError(f"engine {engine!r} broke its protocol: it emitted a {type(outcome).__name__} for {where}")


def as_promised(engine: str, op: str, item: Item, outcome: Outcome) -> Outcome:
    """Return the outcome; a failure in place of an LLM's answer that is no text."""
    if op != "decoding" or not (isinstance(outcome, Done) and isinstance(item.payload, str)):
        return outcome
    if isinstance(outcome.value, str):
        return outcome
    what = type(outcome.value).__name__
    return Failed(EngineError(f"engine {engine!r} broke its protocol: the answer is a {what}, not a text"))
