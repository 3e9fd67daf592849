"""The LLMs of Parrot's testbed as latency profiles, and the ways of using them that are compared.

    seconds of a decode step = a polyline over sequences + kv_token_s * tokens that these have in the KV cache

Fitted to the raw results of Parrot's artifact (microsoft/ParrotServe, branch artifact), which its figures average:

    13B, A100    figure 11, ten articles: 21.1 ms for each token written and 0.107 s for each call whatever it writes,
                 within 3 % in all ten. Figure 13: 0.080 s for each chunk where all are prefilled together, so that a
                 prefill takes 21 ms and 0.16 ms a token; 26.3 ms a step of 7 sequences (vLLM's), 42.1 of 46 and 59.3 of
                 76 (Parrot's). KV: 0.82 MB a token at 2.04 TB/s, which is 0.22 ms of each of these sequences. Of a
                 prefix that is shared: figure 17 without Parrot's kernel, 25 to 32 ms a step of 3 to 10 sequences
    7B, A100     figure 14: 5,107 tokens prefilled in 0.710 s; 20.7, 32.2 and 51.7 ms a step at batches of 8, 16, 32,
                 shared or not
    7B, A6000    assumed: the A100's, by memory bandwidth (2039 to 768 GB/s) and peak (312 to 155 TFLOPS)

A step's KV tokens are those of the usual context of a workload: a latency profile knows no single sequence. Parrot's
kernel, which reads a shared prefix once for the whole batch, is not ours and is not modelled.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Literal

from simulator import LlmServer

from teola_plugin.passes import DEFAULT, Pass
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.scheduler.policies import PolicyName


@dataclass(frozen=True, slots=True)
class Context:
    """Of an average sequence: tokens in the KV cache, and how many of them are a prefix that others have, too."""

    tokens: int
    shared_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Model:
    """A model on a GPU. `steps`: (sequences, seconds) without what reading their KV cache takes.

    `shared_kv_token_s`: of a prefix that is in the cache once. `kv_tokens`: what that holds. `pair_s`: of `LlmProfile`.
    """

    name: str
    prefill_s: float
    prefill_token_s: float
    steps: tuple[tuple[int, float], ...]
    kv_token_s: float
    shared_kv_token_s: float
    kv_tokens: int
    pair_s: float = 5e-9

    def profile(self, context: Context, *, is_shared: bool) -> LlmProfile:
        """For such sequences."""
        shared_s = self.shared_kv_token_s if is_shared else self.kv_token_s
        kv_s = self.kv_token_s * (context.tokens - context.shared_tokens) + shared_s * context.shared_tokens
        points = tuple((n, seconds + n * kv_s) for n, seconds in self.steps)
        step = Profile(points, max_items=MAX_SEQUENCES, source=f"Parrot's artifact: {self.name}")
        return LlmProfile(Profile.affine(self.prefill_s, token_s=self.prefill_token_s), step, self.pair_s)


MAX_SEQUENCES = 256
"""At once, and `PREFILL_TOKENS` of one prefill: what the artifact has for both systems (max_num_batched_tokens)."""

PREFILL_TOKENS = 8000

# 80 GB * 0.9, less 26 GB of weights and 2 GB to work with, at 0.82 MB a token
STEPS_13B = ((0, 0.0209), (7, 0.0248), (46, 0.0320), (76, 0.0426))
A100_13B = Model("13B on an A100", 0.021, 0.00016, STEPS_13B, 4.0e-7, 1.0e-7, kv_tokens=53_000)
# figure 14 gives it 6,800 blocks of 16 tokens
A100_7B = Model("7B on an A100", 0.009, 0.000139, ((1, 0.0093), (2, 0.0093)), 2.2e-7, 2.2e-7, kv_tokens=108_800)
# figure 16 gives Parrot 3,000 blocks of 16 tokens on each
A6000_7B = Model(
    "7B on an A6000", 0.024, 0.00028, ((0, 0.0247), (1, 0.0247)), 5.8e-7, 5.8e-7, kv_tokens=48_000, pair_s=1e-8
)


@dataclass(frozen=True, slots=True)
class Way:
    """How requests come to the engine. `is_remote`: a client elsewhere asks for each of them by itself.

    `kv_tokens`: what may run at once on one instance; None: as much as `MAX_SEQUENCES` need, since a prefix that they
    share is held once.
    """

    name: str
    policy: PolicyName
    prefix_cache: Literal["full", "instruction", "none"]
    is_remote: bool
    kv_tokens: int | None
    passes: tuple[Pass, ...] = ()

    def llm(self, model: Model, context: Context, instances: int = 1, max_items: int = MAX_SEQUENCES) -> LlmServer:
        """The engine, used in this way."""
        profile = model.profile(context, is_shared=self.prefix_cache != "none")
        return LlmServer(profile, instances, max_items, PREFILL_TOKENS, self.kv_tokens, self.prefix_cache)

    def __str__(self) -> str:
        return self.name


LATENCY_TUNED_TOKENS = 4096
"""What the artifact lets run at once where latency is the objective (VLLM_CAPACITY, max_total_tokens)."""


def vllm_then(kv_tokens: int | None) -> Way:
    """vLLM as it was: first come first served, nothing shared."""
    return Way("vLLM as it was", "to", "none", is_remote=True, kv_tokens=kv_tokens)


def vllm_today(kv_tokens: int | None) -> Way:
    """The same with today's automatic prefix cache."""
    return replace(vllm_then(kv_tokens), name="vLLM of today", prefix_cache="full")


def ours(kv_tokens: int | None, policy: PolicyName = "critical_path") -> Way:
    """The whole graph at the scheduler."""
    return Way("ours", policy, "full", is_remote=False, kv_tokens=kv_tokens, passes=DEFAULT)


ROUND_TRIP_S = 0.244


def round_trip_s(drawn: random.Random) -> float:
    """From the client and back: 244 ms on average, from 218 to 345, as the artifact's 100 samples."""
    least, most = 0.218, 0.345
    return min(most, least + drawn.expovariate(1 / (ROUND_TRIP_S - least)))
