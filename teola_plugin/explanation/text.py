"""The text form of `explain`, for a terminal of 110 columns."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from teola_plugin.explanation.measure import Measured, Step
from teola_plugin.graph import Graph, Literal, Primitive, print_primitive
from teola_plugin.passes import Optimized, Record
from teola_plugin.plan import is_request
from teola_plugin.routes import ACCOUNT_CALLS, WASTE, Routes
from teola_plugin.trace import Break, Reading, Traced

WIDTH = 110
LITERAL_CHARACTERS = 44
"""Shown characters of a constant text."""

BAR_COLUMNS = 32
HOW_TO_READ = (
    "value = kind(inputs, setting=...) @ engine. [] is a list, *x each of its items. A prefilling is a prompt as the"
    " LLM keeps it. A call @ python is a function without effects, @ reader one of yours that is read and not called,"
    " @ an engine one that asks it, @ pipeline one that only the framework's own run calls. gated(x): leaves this"
    " process only once x has ended without raising."
)
OUTCOMES = (
    "(hit: had run ahead. shared: the framework asked first, the run-ahead used it. miss: not foreseen. stale: the"
    " store had changed. wasted: nobody took it.)"
)
LEARNED = (
    "Where a branch went in nearly all of the last calls, what follows is asked before it is decided. Such requests may"
    " be for nothing (Report.wasted): the original would not make them. Hosted models, too, may be asked and paid for"
    " them, and be sent text that a router would have kept from them. None is made while more than"
    f" {WASTE:.0%} of the requests of the last {ACCOUNT_CALLS} calls were wasted. Of the run itself nothing changes."
)
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
_NO_BREAK = "\0"


def as_text(
    name: str, traced: Traced, done: Optimized, measured: Measured | None, assumed: Sequence[str] = (),
    routes: Routes | None = None, *, is_called: bool = False,
) -> str:  # fmt: skip
    """Return all sections, one after the other. `assumed`: the places of functions covered by `assume_pure`.

    `is_called`: the pipeline was called, so each unread function has a reason.
    """
    sections = [wrapped(_head(name, traced, done))]
    if traced.graph.primitives or not traced.readings:  # a pipeline which is only read has no p-graph
        sections += _graph_sections(traced, done)
    if traced.early:
        sections.append(_section("tools: may start while the model still writes", _indented(traced.early)))
    if traced.loops:
        sections.append(_section("loops: all of their requests are made as they begin", _indented(traced.loops)))
    if traced.readings:
        sections.append(_section("functions: read, never run early", _reading_lines(traced.readings, is_called)))
    if routes is not None:
        sections.append(_section("learned routes: what is likely is asked ahead", _route_lines(routes)))
    sections += [
        _section(f"p-graph of the part {part}", _graph_lines(t.graph, None)) for part, t in traced.parts.items()
    ]
    sections.append(breaks_text(traced.breaks))
    if measured:
        sections.append(_section("measured run", list(_measured_lines(measured))))
    if assumed:
        sections.append(_section("assumed pure", _indented(assumed)))
    return "\n\n".join(sections)


def _head(name: str, traced: Traced, done: Optimized) -> str:
    requests = [p for p in done.graph if is_request(p)]
    engines = sorted({p.engine for p in requests})
    found = []
    if requests or not traced.readings:
        kinds = "1 kind of request" if len(requests) == 1 else f"{len(requests)} kinds of requests"
        found.append(f"{kinds} may run ahead, on {', '.join(engines) or 'no engine'}")
    if traced.readings:
        functions = "1 function" if len(traced.readings) == 1 else f"{len(traced.readings)} functions"
        found.append(f"what is certain in {functions} may be asked ahead")
    if traced.parts:
        found.append(f"{len(traced.parts)} of its parts as the run gets to them")
    if traced.early:
        found.append(f"{len(traced.early)} of its tools may start early")
    if traced.loops:
        found.append(f"the requests of {len(traced.loops)} of its loops are made at once")
    made = "; what is made from it is optimized too" if traced.makes else ""
    return f"{name}: {', and '.join(found)}{made}"


def _graph_sections(traced: Traced, done: Optimized) -> list[str]:
    return [
        _section(
            "p-graph: what the pipeline does",
            [wrapped(HOW_TO_READ, "  ", "  "), "", *_graph_lines(traced.graph, None)],
        ),
        _section("passes: what was decided", _record_lines(done)),
        _section("e-graph: what runs ahead (~ changed, + new)", _graph_lines(done.graph, traced.graph)),
    ]


def run_text(head: str, measured: Measured, breaks: Sequence[Break]) -> str:
    """Return the text of one measured run, without the graphs."""
    sections = [wrapped(head), _section("measured run", list(_measured_lines(measured)))]
    return "\n\n".join([*sections, breaks_text(breaks)])


def breaks_text(breaks: Sequence[Break]) -> str:
    """Return the text of the parts which `optimize` leaves to the framework."""
    return _section("left to the framework", [line for b in breaks for line in _break_lines(b)] or ["  nothing"])


def _reading_lines(readings: Sequence[Reading], is_called: bool) -> list[str]:
    lines = []
    for each in readings:
        requests = "1 request" if each.requests == 1 else f"{each.requests or 'no'} requests"
        is_counted = each.requests and each.ahead is not None
        ahead = f", {each.ahead} of them before the run came to it" if is_counted else ""
        found = f"{requests} found{ahead}"
        if each.ahead == 0 and each.requests > 1:
            found += " (in the run, those that do not wait for one another may still be asked together)"
        if not each.readings:
            said = f"not read yet: {each.barrier or _why_unread(each, is_called)}"
        elif each.barrier:
            said = (
                f"read up to {each.where}, where {each.barrier}; {found}" if each.where else f"{each.barrier}; {found}"
            )
        else:
            said = f"read whole; {found}"
        said += "".join(f"; read on behind {where}, where {what}" for what, where in each.skipped)
        lines.append(wrapped(f"{each.name}: {said}", "  ", "      "))
        if each.hint:
            lines.append(wrapped(f"hint: {each.hint}", "      ", "      "))
    return lines


def _why_unread(reading: Reading, is_called: bool) -> str:
    if not is_called:
        return "call the pipeline once"
    return "no call has come to it" if reading.came == 0 else "nothing could run ahead of it in the calls so far"


def _route_lines(routes: Routes) -> list[str]:
    lines = [wrapped(LEARNED, "  ", "  ")]
    if not routes.has_budget:
        lines.append("  At the moment too much was for nothing: only what is certain is asked.")
    for branch, target in routes.known().items():
        match branch, target:
            case ("superstep", int(number), (*names,)), (*next_names,):
                after = f"{', '.join(map(str, next_names))} (superstep {number})"
                lines.append(wrapped(f"after {', '.join(map(str, names))}: {after}", "  ", "    "))
            case (str(file), int(line), _), _:
                lines.append(wrapped(f"{file.rsplit('/', 1)[-1]}:{line}: the condition is {target}", "  ", "    "))
    return lines


def _indented(lines: Sequence[str]) -> list[str]:
    return [wrapped(line, "  ", "    ") for line in lines]


def _section(title: str, lines: list[str]) -> str:
    return "\n".join([title, "-" * len(title), *lines])


def wrapped(text: str, first: str = "", rest: str = "") -> str:
    """Return the text wrapped to the width, with the given indents of the first line and of the rest."""
    return textwrap.fill(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False, break_long_words=False
    )


# --- graphs ---------------------------------------------------------------------------------------------------


def _graph_lines(graph: Graph, before: Graph | None) -> list[str]:
    """Return the text form with long constants shortened.

    Without `before`, each primitive's origin stands above; with `before`, changes are marked."""
    inputs, *_, outputs = str(replace(graph, primitives=())).splitlines()
    if before is not None and graph == before:
        return ["  the same as the p-graph"]
    lines = ["  " + inputs]
    if before is None:
        for origin, primitives in groupby(graph, lambda p: p.origin):
            lines += [wrapped(origin, "  # ", "  #   ")] if origin else []
            lines += [_line("  ", p) for p in primitives]
    else:
        old = {p.name: p for p in before}
        for p in graph:
            mark = "+ " if p.name not in old else "  " if old[p.name] == p else "~ "
            lines.append(_line(mark, p))
    return [*lines, wrapped(outputs, "  ", "    ")]


def _line(mark: str, p: Primitive) -> str:
    args = tuple(Literal(_short(a.value)) if isinstance(a, Literal) else a for a in p.args)
    settings = tuple((key, _short(value)) for key, value in p.settings)
    line = print_primitive(replace(p, args=args, settings=settings))
    whole = _QUOTED.sub(lambda quoted: quoted[0].replace(" ", _NO_BREAK), line)
    return wrapped(whole, mark, "      ").replace(_NO_BREAK, " ")


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) > LITERAL_CHARACTERS:
        half = LITERAL_CHARACTERS // 2
        return f"{value[:half]} [{len(value) - 2 * half} more] {value[-half:]}"
    return value


# --- decisions ------------------------------------------------------------------------------------------------


def _record_lines(done: Optimized) -> list[str]:
    names = [name for name, _ in done.snapshots]
    lines = []
    for name in names or dict.fromkeys(r.pass_name for r in done.records):
        records = [r for r in done.records if r.pass_name == name]
        applied = sum(r.applied for r in records)
        lines.append(f"  {name}: {applied} applied, {len(records) - applied} not")
        lines += [_record_line(r) for r in records]
    return lines or ["  there were no passes"]


def _record_line(record: Record) -> str:
    """Return the line of a record.

    The record's number, which has no unit, is left to other formats; the reason holds the relevant figures.
    """
    where = f"{record.primitive}: " if record.primitive else ""
    return wrapped(f"{'+' if record.applied else '-'} {record.code} {where}{record.reason}", "    ", "        ")


def _break_lines(b: Break) -> Iterator[str]:
    where = "" if b.what.startswith(b.origin) else f" at {b.origin}"
    yield wrapped(f"{b.code} {b.what}{where}", "  ", "      ")
    if b.hint:
        yield wrapped(f"hint: {b.hint}", "      ", "      ")


# --- the measured run -----------------------------------------------------------------------------------------


def _measured_lines(m: Measured) -> Iterator[str]:
    r = m.report
    yield (
        f"  {m.seconds * 1000:.1f} ms; items: {r.hits} hits, {r.shared} shared, {r.misses} misses, {r.stale} stale,"
        f" {r.wasted} wasted; {r.prefills} early prefills"
    )
    yield wrapped(OUTCOMES, "  ", "  ")
    if m.error:
        yield wrapped(f"the pipeline raised {m.error}", "  ", "      ")
    for reason in r.fallbacks:
        yield wrapped(f"the run-ahead ended early: {reason}", "  ", "      ")
    if not m.steps:
        yield "  nothing ran ahead"
    else:
        yield ""
        yield from _timeline(m)
        yield ""
        yield from _path_lines(m)
    yield from _late_lines(m)


def _late_lines(m: Measured) -> Iterator[str]:
    """Yield the requests of the framework's run before anything had run ahead; simultaneous requests share a line."""
    lines = []
    for (engine, op, _), group in groupby(m.late, lambda late: (late[0], late[1], round(late[2], 2))):
        at_s = [at for _, _, at in group]
        lines.append(f"  asked for first by the framework: {len(at_s)} x {op} @ {engine} at {at_s[0] * 1000:.1f} ms")
    yield from lines[:12]
    if len(lines) > 12:
        yield f"  ... and {len(lines) - 12} more"


def _timeline(m: Measured) -> Iterator[str]:
    on_path = {id(link.step) for link in m.path}
    heads = f"{'primitive':22} {'engine':12} {'items':>5} {'from ms':>9} {'wait':>8} {'engine':>8}"
    yield f"    {heads}  (. waits, # runs, x failed)"
    for step in m.steps:
        mark = "*" if id(step) in on_path else " "
        yield (
            f"  {mark} {_cut(step.primitive, 22):22} {_cut(step.engine, 12):12} {step.items:5} "
            f"{step.asked_s * 1000:9.1f} {step.wait_s * 1000:8.1f} {step.engine_s * 1000:8.1f}  "
            f"|{_bar(step, m.seconds)}|"
        )


def _bar(step: Step, total_s: float) -> str:
    def column(at_s: float) -> int:
        return min(BAR_COLUMNS - 1, int(at_s / total_s * BAR_COLUMNS)) if total_s else 0

    asked, began, ended = column(step.asked_s), column(step.began_s), column(step.ended_s)
    runs = ("x" if step.failed else "#") * (ended - began + 1)
    return (" " * asked + "." * (began - asked) + runs).ljust(BAR_COLUMNS)


def _path_lines(m: Measured) -> Iterator[str]:
    parts = []
    for link in m.path:
        wait = f" + {link.step.wait_s * 1000:.1f} wait" if link.step.wait_s > 0.0005 else ""
        parts.append(f"{link.step.primitive} {max(0.0, link.until_s - link.step.began_s) * 1000:.1f}{wait}")
    yield wrapped("critical path (*), ms: " + " > ".join(parts), "  ", "      ")
    tail_s = m.seconds - m.path[-1].until_s
    yield f"  after it the framework took {tail_s * 1000:.1f} ms to the end of the call"
    if m.bound_s > 0:
        yield (
            f"  bound: {m.bound_s * 1000:.1f} ms, the longest path of engine times alone; this run took "
            f"{m.seconds / m.bound_s:.2f} x the bound"
        )


def _cut(text: str, columns: int) -> str:
    return text if len(text) <= columns else text[: columns - 1] + "~"
