"""Types written in a function's body: `list[str]`, `Optional[Grade]`, `Literal["a"]`, `A | None`.

`typing` itself makes the objects, and compares and hashes the parts. So only classes without a metaclass of the user's,
types made here, and atoms are allowed as parts.
"""

from __future__ import annotations

import collections
import operator
import typing
from typing import Any

import typing_extensions

from teola_plugin.adapters.reader import foreign
from teola_plugin.adapters.reader.values import Barrier, Opaque, shown

_GENERIC = (list, dict, tuple, set, frozenset, type, collections.deque, collections.defaultdict)
_NAMES = foreign.words("Optional Union List Dict Tuple Set FrozenSet Type Sequence Mapping Iterable Iterator")
_FORMS: tuple[Any, ...] = tuple(value for name, value in vars(typing).items() if name in _NAMES)
_LITERALS = (typing.Literal, typing_extensions.Literal)
_ANNOTATED = (typing.Annotated, typing_extensions.Annotated)
_LIST: Any = vars(typing)["List"]
_MADE: frozenset[type] = frozenset(
    map(type, [list[int], int | None, _LIST[int], typing.Union[int, _LIST[int]], typing.Literal[1]])  # noqa: UP007
) | {type(typing.Annotated[int, 1])}
_DEPTH = 6


def subscripted(run: Any, held: Opaque, at: Any) -> Opaque | None:
    """Return `held[at]` if the result is a type, else None. Raises: Undecided, Barrier."""
    form: Any = held.held
    parts = at if type(at) is tuple else (at,)
    if _is_one(form, _LITERALS):
        run.require_known(*parts)
        if not all(type(each) in (str, int, bool, bytes, type(None)) for each in parts):
            raise Barrier("it uses a Literal of what is no plain value")
        return Opaque(form[parts])
    if _is_one(form, _ANNOTATED):
        if len(parts) < 2 or not all(map(_is_metadata, parts[1:])):
            raise Barrier("it uses a type that is annotated with more than data")
        return Opaque(form[(_hint(parts[0]), *map(_unwrapped, parts[1:]))])
    if _is_one(form, (*_GENERIC, *_FORMS)):
        hints = tuple(map(_hint, parts))
        return Opaque(form[hints if type(at) is tuple else hints[0]])
    return None


def united(a: Any, b: Any) -> Opaque | None:
    """Return `a | b` if both are types, else None."""
    if not (is_hint(a) and is_hint(b)):
        return None
    return Opaque(operator.or_(_unwrapped(a), _unwrapped(b)))


def is_hint(value: Any) -> bool:
    """Whether a value of the reader's is a type made by this module, a class, or None."""
    return value is None or (foreign.is_kind_of(value, Opaque) and _is_held_hint(value.held))


def _is_held_hint(held: Any, depth: int = _DEPTH) -> bool:
    if held is None or held is Ellipsis or held is typing.Any:
        return True
    if foreign.is_class(held):
        return foreign.has_known_classes(held)
    if type(held) is tuple:
        return depth > 0 and all(_is_held_hint(each, depth - 1) for each in held)
    if foreign.is_one_of(type(held), (str, int, bool, bytes)):  # of a Literal
        return True
    if not foreign.is_one_of(type(held), _MADE) or depth == 0:
        return False
    metadata = getattr(held, "__metadata__", ())
    return all(map(_is_metadata, metadata)) and _is_held_hint(held.__args__, depth - 1)


def _hint(value: Any) -> Any:
    if value is None or value is Ellipsis:
        return value
    if type(value) is list:
        return [_hint(each) for each in value]
    if type(value) is str:
        raise Barrier("it uses a type in quotes")
    if not is_hint(value):
        raise Barrier(f"it uses a type of {shown(value)}")
    return value.held


def _unwrapped(value: Any) -> Any:
    return value.held if foreign.is_kind_of(value, Opaque) else value


def _is_metadata(value: Any) -> bool:
    held = _unwrapped(value)
    return foreign.is_atom(held) or (
        foreign.name_of_class(type(held)) == "FieldInfo" and foreign.is_library_class(type(held))
    )


def is_annotated(held: Any) -> bool:
    """Whether a type is annotated with plain data only."""
    return type(held) is _ANNOTATED_TYPE and all(map(_is_metadata, held.__metadata__))


_ANNOTATED_TYPE: Any = type(typing.Annotated[int, 1])


def _is_one(held: Any, forms: tuple[Any, ...]) -> bool:
    return any(held is each for each in forms)
