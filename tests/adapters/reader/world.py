"""A world of one model for tests of the reader: programs ask it, as they would ask a model of a framework's.

def program(model, docs):
    return [d for d in docs if model.ask(d) == "yes"]

found = predicted(program, docs=["a", "b"], replies={"a": "yes"})
found.certain, found.value
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader.asking import NOT_MINE, Ask, Nobody, Request
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.run import Answer, Given, Run
from teola_plugin.adapters.reader.values import Barrier, Callee, Opaque, Pending, Stalled, Undecided, Unknown
from teola_plugin.engines import EngineSpec

ELSEWHERE = EngineSpec("python", object(), "model", "somebody")


class Model:
    """Answers by a function of the question and of how often it was asked; remembers what it was asked."""

    def __init__(self, reply: Callable[[Any, int], Any]) -> None:
        self.asked: list[Any] = []
        self._reply = reply
        self._counts: Counter[Any] = Counter()

    def ask(self, question: Any) -> Any:
        """A reply to a question."""
        self.asked.append(question)
        number = self._counts[repr(question)]
        self._counts[repr(question)] += 1
        return self._reply(question, number)

    async def aask(self, question: Any) -> Any:
        """`ask` for a coroutine."""
        return self.ask(question)


class ModelAsker(Nobody):
    """Knows `Model.ask`. `holds`: what its replies are."""

    def __init__(self, holds: str = "text", *, may_raise: bool = False) -> None:
        super().__init__()
        object.__setattr__(self, "_holds", holds)
        object.__setattr__(self, "_may_raise", may_raise)

    def attribute(self, run: Run, owner: Opaque, name: str) -> Any:
        if type(owner.held) is not Model or name not in ("ask", "aask"):
            return NOT_MINE

        def ask(run: Run, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
            (question,) = args
            if name == "aask":
                return Pending(lambda: self._asked(run, owner.held, question))
            return self._asked(run, owner.held, question)

        return Callee(ask, name)

    def _asked(self, run: Run, model: Model, question: Any) -> Any:
        try:
            run.require_known(question)
        except Undecided:
            return run.unknown(question, holds=self._holds, is_safe=True)  # type: ignore[attr-defined]
        key = (id(model), repr(question))
        return run.ask(
            Request(
                key, ELSEWHERE, "decoding", question, {}, lambda reply: reply, self._holds, self._may_raise, id(model)
            )  # type: ignore[attr-defined]
        )


@dataclass
class Read:
    """What one evaluation came to."""

    value: Any = None
    error: Exception | None = None
    barrier: Barrier | None = None
    is_stalled: bool = False
    asks: list[Ask] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """It came to its end, with a value or an error."""
        return not (self.barrier or self.is_stalled)

    @property
    def certain(self) -> list[Any]:
        """What is asked for certain."""
        return [ask.request.payload for ask in self.asks if ask.is_certain]

    @property
    def possible(self) -> list[Any]:
        """What may be asked."""
        return [ask.request.payload for ask in self.asks if not ask.is_certain]


def read(
    function: Any, *args: Any, answers: Mapping[Hashable, Answer] | None = None, asker: Any = None, **kwargs: Any
) -> Read:
    """One evaluation of a function on copies of these arguments."""
    given = Given()
    own_args = tuple(map(given.copy, args))
    own_kwargs = {name: given.copy(value) for name, value in kwargs.items()}
    run = Run(asker or ModelAsker(), answers=answers, given=given)
    found = Read()
    try:
        value = call(run, run.load(function), own_args, own_kwargs)
        while type(value) is Pending:
            value = value.force()
        run.require_known(value) if type(value) is not Opaque else None
        found.value = Given().copy(value)
        if run.asks and type(value) is Unknown:
            found.is_stalled = True
    except Barrier as e:
        found.barrier = e
    except (Stalled, Undecided):
        found.is_stalled = True
    except Exception as e:
        found.error = e
    finally:
        run.put_back()
    found.asks = list(run.asks.values())
    return found


def predicted(
    function: Any, model: Model, *args: Any, asker: Any = None, **kwargs: Any
) -> tuple[Read, list[list[Any]]]:
    """The program read until all is answered, and what was certain in each round."""
    asker = asker or ModelAsker()
    answers: dict[Hashable, Answer] = {}
    rounds: list[list[Any]] = []
    while True:
        found = read(function, model, *args, answers=answers, asker=asker, **kwargs)
        fresh = [ask for ask in found.asks if ask.is_certain and ask.key not in answers]
        if not fresh:
            return found, rounds
        rounds.append([ask.request.payload for ask in fresh])
        for ask in fresh:
            answers[ask.key] = Answer(model.ask(ask.request.payload))


def same_as_original(program: Callable[[Any], Any], reply: Callable[..., Any]) -> tuple[Read, Model, Model]:
    """The program as read, with its model and the original's: the same value or error, and no other request."""
    original, fast = Model(reply), Model(reply)
    try:
        expected: Any = program(original)
    except Exception as e:
        expected = type(e)
    found, _ = predicted(program, fast)
    if found.is_known:
        assert (found.value if found.error is None else type(found.error)) == expected
    assert fast.asked == original.asked[: len(fast.asked)]
    return found, fast, original


def then_asked(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program, and a last request, "z", behind it."""

    def both(m: Any) -> Any:
        found = program(m)
        m.ask("z")
        return found

    return both


def asks_the_same(program: Callable[..., Any], answer: str) -> None:
    """Run a program by itself and with early requests, with one answer to all: nothing differs, nothing is extra."""
    original, fast = (Model(lambda question, number: answer) for _ in range(2))
    expected, error = None, None
    try:
        expected = program(original)
    except Exception as e:
        error = e
    found, rounds = predicted(program, fast)
    assert (found.value, repr(found.error)) == (expected, repr(error))
    assert sorted(fast.asked) == sorted(original.asked)
    assert not set(rounds[0]) - set(original.asked)
