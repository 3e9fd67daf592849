"""`explain`: the text fits a terminal, the flowchart is Mermaid, the critical path and the bound are what they say."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pytest
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnablePassthrough
from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding

from teola_plugin import explain, optimize, optimized, pure
from teola_plugin.errors import TeolaError
from teola_plugin.events import BatchRan, Event, PrimitiveRan, Retired
from teola_plugin.explanation.measure import FRAMEWORK, Measured, measure
from teola_plugin.explanation.mermaid import flowchart
from teola_plugin.explanation.text import WIDTH, as_text
from teola_plugin.graph import Graph, parse
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.passes import DEFAULT, Context, optimize_graph
from teola_plugin.runtime.engines.simulated import ProfileLLM
from teola_plugin.runtime.session.report import Report
from teola_plugin.trace import Break, Reading, Traced
from tests.adapters.langchain.test_langchain_foreign import HostedNatively
from tests.support.tiny_profiles import TINY_CPU_LLM

GRAPH = parse("""
inputs(question)
kv = prefilling('One rewrite per line. This is a long prompt, with "quotes" | and <tags>: ', question) @ llm
rewrites: [] = decoding(kv, items='lines') @ llm
q: [] = embedding(*rewrites) @ embedder
hits: [] = searching(*q, top_k=16) @ chroma, reads(kb)
kv2 = prefilling('Question: ', question, ' Context: ', hits) @ llm
answer = decoding(kv2, max_tokens=64) @ llm
outputs(answer)
""")
DONE = optimize_graph(GRAPH, DEFAULT, Context())
TRACED = Traced(GRAPH, breaks=(Break("TB001", "something unknown", "app.py:12", "declare it"),))


def ran(primitive: str, engine: str, op: str, asked: float, began: float, ended: float) -> list[Event]:
    """A request as the run-ahead and the engine report it."""
    return [PrimitiveRan(primitive, engine, 1, asked, ended), BatchRan(engine, op, 1, began, ended)]


def run_of(events: list[Event], seconds: float, graph: Graph = DONE.graph) -> Measured:
    return measure(graph, Report(started_s=0.0, ended_s=seconds, events=tuple(events)))


EVENTS = [
    *ran("rewrites", "llm", "decoding", 0.0, 0.0, 0.5),
    *ran("q", "embedder", "embedding", 0.2, 0.21, 0.24),  # the first line, while the second is written
    *ran("q", "embedder", "embedding", 0.5, 0.52, 0.55),
    *ran("hits", "chroma", "searching", 0.55, 0.55, 0.56),
    *ran("answer", "llm", "decoding", 0.56, 0.56, 1.0),
    Retired("embedder", "embedding", "miss", 0.1),
]


def test_the_critical_path_goes_back_over_what_came_last() -> None:
    found = run_of(EVENTS, 1.1)
    assert [link.step.primitive for link in found.path] == ["rewrites", "q", "hits", "answer"]
    assert found.path[1].step.asked_s == 0.5


def test_the_bound_leaves_waits_out() -> None:
    assert run_of(EVENTS, 1.1).bound_s == pytest.approx(0.5 + 0.03 + 0.01 + 0.44)


def test_the_bound_counts_an_item_from_when_it_was_written() -> None:
    early = [*ran("rewrites", "llm", "decoding", 0.0, 0.0, 0.5), *ran("q", "embedder", "embedding", 0.2, 0.3, 0.9)]
    assert run_of(early, 1.0).bound_s == pytest.approx(0.2 + 0.6)


def test_what_the_framework_must_compute_counts_when_it_was_there() -> None:
    graph = parse(
        "inputs(x); load = call(x, fn='f') @ pipeline, writes(kb);"
        "v = searching(x) @ db, reads(kb), after(load); outputs(v)"
    )
    found = run_of(ran("v", "db", "searching", 0.4, 0.4, 0.5), 0.5, graph)
    assert found.bound_s == pytest.approx(0.5)


def test_what_nobody_foresaw_counts_after_what_had_ended() -> None:
    """Of the last batch only the question is known: the call ends with it."""
    found = run_of([*EVENTS, Retired("llm", "decoding", "miss", 0.999)], 1.5)
    assert found.path[-1].step.primitive == FRAMEWORK
    assert found.bound_s == pytest.approx(0.98 + 0.501, abs=0.002)


def test_what_nobody_foresaw_may_take_no_time_at_all() -> None:
    found = run_of([BatchRan("llm", "decoding", 1, 0.001 * n, 0.001 * n) for n in (1, 2, 2, 3)], 0.004)
    assert [link.step.asked_s for link in found.path] == [0.001, 0.002, 0.003]


def test_primitives_of_several_graphs_that_ran_ahead() -> None:
    graphs = tuple(map(parse, (
        "inputs(x); a = decoding(x) @ llm; b = decoding(a) @ llm; outputs(b)",
        "inputs(y); c = decoding(y) @ llm; b = decoding(c) @ llm; outputs(b)",
    )))  # fmt: skip
    events = [
        *ran("a", "llm", "decoding", 0.0, 0.0, 0.1),
        *ran("c", "llm", "decoding", 0.2, 0.2, 0.3),
        *ran("b", "llm", "decoding", 0.3, 0.3, 0.5),
    ]
    found = measure(GRAPH, Report(ended_s=0.5, events=tuple(events), graphs=graphs))
    assert [link.step.primitive for link in found.path] == ["c", "b"]
    assert found.bound_s == pytest.approx(0.3)


def test_a_run_in_which_nothing_ran_ahead() -> None:
    found = run_of([], 0.0)
    assert found.path == ()
    assert "nothing ran ahead" in as_text("Chain", TRACED, DONE, found)


def test_text_holds_everything_and_fits() -> None:
    text = as_text("Chain", TRACED, DONE, run_of(EVENTS, 1.1))
    for part in ("TR401", "TB001", "hint: declare it", "critical path", "bound: 980.0 ms", "miss", "~ rewrites"):
        assert part in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_names_too_long_for_the_table_are_cut() -> None:
    long = "a" * 60
    graph = parse(f"inputs(x); {long} = embedding(x) @ {long}; outputs({long})")
    done = optimize_graph(graph, DEFAULT, Context())
    found = run_of(ran(long, long, "embedding", 0.0, 0.0, 0.1), 0.1, graph)
    rows = [line for line in as_text("Chain", Traced(graph), done, found).splitlines() if "|#" in line]
    assert rows
    assert max(map(len, rows)) <= WIDTH


_NODE = r'\w+(?:\(\["[^"]*"\]\)|\[\["[^"]*"\]\]|\("[^"]*"\)|\["[^"]*"\])'
_STATEMENT = re.compile(
    rf"  (?:{_NODE}|\w+ (?:-->|==>|-\.->|-\. when \.->) (?:{_NODE}|\w+)|classDef \w+ [\w:#,-]+|class [\w,]+ \w+)"
)


UNFORESEEN: list[Event] = [BatchRan("llm", "decoding", 1, 0.0, 1.0)]


def test_only_what_had_not_run_ahead_was_asked_for_first_by_the_framework() -> None:
    outcomes = ("hit", "shared", "miss", "stale")
    events = tuple(Retired("llm", "decoding", outcome, 1.0 + at) for at, outcome in enumerate(outcomes))
    assert run_of(events, 9.0).late == (
        ("llm", "decoding", 2.0), ("llm", "decoding", 3.0), ("llm", "decoding (stale)", 4.0)
    )  # fmt: skip


@pytest.mark.parametrize("measured", [None, run_of(EVENTS, 1.1), run_of(UNFORESEEN, 1.1)])
def test_mermaid_statements(measured: Measured | None) -> None:
    """The forms that `mermaid.parse` of Mermaid 11 takes."""
    head, *lines = flowchart(DONE.graph, measured).splitlines()
    assert head == "flowchart TD"
    assert [line for line in lines if not _STATEMENT.fullmatch(line)] == []


def test_mermaid_labels_hold_no_signs_of_its_own() -> None:
    graph = parse(
        "inputs(x); c = condition(x, fn='f') @ python; y = call(x, fn='f') @ python, when(c, '\"]; end'); outputs(y)"
    )
    lines = flowchart(graph).splitlines()
    assert all(_STATEMENT.fullmatch(line) for line in lines[1:]), lines


def test_mermaid_draws_what_only_comes_after() -> None:
    graph = parse("inputs(x); a = call(x, fn='f') @ python; b = call(x, fn='g') @ python, after(a); outputs(b)")
    first, second = (line.split("[")[0].strip() for line in flowchart(graph).splitlines() if "call" in line)
    assert f"  {first} -.-> {second}" in flowchart(graph).splitlines()


def test_a_long_constant_is_cut_in_the_middle() -> None:
    graph = parse(f"inputs(x); y = prefilling('{'a' * 60}', x) @ llm; outputs(y)")
    text = as_text("chain", Traced(graph), optimize_graph(graph, DEFAULT, Context()), None)
    assert f"{'a' * 22} [16 more] {'a' * 22}" in text


def test_a_measured_run_is_one_that_runs_ahead_even_if_the_pipeline_rests() -> None:
    chain = optimize(ChatPromptTemplate.from_template("{q}") | HostedNatively() | StrOutputParser())
    calls: Any = optimized(chain)
    resting = calls._worth
    explain(chain, analyze={"q": "why"})
    assert calls._worth is not resting


def test_an_unknown_object_is_explained() -> None:
    with pytest.raises(TeolaError, match="int is no pipeline"):
        explain(3)


def test_a_pipeline_with_nothing_to_gain_is_explained() -> None:
    chain = RunnableLambda(str.upper)
    assert optimize(chain) is chain
    with pytest.raises(TeolaError, match="nothing to gain"):
        explain(chain)


def test_an_index_is_explained_that_only_makes_pipelines() -> None:
    for index in (VectorStoreIndex([], embed_model=MockEmbedding(3)), VectorStoreIndex):
        with pytest.raises(TeolaError, match="this VectorStoreIndex was not optimized"):
            explain(index)
        first = explain(optimize(index)).splitlines()[0]
        assert first.startswith("VectorStoreIndex: 0 kinds of requests may run ahead")
        assert first.endswith("what is made from it is optimized too")


def two_steps() -> Runnable[Any, Any]:
    llm = EngineChatModel(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=2)
    first = ChatPromptTemplate.from_template("Name {x}.") | llm | StrOutputParser()
    return RunnablePassthrough.assign(a=first) | RunnablePassthrough.assign(b=first) | itemgetter("a", "b")


def test_a_measured_run_of_a_real_chain() -> None:
    fast = optimize(two_steps())
    text = explain(fast, analyze={"x": "it"})
    assert "critical path" in text
    assert "0 misses, 0 stale, 0 wasted" in text
    assert fast.explain() == explain(fast)  # type: ignore[attr-defined]
    found = json.loads(explain(fast, format="json", analyze={"x": "it"}))
    assert parse(found["e_graph"])
    assert found["measured"]["misses"] == 0
    assert explain(fast, "mermaid").startswith("flowchart TD")


def test_a_run_that_raises_is_explained_too() -> None:
    assert "the pipeline raised KeyError" in explain(optimize(two_steps()), analyze={"y": "it"})


def test_an_unknown_format() -> None:
    with pytest.raises(TeolaError, match="not 'html'"):
        explain(optimize(two_steps()), format="html")


def test_a_pipeline_that_was_not_optimized() -> None:
    with pytest.raises(TeolaError, match=r"explain\(optimize\(pipeline\)\)"):
        explain(two_steps())


def test_the_stance_leaves_nothing_to_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEOLA_STANCE", "original")
    with pytest.raises(TeolaError, match="TEOLA_STANCE"):
        explain(optimize(two_steps()), analyze={"x": "it"})


def test_measured_as_json() -> None:
    found = json.loads(json.dumps(run_of(EVENTS, 1.1).as_dict()))
    assert found["critical_path"] == ["rewrites", "q", "hits", "answer"]
    assert found["late"] == [{"engine": "embedder", "op": "embedding", "at_s": 0.1}]


@pure
class Slow(HostedNatively):
    """Takes its time, in which functions are read."""

    def _said(self, *args: Any) -> str:
        time.sleep(0.1)
        return super()._said(*args)


def test_a_function_in_a_chain_is_shown_with_how_far_it_was_read() -> None:
    model, database = Slow(), sqlite3.connect(":memory:", check_same_thread=False)

    def asks(given: Any) -> str:
        return str(model.invoke("A " + given["q"]).content + model.invoke("B " + given["q"]).content)

    def looks_up(given: Any) -> str:
        rows = database.execute("select 1").fetchall()
        return str([model.invoke(f"{given['q']} {row}").content for row in rows])

    behind = r"(read up to|.*read on behind) [^:]+:\d+, where it uses execute"
    for function, found in ((asks, "read whole; 2 req"), (looks_up, behind)):
        chain = optimize(RunnableLambda(function) | model | StrOutputParser())
        assert "not read yet" in explain(chain)
        assert chain.invoke({"q": "why"}) == model.invoke(function({"q": "why"})).content
        said = " ".join(explain(chain).split())
        assert re.search(rf"{function.__name__} \(test_explain.py:\d+\): {found}", said)


@pytest.mark.parametrize(
    ("requests", "ahead", "is_said"), [(4, 0, True), (4, 1, False), (1, 0, False), (4, None, False)]
)
def test_requests_that_are_found_in_the_run_may_still_be_asked_together(
    requests: int, ahead: int | None, is_said: bool
) -> None:
    reading = Reading("node: f", readings=1, requests=requests, ahead=ahead)
    said = as_text("Graph", replace(TRACED, readings=(reading,)), DONE, None, is_called=True)
    assert ("those that do not wait for one another may still be asked together" in " ".join(said.split())) is is_said
