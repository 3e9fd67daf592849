"""`optimize` and its neighbours, as a user calls and miscalls them."""

from __future__ import annotations

import asyncio
import logging
from operator import itemgetter
from types import SimpleNamespace
from typing import Any, TypedDict

import pytest
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import Runnable, RunnableLambda, RunnableParallel, RunnablePassthrough
from langgraph.graph import END, START, StateGraph

import teola_plugin
from teola_plugin import compare, explain, optimize, optimized, pure, reads, runtime, writes
from teola_plugin.api import STANCE
from teola_plugin.effects import declared_effects
from teola_plugin.errors import PassError, TeolaError
from teola_plugin.graph import Graph
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.passes import Context, Record
from teola_plugin.profile import PAPER_LLM
from teola_plugin.runtime.engines.simulated import ProfileLLM
from teola_plugin.seams import active
from tests.support.tiny_profiles import TINY_CPU_LLM


def chain() -> Runnable[Any, Any]:
    llm = EngineChatModel(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=2)
    return ChatPromptTemplate.from_template("Name {x}.") | llm


class Asking(RunnableLambda[Any, Any]):
    """A pipeline that can be called like a function."""

    def __call__(self, given: Any) -> Any:
        return self.invoke(given)


def test_names_are_offered_and_a_wrong_one_is_named() -> None:
    assert {"optimize", "explain", "compare", "pure"} <= set(dir(teola_plugin))
    with pytest.raises(AttributeError, match="module 'teola_plugin' has no attribute 'optimise'"):
        teola_plugin.optimise  # noqa: B018


def test_an_object_that_is_no_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    thing = object()
    assert optimize(thing) is thing
    assert "builtins.object is no pipeline" in caplog.text
    with pytest.raises(TypeError, match=r"builtins\.object is no pipeline .* supported are LangChain"):
        optimize(thing, strict=True)


@pytest.mark.parametrize("wrong", [{"policy": "fifo"}, {"speculate": "everything"}, {"runtime": "mars"}])
def test_an_option_that_does_not_exist(wrong: dict[str, Any]) -> None:
    with pytest.raises(TeolaError, match=f"{next(iter(wrong))}=.* is one of"):
        optimize(chain(), **wrong)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (print, "a list of functions"), ("print", "a list of functions"), (1, "a list of functions"),
        ([RunnableLambda(print)], "give the function"), ([chain()], "give the function"), ([print, None], "not None"),
        ([Asking(print)], "not pipelines"),
    ],
)  # fmt: skip
def test_what_cannot_be_assumed_pure(wrong: Any, why: str) -> None:
    with pytest.raises(TypeError, match=f"assume_pure wants .*{why}"):
        optimize(chain(), assume_pure=wrong)


def shout(x: dict[str, str]) -> dict[str, str]:
    print(end="")
    return {"x": x["x"].upper()}


def test_a_function_assumed_pure_runs_ahead_in_this_pipeline_only() -> None:
    pipeline = RunnablePassthrough.assign(n=chain()) | RunnableLambda(shout) | chain()
    fast = optimize(pipeline, assume_pure=[shout])
    assert optimized(fast).traced.breaks == ()
    assert optimize(fast, assume_pure=(shout,)) is fast
    assert "shout') @ python" in explain(fast.with_config(tags=["later"]))
    assert explain(fast).count("assumed pure") == 2
    assert not any(p.engine == "reader" for p in optimized(fast).traced.graph)
    assert "shout (test_api.py:" in explain(fast).split("assumed pure\n---")[1]
    assert "assumed pure" in explain(fast, format="json")
    for plain in (optimize(pipeline), optimize(fast)):
        assert "shout') @ reader" in explain(plain)
        assert "assumed pure" not in explain(plain)


class Notes(TypedDict, total=False):
    x: str
    y: str


def test_nodes_and_conditions_of_a_graph_may_be_assumed_pure() -> None:
    def elsewhere(state: Notes) -> list[str]:
        print(end="")
        return []

    asks = chain() | (lambda message: {"y": message.content})
    builder = StateGraph(Notes)
    builder.add_node("first", asks)
    builder.add_node("shout", shout)
    builder.add_node("last", asks)
    for start, end in ((START, "first"), ("first", "shout"), ("shout", "last"), ("last", END)):
        builder.add_edge(start, end)
    builder.add_conditional_edges("first", elsewhere, ["last"])
    graph: Any = builder.compile()

    fast = optimize(graph, assume_pure=[shout, elsewhere])
    assert [each.split(" ")[0] for each in optimized(fast).assumed] == ["shout", "elsewhere"]
    assert fast.invoke({"x": "it"}) == graph.invoke({"x": "it"})


def test_what_is_assumed_pure_is_so_where_a_call_goes_on() -> None:
    said: list[bool] = []

    def tell(*_: Any) -> None:
        said.append(declared_effects(shout) is not None)

    pipeline = chain() | RunnableLambda(shout)
    for fast in (optimize(pipeline), optimize(pipeline, assume_pure=[shout])):
        optimized(fast)._follow(SimpleNamespace(tell=tell), shout, None, None)  # type: ignore[arg-type]
    assert said == [False, True]


def both() -> Runnable[Any, Any]:
    return RunnableParallel(a=chain(), b=chain())


def test_nothing_runs_ahead_without_speculation() -> None:
    fast = optimize(both(), speculate="off")
    fast.invoke({"x": "it"})
    (report,) = optimized(fast).reports
    assert (report.hits, report.shared, report.misses, report.wasted) == (0, 0, 2, 0)


@pytest.mark.parametrize("speculate", ["certain", "branches", "learned", "off"])
def test_only_who_asks_for_branches_has_them_read_ahead(speculate: Any) -> None:
    names = [name for name, _ in optimized(optimize(chain(), speculate=speculate)).optimized.snapshots]
    assert names.count("speculate_branches") == (speculate == "branches")


def test_a_pass_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    def broken(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
        raise ZeroDivisionError

    with pytest.raises(PassError, match="broken: ZeroDivisionError"):
        optimize(chain(), passes=[broken], strict=True)
    assert optimize(chain(), passes=[broken]).invoke({"x": "it"}) is not None
    assert "pass broken was dropped" in caplog.text


def test_passes_know_the_profiles_that_are_given_and_those_of_the_engines() -> None:
    seen: list[Any] = []

    def looking(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
        seen.append(context.profiles["llm"])
        return graph, []

    optimize(chain(), passes=[looking])
    optimize(chain(), passes=[looking], profiles={"llm": PAPER_LLM["figure7"]})
    assert seen == [TINY_CPU_LLM["tiny"], PAPER_LLM["figure7"]]


def test_callbacks_behind_one_that_raises_are_told(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Any] = []

    def fail(report: Any) -> None:
        raise ZeroDivisionError

    fast = optimize(chain(), callbacks=[fail, told.append])
    assert fast.invoke({"x": "it"}).content == chain().invoke({"x": "it"}).content
    assert told == [*optimized(fast).reports]
    assert "failed on the report of a call" in caplog.text


def test_a_call_is_counted_in_and_out_once() -> None:
    """Whatever an adapter does with it: also if it is closed twice, or opened inside another call."""
    calls = optimized(optimize(chain()))
    inside = runtime.host.admission
    outer = calls.open(lambda: [{"x": "it"}])
    assert inside.inside == 1
    with active(outer.session):
        inner = calls.open(lambda: [{"x": "it"}])
        assert inside.inside == 1
        inner.close()
    assert inside.inside == 1
    outer.close()
    outer.close()
    assert inside.inside == 0
    assert len(calls.reports) == 2


def test_a_call_that_cannot_be_opened_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise MemoryError

    fast = optimize(chain())
    monkeypatch.setattr(teola_plugin.api, "Session", fail)
    with pytest.raises(MemoryError):
        fast.invoke({"x": "it"})
    assert runtime.host.admission.inside == 0


def test_an_input_that_only_the_pipeline_itself_understands() -> None:
    class Moody(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            raise ValueError("who asks?")

    pipeline = RunnableLambda(lambda given: {"x": given["x"]}) | chain()
    fast = optimize(RunnableParallel(a=itemgetter("x") | chain(), b=pipeline))
    plain = RunnableParallel(a=itemgetter("x") | chain(), b=pipeline)
    assert {k: m.content for k, m in fast.invoke(Moody(x="it")).items()} == {
        k: m.content for k, m in plain.invoke(Moody(x="it")).items()
    }


def test_an_optimized_pipeline_is_made_anew_for_other_options_only() -> None:
    fast, reports = optimize(chain()), []
    assert optimize(fast) is fast
    told = optimize(fast, callbacks=[reports.append])
    told.invoke({"x": "it"})
    assert len(reports) == 1
    assert not optimized(fast).reports


def test_a_policy_stays_until_another_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    monkeypatch.setattr(runtime.host, "use", used.append)
    optimize(chain(), policy="po")
    optimize(chain()).with_config(tags=["later"])
    assert used == ["po"]


def test_the_stance_is_read_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = optimize(chain())
    asked = []
    for stance in ("", "original", "", "original"):
        monkeypatch.setenv(STANCE, stance)
        fast.invoke({"x": "it"})
        asked.append(len(optimized(fast).reports))
    assert asked == [1, 1, 2, 2]


def test_a_misspelt_stance_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    fast = optimize(chain())
    monkeypatch.setenv(STANCE, "orginal")
    with caplog.at_level(logging.WARNING, "teola_plugin"):
        fast.invoke({"x": "it"})
        fast.invoke({"x": "it"})
    assert [r.getMessage().split(" ")[0] for r in caplog.records] == ["TEOLA_STANCE='orginal'"]
    assert len(optimized(fast).reports) == 2, "it switches nothing off"


def test_under_the_stance_no_earlier_run_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = optimize(chain())
    fast.invoke({"x": "it"})
    monkeypatch.setenv(STANCE, "original")
    with pytest.raises(TeolaError, match=STANCE):
        explain(fast, analyze={"x": "it"})
    found = compare(fast, [{"x": "it"}], repeats=1)
    assert (found.hits, found.misses) == (0, 0)
    assert STANCE in str(found)


@pytest.mark.parametrize("decorator", [reads, writes])
def test_a_decorator_without_names(decorator: Any) -> None:
    with pytest.raises(TypeError, match=f'@{decorator.__name__}."kb"'):
        decorator(len)
    with pytest.raises(TypeError, match="names of resources"):
        decorator()


def test_what_cannot_carry_a_mark() -> None:
    with pytest.raises(TypeError, match=r"append.*wrap it"):
        pure([].append)


def test_a_stream_that_is_dropped_after_its_loop_was_closed_makes_room() -> None:
    loop = asyncio.new_event_loop()
    stream = optimize(chain()).astream({"x": "y"})
    loop.run_until_complete(anext(stream))
    assert runtime.host.admission.inside == 1
    loop.close()
    del stream
    assert runtime.host.admission.inside == 0
