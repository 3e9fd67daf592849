"""Methods of components' classes: whether one was replaced after the pipeline was read, or before.

Our own replacements (interception.py) do not count: the methods beneath are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FunctionType
from typing import Any

from teola_plugin.adapters.reader.foreign import MOST_CLASSES, Seen, is_library_class, mro_of
from teola_plugin.adapters.reader.values import STDLIB, Barrier, is_installed_file


class Methods:
    """Methods, by class and name, as they were when noted.

    `replaced`: the names of methods of the library's that were code of the user's by then.
    """

    def __init__(self, names: Iterable[str]) -> None:
        """`names`: the methods that count."""
        self.replaced: list[str] = []
        self._names = sorted(names)
        self._noted: dict[tuple[type, str], Any] = {}

    def note(self, cls: type) -> None:
        """Note the methods of a class, including inherited methods."""
        self.replaced += [name for name in self._names if is_replaced(cls, name)]
        for name in self._names:
            if (method := method_of(cls, name)) is not None:
                self._noted.setdefault((cls, name), method)

    def are_unchanged(self) -> bool:
        """Whether the methods are still the same objects."""
        return all(method_of(cls, name) is method for (cls, name), method in self._noted.items())


def is_replaced(cls: type, name: str) -> bool:
    """Whether a method that a class of a library defines is code of the user's."""
    owner = next((each for each in mro_of(cls) if name in vars(each)), None)
    if owner is None or not is_library_class(owner):
        return False
    return not _is_of_package(name, method_of(cls, name))


def is_installed(method: Any) -> bool:
    """Whether a method is code of an installed package, or no function."""
    function = method.__func__ if type(method) in (classmethod, staticmethod) else method
    return type(function) is not FunctionType or is_installed_file(function.__code__.co_filename)


def are_installed(cls: type, names: Iterable[str]) -> bool:
    """Whether all methods of these names are code of installed packages, with no mock in place of one."""
    found = (method_of(cls, name) for name in names)
    return all(is_installed(each) and (type(each) in _METHODS or not callable(each)) for each in found)


_METHODS = (FunctionType, classmethod, staticmethod)


def is_as_published(cls: type) -> bool:
    """Whether the libraries' classes among the bases hold no code of the user's, and no mock."""
    return all(map(_is_as_published, filter(is_library_class, mro_of(cls))))


_published: dict[int, tuple[Seen, bool]] = {}


def _is_as_published(cls: type) -> bool:
    known = _published.get(id(cls))
    if known is not None and known[0].cls is cls and known[0].is_unchanged():
        return known[1]
    if len(_published) >= MOST_CLASSES:
        _published.clear()
    try:
        now = Seen(cls)
    except Barrier:  # lookups could run code
        return False
    _published[id(cls)] = now, all(map(_is_of_package, now.names, now.values))
    return _published[id(cls)][1]


def _is_of_package(name: str, value: Any) -> bool:
    """Whether an attribute of a library's class is data, or code of installed packages."""
    if name[:2] == "__":
        return True
    inner = without_replacements(value)
    while inner is not None:
        kind = type(inner)
        if kind is FunctionType and not _is_packaged(inner.__code__.co_filename):
            return False
        if kind.__module__ == "unittest.mock":
            return False
        if kind is property:
            return all(each is None or _is_of_package(name, each) for each in (inner.fget, inner.fset, inner.fdel))
        if kind.__name__ == "FunctionWrapper":  # of wrapt: spans of LlamaIndex, and what instruments libraries
            return _is_of_package(name, inner._self_wrapper) and _is_of_package(name, inner.__wrapped__)
        holds = getattr(inner, "__dict__", {}).get("__wrapped__") if kind is FunctionType else None
        inner = inner.__func__ if kind in (classmethod, staticmethod) else holds
    return True


def _is_packaged(filename: str) -> bool:
    return is_installed_file(filename) or (filename.startswith(STDLIB) and not filename.endswith("mock.py"))


def is_replaced_by_us(cls: type, name: str) -> bool:
    """Whether the method that stands in the class is our own replacement, with nothing on top."""
    return "__teola_original__" in getattr(vars(cls).get(name), "__dict__", {})


def is_shared(cls: type, name: str) -> bool:
    """Whether the calls of a method, which may be inherited, share early requests."""
    return "__teola_original__" in getattr(attribute_of(cls, name), "__dict__", {})


def method_of(cls: type, name: str) -> Any:
    """Return the attribute as it stands in the class, without our own replacements; None without such an attribute."""
    return without_replacements(attribute_of(cls, name))


def attribute_of(cls: type, name: str) -> Any:
    """Return the attribute as it stands in the class or the first base with the name; None without one."""
    return next((vars(each)[name] for each in mro_of(cls) if name in vars(each)), None)


def without_replacements(method: Any) -> Any:
    """Return the method beneath our own replacements. A user's function around a replacement stays."""
    while type(method) is FunctionType and "__teola_original__" in vars(method):
        original = vars(method)["__teola_original__"]
        wrapped = vars(method).get("__wrapped__")
        if wrapped is not original and wrapped is not getattr(original, "__func__", None):
            return method
        method = original
    return method
