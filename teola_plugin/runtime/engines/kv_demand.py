"""The KV cache demand of an LLM request, estimated before the prompt is tokenised.

Tokenising a long prompt takes milliseconds on the thread that serves all queries. So the length of a prompt is
estimated from its characters, at the recent ratio of tokens to characters, and the length of an answer from
`max_tokens`, at the recent share of `max_tokens` written. A margin is added: if requests do not fit, vLLM preempts a
running request and computes the request again later.

    prompt  [ characters x tokens per character ]
    answer  [ max_tokens x share of it lately written ]     + MARGIN, at most all of max_tokens
    in all  at most what the model takes, in whole blocks
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from teola_plugin.runtime.engines.sampling import MAX_TOKENS

MARGIN = 1.25

FIRST_TOKENS_PER_CHAR = 0.4
"""The ratio before anything was tokenised: English text has about 0.25, code and tables up to 0.4."""

MEAN_OF_ITEMS = 32
"""The number of recent requests in the running means."""


class KvDemand:
    """Estimates for a model, learned from its requests. `block_tokens` is known once the engine runs."""

    def __init__(self) -> None:
        self.block_tokens = 1
        self.max_model_len: int | None = None
        self._tokens_per_char = FIRST_TOKENS_PER_CHAR
        self._written = 1.0

    def guess(self, text: str, max_tokens: int | None) -> int:
        """Return the KV cache tokens of a request with a prompt. `max_tokens`: None for all that the model takes."""
        longest = self.max_model_len
        answer = max_tokens if max_tokens is not None else longest or 0
        tokens = MARGIN * self._tokens_per_char * len(text) + min(answer, MARGIN * self._written * answer)
        whole = int(tokens if longest is None else min(tokens, longest)) + 1
        return -(-whole // self.block_tokens) * self.block_tokens

    def of_item(self, op: str, payload: Any, settings: Mapping[str, Any]) -> int:
        """Return the estimate for an item of an LLM; 0 for a payload that is no text."""
        max_tokens = settings.get("max_tokens", MAX_TOKENS) if op == "decoding" else 1
        return self.guess(payload, max_tokens) if isinstance(payload, str) else 0

    def prompt_was(self, text: str, tokens: int) -> None:
        """Learn the token count of a prompt."""
        if text:
            self._tokens_per_char += (tokens / len(text) - self._tokens_per_char) / MEAN_OF_ITEMS

    def answer_was(self, tokens: int, max_tokens: int) -> None:
        """Learn the length of an answer that ended normally or at `max_tokens`."""
        self._written += (min(1.0, tokens / max_tokens) - self._written) / MEAN_OF_ITEMS
