"""Parts of the predictions of LlamaIndex's components, one by one: copies, obstacles, and the ends of a tree."""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core import PromptTemplate
from llama_index.core.indices.query.query_transform.base import DecomposeQueryTransform
from llama_index.core.postprocessor import MetadataReplacementPostProcessor
from llama_index.core.response_synthesizers import CompactAndRefine, TreeSummarize
from llama_index.core.schema import NodeWithScore, TextNode
from pydantic import BaseModel

from teola_plugin.adapters.configured import AsSetNow
from teola_plugin.adapters.llamaindex import observers
from teola_plugin.adapters.llamaindex.draft import Draft
from teola_plugin.adapters.llamaindex.entries import Entry, bind
from teola_plugin.adapters.llamaindex.known import is_plain_template
from teola_plugin.adapters.llamaindex.models import _Request, is_stream
from teola_plugin.adapters.llamaindex.postprocessors import add_postprocessor
from teola_plugin.adapters.llamaindex.synthesizers import _payloads, _Prompts
from teola_plugin.adapters.llamaindex.transforms import Query, add_transform
from teola_plugin.engines import Foreign
from teola_plugin.seams import active
from tests.support.llamaindex_world import Engines


class Reply(BaseModel):
    text: str


def node(text: str = "bees") -> NodeWithScore:
    return NodeWithScore(node=TextNode(text=text, metadata={"window": "more bees"}), score=1.0)


@pytest.mark.parametrize(("method", "expected"), [("_stream_chat", True), ("_stream_complete", True), ("_chat", False)])
def test_a_raw_stream_is_told_from_a_whole_reply(method: str, expected: bool) -> None:
    model = Engines().model
    call = _Request(model, method, ("a",), {}, AsSetNow.of(model))
    assert is_stream(Foreign("key", call)) is expected


def test_a_template_with_functions_is_not_plain() -> None:
    assert is_plain_template(PromptTemplate("{a}"))
    assert not is_plain_template(PromptTemplate("{a}", function_mappings={"a": lambda **given: "b"}))


def test_an_entry_that_does_not_retrieve_has_no_text_to_search_for() -> None:
    assert "query" in bind(Entry("who?"))
    assert "query" not in bind(Entry("who?", retrieves=False))


def test_the_nodes_of_an_entry_are_copies() -> None:
    given = [node()]
    bound = bind(Entry("who?", nodes=given))["nodes"]
    assert bound == given
    assert bound[0] is not given[0]
    assert bound[0].node is not given[0].node


def test_nodes_that_the_framework_found_are_told_as_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hearing:
        is_closed = is_unheard = False

        def observe(self, component: object, value: Any) -> None:
            told.extend(value)

    told: list[Any] = []
    monkeypatch.setattr(observers, "is_awaited", lambda component: True)
    found = [node()]
    with active(Hearing()):  # type: ignore[arg-type]
        assert observers._told(node(), found, ["retrieve"]) is found
    assert told == found
    assert told[0] is not found[0]


def test_a_postprocessor_changes_copies() -> None:
    draft = Draft()
    add_postprocessor(draft, MetadataReplacementPostProcessor(target_metadata_key="window"), "nodes", "query")
    (function,) = (each.call for each in draft.functions.values())
    given = [node()]
    assert [each.node.get_content() for each in function("who?", given)] == ["more bees"]
    assert given[0].node.get_content() == "bees"


def test_a_synthesizer_that_was_changed_after_it_was_read_is_not_rehearsed() -> None:
    synthesizer = CompactAndRefine(llm=Engines().model)
    prompts = _Prompts(synthesizer)
    assert prompts.asked("who?", [node()])
    synthesizer._output_cls = Reply
    with pytest.raises(LookupError):
        prompts.asked("who?", [node()])


@pytest.mark.parametrize(("is_async", "use_async"), [(True, False), (False, True)])
def test_a_synthesizer_that_gathers_by_itself_is_left_alone(is_async: bool, use_async: bool) -> None:
    assert _Prompts(TreeSummarize(llm=Engines().model)).asked("who?", [node()])
    assert _Prompts(TreeSummarize(llm=Engines().model, use_async=use_async)).asked("who?", [node()], is_async) == []


def test_nothing_is_asked_above_the_root_of_a_tree() -> None:
    prompts = _Prompts(TreeSummarize(llm=Engines(context_window=600).model))
    nodes = [node(f"{n} " * 500) for n in range(2)]
    leaves = ["leaf"] * len(_payloads(prompts.asked("who?", nodes)))
    assert len(leaves) > 1
    assert prompts.asked_above("who?", nodes, False, leaves)
    assert prompts.asked_above("who?", nodes, False, ["the whole answer"]) == []


def test_a_transform_is_told_what_the_index_is_about() -> None:
    draft = Draft()
    assert add_transform(draft, DecomposeQueryTransform(llm=Engines().model), {"index_summary": "bees"}, Query())
    request = next((each for name, each in draft.functions.items() if name.startswith("request")), None)
    asked = str(request.call("who?")) if request else str(draft.primitives)
    assert "bees" in asked
