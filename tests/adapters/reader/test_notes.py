"""Notes of values outside of functions: what counts as changed, and what is not kept alive."""

from __future__ import annotations

import dataclasses
import functools
import json
import queue
import random
import sys
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import wrapt
from pydantic import BaseModel, PrivateAttr
from tenacity import retry

from teola_plugin.adapters.reader import calls, stacks
from teola_plugin.adapters.reader import notes as noting
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.foreign import MISSING
from teola_plugin.adapters.reader.notes import Notes
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.values import Barrier, Opaque
from tests.adapters.reader.resumed import HIDDEN, SideBySide
from tests.adapters.reader.test_fuzz_semantics import module_of
from tests.adapters.reader.test_resuming import numbered

pytestmark = pytest.mark.usefixtures("no_batches")


class Held:
    pass


class Box:
    def __init__(self) -> None:
        self.topic: Any = ""
        self.held: Any = Held()
        self.items: list[Any] = ["a", {"b": 1}]


class Model(BaseModel):
    _count: int = PrivateAttr(0)


class Row(BaseModel):
    name: str
    size: int = 0


BOX = Box()
LATER: Any = None


def uses_box() -> Any:
    return BOX.topic, BOX.held, BOX.items


def stores() -> None:
    global LATER
    LATER = Box()
    LATER.topic = "x"


def is_same(notes: Notes, owner: Any, name: str) -> bool:
    return notes.is_as_noted((id(vars(owner)), name), owner, name, vars(owner).get(name, MISSING))


def set_topic(box: Box) -> None:
    box.topic = "new"


def set_another_text(box: Box) -> None:
    box.topic = str(0)


def drop(box: Box) -> None:
    box.held = None


def replace(box: Box) -> None:
    box.held = Held()


@pytest.mark.parametrize(
    ("change", "name"), [(set_topic, "topic"), (set_another_text, "topic"), (drop, "held"), (replace, "held")]
)
def test_a_changed_attribute_is_not_as_noted(
    change: Callable[[Box], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "BOX", box := Box())
    notes = Notes([uses_box])
    assert is_same(notes, box, name)
    change(box)
    assert not is_same(notes, box, name)
    assert is_same(notes, box, "items")


def test_contents_are_noted_one_by_one() -> None:
    notes = Notes([box := Box()])
    assert (notes.is_kept(box.items), notes.is_kept(box.items[1])) == (True, True)
    box.items[1]["c"] = 2
    assert (notes.is_kept(box.items), notes.is_kept(box.items[1])) == (True, False)
    box.items.append("d")
    assert (notes.is_kept(box.items), notes.is_kept(box.items[:])) == (False, None)


def test_private_attributes_of_models_are_noted() -> None:
    notes = Notes([model := Model()])
    private = model.__pydantic_private__ or {}
    assert notes.is_as_noted((id(private), "_count"), None, "_count", 0)
    assert not notes.is_as_noted((id(private), "_count"), None, "_count", 1)


def test_the_names_of_set_fields_are_noted_with_a_model() -> None:
    notes = Notes([rows := [Row(name="a"), Row(name="b", size=2)]])
    assert all(notes.is_kept(each.__pydantic_fields_set__) for each in rows)
    rows[0].size = 1
    assert not notes.is_kept(rows[0].__pydantic_fields_set__)
    assert notes.is_kept(rows[1].__pydantic_fields_set__)


def test_without_a_note_a_name_that_is_stored_to_may_have_changed() -> None:
    other, notes = Box(), Notes([stores])
    assert not is_same(notes, other, "topic")
    assert is_same(notes, other, "items")
    assert is_same(Notes([uses_box]), other, "topic")


def test_no_object_is_kept_alive() -> None:
    box = Box()
    notes = Notes([box])
    held = weakref.ref(box.held)
    box.held = None
    assert held() is None
    assert not is_same(notes, box, "held")


def test_values_beyond_a_number_are_not_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noting, "MOST_PARTS", 50)
    box = Box()
    box.items = list(range(100))
    assert Notes([box]).is_kept(box.items) is None


def test_a_copy_that_was_broken_off_is_not_used() -> None:
    given, held = Given(), [[1], [2], [3]]
    for _ in range(2):
        with pytest.raises(Barrier):
            Run(Nobody(), given=given, operations=3).load(held)
    assert Run(Nobody(), given=given).load(held) == held


class Only(random.Random):
    """Lets something be read only while `may` says so."""

    def __init__(self, may: Callable[[], bool]) -> None:
        super().__init__(0)
        self.may = may

    def random(self) -> float:
        return 0.0 if self.may() else 1.0


BEHIND = f"""
{HIDDEN}

class Box:
    topic = ""

BOX = Box()

def program(m, **rest):
    rows = unread(lambda: ["a"])
    m.ask("first")
    if BOX.topic:
        m.ask("again")
    else:
        BOX.topic = "known"
    return m.ask("b"), m.ask("c")
"""


def test_values_are_noted_anew_behind_what_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_PASSING", stacks._PASSING | {"tests", "contextlib"})
    monkeypatch.setattr(stacks, "_libraries", {})
    module = module_of(BEHIND, tmp_path / "behind.py")
    extra = []
    for number in range(3):
        begun: list[bool] = []

        def may(number: int = number, begun: list[bool] = begun) -> bool:
            begun.append(True)
            return number == 0 or len(begun) < 2 or bool(module.BOX.topic)

        module.BOX = module.Box()
        side = SideBySide(module.program, numbered(0), Only(may))
        side.run({})
        extra.append(side.extra)
    assert extra == [0, 0, 0]


class Loud:
    def fill(self, **given: Any) -> None:
        for name, value in given.items():
            setattr(self, name, value)
        self.dumps = json.dumps(given)


@pytest.mark.parametrize("owner", [json, json.JSONEncoder])
def test_a_name_of_a_package_is_trusted_whatever_functions_store(owner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "dumps" if owner is json else "default"
    notes = Notes([Loud().fill])
    assert is_same(notes, owner, name)
    monkeypatch.setattr(owner, name, lambda *given: "")
    assert is_same(notes, owner, name) is (owner is not json)


def asks(function: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(function)
    def wrapped() -> Any:
        return function()

    return wrapped


@pytest.mark.parametrize("decorate", [asks, functools.cache, retry, functools.singledispatch])
def test_functions_under_decorators_are_noted(decorate: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "BOX", box := Box())
    notes = Notes([decorate(lambda: BOX.topic)])
    box.topic = "new"
    assert not is_same(notes, box, "topic")


def imports() -> Any:
    from late_parts.settings import HELD

    return HELD


def imports_beside() -> Any:
    from .settings import HELD  # type: ignore[import-not-found]

    return HELD


@pytest.mark.parametrize("function", [imports, imports_beside])
def test_what_functions_import_is_noted(function: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("late_parts.settings")
    module.HELD = box = Box()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "late_parts", types.ModuleType("late_parts"))
    monkeypatch.setitem(sys.modules, "late_parts.settings", module)
    notes = Notes([types.FunctionType(function.__code__, {"__package__": "late_parts"})])
    assert is_same(notes, module, "HELD")
    assert is_same(notes, box, "topic")
    box.topic = "new"
    assert not is_same(notes, box, "topic")


def test_nothing_is_known_of_modules_and_functions_without_notes() -> None:
    module = types.ModuleType("late_parts")
    module.topic = "known"  # type: ignore[attr-defined]
    notes = Notes([uses_box])
    assert not is_same(notes, module, "topic")
    assert not notes.is_as_noted((id(globals()), "MANY"), stores, "MANY", 1)
    assert notes.is_as_noted((id(globals()), "MANY"), uses_box, "MANY", 1)


def test_a_module_of_the_users_may_have_a_name_of_the_standard_library(tmp_path: Path) -> None:
    module = types.ModuleType("profile")
    module.__file__ = str(tmp_path / "profile.py")
    module.BOX = Box()  # type: ignore[attr-defined]
    notes = Notes([module, uses_box])
    module.BOX = Box()  # type: ignore[attr-defined]
    assert not is_same(notes, module, "BOX")


class Registered:
    last: Any

    def __init__(self) -> None:
        self.topic = "a"
        Registered.last = self


def test_a_constructor_may_store_elsewhere() -> None:
    notes = Notes([Registered])
    assert is_same(notes, Box(), "topic")
    other = Box()
    other.last = 1  # type: ignore[attr-defined]
    assert not is_same(notes, other, "last")


class Managed:
    def __enter__(self) -> None:
        self.topic = "a"


def test_special_methods_store_as_others_do() -> None:
    assert not is_same(Notes([Managed]), Box(), "topic")


def test_containers_of_packages_objects_are_noted() -> None:
    notes = Notes([waiting := queue.Queue[int]()])
    assert notes.is_kept(waiting.queue)
    waiting.put(1)
    assert not notes.is_kept(waiting.queue)
    assert not is_same(notes, waiting, "unfinished_tasks")


def test_beyond_a_number_nothing_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noting, "MOST_PARTS", 0)
    assert not is_same(Notes([uses_box]), Box(), "topic")


@pytest.mark.parametrize(
    "text",
    [
        "ENV.get('TEOLA_TEST')", "ENV['TEOLA_TEST']", "os.getenv('TEOLA_TEST')", "'a' if 'TEOLA_TEST' in ENV else 'b'",
        "'b' if 'TEOLA_TEST' not in ENV else 'a'", "'a' if 'TEOLA_OTHER' not in ENV else 'b'",
    ],
)  # fmt: skip
def test_a_changed_environment_is_not_read(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEOLA_TEST", "a")
    read = module_of(f"import os\nENV = os.environ\ndef read():\n    return {text}\n", tmp_path / "read.py").read
    given = Given()
    given.note([read])
    assert calls.call(Run(Nobody(), given=given), Opaque(read), (), {}) == "a"
    monkeypatch.setenv("TEOLA_TEST", "b")
    with pytest.raises(Barrier, match="environment"):
        calls.call(Run(Nobody(), given=given), Opaque(read), (), {})


def appends() -> None:
    BOX.items.append("c")


@dataclasses.dataclass(order=True)
class Point:
    x: int = 0


@dataclasses.dataclass
class Rising:
    x: int = 0

    def __lt__(self, other: Any) -> Any:
        BOX.items[0] = other
        return False


@pytest.mark.parametrize(("cls", "alters"), [(Point, False), (Rising, True)])
def test_methods_that_dataclass_has_written_change_nothing(cls: Any, alters: bool) -> None:
    assert Notes([cls]).alters is alters


def test_functions_in_wrappers_are_looked_at() -> None:
    class Wrapped:
        store = wrapt.FunctionWrapper(stores, lambda wrapped, instance, args, kwargs: wrapped(*args, **kwargs))

    for root in (Wrapped(), Wrapped().store):
        assert Notes([root]).may_store(BOX, "topic")


class Storing:
    def rename(self) -> None:
        self.name = "another"


@pytest.mark.parametrize(
    ("function", "given", "is_kept"),
    [(uses_box, None, True), (stores, None, False), (appends, None, False), (uses_box, Storing(), False)],
)
def test_notes_hold_for_the_whole_run_where_nothing_is_stored(function: Any, given: Any, is_kept: bool) -> None:
    first = Given().note([function])
    later = Given()
    later.copy([given])
    assert (later.note([function], first) is first) is is_kept
    if given is not None:
        assert later.notes is not None
        assert later.notes.is_noted((id(Storing), "rename"))


def test_no_metaclass_is_asked() -> None:
    asked = []

    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            asked.append(other)
            return cls is other

        __hash__ = type.__hash__

    class Odd(metaclass=Meta):
        pass

    @functools.lru_cache
    def length(value: Any) -> int:
        return len(str(value))

    length(Odd())
    length(Odd)
    asked.clear()
    Notes([Odd(), length])
    with pytest.raises(Barrier, match="more than plain values"):
        calls.call(Run(Nobody()), Opaque(length), ("abc",), {})
    assert not asked
