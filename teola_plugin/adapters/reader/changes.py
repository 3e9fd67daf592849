"""Changes of what a program did not make: attributes of objects, names outside of functions, containers.

The framework's run makes the same change, once, and maybe at this moment in another thread. So the value before the
change is unknown to a whole reading: the first change of something starts the evaluation anew (`values.Renewed`). What
the program stores is known up to its next request, during which other calls may store there, unless functions that run
beside each other store there.

    self.calls += 1             an unknown number
    self.topic = topic          known
    HISTORY.append(reply)       a list of unknown content
"""

from __future__ import annotations

import types
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters.reader import amounts, facts, foreign
from teola_plugin.adapters.reader.heap import DICTS
from teola_plugin.adapters.reader.values import CHANGED, Unknown, is_installed_file


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a program stores an outside value. `owner`: an object that keeps the place alive.

    `is_shared`: functions that run beside each other change the value, so no function knows the value.
    """

    owner: Any
    is_shared: bool = False


Changed = dict[Hashable, Place]
"""What a program changes, by a key for each place."""

CONTAINERS = (list, dict, set, deque, defaultdict, Counter, OrderedDict)
"""Classes of containers whose content may come to be unknown."""

_SHRINKING = frozenset({"pop", "popitem", "clear"})


@dataclass(slots=True)
class Changes:
    """The changes of one evaluation. `changed`: what all evaluations have changed so far; None forbids changes.

    `number`: how many changes this evaluation has made. `what`: the latest. `is_needed`: a decision or a request needed
    a value from before a change. `cells`: the stored values, one dict for each key, which has the item "value" once a
    value is stored. `opened`: containers of unknown content, by their ids; `shrunk`: ids of those that may have lost
    keys; `kinds`: the kinds of the items that were stored in each.
    """

    changed: Changed | None = None
    number: int = 0
    what: str = ""
    is_needed: bool = False
    cells: dict[Hashable, dict[str, Any]] = field(default_factory=dict)
    opened: dict[int, Any] = field(default_factory=dict)
    shrunk: set[int] = field(default_factory=set)
    kinds: dict[int, set[Any]] = field(default_factory=dict)

    def holds(self, key: Hashable) -> bool:
        """Whether the value at this key is changed."""
        return bool(self.changed) and key in self.changed  # type: ignore[operator]

    def is_shared(self, key: Hashable) -> bool:
        """See `Place`."""
        return self.holds(key) and self.changed[key].is_shared  # type: ignore[index]

    @property
    def places(self) -> frozenset[Hashable]:
        """The containers, and the dicts of attributes or globals, in which something is changed, by their ids."""
        return frozenset(key[0] if type(key) is tuple else key for key in self.changed or ())

    def cell(self, key: Hashable) -> dict[str, Any]:
        """Return the stored value at a key; see `cells`."""
        return self.cells.setdefault(key, {})

    def stand(self, held: Any) -> bool:
        """Whether the object is one of `cells` or `opened`."""
        return id(held) in self.opened or any(cell is held for cell in self.cells.values())

    def changes(self, name: str, held: Any, stored: tuple[Any, ...] = ()) -> None:
        """Note a call of a method that changes a container; `stored`: the items given to the method."""
        if id(held) in self.opened:
            if name in _SHRINKING:
                self.shrunk.add(id(held))
            kinds = self.kinds.setdefault(id(held), set())
            kinds.update(["other"] if name == "update" else map(_kind_of, stored))

    def item(self, held: Any, at: Any) -> Any:
        """Return an example of the item at a key of a changed dict; MISSING if there may be no such item."""
        if id(held) not in self.opened or type(held) not in DICTS or type(at) not in (str, int):
            return foreign.MISSING
        found = held.get(at, foreign.MISSING)
        if type(held) is Counter:
            found = 0
        elif type(held) is defaultdict and held.default_factory is not None:
            made = held.default_factory()
            found = found if type(found) is type(made) else made
        elif id(held) in self.shrunk:
            return foreign.MISSING
        return found if self.kinds.get(id(held), set()) <= {_kind_of(found)} else foreign.MISSING


def like(value: Any) -> Any:
    """Return an unknown value of the kind of an example; an empty container for a container."""
    kind = type(value)
    if kind is defaultdict:
        return defaultdict(value.default_factory)
    return kind() if kind in CONTAINERS else Unknown(_kind_of(value), CHANGED)


def _kind_of(value: Any) -> Any:
    """Return the kind of a value that is changed: a whole number may become a float, and larger."""
    if type(value) in CONTAINERS:
        return type(value)
    holds = amounts.holds_of(value)
    return "number" if holds != "bool" and amounts.parts_of(holds) is not None else holds


def is_of_program(owner: Any, name: str) -> bool:
    """Whether only code of the user's mentions the attribute of an object, class, module or function."""
    if type(owner) is types.ModuleType or type(owner) is types.FunctionType:
        return True
    cls = owner if foreign.is_class(owner) else type(owner)
    kind = facts.facts_of(cls).kind
    is_mentioned = kind != "object" and any(name in _mentioned(each) for each in foreign.mro_of(cls))
    return kind in ("object", "component") and not is_mentioned


def _mentioned(cls: type) -> frozenset[str]:
    """Return the names of a class, if the class is of an installed package, and the names in such functions."""
    seen = foreign.seen(cls)
    known = _names.get(id(cls))
    if known is None or known[0] is not seen:
        if len(_names) >= foreign.MOST_CLASSES:
            _names.clear()
        codes = [code for each in seen.values for code in _codes_of(each) if is_installed_file(code.co_filename)]
        found = set(seen.names if codes else ())
        while codes:
            code = codes.pop()
            found.update(code.co_names)
            codes += [const for const in code.co_consts if type(const) is types.CodeType]
        known = _names[id(cls)] = seen, frozenset(found)
    return known[1]


_names: dict[int, tuple[foreign.Seen, frozenset[str]]] = {}


def _codes_of(value: Any) -> list[types.CodeType]:
    """Return the code of a function, method or property in a class."""
    kind = type(value)
    if kind is property:
        return [code for each in (value.fget, value.fset) for code in _codes_of(each)]
    function = value.__func__ if kind is staticmethod or kind is classmethod else value
    return [function.__code__] if type(function) is types.FunctionType else []
