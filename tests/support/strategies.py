"""Random graphs as adapters write them, with an order edge for all that effects keep in order, and some more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from teola_plugin.graph import (
    ANYTHING,
    PIPELINE,
    Arg,
    Graph,
    Input,
    Literal,
    Primitive,
    Ref,
    When,
    conflicts,
    validate,
)

DATABASES = ("db", "kb")
LITERALS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
LITERALS |= st.recursive(
    st.binary() | LITERALS,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@dataclass
class _Builder:
    """`lists[name]`: which list each level of a value is; those with the same one have as many items."""

    draw: Callable[[st.SearchStrategy], object]
    primitives: list[Primitive] = field(default_factory=list)
    lists: dict[str, tuple[str, ...]] = field(default_factory=dict)
    conditions: list[str] = field(default_factory=list)

    def pick(self, options: list | tuple) -> object:
        return self.draw(st.sampled_from(options))

    def flip(self) -> bool:
        return self.draw(st.booleans())

    def add(self, kind: str, args: list[Arg], engine: str = "", mapped: tuple[str, ...] = (), **more: object) -> str:
        name = f"v{len(self.primitives)}"
        made_list = bool(more.pop("makes_list", False))
        settings = tuple(dict(more.pop("settings", {})).items())
        when = more.pop("when", None)
        if when is None and self.conditions and self.draw(st.integers(0, 3)) == 0:
            when = When(self.pick(self.conditions), self.flip())
        depth = 0 if kind == "ingestion" else len(mapped) + made_list
        p = Primitive(name, kind, tuple(args), settings, engine, depth, when=when, **more)
        self.primitives.append(self.ordered(p))
        self.lists[name] = () if kind == "ingestion" else (*mapped, *([name] if made_list else []))
        return name

    def ordered(self, p: Primitive) -> Primitive:
        """With an order edge from all that it conflicts with, at times by way of one that touches nothing."""
        before = [a.name for a in self.primitives if conflicts(a, p)]
        if before and self.flip() and not p.when:
            middle = Primitive(f"{p.name}_mid", "call", (Literal("x"),), (("fn", "join"),), after=tuple(before))
            self.primitives.append(middle)
            self.lists[middle.name] = ()
            before = [middle.name]
        others = [a.name for a in self.primitives if a.name not in before]
        extra = self.draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others else []
        gates = self.draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others and self.flip() else []
        return replace(p, after=tuple(before + extra), gated=tuple(gates))

    def whole(self) -> Ref:
        return Ref(self.pick(sorted(self.lists)))

    def text(self) -> Ref:
        """A value that is one text, for prompts."""
        others = {p.name for p in self.primitives if p.kind in ("condition", "ingestion", "aggregate")}
        return Ref(self.pick(sorted(name for name, lists in self.lists.items() if not lists and name not in others)))

    def mapped_args(self, flat: bool = False) -> tuple[list[Arg], tuple[str, ...]]:
        """Starred arguments that fit each other, and the lists they map over; `flat`: single items only."""
        starrable = sorted(name for name, lists in self.lists.items() if lists)
        driver = self.pick(starrable)
        lists = self.lists[driver]
        mapped = lists if flat else lists[: self.draw(st.integers(1, len(lists)))]
        fitting = [n for n in starrable if _fits(self.lists[n], lists, len(lists) if flat else 99)]
        args: list[Arg] = [Ref(driver, star=True)]
        if self.flip():
            args.insert(self.draw(st.integers(0, 1)), Ref(self.pick(fitting), star=True))
        if self.flip():
            args.insert(0, self.text())
        return args, mapped


def _fits(lists: tuple[str, ...], driver: tuple[str, ...], deepest: int) -> bool:
    shared = min(len(lists), len(driver))
    return lists[:shared] == driver[:shared] and len(lists) <= deepest


def _map_on_engine(b: _Builder) -> None:
    args, mapped = b.mapped_args() if b.flip() else ([b.whole()], ())
    b.add(b.pick(("embedding", "reranking", "websearch")), args, b.pick(("encoder", "llm")), mapped)


def _search(b: _Builder) -> None:
    args, mapped = b.mapped_args() if b.flip() else ([b.whole()], ())
    engine = b.pick(DATABASES)
    b.add("searching", args, engine, mapped, reads=(engine,))


def _write(b: _Builder) -> None:
    args, mapped = b.mapped_args() if b.flip() else ([b.whole()], ())
    kind, engine, name = b.pick(("ingestion", "tool")), b.pick(DATABASES), f"w{len(b.primitives)}"
    if kind == "ingestion" and mapped:  # its instances are the items of the deepest argument
        args, mapped = b.mapped_args(flat=True)
    b.add(kind, args, engine, mapped, writes=(engine,), settings={"by": name})


def _impure(b: _Builder) -> None:
    b.add("call", [b.whole()], PIPELINE, settings={"fn": f"touch{len(b.primitives)}"}, writes=(ANYTHING,))


def _call(b: _Builder) -> None:
    kind = b.pick(("call", "chunking"))
    makes_list = kind == "chunking" or b.flip()
    # The depth of a call that joins lists *and* makes one would read as that of a call which maps all the way.
    args, mapped = b.mapped_args(flat=kind == "call" and makes_list) if b.flip() else ([b.whole()], ())
    fn = "list_all" if makes_list else "join"
    b.add(kind, args, "python", mapped, settings={"fn": fn}, makes_list=makes_list)


def _condition(b: _Builder) -> None:
    b.conditions.append(b.add("condition", [b.whole()], settings={"fn": "is_even"}))


def _aggregate(b: _Builder) -> None:
    first = b.whole()
    same_depth = sorted(n for n, lists in b.lists.items() if len(lists) == len(b.lists[first.name]))
    if len(b.lists[first.name]) <= 1:
        b.add("aggregate", [first, Ref(b.pick(same_depth))], makes_list=bool(b.lists[first.name]))


def _decode(b: _Builder) -> None:
    pieces: list[Arg] = [Literal("Say: ")] if b.flip() else []
    args, mapped = b.mapped_args(flat=True) if b.flip() else ([b.text()], ())
    pieces += args + ([Literal(" end")] if b.flip() else []) + ([b.text()] if b.flip() else [])
    kv = b.add("prefilling", pieces, "llm", mapped)
    settings: dict[str, object] = {"max_tokens": 8}
    splits = b.flip()
    if splits:
        settings["items"] = "lines"
        if b.flip():
            settings["wanted"] = b.draw(st.integers(1, 3))
    b.add("decoding", [Ref(kv, star=bool(mapped))], "llm", mapped, settings=settings, makes_list=splits)


def _again(b: _Builder) -> None:
    """Ask for the same as before, perhaps at the same time."""
    if not b.primitives:
        return
    readers = [p for p in b.primitives if p.reads]
    p = b.pick(readers if readers and b.flip() else b.primitives)
    again = replace(p, name=f"v{len(b.primitives)}")
    since = b.primitives[b.primitives.index(p) :]
    is_free = not any(conflicts(other, again) for other in since)
    again = again if is_free and b.flip() else b.ordered(again)
    name, lists = again.name, b.lists[p.name]
    b.primitives.append(again)
    b.lists[name] = (*lists[:-1], name) if lists and lists[-1] == p.name else lists
    if p.kind == "condition":
        b.conditions.append(name)


def _decode_alike(b: _Builder) -> None:
    """Go on otherwise from how a prompt before begins."""
    prompts = [p for p in b.primitives if p.kind == "prefilling"]
    if not prompts:
        return
    p = b.pick(prompts)
    begins = p.args[: b.draw(st.integers(1, len(p.args)))]
    starred = [b.lists[a.name] for a in begins if isinstance(a, Ref) and a.star]
    mapped = max(starred, key=len, default=())
    when = p.when if b.flip() else None
    kv = b.add("prefilling", [*begins, Literal(" Otherwise: "), b.text()], "llm", mapped, when=when)
    b.add("decoding", [Ref(kv, star=bool(mapped))], "llm", mapped, settings={"temperature": 0})


STEPS = (
    _map_on_engine,
    _search,
    _search,
    _write,
    _write,
    _impure,
    _call,
    _condition,
    _aggregate,
    _decode,
    _decode,
    _decode_alike,
    _again,
    _again,
)


ASKING_TWICE = (_search, _write, _condition, _again, _again, _again)


@st.composite
def graphs(draw: Callable, max_steps: int = 9, steps: tuple = STEPS, shows_all: bool = False) -> Graph:
    """A valid graph over the fakes of world.py. `shows_all`: each value is an output."""
    b = _Builder(draw)
    inputs = (Input("question"), Input("docs", 1), Input("books", 2))
    b.lists = {"question": (), "docs": ("docs",), "books": ("books", "pages")}
    for step in draw(st.lists(st.sampled_from(steps), min_size=1, max_size=max_steps)):
        step(b)
    names = sorted(b.lists)
    outputs = names if shows_all else draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
    return validate(Graph(inputs, tuple(b.primitives), tuple(outputs)))


def renamed(graph: Graph, name_of: Callable[[str, int], str]) -> Graph:
    """The same graph with each name replaced by `name_of(name, its place)`."""
    new = {name: name_of(name, at) for at, name in enumerate(graph.depths())}

    def rename(p: Primitive) -> Primitive:
        args = tuple(Ref(new[a.name], a.star) if isinstance(a, Ref) else a for a in p.args)
        when = When(new[p.when.condition], p.when.value) if p.when else None
        after, gated = (tuple(new[name] for name in names) for names in (p.after, p.gated))
        return replace(p, name=new[p.name], args=args, after=after, when=when, gated=gated)

    return Graph(
        tuple(Input(new[i.name], i.depth) for i in graph.inputs),
        tuple(map(rename, graph.primitives)),
        tuple(new[o] for o in graph.outputs),
    )
