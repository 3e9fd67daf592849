"""Requests that an engine could tell apart share no slot, no work in flight and no batch; the same ones do."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from teola_plugin.engines import Batch, Capabilities, Completion, EngineSpec, Item
from teola_plugin.request_identity import request_key
from teola_plugin.runtime.engines.sampling import KNOWN
from teola_plugin.runtime.hosts.local import LocalHost, Query
from teola_plugin.runtime.hosts.remote.messages import SubmitRequest, packed, unpacked
from teola_plugin.runtime.scheduler.policies import POLICIES
from teola_plugin.runtime.scheduler.work_table import Counts
from teola_plugin.runtime.session.session import NEXT, Session
from teola_plugin.runtime.session.slots import Slots
from teola_plugin.seams import Reply
from teola_plugin.tenancy import Terms
from tests.support.by_id import Scheduler, request_of
from tests.support.fakes import FakeEngine
from tests.support.request_variants import ANSWER_FIRST, REASONING_FIRST, VALUES, assert_all_differ
from tests.test_value_keys import INCOMPARABLE, Raising, written

SETTINGS: dict[str, dict[str, Any]] = {
    f"{name}={value!r}": {"temperature": 0, name: value}
    for name in (*KNOWN, "extra_body", "lora")
    for value in VALUES
    if name != "temperature" or value == 0
}
"""Greedy decodings that differ in one setting; what of it vLLM refuses, another engine may take."""

SETTINGS = {name: settings for name, settings in SETTINGS.items() if written(settings) != written({"temperature": 0})}
SETTINGS["plain"] = {"temperature": 0}

FEW = [settings for settings in SETTINGS.values() if settings.keys() <= {"temperature", "stop", "structured_outputs"}]
"""For queues, which take longer the more waits."""

PAYLOADS: dict[str, Callable[[], Any]] = {
    "text": lambda: "why",
    "other text": lambda: "why ",
    "pair": lambda: ("why", "because"),
    "turned pair": lambda: ("because", "why"),
    "list": lambda: ["why", "because"],
    "f4": lambda: np.zeros(4, np.float32),
    "-f4": lambda: -np.zeros(4, np.float32),
    "f8": lambda: np.zeros(4, np.float64),
    "f8, half as long": lambda: np.zeros(2, np.float64),
    "f4, as a row": lambda: np.zeros((1, 4), np.float32),
    "numbers": lambda: [0.0] * 4,
    "bytes": lambda: bytes(16),
}

UNLIKE = [make for make in INCOMPARABLE if make is not Raising]
"""That one does not even say whether it is a text."""


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


def engine() -> FakeEngine:
    return FakeEngine(lambda payload: Completion(written(payload)), concurrent=True)


# --- slots ------------------------------------------------------------------------------------------------------------


def test_what_ran_ahead_is_found_by_the_same_request_alone() -> None:
    """Each request against a run-ahead of all others; then against its own."""
    spec = engine().spec
    asked = [
        *(("decoding", "why", settings) for settings in SETTINGS.values()),
        *((op, make(), {}) for make in PAYLOADS.values() for op in ("embedding", "searching", "reranking")),
    ]
    slots = Slots()
    replies = [slots.ahead(request_key(spec, *each)).reply for each in asked]
    for each, reply in zip(reversed(asked), reversed(replies), strict=True):
        found = slots.retire(request_key(spec, *each))
        assert (found.outcome, found.reply) == ("hit", reply), each
        assert slots.retire(request_key(spec, *each)).outcome == "miss"


def test_a_slot_tells_engines_apart_by_the_object() -> None:
    one, other = engine(), engine()
    slots = Slots()
    slots.ahead(request_key(one.spec, "decoding", "why", {}))
    assert slots.retire(request_key(other.spec, "decoding", "why", {})).outcome == "miss"
    assert slots.retire(request_key(EngineSpec("other", one), "decoding", "why", {})).outcome == "miss"
    assert slots.retire(request_key(one.spec, "embedding", "why", {})).outcome == "miss"
    assert slots.retire(request_key(one.spec, "decoding", "why", {})).outcome == "hit"


def test_a_slot_of_a_store_is_good_for_its_version_alone(host: LocalHost) -> None:
    store = FakeEngine(lambda payload: [store.version])
    session = Session(host)
    ahead = session.submit_ahead(store.spec, "searching", ["why"], {}, NEXT)[0]
    assert ahead.result() == [0]
    store.version = 1
    assert session.ask(store.spec, "searching", ["why"], {})[0].result() == [1]
    assert session.close().stale == 1


@pytest.mark.parametrize("at", range(len(UNLIKE)))
def test_what_is_like_nothing_does_not_run_ahead_and_is_asked_once(host: LocalHost, at: int) -> None:
    value, llm = UNLIKE[at](), FakeEngine(lambda payload: "said")
    session = Session(host)
    ahead = session.submit_ahead(llm.spec, "decoding", [value, "why"], {}, NEXT)
    with_settings = session.submit_ahead(llm.spec, "decoding", ["because"], {"s": value}, NEXT)
    claimed, is_mine = session.claim_ahead(llm.spec, "decoding", value, {})
    assert not is_mine
    assert ahead[1].result() == "said"
    for reply in (ahead[0], *with_settings, claimed):
        with pytest.raises(Exception, match=r"like no other|over"):
            reply.result()
    for _ in range(2):
        assert session.ask(llm.spec, "decoding", [value], {})[0].result() == "said"
    assert session.ask(llm.spec, "decoding", ["because"], {"s": value})[0].result() == "said"
    report = session.close()
    assert (report.misses, report.wasted, report.fallbacks) == (3, 1, ())
    assert len(llm.seen) == 4


# --- the payload is that of the key -----------------------------------------------------------------------------------


@pytest.mark.parametrize("is_ahead", [True, False])
def test_what_is_changed_after_it_was_asked_for_is_asked_as_it_was(host: LocalHost, is_ahead: bool) -> None:
    llm = FakeEngine(lambda payload: written(payload), concurrent=True)
    llm.gate = asyncio.Event()
    session = Session(host)
    payload, settings = ["why", {"a": [1]}], {"structured_outputs": {"a": 1, "b": [2]}}
    before = written(payload), written(settings)
    ask = session.submit_ahead if is_ahead else session.ask
    (blocking,) = session.ask(llm.spec, "decoding", ["first"], {})
    (reply,) = ask(llm.spec, "decoding", [payload], settings, *((NEXT,) if is_ahead else ()))
    payload[1]["a"].append(2)  # type: ignore[index]
    settings["structured_outputs"]["b"].append(3)  # type: ignore[union-attr]
    host.loop.call_soon_threadsafe(llm.gate.set)
    blocking.result()
    assert reply.result() == before[0]
    assert written(llm.batches[-1].settings) == before[1]
    session.close()


# --- joins in flight --------------------------------------------------------------------------------------------------


def joined(host: LocalHost, llm: FakeEngine, asked: list[tuple[str, Any, Any, Query]]) -> Counts:
    """How the items fare that are asked for one after the other while the first is with the engine."""

    async def ask() -> list[Reply]:
        llm.gate = asyncio.Event()
        replies = []
        for op, payload, settings, query in asked:
            reply = Reply()
            host.submit(llm, op, [payload], settings, [reply], query=query)
            replies.append(reply)
            await asyncio.sleep(0)
        for _ in range(8):
            await asyncio.sleep(0)
        llm.gate.set()
        return replies

    for reply in asyncio.run_coroutine_threadsafe(ask(), host.loop).result(60):
        reply.result()
    return host.counts(llm)


def query(owner: int = 1, tenant: str = "") -> Query:
    return Query(owner, Terms(tenant))


def test_the_same_is_joined_and_all_else_is_not(host: LocalHost) -> None:
    llm = engine()
    asked = [("decoding", "why", settings, query(n)) for n, settings in enumerate(FEW, 1)]
    asked += [
        (op, make(), {}, query(900))
        for make in PAYLOADS.values()
        for op in ("embedding", "searching", "reranking")
    ]  # fmt: skip
    again = [(op, payload, settings, query(1000)) for op, payload, settings, _ in asked]
    assert joined(host, llm, asked).joined == 0
    assert joined(host, engine(), [*asked, *again]).joined == len(again)


def test_no_tenant_waits_for_anothers_work(host: LocalHost) -> None:
    llm = engine()
    tenants = ["", "a", "b", "A", "a "]
    asked: list[Any] = [("embedding", "why", {}, query(n, tenant)) for n, tenant in enumerate(tenants, 1)]
    assert joined(host, llm, [*asked, *asked]).joined == len(tenants)


def test_no_search_waits_for_one_of_another_version(host: LocalHost) -> None:
    """A write in between changes the stamp: who asks after it must not get what was found before it."""
    store = engine()
    stamps = itertools.count()
    store.stamp = lambda: next(stamps) // 2  # type: ignore[method-assign]
    asked: list[Any] = [("searching", "why", {}, query(n)) for n in range(1, 7)]
    assert joined(host, store, asked).joined == 3


def test_an_engine_that_keeps_things_for_a_query_answers_it_alone(host: LocalHost) -> None:
    class PerQuery(FakeEngine):
        is_per_query = True

    asked: list[Any] = [("embedding", "why", {}, query(owner)) for owner in (1, 2, 1, 2)]
    assert joined(host, PerQuery(), asked).joined == 2


@pytest.mark.parametrize("at", range(len(UNLIKE)))
def test_what_is_like_nothing_is_joined_by_nobody(host: LocalHost, at: int) -> None:
    value = UNLIKE[at]()
    llm = FakeEngine(lambda payload: "said", concurrent=True)
    asked: list[Any] = [("embedding", value, {}, query()), ("embedding", "why", {"s": value}, query())]
    assert joined(host, llm, [*asked, *asked]).joined == 0
    assert all(len(batch.items) == 1 for batch in llm.batches if "s" in batch.settings)


def test_two_schemas_whose_fields_come_in_another_order_are_two_requests(host: LocalHost) -> None:
    llm = engine()
    asked: list[Any] = [
        ("decoding", "why", {"temperature": 0, "structured_outputs": schema}, query(n))
        for n, schema in enumerate((REASONING_FIRST, ANSWER_FIRST, REASONING_FIRST), 1)
    ]
    assert joined(host, llm, asked).joined == 1
    assert {written(batch.settings["structured_outputs"]) for batch in llm.batches} == {
        written(REASONING_FIRST), written(ANSWER_FIRST)
    }  # fmt: skip


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
def test_all_items_of_a_batch_were_asked_for_with_its_settings(policy: str) -> None:
    asked = dict(enumerate([*FEW, *FEW]))
    scheduler = Scheduler(POLICIES[policy], Capabilities(max_items=10_000))
    for number, settings in asked.items():
        scheduler.submit(request_of("decoding", settings, [Item("why", number, id=number)], query=number))
    batches: list[Batch] = []
    while batch := scheduler.batch():
        batches.append(batch)
        scheduler.end([item.id for item in batch.items])
    for batch in batches:
        assert {written(asked[item.id]) for item in batch.items} == {written(batch.settings)}
    per_batch = 1 if policy == "po" else 2
    assert [len(batch.items) for batch in batches] == [per_batch] * (len(asked) // per_batch)


def test_operations_never_share_a_batch() -> None:
    groups = {op: request_of(op, {"a": 1}, [Item("why", id=1)], query=1).group for op in ("decoding", "embedding")}
    assert_all_differ(groups)


# --- to other processes -----------------------------------------------------------------------------------------------


def test_another_process_is_asked_for_the_same() -> None:
    """Messages carry no keys: the engine's own process makes them of what arrives."""
    spec = engine().spec
    payloads = [make() for make in PAYLOADS.values()]
    for settings in SETTINGS.values():
        asked = SubmitRequest("decoding", settings, (1,), packed(payloads), 1, "", NEXT, 1.0, 0.0)
        arrived = pickle.loads(pickle.dumps(asked))
        found = [request_key(spec, arrived.op, each, arrived.settings) for each in unpacked(arrived.payloads)]
        assert found == [request_key(spec, asked.op, each, asked.settings) for each in payloads]


def test_vectors_that_travel_as_one_array_arrive_as_they_were() -> None:
    spec = engine().spec
    for dtype, shape in itertools.product(("f4", "f8", ">f4"), ((4,), (2, 2))):
        sent = [np.arange(4, dtype=dtype).reshape(shape) + n for n in range(3)]
        arrived = unpacked(pickle.loads(pickle.dumps(packed(sent))))
        assert [request_key(spec, "searching", each, {}) for each in arrived] == [
            request_key(spec, "searching", each, {}) for each in sent
        ]
