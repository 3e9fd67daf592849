"""`super()` without arguments in methods of the user's classes: what it calls is read as CPython calls it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.adapters.reader.fuzzing import judged
from tests.adapters.reader.random_programs import inputs

pytestmark = pytest.mark.usefixtures("no_batches")


class Asking:
    tone = "plain"

    def __init__(self, model: Any, *, count: int = 0) -> None:
        super().__init__()
        self.model = model
        self.count = count

    def ask(self, text: str) -> Any:
        self.count += 1
        return self.model.ask(f"{self.tone} {text} {self.count}")

    @property
    def name(self) -> str:
        return "asking"

    @classmethod
    def made(cls, model: Any) -> Any:
        return cls(model)

    @staticmethod
    def cut(text: str) -> str:
        return text[:3]


class Left(Asking):
    def __init__(self, model: Any, **more: Any) -> None:
        self.left = "left"
        super().__init__(model, **more)

    def ask(self, text: str) -> Any:
        return [self.left, super().ask(f"{text} {self.left}")]


class Right(Asking):
    tone = "kind"

    def ask(self, text: str) -> Any:
        before = super()
        return [before.ask(text), before.ask(f"{text} again")]


class Both(Left, Right):
    def __init__(self, model: Any) -> None:
        super().__init__(model, count=3)
        self.both = [self.left]

    def ask(self, text: str) -> Any:
        if text.startswith("b"):
            return super().ask(text), self.both
        self.both.append(text)
        return self.both, super().ask(text)


@dataclass
class Note:
    text: str

    def shown(self, mark: str) -> str:
        return f"{mark}{self.text}"


@dataclass
class Marked(Note):
    mark: str = "!"

    def shown(self, mark: str) -> str:
        return super().shown(mark + self.mark)


def of_a_diamond(m: Any, q: Any, *rest: Any, **given: Any) -> Any:
    made = Both(m)
    return [made.ask("a"), made.ask("b"), m.ask(str(made.count)), q.ask("more")]


def of_replies(m: Any, *rest: Any, **given: Any) -> Any:
    made = Both(m)
    return [made.ask(each) for each in m.ask("first").split()], made.both


def of_records(m: Any, *rest: Any, **given: Any) -> Any:
    return m.ask(Marked("a").shown("*")), Marked(m.ask("b")).shown("?")


def of_one_of_two(m: Any, q: Any, *rest: Any, **given: Any) -> Any:
    made = Left(m) if q.ask("a").startswith("a") else Right(m)
    return made.ask("b")


@pytest.mark.parametrize("program", [of_a_diamond, of_replies, of_records, of_one_of_two])
def test_methods_of_bases_are_read(program: Callable[..., Any]) -> None:
    found = [judged(program, inputs(case), case) for case in range(40)]
    assert all(each is not None for each in found)
    if program is not of_one_of_two:
        assert not any(each.barrier for each in found if each is not None)


class Odd(Both):
    def in_a_comprehension(self, text: str) -> Any:
        return [super().ask(each) for each in text]  # type: ignore[misc]

    def in_a_function(self, text: str) -> Any:
        return (lambda: super().ask(text))()  # type: ignore[misc]

    def of_another(self, text: str) -> Any:
        self = Left(self.model)
        return super().ask(text)

    def without(self, text: str) -> Any:
        model = self.model
        del self
        model.ask(text)
        return super().ask(text)  # type: ignore[misc]

    def missing(self, text: str) -> Any:
        return super().missing(text)  # type: ignore[misc]

    def named(self, text: str) -> Any:
        return self.model.ask(super().name + text)

    def again(self, text: str) -> Any:
        return super().made(self.model).ask(text)

    def shortened(self, text: str) -> Any:
        return self.model.ask(super().cut(text))

    def made_anew(self, text: str) -> Any:
        super().__init__(self.model)
        return self.ask(text)

    def shown(self, text: str) -> Any:
        return self.model.ask(text + str(len(super().__repr__()) > 3))

    def explicit(self, text: str) -> Any:
        return super(Left, self).ask(text)

    def called(self, text: str) -> Any:
        return super()(text)  # type: ignore[operator]


ODD = [name for name in vars(Odd) if not name.startswith("__")]


@pytest.mark.parametrize("name", ODD)
def test_other_uses_ask_for_nothing_else(name: str) -> None:
    def program(m: Any, q: Any, *rest: Any, **given: Any) -> Any:
        made = Odd(m)
        return q.ask("a"), getattr(made, name)("text"), m.ask("b")

    for case in range(20):
        assert judged(program, inputs(case), case) is not None


class Refusing:
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)


def of_too_many_arguments(m: Any, *rest: Any, **given: Any) -> Any:
    m.ask("a")
    Refusing()
    try:
        Refusing(1)
    except TypeError:
        m.ask("refused")
    Refusing(m.ask("b"))
    return m.ask("c")


def test_what_object_refuses_is_refused() -> None:
    for case in range(20):
        assert judged(of_too_many_arguments, inputs(case), case) is not None
