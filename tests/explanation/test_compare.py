"""`compare`: what counts as equal, what counts as a difference, and the figures."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from langchain_core.callbacks import dispatch_custom_event
from langchain_core.documents import Document
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableGenerator, RunnableLambda, RunnableParallel
from llama_index.core import MockEmbedding, VectorStoreIndex
from llama_index.core.callbacks import CallbackManager
from llama_index_instrumentation import root_dispatcher
from pydantic import BaseModel, ConfigDict

from teola_plugin import optimize
from teola_plugin.comparison import Comparison, Node, canonical_tree, compare, differences, plain, tree_differences
from teola_plugin.comparison.langchain import Recorder
from teola_plugin.comparison.llamaindex import recording
from teola_plugin.comparison.result import interval
from teola_plugin.comparison.values import without_new_ids
from teola_plugin.errors import TeolaError
from teola_plugin.models.langchain import EngineChatModel
from teola_plugin.runtime.engines.simulated import ProfileLLM
from tests.support.tiny_profiles import TINY_CPU_LLM

# --- values ---------------------------------------------------------------------------------------------------


@dataclass
class Scored:
    text: str
    score: float


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (AIMessage("a", id="1"), AIMessage("a", id="2")),
        (0.5, 0.5000004),
        ([Scored("a", 1.0)], [Scored("a", 1.0 + 1e-7)]),
        (float("nan"), float("nan")),
        ({"a": 1, "b": None}, {"b": None, "a": 1}),
        (np.array([1.0, 2.0]), np.array([1.0, 2.0])),
        (1, 1.0),
    ],
)
def test_same(first: object, second: object) -> None:
    assert list(differences(plain(first), plain(second))) == []


@pytest.mark.parametrize(
    ("first", "second", "where"),
    [
        (AIMessage("a"), AIMessage("b"), ".content"),
        (Document("a", metadata={"k": 1}), Document("a", metadata={"k": 2}), ".metadata.k"),
        ([1, 2], [1], "2 items != 1 items"),
        ({"a": 1}, {}, "only in the original"),
        (0.5, 0.51, "0.5 != 0.51"),
        (0.5, 0.501, "0.5 != 0.501"),
        (None, "", "None != ''"),
        (True, 1, "True != 1"),
        ([Scored("a", 1.0)], [Scored("a", 2.0)], "[0].score"),
    ],
)
def test_different(first: object, second: object, where: str) -> None:
    assert any(where in line for line in differences(plain(first), plain(second)))


def test_lone_surrogates_are_shown() -> None:
    assert list(differences("\ud800", "a")) == ["answer: '\\ud800' != 'a'"]


# --- trees ----------------------------------------------------------------------------------------------------


def test_trees_ignore_order_of_siblings_and_ids() -> None:
    first = {"1": Node("chain", "a"), "2": Node("llm", "b", "1"), "3": Node("llm", "c", "1")}
    second = {"x": Node("llm", "c", "z"), "y": Node("llm", "b", "z"), "z": Node("chain", "a")}
    assert canonical_tree(first) == canonical_tree(second)
    assert tree_differences(canonical_tree(first), canonical_tree(second)) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"1": Node("chain", "a"), "2": Node("llm", "b", "1")},
        {"1": Node("chain", "a"), "2": Node("llm", "b", "1"), "3": Node("llm", "c", "2")},
        {"1": Node("chain", "a"), "2": Node("llm", "b", "1"), "3": Node("llm", "c", "1", {"tags": ["t"]})},
        {"1": Node("chain", "a"), "2": Node("llm", "b", "1"), "3": Node("chain", "c", "1")},
    ],
)
def test_trees_tell_a_missing_moved_tagged_or_other_node(changed: dict[str, Node]) -> None:
    tree = {"1": Node("chain", "a"), "2": Node("llm", "b", "1"), "3": Node("llm", "c", "1")}
    assert tree_differences(canonical_tree(tree), canonical_tree(changed))


def test_trees_tell_how_often_there_is_a_node() -> None:
    one, two = {"1": Node("llm", "b")}, {"1": Node("llm", "b"), "2": Node("llm", "b")}
    found = tree_differences(canonical_tree(one), canonical_tree(two))
    assert found == ["llm b: 1 x in the original, 2 x in the optimized"]


def test_a_node_whose_parent_is_not_there_is_a_root() -> None:
    assert canonical_tree({"2": Node("llm", "b", "gone")}) == (("llm b", ()),)


def test_nothing_hears_llamaindex_any_more_when_a_pipeline_was_recorded() -> None:
    manager = CallbackManager()
    pipeline = VectorStoreIndex.from_documents([], embed_model=MockEmbedding(2)).as_retriever()
    pipeline.callback_manager = manager
    heard = [root_dispatcher.event_handlers, root_dispatcher.span_handlers, manager.handlers]
    before = [list(each) for each in heard]
    with recording(pipeline):
        assert [list(each) for each in heard] != before
    assert [list(each) for each in heard] == before


class Loose(BaseModel):
    model_config = ConfigDict(extra="allow")
    text: str


def test_fields_that_a_model_allows_besides_count() -> None:
    one, other = Loose(text="a", more=1), Loose(text="a", more=2)  # type: ignore[call-arg]
    assert any(".more" in line for line in differences(plain(one), plain(other)))
    assert any(".more" in line for line in differences(plain(one), plain(Loose(text="a"))))


def test_a_recorder_knows_whose_child_each_run_is_and_how_it_ended() -> None:
    def tell(value: str) -> str:
        dispatch_custom_event("told", {"value": value})
        return value

    def fail(value: str) -> str:
        raise ValueError(value)

    def tree_of(chain: Any) -> Any:
        recorder = Recorder()
        with contextlib.suppress(ValueError):
            chain.invoke("x", config={"callbacks": [recorder]})
        return canonical_tree(recorder.nodes)

    def names(trees: Any) -> Any:
        return [(label.split(" ")[1], names(children)) for label, children in trees]

    inner = RunnableLambda(tell).with_config(run_name="tell") | RunnableLambda(str.upper).with_config(run_name="upper")
    assert names(tree_of(inner)) == [("RunnableSequence", [("tell", [("told", [])]), ("upper", [])])]
    ((failed, children),) = tree_of(RunnableLambda(tell) | RunnableLambda(fail).with_config(run_name="fail"))
    assert "ended='ValueError'" in failed
    assert [("ended='ValueError'" in label, "ended='ok'" in label) for label, _ in children] == [
        (True, False),
        (False, True),
    ]


def test_what_a_model_said_and_how_it_ended_is_recorded() -> None:
    chat = GenericFakeChatModel(messages=iter([AIMessage("one two three")]))
    recorder = Recorder()
    list(chat.stream("x", config={"callbacks": [recorder], "tags": ["t"], "metadata": {"k": "v"}}))
    (node,) = recorder.nodes.values()
    assert (node.kind, node.facts["tokens"], node.facts["tags"]) == ("chat_model", 5, ["t"])
    assert node.facts["metadata"]["k"] == "v"
    with contextlib.suppress(RuntimeError, StopIteration):
        chat.invoke("x", config={"callbacks": [recorder]})
    first, second = [node.facts["ended"] for node in recorder.nodes.values()]
    assert first == "ok" != second


# --- pairs ----------------------------------------------------------------------------------------------------


def chain_of(text: str, name: str = "step") -> RunnableLambda[str, str]:
    return RunnableLambda(lambda value: f"{text}{value}").with_config(run_name=name, tags=["mine"])


def test_equal_pipelines() -> None:
    chain = chain_of("a") | chain_of("b")
    found = compare(chain, ["x", "y"], optimized=copy.copy(chain), repeats=3)
    assert found.equal, str(found)
    assert len(found.original_s) == len(found.optimized_s) == 6
    assert found.form == "invoke"
    assert found.tree_nodes == 2 * 3


@pytest.mark.parametrize("inputs", [["x"], ["x", "y"], ["x", "y", "z"]])
def test_each_input_is_answered_first_by_one_and_then_by_the_other(inputs: list[str]) -> None:
    calls: list[tuple[str, str]] = []
    first, second = (RunnableLambda(lambda x, who=who: calls.append((who, x))) for who in ("original", "optimized"))
    compare(first, inputs, optimized=second, repeats=4, warmup=0)
    for value in inputs:
        firsts = [who for who, asked in calls[::2] if asked == value]
        assert firsts in (["original", "optimized"] * 2, ["optimized", "original"] * 2)


@pytest.mark.parametrize("mode", ["invoke", "ainvoke", "stream", "astream"])
def test_forms_that_give_the_same(mode: str) -> None:
    chain = RunnableParallel(a=chain_of("a"), b=chain_of("b"))
    found = compare(chain, ["x"], optimized=copy.copy(chain), repeats=1, mode=mode)
    assert found.equal, str(found)
    assert bool(found.original_first_s) == (mode in ("stream", "astream"))


def test_another_answer_is_found() -> None:
    found = compare(chain_of("a"), ["x"], optimized=chain_of("b"), repeats=2)
    assert not found.equal
    assert len(found.differences) == 1  # the original's comes first, whichever ran first
    assert "'ax' != 'bx'" in str(found)


def test_another_tree_is_found() -> None:
    found = compare(chain_of("a"), ["x"], optimized=chain_of("a", "other"), repeats=1)
    assert not found.equal
    assert not found.differences
    assert any("other" in line for line in found.tree_differences)
    assert "DIFFERENCES" in str(found)


def test_a_stream_cut_elsewhere_is_found() -> None:
    def model(*pieces: str) -> GenericFakeChatModel:
        def messages() -> Iterator[AIMessage]:
            while True:
                yield from map(AIMessage, pieces)

        return GenericFakeChatModel(messages=messages())

    found = compare(model("a b"), ["x"], optimized=model("a b c"), repeats=1, mode="stream")
    assert not found.equal


def test_errors_are_answers() -> None:
    def fail(value: str) -> str:
        raise ValueError(f"no {value}")

    def fail_otherwise(value: str) -> str:
        raise KeyError(value)

    def say_otherwise(value: str) -> str:
        raise ValueError(f"not {value}")

    same = compare(RunnableLambda(fail), ["x"], optimized=RunnableLambda(fail), repeats=2)
    assert same.equal
    assert same.errors == 2
    assert "in 2 of 2 pairs: ValueError: no x" in str(same)
    other = compare(RunnableLambda(fail), ["x"], optimized=RunnableLambda(fail_otherwise), repeats=1)
    assert any("raised" in line for line in other.differences)
    other = compare(RunnableLambda(fail), ["x"], optimized=RunnableLambda(say_otherwise), repeats=1)
    assert any("'no x' != 'not x'" in line for line in other.differences)


def test_one_pair_has_no_interval() -> None:
    found = compare(chain_of("a"), ["x"], repeats=1)
    assert "[" not in str(found)
    assert "interval" not in str(found)


def test_nothing_to_optimize_is_said() -> None:
    found = compare(chain_of("a"), ["x"], repeats=1)
    assert not found.is_optimized
    assert "nothing to optimize" in str(found)


def test_an_optimized_pipeline_is_compared_with_its_original() -> None:
    llm = EngineChatModel(engine=ProfileLLM("llm", TINY_CPU_LLM["tiny"]), max_tokens=2)
    found = compare(optimize(llm), ["x"], repeats=1)
    assert found.equal
    assert found.is_optimized
    assert found.hits + found.shared + found.misses == 1


def test_inside_a_running_loop() -> None:
    async def main() -> Comparison:
        chain = chain_of("a")
        return compare(chain, ["x"], optimized=copy.copy(chain), repeats=1, mode="ainvoke")

    assert asyncio.run(main()).equal


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    compare(chain_of("a"), ["x", "y"], repeats=2, progress=lambda done, total: told.append((done, total)))
    assert told == [(i, 6) for i in range(1, 7)]


@pytest.mark.parametrize(("inputs", "repeats"), [([], 1), (["x"], 0)])
def test_wrong_usage(inputs: list[str], repeats: int) -> None:
    with pytest.raises(TeolaError, match="compare needs"):
        compare(chain_of("a"), inputs, repeats=repeats)


def test_a_form_that_does_not_exist() -> None:
    with pytest.raises(TeolaError, match="no method 'query'"):
        compare(chain_of("a"), ["x"], repeats=1, mode="query")


# --- figures --------------------------------------------------------------------------------------------------


def test_interval_is_one_of_95_percent() -> None:
    """Of the median of a hundred equally spaced values: 50.5, give or take 1.96 times half their root."""
    found = interval([float(n) for n in range(1, 101)])
    assert found.median == 50.5
    assert found.low == pytest.approx(50.5 - 1.96 * 5, abs=2)
    assert found.high == pytest.approx(50.5 + 1.96 * 5, abs=2)
    skewed = interval([1.0] * 80 + [1000.0] * 20)  # of a mean it would lie far above
    assert (skewed.low, skewed.median, skewed.high) == (1.0, 1.0, 1.0)


def test_how_a_stream_is_cut_is_compared() -> None:
    def cut(*pieces: str) -> Any:
        def make(_: Any) -> Iterator[str]:
            yield from pieces

        return RunnableGenerator(make).with_config(run_name="cut")

    assert compare(cut("ab", "c"), ["x"], optimized=cut("ab", "c"), repeats=1, mode="stream").differences == ()
    found = compare(cut("ab", "c"), ["x"], optimized=cut("a", "bc"), repeats=1, mode="stream")
    assert any(".pieces" in line for line in found.differences)


def test_interval_is_the_same_each_time_and_holds_the_median() -> None:
    values = [1.0, 1.2, 1.1, 1.5, 0.9]
    assert interval(values) == interval(values)
    assert interval(values).low <= interval(values).median == 1.1 <= interval(values).high


def test_html_holds_the_figures_and_escapes() -> None:
    found = Comparison("<Chain>", "invoke", (0.2, 0.6), (0.1, 0.2), differences=("<script>alert(1)</script>",))
    page = found.to_html()
    assert "2.50 [2.00, 3.00]" in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "http" not in page


def test_ids_made_up_in_a_call_are_only_numbered() -> None:
    known, *new = (str(uuid.uuid4()) for _ in range(5))

    def answer(*ids: str) -> dict[str, Any]:
        return {"nodes": [{"id": known}, *({"id": each} for each in ids)], "metadata": {each: {} for each in ids}}

    def differ(first: Any, second: Any) -> list[str]:
        return [*differences(*without_new_ids(first, second))]

    assert differ(answer(new[0], new[1]), answer(new[2], new[3])) == []
    assert differ(answer(new[0], new[1]), answer(new[2], new[2]))
    assert differ(answer(new[0], new[1]), answer(new[1], new[0]))  # both have these: an order counts
    assert differ(answer(known, new[0]), answer(new[1], known))
