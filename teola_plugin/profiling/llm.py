"""Measures an LLM: the prefills, then the decode steps.

    prefill   prompts of random words, which no prefix cache knows, and one token of answer: seconds against tokens and
              prompts
    step      n short prompts with answers of one length: each writes a token a step, so seconds of a step are those
              between the first and the last token of an answer, by the tokens between

The attention of new tokens to a cached prefix is not measured apart (`pair_s` is 0), but is part of a token's cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from teola_plugin.engines import Engine
from teola_plugin.errors import EngineError
from teola_plugin.profile import LlmProfile, Sample
from teola_plugin.profiling.batches import Texts, timed, written
from teola_plugin.profiling.steps import Budget, Part, Progress, Run, measure_sizes
from teola_plugin.runtime.engines.lengths import count_tokens, longest_tokens

PREFILL_ITEMS = 4
"""The most prompts of one prefill: an LLM computes thousands of tokens at once, so a few show the cost of a prompt."""

STEP_PROMPT_TOKENS = 32
STEP_TOKENS = 33
"""Tokens of an answer: 32 steps after the prefill."""

GREEDY: Mapping[str, Any] = {"temperature": 0.0, "ignore_eos": True}


async def measure_llm(
    engine: Engine, max_items: int, lengths: Sequence[int], budget: Budget, progress: Progress, source: str
) -> tuple[LlmProfile, tuple[Part, Part]]:
    """Return the profile of an LLM, and the fitted parts; each part gets half of the budget."""
    longest = (longest_tokens(engine) or max(lengths) + STEP_TOKENS) - STEP_TOKENS
    texts, settings = Texts(engine), await _settings(engine, budget.clock)
    prefill = await measure_sizes(
        "prefill", _prefill_run(engine, texts, settings, budget.clock), min(PREFILL_ITEMS, max_items),
        sorted({min(length, longest) for length in lengths}), budget.until(budget.seconds / 2), progress, source,
    )  # fmt: skip
    step = await measure_sizes(
        "decode step", _step_run(engine, texts, settings, budget.clock), max_items, (STEP_PROMPT_TOKENS,), budget,
        progress, source,
    )  # fmt: skip
    return LlmProfile(prefill.profile, step.profile), (prefill, step)


async def _settings(engine: Engine, clock: Callable[[], float]) -> Mapping[str, Any]:
    """Return the settings for answers of a fixed length; some servers know no `ignore_eos`."""
    try:
        await timed(engine, "decoding", ["Hello there"], {**GREEDY, "max_tokens": 1}, clock)
    except EngineError:
        plain = {key: value for key, value in GREEDY.items() if key != "ignore_eos"}
        await timed(engine, "decoding", ["Hello there"], {**plain, "max_tokens": 1}, clock)
        return plain
    return GREEDY


def _prefill_run(engine: Engine, texts: Texts, settings: Mapping[str, Any], clock: Callable[[], float]) -> Run:
    async def run(items: int, length: int) -> Sample:
        prompts = [texts.make(length) for _ in range(items)]
        seconds, said = await timed(engine, "decoding", prompts, {**settings, "max_tokens": 1}, clock)
        completions = [written(outcomes)[0] for outcomes in said]
        counted = [c.prompt_tokens if c else 0 for c in completions]
        tokens = sum(n or count_tokens(engine, prompt) for n, prompt in zip(counted, prompts, strict=True))
        return Sample(items, tokens, seconds)

    return run


def _step_run(engine: Engine, texts: Texts, settings: Mapping[str, Any], clock: Callable[[], float]) -> Run:
    async def run(items: int, length: int) -> Sample:
        prompts = [texts.make(length) for _ in range(items)]
        _, said = await timed(engine, "decoding", prompts, {**settings, "max_tokens": STEP_TOKENS}, clock)
        steps = []
        for outcomes in said:
            completion, times = written(outcomes)
            tokens = len(completion.token_ids) if completion and completion.token_ids else len(times)
            if tokens < 2 or len(times) < 2:
                raise EngineError(f"engine {engine.name!r} wrote fewer than two tokens: its steps cannot be measured")
            steps.append((times[-1] - times[0]) / (tokens - 1))
        return Sample(items, 0, max(1e-9, statistics.median(steps)))

    return run
