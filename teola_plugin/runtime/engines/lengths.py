"""How many tokens a text has for an engine, and how many it takes at most.

What the engine's own tokenizer says; for an engine that has none, words and signs.
"""

from __future__ import annotations

from typing import Any

from teola_plugin.engines import Engine
from teola_plugin.runtime.engines.embedding import EmbeddingEngine
from teola_plugin.runtime.engines.reranking import RerankingEngine
from teola_plugin.runtime.engines.simulated_text import tokenize
from teola_plugin.runtime.engines.vllm import VllmEngine


def count_tokens(engine: Engine, *texts: str) -> int:
    """Tokens that the engine computes for one item of these texts (a pair is one item), special ones included."""
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
    """The most tokens that an item may have or that count; None: there is no telling."""
    longest: Any = None
    match engine:
        case EmbeddingEngine() | RerankingEngine():
            longest = getattr(engine._model(), "max_seq_length", None)
        case VllmEngine():
            longest = engine._core.max_model_len if engine._core else engine._args.get("max_model_len")
    return None if longest is None else int(longest)
