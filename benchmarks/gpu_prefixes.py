"""Greedy texts of prompts whose beginning was computed before, beside those of the same prompts sent whole.

    python benchmarks/gpu_prefixes.py                           bfloat16, a Llama of 110 million random weights
    python benchmarks/gpu_prefixes.py --dtype float32
    VLLM_BATCH_INVARIANT=1 python benchmarks/gpu_prefixes.py    see gpu.py

Each way has the same prompts, and a part of the KV cache of its own:

    whole, again    one prompt at a time, twice
    batch           all prompts at once
    cached          the beginning, of whole blocks, is in vLLM's own prefix cache
    early           the beginning, the same tokens, was prefilled early
    cached+, early+ likewise, and the beginning ends in the middle of a block: the cache has it up to the last whole one

For each pair of ways: how many texts are equal, and for each other one the number of its first token that differs, with
what the two best tokens there are apart (of log probability, the whole text before given). The last line has that for
all tokens of the texts of `whole`.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from gpu import LLAMA_7B, llm, random_weights
from prefix_order import VOCABULARY

from teola_plugin.engines import Batch, Done, Item, Outcome
from teola_plugin.runtime.engines.open_prefills import HELD_BACK_TOKENS
from teola_plugin.runtime.engines.vllm import VllmEngine

ANSWER_TOKENS = 64
SETTINGS = {"temperature": 0.0, "max_tokens": ANSWER_TOKENS, "ignore_eos": True}
PAIRS = [("again", "whole"), ("batch", "whole"), ("cached", "whole"), ("early", "whole"), ("early", "cached"),
         ("cached+", "whole"), ("early+", "whole"), ("early+", "cached+")]  # fmt: skip

Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Prompt:
    """`aligned` and `between` are beginnings: what of them is prefilled ends a block, or half of one."""

    text: str
    aligned: str
    between: str


def main(
    dtype: Annotated[str, typer.Option(help="Of weights and cache: bfloat16, float16 or float32.")] = "bfloat16",
    divide: Annotated[int, typer.Option(min=1, help="A Llama of 7B so many times as thin and as shallow.")] = 4,
    prompts: Annotated[int, typer.Option(min=1)] = 24,
    longest: Annotated[int, typer.Option(min=256, help="Tokens of the longest prompt.")] = 1536,
) -> None:
    """Print one line for each pair of ways."""
    with tempfile.TemporaryDirectory() as folder:
        more = {"dtype": dtype, "enforce_eager": True, "kv_cache_memory_bytes": 2 << 30}
        engine = llm(Path(folder), LLAMA_7B.divided(divide), 0.2, **more)
        texts, gaps = asyncio.run(_measured(engine, prompts, longest))
    for one, other in PAIRS:
        print(_line(f"{one} = {other}", texts[one], texts[other], gaps))
    flat = [gap for each in gaps for gap in each]
    low, middle = statistics.quantiles(flat, n=100)[0], statistics.median(flat)
    import vllm

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "the CPU, no GPU"
    print(f"all tokens: 1 % are closer than {low:.4f}, half closer than {middle:.4f}")
    print(f"{dtype}; device: {device}; torch {torch.__version__}; vLLM {vllm.__version__}")


def _line(name: str, some: Sequence[Tokens], others: Sequence[Tokens], gaps: Sequence[Sequence[float]]) -> str:
    unequal = [(n, a, b) for n, (a, b) in enumerate(zip(some, others, strict=True)) if a != b]
    first = [(n, next(at for at in range(ANSWER_TOKENS) if a[at] != b[at])) for n, a, b in unequal]
    apart = " ".join(f"{at} ({gaps[n][at]:.4f})" for n, at in first)
    return f"{name:18} {len(some) - len(first):3} of {len(some)}  {apart}".rstrip()


def _prompts(engine: VllmEngine, count: int, longest: int, block: int) -> list[Prompt]:
    """Return prompts of different lengths and words, from an eighth of the longest on."""
    drawn, found = random.Random(0), []
    for number in range(count):
        tokens = longest // 8 + (longest - longest // 8) * number // count
        words: list[str] = []
        while len(engine.tokens(" ".join(words))) < tokens:
            words += drawn.choices(VOCABULARY, k=4)
        text = " ".join(words)
        found.append(Prompt(text, *(_beginning(engine, text, block, over) for over in (0, block // 2))))
    return found


def _beginning(engine: VllmEngine, text: str, block: int, over: int) -> str:
    """Return half of the text and some: what is prefilled early of it is whole blocks and `over` tokens."""
    starts = (text[:end] for end in range(len(text) // 2, len(text)))
    return next(s for s in starts if (len(engine.tokens(s)) - HELD_BACK_TOKENS) % block == over)


async def _measured(engine: VllmEngine, count: int, longest: int) -> tuple[Mapping[str, Any], list[list[float]]]:
    """Return the tokens of each way's texts, and what was between the two best tokens at each token of `whole`."""
    core = await engine._running()
    prompts = _prompts(engine, count, longest, core.room.block_tokens)
    texts = {way: [await _alone(engine, way, n, p) for n, p in enumerate(prompts)] for way in WAYS}
    texts["batch"] = await _answers(engine, [Item(p.text, tenant=f"batch {n}", id=n) for n, p in enumerate(prompts)])
    ids = [engine.tokens(p.text) for p in prompts]
    gaps = [await _gaps(core.llm, *each) for each in zip(ids, texts["whole"], strict=True)]
    await engine.close()
    return texts, gaps


WAYS = {"whole": "", "again": "", "cached": "aligned", "early": "aligned", "cached+": "between", "early+": "between"}


async def _alone(engine: VllmEngine, way: str, number: int, prompt: Prompt) -> Tokens:
    # An owner's prefill is held open for the rest. Without one, a plain request leaves whole blocks in the cache.
    owner = f"query {number}" if way.startswith("early") else 0
    item = Item(prompt.text, owner, tenant=f"{way} {number}", id=1)
    if part := WAYS[way]:
        beginning = Item(getattr(prompt, part), owner, tenant=item.tenant, id=0)
        await _run(engine, "partial_prefilling", SETTINGS, [beginning])
    return (await _answers(engine, [item]))[0]


async def _answers(engine: VllmEngine, items: Sequence[Item]) -> list[Tokens]:
    return [each.token_ids for each in await _run(engine, "decoding", SETTINGS, items)]


async def _run(engine: VllmEngine, op: str, settings: Mapping[str, Any], items: Sequence[Item]) -> list[Any]:
    done: dict[int, Any] = {}

    def take(at: int, outcome: Outcome) -> None:
        if isinstance(outcome, Done):
            done[at] = outcome.value

    await engine.run(Batch(op, settings, tuple(items)), take)
    return [done[at] for at in range(len(items))]


async def _gaps(vllm: Any, prompt: list[int], answer: Tokens) -> list[float]:
    """Return the log probability between the two best tokens, at each token of the answer."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=1, prompt_logprobs=2)
    async for output in vllm.generate({"prompt_token_ids": [*prompt, *answer]}, params, "gaps"):
        found = output.prompt_logprobs[len(prompt) :]
    best = (sorted((each.logprob for each in at.values()), reverse=True) for at in found)
    return [first - second for first, second, *_ in best]


if __name__ == "__main__":
    typer.run(main)
elif __name__ == "__mp_main__":
    random_weights()
