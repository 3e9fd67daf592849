"""Runs the pairs of a comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.adapters import adapter_for
from teola_plugin.api import OptimizedPipeline, optimize, optimized
from teola_plugin.calling import Answer, Caller, first_form, name_of
from teola_plugin.comparison.result import Comparison
from teola_plugin.comparison.trees import Node, canonical_tree, node_count, tree_differences
from teola_plugin.comparison.values import differences, plain, without_new_ids
from teola_plugin.errors import TeolaError
from teola_plugin.runtime.session.report import Report

Progress = Callable[[int, int], None]
"""Called after each pair with the number of finished pairs and the total."""

_optimize = optimize


def compare(
    original: Any, inputs: Iterable[Any], *, optimized: Any = None, repeats: int = 5, warmup: int = 1,
    mode: str = "auto", progress: Progress | None = None,
) -> Comparison:  # fmt: skip
    """Run both pipelines on the inputs, `repeats` times in pairs, and return the times and differences.

    `mode` is the name of the method to call (`invoke`, `ainvoke`, `stream`, `query`, `aquery`, ...); "auto" takes the
    synchronous method. An input of `synthesize` is a tuple of its arguments. `optimized` is made by `optimize` unless
    given. Both pipelines really run: a pipeline which writes, writes each time.

    Raises: TeolaError for no inputs, `repeats` below 1, or a pipeline without the method.
    """
    values = list(inputs) if not isinstance(inputs, str | bytes | dict) else [inputs]
    if not values or repeats < 1 or warmup < 0:
        raise TeolaError(f"compare needs an input and repeats >= 1, not {len(values)} inputs, repeats={repeats}")
    form = first_form(original) if mode == "auto" else mode
    faster = _optimize(original) if optimized is None else optimized
    if faster is original and (calls := _calls(original)):  # optimized before: compare with the original
        original = calls.pipeline
    found = _Found(last=_newest(faster))
    rounds = warmup + repeats
    with Caller() as caller:
        for done in range(rounds * len(values)):
            turn, at = divmod(done, len(values))
            is_swapped = bool((turn + at) % 2)  # drift, and warm caches after the first of a pair, cancel out
            pair = _pair(caller, original, faster, form, values[at], is_swapped=is_swapped, is_recorded=not turn)
            found.note(pair, faster, is_timed=turn >= warmup)
            if progress:
                progress(done + 1, rounds * len(values))
    return found.comparison(name_of(original), form)


@dataclass(slots=True)
class _Run:
    answer: Answer
    nodes: dict[str, Node]


def _pair(
    caller: Caller, original: Any, faster: Any, form: str, value: Any, *, is_swapped: bool, is_recorded: bool
) -> tuple[_Run, _Run]:
    """Run a pair. Returns the original's run first, whichever ran first."""
    runs = []
    for pipeline in (faster, original) if is_swapped else (original, faster):
        with _recording(pipeline, is_recorded) as (options, nodes):
            runs.append(_Run(caller.call(pipeline, form, value, **options), nodes))
    return (runs[1], runs[0]) if is_swapped else (runs[0], runs[1])


@contextlib.contextmanager
def _recording(pipeline: Any, is_recorded: bool) -> Iterator[tuple[dict[str, Any], dict[str, Node]]]:
    """Yield the options for the call, and the mapping which receives the callbacks' nodes."""
    framework = adapter.name if is_recorded and (adapter := adapter_for(pipeline)) else ""
    if framework in ("langchain", "langgraph"):
        from teola_plugin.comparison.langchain import Recorder

        recorder = Recorder()
        yield {"config": {"callbacks": [recorder]}}, recorder.nodes
    elif framework == "llamaindex":
        from teola_plugin.comparison.llamaindex import recording

        with recording(pipeline) as nodes:
            yield {}, nodes
    else:
        yield {}, {}


@dataclass(slots=True)
class _Found:
    original_s: list[float] = field(default_factory=list)
    optimized_s: list[float] = field(default_factory=list)
    original_first_s: list[float] = field(default_factory=list)
    optimized_first_s: list[float] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    trees: list[str] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    last: Report | None = None
    tree_nodes: int = 0
    errors: int = 0
    error: str = ""

    def note(self, pair: tuple[_Run, _Run], faster: Any, *, is_timed: bool) -> None:
        first, second = pair[0].answer, pair[1].answer
        self.differences += differences(*without_new_ids(_said(first), _said(second)))
        ours, theirs = canonical_tree(pair[0].nodes), canonical_tree(pair[1].nodes)
        self.trees += tree_differences(ours, theirs)
        self.tree_nodes += node_count(ours)
        earlier, self.last = self.last, _newest(faster)
        if not is_timed:
            return
        if first.error is not None:
            self.errors += 1
            self.error = self.error or f"{type(first.error).__name__}: {first.error}"
        if self.last is not None and self.last is not earlier:
            self.reports.append(self.last)
        self.original_s.append(first.seconds)
        self.optimized_s.append(second.seconds)
        if first.first_s is not None and second.first_s is not None:
            self.original_first_s.append(first.first_s)
            self.optimized_first_s.append(second.first_s)

    def comparison(self, name: str, form: str) -> Comparison:
        return Comparison(
            name, form, tuple(self.original_s), tuple(self.optimized_s),
            tuple(self.original_first_s), tuple(self.optimized_first_s),
            tuple(dict.fromkeys(self.differences)), tuple(dict.fromkeys(self.trees)), self.tree_nodes, self.errors,
            self.error, bool(self.reports),
            sum(r.hits for r in self.reports), sum(r.shared for r in self.reports), sum(r.misses for r in self.reports),
            sum(r.stale for r in self.reports), sum(r.wasted for r in self.reports),
            tuple(dict.fromkeys(reason for r in self.reports for reason in r.fallbacks)),
            sum(r.rested for r in self.reports),
        )  # fmt: skip


def _said(answer: Answer) -> Any:
    """Return the answer to compare: the value and the pieces of a stream, or the type and message of the exception."""
    if answer.error is not None:
        return {"raised": type(answer.error).__qualname__, "says": str(answer.error)}
    pieces = None if answer.pieces is None else plain(answer.pieces)
    return {"value": plain(answer.value), **({} if pieces is None else {"pieces": pieces})}


def _newest(pipeline: Any) -> Report | None:
    """Return the report of the last optimized call."""
    calls = _calls(pipeline)
    return calls.reports[-1] if calls and calls.reports else None


def _calls(pipeline: Any) -> OptimizedPipeline | None:
    try:
        return optimized(pipeline)
    except TeolaError:
        return None
