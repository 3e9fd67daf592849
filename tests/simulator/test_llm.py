"""The simulated LLM: prefix cache, KV capacity, order of prefills, items of a text, early prefills, early ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulator import Arrival, BatchServer, LlmServer, Simulation, System, Workload, simulate, tokens_of
from simulator.prefix_cache import PiecesCache
from simulator.values import Prompt, piece_tokens, say

from teola_plugin.errors import EngineError
from teola_plugin.graph import parse
from teola_plugin.items import parse_items, parser_for
from teola_plugin.plan import make_plan
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.engines.prefix_cache import PrefixCache
from teola_plugin.runtime.scheduler.policies import PolicyName

# a prefill 1 s and 10 ms a token, a step 100 ms and 10 ms more for each further sequence
LLM = LlmServer(LlmProfile(Profile.affine(1.0, token_s=0.01), Profile(((1, 0.1), (2, 0.11)))), max_items=8)
STORE = BatchServer({"embedding": Profile.affine(2.0)})
ASK = "inputs(x); kv = prefilling('{head}', x) @ llm; y = decoding(kv, max_tokens={tokens}) @ llm; outputs(y)"


def run(
    text: str, arrivals: Sequence[float], llm: LlmServer = LLM, policy: PolicyName = "to", *,
    inputs: Mapping[str, Any] | None = None, bundles: bool = False,
) -> Simulation:  # fmt: skip
    """Queries of one graph; the input x of each is 20 tokens of its own."""
    plan = make_plan(parse(text))
    workload = Workload(plan, {"length": len}, lambda n: inputs or {"x": f"{n:02}" * 40})
    queries = [Arrival(n, "app", at_s) for n, at_s in enumerate(arrivals)]
    return simulate(queries, {"app": workload}, System({"llm": llm, "store": STORE}, policy, bundles), trace=True)


def ask(head_tokens: int = 0, tokens: int = 3) -> str:
    return ASK.format(head="head" * head_tokens, tokens=tokens)


def latencies(simulation: Simulation) -> list[float]:
    assert not [ended.error for ended in simulation.ended if ended.error]
    return [ended.latency_s for ended in simulation.ended]


def of(**changes: Any) -> LlmServer:
    return replace(LLM, **changes)


# --- continuous batching ----------------------------------------------------------------------------------------------


def test_a_prefill_says_the_first_token_and_holds_up_what_decodes() -> None:
    assert latencies(run(ask(), [0.0])) == pytest.approx([1.2 + 2 * 0.1])
    # the second comes in the middle of a step of the first, at whose end it is prefilled
    first, second = latencies(run(ask(tokens=5), [0.0, 1.35]))
    assert first == pytest.approx(1.2 + 2 * 0.1 + 1.2 + 2 * 0.11)
    assert second == pytest.approx(0.05 + 1.2 + 2 * 0.11 + 2 * 0.1)


def test_where_prefills_are_mixed_with_steps_what_decodes_goes_on() -> None:
    first, second = latencies(run(ask(tokens=5), [0.0, 1.35], of(mixes_prefills=True)))
    assert first == pytest.approx(1.2 + 2 * 0.1 + (1.2 + 0.01) + 0.11)
    assert second == pytest.approx(0.05 + (1.2 + 0.01) + 0.11 + 3 * 0.1)


def test_one_prefill_takes_no_more_than_it_may_but_one_prompt() -> None:
    assert run(ask(), [0.0] * 4, of(max_prefill_tokens=40)).engines["llm"].batches == 2
    assert run(ask(), [0.0] * 4, of(max_prefill_tokens=10)).engines["llm"].batches == 4


@pytest.mark.parametrize(("policy", "first"), [("topology", 2), ("to", 1)])
def test_the_longest_way_to_the_output_is_prefilled_first(policy: PolicyName, first: int) -> None:
    """While one prompt is prefilled a short and a long one come."""
    long = "inputs(x); kv = prefilling(x) @ llm; d = decoding(kv, max_tokens=3) @ llm; "
    long += "kv_2 = prefilling(d) @ llm; y = decoding(kv_2, max_tokens=3) @ llm; outputs(y)"
    workloads = {
        name: Workload(make_plan(parse(text)), {}, lambda n: {"x": f"{n}" * 80})
        for name, text in (("short", ask()), ("long", long))
    }
    arrivals = [Arrival(0, "short", 0.0), Arrival(1, "short", 0.1), Arrival(2, "long", 0.2)]
    servers = {"llm": of(max_prefill_tokens=20)}
    spans = simulate(arrivals, workloads, System(servers, policy), trace=True).spans
    assert min((s for s in spans if s.query), key=lambda s: s.begin_s).query == first


# --- prefix cache -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "cached"), [("full", 64), ("instruction", 32), ("none", 0)])
def test_what_a_prompt_shares_with_an_earlier_one(mode: Literal["full", "instruction", "none"], cached: int) -> None:
    """An instruction of 32 tokens and 40 more that are the same in both queries, in blocks of 16."""
    found = run(ask(32), [0.0, 50.0], of(prefix_cache=mode), inputs={"x": "same" * 40})
    assert found.engines["llm"].cached_tokens == cached
    assert found.engines["llm"].prefilled_tokens == 2 * 72 - cached
    first, second = latencies(found)
    assert first - second == pytest.approx(0.01 * cached)


def test_a_literal_in_the_middle_is_no_instruction() -> None:
    text = "inputs(x); kv = prefilling(x, 'head') @ llm; y = decoding(kv, max_tokens=3) @ llm; outputs(y)"
    found = run(text, [0.0, 50.0], of(prefix_cache="instruction"), inputs={"x": "same" * 40})
    assert found.engines["llm"].cached_tokens == 0


def test_prompts_of_one_prefill_share_their_prefix_unless_it_counts_at_its_end() -> None:
    assert [run(ask(32), [0.0, 0.0], of(prefix_at_end=late)).engines["llm"].cached_tokens
            for late in (False, True)] == [32, 0]  # fmt: skip


def test_a_dialogue_finds_its_own_answers() -> None:
    text = """
    inputs(x)
    kv = prefilling(x) @ llm
    a = decoding(kv, max_tokens=28) @ llm
    kv_2 = prefilling(x, a, 'and then?') @ llm
    y = decoding(kv_2, max_tokens=3) @ llm
    outputs(y)
    """
    assert run(text.replace("\n    ", "\n"), [0.0]).engines["llm"].cached_tokens == 48, "20 and 28 tokens"


def test_the_kv_cache_holds_so_much_and_what_was_used_least_recently_goes() -> None:
    text = ask(32)  # 52 tokens of prompt, and 3 of answer
    again = [0.0, 50.0, 100.0]
    assert run(text, again, of(kv_tokens=200)).engines["llm"].cached_tokens == 2 * 32
    # the head is used by all and stays; what is each query's own goes
    assert run(text, again, of(kv_tokens=56)).engines["llm"].cached_tokens == 2 * 32
    # two apps in turn, each with a head of its own: there is room for one
    workloads = {
        name: Workload(make_plan(parse(ASK.format(head=name * 32, tokens=3))), {}, lambda n: {"x": f"{n:02}" * 40})
        for name in ("abcd", "efgh")
    }
    turns = [Arrival(n, name, 50.0 * n) for n, name in enumerate(["abcd", "efgh"] * 20)]
    hits = [
        simulate(turns, workloads, System({"llm": of(kv_tokens=kv_tokens)})).engines["llm"].cached_tokens
        for kv_tokens in (150, 60)
    ]
    assert hits == [38 * 32, 0]


WORDS = st.lists(st.sampled_from(["aaaa", "bbbbbbbb", "cc", "dddd" * 5]), min_size=1, max_size=5)


@given(st.lists(WORDS, max_size=12), st.integers(1, 40))
def test_a_cache_of_pieces_holds_no_more_than_it_may(prompts: list[list[str]], most: int) -> None:
    cache = PiecesCache(most, block_tokens=1)
    for pieces in prompts:
        tokens = [tokens_of(piece) for piece in pieces]
        cache.release(cache.add(pieces, tokens))
        assert cache.tokens <= max(most, sum(tokens)), "what is being used stays"
        known = cache.hit_tokens([*pieces, "more"], [*tokens, 1], sum(tokens) + 1)
        assert known == sum(tokens) or sum(tokens) > most
    cache.reserve(most)
    assert cache.tokens == 0


@given(st.lists(WORDS, max_size=10))
def test_with_room_for_all_it_finds_what_a_cache_of_tokens_finds(prompts: list[list[str]]) -> None:
    """Pieces that are the same letter all through differ from the first token on, or are equal."""
    pieces_cache, token_cache = PiecesCache(10_000, block_tokens=2), PrefixCache(10_000, block_tokens=2)
    for pieces in prompts:
        marked = [f"{piece}|" for piece in pieces]
        tokens = [f"{piece} {n}" for piece in marked for n in range(tokens_of(piece))]
        sizes = [tokens_of(piece) for piece in marked]
        assert pieces_cache.hit_tokens(marked, sizes, len(tokens)) == token_cache.hit_tokens(tokens)
        pieces_cache.add(marked, sizes)
        token_cache.add(tokens)


def test_an_end_goes_before_its_beginning_and_what_is_held_stays() -> None:
    cache = PiecesCache(6, block_tokens=1)
    held = cache.add(["a", "b"], [2, 2])
    cache.release(cache.add(["x"], [2]))
    cache.release(cache.add(["y"], [2]))
    assert [cache.hit_tokens([*text, "."], [2] * len(text) + [1], 9) for text in ("ab", "x", "y")] == [4, 0, 2]
    cache.release(held)
    cache.release(cache.add(["z"], [2]))
    assert [cache.hit_tokens([*text, "."], [2] * len(text) + [1], 9) for text in ("ab", "y", "z")] == [2, 2, 2]


def test_an_answer_goes_before_its_prompt() -> None:
    cache = PiecesCache(4, block_tokens=1)
    held = cache.add(["a"], [2])
    cache.extend(held, "answer", 2)
    cache.release(held)
    cache.release(cache.add(["z"], [2]))
    assert cache.hit_tokens(["a", "answer", "."], [2, 2, 1], 5) == 2


# --- KV capacity ------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_waits_for_what_runs() -> None:
    both, alone = (run(ask(), [0.0, 0.0], of(kv_tokens=kv)) for kv in (46, 45))  # each needs 23
    assert (both.engines["llm"].batches, alone.engines["llm"].batches) == (1, 2)
    first_s, second_s = latencies(alone)
    assert second_s == pytest.approx(2 * first_s)


def test_what_never_fits_is_an_error_of_its_query() -> None:
    assert run(ask(), [0.0], of(kv_tokens=23)).ended[0].error is None
    error = run(ask(), [0.0], of(kv_tokens=22)).ended[0].error
    assert isinstance(error, EngineError)
    assert "23 tokens" in str(error)


# --- items of a text, early prefills, what is cut short ---------------------------------------------------------------

LIST = """
inputs(x)
kv = prefilling(x) @ llm
lines: [] = {kind}(kv, max_tokens=12, items='lines', shape='lines:3'{more}) @ llm
vecs: [] = embedding(*lines) @ store
n = call(vecs, fn='length') @ python
outputs(n)
"""


def listed(kind: str, more: str = "") -> Simulation:
    return run(LIST.format(kind=kind, more=more), [0.0])


def test_items_are_handed_out_evenly_over_the_tokens() -> None:
    spans = [span for span in listed("partial_decoding").spans if span.primitive == "vecs"]
    assert sorted(span.queued_s for span in spans) == pytest.approx([1.2 + step * 0.1 for step in (3, 7, 11)])
    (whole,) = (span for span in listed("decoding").spans if span.primitive == "vecs")
    assert (whole.queued_s, whole.items) == (pytest.approx(1.2 + 11 * 0.1), 3)
    (some,) = (span for span in listed("decoding", ", wanted=2").spans if span.primitive == "vecs")
    assert some.items == 2


def test_who_joins_a_text_late_gets_all_of_its_items() -> None:
    text = LIST.format(kind="partial_decoding", more=", temperature=0")
    found = run(text, [0.0, 1.2 + 0.5], inputs={"x": "x" * 80})
    assert found.engines["llm"].joined == 1
    items = [sum(s.items for s in found.spans if (s.query, s.primitive) == (query, "vecs")) for query in range(2)]
    assert items == [3, 3]


def test_a_text_ends_early_once_the_items_that_are_wanted_are_there() -> None:
    steps = [
        listed("partial_decoding", more).engines["llm"].steps
        for more in ("", ", wanted=2", ", wanted=2, early_stop=True")
    ]
    assert steps == [11, 11, 8], "the step that has begun is made"


EARLY = """
inputs(x)
v = embedding(x) @ store
kv_early = partial_prefilling('{head}') @ llm
kv = full_prefilling(kv_early, v) @ llm
y = decoding(kv, max_tokens=3) @ llm
outputs(y)
"""


def test_an_early_prefill_rests_while_the_llm_has_much_to_do() -> None:
    text = EARLY.format(head="head" * 32)
    alone, crowd = run(text, [0.0]), run(text, [0.01 * n for n in range(6)])
    assert alone.engines["llm"].cached_tokens == 32
    assert [span.primitive for span in alone.spans].count("kv_early") == 1
    early = [span for span in crowd.spans if span.primitive == "kv_early"]
    assert len(early) == 2, "the instance has more than one text then"
    assert not [span for span in run(text, [0.0], of(prefix_cache="none")).spans if span.primitive == "kv_early"]


def test_nobody_waits_for_an_early_prefill() -> None:
    """It waits for room in the KV cache when its query is over, and is not computed any more."""
    early = "inputs(x); kv = partial_prefilling('{head}') @ llm; y = embedding(x) @ store; outputs(y)"
    workloads = {
        name: Workload(make_plan(parse(text)), {}, lambda n: {"x": "x" * 80})
        for name, text in (("long", ask(100, tokens=30)), ("early", early.format(head="head" * 200)))
    }
    servers = {"llm": of(kv_tokens=300), "store": STORE}
    found = simulate([Arrival(0, "long", 0.0), Arrival(1, "early", 0.1)], workloads, System(servers), trace=True)
    assert latencies(found) == pytest.approx([1.0 + 1.2 + 29 * 0.1, 2.0])
    assert found.engines["llm"].prefilled_tokens == 120
    assert {(span.query, span.primitive) for span in found.spans} == {(0, "y"), (1, "y")}, "it was never answered"


def test_many_instances_share_the_work() -> None:
    assert latencies(run(ask(), [0.0, 0.0], of(instances=2, max_items=1))) == pytest.approx([1.4, 1.4])
    assert latencies(run(ask(), [0.0, 0.0], of(instances=1, max_items=1))) == pytest.approx([1.4, 2.8])


# --- texts ------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=30), st.integers(0, 60), st.integers(1, 5))
def test_a_text_has_as_many_tokens_and_items_as_it_should(prompt: str, tokens: int, items: int) -> None:
    assert tokens_of("".join(say(prompt, tokens))) == tokens
    assert say(prompt, tokens) == say(str(prompt), tokens)
    if tokens >= items:
        for grammar in ("lines", "numbered", "markdown", "csv", "json"):
            pieces = say(prompt, tokens, f"{grammar}:{items}")
            assert len(pieces) == len(parse_items(grammar, "".join(pieces))) == items
            parser = parser_for(grammar)
            assert all(len(parser.feed(piece)) == 1 for piece in pieces[:-1]), "each makes one more item complete"


@given(st.lists(st.text(max_size=9), max_size=5))
def test_the_pieces_of_a_prompt_are_its_text_and_have_its_tokens(pieces: list[str]) -> None:
    inner = Prompt(pieces[:2], 1)
    prompt = Prompt([inner, *pieces[2:]])
    assert prompt == "".join(pieces)
    assert prompt.pieces == tuple(pieces)
    for count in (tokens_of, len):
        assert sum(piece_tokens(prompt, count)) == count(prompt)


def test_literals_at_the_head_of_a_head_are_its_own() -> None:
    assert Prompt([Prompt(["a", "b"], 2), "c", "d"], 0).literal_pieces == 2
    assert Prompt([Prompt(["a", "b"], 1), "c"], 0).literal_pieces == 1
    assert Prompt([Prompt(["a", "b"], 1), Prompt(["c"], 1)]).literal_pieces == 1, "what follows is no head"
    assert Prompt(["a", Prompt(["b", "c"], 2), "d"], 1).literal_pieces == 3
