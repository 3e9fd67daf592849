"""Keys of values are equal only where nobody could tell the values apart, and say what the value was at the time."""

from __future__ import annotations

import copy
import datetime
import decimal
import enum
import functools
import gc
import struct
import weakref
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl, BaseModel, ConfigDict, HttpUrl, PrivateAttr, SecretStr

from teola_plugin.engines import Completion, EngineSpec, Foreign
from teola_plugin.request_identity import keys_of, request_key
from teola_plugin.value_keys import MAX_DEPTH, Same, configuration_key, is_comparable, snapshot, value_key

# --- values against a reference that is written another way -----------------------------------------------------------


def written(value: Any) -> str:
    """The value with the type of each part, in its order; floats by their bits."""
    kind = type(value).__name__
    match value:
        case np.ndarray():
            return f"{kind}({value.dtype.str},{value.shape},{value.tobytes().hex()})"
        case float():
            return f"{kind}({struct.pack('>d', value).hex()})"
        case dict():
            return f"{kind}({', '.join(f'{written(k)}: {written(v)}' for k, v in value.items())})"
        case list() | tuple() | set() | frozenset():
            return f"{kind}({', '.join(map(written, value))})"
        case _:
            return f"{kind}({value!r})"


hashables = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text("ab", max_size=2) | st.binary(max_size=1)
    | st.sampled_from([0.0, -0.0, 1.0, float("nan"), -float("nan"), float("inf")]),
    lambda inner: st.lists(inner, max_size=2).map(tuple) | st.frozensets(inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
arrays = st.builds(
    lambda numbers, dtype, is_column: np.array(numbers, dtype).reshape((-1, 1) if is_column else -1),
    st.lists(st.sampled_from([0, 1]), max_size=2),
    st.sampled_from(["f4", "f8", "i4", ">i4", "?"]),
    st.booleans(),
)
_values = st.recursive(
    hashables | arrays,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(hashables, inner, max_size=2)
        | st.sets(hashables, max_size=2)
    ),
    max_leaves=6,
)
values = _values.filter(lambda value: is_comparable(value_key(value)))
"""Without sets that are read in another order once they are copied."""


@given(values, values)
def test_keys_are_equal_where_the_values_read_the_same(one: Any, other: Any) -> None:
    assert (value_key(one) == value_key(other)) == (written(one) == written(other))


@given(values)
def test_a_copy_has_the_same_key_and_the_same_hash(value: Any) -> None:
    again = snapshot(value)
    assert written(again) == written(value)
    assert {value_key(again)} == {value_key(value)}


@given(st.dictionaries(hashables, values, min_size=2, max_size=3))
def test_the_order_of_a_dict_counts(value: dict[Any, Any]) -> None:
    turned = dict(reversed(value.items()))
    assert value_key(turned) != value_key(value)


@dataclass(eq=False)
class Somewhere:
    """Hashed by where it lies."""

    place: int = 0


class Own(set[Any]):
    """A set of a class that is written in Python."""


@pytest.mark.parametrize("kind", [set, frozenset, Own])
def test_a_set_whose_copies_are_read_in_another_order_is_like_no_other(kind: Callable[[Any], Any]) -> None:
    meeting = frozenset([-1]), frozenset([-2])  # their hashes are equal
    turned = [kind(each) for each in (meeting, meeting[::-1])]
    moved = [made for made in turned if list(copy.deepcopy(made)) != list(made)]
    assert moved
    assert not any(is_comparable(value_key(made)) for made in moved)
    assert not is_comparable(value_key(kind([Somewhere()])))
    assert value_key(kind([1, 2])) == value_key(copy.deepcopy(kind([1, 2])))


# --- values that look alike -------------------------------------------------------------------------------------------


class Text(str):
    pass


class Noted(str):
    note: str


class Keeping(dict[Any, Any]):
    pass


class Slotted(str):
    __slots__ = ()


class Always(dict[Any, Any]):
    """Says that it is empty."""

    def items(self) -> Any:
        return ()

    def __len__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


Point = namedtuple("Point", "x y")
Place = namedtuple("Place", "x y")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.StrEnum):
    RED = "red"


@dataclass
class Pair:
    first: Any
    second: Any = field(default=0, compare=False, repr=False)


@dataclass(slots=True)
class SlottedPair:
    first: Any


class Message(BaseModel):
    model_config = ConfigDict(extra="allow")

    text: Any = ""
    name: str | None = None
    _seen: Any = PrivateAttr(default=None)


class Reply(Message):
    pass


def noted(note: str) -> Noted:
    text = Noted("a")
    text.note = note
    return text


def seen(value: Any) -> Message:
    message = Message()
    message._seen = value
    return message


def always(**fields: Any) -> Any:
    made: Any = Always()
    dict.update(made, fields)
    return made


def moved_to_end() -> OrderedDict[str, int]:
    moved = OrderedDict(a=1, b=2)
    moved.move_to_end("a")
    return moved


ALIKE: dict[str, list[Callable[[], Any]]] = {
    "numbers": [lambda: 1, lambda: True, lambda: 1.0, lambda: 1 + 0j, lambda: Fraction(1), lambda: decimal.Decimal(1),
                lambda: decimal.Decimal("1.0"), lambda: np.int64(1), lambda: np.int32(1), lambda: np.float64(1),
                lambda: np.float32(1), lambda: np.bool_(True), lambda: "1", lambda: b"1", lambda: [1], lambda: (1,)],
    "zeros": [lambda: 0.0, lambda: -0.0, lambda: 0, lambda: False, lambda: None, lambda: "", lambda: b"",
              lambda: bytearray(), lambda: (), lambda: [], lambda: {}, lambda: set(), lambda: frozenset(),
              lambda: np.float32(0), lambda: np.float32(-0.0), lambda: complex(0.0, -0.0), lambda: 0j],
    "texts": [lambda: "a", lambda: b"a", lambda: Text("a"), lambda: Slotted("a"), lambda: noted("x"),
              lambda: noted("y"), lambda: Completion("a"), lambda: Completion("a", finish_reason="length"),
              lambda: np.str_("a"), lambda: PurePosixPath("a"), lambda: SecretStr("a"), lambda: SecretStr("b")],
    "mappings": [lambda: {"a": 1, "b": 2}, lambda: {"b": 2, "a": 1}, lambda: OrderedDict(a=1, b=2), moved_to_end,
                 lambda: Counter(a=1, b=2), lambda: Keeping(a=1, b=2), lambda: defaultdict(int, a=1, b=2),
                 lambda: defaultdict(list, a=1, b=2), lambda: [("a", 1), ("b", 2)], lambda: {"a": 1, "b": 2.0},
                 lambda: {"a": 1, "b": 2, "c": None}],
    "mappings that lie": [lambda: always(a=1), lambda: always(a=2), lambda: always()],
    "tuples": [lambda: (1, 2), lambda: [1, 2], lambda: Point(1, 2), lambda: Place(1, 2), lambda: (1, (2,)),
               lambda: ((1,), 2), lambda: (1, 2, None), lambda: {1: 2}, lambda: range(1, 3), lambda: slice(1, 2)],
    "arrays": [lambda: np.zeros(4, "f4"), lambda: np.zeros(4, "f8"), lambda: np.zeros(8, "f4"),
               lambda: np.zeros((2, 2), "f4"), lambda: np.zeros((4, 1), "f4"), lambda: np.zeros(4, "i4"),
               lambda: -np.zeros(4, "f4"), lambda: np.zeros(4, ">f4"), lambda: [0.0] * 4],
    "objects": [lambda: Pair(1), lambda: Pair(1, 2), lambda: Pair(1.0), lambda: SlottedPair(1), lambda: SlottedPair(2),
                lambda: Message(text=1), lambda: Message(text=1, name=None), lambda: Message(text=1, name="a"),
                lambda: Message(text=1, other=2), lambda: Message(text=1, other=2.0), lambda: Reply(text=1),
                lambda: seen(1), lambda: seen(2), lambda: {"text": 1}],
    "members": [lambda: Colour.RED, lambda: Colour.BLUE, lambda: Level.RED, lambda: "red", lambda: 1, lambda: Colour],
    "functions": [lambda: len, lambda: sum, lambda: written, lambda: Colour, lambda: Message, lambda: Reply,
                  lambda: functools.partial(len), lambda: functools.partial(len, "a"), lambda: functools.partial(sum)],
    "times": [lambda: datetime.date(2026, 1, 2), lambda: datetime.datetime(2026, 1, 2),
              lambda: datetime.datetime(2026, 1, 2, fold=1), lambda: datetime.timedelta(1),
              lambda: datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC), lambda: UUID(int=1), lambda: UUID(int=2)],
    "addresses": [lambda: AnyUrl("http://a/b"), lambda: HttpUrl("http://a/b"), lambda: "http://a/b",
                  lambda: AnyUrl("http://a/b?"), lambda: AnyUrl("https://a/b")],
}  # fmt: skip


@pytest.mark.parametrize("kind", ALIKE)
def test_what_looks_alike_has_different_keys_and_the_same_has_the_same(kind: str) -> None:
    made = ALIKE[kind]
    keys = [value_key(make()) for make in made]
    assert len(set(keys)) == len(made)
    assert all(map(is_comparable, keys))
    assert keys == [value_key(make()) for make in made]


def test_a_key_says_what_the_value_was() -> None:
    value: dict[str, Any] = {"a": [1, {"b": np.zeros(2)}], "m": Message(text=["x"]), "p": Pair([1])}
    key, kept, whole = value_key(value), snapshot(value), copy.deepcopy(value)
    value["a"][1]["b"][0] = 1
    value["m"].text.append("y")
    value["p"].first.append(2)
    assert value_key(value) != key == value_key(whole)
    assert value_key(kept) == key


# --- what cannot be told ----------------------------------------------------------------------------------------------


class Opaque:
    pass


class Raising:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not look")

    def __hash__(self) -> int:
        raise RuntimeError("do not hash")


class EqualToAll:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def test_an_object_that_says_it_equals_all_is_the_same_as_itself_alone() -> None:
    one = EqualToAll()
    assert Same(one) == Same(one)
    assert Same(one) != Same(EqualToAll())


class Meta(type):
    def __eq__(cls, other: object) -> bool:
        return True

    def __hash__(cls) -> int:
        return hash(list)


class OfMeta(metaclass=Meta):
    pass


class AlikeMeta(Meta):
    def __hash__(cls) -> int:
        return 1


@dataclass
class Alike(metaclass=AlikeMeta):
    a: int = 1


def cyclic() -> Any:
    loop: list[Any] = []
    loop += [loop, {"again": loop}]
    return loop


def doubled(times: int) -> Any:
    value: Any = []
    for _ in range(times):
        value = [value, value]
    return value


def nested(times: int) -> Any:
    value: Any = {}
    for _ in range(times):
        value = {"in": [value]}
    return value


INCOMPARABLE: list[Callable[[], Any]] = [
    Opaque, Raising, EqualToAll, object, OfMeta, Alike, cyclic, lambda: doubled(60), lambda: nested(100_000),
    lambda: nested(MAX_DEPTH // 2), lambda: iter([]),
    lambda: memoryview(b"a"), lambda: np.array([object()]), lambda: [Opaque()], lambda: {"a": {"b": Opaque()}},
    lambda: Pair(Opaque()), lambda: Message(text=Opaque()), lambda: seen(Opaque()), lambda: Message(other=Opaque()),
    lambda: Foreign(value_key(Opaque()), lambda: None), lambda: Foreign([], lambda: None),  # type: ignore[arg-type]
]  # fmt: skip


@pytest.mark.parametrize("at", range(len(INCOMPARABLE)))
def test_what_cannot_be_told_is_like_nothing_not_even_itself(at: int) -> None:
    value = INCOMPARABLE[at]()
    assert value_key(value) != value_key(value)
    assert not is_comparable(value_key(value))
    assert len({value_key(value), value_key(value), value_key(1)}) == 3
    spec = EngineSpec("engine", Opaque())
    for payload, settings in ((value, {}), ("a", {"s": value})):
        key = request_key(spec, "decoding", payload, settings)
        assert not is_comparable(key)
        assert key != request_key(spec, "decoding", payload, settings)
    snapshot(value)


def test_a_value_that_changes_meanwhile_is_like_nothing() -> None:
    class Growing(dict[str, Any]):
        pass

    value: Any = {"a": Growing()}

    class Adding:
        def __reduce_ex__(self, protocol: Any) -> Any:
            value["b"] = 1
            raise AssertionError

    value["c"] = Adding()
    assert not is_comparable(value_key(value))


def test_it_can_be_told_deep_in_the_stack() -> None:
    def at(depth: int) -> Any:
        return at(depth - 1) if depth else value_key(nested(40))

    try:
        keys = [at(depth) for depth in range(500, 980, 20)]
    except RecursionError:  # of this function's own
        keys = []
    assert value_key(nested(40)) == value_key(nested(40))
    assert all(key == value_key(nested(40)) for key in keys if is_comparable(key))


# --- requests ---------------------------------------------------------------------------------------------------------


def test_a_key_keeps_what_it_names_alive() -> None:
    resource, function = Opaque(), lambda: None
    gone = [weakref.ref(resource), weakref.ref(function)]
    key = request_key(EngineSpec("engine", resource), "decoding", "a", {"f": function})
    del resource, function
    gc.collect()
    assert all(ref() for ref in gone)
    del key
    gc.collect()
    assert not any(ref() for ref in gone)


def test_engine_operation_settings_and_payload_tell_requests_apart() -> None:
    one, other = Opaque(), Opaque()
    keys = {
        request_key(EngineSpec(kind, resource), op, payload, settings)
        for kind in ("engine", "python")
        for resource in (one, other)
        for op in ("decoding", "embedding")
        for payload in ("a", ("a",), Foreign("a", lambda: None), Foreign("a", lambda: None, is_async=True))
        for settings in ({}, {"a": 1}, {"a": True}, {"b": 1})
    }
    assert len(keys) == 2 * 2 * 2 * 4 * 4
    spec = EngineSpec("engine", one)
    assert keys_of(spec, "decoding", {"a": 1})("a") == request_key(spec, "decoding", "a", {"a": 1}) in keys


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(value_key({"key": SecretStr("hush")}))
    assert "hush" not in repr(configuration_key(Configured(key=SecretStr("hush"))))


# --- configurations ---------------------------------------------------------------------------------------------------


class Configured(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True, extra="allow")

    temperature: float = 0.0
    key: SecretStr = SecretStr("a")
    client: Any = None
    callbacks: Any = None
    _calls: list[str] = PrivateAttr(default_factory=list)

    @functools.cached_property
    def lazily(self) -> int:
        return 1


def test_a_configuration_is_what_a_user_sets() -> None:
    client = Opaque()
    model = Configured(client=[client])
    before = configuration_key(model)
    assert before == configuration_key(Configured(client=[client]))
    model._calls.append("called")
    model.callbacks = [Opaque()]
    assert model.lazily == 1
    assert configuration_key(model) == before
    others = [
        Configured(client=[Opaque()]),
        Configured(client=[client], temperature=-0.0),
        Configured(client=[client], key=SecretStr("b")),
        Configured(client=[client], extra=1),
        Configured(client=client),
    ]
    assert len({before, *map(configuration_key, others)}) == 1 + len(others)
