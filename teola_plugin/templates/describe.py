"""The text of `App.explain`: the template, the p-graph, the decisions of each pass, and the e-graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from teola_plugin.graph import Graph
from teola_plugin.passes import Optimized
from teola_plugin.templates.flow import Branches, Chain, Component, Condition, Loop, Step, as_step, names_of


def describe(
    name: str, template: Step, labels: Mapping[int, str], graph: Graph, optimized: Optimized,
    rounds: Mapping[str, Optimized],
) -> str:  # fmt: skip
    """Return the text, in four parts, and two more for each loop with revealed rounds."""
    parts = {
        f"{name}: the template": "\n".join(_lines(template, labels, 0)),
        "p-graph: primitives in the order of the template": str(graph),
        "passes": "\n".join(map(str, optimized.records)) or "none",
        "e-graph: what runs": str(optimized.graph),
    }
    for call, each in rounds.items():
        parts[f"passes, over each round of {call}"] = "\n".join(map(str, each.records)) or "none"
        parts[f"e-graph of each round of {call}"] = str(each.graph)
    return "\n\n".join(f"{title}\n{'-' * len(title)}\n{body}" for title, body in parts.items())


def _lines(step: Step, labels: Mapping[int, str], indent: int) -> Iterator[str]:
    space = "  " * indent
    match as_step(step):
        case Component() as component:
            yield space + _component(component, labels[id(component)])
        case Chain(steps=steps):
            for each in steps:
                yield from _lines(each, labels, indent)
        case Branches(ways=ways):
            for way in ways:
                yield f"{space}side by side:"
                yield from _lines(way, labels, indent + 1)
        case Condition(name=name, of=of, then=then, otherwise=otherwise):
            yield f"{space}if {name}({', '.join(names_of(of))}):"
            yield from _lines(then, labels, indent + 1)
            if otherwise is not None:
                yield f"{space}else:"
                yield from _lines(otherwise, labels, indent + 1)
        case Loop(name=name, of=of, body=body, at_most=at_most):
            often = f", at most {at_most} times" if at_most else ""
            yield f"{space}until {name}({', '.join(names_of(of))}){often}:"
            yield from _lines(body, labels, indent + 1)


def _component(c: Component, label: str) -> str:
    needs = c.needs({name: option.value for name, option in c.options.items()})
    takes = ", ".join(" or ".join(each.names) for each in needs.values())
    gives = ", ".join(c.outputs.values())
    engines = f" @ {', '.join(dict.fromkeys(c.engines.values()))}" if c.engines else ""
    settings = [f"{name}={o.value!r}" for name, o in c.options.items() if name not in c.prompts and o.value is not None]
    marks = [f"scope={c.scope!r}"] * (c.scope not in ("", "request"))
    marks += ["not batchable"] * (not c.batchable) + ["not splittable"] * (not c.splittable)
    said = ", ".join([*settings, *marks])
    return f"{label}({takes}) -> {gives}{engines}" + (f"  [{said}]" if said else "") + f"  {c.origin}"
