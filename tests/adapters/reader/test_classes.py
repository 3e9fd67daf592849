"""Objects and classes of others: no code of theirs runs, and what is read of them is what CPython gives."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import pydantic
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.retrievers import BaseRetriever
from pydantic import BaseModel, ConfigDict, Field, GetPydanticSchema, PrivateAttr
from pydantic_core import core_schema

from teola_plugin.adapters.reader import classes, foreign
from teola_plugin.adapters.reader.asking import Nobody
from teola_plugin.adapters.reader.calls import call
from teola_plugin.adapters.reader.facts import kind_of
from teola_plugin.adapters.reader.foreign import words
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown
from tests.adapters.reader.world import Model

RAN: list[str] = []


def ran(*args: Any, **kwargs: Any) -> Any:
    """Code of the user's, which may never run."""
    RAN.append("ran")
    return 1


def new_run() -> Run:
    return Run(Nobody(), operations=1_000_000)


# --- attacks ---------------------------------------------------------------------------------------------------------

SPECIAL = sorted(
    words(
        "getattribute getattr eq ne lt hash bool len iter contains getitem str repr format index int float call copy "
        "deepcopy reduce_ex reduce getstate instancecheck subclasscheck del setattr delattr dir enter exit add radd"
    )
)


def of_metaclass() -> Any:
    meta = type("Meta", (type,), {f"__{name}__": ran for name in SPECIAL if name not in ("getattribute", "del")})
    return meta("Victim", (), {"x": 1})()


def of_attribute_metaclass() -> Any:
    class Meta(type):
        __getattribute__ = ran

    return Meta("Victim", (), {"x": 1})()


def of_metaclass_of_metaclass() -> Any:
    top = type("Top", (type,), {"__hash__": ran, "__eq__": ran, "__getattribute__": ran})
    return top("Meta", (type,), {})("Victim", (), {"x": 1})()


def with_special(name: str) -> Any:
    return type("Victim", (), {f"__{name}__": ran, "x": 1})()


def with_class_property() -> Any:
    return type("Victim", (), {"__class__": property(ran), "x": 1})()


def with_dict_property() -> Any:
    return type("Victim", (), {"__dict__": property(ran)})()


def with_name_of_odd_text() -> Any:
    text = type("Text", (str,), dict.fromkeys(("__str__", "__format__", "__hash__", "__eq__", "__repr__"), ran))
    cls = type("Victim", (), {"x": 1})
    cls.__name__ = text("Victim")
    return cls()


def with_odd_keys() -> Any:
    text = type("Text", (str,), {"__eq__": ran, "__hash__": str.__hash__})
    made = type("Victim", (), {})()
    made.__dict__[text("x")] = 1
    return made


def with_odd_names() -> Any:
    text = type("Text", (str,), {"__eq__": ran, "__hash__": str.__hash__})
    return type("Victim", (), {text("x"): 1})()


def with_descriptor() -> Any:
    getter = type("Getter", (), {"__get__": ran, "__set__": ran})
    return type("Victim", (), {"x": getter()})()


def with_getter() -> Any:
    return type("Victim", (), {"x": type("Getter", (), {"__get__": ran})()})()


def with_slots() -> Any:
    cls = type("Victim", (), {"__slots__": ("x",), "__eq__": ran, "__hash__": ran})
    made = cls()
    made.x = 1
    return made


def with_cached_property() -> Any:
    class Victim:
        @functools.cached_property
        def x(self) -> Any:
            return ran()

    return Victim()


def subclass_of(base: type) -> Callable[[], Any]:
    names = ("eq", "hash", "len", "iter", "str", "repr", "getitem", "bool", "contains", "getattribute", "format", "lt")

    def make() -> Any:
        return type("Victim", (base,), {f"__{name}__": ran for name in names})()

    return make


def forged_dataclass() -> Any:
    @dataclasses.dataclass
    class Victim:
        x: int

    scope: dict[str, Any] = {"ran": ran}
    exec(compile("def __eq__(self, other):\n return ran()", "<string>", "exec"), scope)
    scope["__eq__"].__qualname__ = "Victim.__eq__"
    scope["__eq__"].__module__ = __name__
    Victim.__eq__ = scope["__eq__"]  # type: ignore[method-assign]
    return Victim(1)


def forged_repr() -> Any:
    @dataclasses.dataclass
    class Victim:
        x: int

    Victim.__repr__.__closure__[1].cell_contents = ran  # type: ignore[union-attr, index]
    return Victim(1)


def dataclass_with(**methods: Any) -> Callable[[], Any]:
    def make() -> Any:
        cls = type("Victim", (), {"__annotations__": {"x": int}, "x": 1, **methods})
        return dataclasses.dataclass(cls)(1)

    return make


def dataclass_with_descriptor() -> Any:
    class Getter:
        def __get__(self, *args: Any) -> Any:
            return ran()

        def __set__(self, *args: Any) -> None:
            ran()

    @dataclasses.dataclass
    class Victim:
        x: int = Getter()  # type: ignore[assignment]

    return Victim(1)


def model_with(**members: Any) -> Callable[[], Any]:
    def make() -> Any:
        made = pydantic.create_model("Victim", __base__=BaseModel, x=(int, 1))
        cls = type("Victim", (made,), {"__module__": __name__, **members})
        return cls.model_construct(x=1)

    return make


def model_with_property() -> Any:
    class Victim(BaseModel):
        x: int = 1

        @pydantic.computed_field
        def y(self) -> int:
            return ran()

        @pydantic.field_validator("x")
        @classmethod
        def checked(cls, value: int) -> int:
            return ran()

        @pydantic.field_serializer("x")
        def shown(self, value: int) -> int:
            return ran()

        def model_post_init(self, context: Any) -> None:
            ran()

    return Victim.model_construct(x=1)


def enum_with_code() -> Any:
    class Victim(enum.Enum):
        x = 1
        __eq__ = ran
        __hash__ = ran
        __str__ = ran

        @classmethod
        def _missing_(cls, value: object) -> Any:
            ran()
            return cls.x

    return Victim.x


def named_tuple_with_code() -> Any:
    class Base(NamedTuple):
        x: int

    return type(
        "Victim", (Base,), {"__eq__": ran, "__hash__": ran, "__len__": ran, "__iter__": ran, "__getitem__": ran}
    )(1)


def module_with_code() -> Any:
    module = types.ModuleType("victim")
    module.__getattr__ = ran  # type: ignore[method-assign]
    return module


def abstract() -> Any:
    class Victim(abc.ABC):  # noqa: B024
        x = 1

        @classmethod
        def __subclasshook__(cls, other: type) -> Any:
            return ran()

    return Victim()


VICTIMS: dict[str, Callable[[], Any]] = {
    "metaclass": of_metaclass,
    "attribute_metaclass": of_attribute_metaclass,
    "metaclass_of_metaclass": of_metaclass_of_metaclass,
    **{name: functools.partial(with_special, name) for name in SPECIAL},
    "class_property": with_class_property,
    "dict_property": with_dict_property,
    "odd_class_name": with_name_of_odd_text,
    "odd_keys": with_odd_keys,
    "odd_names": with_odd_names,
    "descriptor": with_descriptor,
    "getter": with_getter,
    "slots": with_slots,
    "cached_property": with_cached_property,
    **{f"subclass_{base.__name__}": subclass_of(base) for base in (str, int, dict, list, tuple, set, float)},
    "forged_dataclass": forged_dataclass,
    "forged_repr": forged_repr,
    **{f"dataclass_{n}": dataclass_with(**{f"__{n}__": ran}) for n in ("eq", "hash", "repr", "bool", "len", "del")},
    "dataclass_descriptor": dataclass_with_descriptor,
    **{f"model_{n}": model_with(**{f"__{n}__": ran}) for n in ("eq", "hash", "repr", "iter", "getattr", "setattr")},
    "model_methods": model_with(model_dump=ran, model_copy=ran, dict=ran, json=ran, model_post_init=ran),
    "model_property": model_with_property,
    "enum": enum_with_code,
    "named_tuple": named_tuple_with_code,
    "module": module_with_code,
    "abstract": abstract,
}

NAMES = ("x", "y", "missing", "__class__", "__dict__", "__name__", "__doc__", "model_dump", "value", "append", "upper")


def attempts(victim: Any) -> list[Callable[[Run], Any]]:
    """Everything that may be done with an object and its class."""

    def loaded(run: Run, value: Any) -> Any:
        return run.load(value)

    def with_record(run: Run, act: Callable[[Any], Any]) -> Any:
        return act(run.load(victim))

    def used(run: Run) -> Any:
        value = run.load(victim)
        run.require_known(value)
        if type(value) is not Opaque:
            return [value == value, repr(value), str(value), bool(value), {"k": value}, hash(value), copy.copy(value)]
        return None

    cls = type(victim)
    keyed: dict[Any, int] = {}
    with contextlib.suppress(TypeError):
        keyed[victim] = 1
    acts: list[Callable[[Run], Any]] = [
        *(lambda run, n=name: classes.attribute(run, run.load(victim), n) for name in NAMES),
        *(lambda run, n=name: classes.attribute(run, run.load(cls), n) for name in NAMES),
        lambda run: classes.set_attribute(run, run.load(victim), "x", 2),
        lambda run: classes.set_attribute(run, run.load(victim), "z", 2),
        *(lambda run, c=each: classes.is_instance(run, run.load(victim), run.load(c))
          for each in (int, str, dict, cls, Mapping, Sequence, Iterable, collections.abc.Hashable, BaseModel)),
        lambda run: classes.is_instance(run, 1, run.load(cls)),
        lambda run: classes.is_instance(run, Unknown(), run.load(cls)),
        lambda run: classes.is_subclass(run, run.load(cls), run.load(cls)),
        lambda run: classes.is_subclass(run, run.load(int), run.load(cls)),
        lambda run: classes.type_of(run, run.load(victim)),
        lambda run: call(run, run.load(cls), (), {}),
        lambda run: call(run, run.load(cls), (1,), {}),
        lambda run: call(run, run.load(cls), (), {"x": 1}),
        lambda run: call(run, run.load(cls), (Unknown(),), {}),
        lambda run: call(run, run.load(victim), (), {}),
        lambda run: classes.fields_of(run.load(victim)),
        lambda run: classes.describe(run.load(victim)),
        lambda run: classes.match_args(run, run.load(cls), run.load(victim), 1),
        lambda run: classes.entered(run, run.load(victim)),
        lambda run: classes.is_caught(run, ValueError(), run.load(cls)),
        lambda run: classes.make_class(run, "Made", (run.load(cls),), {}, {}),
        lambda run: run.load([victim, {"k": victim}, (victim,)]),
        lambda run: run.load(keyed),
        lambda run: run.load(collections.defaultdict(victim if callable(victim) else None)),
        lambda run: loaded(run, cls),
        lambda run: with_record(run, classes.is_record),
        used,
    ]  # fmt: skip
    return acts


@pytest.mark.parametrize("name", VICTIMS)
def test_no_code_of_a_class_runs(name: str) -> None:
    victim = VICTIMS[name]()
    acts = attempts(victim)
    RAN.clear()
    for number, act in enumerate(acts):
        classes.begin()
        with contextlib.suppress(Barrier, Undecided, AttributeError, TypeError, ValueError):
            act(new_run())
        assert not RAN, f"attempt {number} of {name}"


def test_keys_of_dicts_are_not_hashed_by_code_of_theirs() -> None:
    cls = type("Key", (), {"__hash__": lambda self: RAN.append("hash") or 1})
    held = {cls(): 1}
    RAN.clear()
    with pytest.raises(Barrier):
        new_run().load(held)
    assert not RAN


def test_default_factories_and_validators_do_not_run() -> None:
    class Made(BaseModel):
        x: list[int] = Field(default_factory=ran)

    class Checked(BaseModel):
        x: int = 1

        @pydantic.model_validator(mode="after")
        def checked(self) -> Any:
            ran()
            return self

    class Typed:
        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            return core_schema.no_info_plain_validator_function(ran)

    class Custom(BaseModel):
        x: Typed = None  # type: ignore[assignment]
        model_config = ConfigDict(arbitrary_types_allowed=True)

    class Own(BaseModel):
        x: int = 1

        def __init__(self, **data: Any) -> None:
            ran()
            super().__init__(**data)

    class Shown(BaseModel):
        x: int = Field(1, json_schema_extra=ran)

    RAN.clear()
    for cls in (Made, Checked, Custom, Own, Shown):
        assert not classes.is_clean_model(cls)
        with pytest.raises(Barrier):
            call(new_run(), Opaque(cls), (), {})
        with pytest.raises(Barrier):
            call(new_run(), classes.attribute(new_run(), Opaque(cls), "model_json_schema"), (), {})
    assert not RAN


def test_what_is_inside_of_a_model_is_not_written_out_by_code_of_its_own() -> None:
    class Inner(BaseModel):
        x: int = 1

        @pydantic.field_serializer("x")
        def shown(self, value: int) -> int:
            return ran()

    class Outer(BaseModel):
        held: Any = None

    run = new_run()
    outer = run.load(Outer(held=Inner.model_construct(x=1)))
    RAN.clear()
    with pytest.raises(Barrier):
        call(run, classes.attribute(run, outer, "model_dump"), (), {})
    assert not RAN


def test_a_class_that_is_patched_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass
    class Row:
        x: int

    assert type(new_run().load(Row(1))) is Row
    monkeypatch.setattr(Row, "__eq__", ran)
    assert type(new_run().load(Row(1))) is Opaque
    monkeypatch.undo()
    assert type(new_run().load(Row(1))) is Row
    monkeypatch.setattr(Row.__eq__, "__code__", (lambda self, other: True).__code__)
    assert type(new_run().load(Row(1))) is Opaque
    monkeypatch.setattr(HumanMessage, "__eq__", ran)
    assert type(new_run().load(HumanMessage("a"))) is Opaque
    monkeypatch.undo()
    monkeypatch.setattr(HumanMessage, "pretty_repr", ran)
    run = new_run()
    RAN.clear()
    with pytest.raises(Barrier):
        call(run, classes.attribute(run, run.load(HumanMessage("a")), "pretty_repr"), (), {})
    assert not RAN


# --- kinds -----------------------------------------------------------------------------------------------------------


class WithText(Exception):
    def __str__(self) -> str:
        return ran()


class WithInit(Exception):
    def __init__(self) -> None:
        ran()


class Pair(NamedTuple):
    x: int


class Ordered(Pair):
    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return ran()

    __hash__ = None  # type: ignore[assignment]


class Forged(NamedTuple):
    x: int


Forged.__new__ = lambda cls, x: ran()  # type: ignore[method-assign, assignment, misc]


class MakesAttributes:
    def __getattr__(self, name: str) -> Any:
        return ran()


class Component(BaseRetriever):
    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:
        return []


class ComponentWithAttributes(Component):
    def __getattr__(self, name: str) -> Any:
        return ran()


class OwnLookup:
    def __getattribute__(self, name: str) -> Any:
        return ran()


class OwnClass:
    __class__ = property(ran)  # type: ignore[assignment]


class Data(BaseModel):
    x: int = 1


class DataWithSlots(Data):
    __slots__ = ("y",)


class DataThatDumps(Data):
    def model_dump(self, **options: Any) -> Any:
        return ran()


@dataclasses.dataclass(frozen=True)
class Row:
    x: int = 1


KINDS: list[tuple[type, str]] = [
    (WithText, ""), (WithInit, ""), (Pair, "tuple"), (Ordered, ""), (Forged, ""), (MakesAttributes, ""),
    (Component, "component"), (ComponentWithAttributes, ""), (OwnLookup, ""), (OwnClass, ""), (Data, "record"),
    (DataWithSlots, "component"), (DataThatDumps, "component"), (Row, "record"), (Model, "object"),
    (type(enum_with_code()), ""), (type(dataclass_with_descriptor()), "object"),
]  # fmt: skip


@pytest.mark.parametrize(("cls", "kind"), KINDS, ids=lambda each: getattr(each, "__name__", each))
def test_the_kind_of_a_class(cls: type, kind: str) -> None:
    classes.begin()
    assert kind_of(cls) == kind


def test_methods_that_dataclass_writes_use_no_names_of_the_modules_own(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("odd_module")
    monkeypatch.setitem(sys.modules, "odd_module", module)
    scope = vars(module)
    scope.update(hash=ran, dataclass=dataclasses.dataclass)
    exec("@dataclass(frozen=True)\nclass Odd:\n    x: int = 1\n", scope)
    RAN.clear()
    assert kind_of(scope["Odd"]) != "record"
    assert not RAN


def test_namedtuples_new_calls_that_of_tuple() -> None:
    made = collections.namedtuple("Made", "x")
    assert kind_of(made) == "tuple"
    new = vars(made)["__new__"]
    new = new.__func__ if type(new) is staticmethod else new
    other = types.FunctionType(new.__code__, {**new.__globals__, "_tuple_new": ran}, "__new__")
    made.__new__ = other  # type: ignore[method-assign, assignment]
    classes.begin()
    assert kind_of(made) == ""
    made.__new__ = types.FunctionType((lambda cls, x: ran()).__code__, {**new.__globals__}, "__new__")  # type: ignore[method-assign, assignment]
    classes.begin()
    assert kind_of(made) == ""


def test_what_says_that_it_is_of_a_library_is_not() -> None:
    forged = type("AIMessage", (), {"__module__": "langchain_core.messages.ai"})
    assert foreign.is_library_class(AIMessage)
    assert not foreign.is_library_class(forged)
    said = types.FunctionType((lambda: 1).__code__, {"__name__": "langchain_core.messages.ai"})
    assert not foreign.is_of_library(said)
    assert foreign.is_of_library(AIMessage.pretty_repr)


def test_an_attribute_that_its_class_makes_is_not_read() -> None:
    run = new_run()
    with pytest.raises(Barrier):
        classes.attribute(run, run.load(with_getter()), "x")


class Getter:
    def __get__(self, held: Any, owner: Any = None) -> Any:
        return ran()


class WithPrivate(Component):
    _words: list[str] = PrivateAttr(default_factory=lambda: ["a"])
    _made: Any = PrivateAttr(default=Getter())

    @property
    def words(self) -> list[str]:
        return self._words


def test_a_private_attribute_of_a_component_is_read() -> None:
    run, held = new_run(), WithPrivate()
    component = run.load(held)
    assert type(component) is Opaque
    held._words.append("b")
    assert classes.attribute(run, component, "_words") == classes.attribute(run, component, "words") == ["a", "b"]
    RAN.clear()
    for name in ("_made", "_none"):
        with pytest.raises(Barrier):
            classes.attribute(run, component, name)
    assert not RAN


# --- models ----------------------------------------------------------------------------------------------------------


def test_models_with_code_are_not_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    class Inner(BaseModel):
        def __init__(self, **data: Any) -> None:
            ran()
            super().__init__(**data)

    class Outer(BaseModel):
        inner: Inner | None = None

    class Slow(BaseModel):
        model_config = ConfigDict(regex_engine="python-re")
        x: str = Field("a", pattern="(a+)+$")

    class After(BaseModel):
        x: int = 1

        def model_post_init(self, context: Any) -> None:
            ran()

    def slow(source: Any, handler: Any) -> Any:
        return core_schema.str_schema(pattern="(a+)+$", regex_engine="python-re")

    class AlsoSlow(BaseModel):
        x: Annotated[str, GetPydanticSchema(slow)] = "a"

    class Around(BaseModel):
        data: Data | None = None

    for cls in (Inner, Outer, Slow, AlsoSlow, After):
        assert not classes.is_clean_model(cls)
    for name in ("__init__", "model_post_init"):
        assert classes.is_clean_model(Data)
        assert classes.is_clean_model(Around)
        with monkeypatch.context() as patch:
            patch.setattr(Data, name, ran, raising=False)
            classes.begin()
            assert not classes.is_clean_model(Data)
            assert not classes.is_clean_model(Around)
        classes.begin()


class _Cached:
    name = functools.cached_property(str)
    size = functools.cached_property(id)


class _Overriding(_Cached):
    size = 3  # type: ignore[assignment]


def test_an_overridden_cached_property_keeps_nothing() -> None:
    assert foreign.caching_in(_Cached) == {"name", "size"}
    assert foreign.caching_in(_Overriding) == {"name"}
    assert foreign.caching_in(int) == set()
