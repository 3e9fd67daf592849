"""Token ids to text, a piece per token, independent of timing.

vLLM hands over several tokens at once when the reader is slow, so vLLM's own chunks depend on the load. Here each token
gives exactly one piece, which is empty while a character is incomplete or a stop string may have begun; the pieces
joined are the text that vLLM gives for the same tokens:

    tokens   'Hel' 'lo' ' wor' 'ld' </s>        stop=['world']
    pieces   'Hel' 'lo' ''     ''   ''          ' wor' was held back until it was clear what it begins
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Pieces:
    """The growing text of an answer.

    `prompt_ids` prime the decoder, as some tokenizers write a token differently at the start of a text. `held_back`
    characters are not emitted until the end, as they may begin a stop string (which does not belong to the text).
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        held_back: int = 0,
    ) -> None:
        from tokenizers.decoders import DecodeStream

        self.token_ids: list[int] = []
        self.said: list[str] = []
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._held_back = held_back
        self._stream = DecodeStream(ids=list(prompt_ids), skip_special_tokens=skip_special_tokens)
        self._text = ""
        self._said_chars = 0

    def add(self, token_id: int) -> str:
        """Return the piece of the next token, which is not the last token."""
        self.token_ids.append(token_id)
        self._text += self._decoded(token_id)
        return self._say(len(self._text) - self._held_back)

    def add_last(self, token_id: int, *, is_silent: bool = False, text_chars: int | None = None) -> str:
        """Return the piece of the last token, with all characters held back.

        `is_silent`: the token ended the answer and is not part of the text. `text_chars`: where a stop string cut the
        text.
        """
        self.token_ids.append(token_id)
        if not is_silent:
            self._text += self._decoded(token_id)
        return self._say(len(self._text) if text_chars is None else text_chars)

    @property
    def text(self) -> str:
        """The emitted text."""
        return "".join(self.said)

    def _say(self, until: int) -> str:
        piece = self._text[self._said_chars : until] if until > self._said_chars else ""
        self._said_chars += len(piece)
        self.said.append(piece)
        return piece

    def _decoded(self, token_id: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception as error:  # the tokenizers package raises plain Exception
            if "Invalid prefix" not in str(error):
                raise
        # A tokenizer whose bytes do not decode monotonically breaks its stream; vLLM too begins a new one here.
        from tokenizers.decoders import DecodeStream

        self._stream = DecodeStream(skip_special_tokens=self._skip)
        return self._stream.step(self._tokenizer, token_id) or ""
