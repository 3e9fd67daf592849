"""The graph of task primitives: three nouns (`Input`, `Primitive`, `Graph`) and a text form in valid Python.

    inputs(question, docs)
    chunks: [] = call(docs, fn='splitter') @ python
    vecs: [] = embedding(*chunks) @ embedder
    load = ingestion(*vecs, *chunks) @ chroma, writes(kb)
    kv = prefilling('One rewrite per line: ', question) @ llm
    rewrites: [] = decoding(kv, items='lines') @ llm
    q: [] = embedding(*rewrites) @ embedder
    hits: [] = searching(*q, top_k=16) @ chroma, reads(kb), after(load)
    outputs(hits)

A line is `name: depth = kind(arguments, settings) @ engine, attributes`. Positional arguments are data, keywords are
static settings. The annotation is the *depth* of the value: nothing for one value, `[]` for a list of items, `[[]]` for
items of items. The number of items is known only at run time.

`*x` maps over the items of `x`. With `m` the *map depth* of a primitive (the depth of the value, minus 1 if the
primitive itself makes a list of each input, see `yields`):

- a starred argument of depth m gives an item to each instance;
- a shallower argument is broadcast along the ancestry; a deeper argument is passed as the (nested) list below the
  ancestor, which makes the instance an aggregation scope (ALTO's nested ancestry, arXiv 2403.04311);
- an unstarred argument is passed whole.

*Data edges* are the references in the arguments. *Order edges* (`after`) wait for the whole primitive and exist only
for effects on a named resource (`reads`, `writes`). The resource `anything` stands for all resources: a user function
with unknown effects is `call(x, fn='f') @ pipeline, writes(anything)`; a primitive without declaration has no effect.
`when(c, value)` lets a primitive run only if `c` (no list) equals `value`. A primitive with a data edge from a skipped
primitive is skipped too, except `aggregate`, which takes the arguments which did run; an order edge from a skipped
primitive waits for nothing.

*Control edges* (`gated`) name primitives which may raise before a request to an outside engine: `gated(check)` lets a
primitive run only after the whole of `check` has ended well (or was skipped), since the pipeline would not reach the
primitive otherwise. A graph input is a gate too: a call without the input fails at the first read. Compare control
dependence in compilers. On engines of the process, early work is merely wasted, so requests to such engines carry no
gates.

Primitives stand in an order which defines every name before use, so no cycle can be written.
`tests/support/interpret.py` defines the meaning of a graph. The text form holds all of a graph but the origins. Source:
the p-graph of Teola/Ayo (arXiv 2407.00326, section 4 and Table 1), with lists sized at run time.
"""

from __future__ import annotations

import ast
import keyword
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from teola_plugin.errors import GraphError
from teola_plugin.syntax import parse as parse_syntax

KINDS = (
    "embedding", "ingestion", "searching", "reranking", "prefilling", "partial_prefilling", "full_prefilling",
    "decoding", "partial_decoding", "condition", "aggregate", "call", "tool", "chunking", "websearch",
)  # fmt: skip
PREFILLS = ("prefilling", "partial_prefilling", "full_prefilling")
DECODES = ("decoding", "partial_decoding")
INLINE_KINDS = ("prefilling", "full_prefilling", "call", "condition", "aggregate", "chunking")
"""Kinds which run without an engine: text is joined, a function of the pipeline is called."""
GRAPH_SETTINGS = ("fn", "items", "stage_items", "early_stop", "wanted", "objective", "ahead")
"""Settings for the scheduler; all other settings go to the engine unchanged.

`fn`: the function to call. `items`: the item grammar of a text. `wanted`: the number of leading items which make the
value (all if unset). `early_stop`: end the generation when the wanted items are complete. `stage_items`: items per
request. `objective`: `latency` or `throughput`, see passes/deduce_objectives.py. `ahead`: the value may be unused, see
passes/speculate_branches.py; errors count only if the value is used.
"""

PIPELINE = "pipeline"
"""The engine of primitives which only the framework's own run may compute: the run-ahead waits to be told the value."""

READER = "reader"
"""The engine of user functions which are read, never run. Where reading yields nothing, the run-ahead waits for the
value from the framework's own run. A function which reads `OUTSIDE` may itself call engines."""

OUTSIDE = "outside"
"""The resource read by requests which leave the process. An outside model sees the prompt and costs money, so the
request waits for a function which may be a guard (a moderation which raises, a budget)."""

STATE = "state"
"""The resource for the variables and objects of the user's program."""

ANYTHING = "anything"
"""The resource which stands for every resource."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A data edge: the value called `name`, whole or (`star`) item by item."""

    name: str
    star: bool = False


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant argument, such as a piece of a prompt."""

    value: Any


Arg = Ref | Literal


@dataclass(frozen=True, slots=True)
class When:
    """The primitive runs only if the value of `condition` equals `value`."""

    condition: str
    value: Any = True


@dataclass(frozen=True, slots=True)
class Input:
    """A value given by the caller, `depth` lists deep."""

    name: str
    depth: int = 0


@dataclass(frozen=True, slots=True)
class Primitive:
    """One call of an engine, or one call for each item.

    `origin` is the user's component, as `name (file:line)`.
    """

    name: str
    kind: str
    args: tuple[Arg, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    engine: str = ""
    depth: int = 0
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    when: When | None = None
    origin: str = field(default="", compare=False)
    gated: tuple[str, ...] = ()

    def setting(self, name: str, default: Any = None) -> Any:
        """Return the value of a static setting."""
        return next((value for key, value in self.settings if key == name), default)

    def with_settings(self, **changes: Any) -> Primitive:
        """Return a copy with settings added or replaced; `None` removes a setting."""
        merged = {**dict(self.settings), **changes}
        return replace(self, settings=tuple((k, v) for k, v in merged.items() if v is not None))

    @property
    def engine_settings(self) -> dict[str, Any]:
        """The settings passed to the engine."""
        return {k: v for k, v in self.settings if k not in GRAPH_SETTINGS}

    @property
    def refs(self) -> tuple[Ref, ...]:
        """The data edges, in argument order."""
        return tuple(a for a in self.args if isinstance(a, Ref))

    @property
    def is_batchable(self) -> bool:
        """Whether an input is starred, so items may share a batch."""
        return any(r.star for r in self.refs)

    @property
    def is_splittable(self) -> bool:
        """Whether the primitive is a decoding whose text has an item grammar."""
        return self.kind in DECODES and self.setting("items") is not None

    @property
    def dependencies(self) -> tuple[str, ...]:
        """Names which must exist before the primitive can end: data, condition, order and control edges, each once."""
        names = [r.name for r in self.refs] + ([self.when.condition] if self.when else [])
        return tuple(dict.fromkeys((*names, *self.after, *self.gated)))


@dataclass(frozen=True, slots=True)
class Graph:
    """Inputs, primitives in an order of definition before use, and the names of the answer.

    >>> print(parse("inputs(x); y = call(x, fn='f') @ python; outputs(y)"))
    inputs(x)
    y = call(x, fn='f') @ python
    outputs(y)
    """

    inputs: tuple[Input, ...] = ()
    primitives: tuple[Primitive, ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:  # the text form names lists last; their order means nothing else
        object.__setattr__(self, "inputs", tuple(sorted(self.inputs, key=lambda i: i.depth > 0)))

    def __str__(self) -> str:
        lines = [_print_inputs(self.inputs), *map(print_primitive, self.primitives)]
        return "\n".join([*lines, f"outputs({', '.join(self.outputs)})"])

    def __iter__(self) -> Iterator[Primitive]:
        return iter(self.primitives)

    def __getitem__(self, name: str) -> Primitive:
        for primitive in self.primitives:
            if primitive.name == name:
                return primitive
        raise KeyError(name)

    def depths(self) -> dict[str, int]:
        """The number of list levels of each value."""
        return {i.name: i.depth for i in self.inputs} | {p.name: p.depth for p in self.primitives}

    def consumers(self) -> dict[str, tuple[Primitive, ...]]:
        """For each name, the primitives with an edge of any sort from the name."""
        out: dict[str, list[Primitive]] = {name: [] for name in self.depths()}
        for primitive in self.primitives:
            for name in primitive.dependencies:
                out[name].append(primitive)
        return {name: tuple(users) for name, users in out.items()}

    def replacing(self, changes: Mapping[str, Iterable[Primitive]]) -> Graph:
        """Return a copy with each named primitive replaced, in place, by the given primitives."""
        primitives = tuple(q for p in self.primitives for q in changes.get(p.name, (p,)))
        return replace(self, primitives=primitives)


def star_depth(primitive: Primitive, depths: Mapping[str, int]) -> int:
    """Return the depth of the deepest starred argument, 0 without one."""
    return max((depths[r.name] for r in primitive.refs if r.star), default=0)


def yields(primitive: Primitive, depths: Mapping[str, int]) -> int:
    """Return 1 if the primitive makes a list of each single input, else 0.

    An item grammar and a chunking make a list; a call, tool, web search or aggregate does if deeper than its starred
    inputs.
    """
    if primitive.kind == "chunking" or primitive.is_splittable:
        return 1
    if primitive.kind in ("call", "tool", "websearch", "aggregate"):
        return max(0, primitive.depth - star_depth(primitive, depths))
    return 0


def map_depth(primitive: Primitive, depths: Mapping[str, int]) -> int:
    """Return the length of the ancestry tag which tells the instances of a primitive apart; 0: there is one instance.

    An ingestion takes its starred inputs item by item and has one value, `None`, once all items are in.
    """
    if primitive.kind == "ingestion":
        return star_depth(primitive, depths)
    return primitive.depth - yields(primitive, depths)


def conflicts(first: Primitive, second: Primitive) -> tuple[str, ...]:
    """Return the resources which make `second` wait for the whole of `first`; none if both commute.

    >>> graph = parse("load = ingestion('x') @ db, writes(kb); hit = searching('y') @ db, reads(kb)")
    >>> conflicts(graph["load"], graph["hit"]), conflicts(graph["hit"], graph["hit"])
    (('kb',), ())
    """
    if first.setting("ahead"):
        return ()  # later primitives wait for the primitive which passes the value on
    touched = (*second.reads, *second.writes)
    pairs = [(a, b) for a in first.writes for b in touched] + [(a, b) for a in first.reads for b in second.writes]
    shared = (b if a == ANYTHING else a for a, b in pairs if a == b or ANYTHING in (a, b))
    return tuple(dict.fromkeys(shared))


def validate(graph: Graph) -> Graph:
    """Return the graph itself, if the graph is well formed and the text form is complete.

    Raises: GraphError, naming the primitive and the fault.
    """
    depths = {i.name: i.depth for i in graph.inputs}
    for name in depths:
        _check_name(name, f"input {name!r}")
    if len(depths) != len(graph.inputs):
        raise GraphError(f"two inputs share a name: {', '.join(i.name for i in graph.inputs)}")
    if any(i.depth < 0 for i in graph.inputs):
        raise GraphError("an input has a negative depth")
    for p in graph.primitives:
        where = f"{p.name} = {p.kind}(...)" + (f" from {p.origin}" if p.origin else "")
        _check_words(p, where)
        _check_edges(p, depths, where)
        _check_depth(p, depths, where)
        depths[p.name] = p.depth
    missing = [name for name in graph.outputs if name not in depths]
    if missing:
        raise GraphError(f"outputs({', '.join(missing)}): no such value")
    return graph


def _check_words(p: Primitive, where: str) -> None:
    """Check that everything in the primitive can be written as text and read back."""
    if p.kind not in KINDS:
        raise GraphError(f"{where}: unknown kind {p.kind!r}; the kinds are {', '.join(KINDS)}")
    words = [p.name, *(key for key, _ in p.settings), *p.reads, *p.writes, *([p.engine] if p.engine else [])]
    for word in words:
        _check_name(word, where)
    if len(dict(p.settings)) != len(p.settings):
        raise GraphError(f"{where}: a setting is given twice")
    values = [a.value for a in p.args if isinstance(a, Literal)] + [value for _, value in p.settings]
    for value in [*values, p.when.value if p.when else None]:
        if not _is_literal(value):
            raise GraphError(f"{where}: {value!r} cannot be written as a literal; let a call with fn= make it")


def _check_edges(p: Primitive, depths: Mapping[str, int], where: str) -> None:
    if p.name in depths:
        raise GraphError(f"{where}: the name {p.name!r} is defined twice")
    for name in p.dependencies:
        if name not in depths:
            raise GraphError(f"{where}: {name!r} is used before it is defined")
    for ref in p.refs:
        if ref.star and depths[ref.name] == 0:
            raise GraphError(f"{where}: *{ref.name} maps over {ref.name}, which is no list")
    if p.when and depths[p.when.condition]:
        raise GraphError(f"{where}: when({p.when.condition}) is decided by a list")
    if p.kind in ("call", "chunking", "condition") and p.setting("fn") is None:
        raise GraphError(f"{where}: a {p.kind} needs fn=")
    if p.kind in DECODES and len(p.refs) != 1:
        raise GraphError(f"{where}: a decoding takes exactly one prefill")


def _check_depth(p: Primitive, depths: Mapping[str, int], where: str) -> None:
    mapped, deepest = map_depth(p, depths), star_depth(p, depths)
    if p.kind == "ingestion" and p.depth:
        raise GraphError(f"{where}: an ingestion has one value, not a list")
    if yields(p, depths) > 1 or mapped < 0 or mapped > deepest or (deepest and mapped == 0):
        raise GraphError(f"{where}: depth {p.depth} does not fit its starred inputs of depth {deepest}")


def _check_name(name: str, where: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name) or unicodedata.normalize("NFKC", name) != name:
        raise GraphError(f"{where}: {name!r} is not an identifier")


def _is_literal(value: Any) -> bool:
    """Whether Python reads back the same value, of the same type, from its `repr`."""
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    if type(value) in (list, tuple, set):
        return all(map(_is_literal, value))
    if type(value) is dict:
        return all(map(_is_literal, [*value, *value.values()]))
    return value is None or value is ... or type(value) in (bool, int, str, bytes)


# --- text form ----------------------------------------------------------------------------------------------


def print_primitive(p: Primitive) -> str:
    """Return one line of the text form."""
    args = [("*" if a.star else "") + a.name if isinstance(a, Ref) else repr(a.value) for a in p.args]
    args += [f"{key}={value!r}" for key, value in p.settings]
    line = f"{p.name}{_annotation(p.depth)} = {p.kind}({', '.join(args)})"
    line += f" @ {p.engine}" if p.engine else ""
    for attribute in ("reads", "writes", "after", "gated"):
        if names := getattr(p, attribute):
            line += f", {attribute}({', '.join(names)})"
    if p.when:
        line += f", when({p.when.condition}" + ("" if p.when.value is True else f", {p.when.value!r}") + ")"
    return line


def _print_inputs(inputs: tuple[Input, ...]) -> str:
    shown = [i.name if not i.depth else f"{i.name}={_brackets(i.depth)}" for i in inputs]
    return f"inputs({', '.join(shown)})"


def _brackets(depth: int) -> str:
    return "[" * depth + "]" * depth


def _annotation(depth: int) -> str:
    return f": {_brackets(depth)}" if depth else ""


def parse(text: str) -> Graph:
    """Return the validated graph of a text; `str(parse(text))` parses to the same graph.

    Raises: GraphError with the line number of an unreadable line.
    """
    try:
        module = parse_syntax(text)
    except (SyntaxError, ValueError) as e:  # a null byte raises either, without a line
        raise GraphError(f"line {getattr(e, 'lineno', None) or 1}: {getattr(e, 'msg', e)}") from e
    inputs: tuple[Input, ...] = ()
    primitives: list[Primitive] = []
    outputs: tuple[str, ...] = ()
    for statement in module.body:
        match statement:
            case ast.Expr(value=ast.Call(func=ast.Name(id="inputs"), args=args, keywords=deep)) if not inputs:
                inputs = tuple(Input(_name(a)) for a in args)
                inputs += tuple(Input(k.arg or "", _depth(k.value)) for k in deep)
            case ast.Expr(value=ast.Call(func=ast.Name(id="outputs"), args=args, keywords=[])) if not outputs:
                outputs = tuple(_name(a) for a in args)
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                primitives.append(_primitive(name, 0, value))
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                primitives.append(_primitive(name, _depth(annotation), value))
            case _:
                raise _unreadable(statement)
    return validate(Graph(inputs, tuple(primitives), outputs))


def _primitive(name: str, depth: int, value: ast.expr) -> Primitive:
    body, attributes = (value.elts[0], value.elts[1:]) if isinstance(value, ast.Tuple) else (value, [])
    engine = ""
    if isinstance(body, ast.BinOp) and isinstance(body.op, ast.MatMult):
        engine, body = _name(body.right), body.left
    if not isinstance(body, ast.Call):
        raise _unreadable(body)
    fields: dict[str, Any] = {}
    for attribute in attributes:
        match attribute:
            case ast.Call(func=ast.Name(id="when"), args=[condition, *rest]) if len(rest) < 2:
                fields["when"] = When(_name(condition), *map(_literal, rest))
            case ast.Call(func=ast.Name(id="reads" | "writes" | "after" | "gated" as which), args=names):
                fields[which] = tuple(_name(n) for n in names)
            case _:
                raise _unreadable(attribute)
    settings = tuple((k.arg or "", _literal(k.value)) for k in body.keywords)
    return Primitive(name, _name(body.func), tuple(map(_arg, body.args)), settings, engine, depth, **fields)


def _arg(node: ast.expr) -> Arg:
    match node:
        case ast.Starred(value=ast.Name(id=name)):
            return Ref(name, star=True)
        case ast.Name(id=name):
            return Ref(name)
        case _:
            return Literal(_literal(node))


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError) as e:  # a TypeError for {[]: 1}
        raise _unreadable(node) from e


def _depth(node: ast.expr) -> int:
    match node:
        case ast.List(elts=[]):
            return 1
        case ast.List(elts=[inner]):
            return 1 + _depth(inner)
        case _:
            raise _unreadable(node)


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    raise _unreadable(node)


def _unreadable(node: ast.stmt | ast.expr) -> GraphError:
    return GraphError(f"line {node.lineno}: cannot read {ast.unparse(node)!r} as part of a graph")
