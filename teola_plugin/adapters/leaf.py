"""A leaf as a tracer describes it: the engine call that the interception will see during the framework's run.

A primitive hits only if its engine, operation, settings and payload equal the intercepted call's. So, where possible,
the values come from a run of the framework's own code into the interception (see rehearsal.py) and are not computed by
code of ours. Only *stock* components are rehearsed, for a rehearsal must not run user code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import getattr_static
from itertools import takewhile
from types import FunctionType
from typing import Any

import numpy as np

from teola_plugin.adapters.methods import is_as_published
from teola_plugin.adapters.reader.foreign import is_of_library, mro_of
from teola_plugin.engines import EngineSpec


@dataclass(frozen=True, slots=True)
class Leaf:
    """An engine call. `payload` makes an item's payload from the component's input: text, vector, query, document."""

    spec: EngineSpec
    op: str
    settings: Mapping[str, Any]
    payload: Callable[..., Any]


def plain_class(component: object) -> type:
    """Return the class that the user knows, below our twin's."""
    cls = type(component)
    return next(c for c in cls.__mro__ if "__teola__" not in vars(c)) if "__teola__" in vars(cls) else cls


def is_stock(component: object, base: type, *methods: str) -> bool:
    """Whether a component is a `base` without overrides of `methods` (none: of all) in its class or the object.

    No method of `base` may be code of the user's.
    """
    cls = plain_class(component)
    if not issubclass(cls, base) or not is_as_published(base) or _has_own_special_methods(type(component), base):
        return False
    names = methods or [name for name in dir(base) if not name.startswith("__") and name not in _BOOKKEEPING]
    if cls is not base and any(_found(cls, name) is not _found(base, name) for name in names):
        return False
    own = getattr(component, "__dict__", {}).keys() & set(names)
    return not any(callable(getattr_static(base, name)) for name in own)


_namespace_of = type.__dict__["__dict__"].__get__


def _found(cls: type, name: str) -> object:
    """Return what a class has under a name, without running code: faster than `inspect.getattr_static`."""
    return next((space[name] for each in mro_of(cls) if name in (space := _namespace_of(each))), None)


def _has_own_special_methods(cls: type, base: type) -> bool:
    """Whether a class between the object and `base` defines special methods (attributes, copies, comparison, ...)."""
    own = takewhile(lambda c: c is not base, (c for c in cls.__mro__ if "__teola__" not in vars(c)))
    return any(
        isinstance(member, FunctionType | property) and name not in _MAKING and not _is_of_library(member)
        for c in own
        for name, member in vars(c).items()
        if name.startswith("__") and name.endswith("__")
    )


def is_stock_of(component: object, package: str) -> bool:
    """Whether a component behaves as its nearest class from `package`."""
    own = (c for c in plain_class(component).__mro__ if f"{c.__module__}.".startswith(f"{package}."))
    base = next(own, None)
    return base is not None and is_stock(component, base)


def _is_of_library(member: FunctionType | property) -> bool:
    return isinstance(member, FunctionType) and is_of_library(member)


_MAKING = {"__init__", "__post_init__", "__init_subclass__"}
"""Special methods that run on no existing object."""

_BOOKKEEPING = {
    "_abc_impl", "model_config", "model_fields", "model_computed_fields", "model_post_init", "class_name",
}  # fmt: skip
"""The attributes added to every subclass of a pydantic or abstract class."""


def as_vector(vector: Any) -> Any:
    """Return the payload of a search: float32, shape (dim,)."""
    return np.asarray(vector, dtype=np.float32)
