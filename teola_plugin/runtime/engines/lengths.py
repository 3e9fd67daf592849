"""Token counts of texts for an engine, and the longest input of an engine.

Counted by the engine's own tokenizer; for an engine without a tokenizer, words and signs.
"""

from __future__ import annotations

from typing import Any

from teola_plugin.engines import Engine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.simulated_text import tokenize
from teola_plugin.runtime.engines.vllm import VllmEngine


def count_tokens(engine: Engine, *texts: str) -> int:
    """Return the tokens computed for an item of texts (a pair is a single item), special tokens included."""
    match engine:
        case EmbeddingEngine() | RerankingEngine():
            tokenizer = getattr(engine._model(), "tokenizer", None)
            if not callable(tokenizer):
                return sum(len(tokenize(text)) for text in texts)
            ids = tokenizer(*texts, truncation=False, verbose=False)["input_ids"]
            return min(len(ids), longest_tokens(engine) or len(ids))
        case VllmEngine():
            return sum(len(engine.tokens(text)) for text in texts)
        case _:
            return sum(len(tokenize(text)) for text in texts)


def longest_tokens(engine: Engine) -> int | None:
    """Return the maximum number of tokens of an item, or of the tokens that count; None if unknown."""
    longest: Any = None
    match engine:
        case EmbeddingEngine() | RerankingEngine():
            longest = getattr(engine._model(), "max_seq_length", None)
        case VllmEngine():
            longest = engine._core.max_model_len if engine._core else engine._args.get("max_model_len")
    return None if longest is None else int(longest)
