"""Exchange between the reader's values and objects for a framework's own code.

Stock code (a template, a parser, a helper) computes on copies made here, and results become values of the reader again:

    exchange = Exchange(run)
    result = exchange.back(template.format_prompt(**exchange.out(values)))

An id that a framework makes up at random in each run is unknown. Stock code that only carries ids gets a mark in place
of the id, and any text with the mark in a result becomes an unknown value.
"""

from __future__ import annotations

import itertools
from typing import Any

from teola_plugin.adapters.reader import records
from teola_plugin.adapters.reader.dataframes import is_scalar
from teola_plugin.adapters.reader.facts import MODEL_SLOTS
from teola_plugin.adapters.reader.foreign import ATOMS, MISSING
from teola_plugin.adapters.reader.heap import SETS, sources_of
from teola_plugin.adapters.reader.made_classes import is_made_by_reader
from teola_plugin.adapters.reader.pydantic_schemas import made_up_fields
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.table import require_order
from teola_plugin.adapters.reader.values import Barrier, Opaque, Undecided, Unknown, is_random_id, isinstance_of, shown

_numbers = itertools.count()

MARK = "\ue002"
"""The beginning of the mark of an unknown id."""


class Exchange:
    """The values of one use of stock code. `has_made_classes`: objects of classes that the reader makes went out."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._out: dict[int, tuple[Any, Any]] = {}
        self._given: dict[int, tuple[Any, Any]] = {}
        self._back: dict[int, tuple[Any, Any]] = {}
        self._marks: dict[str, Unknown] = {}
        self.has_made_classes = False
        self._names = set[int]()  # which fields of a model were set: their order does not show

    # --- out -------------------------------------------------------------------------------------------------------

    def out(self, value: Any) -> Any:
        """Return a copy for stock code. Raises: Undecided if a part is unknown, Barrier for foreign objects."""
        kind = type(value)
        if kind in ATOMS:
            return value
        if is_random_id(value):
            mark = f"{MARK}{next(_numbers)}\ue003"
            self._marks[mark] = value
            return mark
        if kind is Unknown or self._run.is_tainted(value):
            raise Undecided
        if is_scalar(value):
            return value.content
        if isinstance_of(value, Opaque):
            raise Barrier(f"it hands {shown(value)} to a component")
        known = self._out.get(id(value))
        if known is not None:
            return known[1]
        self._run.tick()
        if kind in SETS and len(value) > 1 and id(value) not in self._names:  # a copy may be in another order
            require_order(self._run, value)
            return self._given.setdefault(id(value), (value, value))[0]
        if (names := records.model_slot(value, MODEL_SLOTS[0])) is not MISSING:
            self._names.add(id(names))

        def keep(copy: Any) -> Any:
            self._out[id(value)] = value, copy
            self._given[id(copy)] = copy, value
            return copy

        made = records.copy_of(value, self.out, self.out, keep)
        if made is MISSING:
            raise Barrier(f"it hands {shown(value)} to a component")
        if is_made_by_reader(kind):
            self.has_made_classes = True
        return made

    # --- back ------------------------------------------------------------------------------------------------------

    def back(self, value: Any) -> Any:
        """Return the reader's own value for a result of stock code."""
        kind = type(value)
        if kind is str and self._marks and MARK in value:
            return self._marked(value)
        if kind in ATOMS:
            return value
        known = self._given.get(id(value)) or self._back.get(id(value))
        if known is not None:
            return known[1]
        self._run.tick()

        def keep(copy: Any) -> Any:
            self._back[id(value)] = value, copy
            return copy

        made = records.copy_of(value, self.back, self._key, keep)
        if made is MISSING:
            return keep(Opaque(value))
        for name in made_up_fields(value):
            object.__getattribute__(made, "__dict__")[name] = self._run.unknown(is_safe=True)
        return made

    def _marked(self, text: str) -> Unknown:
        if text in self._marks:
            return self._marks[text]
        sources = frozenset().union(*(sources_of(held) for mark, held in self._marks.items() if mark in text))
        return Unknown("text", sources)

    def _key(self, key: Any) -> Any:
        back = self.back(key)
        if type(back) is Unknown:
            raise Undecided
        return back
