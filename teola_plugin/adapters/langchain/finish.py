"""The last look at a drafted graph: order edges, item grammars, and what nobody needs.

A primitive that only the framework's run may compute, and that may change something, is a *barrier* for the
searches and the calls of hosted models behind it in program order: they get an order edge `after(barrier)`. So is a
function that is read, until it has been read to its end, and for the functions behind it that are read too. Whatever
may raise is a *gate* for the requests behind it that leave this process: they get a control edge `gated(gate)`.
Branches that the framework runs side by side have no order among them, but that a function which changes something in
place is a barrier for those after it.

A declared write (`@writes("kb")`) to the name of a collection in this pipeline concerns that collection; under any
other name the user may mean any collection, so it concerns all of them, but no hosted model. An undeclared effect
concerns everything. A barrier that nothing waits for, with a value that nobody uses, is left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from teola_plugin.adapters.langchain.values import Constant, Prompt, Record, Root, Symbol, Value
from teola_plugin.graph import DECODES, OUTSIDE, PIPELINE, STATE, Primitive, Ref
from teola_plugin.plan import is_request

Primitives = dict[str, Primitive]
"""By name, in program order; each function here changes it in place."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """A primitive, and the resources it may write; None: anything. `is_read`: it does not, once it has been read.

    `is_seen_beside`: it does change something in place that branches beside it may look at.
    """

    name: str
    writes: tuple[str, ...] | None
    is_read: bool = False
    is_seen_beside: bool = False

    def may_write(self, resource: str, stores: set[str]) -> bool:
        """`stores`: the resources that are collections; other names are the user's own."""
        if self.writes is None or resource in self.writes:
            return True
        if resource in (OUTSIDE, STATE) or self.writes == (STATE,):
            return False
        return any((w in stores) != (resource in stores) for w in self.writes)


def names_in(result: Symbol) -> Iterator[str]:
    """The values of the graph that a result is made of."""
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
    """Give each read an order edge from the barriers `before` it that may write what it reads."""
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
    """Let a decoding hand out the items itself, where nobody else wants its text. The outputs, renamed accordingly.

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
    """Leave out functions and unknown components whose value nobody uses. Declared writes stay, and so do gates."""
    needed = set(outputs)
    for p in reversed(list(primitives.values())):
        is_work = p.kind != "call" or is_request(p) or (p.engine == PIPELINE and bool(p.writes))
        if p.name in needed or is_work:
            needed.update(p.dependencies)
        else:
            del primitives[p.name]
