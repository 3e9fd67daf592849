"""A search finds a list of documents: reading these raises nothing, so what stands behind is asked beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from langchain_classic.retrievers.multi_query import MultiQueryRetriever
from langchain_core.documents import Document
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from teola_plugin import optimize
from tests.support.hosted_service import Service, asked_side_by_side, counted, served


class World:
    def __init__(self, service: Service) -> None:
        own: dict[str, Any] = {"base_url": service.url, "api_key": "x", "max_retries": 0}
        embeddings = OpenAIEmbeddings(**own, check_embedding_ctx_length=False)
        texts, about = [f"text {n}" for n in range(3)], [{"source": n, "page": n} for n in range(3)]
        self.service, self.llm = service, ChatOpenAI(model="m", **own)
        self.store = InMemoryVectorStore.from_texts(texts, embeddings, metadatas=about)
        self.retriever = self.store.as_retriever(search_kwargs={"k": 9})
        self.document, self.rows = Document(""), self.store.store

    def said(self) -> Any:
        return self.llm.invoke("last").content


@pytest.fixture
def world() -> Iterator[World]:
    with served() as service:
        yield World(service)


def called(app: Any, world: World) -> Any:
    return app(world)


def texts_of(documents: list[Document]) -> str:
    return "\n\n".join(each.page_content for each in documents)


# --- asked beside the search -----------------------------------------------------------------------------------------


def joined(world: World) -> Any:
    return texts_of(world.retriever.invoke("first")), world.said()


def listed(world: World) -> Any:
    return [each.page_content.strip() for each in world.store.similarity_search("first", k=2)], world.said()


def in_a_loop(world: World) -> Any:
    text = ""
    for number, each in enumerate(world.retriever.invoke("first"), 1):
        text += f"[{number}] {each.page_content}\n"
    return text, world.said()


def part_of_them(world: World) -> Any:
    return texts_of(world.retriever.invoke("first")[:2]), world.said()


def added(world: World) -> Any:
    return texts_of(world.retriever.invoke("first") + world.retriever.invoke("second")), world.said()


def with_metadata(world: World) -> Any:
    found = world.retriever.invoke("first")
    return [f"{each.metadata.get('source', '?')}: {each.page_content[:2]} {each.id}" for each in found], world.said()


def with_scores(world: World) -> Any:
    found = world.store.similarity_search_with_score("first", k=2)
    return [f"{each.page_content} ({score:.3f})" for each, score in found], world.said()


@pytest.mark.parametrize("form", [joined, listed, in_a_loop, part_of_them, added, with_metadata, with_scores])
def test_what_stands_behind_is_asked_beside_the_search(form: Callable[[World], Any], world: World) -> None:
    asked_side_by_side(world.service, form, "first", "last", partial(called, world=world))


# --- asked beside the search: what is stored in the documents that it has made ---------------------------------------


def with_a_tag(world: World) -> Any:
    found = world.retriever.invoke("first")
    for each in found:
        each.metadata["query"] = "first"
    return [each.metadata for each in found], world.said()


def with_a_tag_if_there_is_none(world: World) -> Any:
    found = world.retriever.invoke("first")
    for each in found:
        if "query" not in each.metadata:
            each.metadata["query"] = each.page_content
    return [each.metadata.get("query") for each in found], world.said()


def with_tags_by_methods(world: World) -> Any:
    found = world.retriever.invoke("first")
    for number, each in enumerate(found):
        about = each.metadata
        about.update({"number": number}, query="first")
        about.update(kept=True)
        about.setdefault("source", "?")
    return [f"{each.metadata.get('source')}" for each in found], [each.metadata for each in found], world.said()


def with_its_score(world: World) -> Any:
    found = world.store.similarity_search_with_score("first", k=2)
    for each, score in found:
        each.metadata["score"] = score
    return [each.metadata for each, _ in found], world.said()


def with_another_text(world: World) -> Any:
    found = world.retriever.invoke("first")
    for each in found:
        each.page_content = f"- {each.page_content.strip()}"
    return texts_of(found), world.said()


def tagged_by_several(world: World) -> Any:
    found: list[Document] = []
    for query in ("first", "second", "last"):
        some = world.retriever.invoke(query)
        for each in some:
            each.metadata["query"] = query
        found.extend(some)
    return world.llm.invoke(str([each.metadata for each in found])).content


STORING = [with_a_tag, with_a_tag_if_there_is_none, with_tags_by_methods, with_its_score, with_another_text]


@pytest.mark.parametrize("form", STORING)
def test_a_store_into_found_documents_holds_nothing_back(form: Callable[[World], Any], world: World) -> None:
    asked_side_by_side(world.service, form, "first", "last", partial(called, world=world))


def test_searches_are_asked_together_although_each_result_is_tagged(world: World) -> None:
    call = partial(called, world=world)
    asked_side_by_side(world.service, tagged_by_several, "embed ['first']", "embed ['last']", call)


def several(world: World) -> MultiQueryRetriever:
    return MultiQueryRetriever.from_llm(world.retriever, world.llm)


def tagged_by_several_queries(world: World) -> Any:
    found: list[Document] = []
    for query in ("first", "last"):
        some = several(world).invoke(query)
        for each in some:
            each.metadata["query"] = query
        found.extend(some)
    return [each.metadata for each in found]


def test_what_several_queries_find_is_tagged(world: World) -> None:
    asked_side_by_side(world.service, tagged_by_several_queries, "first", "last", partial(called, world=world))


# --- not asked: what is done with the documents raises ---------------------------------------------------------------


class Odd:
    def __init__(self) -> None:
        self.page_content = None


def missing_key(world: World) -> Any:
    return [each.metadata["nothing"] for each in world.retriever.invoke("first")], world.said()


def missing_field(world: World) -> Any:
    return [each.nothing for each in world.retriever.invoke("first")], world.said()  # type: ignore[attr-defined]


def missing_document(world: World) -> Any:
    return world.retriever.invoke("first")[7].page_content, world.said()


def not_hashed(world: World) -> Any:
    return {each.metadata.get("nothing", []) for each in world.retriever.invoke("first")}, world.said()


def called_by_no_name(world: World) -> Any:
    return [each.metadata.get() for each in world.retriever.invoke("first")], world.said()  # type: ignore[call-overload]


def one_more(world: World) -> Any:
    found: Any = world.retriever.invoke("first")
    found.append(Odd())
    return [each.page_content.strip() for each in found], world.said()


def one_in_place_of_another(world: World) -> Any:
    found: Any = world.retriever.invoke("first")
    found[:1] = [Odd()]
    return [each.page_content.strip() for each in found], world.said()


def one_more_in_a_part(world: World) -> Any:
    found: Any = world.retriever.invoke("first")[:2]
    found += [Odd()]
    return [each.page_content.strip() for each in found], world.said()


def one_more_behind(world: World) -> Any:
    found: Any = [*world.retriever.invoke("first"), Odd()]
    return [each.page_content.strip() for each in found], world.said()


def no_text(world: World) -> Any:
    found: Any = world.retriever.invoke("first")
    for each in found:
        each.page_content = None
    return [each.page_content.strip() for each in found], world.said()


def not_a_pair(world: World) -> Any:
    return [score.strip() for _, score in world.store.similarity_search_with_score("first")], world.said()  # type: ignore[attr-defined]


def no_number(world: World) -> Any:
    for text in ("first", "second"):
        for each in world.retriever.invoke(text):
            each.metadata["n"] = None
            each.metadata["n"] + 1
    return world.said()


def no_number_by_method(world: World) -> Any:
    for text in ("first", "second"):
        for each in world.retriever.invoke(text):
            each.metadata.update(n=None)
            each.metadata["n"] + 1
    return world.said()


def no_number_by_default(world: World) -> Any:
    for text in ("first", "second"):
        for each in world.retriever.invoke(text):
            each.metadata.setdefault("n", None) + 1
    return world.said()


def no_number_seen_before(world: World) -> Any:
    for text in ("first", "second"):
        found = world.retriever.invoke(text)
        about = [each.metadata for each in found]
        for each in found:
            each.metadata["source"] = None
        for part in about:
            part["source"] + 1
    return world.said()


def no_number_the_second_time(world: World) -> Any:
    def noted(each: Document) -> None:
        each.metadata["source"] + 1
        each.metadata["source"] = None

    for text in ("first", "second"):
        found = world.retriever.invoke(text)
        list(map(noted, found + found))
    return world.said()


def no_number_in_its_text(world: World) -> Any:
    for text in ("first", "second"):
        for each in world.retriever.invoke(text):
            each.page_content = "one"
            int(each.page_content)
    return world.said()


def stored_while_walked(world: World) -> Any:
    for text in ("first", "second"):
        about = next(iter(world.retriever.invoke(text))).metadata
        for key in about:
            about[f"{key} of {text}"] = text
    return world.said()


def stored_while_all_are_made(world: World) -> Any:
    def tagged(about: Any, key: str) -> str:
        about["again"] = text
        return key

    for text in ("first", "second"):
        about = next(iter(world.retriever.invoke(text))).metadata
        list(map(partial(tagged, about), about))
    return world.said()


def stored_between_two_keys(world: World) -> Any:
    for text in ("first", "second"):
        about = next(iter(world.retriever.invoke(text))).metadata
        keys = iter(about)
        next(keys, None)
        about["n"] = text
        next(keys, None)
    return world.said()


RAISING = [
    missing_key, missing_field, missing_document, not_hashed, called_by_no_name, one_more, one_in_place_of_another,
    one_more_in_a_part, one_more_behind, no_text, not_a_pair, no_number, no_number_by_method, no_number_by_default,
    no_number_seen_before, no_number_the_second_time, no_number_in_its_text, stored_while_walked,
    stored_while_all_are_made, stored_between_two_keys,
]  # fmt: skip


@pytest.mark.parametrize("form", RAISING)
def test_nothing_is_asked_behind_what_raises(form: Callable[[World], Any], world: World) -> None:
    fast, errors = optimize(form), set()
    world.service.lasts_s = 0.1
    for app in (form, fast, fast):
        with counted(world.service) as asked, pytest.raises(Exception) as raised:  # noqa: PT011
            app(world)
        errors.add(repr(raised.value))
        assert asked == {"embed ['first'] None": 1}
    assert len(errors) == 1


def test_a_field_that_was_replaced_may_raise(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def content(self: Document) -> str:
        raise ValueError("as planned")

    fast = optimize(joined)
    fast(world)
    world.service.lasts_s = 0.1
    monkeypatch.setattr(Document, "page_content", property(content), raising=False)
    for app in (joined, fast, fast):
        with counted(world.service) as asked, pytest.raises(Exception, match="as planned"):
            app(world)
        assert asked == {"embed ['first'] None": 1}


# --- what is stored in them ------------------------------------------------------------------------------------------


def in_a_shared_list(world: World) -> Any:
    kept, number = [1], 1
    for each in world.retriever.invoke("first"):
        each.metadata["kept"] = kept
        held: Any = each.metadata.get("kept")
        if held:
            kept.clear()
            if not held:
                number = 2
    return world.llm.invoke(f"last {number}").content


def in_a_dict_of_the_program(world: World) -> Any:
    about: Any = {"n": 1}
    own = about
    for each in world.retriever.invoke("first"):
        if each.metadata.get("source") == 7:
            about = each.metadata
    about["kept"] = 1
    return world.llm.invoke(f"last {own}").content


def in_a_dict_made_of_them(world: World) -> Any:
    about = {each.page_content: 1 for each in world.retriever.invoke("first")}
    other = about
    about["kept"] = 1
    return world.llm.invoke(f"last {len(other)}").content


def under_a_key_without_hash(world: World) -> Any:
    try:
        for each in world.retriever.invoke("first"):
            each.metadata[each.metadata.get("nothing", [])] = 1
    except TypeError:
        return world.llm.invoke("no key").content
    return world.said()


def of_an_object(world: World) -> Any:
    odd = Odd()
    for each in world.retriever.invoke("first"):
        each.metadata["odd"] = odd
        each.metadata["odd"].page_content = each.page_content
    return world.llm.invoke(f"last {odd.page_content}").content


def in_a_view(world: World) -> Any:
    try:
        for each in world.retriever.invoke("first"):
            view: Any = each.metadata.keys()
            view["n"] = 1
    except TypeError:
        return world.llm.invoke("no view").content
    return world.said()


SHARED = [
    in_a_shared_list, in_a_dict_of_the_program, in_a_dict_made_of_them, under_a_key_without_hash, of_an_object,
    in_a_view,
]  # fmt: skip


@pytest.mark.parametrize("form", SHARED)
def test_a_store_of_what_others_hold_is_read_exactly(form: Callable[[World], Any], world: World) -> None:
    fast, found = optimize(form), list[Any]()
    world.service.lasts_s = 0.1
    for app in (form, fast, fast):
        with counted(world.service) as asked:
            found.append((repr(app(world)), asked))
    assert found[1] == found[2] == found[0]


# --- what the program changes before a search ------------------------------------------------------------------------


class Rag:
    """As public code writes it."""

    def __init__(self, world: World) -> None:
        self.world, self.history, self.asked = world, list[str](), 0

    def answer(self, text: str) -> str:
        self.asked += 1
        found = self.world.llm.invoke(f"{texts_of(self.world.retriever.invoke(text))} {text}").content
        self.history.append(str(found))
        return str(found)

    def __call__(self, world: World) -> Any:
        return [self.answer(text) for text in ("first", "second", "last")]


def test_a_search_is_asked_behind_a_change_that_it_cannot_see(world: World) -> None:
    rag = Rag(world)

    def app(world: World) -> Any:
        return rag(world)

    asked_side_by_side(world.service, app, "embed ['first']", "embed ['last']", partial(called, world=world))


def in_its_store(world: World) -> None:
    next(iter(world.store.store.values()))["text"] = "other"


def in_its_metadata(world: World) -> None:
    next(iter(world.store.store.values()))["metadata"]["source"] = 7


def in_its_settings(world: World) -> None:
    world.retriever.search_kwargs["k"] = 1


def in_its_attribute(world: World) -> None:
    world.retriever.search_kwargs = {"k": 2}


def in_a_document(world: World) -> None:
    world.document.metadata["source"] = 7


def in_its_rows(world: World) -> None:
    world.rows.clear()


CHANGES = [in_its_store, in_its_metadata, in_its_settings, in_its_attribute, in_a_document, in_its_rows]


@pytest.mark.parametrize("change", CHANGES)
def test_a_search_sees_what_the_program_changes_before(
    change: Callable[[World], None], world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reply_to = Service.reply_to

    def reply_late(service: Service, path: str, given: dict[str, Any]) -> dict[str, Any]:
        if "first" in str(given):  # so that an early search ends before the change
            time.sleep(0.5)
        return reply_to(service, path, given)

    monkeypatch.setattr(Service, "reply_to", reply_late)

    def app(world: World) -> Any:
        first = world.llm.invoke("first").content
        change(world)
        found = world.retriever.invoke("second")
        return first, world.llm.invoke(str([(each.page_content, each.metadata) for each in found])).content

    world.document = Document("text 9", metadata={"source": 9})  # its metadata is the store's
    world.store.add_documents([world.document])

    before = dict(world.rows)

    def reset() -> None:
        world.document.metadata["source"] = 9
        world.rows.update(before)
        each = next(iter(world.store.store.values()))
        each["text"], each["metadata"]["source"], world.retriever.search_kwargs = "text 0", 0, {"k": 9}

    fast, found = optimize(app), list[Any]()
    for each in (app, fast, fast):
        reset()
        with counted(world.service) as asked:
            said = each(world)
        found.append((repr(said), asked))
    assert found[1] == found[2] == found[0]


# --- what else a store in memory holds -------------------------------------------------------------------------------


class Unsure:
    """Like a missing value of pandas'."""

    def __bool__(self) -> bool:
        raise TypeError("neither true nor false")

    def __str__(self) -> str:
        raise TypeError("no text")


def by_truth(world: World) -> Any:
    return [each.metadata.get("kept") and each.id for each in world.retriever.invoke("first")], world.said()


def by_text(world: World) -> Any:
    return [f"{each.metadata.get('kept')}" for each in world.retriever.invoke("first")], world.said()


def changed_twice(world: World) -> Any:
    for each in world.retriever.invoke("first"):
        each.metadata.get("kept", []).append("seen")
    return world.llm.invoke(str([each.metadata for each in world.retriever.invoke("last")])).content


@pytest.mark.parametrize("form", [by_truth, by_text, changed_twice])
def test_of_values_of_other_kinds_nothing_is_known(form: Callable[[World], Any], world: World) -> None:
    def reset() -> None:
        for each in world.store.store.values():
            each["metadata"]["kept"] = [] if form is changed_twice else Unsure()

    fast, found = optimize(form), list[Any]()
    world.service.lasts_s = 0.1
    for app in (form, fast, fast):
        reset()
        with counted(world.service) as asked:
            try:
                said = app(world)
            except TypeError as e:
                said = repr(e)
        found.append((said, asked))
    assert found[1] == found[2] == found[0]
