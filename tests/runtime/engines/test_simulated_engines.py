"""Profile engines in virtual time: `sleep` adds to a clock and lets others run, so nothing here waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teola_plugin.engines import Batch, Delta, Done, Engine, Failed, Item, Outcome
from teola_plugin.errors import Cancelled, EngineClosed, EngineError
from teola_plugin.items import GRAMMARS, parse_items
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.engines.prefix_cache import PrefixCache
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker
from teola_plugin.runtime.engines.simulated_text import complete, embed, score, tokenize

LLM = LlmProfile(prefill=Profile.affine(1.0, token_s=0.01), step=Profile(((1, 0.1), (2, 0.2))))
BATCH = Profile.affine(1.0, 0.5, token_s=0.01)

_ids = count(1)


class Clock:
    """Virtual time. `at` runs a function the first time that the clock has reached an hour."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    async def sleep(self, seconds: float) -> None:
        self.now_s = round(self.now_s + seconds, 9)
        for hour, act in [d for d in self.due if d[0] <= self.now_s]:
            self.due.remove((hour, act))
            act()
        for _ in range(5):  # others take notice
            await asyncio.sleep(0)

    def at(self, hour: float, act: Callable[[], None]) -> None:
        self.due.append((hour, act))


class Told:
    """The outcomes of one batch, each with the time it came."""

    def __init__(self, clock: Clock, size: int) -> None:
        self.clock = clock
        self.said: list[list[tuple[float, Outcome]]] = [[] for _ in range(size)]

    def emit(self, position: int, outcome: Outcome) -> None:
        self.said[position].append((self.clock.now_s, outcome))

    def texts(self, position: int) -> list[str]:
        return [o.text for _, o in self.said[position] if isinstance(o, Delta)]

    def times(self, position: int) -> list[float]:
        return [at for at, o in self.said[position] if isinstance(o, Delta)]

    def end(self, position: int) -> Any:
        (end,) = [o for _, o in self.said[position] if not isinstance(o, Delta)]
        assert self.said[position][-1][1] is end
        return end.value if isinstance(end, Done) else end.error

    def ends(self) -> list[Any]:
        return [self.end(position) for position in range(len(self.said))]


def batch_of(op: str, *payloads: Any, priority: int = 0, **more: Any) -> Batch:
    return Batch(op, more, tuple(Item(p, id=next(_ids), priority=priority) for p in payloads))


async def ask(engine: Engine, clock: Clock, op: str, *payloads: Any, **more: Any) -> Told:
    batch = batch_of(op, *payloads, **more)
    told = Told(clock, len(payloads))
    await engine.run(batch, told.emit)
    return told


def words(number: int, word: str = "w") -> str:
    return " ".join(f"{word}{n}" for n in range(number))


# --- what they say ------------------------------------------------------------------------------------------


@given(st.text(max_size=40))
@settings(deadline=None)
def test_tokens_joined_are_the_text(text: str) -> None:
    assert "".join(tokenize(text)) == text


def test_an_answer_depends_on_prompt_and_settings_and_grows_with_max_tokens() -> None:
    answer = complete("Who?", {"max_tokens": 8})
    assert answer == complete("Who?", {"max_tokens": 8})
    assert answer != complete("What?", {"max_tokens": 8})
    assert answer != complete("Who?", {"max_tokens": 8, "seed": 1})
    assert answer.startswith(complete("Who?", {"max_tokens": 5}))
    assert "".join(answer.pieces) == answer
    assert (len(answer.pieces), len(answer.token_ids), answer.prompt_tokens) == (8, 8, 2)
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("stop", ["c", ["x", "c", "d"], ("c",)])
def test_an_answer_ends_before_its_stop_string(stop: Any) -> None:
    answer = complete("?", {"stop": stop, "max_tokens": 9}, lambda prompt, given: "a b c d")
    assert (answer, answer.finish_reason) == ("a b ", "stop")


def test_a_reply_of_ones_own_is_cut_like_any_other() -> None:
    def reply(prompt: str, given: Mapping[str, Any]) -> str:
        return f"{prompt} {given['max_tokens']} c d"

    assert complete("a", {"max_tokens": 3}, reply) == "a 3 c"
    assert complete("a", {"max_tokens": 3}, reply).finish_reason == "length"
    assert complete("a", {"max_tokens": 4}, reply).finish_reason == "stop"


@pytest.mark.parametrize("grammar", [g for g in GRAMMARS if g not in ("fusion_lines", "sub_questions")])
def test_a_shape_gives_so_many_items(grammar: str) -> None:
    assert len(set(parse_items(grammar, complete("Who?", {"shape": f"{grammar}:3"})))) == 3


@pytest.mark.parametrize("shape", ["haiku:3", "lines", "lines:many"])
def test_a_shape_that_cannot_be_is_refused(shape: str) -> None:
    with pytest.raises(EngineError, match="shape="):
        complete("Who?", {"shape": shape})


def test_texts_with_words_in_common_are_near() -> None:
    river, valley, other = (embed(t, 256) for t in ("The river runs deep.", "the valley runs deep", "Stock prices"))
    assert river @ valley > 0.5 > abs(river @ other)
    assert river.dtype == np.float32
    assert np.linalg.norm(embed("", 256)) == pytest.approx(1)


def test_passages_rank_by_the_words_of_the_query() -> None:
    passages = ["a red and a green apple", "a red car", "nothing"]
    scores = [score("red green apple", passage) for passage in passages]
    assert scores == sorted(scores, reverse=True)
    assert len({score("red", f"red {n}") for n in range(20)}) == 20
    assert all(np.float32(s) == s for s in scores)


# --- prefix cache -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known", "asked", "hits"),
    [("abcdefgh", "abcdefghi", 8), ("abcdefgh", "abcdefgh", 4), ("abcdefg", "abcdefgh", 4), ("abcd", "abcx", 0),
     ("abcd", "xabcd", 0), ("abcdefgh", "xxxxefghi", 0), ("", "abcde", 0), ("abcd", "", 0)],
)  # fmt: skip
def test_a_prefix_is_found_by_whole_blocks_and_never_to_its_last_token(known: str, asked: str, hits: int) -> None:
    cache = PrefixCache(block_tokens=4)
    cache.add(list(known))
    assert cache.hit_tokens(list(asked)) == hits


def test_blocks_that_nobody_used_for_longest_go_first() -> None:
    cache = PrefixCache(max_blocks=2, block_tokens=1)
    cache.add(["a"])
    cache.add(["b"])
    assert cache.hit_tokens(["a", "."]) == 1
    cache.add(["c"])
    assert [cache.hit_tokens([t, "."]) for t in "abc"] == [1, 0, 1]
    assert len(cache) == 2


def test_of_a_text_that_must_go_the_end_goes_first() -> None:
    """Without its first block nothing of it could be found."""
    cache = PrefixCache(max_blocks=4, block_tokens=1)
    cache.add(list("abc"))
    cache.add(list("xy"))
    assert cache.hit_tokens(list("abc.")) == 2
    cache.add(list("z"))
    assert [cache.hit_tokens([*text, "."]) for text in ("abc", "xy", "z")] == [2, 1, 1]


@given(st.lists(st.text("ab", max_size=6), max_size=12), st.integers(1, 6))
def test_a_cache_holds_no_more_than_it_may_and_finds_what_it_was_told_last(texts: list[str], most: int) -> None:
    cache = PrefixCache(max_blocks=most, block_tokens=1)
    for text in texts:
        cache.add(list(text))
        assert len(cache) <= most
        assert cache.hit_tokens([*text, "."]) == min(len(text), most)


# --- the LLM ------------------------------------------------------------------------------------------------


async def test_a_prompt_is_prefilled_and_then_says_one_token_a_step() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, sleep=clock.sleep)
    told = await ask(llm, clock, "decoding", words(10), max_tokens=3)
    assert told.end(0) == complete(words(10), {"max_tokens": 3}) == "".join(told.texts(0))
    assert told.times(0) == [1.1, 1.2, 1.3]
    assert (llm.stats.batches, llm.stats.tokens, llm.stats.steps, llm.stats.busy_s) == (
        1,
        10,
        2,
        pytest.approx(1.3),
    )


async def test_prompts_of_a_batch_run_side_by_side() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, sleep=clock.sleep)
    told = await ask(llm, clock, "decoding", words(10, "a"), words(10, "b"), max_tokens=3)
    assert told.times(0) == told.times(1) == [1.2, 1.4, 1.6]
    assert llm.stats.sizes == [2]


async def test_a_prompt_that_comes_later_delays_the_tokens_of_those_that_run() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, sleep=clock.sleep)
    late = Told(clock, 1)
    tasks: list[asyncio.Task[None]] = []
    clock.at(
        1.2,
        lambda: tasks.append(asyncio.create_task(llm.run(batch_of("decoding", "b", max_tokens=2), late.emit))),
    )
    early = await ask(llm, clock, "decoding", words(10), max_tokens=4)
    await tasks[0]
    assert (early.times(0), late.times(0)) == ([1.1, 1.2, 2.41, 2.51], [2.21, 2.41])


async def test_slots_and_prefill_tokens_are_limited_and_the_most_urgent_go_first() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, max_items=2, max_prefill_tokens=15, sleep=clock.sleep)
    bulk, urgent = Told(clock, 3), Told(clock, 1)
    await asyncio.gather(
        llm.run(batch_of("decoding", words(10, "a"), words(10, "b"), "c", max_tokens=1), bulk.emit),
        llm.run(batch_of("decoding", words(10, "u"), max_tokens=1, priority=-5), urgent.emit),
    )
    assert urgent.times(0) == [1.1]  # `a` would be 20 tokens in one prefill
    assert [bulk.times(n) for n in range(3)] == [[2.2], [3.31], [3.31]]
    assert llm.stats.sizes == [1, 1, 2]


async def test_one_prompt_longer_than_a_prefill_still_runs() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, max_prefill_tokens=5, sleep=clock.sleep)
    assert (await ask(llm, clock, "decoding", words(10), max_tokens=1)).times(0) == [1.1]


async def test_a_partial_prefill_spares_the_prompt_that_follows() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, sleep=clock.sleep)
    prefix, rest = words(32), " and the rest"
    assert (await ask(llm, clock, "partial_prefilling", prefix)).end(0) == 32
    assert clock.now_s == 1.32
    told = await ask(llm, clock, "decoding", prefix + rest, max_tokens=1)
    assert told.times(0) == [pytest.approx(1.32 + 1.03)]
    assert told.end(0) == complete(prefix + rest, {"max_tokens": 1})
    assert (llm.stats.tokens, llm.stats.cached_tokens) == (35, 32)


async def test_two_prompts_of_one_prefill_share_their_prefix_and_answers_are_prefixes_too() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, reply=lambda prompt, given: " " + words(31, "r"), sleep=clock.sleep)
    told = await ask(llm, clock, "decoding", words(16) + " a", words(16) + " b")
    assert llm.stats.cached_tokens == 16
    await ask(llm, clock, "decoding", f"{words(16)} a{told.end(0)} and on")
    assert llm.stats.cached_tokens == 16 + 48


async def test_attention_over_a_cached_prefix_is_paid_for() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LlmProfile(Profile.affine(1.0), LLM.step, pair_s=0.001), sleep=clock.sleep)
    await ask(llm, clock, "partial_prefilling", words(16))
    await ask(llm, clock, "partial_prefilling", words(26))
    assert clock.now_s == pytest.approx(2 + 10 * 16 * 0.001)


async def test_an_empty_answer_ends_with_the_prefill() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, reply=lambda prompt, given: "", sleep=clock.sleep)
    told = await ask(llm, clock, "decoding", "a", "")
    assert told.ends() == ["", ""]
    assert told.texts(0) == []


async def test_an_aborted_item_ends_after_the_step_and_frees_its_slot() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, max_items=1, sleep=clock.sleep)
    batch, told = batch_of("decoding", "a", "b", "c", max_tokens=4), Told(clock, 3)
    clock.at(1.11, lambda: llm.abort([batch.items[0].id, batch.items[1].id]))
    await llm.run(batch, told.emit)
    assert isinstance(told.end(0), Cancelled)
    assert isinstance(told.end(1), Cancelled)
    assert (told.times(0), told.times(1)) == ([1.01], [])
    assert told.end(2) == complete("c", {"max_tokens": 4})
    assert told.times(2)[0] == pytest.approx(1.11 + 1.01)


async def test_a_cancelled_run_leaves_the_others_alone() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, max_items=1, sleep=clock.sleep)
    doomed, told = Told(clock, 1), Told(clock, 1)
    task = asyncio.create_task(llm.run(batch_of("decoding", "a", max_tokens=9), doomed.emit))
    clock.at(1.2, lambda: task.cancel() and None)
    other = asyncio.create_task(llm.run(batch_of("decoding", "b", max_tokens=2), told.emit))
    with pytest.raises(asyncio.CancelledError):
        await task
    await other
    assert told.end(0) == complete("b", {"max_tokens": 2})
    assert len(doomed.times(0)) < 4


async def test_closing_ends_what_runs_and_a_later_batch_starts_afresh() -> None:
    clock = Clock()
    llm = ProfileLLM("llm", LLM, max_items=1, sleep=clock.sleep)
    told, closing = Told(clock, 2), []
    clock.at(1.11, lambda: closing.append(asyncio.create_task(llm.close())))
    await llm.run(batch_of("decoding", "a", "b", max_tokens=4), told.emit)
    assert all(isinstance(end, EngineClosed) for end in told.ends())
    await closing[0]
    assert (await ask(llm, clock, "decoding", "c", max_tokens=2)).end(0) == complete("c", {"max_tokens": 2})


async def test_a_clock_that_breaks_fails_all_who_wait() -> None:
    broken = OSError("no time")

    async def sleep(seconds: float) -> None:
        raise broken

    told = await ask(ProfileLLM("llm", LLM, max_items=1, sleep=sleep), Clock(), "decoding", "a", "b")
    assert told.ends() == [broken, broken]


# --- embedding and reranking --------------------------------------------------------------------------------


def _embedding(clock: Clock, **more: Any) -> ProfileEmbedding:
    return ProfileEmbedding(8, BATCH, sleep=clock.sleep, **more)


def _reranker(clock: Clock, **more: Any) -> ProfileReranker:
    return ProfileReranker(BATCH, sleep=clock.sleep, **more)


async def test_a_batch_takes_as_long_as_the_profile_says_and_the_next_one_waits() -> None:
    clock = Clock()
    embedder = _embedding(clock)
    first, second = Told(clock, 3), Told(clock, 1)
    await asyncio.gather(
        embedder.run(batch_of("embedding", "a", "b c", "d"), first.emit),
        embedder.run(batch_of("embedding", "e"), second.emit),
    )
    assert [first.said[2][0][0], second.said[0][0][0]] == [2.54, pytest.approx(2.54 + 1.51)]
    assert (embedder.stats.sizes, embedder.stats.tokens, embedder.stats.items) == ([3, 1], 5, 4)


async def test_a_pair_counts_the_tokens_of_both_texts() -> None:
    clock = Clock()
    told = await ask(_reranker(clock), clock, "reranking", ("red car", "a red car"), ("red car", "a boat"))
    assert clock.now_s == pytest.approx(2 + 9 * 0.01)
    assert told.ends() == [score("red car", "a red car"), score("red car", "a boat")]


@given(st.lists(st.text(max_size=12), min_size=1, max_size=6), st.randoms())
@settings(deadline=None, max_examples=30)
def test_the_company_in_a_batch_changes_no_bit(texts: list[str], shuffled: Any) -> None:
    async def check() -> None:
        clock = Clock()
        others = shuffled.sample(texts, len(texts))
        together = dict(zip(others, (await ask(_embedding(clock), clock, "embedding", *others)).ends(), strict=True))
        for text in texts:
            alone = (await ask(_embedding(clock), clock, "embedding", text)).end(0)
            assert alone.tobytes() == together[text].tobytes()
            assert (alone.dtype, alone.shape) == (np.float32, (8,))

    asyncio.run(check())


async def test_an_embedding_prompt_goes_before_the_text() -> None:
    clock = Clock()
    told = await ask(_embedding(clock), clock, "embedding", "car", prompt="query: ")
    assert told.end(0).tobytes() == embed("query: car", 8).tobytes()


# --- faults -------------------------------------------------------------------------------------------------


def _engines(clock: Clock, **more: Any) -> list[tuple[Engine, str, list[Any]]]:
    pairs = [("q", "good"), ("q", "bad"), ("q", "fine")]
    return [
        (ProfileLLM("llm", LLM, sleep=clock.sleep, **more), "decoding", ["good", "bad", "fine"]),
        (_embedding(clock, **more), "embedding", ["good", "bad", "fine"]),
        (_reranker(clock, **more), "reranking", pairs),
    ]


@pytest.mark.parametrize("which", range(3))
async def test_a_poisoned_item_fails_alone_with_its_own_error(which: int) -> None:
    poison = RuntimeError("poisoned")
    clock = Clock()
    engine, op, payloads = _engines(clock, fail_on=lambda p: poison if "bad" in (p, p[-1]) else None)[which]
    told = await ask(engine, clock, op, *payloads)
    assert told.end(1) is poison
    assert [isinstance(told.said[n][-1][1], Failed) for n in range(3)] == [False, True, False]


@pytest.mark.parametrize("which", range(3))
async def test_a_fault_that_is_raised_fails_the_batch(which: int) -> None:
    def raising(payload: Any) -> BaseException | None:
        raise OSError("the engine is gone")

    clock = Clock()
    engine, op, payloads = _engines(clock, fail_on=raising)[which]
    with pytest.raises(OSError, match="gone"):
        await ask(engine, clock, op, *payloads)


@pytest.mark.parametrize("which", range(3))
async def test_an_unknown_operation_is_refused(which: int) -> None:
    clock = Clock()
    engine, _, payloads = _engines(clock)[which]
    assert isinstance(engine, Engine)
    with pytest.raises(EngineError, match="'dancing'"):
        await ask(engine, clock, "dancing", *payloads)
