"""In which waves texts are written: how many at once, who holds that up, and what takes them one by one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from teola_plugin.engines import Capabilities, Item, Taker, Urgency
from teola_plugin.graph import parse
from teola_plugin.passes import Context
from teola_plugin.passes.estimates import planned, slowest_takers, takers
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.runtime.scheduler.batching import Limits
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.staggered_prefills import Costs, best_waves, over_s
from tests.support.by_id import Scheduler, request_of

LLM = LlmProfile(Profile.affine(0.0, token_s=0.01), Profile.affine(0.1))
"""A prompt of 400 characters takes 1 s, ten steps as long."""

TAKER = Taker(0.5, 0.5)
COUNT = 16
WAVES = ((4, 4), (6, 2))
LEFT = 6
AGING_S = 60.0


# --- how many at once -------------------------------------------------------------------------------------------------

costs = st.builds(
    Costs, st.floats(0.0, 2.0), st.floats(0.0, 3.0), st.floats(0.0, 1.0), st.sampled_from((0.0, 0.01, 0.1, 0.7, 5.0))
)


@given(count=st.integers(1, 80), instances=st.integers(1, 4), most=st.integers(1, 40), costs=costs)
def test_each_text_is_in_one_wave_and_no_wave_is_too_large(count: int, instances: int, most: int, costs: Costs) -> None:
    waves = best_waves(count, instances, most, costs)
    if waves:
        assert len(waves) == instances
        assert sum(map(sum, waves)) == count
        assert all(0 <= n <= most for each in waves for n in each)
        even = [[len(range(at, count, instances))] for at in range(instances)]
        assert over_s(waves, costs) < over_s(even, costs)


@pytest.mark.parametrize("count", [33, 42, 48, 53, 64])
def test_few_ways_are_as_good_as_all(count: int) -> None:
    """Of two instances, by the costs of the paper's contextual retrieval."""
    costs = Costs(0.092, 0.52, 0.05, 0.025)
    every = (
        ((one - late, late), (count - one - later, later))
        for one in range(count // 3, count // 2 + 1)
        for late, later in itertools.product(range(one // 2 + 1), range((count - one) // 2 + 1))
        if one - late <= 32 and count - one - later <= 32
    )
    least_s = min(over_s(waves, costs) for waves in every)
    assert over_s(best_waves(count, 2, 32, costs), costs) <= 1.03 * least_s


def test_what_follows_takes_all_that_is_there() -> None:
    costs = Costs(1.0, 2.0, 0.5, 0.25)
    assert over_s([[2]], costs) == 2 + 2 + 0.5 + 2 * 0.25
    assert over_s([[2, 1]], costs) == 4 + 2 + 1 + 0.5 + 0.25, "one by one"
    assert over_s([[1], [2], [2]], costs) == 3 + 0.75 + 0.25 + 0.5 + 4 * 0.25, "two together"


# --- who begins -------------------------------------------------------------------------------------------------------


def scheduler_of(policy: str = "critical_path", llm: LlmProfile | None = LLM) -> Scheduler:
    capabilities = Capabilities(32, concurrent=True, prefix=True)
    return Scheduler(POLICIES[policy], capabilities, replicas=2, limits=Limits(None, AGING_S, 0.0), llm=llm)


def item_of(number: int, taker: Taker | None = TAKER) -> Item:
    return Item(f"{number}".ljust(400, "."), number // 1000, id=number, urgency=Urgency(2, 9.0, taker=taker))


def put(
    scheduler: Scheduler, count: int, query: int = 1, *, op: str = "decoding", taker: Taker | None = TAKER,
    settings: Any = None, first: int = 0,
) -> None:  # fmt: skip
    """Texts of one primitive, a request each."""
    for n in range(first, first + count):
        item = item_of(1000 * query + n, taker)
        request = request_of(op, {"max_tokens": 10} if settings is None else settings, [item], query, 2, 9.0)
        scheduler.submit(request, 0.0)


def begun(scheduler: Scheduler, now_s: float = 0.0) -> dict[int, list[int]]:
    """The ids of those that begin now, by instance."""
    found: dict[int, list[int]] = {}
    while batch := scheduler.batch(now_s):
        found.setdefault(batch.instance, []).extend(item.id for item in batch.items)
    return found


def sizes(found: dict[int, list[int]]) -> list[int]:
    return [len(found.get(at, ())) for at in (0, 1)]


def in_waves() -> tuple[Scheduler, dict[int, list[int]]]:
    """Some are left to later waves."""
    scheduler = scheduler_of()
    put(scheduler, COUNT)
    first = begun(scheduler)
    assert sizes(first) == [each[0] for each in WAVES]
    return scheduler, first


def test_a_later_wave_begins_when_its_instance_has_little_left_to_write() -> None:
    assert best_waves(COUNT, 2, 32, Costs(1.0, 1.0, *TAKER)) == WAVES
    scheduler, first = in_waves()
    scheduler.end(first[1][:4])
    assert begun(scheduler) == {}
    scheduler.end(first[1][4:5])
    assert sizes(begun(scheduler)) == [0, 2]
    scheduler.end(first[0][:3])
    assert sizes(begun(scheduler)) == [4, 0]


def test_an_instance_that_has_had_its_waves_takes_what_is_left() -> None:
    scheduler, first = in_waves()
    scheduler.end(first[1])
    scheduler.end(begun(scheduler)[1])
    assert sizes(begun(scheduler)) == [0, 4]


def test_of_another_query_nothing_waits_for_waves() -> None:
    scheduler, _ = in_waves()
    put(scheduler, 1, 2, op="partial_prefilling", taker=None)
    assert sum(sizes(begun(scheduler))) == 1 + LEFT, "nor does what had been held back"


@pytest.mark.parametrize(("op", "left"), [("partial_prefilling", LEFT + 1), ("decoding", 0)])
def test_of_its_own_query_only_early_prefills_leave_the_waves_as_they_are(op: str, left: int) -> None:
    scheduler, _ = in_waves()
    put(scheduler, 1, op=op, taker=None, first=COUNT)
    begun(scheduler)
    assert scheduler.queued_items == left


def test_where_another_query_waits_too_all_begin() -> None:
    scheduler = scheduler_of()
    put(scheduler, COUNT)
    put(scheduler, 1, 2, op="partial_prefilling", taker=None)
    begun(scheduler)
    assert scheduler.queued_items == 0


def test_where_another_has_an_instance_the_waves_are_for_both() -> None:
    scheduler = scheduler_of()
    put(scheduler, 1, 2, op="partial_prefilling", taker=None)
    begun(scheduler)
    put(scheduler, COUNT)
    assert sum(sizes(begun(scheduler))) == COUNT - LEFT


@pytest.mark.parametrize(
    ("policy", "llm", "taker", "settings"),
    [
        ("to", LLM, TAKER, {"max_tokens": 10}),
        ("critical_path", None, TAKER, {"max_tokens": 10}),
        ("critical_path", LLM, None, {"max_tokens": 10}),
        ("critical_path", LLM, TAKER, {}),
        ("critical_path", LLM, Taker(0.5, 0.0), {"max_tokens": 10}),
    ],
    ids=["policy", "no profile", "nothing takes them one by one", "no length", "it takes all as soon as one"],
)
def test_where_nothing_is_known_to_gain_all_begin(policy: str, llm: Any, taker: Any, settings: Any) -> None:
    scheduler = scheduler_of(policy, llm)
    put(scheduler, COUNT, taker=taker, settings=settings)
    assert sum(sizes(begun(scheduler))) == COUNT


def test_nothing_waits_longer_than_its_age() -> None:
    scheduler, _ = in_waves()
    assert begun(scheduler, AGING_S - 1) == {}
    assert scheduler.waits_until_s == AGING_S
    assert sum(sizes(begun(scheduler, AGING_S))) == LEFT


def test_an_instance_that_is_lost_holds_nothing_back() -> None:
    scheduler, first = in_waves()
    scheduler.mark(0, is_up=False)
    scheduler.end(first[0] + first[1])
    assert sizes(begun(scheduler)) == [0, 2]
    scheduler.end(range(2000))
    assert sizes(begun(scheduler)) == [0, 4]


def test_texts_that_come_later_just_begin() -> None:
    scheduler, _ = in_waves()
    put(scheduler, 4, first=COUNT)
    begun(scheduler)
    assert scheduler.queued_items == 0


def test_texts_that_are_asked_for_again_just_begin() -> None:
    scheduler, first = in_waves()
    again = request_of("decoding", {"max_tokens": 10}, [item_of(first[0][0])], 1, 2, 9.0)
    scheduler.end(first[0])
    scheduler.resubmit(again)
    begun(scheduler)
    assert scheduler.queued_items == 0


def test_it_is_decided_for_all_of_them_or_none() -> None:
    """All fill the slots, so that waves gain nothing; what is left when one instance has its share is less."""
    scheduler = scheduler_of()
    put(scheduler, 4 * 32 + 1)
    begun(scheduler)
    assert scheduler.running_items == 2 * 32


def test_texts_of_others_are_none_of_a_wave() -> None:
    """The only instance that is up has long texts of another query."""
    scheduler = scheduler_of()
    scheduler.mark(1, is_up=False)
    put(scheduler, 8, 2, taker=None, settings={})
    begun(scheduler)
    put(scheduler, COUNT)
    begun(scheduler)
    assert scheduler.queued_items == 0


def test_age_counts_from_when_it_came() -> None:
    scheduler = scheduler_of()
    put(scheduler, COUNT)
    assert sum(sizes(begun(scheduler, AGING_S - 1))) == COUNT - LEFT
    assert scheduler.waits_until_s == AGING_S
    scheduler = scheduler_of()
    put(scheduler, COUNT)
    assert sum(sizes(begun(scheduler, AGING_S))) == COUNT


def test_a_second_round_has_waves_of_its_own() -> None:
    scheduler, first = in_waves()
    scheduler.end(range(2000))
    scheduler.end([item for each in begun(scheduler).values() for item in each])
    put(scheduler, COUNT, first=COUNT)
    assert sizes(begun(scheduler)) == sizes(first)


# --- what takes texts one by one --------------------------------------------------------------------------------------

SITUATED = """
inputs(document)
chunks: [] = chunking(document, 256, 30, fn='chunks') @ python
context: [] = decoding('Where is this?', *chunks, max_tokens=64) @ llm
situated: [] = call(*context, *chunks, fn='joined') @ python
vectors: [] = embedding(*situated) @ embedder
ingested = ingestion(*vectors, *situated) @ store, writes(kb)
"""
EMBEDDER = Profile.affine(0.05, 0.025)
CONTEXT = Context({"embedder": EMBEDDER}, {"embedder": Capabilities(64)})


@pytest.mark.parametrize(
    ("more", "context", "has_taker"),
    [
        ("outputs(ingested)", CONTEXT, True),
        ("outputs(ingested)", Context(), False),
        ("outputs(ingested)", Context(CONTEXT.profiles, {"embedder": Capabilities(64, concurrent=True)}), False),
        ("all = call(context, fn='joined') @ python\noutputs(ingested, all)", CONTEXT, False),
        ("sum = decoding(context) @ llm\noutputs(ingested, sum)", CONTEXT, False),
        ("each: [] = call(context, *chunks, fn='joined') @ python\noutputs(ingested, each)", CONTEXT, False),
        ("late = embedding('x') @ embedder, after(context)\noutputs(ingested, late)", CONTEXT, False),
    ],
    ids=["each", "no profile", "side by side", "a function of all", "a text of all", "all for each", "after all"],
)
def test_what_takes_texts_one_by_one(more: str, context: Context, has_taker: bool) -> None:
    graph = parse(SITUATED.strip() + "\n" + more)
    found = slowest_takers(graph, context)
    assert found == ({"context": pytest.approx(Taker(0.05, 0.025))} if has_taker else {})
    assert planned(graph, context).remaining["context"].taker == found.get("context")


@pytest.mark.parametrize(
    ("inputs", "is_together"),
    [
        ("chunks: [] = chunking(document, 256, 30, fn='chunks') @ python", True),
        ("chunks: [] = decoding(document, items='lines') @ llm", False),
        ("parts: [] = chunking(document, 256, 30, fn='chunks') @ python\nchunks: [] = decoding(*parts) @ llm", False),
        (
            "parts: [] = chunking(document, 256, 30, fn='chunks') @ python\nwritten: [] = decoding(*parts) @ llm\n"
            "chunks: [] = call(*written, fn='joined') @ python",
            False,
        ),
    ],
    ids=["cut", "a list that is being written", "one text after the other", "through a function"],
)
def test_texts_begin_together_if_nothing_hands_out_what_they_are_for(inputs: str, is_together: bool) -> None:
    graph = parse(SITUATED.strip().replace(SITUATED.strip().splitlines()[1], inputs) + "\noutputs(ingested)")
    assert ("context" in slowest_takers(graph, CONTEXT)) == is_together


def test_the_slowest_taker_counts_and_functions_in_between_are_looked_at_once() -> None:
    lines = [
        "inputs(d)",
        "x: [] = chunking(d, fn='c') @ python",
        "t: [] = decoding(*x, max_tokens=9) @ llm",
        "f0: [] = call(*t, fn='f') @ python",
    ]
    for n in range(20):
        lines += [f"{way}{n}: [] = call(*f{n}, fn='f') @ python" for way in "ab"]
        lines.append(f"f{n + 1}: [] = call(*a{n}, *b{n}, fn='f') @ python")
    lines += ["v: [] = embedding(*f20) @ embedder", "r: [] = reranking('q', *t) @ slow", "outputs(v, r)"]
    graph = parse("\n".join(lines))
    profiles = {"embedder": EMBEDDER, "slow": Profile.affine(0.0, 1.0)}
    assert slowest_takers(graph, Context(profiles)) == {"t": pytest.approx(Taker(0.0, 1.0))}
    assert {each.name for each in takers(graph["t"], graph.depths(), graph.consumers())} == {"v", "r"}
