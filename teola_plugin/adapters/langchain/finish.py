"""The last steps on a drafted graph: order edges, item grammars, and removal of unused values.

A primitive computed only by the framework's run, with possible effects, is a *barrier* for the later searches and calls
of hosted models in program order, which get an order edge `after(barrier)`. A function being read is also a barrier,
until read to its end, for later functions as well. A step that may raise is a *gate* for the later requests to the
outside of this process, which get a control edge `gated(gate)`. Branches run side by side by the framework are
unordered. Only a function with in-place changes is a barrier for later branches.

A declared write (`@writes("kb")`) to the name of a collection in this pipeline concerns the collection. Under a foreign
name the user may mean any collection, so the write concerns all collections, but no hosted model. An undeclared effect
concerns everything. A barrier without waiting primitives and with an unused value is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from teola_plugin.adapters.langchain.values import Constant, Prompt, Record, Root, Symbol, Value
from teola_plugin.graph import DECODES, OUTSIDE, PIPELINE, STATE, Primitive, Ref
from teola_plugin.plan import is_request

Primitives = dict[str, Primitive]
"""Primitives by name, in program order; each function here changes the dict in place."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A primitive, and the resources it may write; None: anything. `is_read`: no write remains, once fully read.

    `is_seen_beside`: in-place changes remain visible to branches beside the primitive.
    """

    name: str
    writes: tuple[str, ...] | None
    is_read: bool = False
    is_seen_beside: bool = False

    def may_write(self, resource: str, stores: set[str]) -> bool:
        """Whether the barrier may write a resource. `stores`: the collections' resources, not the user's names."""
        if self.writes is None or resource in self.writes:
            return True
        if resource in (OUTSIDE, STATE) or self.writes == (STATE,):
            return False
        return any((w in stores) != (resource in stores) for w in self.writes)


def names_in(result: Symbol) -> Iterator[str]:
    """Yield the names of the graph values that a result is made of."""
    match result:
        case Value(name):
            yield name
        case Record(fields, rest):
            for field in fields.values():
                yield from names_in(field)
            if rest is not None:
                yield from names_in(rest)
        case Prompt(_, variables):
            for variable in variables.values():
                yield from names_in(variable)
        case Root() | Constant():
            pass


def order_reads(primitives: Primitives, before: Mapping[str, tuple[Barrier, ...]], stores: set[str]) -> None:
    """Give each read an order edge from the barriers `before` the read with possible writes to its resources."""
    for name, barriers in before.items():
        reader = primitives[name]
        for barrier in barriers:
            touched = tuple(r for r in reader.reads if barrier.may_write(r, stores))
            if touched:
                writer = primitives[barrier.name]
                writes = tuple(dict.fromkeys((*writer.writes, *touched)))
                primitives[barrier.name] = replace(writer, writes=writes)
                primitives[name] = replace(primitives[name], after=(*primitives[name].after, barrier.name))


def merge_lists(primitives: Primitives, list_calls: Mapping[str, str], outputs: tuple[str, ...]) -> tuple[str, ...]:
    """Let a decoding emit the items directly, where the text has no further use. Returns the renamed outputs.

    answer = decoding(kv)                                    answer: [] = decoding(kv, items='lines')
    answer_items: [] = call(answer, fn='lines')     ->
    """
    users = Counter([*outputs, *(d for p in primitives.values() for d in p.dependencies)])
    renamed: dict[str, str] = {}
    for name, grammar in list_calls.items():
        call = primitives[name]
        decoding = primitives.get(call.refs[0].name)
        if decoding and decoding.kind in DECODES and users[decoding.name] == 1 and decoding.depth + 1 == call.depth:
            settings = (("items", grammar), *decoding.settings)
            primitives[decoding.name] = replace(decoding, settings=settings, depth=call.depth)
            del primitives[name]
            renamed[name] = decoding.name
    for name, p in primitives.items():
        args = tuple(Ref(renamed.get(a.name, a.name), a.star) if isinstance(a, Ref) else a for a in p.args)
        primitives[name] = replace(p, args=args)
    return tuple(renamed.get(name, name) for name in outputs)


def drop_unused(primitives: Primitives, outputs: tuple[str, ...]) -> None:
    """Remove functions and unknown components with unused values. Declared writes and gates stay."""
    needed = set(outputs)
    for p in reversed(list(primitives.values())):
        is_work = p.kind != "call" or is_request(p) or (p.engine == PIPELINE and bool(p.writes))
        if p.name in needed or is_work:
            needed.update(p.dependencies)
        else:
            del primitives[p.name]
