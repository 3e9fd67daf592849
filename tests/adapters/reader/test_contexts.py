"""`with` statements on contexts of the user's: what is certain in and behind them, and how they end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.adapters.reader.random_classes import Failure
from tests.adapters.reader.random_contexts import Asked, Noted, choosing, noting, sifting, swallowing, telling, turning
from tests.adapters.reader.world import Model, predicted, read, same_as_original

Program = Callable[[Any], Any]


def in_a_decorated_function(m: Any) -> Any:
    with telling(m, "before") as said:
        m.ask("in")
        m.ask("in too")
    return said, m.ask("behind")


def returned_from_within(m: Any) -> Any:
    with telling(m, "before", last="after"):
        return m.ask("in")


def in_several(m: Any) -> Any:
    seen: list[Any] = []
    with noting(seen, "a") as held, turning("b") as said:
        m.ask(said)
        held.append("c")
    return seen, m.ask("behind")


def in_a_context_of_a_class(m: Any) -> Any:
    with Asked(m), Noted([]) as note:
        m.ask("in")
    return note.seen, m.ask("behind")


class Base:
    def __init__(self, m: Any) -> None:
        self.m = m

    def ask(self, text: str) -> Any:
        return self.m.ask(text)

    @contextlib.contextmanager
    def named(self, name: str) -> Iterator[str]:
        yield name


class Derived(Base):
    def ask(self, text: str) -> Any:
        with self.named("in") as name, telling(self.m, "before"):
            return super().ask(f"{name} {text}")


def in_a_method(m: Any) -> Any:
    return Derived(m).ask("text"), m.ask("behind")


def in_a_loop(m: Any) -> Any:
    seen: list[Any] = []
    for x in "abc":
        with noting(seen, x):
            if x == "b":
                break
            m.ask(x)
    return seen


def from_another_context(m: Any) -> Any:
    with choosing("yes", m):
        return [m.ask("in"), m.ask("in too")]


def an_error_that_a_class_swallows(m: Any) -> Any:
    seen: list[Any] = []
    with Noted(seen, swallows=True):
        seen.append(m.ask("in"))
        raise ValueError("swallowed")
    return seen, m.ask("behind")


def an_error_that_a_function_swallows(m: Any) -> Any:
    seen: list[Any] = []
    with swallowing(seen):
        raise Failure("swallowed", 1)
    return seen, m.ask("behind")


def an_error_that_is_suppressed(m: Any) -> Any:
    with contextlib.suppress(KeyError, ValueError), contextlib.nullcontext("in") as name:
        m.ask(name)
        raise ValueError("suppressed")
    with contextlib.suppress(KeyError):
        return m.ask("behind")


def an_error_that_is_not_suppressed(m: Any) -> Any:
    m.ask("before")
    with contextlib.suppress(KeyError):
        raise ValueError("goes on")


def an_error_that_becomes_another(m: Any) -> Any:
    m.ask("before")
    with turning():
        raise TypeError("turned")


def an_error_that_goes_on(m: Any) -> Any:
    with sifting([], m), Noted([]):
        raise KeyError("told of")


WHOLE: list[tuple[Program, list[str]]] = [
    (in_a_decorated_function, ["before", "in", "in too", "bye", "behind"]),
    (returned_from_within, ["before", "in", "after"]),
    (in_several, ["b", "behind"]),
    (in_a_context_of_a_class, ["in", "in", "out", "behind"]),
    (in_a_method, ["before", "in text", "bye", "behind"]),
    (in_a_loop, ["a"]),
    (from_another_context, ["chosen", "in", "in too", "bye"]),
    (an_error_that_a_class_swallows, ["in", "behind"]),
    (an_error_that_a_function_swallows, ["behind"]),
    (an_error_that_is_suppressed, ["in", "behind"]),
    (an_error_that_is_not_suppressed, ["before"]),
    (an_error_that_becomes_another, ["before"]),
    (an_error_that_goes_on, ["failed"]),
]


@pytest.mark.parametrize(("program", "asked"), WHOLE)
def test_what_is_asked_in_a_context_is_certain_at_once(program: Program, asked: list[str]) -> None:
    found, fast, original = same_as_original(program, lambda question, number: f"{question} {number}")
    assert found.is_known
    assert (original.asked, fast.asked) == (asked, asked)
    assert read(program, Model(lambda *_: "")).certain == asked


def left_for_some_replies(m: Any) -> Any:
    with noting([], "a"):
        if m.ask("q") == "yes":
            return m.ask("in")
    return m.ask("behind")


def suppressed_for_some_replies(m: Any) -> Any:
    x = None
    with contextlib.suppress(ValueError):
        x = int(m.ask("q"))
    return m.ask("none" if x is None else "number")


def left_where_an_error_may_be_swallowed(m: Any) -> Any:
    with swallowing([]):
        return int(m.ask("q"))
    return m.ask("behind")


def an_error_that_a_class_may_swallow(m: Any) -> Any:
    with Noted([], swallows=True):
        int(m.ask("q"))
    m.ask("behind")


def an_error_that_may_skip_the_end(m: Any) -> Any:
    seen: list[Any] = []
    try:
        with noting(seen, "a"):
            int(m.ask("q"))
    except ValueError:
        m.ask("caught")
    m.ask(str(seen))


@contextlib.contextmanager
def yielding_twice() -> Iterator[int]:
    yield 1
    yield 2


@contextlib.contextmanager
def without_a_yield(*, yields: bool = False) -> Iterator[int]:
    if yields:
        yield 1


@contextlib.contextmanager
def yielding_for_some_replies(m: Any) -> Iterator[str]:
    if m.ask("q") == "yes":
        yield "one"
    else:
        yield "other"


def entered_twice(m: Any) -> Any:
    context = turning("a")
    with context:
        m.ask("one")
    with context:
        m.ask("two")


def used_by_yield(make: Any) -> Program:
    def program(m: Any) -> Any:
        with make(*([m] if make is yielding_for_some_replies else [])) as x:
            m.ask(str(x))
        return m.ask("behind")

    return program


@contextlib.contextmanager
def ending() -> Iterator[None]:
    next(iter([]))
    yield


def an_iterator_that_ends(m: Any) -> Any:
    try:
        with ending():
            m.ask("in")
    except StopIteration:
        m.ask("the iterator's")
    except RuntimeError:
        m.ask("the generator's")


@pytest.mark.parametrize("reply", ["yes", "7", "no"])
@pytest.mark.parametrize(
    "program",
    [
        left_for_some_replies, suppressed_for_some_replies, left_where_an_error_may_be_swallowed,
        an_error_that_a_class_may_swallow, an_error_that_may_skip_the_end, entered_twice, an_iterator_that_ends,
        used_by_yield(yielding_twice), used_by_yield(without_a_yield), used_by_yield(yielding_for_some_replies),
    ],
)  # fmt: skip
def test_what_a_context_makes_uncertain_is_not_asked(program: Program, reply: str) -> None:
    same_as_original(program, lambda *_: reply)


def behind_a_finally_block(m: Any) -> Any:
    name = "one"
    try:
        try:
            m.ask(int(m.ask("q")))
        finally:
            name = "other"
    except ValueError:
        m.ask("caught")
    m.ask(name)


def behind_a_context(m: Any) -> Any:
    note = Noted([])
    try:
        with note:
            m.ask(int(m.ask("q")))
    except ValueError:
        m.ask("caught")
    m.ask(str(note.seen[0]))


@pytest.mark.parametrize(("program", "last"), [(behind_a_finally_block, "other"), (behind_a_context, "in")])
def test_the_state_behind_an_error_is_that_behind_the_end_of_its_block(program: Program, last: str) -> None:
    for reply in ("7", "no"):
        original, fast = (Model(lambda *_, reply=reply: reply) for _ in range(2))
        program(original)
        predicted(program, fast)
        assert sorted(map(str, fast.asked)) == sorted(map(str, original.asked))
    assert read(program, Model(lambda *_: "")).certain == ["q", last]


class Session:
    """Asks at both ends, on an event loop."""

    def __init__(self, m: Any) -> None:
        self.m = m

    async def __aenter__(self) -> str:
        return str(await self.m.aask("in"))

    async def __aexit__(self, *error: object) -> None:
        await self.m.aask("out")


@contextlib.asynccontextmanager
async def session(m: Any) -> AsyncIterator[str]:
    said = await m.aask("open")
    try:
        yield said
    finally:
        await m.aask("close")


def test_contexts_of_coroutines() -> None:
    async def program(m: Any) -> Any:
        async with session(m) as one, Session(m) as other:
            return one, other, await m.aask("asked")

    found, rounds = predicted(program, Model(lambda question, number: f"{question} {number}"))
    assert rounds == [["open", "in", "asked", "out", "close"]]
    assert found.value == ("open 0", "in 0", "asked 0")


class Mixed:
    """With a coroutine function where there should be none, and the other way round."""

    async def __enter__(self) -> str:
        return "in"

    def __exit__(self, *error: object) -> None:
        pass

    def __aenter__(self) -> str:
        return "in"

    async def __aexit__(self, *error: object) -> None:
        pass


def test_contexts_of_the_wrong_kind_are_entered_as_by_python() -> None:
    def of_coroutines(m: Any) -> Any:
        with session(m):
            m.ask("in")

    def mixed(m: Any) -> Any:
        with Mixed() as name:
            m.ask(name)

    async def mixed_too(m: Any) -> Any:
        async with Mixed() as name:
            await m.aask(name)

    for program in (of_coroutines, mixed, mixed_too):
        found = read(program, Model(lambda *_: ""))
        assert found.certain == []
        assert not found.is_known


def test_a_context_is_entered_after_the_tasks_that_run_meanwhile() -> None:
    async def program(m: Any) -> Any:
        task = asyncio.create_task(m.aask("task"))
        async with Session(m) as said:
            return said, await task

    assert read(program, Model(lambda *_: "")).barrier is not None
