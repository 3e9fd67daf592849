"""The reader works on copies: nothing that it does is seen outside, and what is outside is looked at once."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
import random
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from langchain_core.documents import Document
from langchain_core.messages import AIMessage
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from teola_plugin.adapters.langchain.reading import LangChainAsker
from teola_plugin.adapters.langgraph.front import Way
from teola_plugin.adapters.langgraph.inside import LangGraphAsker
from teola_plugin.adapters.reader import classes, operators
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.calls import call, undecided
from teola_plugin.adapters.reader.exchange import Exchange
from teola_plugin.adapters.reader.heap import RUN, Frame
from teola_plugin.adapters.reader.hints import is_hint
from teola_plugin.adapters.reader.mentions import is_harmless
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.stacks import _may_be_kept
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown, unknown_id
from tests.adapters.reader.world import Model, read

OUTSIDE: list[Any] = ["outside"]


def new_run(given: Given | None = None) -> Run:
    return Run(Nobody(), given=given)


def reads_outside() -> Any:
    return OUTSIDE


def changes_outside() -> None:
    OUTSIDE.append("changed")


def called(run: Run, function: Any, *args: Any) -> Any:
    return call(run, run.load(function), args, {})


# --- what is outside -------------------------------------------------------------------------------------------------


def test_a_name_from_outside_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Given()
    assert called(new_run(given), reads_outside) == ["outside"]
    monkeypatch.setitem(globals(), "OUTSIDE", ["another"])
    assert called(new_run(given), reads_outside) == ["outside"]
    assert called(new_run(), reads_outside) == ["another"]


def test_what_is_outside_is_not_changed_in_a_later_evaluation_either() -> None:
    given = Given()
    called(new_run(given), reads_outside)
    with pytest.raises(Barrier, match="did not make"):
        called(new_run(given), changes_outside)
    assert OUTSIDE == ["outside"]


def test_what_is_outside_is_one_object() -> None:
    run = new_run()
    one, two = called(run, reads_outside), called(run, reads_outside)
    assert one is two is not OUTSIDE


def test_an_object_of_others_is_not_known() -> None:
    with pytest.raises(Barrier):
        new_run().require_known([Opaque(object())])


COMPARED: list[str] = []


class ComparedClass(type):
    def __eq__(cls, other: object) -> bool:
        COMPARED.append("class")
        return cls is other

    def __hash__(cls) -> int:
        COMPARED.append("class")
        return id(cls)


class Compared(metaclass=ComparedClass):
    def __call__(self) -> None:
        pass

    def __eq__(self, other: object) -> bool:
        COMPARED.append("object")
        return self is other

    def __hash__(self) -> int:
        COMPARED.append("object")
        return id(self)


def asks_graph(held: Any) -> None:
    asker = LangGraphAsker(LangChainAsker(contextvars.copy_context(), is_async=False), Way(False, {}, None, 9))
    with contextlib.suppress(Barrier):
        asker.call(new_run(), Opaque(held), (), {})


@pytest.mark.parametrize(
    "look",
    [
        lambda held: undecided(new_run(), (None, Opaque(held))),
        lambda held: is_hint(Opaque(held)),
        lambda held: _may_be_kept(held, Opaque(held), []),
        is_harmless,
        asks_graph,
    ],
)
def test_an_object_of_others_and_its_class_are_not_compared(look: Callable[[Any], Any]) -> None:
    held = Compared()
    COMPARED.clear()
    look(held)
    assert not COMPARED


# --- what is given ---------------------------------------------------------------------------------------------------


def test_each_evaluation_begins_with_what_was_given() -> None:
    given, theirs = Given(), {"a": [1]}
    held = given.copy(theirs)
    for _ in range(2):
        run = new_run(given)
        for each in (2, 3):
            run.touch(held["a"])
            held["a"].append(each)
        assert run.has_changed_given
        run.put_back()
        assert held == theirs == {"a": [1]}


def test_what_was_kept_for_a_state_is_renewed() -> None:
    given, theirs = Given(), [1]
    held = given.copy(theirs)
    fresh = given.renew({"k": held})
    assert fresh == {"k": [1]}
    assert new_run(given).load(theirs, is_given=True) is fresh["k"]
    assert held is not fresh["k"]


class Pair(NamedTuple):
    two: list[int]
    one: str


class Secret(BaseModel):
    x: int = 1
    _held: list[int] = PrivateAttr(default_factory=list)


class Guarded(BaseModel):
    model_config = ConfigDict(validate_assignment=True)
    x: int = 1


class PartlyFrozen(BaseModel):
    x: int = Field(1, frozen=True)
    y: int = 2


def test_a_copy_shares_nothing_with_the_original() -> None:
    message = AIMessage("a")
    held = new_run().load([message, Document("p", metadata={"k": [1]}), Pair([1], "b"), deque([[1]], maxlen=3)])
    copied, document, pair, queue = held
    assert vars(copied)["additional_kwargs"] is not message.additional_kwargs
    assert copied.model_fields_set == message.model_fields_set
    assert copied.model_fields_set is not message.model_fields_set
    assert document.metadata["k"] == [1]
    run = new_run()
    assert [classes.attribute(run, pair, name) for name in ("two", "one")] == [[1], "b"]
    assert (queue, queue.maxlen) == (deque([[1]]), 3)


@pytest.mark.parametrize(
    "held",
    [[[1]], {"a": [1]}, (["a"],), deque([[1]]), OrderedDict(a=[1]), defaultdict(list, a=[1]), Counter(a=1), {1}],
    ids=lambda each: type(each).__name__,
)
def test_a_copied_container_is_another(held: Any) -> None:
    copied = new_run().load(held)
    assert (type(copied), copied) == (type(held), held)
    assert copied is not held
    inner = next(iter(held.values() if isinstance(held, dict) else held))
    again = next(iter(copied.values() if isinstance(copied, dict) else copied))
    assert type(inner) is not list or inner is not again


def test_a_model_with_private_attributes_is_an_object_of_others() -> None:
    assert type(new_run().load(Secret())) is Opaque


@pytest.mark.parametrize(("cls", "name"), [(Guarded, "x"), (PartlyFrozen, "x")])
def test_a_field_that_is_checked_is_not_stored(cls: type, name: str) -> None:
    run = new_run()
    made = call(run, Opaque(cls), (), {})
    with pytest.raises(Barrier, match="checks it"):
        classes.set_attribute(run, made, name, "no number")


def test_a_set_that_was_changed_in_an_arm_is_in_no_known_order() -> None:
    run, held = new_run(), {"a", "b"}
    run.keep_order(held)
    assert run.has_order(held)
    frame = Frame()
    run.fork(frame, lambda _: run.touch(held), lambda _: None)
    assert not run.has_order(held)


# --- stock code ------------------------------------------------------------------------------------------------------


def test_what_stock_code_hands_back_is_what_it_was_given() -> None:
    run, held = new_run(), [["a"]]
    exchange = Exchange(run)
    out = exchange.out(held)
    assert out == held
    assert out[0] is not held[0]
    assert exchange.back((out, out[0])) == (held, held[0])
    assert exchange.back(out[0]) is held[0]
    made = ["new"]
    assert exchange.back([made, made])[0] is exchange.back(made)


def test_what_holds_a_random_id_is_not_known() -> None:
    run, id_ = new_run(), unknown_id()
    exchange = Exchange(run)
    mark = exchange.out([id_])[0]
    assert exchange.back(mark) is id_
    assert type(exchange.back(f"About {mark}")) is Unknown
    assert exchange.back("About nothing") == "About nothing"


def test_what_lost_its_content_is_not_handed_on() -> None:
    run, held = new_run(), ["a"]
    run.taint(held)
    with pytest.raises(Undecided):
        Exchange(run).out(held)


# --- functions that would leave something behind ---------------------------------------------------------------------


FACTORY: defaultdict[str, list[int]] = defaultdict(list)


def test_a_missing_key_is_not_put_into_a_dict_of_others() -> None:
    run = new_run()
    with pytest.raises(Barrier):
        operators.subscript(run, run.load(FACTORY), "missing")
    with pytest.raises(Barrier):
        call(run, run.load("{missing}".format_map), (run.load(FACTORY),), {})
    assert not FACTORY


def test_a_list_of_others_is_not_shuffled() -> None:
    run, theirs = new_run(), [1, 2, 3]
    with pytest.raises(Barrier):
        call(run, Opaque(random.shuffle), (run.load(theirs),), {})


def test_no_logger_is_made() -> None:
    with pytest.raises(Barrier):
        call(new_run(), Opaque(logging.getLogger), ("tests.never.made",), {})
    assert "tests.never.made" not in logging.root.manager.loggerDict


def test_nothing_is_entered_that_does_something() -> None:
    run = new_run()
    frame = Frame({RUN: run})
    assert classes.inside(frame, Opaque(threading.Lock()), lambda value: (value, run.locks), is_async=False) == (
        True,
        1,
    )
    assert run.locks == 0
    with pytest.raises(Barrier):
        classes.inside(frame, Opaque(Model(lambda question, number: "")), lambda value: value, is_async=False)


@functools.cache
def cached(name: str) -> list[str]:
    return [name]


def test_a_list_in_a_cache_is_not_changed() -> None:
    cached("a")
    assert read(lambda: cached("a").append("b")).barrier is not None
    assert cached("a") == ["a"]


class Plain:
    def __init__(self) -> None:
        self.items = [1]


PLAIN = Plain()


@pytest.mark.parametrize(
    "change",
    [lambda: PLAIN.items.append(2), lambda: setattr(PLAIN, "items", []), lambda: PLAIN.__dict__.clear()],
)
def test_an_object_of_others_is_not_changed(change: Callable[[], Any]) -> None:
    assert read(change).barrier is not None
    assert PLAIN.items == [1]
