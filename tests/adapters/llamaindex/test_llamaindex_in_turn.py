"""Stock code that asks one request after the other: all that it will ask is asked as it begins."""

from __future__ import annotations

import asyncio
import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from llama_index.core import (
    Document,
    DocumentSummaryIndex,
    KeywordTableIndex,
    MockEmbedding,
    PromptTemplate,
    SummaryIndex,
    TreeIndex,
    get_response_synthesizer,
    utils,
)
from llama_index.core.extractors import TitleExtractor
from llama_index.core.indices.document_summary import DocumentSummaryIndexLLMRetriever
from llama_index.core.indices.list.retrievers import SummaryIndexLLMRetriever
from llama_index.core.ingestion import IngestionPipeline
from llama_index.core.postprocessor import LLMRerank
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode
from llama_index.core.schema import NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.llms.openai_like import OpenAILike

from teola_plugin import optimize
from teola_plugin.adapters.llamaindex.in_turn import loops_in
from teola_plugin.adapters.llamaindex.known import reads_any_choice
from teola_plugin.api import optimized
from teola_plugin.runtime.session.slots import Slots
from tests.support.hosted_service import READ_S, Service, asked_side_by_side, counted
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_world import QUESTION, apart

COUNT = 6
CHOICE = PromptTemplate("Choose for {query_str} from {context_str}")


def chat(service: Service) -> Any:
    return OpenAILike(
        model="m", api_base=service.url, api_key="none", is_chat_model=True, max_retries=0, context_window=4096,
    )  # fmt: skip


def nodes(count: int = COUNT) -> list[TextNode]:
    return [TextNode(text=f"text {number}", id_=f"n{number}") for number in range(count)]


def listed(llm: Any) -> Any:
    retriever = SummaryIndexLLMRetriever(
        SummaryIndex(nodes()), llm=llm, choice_batch_size=2, choice_select_prompt=CHOICE
    )
    return RetrieverQueryEngine(retriever, get_response_synthesizer(llm=llm))


def summarized(llm: Any) -> Any:
    index = DocumentSummaryIndex.from_documents(
        [Document(text=f"text {number}", id_=f"d{number}") for number in range(COUNT)], llm=llm,
        response_synthesizer=get_response_synthesizer(llm=llm), embed_summaries=False, embed_model=MockEmbedding(8),
    )  # fmt: skip
    return DocumentSummaryIndexLLMRetriever(index, llm=llm, choice_batch_size=2, choice_select_prompt=CHOICE)


def titled(llm: Any) -> Any:
    return TitleExtractor(llm=llm, nodes=3, node_template="Title of {context_str}")


def _none_or_bad(answer: str, count: int, raise_error: bool = False) -> Any:
    if answer:
        raise ValueError("unreadable")
    return [], []


class Counted(TextNode):
    """Counts how often it is shown."""

    seen: ClassVar[int] = 0

    def get_metadata_str(self, *args: Any, **given: Any) -> str:
        Counted.seen += 1
        return super().get_metadata_str(*args, **given)


ACTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "listed": (listed, lambda engine: str(engine.query(QUESTION))),
    "listed, async": (listed, lambda engine: str(asyncio.run(engine.aquery(QUESTION)))),
    "summarized": (summarized, lambda retriever: [each.text for each in retriever.retrieve(QUESTION)]),
    "titled": (titled, lambda extractor: extractor.extract(nodes())),
    "titled, async": (titled, lambda extractor: asyncio.run(extractor.aextract(nodes()))),
    "titled in a pipeline": (
        lambda llm: IngestionPipeline(transformations=[titled(llm)], disable_cache=True),
        lambda pipeline: [each.metadata for each in pipeline.run(nodes=nodes())],
    ),
}
LAST = {"listed": "text 4", "summarized": "text 4", "titled": "Title of text 2"}
FIRST = {"listed": "text 0", "summarized": "text 0", "titled": "Title of text 0"}


@pytest.mark.parametrize("name", ACTS)
def test_all_rounds_are_asked_as_the_loop_begins(service: Service, name: str) -> None:
    make, act = ACTS[name]
    kind = name.split()[0].strip(",")
    component = make(chat(service))
    with counted(service) as original:
        plain = apart(act, component)
    fast = optimize(component)
    assert fast is not component
    service.holds, service.awaits = FIRST[kind], LAST[kind]
    with counted(service) as made:
        assert apart(act, fast) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


@pytest.mark.parametrize("name", ACTS)
def test_nothing_is_asked_ahead_where_speculation_is_off(service: Service, name: str) -> None:
    make, act = ACTS[name]
    fast = optimize(make(chat(service)), speculate="off")
    apart(act, fast)
    assert optimized(fast).reports[-1].hits == 0


def test_a_reranker_asks_for_all_batches_at_once(service: Service) -> None:
    llm = chat(service)
    retriever = SummaryIndex(nodes()).as_retriever()
    reranker = LLMRerank(llm=llm, choice_batch_size=2, choice_select_prompt=CHOICE)
    engine = RetrieverQueryEngine(retriever, get_response_synthesizer(llm=llm), [reranker])
    with counted(service) as original:
        plain = apart(lambda: str(engine.query(QUESTION)))
    fast = optimize(engine)
    service.holds, service.awaits = "text 0", "text 4"
    with counted(service) as made:
        assert apart(lambda: str(fast.query(QUESTION))) == plain
    assert not service.has_waited_in_vain
    assert made == original


def ranked(llm: Any, **settings: Any) -> Callable[[Any], Any]:
    """Return a function that makes a reranker of its own."""

    def rank(given: list[TextNode]) -> Any:
        reranker = LLMRerank(llm=llm, choice_batch_size=2, choice_select_prompt=CHOICE, **settings)
        found = [NodeWithScore(node=each) for each in given]
        return [each.node.text for each in reranker.postprocess_nodes(found, query_str=QUESTION)]

    return rank


def test_a_reranker_that_a_function_makes_asks_for_all_batches_at_once(service: Service) -> None:
    report = asked_side_by_side(service, ranked(chat(service)), "no", "no", lambda rank: apart(rank, nodes()))
    assert report.hits >= 1


@pytest.mark.parametrize(
    ("settings", "of"), [({"parse_choice_select_answer_fn": _none_or_bad}, TextNode), ({}, Counted)]
)
def test_a_reranker_with_code_of_the_users_asks_for_one_batch_at_a_time(
    service: Service, settings: dict[str, Any], of: type[TextNode]
) -> None:
    given = [of(text=f"text {number}", id_=f"n{number}") for number in range(COUNT)]
    rank = ranked(chat(service), **settings)
    service.lasts_s, fast, seen = 0.1, optimize(rank), []
    for app in (rank, fast):
        Counted.seen, count = 0, len(service.asked)
        with contextlib.suppress(ValueError):
            apart(app, given)
        seen.append((Counted.seen, len(service.asked) - count))
    assert seen[0] == seen[1]
    assert (seen[0][0] > 0) == (of is Counted)


class Own(TitleExtractor):
    """Whose loop is the user's."""

    async def get_title_candidates(self, nodes: Any) -> list[str]:
        return ["x"]


def _parsed(answer: str, count: int, raise_error: bool = False) -> Any:
    return [int(answer)], [1.0]


def test_loops_that_hold_code_of_the_users_are_left_alone(service: Service) -> None:
    llm = chat(service)
    parsing = SummaryIndexLLMRetriever(SummaryIndex(nodes()), llm=llm, parse_choice_select_answer_fn=_parsed)
    assert loops_in([Own(llm=llm), parsing]) == ()
    assert not any(map(reads_any_choice, (_parsed, None)))
    assert loops_in([titled(llm)]) == ("TitleExtractor.get_title_candidates",)


@pytest.mark.parametrize(
    ("make", "act"), [(listed, lambda engine: engine.query(QUESTION)), (titled, lambda e: e.aextract(nodes()))]
)
def test_events_are_those_of_the_original(make: Callable[[Any], Any], act: Callable[[Any], Any]) -> None:
    def look(component: Any, stage: Stage) -> Any:
        return sorted(stage.engines.llm.seen)

    same(lambda stage: make(stage.engines.model), act, exact=False, look=look)


def test_the_slots_that_come_next() -> None:
    slots = Slots()
    begun = slots.mark()
    first, second = (slots.coming("key", begun) for _ in range(2))
    assert (first.outcome, second.outcome) == ("miss", "miss")
    assert slots.coming("key", slots.mark())[:2] == (first.reply, "hit")
    assert slots.retire("key").reply is first.reply
    assert slots.coming("key", slots.mark()).reply is second.reply
    assert slots.ahead("key").outcome == "miss"
    assert slots.give_up(second.reply)
    again = slots.coming("key", slots.mark())
    assert again.outcome == "miss"
    assert slots.retire("key").reply is again.reply
    assert slots.clear()[1] == 1


# --- loops that build an index ---------------------------------------------------------------------------------------


def keywords(llm: Any, given: list[TextNode]) -> Any:
    return sorted(KeywordTableIndex(given, llm=llm).index_struct.table)


def tree(llm: Any, given: list[TextNode]) -> Any:
    index = TreeIndex(given, llm=llm, num_children=2, use_async=False)
    return [node.text for node in index.docstore.docs.values()]


def summaries(llm: Any, given: list[TextNode]) -> Any:
    index = DocumentSummaryIndex.from_documents(
        [Document(text=each.text, id_=each.id_, metadata=each.metadata) for each in given], llm=llm,
        response_synthesizer=get_response_synthesizer(
            llm=llm, response_mode=ResponseMode.TREE_SUMMARIZE, use_async=True
        ),
        embed_summaries=False, embed_model=MockEmbedding(8),
    )  # fmt: skip
    return [index.get_document_summary(each.id_) for each in given]


BUILDERS = [keywords, tree, summaries]


def built(build: Any, llm: Any, given: Callable[[], list[TextNode]] = nodes) -> Callable[[], Any]:
    def make() -> Any:
        return build(llm, given())

    return make


def gained(make: Any) -> int:
    """Return how many requests ran ahead of a function; all answers, and all requests, are those of the original.

    The second call tells: the first one reads the sources, which may take longer than a reply.
    """
    fast = optimize(make)
    for _ in range(2):
        assert apart(fast) == apart(make)
    report = optimized(fast).reports[-1]
    assert report.wasted == 0
    return int(report.hits)


@pytest.mark.parametrize("build", BUILDERS)
def test_an_index_asks_about_all_of_its_nodes_at_once(service: Service, build: Any) -> None:
    make = built(build, chat(service))
    with counted(service) as original:
        plain = apart(make)
    fast = optimize(make)
    service.holds, service.awaits = "text 0", "text 5"
    with counted(service) as made:
        assert apart(fast) == plain
    assert not service.has_waited_in_vain
    assert made == original
    report = optimized(fast).reports[-1]
    assert (report.wasted, report.fallbacks) == (0, ())


@pytest.mark.parametrize("build", BUILDERS)
def test_an_index_of_one_node_asks_as_it_did(service: Service, build: Any) -> None:
    assert gained(built(build, chat(service), lambda: nodes(1))) == 0


@pytest.mark.parametrize(
    ("mode", "is_async", "hits"),
    [
        (ResponseMode.REFINE, False, 3),  # the first prompt of each document
        (ResponseMode.ACCUMULATE, False, 6),
        (ResponseMode.ACCUMULATE, True, 0),  # in coroutines, on an event loop that does not exist yet
    ],
)
def test_of_a_document_all_is_asked_that_needs_no_reply(
    service: Service, mode: ResponseMode, is_async: bool, hits: int
) -> None:
    llm = chat(service)

    def make() -> Any:
        given = nodes()
        for number, node in enumerate(given):
            node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=f"d{number // 2}")
        index = DocumentSummaryIndex(
            given, llm=llm, embed_summaries=False, embed_model=MockEmbedding(8),
            response_synthesizer=get_response_synthesizer(llm=llm, response_mode=mode, use_async=is_async),
        )  # fmt: skip
        return [index.get_document_summary(f"d{number}") for number in range(3)]

    service.lasts_s = READ_S
    assert gained(make) == hits


class OwnNode(TextNode):
    """A node of the user's."""


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    "make", [lambda n: OwnNode(text=f"t{n}"), lambda n: TextNode(text=f"t{n}", metadata={"a": []})]
)
def test_nodes_that_may_hold_code_of_the_users_are_not_shown_early(service: Service, build: Any, make: Any) -> None:
    if build is keywords or type(make(0)) is TextNode:  # a docstore and a document make them stock nodes
        assert gained(built(build, chat(service), lambda: [make(n) for n in range(4)])) == 0


class OwnTable(KeywordTableIndex):
    """Which extracts in a way of the user's."""

    def _extract_keywords(self, text: str) -> set[str]:
        return super()._extract_keywords(text)


def test_indexes_of_the_users_classes_are_left_alone(service: Service) -> None:
    llm = chat(service)
    assert gained(lambda: sorted(OwnTable(nodes(), llm=llm).index_struct.table)) == 0
    assert gained(lambda: len(TreeIndex(nodes(), llm=llm, num_children=2, use_async=True).docstore.docs)) == 0


def test_nothing_is_asked_early_where_stop_words_may_be_missing(
    service: Service, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = built(keywords, chat(service))
    monkeypatch.setattr(utils.globals_helper, "_stopwords", None)
    monkeypatch.setenv("NLTK_DATA", str(tmp_path))
    monkeypatch.setattr("nltk.data.path", [])
    monkeypatch.setattr("nltk.download", lambda *args, **kwargs: None)
    for each in (make, optimize(make)):
        with counted(service) as made, pytest.raises((LookupError, PermissionError), match="stopwords"):
            apart(each)
        assert made.total() == 1


class Stream(io.StringIO):
    """May refuse what is printed."""


def test_nothing_is_asked_early_where_an_index_may_not_print(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    make = built(summaries, chat(service))
    monkeypatch.setattr("sys.stdout", Stream())
    assert gained(make) == 0
