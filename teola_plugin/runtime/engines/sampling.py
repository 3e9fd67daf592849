"""vLLM's sampling parameters from the settings of a `decoding`.

The names and meanings are vLLM's own (`SamplingParams`), defaults included: without `temperature` vLLM samples, without
`max_tokens` vLLM writes 16 tokens. `structured_outputs` is a plain dict with one of `regex`, `json` (a schema, or its
JSON text), `choice`, `grammar` or `json_object`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from teola_plugin.errors import EngineError

NUMBERS = (
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty",
    "frequency_penalty", "repetition_penalty",
)  # fmt: skip
FLAGS = ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output")
LISTS = ("stop_token_ids", "bad_words", "allowed_token_ids")
KNOWN = (*NUMBERS, *FLAGS, *LISTS, "stop", "logit_bias", "structured_outputs")

MAX_TOKENS = 16
"""vLLM's default."""

CONTINUABLE = {
    "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "ignore_eos", "skip_special_tokens",
    "stop_token_ids",
}  # fmt: skip
"""What vLLM honours in a later chunk of a prompt exactly as in a plain request. vLLM refuses `stop` there, seeds the
sampler only with the first chunk, and its core crashes on a late grammar."""


def sampling_params(settings: Mapping[str, Any]) -> Any:
    """Return vLLM's `SamplingParams`, streaming deltas, of new tokens only.

    vLLM makes text only where it has to find stop strings: see `pieces.py`.

    Raises: EngineError for an unknown setting; vLLM's error for a refused value.
    """
    unknown = sorted(set(settings) - set(KNOWN))
    if unknown:
        raise EngineError(f"vLLM engine: unknown setting {', '.join(unknown)}; known are {', '.join(KNOWN)}")
    from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

    given = dict(settings)
    for name in LISTS:
        if given.get(name) is not None:
            given[name] = list(given[name])
    if stop := given.pop("stop", None):
        given["stop"] = [stop] if isinstance(stop, str) else list(stop)
    if bias := given.pop("logit_bias", None):
        given["logit_bias"] = {int(token): float(value) for token, value in dict(bias).items()}
    if constraint := given.pop("structured_outputs", None):
        given["structured_outputs"] = StructuredOutputsParams(**dict(constraint))
    return SamplingParams(**given, detokenize=bool(stop), output_kind=RequestOutputKind.DELTA)


def is_continuable(settings: Mapping[str, Any]) -> bool:
    """Whether a request with these settings may be the continuation of an open prefill."""
    return all(name in CONTINUABLE or value in (None, (), []) for name, value in settings.items())


def held_back_chars(params: Any) -> int:
    """Return the number of characters that may begin a stop string, which is not part of the answer."""
    if not params.stop or params.include_stop_str_in_output:
        return 0
    return max(map(len, params.stop)) - 1
