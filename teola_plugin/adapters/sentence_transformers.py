"""Interception of sentence-transformers: `SentenceTransformer.encode` and `CrossEncoder.predict`.

In a session a call becomes one item per text or pair. Its result is built from the items' values with the type and
shape of the library's own result. A call that items cannot express (token embeddings, quantised vectors, pools of
processes, activation functions, autocast, ...) is made by the caller itself, holding the lock of the model's engine. So
is every call outside a session, if the model has an engine at all. A rehearsal ends at such a call.

Settings are exactly the options that decide the values, resolved against the model, defaults left out: `prompt`,
`truncate_dim`, `normalize_embeddings`, `task`; `prompt` and `apply_softmax` for pairs. A tracer and the interception
both call `embedding_settings`, so they cannot differ.
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from teola_plugin.adapters.interception import intercept
from teola_plugin.adapters.leaf import is_stock
from teola_plugin.adapters.rehearsal import end_rehearsal
from teola_plugin.engines import EngineSpec
from teola_plugin.errors import TeolaError
from teola_plugin.finalizers import kept_off
from teola_plugin.resources import exclusive
from teola_plugin.seams import current

log = logging.getLogger(__name__)

EMBEDDER = ("sentence_transformer", "embedder")
RERANKER = ("cross_encoder", "reranker")
"""Kind and name of the engines."""


def instrument_sentence_transformers() -> None:
    """Make both classes ask the session. Idempotent; does nothing until the library is imported."""
    if library := sys.modules.get("sentence_transformers"):
        intercept(library.SentenceTransformer, "encode", _asking_encode)
        intercept(library.CrossEncoder, "predict", _asking_predict)


def spec_of(model: object) -> EngineSpec | None:
    """Return the engine of a model whose calls items can express; instruments the classes. None for other objects."""
    instrument_sentence_transformers()
    library = sys.modules.get("sentence_transformers")
    if library is None:
        return None
    if is_stock(model, library.SentenceTransformer, "encode"):
        return _spec(EMBEDDER, model)
    if is_stock(model, library.CrossEncoder, "predict"):
        return _spec(RERANKER, model)
    return None


def _spec(engine: tuple[str, str], model: object) -> EngineSpec:
    kind, name = engine
    return EngineSpec(kind, model, name)


# --- settings -----------------------------------------------------------------------------------------------


def embedding_settings(
    model: Any, *, prompt: str | None = None, prompt_name: str | None = None, truncate_dim: int | None = None,
    normalize_embeddings: bool = False, task: str | None = None, precision: str | None = "float32",
    output_value: str | None = "sentence_embedding", **others: Any,
) -> dict[str, Any] | None:  # fmt: skip
    """Return the settings of an `encode` call from its keyword arguments. None: items cannot express the call."""
    if precision not in (None, "float32") or output_value != "sentence_embedding":
        return None
    if not _is_plain(model, others):
        return None
    try:
        prompt = _prompt(model, prompt, prompt_name)
    except KeyError:  # the library raises its own error
        return None
    found = {
        "prompt": prompt or None,
        "truncate_dim": truncate_dim if truncate_dim is not None else getattr(model, "truncate_dim", None),
        "normalize_embeddings": True if normalize_embeddings else None,
        "task": task,
    }
    return {name: value for name, value in found.items() if value is not None}


def reranking_settings(
    model: Any, *, prompt: str | None = None, prompt_name: str | None = None,
    apply_softmax: bool | None = False, activation_fn: Any = None, **others: Any,
) -> dict[str, Any] | None:  # fmt: skip
    """Return the settings of a `predict` call from its keyword arguments. None: items cannot express the call."""
    if activation_fn is not None or not _is_plain(model, others):
        return None
    try:
        prompt = _prompt(model, prompt, prompt_name)
    except KeyError:  # the library raises its own error
        return None
    found = {"prompt": prompt or None, "apply_softmax": True if apply_softmax else None}
    return {name: value for name, value in found.items() if value is not None}


def _prompt(model: Any, prompt: str | None, prompt_name: str | None) -> str | None:
    prompts: Mapping[str, str | None] = getattr(model, "prompts", None) or {}
    if prompt is not None:
        return prompt
    if prompt_name is not None:
        return prompts[prompt_name]
    return prompts.get(getattr(model, "default_prompt_name", None) or "")


def _is_plain(model: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether the arguments change nothing about the values, only the speed or the type of the result."""
    rest = dict(arguments)
    batch_size = rest.pop("batch_size", 32)
    device = rest.pop("device", None)
    for name in ("show_progress_bar", "convert_to_numpy", "convert_to_tensor", "chunk_size"):
        rest.pop(name, None)
    return (
        isinstance(batch_size, int)
        and batch_size > 0
        and (device is None or str(device) == str(model.device))
        and all(value is None for value in rest.values())  # pools, arguments of the model's own
        and getattr(model, "_distributed_inference", None) is None
    )


# --- seams --------------------------------------------------------------------------------------------------


def _asking_encode(original: Callable[..., Any]) -> Callable[..., Any]:
    return _asking(original, "encode", EMBEDDER, "embedding", embedding_settings, _texts)


def _asking_predict(original: Callable[..., Any]) -> Callable[..., Any]:
    return _asking(original, "predict", RERANKER, "reranking", reranking_settings, _pairs)


def _asking(
    original: Callable[..., Any], method: str, engine: tuple[str, str], op: str,
    settings_of: Callable[..., dict[str, Any] | None],
    items_of: Callable[[Any], tuple[list[Any], bool] | None],
) -> Callable[..., Any]:  # fmt: skip
    signature = inspect.signature(original)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        session = current()
        is_stock = getattr(getattr(type(self), method), "__teola_original__", None) is original
        if session is not None and is_stock:
            inputs, arguments = _arguments(signature, self, args, kwargs)
            items = items_of(inputs)
            settings = settings_of(self, **arguments)
            if items is not None and settings is not None and _can_wrap(self, arguments):
                spec = _spec(engine, self)
                try:
                    values = [reply.result() for reply in session.ask(spec, op, items[0], settings)]
                    return _wrapped(self, values, items[1], arguments)
                except TeolaError as e:  # our fault must not reach the framework
                    log.warning("%s is made without its engine: %s", method, e)
        end_rehearsal()
        with kept_off, exclusive(self):
            return original(self, *args, **kwargs)

    return call


def _arguments(
    signature: inspect.Signature, self: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the inputs, and the other arguments by name. A call against the signature has no inputs."""
    try:
        bound = signature.bind(self, *args, **kwargs).arguments
    except TypeError:
        return None, {}
    _, (_, inputs), *named = bound.items()
    arguments: dict[str, Any] = {}
    for name, value in named:
        arguments.update(value if name == "kwargs" else {name: value})
    return inputs, arguments


def _texts(inputs: Any) -> tuple[list[str], bool] | None:
    """Return the texts, and whether the input was a single text outside a list."""
    if isinstance(inputs, str):
        return [str(inputs)], True
    if isinstance(inputs, list | tuple) and inputs and all(isinstance(text, str) for text in inputs):
        return list(map(str, inputs)), False
    return None


def _pairs(inputs: Any) -> tuple[list[tuple[str, str]], bool] | None:
    if _is_pair(inputs):
        return [(str(inputs[0]), str(inputs[1]))], True
    if isinstance(inputs, list | tuple) and inputs and all(_is_pair(pair) for pair in inputs):
        return [(str(query), str(passage)) for query, passage in inputs], False
    return None


def _is_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and all(isinstance(v, str) for v in value)


# --- results ------------------------------------------------------------------------------------------------


def _is_numpy(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments.get("convert_to_numpy", True)) and not arguments.get("convert_to_tensor", False)


def _can_wrap(model: Any, arguments: Mapping[str, Any]) -> bool:
    """Whether the result can be made from rows of numpy, and does not depend on a mode of the caller's thread."""
    import torch

    if torch.is_autocast_enabled(model.device.type):
        return False
    weight = next(model.parameters(), None)
    return _is_numpy(arguments) or (weight is not None and weight.dtype is torch.float32)


def _wrapped(model: Any, values: Sequence[Any], is_single: bool, arguments: Mapping[str, Any]) -> Any:
    """Return the values in the library's own types."""
    rows = np.stack(values)
    if _is_numpy(arguments):
        return rows[0] if is_single else rows
    import torch

    with torch.inference_mode():
        tensor = torch.from_numpy(rows).to(model.device)
        if is_single:
            return tensor[0]
        return tensor if arguments.get("convert_to_tensor") else list(tensor)
