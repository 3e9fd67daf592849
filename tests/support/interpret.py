"""What a graph means: the reference interpreter.

One primitive after the other, in the order in which they are written, one instance after the other in
ancestry order. It is slow and obvious; passes and schedulers are right if they agree with it, in outputs and
in what is left behind in the engines.

    interpret(graph, {"question": "who?"}, engines={"llm": answer}, functions={"f": str.upper})

- With `fn=`, an instance is `functions[fn](*arguments)`; where that is `Rounds`, their graph is interpreted as often as
  they say.
- An `aggregate` without `fn=` is its first argument that was not skipped.
- A prefill is the concatenation of its pieces; one single argument that is no text passes through as it is.
- All else is one call of its engine, `engines[name](op, payload, settings)`. `op` is the kind (`decoding` for
  both decodings); `payload` is the argument, or the tuple of the arguments unless there is exactly one.
  `@ pipeline` is no exception: the engine called `pipeline` plays the framework.
- An item grammar turns the text into its items, of which the first `wanted` are the value.
- An ingestion hands over its items one by one and is worth `None`.
- What runs `ahead` of a condition fails for whoever takes its value, and for nobody if nobody does.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from teola_plugin.errors import GraphError
from teola_plugin.graph import (
    DECODES,
    PREFILLS,
    Arg,
    Graph,
    Literal,
    Primitive,
    map_depth,
    validate,
    yields,
)
from teola_plugin.items import parse_items
from teola_plugin.rounds import Rounds

EngineFunction = Callable[[str, Any, Mapping[str, Any]], Any]
"""An engine as the interpreter sees it: (op, payload, settings) -> value."""


def interpret(
    graph: Graph,
    inputs: Mapping[str, Any],
    engines: Mapping[str, EngineFunction] | None = None,
    functions: Mapping[str, Callable[..., Any] | Rounds] | None = None,
) -> dict[str, Any]:
    """The values of the outputs; an output that was skipped is left out.

    Raises: GraphError if the graph does not hold together, an input is missing, starred inputs differ in
    length, or an engine or function is not given. What an engine raises passes through.

    >>> from teola_plugin.graph import parse
    >>> shout = parse("inputs(words=[]); loud: [] = call(*words, fn='upper'); outputs(loud)")
    >>> interpret(shout, {"words": ["a", "b"]}, functions={"upper": str.upper})
    {'loud': ['A', 'B']}
    """
    missing = [i.name for i in validate(graph).inputs if i.name not in inputs]
    if missing:
        raise GraphError(f"inputs({', '.join(missing)}): no value given")
    depths = graph.depths()
    values: dict[str, Any] = {i.name: inputs[i.name] for i in graph.inputs}  # what is not there was skipped
    for primitive in graph:
        if _runs(primitive, values):
            failed = next((values[r.name] for r in primitive.refs if isinstance(values.get(r.name), _Failed)), None)
            try:
                if failed:
                    raise failed.error
                values[primitive.name] = _value(primitive, values, depths, engines or {}, functions or {})
            except Exception as e:
                if not primitive.setting("ahead"):
                    raise
                values[primitive.name] = _Failed(e)
    return {name: values[name] for name in graph.outputs if name in values}


@dataclass(frozen=True, slots=True)
class _Failed:
    """In place of the value of what ran ahead."""

    error: Exception


def _runs(p: Primitive, values: Mapping[str, Any]) -> bool:
    if p.when and (p.when.condition not in values or values[p.when.condition] != p.when.value):
        return False
    present = [r.name in values for r in p.refs]
    return not present or (any(present) if p.kind == "aggregate" else all(present))


def _value(
    p: Primitive,
    values: Mapping[str, Any],
    depths: Mapping[str, int],
    engines: Mapping[str, EngineFunction],
    functions: Mapping[str, Callable[..., Any] | Rounds],
) -> Any:
    """The value of all instances: nested lists, as deep as the map depth, of what one instance makes."""

    def instance(arguments: Sequence[Any]) -> Any:
        made = run_instance(p, tuple(arguments), engines, functions)
        return list(made) if yields(p, depths) else made

    def instances(arguments: list[Any], below: list[int], mapped: int) -> Any:
        """`below[i]`: how many lists of argument i are still to be gone through, item by item."""
        if mapped == 0:
            return instance(arguments)
        counts = {len(a) for a, deep in zip(arguments, below, strict=True) if deep}
        if len(counts) != 1:
            raise GraphError(f"{p.name} = {p.kind}(...): its starred inputs have {sorted(counts)} items")
        deeper = [max(0, deep - 1) for deep in below]
        return [
            instances([a[i] if d else a for a, d in zip(arguments, below, strict=True)], deeper, mapped - 1)
            for i in range(counts.pop())
        ]

    args = [a for a in p.args if isinstance(a, Literal) or a.name in values]
    below = [depths[a.name] if not isinstance(a, Literal) and a.star else 0 for a in args]
    value = instances([_argument(a, values) for a in args], below, map_depth(p, depths))
    return None if p.kind == "ingestion" else value


def _argument(arg: Arg, values: Mapping[str, Any]) -> Any:
    return arg.value if isinstance(arg, Literal) else values[arg.name]


def run_instance(
    p: Primitive,
    arguments: tuple[Any, ...],
    engines: Mapping[str, EngineFunction],
    functions: Mapping[str, Callable[..., Any] | Rounds],
) -> Any:
    """What one instance of a primitive makes of its arguments. Raises: as `interpret`."""
    function = p.setting("fn")
    if function is not None:
        if function not in functions:
            raise GraphError(f"{p.name} = {p.kind}(...): no function fn={function!r} was given")
        called = functions[function]
        return _in_rounds(called, arguments, engines) if isinstance(called, Rounds) else called(*arguments)
    if p.kind == "aggregate":
        return arguments[0]
    if p.kind in PREFILLS:
        return _join(p, arguments)
    if p.engine not in engines:
        raise GraphError(f"{p.name} = {p.kind}(...): no engine {p.engine!r} was given")
    payload = arguments[0] if len(arguments) == 1 else arguments
    made = engines[p.engine]("decoding" if p.kind in DECODES else p.kind, payload, p.engine_settings)
    if p.is_splittable:
        return parse_items(p.setting("items"), made)[: p.setting("wanted")]
    return made


def _in_rounds(rounds: Rounds, arguments: Sequence[Any], engines: Mapping[str, EngineFunction]) -> dict[str, Any]:
    functions: dict[str, Any] = {name: function.call for name, function in rounds.functions.items()}
    inputs = rounds.first(arguments)
    for number in itertools.count(1):
        outputs = interpret(rounds.graph, inputs, engines, {**functions, **rounds.rounds})
        after = rounds.after(number, inputs, outputs)
        if after is None:
            break
        inputs = after
    return rounds.value(inputs, outputs)


def _join(p: Primitive, pieces: tuple[Any, ...]) -> Any:
    if len(pieces) == 1:
        return pieces[0]
    if not all(isinstance(piece, str) for piece in pieces):
        kinds = ", ".join(type(piece).__name__ for piece in pieces)
        raise GraphError(f"{p.name} = {p.kind}(...): only texts can be joined, not {kinds}")
    return "".join(pieces)
