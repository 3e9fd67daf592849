"""Chains, retrievers and counters that a function makes: read as if made before, and nothing runs early."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import pytest
from langchain_classic.chains import LLMChain, RetrievalQA
from langchain_classic.chains.combine_documents.stuff import StuffDocumentsChain
from langchain_classic.memory import ConversationBufferMemory
from langchain_classic.retrievers import ContextualCompressionRetriever, EnsembleRetriever, MultiQueryRetriever
from langchain_classic.retrievers.document_compressors import LLMChainExtractor
from langchain_community.callbacks import get_openai_callback
from langchain_community.vectorstores import FAISS
from langchain_core.callbacks import get_usage_metadata_callback
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.prompts import PromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import RunnableLambda
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from teola_plugin import optimize, optimized
from tests.support.hosted_service import Service, asked_side_by_side, counted, served

pytestmark = pytest.mark.filterwarnings("ignore::langchain_core._api.deprecation.LangChainDeprecationWarning")

RAN: list[str] = []


class World:
    """A model, embeddings and stores at a service."""

    def __init__(self, service: Service) -> None:
        self.own = {"base_url": service.url, "api_key": "x", "max_retries": 0}
        self.service, self.llm = service, self.chat()
        self.embeddings = OpenAIEmbeddings(**self.own, check_embedding_ctx_length=False)
        self.store = InMemoryVectorStore.from_texts([f"text {n}" for n in range(3)], self.embeddings)

    def chat(self, **settings: Any) -> ChatOpenAI:
        return ChatOpenAI(model="m", **self.own, **settings)


@pytest.fixture
def world() -> Iterator[World]:
    RAN.clear()
    with served() as service:
        yield World(service)


def texts_of(documents: list[Document]) -> list[str]:
    return [each.page_content for each in documents]


PROMPT = PromptTemplate.from_template("{question} of {context}")


class Judging(BaseRetriever, BaseModel):
    """As public code writes it."""

    vectorstore: Any = Field(description="a store")
    llm: Any = None
    k: int = 3

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def _get_relevant_documents(self, query: str, *, run_manager: Any = None, most: int = 2) -> list[Document]:
        found = self.vectorstore.similarity_search(query, k=self.k)
        return [each for each in found if "text" in self.llm.invoke(f"rate {each.page_content}").content][:most]


class Typed(BaseRetriever):
    base: BaseRetriever
    judge: BaseChatModel
    says: str = "rate"

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [d for d in self.base.invoke(query) if self.judge.invoke(f"{self.says} {d.page_content}").content]


# --- asked early -----------------------------------------------------------------------------------------------------


def of_type(world: World, text: str) -> Any:
    qa = RetrievalQA.from_chain_type(
        llm=world.chat(temperature=0), chain_type="stuff", retriever=world.store.as_retriever(search_kwargs={"k": 2}),
        chain_type_kwargs={"prompt": PROMPT, "verbose": False}, return_source_documents=True,
    )  # fmt: skip
    return [qa.invoke({"query": f"{text} {number}"})["result"] for number in range(3)]


def of_llm(world: World, text: str) -> Any:
    qa = RetrievalQA.from_llm(world.llm, retriever=world.store.as_retriever(), prompt=PROMPT)
    return [qa({"query": f"{text} {number}"})["result"] for number in range(3)]


def one_for_each(world: World, text: str) -> Any:
    found = []
    for number in range(3):
        qa = RetrievalQA.from_chain_type(world.llm, retriever=world.store.as_retriever())
        found.append(qa.invoke(f"{text} {number}")["result"])
    return found


def llm_chain(world: World, text: str) -> Any:
    chain = LLMChain(llm=world.llm, prompt=PromptTemplate.from_template("about {x}"))
    return [chain.run(f"{text} {number}") for number in range(3)]


def stuffing(world: World, text: str) -> Any:
    chain = StuffDocumentsChain(llm_chain=LLMChain(llm=world.llm, prompt=PROMPT), document_variable_name="context")
    given = [Document("one"), Document("two")]
    return [chain.invoke({"input_documents": given, "question": f"{text} {n}"})["output_text"] for n in range(3)]


def judging(world: World, text: str) -> Any:
    return texts_of(Judging(vectorstore=world.store, llm=world.llm).invoke(text))


def typed(world: World, text: str) -> Any:
    return texts_of(Typed(base=world.store.as_retriever(), judge=world.chat(), says="grade").invoke(text))


def judging_in_chain(world: World, text: str) -> Any:
    retriever = Judging(vectorstore=world.store, llm=world.llm, k=2)
    qa = RetrievalQA.from_chain_type(world.llm, retriever=retriever, return_source_documents=True)
    found = qa({"query": text})
    return found["result"], texts_of(found["source_documents"])


def extracting(world: World, text: str) -> Any:
    retriever = ContextualCompressionRetriever(
        base_compressor=LLMChainExtractor.from_llm(world.llm), base_retriever=world.store.as_retriever()
    )
    return texts_of(retriever.invoke(text))


def multi_query(world: World, text: str) -> Any:
    retriever = MultiQueryRetriever.from_llm(
        retriever=world.store.as_retriever(), llm=world.llm,
        prompt=PromptTemplate.from_template("Split {question}"),
    )  # fmt: skip
    return texts_of(retriever.invoke(text))


def ensemble(world: World, text: str) -> Any:
    both = [world.store.as_retriever(), world.store.as_retriever(search_kwargs={"k": 1})]
    qa = RetrievalQA.from_llm(
        world.llm, retriever=EnsembleRetriever(retrievers=both, weights=[0.5, 0.5]), prompt=PROMPT
    )
    return [qa.invoke(f"{text} {number}")["result"] for number in range(3)]


def counting(world: World, text: str) -> Any:
    with get_openai_callback() as counter:
        found = [world.llm.invoke(f"{text} {number}").content for number in range(3)]
        print("tokens", counter.total_tokens, counter)
    return found, counter.successful_requests


def counting_usage(world: World, text: str) -> Any:
    with get_usage_metadata_callback() as counter:
        found = [world.llm.invoke(f"{text} {number}").content for number in range(3)]
    return found, counter.usage_metadata


FORMS: dict[str, tuple[Callable[[World, str], Any], tuple[str, str]]] = {
    "RetrievalQA.from_chain_type": (of_type, ("embed ['q 0']", "embed ['q 2']")),
    "RetrievalQA.from_llm": (of_llm, ("chat q 0 of", "chat q 2 of")),
    "a RetrievalQA for each": (one_for_each, ("embed ['q 0']", "embed ['q 2']")),
    "LLMChain": (llm_chain, ("about q 0", "about q 2")),
    "StuffDocumentsChain": (stuffing, ("chat q 0 of one", "chat q 2 of one")),
    "a retriever": (judging, ("rate", "")),
    "a retriever with typed fields": (typed, ("grade", "")),
    "a retriever in a chain": (judging_in_chain, ("rate", "")),
    "an extractor": (extracting, (">>>", "")),
    "EnsembleRetriever": (ensemble, ("embed ['q 0']", "embed ['q 2']")),
    "get_openai_callback": (counting, ("chat q 0", "chat q 2")),
    "get_usage_metadata_callback": (counting_usage, ("chat q 0", "chat q 2")),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_a_function_makes_asks_early(world: World, name: str) -> None:
    answer, (first, last) = FORMS[name]
    if not last:  # one request for each document, which are asked for in the order in which they are found
        with counted(world.service):
            answer(world, "q")
        asked = [each for each in world.service.asked if first in each]
        first, last = asked[0], asked[-1]
        assert first != last
    asked_side_by_side(
        world.service, RunnableLambda(lambda text: answer(world, text)), first, last, lambda a: a.invoke("q")
    )


def test_a_counter_counts_once(world: World) -> None:
    world.service.lasts_s = 0.05

    def answer(text: str) -> Any:
        context = get_openai_callback()
        with context:
            world.llm.invoke(text)
        with context:  # raises
            return world.llm.invoke("more")

    with counted(world.service) as original, pytest.raises(AttributeError):
        answer("q")
    with counted(world.service) as made, pytest.raises(AttributeError):
        optimize(RunnableLambda(answer)).invoke("q")
    assert made == original


def test_several_queries(world: World) -> None:
    report = run_once(world, lambda text: multi_query(world, text))
    assert report.hits + report.shared > 2
    assert report.wasted == 0


async def test_coroutines(world: World) -> None:
    async def answer(text: str) -> Any:
        retriever = Judging(vectorstore=world.store, llm=world.llm)
        qa = RetrievalQA.from_chain_type(world.llm, retriever=world.store.as_retriever())
        with get_openai_callback():
            found = [(await qa.ainvoke({"query": f"{text} {number}"}))["result"] for number in range(3)]
        return found, texts_of(await retriever.ainvoke(text))

    world.service.lasts_s = 0.02
    app = RunnableLambda(answer)
    fast: Any = optimize(app)
    with counted(world.service) as original:
        expected = await app.ainvoke("q")
    with counted(world.service) as made:
        assert await fast.ainvoke("q") == expected
    assert made == original
    report = optimized(fast).reports[-1]
    assert report.hits + report.shared > 6
    assert report.wasted == 0


def test_behind_a_store_that_the_function_makes(world: World) -> None:
    def answer(text: str) -> Any:
        store = FAISS.from_texts(["text 1", "text 2"], world.embeddings)
        qa = RetrievalQA.from_chain_type(
            world.llm, retriever=store.as_retriever(), chain_type_kwargs={"prompt": PROMPT}
        )
        return [qa.invoke(f"{text} {number}")["result"] for number in range(3)]

    asked_side_by_side(world.service, RunnableLambda(answer), "embed ['q 0']", "embed ['q 2']", lambda a: a.invoke("q"))


unread: Any = eval("lambda act: act()", {"__name__": "client"})
"""A function without source, which does what it is given."""


def test_a_chain_that_an_inner_function_sets_behind_a_barrier(world: World) -> None:
    def answer(text: str) -> Any:
        chain = PromptTemplate.from_template("one {x}") | world.llm

        def turn() -> None:
            nonlocal chain
            chain = PromptTemplate.from_template("two {x}") | world.llm

        unread(turn)
        first = world.llm.invoke(f"first {text}").content
        return [first] + [chain.invoke({"x": f"{text} {number}"}).content for number in range(3)]

    assert run_once(world, answer).wasted == 0


# --- exactly as made -------------------------------------------------------------------------------------------------


def is_warned_of(cls: Any) -> Any:
    """Return the cell that says whether LangChain has warned of a class in this process."""
    return cls.__init__.__closure__[cls.__init__.__code__.co_freevars.index("warned")]


@pytest.mark.parametrize("name", ["RetrievalQA.from_llm", "LLMChain", "StuffDocumentsChain"])
def test_the_framework_s_run_warns_once(world: World, name: str) -> None:
    app = RunnableLambda(lambda text: FORMS[name][0](world, text))
    cells = [is_warned_of(cls) for cls in (RetrievalQA, LLMChain, StuffDocumentsChain)]
    heard = []
    for each in (app, optimize(app)):
        for cell in cells:
            cell.cell_contents = False
        with warnings.catch_warnings(record=True, action="always") as caught:
            each.invoke("q")
        told = [(str(each.message), each.filename, each.lineno) for each in caught]
        heard.append([each for each in told if "The class" in each[0]])
    assert heard[0] == heard[1]
    assert len(heard[0]) == {"LLMChain": 1, "StuffDocumentsChain": 2}.get(name, 0)


def test_warnings_that_are_errors(world: World) -> None:
    def answer(text: str) -> Any:
        world.llm.invoke(f"first {text}")
        try:
            chain = LLMChain(llm=world.llm, prompt=PromptTemplate.from_template("about {x}"))
        except Exception as e:
            return type(e).__name__
        return [chain.invoke(f"{text} {number}")["text"] for number in range(3)]

    app = RunnableLambda(answer)
    fast = optimize(app)
    world.service.lasts_s = 0.05
    found = []
    for each in (app, fast):
        is_warned_of(LLMChain).cell_contents = False
        with counted(world.service) as asked, warnings.catch_warnings(action="error"):
            told = each.invoke("q")
        found.append((told, asked))
    assert found[0] == found[1]
    assert found[0][0].endswith("Warning")


def test_a_chain_that_cannot_be_made(world: World) -> None:
    def answer(text: str) -> Any:
        try:
            chain = StuffDocumentsChain(llm_chain=LLMChain(llm=world.llm, prompt=PROMPT), document_variable_name="none")
            first = chain.invoke({"input_documents": [], "question": text})["output_text"]
        except ValueError:
            first = "no chain"
        return [first, *(world.llm.invoke(f"{text} {number}").content for number in range(3))]

    app = RunnableLambda(answer)
    report = asked_side_by_side(world.service, app, "chat q 0", "chat q 2", lambda each: each.invoke("q"))
    assert report.hits > 0


# --- left to the framework -------------------------------------------------------------------------------------------


class WithInit(Judging):
    def __init__(self, **given: Any) -> None:
        RAN.append("init")
        super().__init__(**{**given, "k": 1})


class WithPostInit(Judging):
    def model_post_init(self, context: Any) -> None:
        RAN.append("post init")
        super().model_post_init(context)


class WithValidator(Judging):
    @model_validator(mode="before")
    @classmethod
    def check(cls, values: Any) -> Any:
        RAN.append("validator")
        return values


class WithAfter(Judging):
    @model_validator(mode="after")
    def check(self) -> Any:
        RAN.append("after")
        return self


def noted(value: Any) -> Any:
    RAN.append("field")
    return value


class WithFieldValidator(Judging):
    k: Annotated[int, AfterValidator(noted)] = 3


class WithComponentValidator(Judging):
    judge: Annotated[BaseChatModel | None, AfterValidator(noted)] = None


class WithFactory(Judging):
    seen: list[str] = Field(default_factory=lambda: RAN.append("factory") or [])


class WithPrivate(Judging):
    _seen: list[str] = PrivateAttr(default_factory=lambda: RAN.append("private") or [])


class WithInvoke(Judging):
    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        RAN.append("invoke")
        return super().invoke(*args, **kwargs)


class Meta(type(BaseModel)):  # type: ignore[misc]
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        RAN.append("meta")
        return super().__call__(*args, **kwargs)


class WithMeta(Judging, metaclass=Meta):
    pass


class Making(Judging):
    @classmethod
    def from_examples(cls, llm: Any, store: Any) -> Any:
        RAN.append("from_examples")
        return cls(vectorstore=store, llm=llm)


CLASSES = [
    WithInit, WithPostInit, WithValidator, WithAfter, WithFieldValidator, WithComponentValidator, WithFactory,
    WithPrivate, WithInvoke, WithMeta,
]  # fmt: skip
GIVEN = {WithFieldValidator: {"k": 2}, WithComponentValidator: {"judge": None}}


def run_once(world: World, answer: Callable[[str], Any]) -> Any:
    """Call a function, original and optimized; return the report. The code of the user's runs as often in both.

    The function asks for something else first: meanwhile it is read.
    """

    def answered(text: str) -> Any:
        first = [world.llm.invoke(f"{text} {name}").content for name in ("first", "second")]
        return first, answer(text)

    app = RunnableLambda(answered)
    with counted(world.service) as original:
        expected = app.invoke("q")
    ran = list(RAN)
    fast = optimize(app)
    world.service.lasts_s = 0.05
    for _ in range(2):
        RAN.clear()
        with counted(world.service) as made:
            assert fast.invoke("q") == expected
        assert made == original
        assert ran == RAN
    return optimized(fast).reports[-1]


@pytest.mark.parametrize("cls", CLASSES)
def test_code_of_the_users_is_not_run_early(world: World, cls: Any) -> None:
    given = GIVEN.get(cls, {})

    def answer(text: str) -> Any:
        return texts_of(cls(vectorstore=world.store, llm=world.llm, **given).invoke(text))

    run_once(world, answer)
    assert RAN


def test_a_class_method_of_the_users_is_read(world: World) -> None:
    def answer(text: str) -> Any:
        return texts_of(Making.from_examples(world.llm, world.store).invoke(text))

    run_once(world, answer)
    assert RAN == ["from_examples"]


class Listing(Judging):
    texts: Any = None

    def _get_relevant_documents(self, query: str, *, run_manager: Any = None) -> list[Document]:
        return [Document(self.llm.invoke(f"say {text}").content) for text in self.texts]


def test_a_list_that_changes_behind_the_object(world: World) -> None:
    def answer(text: str) -> Any:
        texts = [text]
        retriever = Listing(vectorstore=world.store, llm=world.llm, texts=texts)
        texts[0] = "another"
        return texts_of(retriever.invoke(text))

    report = run_once(world, answer)
    assert report.wasted == 0


@pytest.mark.parametrize("given", [{"k": "2"}, {"k": "many"}, {"unknown": 1}, {"k": 2.5}, {"llm": None}])
def test_fields_are_checked_as_pydantic_checks_them(world: World, given: Any) -> None:
    def answer(text: str) -> Any:
        try:
            return texts_of(Judging(**{"vectorstore": world.store, "llm": world.llm, **given}).invoke(text))
        except (ValueError, AttributeError) as e:
            return type(e).__name__

    assert run_once(world, answer).wasted == 0


def test_a_component_of_another_class(world: World) -> None:
    def answer(text: str) -> Any:
        try:
            return texts_of(Typed(base=world.llm, judge=world.llm).invoke(text))  # type: ignore[arg-type]
        except ValueError as e:
            return type(e).__name__

    assert run_once(world, answer).wasted == 0


def test_settings_that_a_function_changes(world: World) -> None:
    def answer(text: str) -> Any:
        retriever = Judging(vectorstore=world.store, llm=world.llm)
        retriever.k = 1
        return texts_of(retriever.invoke(text))

    assert run_once(world, answer).wasted == 0


ASKED: list[str] = []


class Counting(Judging):
    def _get_relevant_documents(self, query: str, *, run_manager: Any = None) -> list[Document]:
        ASKED.append(query)
        found = [Document(self.llm.invoke(f"say {query} {number}").content) for number in range(2)]
        if len(ASKED) % 3 == 2:
            found.append(Document(self.llm.invoke(f"at last {query}").content))
        return found


def test_a_retriever_that_counts(world: World) -> None:
    def answer(text: str) -> Any:
        ASKED.clear()
        retriever = Counting(vectorstore=world.store, llm=world.llm)
        return [texts_of(retriever.invoke(f"{text} {number}")) for number in range(3)]

    assert run_once(world, answer).wasted == 0


class Own(RetrievalQA):
    def prep_inputs(self, inputs: Any) -> Any:
        return {"query": f"own {inputs}"}


LEFT: dict[str, Callable[[World], Any]] = {
    "a memory": lambda world: RetrievalQA.from_chain_type(
        world.llm, retriever=world.store.as_retriever(), memory=ConversationBufferMemory()
    ),
    "another type": lambda world: RetrievalQA.from_chain_type(
        world.llm, chain_type="refine", retriever=world.store.as_retriever(search_kwargs={"k": 1})
    ),
    "a class of the user's": lambda world: Own.from_chain_type(world.llm, retriever=world.store.as_retriever()),
    "handlers": lambda world: RetrievalQA.from_llm(
        world.llm, retriever=world.store.as_retriever(), callbacks=[_handler()]
    ),
}


def _handler() -> Any:
    from langchain_core.callbacks import StdOutCallbackHandler

    return StdOutCallbackHandler()


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.filterwarnings("ignore")
def test_other_chains_are_left_to_the_framework(world: World, name: str) -> None:
    def answer(text: str) -> Any:
        chain = LEFT[name](world)
        return [chain.invoke(f"{text} {number}")["result"] for number in range(2)]

    assert run_once(world, answer).wasted == 0


def test_a_method_that_was_replaced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    published = RetrievalQA.from_chain_type.__func__  # type: ignore[attr-defined]

    def from_chain_type(cls: Any, *args: Any, **kwargs: Any) -> Any:
        RAN.append("replaced")
        return published(cls, *args, **kwargs)

    monkeypatch.setattr(RetrievalQA, "from_chain_type", classmethod(from_chain_type))
    run_once(world, lambda text: one_for_each(world, text))
    assert RAN == ["replaced"] * 3


def test_a_stream_is_not_asked_early_where_tokens_are_heard(world: World) -> None:
    streamed = world.chat(streaming=True)

    def answer(text: str) -> Any:
        with get_openai_callback():
            return [streamed.invoke(f"{text} {number}").content for number in range(3)]

    assert run_once(world, answer).hits == 1


def test_a_function_of_the_same_name(world: World) -> None:
    import contextlib

    @contextlib.contextmanager
    def get_openai_callback() -> Iterator[None]:
        RAN.append("entered")
        yield
        RAN.append("left")

    def answer(text: str) -> Any:
        with get_openai_callback():
            return [world.llm.invoke(f"{text} {number}").content for number in range(2)]

    run_once(world, answer)
    assert RAN == ["entered", "left"]
