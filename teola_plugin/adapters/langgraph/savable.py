"""Whether LangGraph's serializer takes a state: with durability "sync" LangGraph raises before the next nodes run."""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from collections import deque
from typing import Any

from teola_plugin.adapters.reader import foreign, records
from teola_plugin.adapters.reader.run import Run
from teola_plugin.adapters.reader.values import Unknown

_SAVED = (
    type(None), bool, float, str, bytes, uuid.UUID, decimal.Decimal, datetime.datetime, datetime.date, datetime.time,
    datetime.timedelta, datetime.timezone, re.Pattern,
)  # fmt: skip


def can_be_saved(run: Run, value: Any) -> bool:
    """Whether the serializer certainly takes a value of the reader's: data, and numbers of 64 bits."""
    todo, seen = [value], set[int]()
    while todo:
        value = todo.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        run.tick()
        if type(value) is int:
            if not -(2**63) <= value < 2**64:
                return False
        elif foreign.is_kind_of(value, dict):
            todo += [*value, *value.values()]
        elif type(value) in (list, tuple, set, frozenset, deque):
            todo += value
        elif (fields := records.fields_of(value)) is not None:
            todo += fields.values()
        elif not (type(value) in _SAVED or type(value) is Unknown or records.is_atom_enum(value)):
            return False
    return True
