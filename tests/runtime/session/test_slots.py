"""Slots: what makes two items the same, and what each side finds there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from teola_plugin.engines import Done, EngineSpec, Failed
from teola_plugin.request_identity import request_key
from teola_plugin.runtime.session.slots import SHORT_LEAD_S, Slots
from teola_plugin.seams import Reply
from tests.support.fakes import FakeEngine

ENGINE = FakeEngine()
ASKED: dict[str, Any] = {"spec": ENGINE.spec, "op": "decoding", "payload": "a prompt", "settings": {"stop": ["a"]}}


def key(**changed: Any) -> Any:
    return request_key(**{**ASKED, **changed})


@pytest.mark.parametrize(
    "other",
    [
        {"spec": FakeEngine().spec},
        {"spec": EngineSpec("python", ENGINE)},
        {"op": "partial_decoding"},
        {"payload": "another prompt"},
        {"payload": ("a prompt",)},
        {"settings": {}},
        {"settings": {"stop": ["b"]}},
        {"settings": {"stop": ["a", "b"]}},
        {"settings": {"stop": "a"}},
        {"settings": {"stop": ["a"], "temperature": 0}},
        {"settings": {"stop": ["a"], "temperature": False}},
        {"settings": {"stop": ["a"], "seed": None}},
    ],
)
def test_what_an_engine_could_tell_apart_has_another_key(other: dict[str, Any]) -> None:
    assert key(**other) != key()


def test_the_same_request_has_the_same_key() -> None:
    assert key() == key()


def test_each_side_finds_what_the_other_has_begun() -> None:
    slots = Slots()
    ahead = [slots.ahead("k") for _ in range(2)]
    retired = [slots.retire("k") for _ in range(3)]
    assert [each.outcome for each in ahead] == ["miss", "miss"]
    assert [each.outcome for each in retired] == ["hit", "hit", "miss"]
    assert [each.reply for each in retired[:2]] == [each.reply for each in ahead]
    late = slots.ahead("k")
    assert (late.outcome, late.reply) == ("hit", retired[2].reply)
    left, wasted, ours = slots.clear()
    assert (left, wasted, ours) == ([], 0, 1)


def test_what_nobody_took_is_left_and_counted() -> None:
    slots = Slots()
    first, second = slots.ahead("k").reply, slots.ahead("k").reply
    assert slots.retire("k").reply is first
    assert slots.clear() == ([second], 1, 0)
    assert slots.clear() == ([], 0, 0)


def test_what_the_framework_asked_before_a_rewind_is_not_shared() -> None:
    slots = Slots()
    slots.retire("k")
    slots.retire("l")
    slots.ahead("l")
    slots.rewind()
    assert slots.clear() == ([], 0, 1)


def test_late_work_gets_what_the_framework_asked_since_the_work_began() -> None:
    slots = Slots()
    slots.retire("k")
    began = slots.since()
    asked = [slots.retire("k").reply for _ in range(2)]
    slots.rewind()
    new = slots.ahead("k")
    assert new.outcome == "miss"
    assert slots.retire("k").reply is new.reply
    assert slots.ahead("k", since=slots.since()).outcome == "miss"  # that work began after the rewind
    late = [slots.ahead("k", since=began) for _ in range(3)]
    assert [each.outcome for each in late] == ["hit", "hit", "miss"]
    assert [each.reply for each in late[:2]] == asked


def test_late_work_gets_nothing_that_early_work_has_got() -> None:
    slots = Slots()
    began = slots.since()
    early = slots.ahead("k")
    assert slots.retire("k").reply is early.reply
    slots.rewind()
    assert slots.ahead("k", since=began).outcome == "miss"


def test_a_slot_under_another_stamp_is_stale() -> None:
    slots = Slots()
    before = slots.ahead("k", 1).reply
    found = slots.retire("k", 2)
    assert (found.outcome, found.outdated) == ("stale", before)
    assert found.reply is not before
    assert slots.ahead("k", 2).outcome == "miss"


@pytest.mark.parametrize(
    ("hits", "gained_s"),
    [
        ([], 0),
        ([(0, 5, None)], 5),  # begun at 0, asked for at 5
        ([(0, 5, 2)], 2),  # it took 2, so no more than that
        ([(0, 5, 8)], 5),
        ([(0, 5, 8), (0, 5, 8), (0, 6, 7)], 6),  # side by side
        ([(0, 5, 8), (0, 8, 6)], 11),  # one after the other
        ([(0, 5, 8), (5, 6, 9), (8, 10, 11)], 7),  # the third after both, which come later by what the first gained
        ([(0, 1, 9), (0, 2, 4), (0, 5, 5)], 7),  # the third after the second, the first beside both
        ([(0, SHORT_LEAD_S / 2, 8), (0, SHORT_LEAD_S, 9)], SHORT_LEAD_S),  # begun side by side by the framework itself
        ([(0, 0, 4), (3.99, 4.005, 9)], pytest.approx(0.015)),  # it waited for what ended at 4
        ([(0, 0, 4), (4.0, 4.01, 9)], pytest.approx(0.01)),
        ([(0, 0, 4), (4.001, 4.01, 9)], 0),
    ],
)
def test_hits_gain_what_the_last_of_them_would_have_come_later(
    hits: list[tuple[float, float, float | None]], gained_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = Slots()
    assert slots.retire("a miss").outcome == "miss"
    for number, (since_s, asked_s, ended_s) in enumerate(hits):
        reply = slots.ahead(number).reply
        slots._by_key[number].slots[0].since_s = since_s
        reply.came_s = ended_s
        monkeypatch.setattr("teola_plugin.runtime.session.slots.time.perf_counter", lambda asked_s=asked_s: asked_s)
        assert slots.retire(number).lead_s == asked_s - since_s
    assert slots.gained_s() == gained_s


@pytest.mark.parametrize("looks", [False, True])
def test_a_look_at_the_gain_changes_nothing(looks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies come between the looks: the third hit begins after what the second has gained."""
    slots, now_s = Slots(), [0.0]
    monkeypatch.setattr("teola_plugin.runtime.session.slots.time.perf_counter", lambda: now_s[0])
    replies = [slots.ahead(key).reply for key in "abc"]
    for entry in slots._by_key.values():
        entry.slots[0].since_s = 0.0
    gained = []
    for key, asked_s, came in (("a", 2.0, {}), ("b", 3.0, {1: 4.0}), ("c", 5.0, {0: 6.0, 2: 7.0})):
        now_s[0] = asked_s
        slots.retire(key)
        if looks:
            gained.append(slots.gained_s())
        for number, came_s in came.items():
            replies[number].came_s = came_s
    assert slots.gained_s() == 8.0
    assert gained == ([2.0, 3.0, 8.0] if looks else [])


def test_a_look_at_the_gain_looks_at_what_is_new() -> None:
    slots, seen = Slots(), []
    slots._gain = SimpleNamespace(gained_s=0.0, add=lambda fresh: seen.append(len(fresh)))  # type: ignore[assignment]
    for number in range(3):
        slots.ahead(number)
        slots.retire(number)
        slots.gained_s()
        assert slots.progress() == (number + 1, 0)
        assert not slots._open
    assert seen == [1, 1, 1]


def test_what_was_given_up_is_begun_anew_by_whoever_comes() -> None:
    slots = Slots()
    first = slots.ahead("k").reply
    assert slots.give_up(first)
    again = slots.ahead("k")
    assert again.outcome == "miss"
    assert again.reply is not first
    assert slots.ahead("k").reply is not again.reply
    assert slots.retire("k").reply is again.reply, "the framework finds it in its own place"


def test_what_was_given_up_is_not_found_by_the_framework() -> None:
    slots = Slots()
    again = slots.ahead("k")
    assert slots.give_up(again.reply)
    found = slots.retire("k")
    assert found.outcome == "miss"
    assert found.reply is not again.reply
    assert not slots.give_up(found.reply), "the framework has it"
    assert not slots.give_up(Reply())


@pytest.mark.parametrize("is_asked_for_later", [False, True])
def test_what_was_asked_for_nothing_is_counted_once(is_asked_for_later: bool) -> None:
    slots = Slots()
    first = slots.ahead("k").reply
    assert slots.give_up(first, is_wasted=True)
    assert slots.give_up(first, is_wasted=True)
    if is_asked_for_later:
        assert slots.retire("k").outcome == "miss"
    assert slots.clear()[1] == 1


@pytest.mark.parametrize("op", ["embedding", "reranking", "searching"])
def test_what_comes_to_the_same_is_computed_once(op: str) -> None:
    slots = Slots()
    first = slots.ahead("k", shares=op).reply
    second = slots.ahead("k", shares=op)
    assert second.outcome == "hit"
    assert second.source is not None
    assert (second.source is first) is (op != "searching"), "what a search finds is each one's own"
    first.put(Done({"found": [1]}))
    second.source.result()["found"].append(2)
    assert first.result() == {"found": [1] if op == "searching" else [1, 2]}
    assert slots.clear()[1] == 1, "of two slots, one is no work"


def test_a_text_is_written_for_each() -> None:
    slots = Slots()
    assert [slots.ahead("k", shares="decoding").outcome for _ in range(2)] == ["miss", "miss"]


def test_what_failed_is_not_shared() -> None:
    slots = Slots()
    slots.ahead("k", shares="embedding").reply.put(Failed(ValueError("no")))
    again = slots.ahead("k", shares="embedding")
    assert (again.outcome, again.source) == ("miss", None)


def test_what_a_search_found_is_not_shared_once_somebody_has_it() -> None:
    slots = Slots()
    slots.ahead("k", shares="searching")
    slots.retire("k", shares="searching")
    assert slots.retire("k", shares="searching").outcome == "miss"


def test_requests_are_made_together_if_the_last_one_is_before_the_first_reply() -> None:
    slots = Slots()
    one, two = (slots.retire(key(payload=payload)).reply for payload in "ab")
    ahead = slots.ahead(key(payload="c")).reply
    assert slots.are_asked_together([one, two])
    one.put(Done(1))
    two.put(Done(2))
    assert slots.are_asked_together([one, two])
    assert not slots.are_asked_together([two, ahead])
    assert slots.retire(key(payload="c")).reply is ahead
    assert not slots.are_asked_together([two, ahead])
