"""What is known of users' objects goes with them, and an id that is used again finds nothing."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from teola_plugin.errors import EngineClosed
from teola_plugin.resources import IdentityMap, exclusive, held, lock_for, resetting, version, writing
from teola_plugin.value_keys import value_key
from tests.support.fakes import collect_garbage


class Thing:
    """An object like a model."""


class EqualThing(Thing):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


def test_a_value_is_made_once_for_each_object_even_among_equals() -> None:
    known: IdentityMap[list[int]] = IdentityMap()
    a, b = EqualThing(), EqualThing()
    assert known.get_or_make(a, lambda: [1]) is known.get_or_make(a, lambda: [2])
    assert known.get_or_make(b, lambda: [3]) == [3]
    assert known.get(a) == [1]


def test_an_entry_goes_with_its_object_also_out_of_a_cycle() -> None:
    known: IdentityMap[int] = IdentityMap()
    a, b = Thing(), Thing()
    known.get_or_make(a, lambda: 1)
    known.get_or_make(b, lambda: 2)
    b.itself = b  # type: ignore[attr-defined]
    del a, b
    collect_garbage()
    assert len(known) == 0


def test_an_id_that_is_used_again_finds_nothing() -> None:
    known: IdentityMap[object] = IdentityMap()
    seen = set()
    for _ in range(100):
        thing = Thing()
        assert known.get(thing) is None
        seen.add(id(thing))
        known.get_or_make(thing, object)
        del thing
    assert len(seen) < 100  # ids were used again, or this test shows nothing


def test_many_threads_get_the_same_value() -> None:
    known: IdentityMap[object] = IdentityMap()
    thing = Thing()
    start = threading.Barrier(8)
    found: list[object] = []

    def ask() -> None:
        start.wait()
        found.append(known.get_or_make(thing, object))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_what_cannot_be_held_weakly_is_refused() -> None:
    with pytest.raises(TypeError):
        IdentityMap[int]().get_or_make(7, lambda: 1)


def test_a_resource_is_held_weakly_unless_it_is_kept() -> None:
    thing = Thing()
    weak, strong = held(thing, keep=False), held(Thing(), keep=True)
    collect_garbage()
    assert weak() is thing
    assert isinstance(strong(), Thing)
    del thing
    collect_garbage()
    with pytest.raises(EngineClosed):
        weak()


def test_only_a_model_with_an_engine_has_a_lock_to_wait_for() -> None:
    model = Thing()
    assert isinstance(exclusive(model), nullcontext)
    with lock_for(model), exclusive(model):  # reentrant: the engine's own call passes the seam too
        assert exclusive(model) is lock_for(model)


def test_a_version_changes_when_a_write_begins_and_when_it_ends() -> None:
    before = version("kb")
    with writing("kb"):
        during = version("kb")
    assert len({before, during, version("kb")}) == 3


def test_a_write_that_fails_counts_and_other_stores_do_not() -> None:
    other = next(name for name in map(str, range(9)) if hash(name) % 4096 != hash("kb") % 4096)
    before, elsewhere = version("kb"), version(other)
    with pytest.raises(ValueError, match="full"), writing("kb"):
        raise ValueError("full")
    assert version("kb") != before
    assert version(other) == elsewhere


def test_a_reset_changes_all_versions() -> None:
    before = version("kb")
    with resetting():
        during = version("kb")
    assert len({before, during, version("kb")}) == 3


def test_values_that_python_calls_equal_but_a_filter_does_not_have_keys_of_their_own() -> None:
    assert len({value_key({"where": {"flag": value}}) for value in (True, 1, 1.0)}) == 3
    assert len({value_key({"logit_bias": {key: 1}}) for key in (True, 1, "1")}) == 3
