"""Code of the user's that is not declared runs as often, and in the same order, as in the original pipeline."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from langchain_chroma import Chroma
from langchain_classic.output_parsers import CombiningOutputParser, EnumOutputParser, RegexParser
from langchain_classic.retrievers import EnsembleRetriever, MergerRetriever
from langchain_core.documents import Document
from langchain_core.messages import HumanMessage
from langchain_core.output_parsers import BaseOutputParser, JsonOutputParser, PydanticOutputParser, StrOutputParser
from langchain_core.prompts import (
    ChatPromptTemplate,
    FewShotPromptTemplate,
    HumanMessagePromptTemplate,
    PromptTemplate,
)
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnableParallel, RunnablePassthrough
from langchain_core.tools import BaseTool, StructuredTool, create_retriever_tool
from llama_index.core.indices.prompt_helper import PromptHelper
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import LLMRerank, SimilarityPostprocessor
from llama_index.core.postprocessor.llm_rerank import default_parse_choice_select_answer_fn
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import PromptTemplate as LlamaTemplate
from llama_index.core.prompts import SelectorPromptTemplate
from llama_index.core.query_engine import CitationQueryEngine, RetrieverQueryEngine
from llama_index.core.response_synthesizers import get_response_synthesizer
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode
from pydantic import BaseModel, Field, field_validator

from teola_plugin import optimize, pure, reads
from teola_plugin.adapters import langchain as adapter
from teola_plugin.adapters.early import is_free_of_code
from teola_plugin.adapters.langchain.parsers import is_pure
from teola_plugin.adapters.langchain.tools import EarlyTool, read_tool
from teola_plugin.adapters.plain import is_plain
from teola_plugin.engines import Completion
from teola_plugin.models.langchain import EngineEmbeddings
from tests.support.fakes import FakeEngine
from tests.support.langchain_world import Engines, ask, digest
from tests.support.llamaindex_world import Engines as LlamaEngines
from tests.support.llamaindex_world import apart, index_of

LOG: list[str] = []


def note(what: str) -> str:
    LOG.append(what)
    return what


class Tally(str):
    """A text that notes each use of it; operators look harmless where they stand."""

    def __add__(self, other: str) -> str:
        note("add")
        return str.__add__(self, other)

    def __format__(self, spec: str) -> str:
        note("format")
        return str.__format__(self, spec)

    def __str__(self) -> str:
        note("str")
        return str.__str__(self)


TALLY = Tally("<")


class Speaks:
    """An object that notes when it is written out."""

    def __str__(self) -> str:
        return note("speaks")

    __repr__ = __str__


class TalliedDict(dict[str, Any]):
    """A dict that notes each use of it."""

    def __getitem__(self, key: str) -> Any:
        note("item")
        return dict.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        note("contains")
        return dict.__contains__(self, key)

    def __iter__(self) -> Iterator[str]:
        note("iter")
        return dict.__iter__(self)

    def keys(self) -> Any:
        note("keys")
        return dict.keys(self)


class TalliedList(list[Any]):
    """A list that notes who iterates over it."""

    def __iter__(self) -> Iterator[Any]:
        note("iter")
        return list.__iter__(self)


class Forged(Document):
    """A document that says it is LangChain's."""

    def __format__(self, spec: str) -> str:
        return note("forged")


Forged.__module__ = Document.__module__


class Checked(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def look(cls, word: str) -> str:
        note("validated")
        return word


class Prepared(BaseModel):
    word: str

    def model_post_init(self, context: Any) -> None:
        note("prepared")


class Stamped(BaseModel):
    word: str = ""
    stamp: str = Field(default_factory=lambda: note("stamped"))


class Holding(BaseModel):
    inner: Checked


class Colour(enum.Enum):
    RED = "red"

    @classmethod
    def _missing_(cls, value: object) -> Colour:
        note("missing")
        return cls.RED


# --- LangChain: parsers, prompts, retrievers -------------------------------------------------------------------------


class Adding(BaseOutputParser[str]):
    def parse(self, text: str) -> str:
        return TALLY + text

    @property
    def _type(self) -> str:
        return "adding"


class Subclassed(JsonOutputParser):
    def _diff(self, prev: Any, next: Any) -> Any:
        return next

    def parse_result(self, result: Any, *, partial: bool = False) -> Any:
        return note("subclassed")


class ForgedParser(StrOutputParser):
    def parse(self, text: str) -> str:
        return note("forged parser")


ForgedParser.__module__ = StrOutputParser.__module__


class Invoked(StrOutputParser):
    def parse_result(self, result: Any, *, partial: bool = False) -> Any:
        return note("invoked")


def parsing(parser: Any) -> Callable[[Engines], Runnable[Any, Any]]:
    """What follows asks with the parsed value, so that the run-ahead would have a use for it."""
    return lambda e: ask("{q}") | e.chat | parser | ask("{p}") | e.chat


def prompting(prompt: Any) -> Callable[[Engines], Runnable[Any, Any]]:
    return lambda e: prompt | e.chat | StrOutputParser()


def added() -> str:
    return TALLY + "a"


@functools.wraps(HumanMessage.pretty_repr)
def wrapped() -> str:
    return TALLY + "a"


def few(examples: list[Any]) -> FewShotPromptTemplate:
    one = PromptTemplate.from_template("{i}")
    return FewShotPromptTemplate(examples=examples, example_prompt=one, suffix="{q}", input_variables=["q"])


class OwnTemplate(PromptTemplate):
    def format(self, **kwargs: Any) -> str:
        return note("own template") + super().format(**kwargs)


class ForgedTemplate(OwnTemplate):
    pass


ForgedTemplate.__module__ = PromptTemplate.__module__


class OwnMessage(HumanMessage):
    def __getattribute__(self, name: str) -> Any:
        if name == "content":
            note("own message")
        return super().__getattribute__(name)


class OwnPrompt(HumanMessagePromptTemplate):
    def format(self, **kwargs: Any) -> Any:
        note("own prompt")
        return super().format(**kwargs)


PARSERS: dict[str, Any] = {
    "adding": Adding(),
    "subclassed": Subclassed(),
    "forged": ForgedParser(),
    "invoked": Invoked(),
    "validator": PydanticOutputParser(pydantic_object=Checked),
    "post_init": PydanticOutputParser(pydantic_object=Prepared),
    "factory": PydanticOutputParser(pydantic_object=Stamped),
    "nested": PydanticOutputParser(pydantic_object=Holding),
    "enum": EnumOutputParser(enum=Colour),
}
PROMPTS: dict[str, Any] = {
    "partial": PromptTemplate.from_template("{q}{a}").partial(a=added),
    "wrapped partial": PromptTemplate.from_template("{q}{a}").partial(a=wrapped),
    "partial method": PromptTemplate.from_template("{q}{a}").partial(a=TALLY.__str__),
    "partial object": PromptTemplate.from_template("{q}{a}").partial(a=Speaks()),  # type: ignore[arg-type]
    "partial text": PromptTemplate.from_template("{q}{a}").partial(a=TALLY),
    "jinja2": PromptTemplate.from_template("{{ q }}{{ a }}", template_format="jinja2").partial(a=Speaks()),  # type: ignore[arg-type]
    "mustache": PromptTemplate.from_template("{{ q }}{{ a }}", template_format="mustache").partial(a=Speaks()),  # type: ignore[arg-type]
    "message": ChatPromptTemplate.from_messages(
        [HumanMessagePromptTemplate(prompt=PromptTemplate.from_template("{q}{a}").partial(a=added))]
    ),
    "own": OwnTemplate.from_template("{q}"),
    "forged": ForgedTemplate.from_template("{q}"),
    "own message": ChatPromptTemplate.from_messages([OwnMessage("a"), ("human", "{q}")]),
    "own message template": ChatPromptTemplate.from_messages([OwnPrompt.from_template("{q}")]),
    "examples": few([{"i": Speaks()}]),
}
INPUTS: dict[str, Any] = {
    "object": {"q": Speaks()},
    "text": {"q": Tally("a")},
    "forged": {"q": Forged(page_content="a")},
    "in a list": {"q": [Speaks()]},
    "in metadata": {"q": Document("a", metadata={"of": Speaks()})},
}

WORD = '{"word": "a", "inner": {"word": "b"}}'


def compared(pipeline: Any, act: Callable[[Any], Any]) -> None:
    """Answers and notes are those of the original, in its order; the notes are there."""
    _outcome(act, pipeline)  # LangChain writes out its components once
    del LOG[:]
    expected = _outcome(act, pipeline)
    noted = LOG[:]
    assert noted, "the attack does nothing"
    fast = optimize(pipeline)
    del LOG[:]
    assert _outcome(act, fast) == expected
    assert noted == LOG


def _outcome(act: Callable[[Any], Any], pipeline: Any) -> Any:
    try:
        return str(act(pipeline))
    except Exception as e:
        return type(e)


def with_words() -> Engines:
    return Engines(FakeEngine(lambda prompt: Completion(WORD, pieces=(WORD,)), name="llm", concurrent=True))


def run(chain: Any) -> Any:
    return getattr(chain.invoke({"q": "who?"}), "content", None)


def beside(build: Callable[[Engines], Runnable[Any, Any]]) -> Callable[[Engines], Runnable[Any, Any]]:
    """With a branch that can run ahead in any case."""
    return lambda e: RunnableParallel(a=build(e), b=ask("{q}") | e.chat | StrOutputParser())


@pytest.mark.parametrize("name", PARSERS)
@pytest.mark.parametrize("is_async", [False, True])
def test_parsers(name: str, is_async: bool) -> None:
    act = (lambda c: asyncio.run(c.ainvoke({"q": "who?"}))) if is_async else (lambda c: c.invoke({"q": "who?"}))
    compared(beside(parsing(PARSERS[name]))(with_words()), lambda c: digest(str(act(c)["b"])))


@pytest.mark.parametrize("name", PROMPTS)
def test_prompts(name: str) -> None:
    compared(beside(prompting(PROMPTS[name]))(Engines()), lambda c: c.invoke({"q": "who?"}))


@pytest.mark.parametrize("name", INPUTS)
def test_inputs(name: str) -> None:
    compared(prompting(ask("{q}"))(Engines()), lambda c: c.invoke(INPUTS[name]))


def test_an_input_that_is_read_by_key() -> None:
    word = prompting(ask("{q}"))(Engines())
    compared(
        RunnablePassthrough.assign(a=word) | RunnablePassthrough.assign(b=word), lambda c: c.invoke(TalliedDict(q="a"))
    )


def test_an_input_of_a_map() -> None:
    compared(prompting(ask("{q}"))(Engines()).map(), lambda c: c.invoke(TalliedList([{"q": "a"}, {"q": "b"}])))


def test_inputs_of_a_batch() -> None:
    compared(prompting(ask("{q}"))(Engines()), lambda c: c.batch(TalliedList([{"q": "a"}, {"q": "b"}])))


class Spelling(StrOutputParser):
    """Its chunks note that they are added."""

    def transform(self, input: Any, config: Any = None, **kwargs: Any) -> Iterator[str]:
        yield from map(Tally, [str(part.content) for part in input] or "ab")


def test_chunks_of_a_component_that_is_not_read() -> None:
    chain = ask("{q}") | with_words().chat | Spelling() | ask("{p}") | Engines().chat
    compared(chain, lambda c: [chunk.content for chunk in c.stream({"q": "who?"})])


def test_a_declared_partial_function_is_no_break() -> None:
    template = PromptTemplate.from_template("{q}{a}")
    for function, breaks in ((added, ["TB109"]), (pure(lambda: "a"), [])):
        chain = prompting(template.partial(a=function))(Engines())
        assert [b.code for b in adapter.trace(chain).breaks] == breaks


def test_parsers_in_a_parser_are_looked_at() -> None:
    inner = RegexParser(regex="(.*)", output_keys=["a"])
    assert is_pure(CombiningOutputParser(parsers=[inner, inner]))
    assert not is_pure(CombiningOutputParser(parsers=[inner, Adding()]))


class OwnStore(Chroma):
    def similarity_search_by_vector_with_relevance_scores(self, *args: Any, **kwargs: Any) -> Any:
        note("own store")
        return super().similarity_search_by_vector_with_relevance_scores(*args, **kwargs)

    def similarity_search_by_vector(self, *args: Any, **kwargs: Any) -> Any:
        note("own store")
        return super().similarity_search_by_vector(*args, **kwargs)

    def similarity_search_with_score(self, *args: Any, **kwargs: Any) -> Any:
        note("own store")
        return super().similarity_search_with_score(*args, **kwargs)


class AskedStore(Chroma):
    def __getattribute__(self, name: str) -> Any:
        if name == "_collection":
            note("asked store")
        return super().__getattribute__(name)


class OwnFusion(EnsembleRetriever):
    def rank_fusion(self, *args: Any, **kwargs: Any) -> Any:
        note("rank_fusion")
        return super().rank_fusion(*args, **kwargs)

    def weighted_reciprocal_rank(self, doc_lists: Any) -> Any:
        note("fused")
        return super().weighted_reciprocal_rank(doc_lists)


class OwnMerger(MergerRetriever):
    def merge_documents(self, *args: Any, **kwargs: Any) -> Any:
        note("merged")
        return super().merge_documents(*args, **kwargs)


class OwnEmbeddings(EngineEmbeddings):
    def embed_query(self, text: str) -> list[float]:
        note("embedded")
        return super().embed_query(text)


class OwnDocument(Document):
    def __eq__(self, other: object) -> bool:
        note("compared")
        return super().__eq__(other)

    def __hash__(self) -> int:
        return 0


class Finding(BaseRetriever):
    """Finds documents of a class of the user's."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [OwnDocument(page_content="a", metadata={"n": Speaks()})]


def _store(cls: type[Chroma], e: Engines, embeddings: Any = None) -> Chroma:
    store = cls("own" + digest(str(id(e)))[:12], embeddings or e.embeddings)
    store.reset_collection()
    store.add_texts(["a note", "another note"], ids=["1", "2"])
    return store


def _scored(e: Engines) -> BaseRetriever:
    store = _store(Chroma, e)
    store.override_relevance_score_fn = lambda distance: float(len(TALLY + "")) / 10  # type: ignore[assignment]
    settings = {"score_threshold": 0.0}
    return store.as_retriever(search_type="similarity_score_threshold", search_kwargs=settings)


RETRIEVERS: dict[str, Callable[[Engines], BaseRetriever]] = {
    "store": lambda e: _store(OwnStore, e).as_retriever(),
    "asked store": lambda e: _store(AskedStore, e).as_retriever(),
    "scores": _scored,
    "fusion": lambda e: OwnFusion(retrievers=[_store(Chroma, e).as_retriever()], weights=[1.0]),
    "merger": lambda e: OwnMerger(retrievers=[_store(Chroma, e).as_retriever()]),
    "embeddings": lambda e: _store(Chroma, e, OwnEmbeddings(e.embedder)).as_retriever(),
    "documents": lambda e: EnsembleRetriever(retrievers=[_store(Chroma, e).as_retriever(), Finding()]),
}


@pytest.mark.parametrize("name", RETRIEVERS)
def test_retrievers(name: str) -> None:
    e = Engines()
    retriever = RETRIEVERS[name](e)
    chain = {"c": retriever, "q": ask("{q}") | e.chat | StrOutputParser()} | ask("{c}{q}") | e.chat | StrOutputParser()
    compared(chain, lambda c: c.invoke("who?"))


# --- tools -----------------------------------------------------------------------------------------------------------


class Loose(BaseTool):
    name: str = "loose"
    description: str = "d"

    def _run(self, word: str) -> str:
        return TALLY + word


class Parsed(StructuredTool):
    def _parse_input(self, *args: Any, **kwargs: Any) -> Any:
        note("parsed")
        return super()._parse_input(*args, **kwargs)


def adds(word: str) -> str:
    """Adds."""
    return TALLY + word


@pure
def declared(word: str) -> str:
    """Is declared."""
    return word


@pure
def writes_out(word: str) -> Any:
    """Returns an object."""
    return Speaks()


def tool_of(function: Any, cls: type[StructuredTool] = StructuredTool, **more: Any) -> BaseTool:
    return cls.from_function(function, name="t", description="d", **more)


@pytest.mark.parametrize(
    "late",
    [
        Loose(), tool_of(adds), tool_of(declared, args_schema=Checked), tool_of(declared, args_schema=Stamped),
        tool_of(declared, Parsed), tool_of(declared, handle_tool_error=lambda e: TALLY + "e"),
        tool_of(lambda word: word), tool_of(pure(lambda word: word), args_schema=Prepared),
    ],
)  # fmt: skip
def test_tools_that_do_not_start_early(late: BaseTool) -> None:
    assert isinstance(read_tool(late), str)


def test_tools_that_start_early() -> None:
    e = Engines()
    kb = create_retriever_tool(_store(Chroma, e).as_retriever(), "kb", "Search.")
    for early in (tool_of(declared), kb, tool_of(declared, args_schema={"type": "object", "properties": {}})):
        assert isinstance(read_tool(early), EarlyTool), early
    prompt = PromptTemplate.from_template("{page_content}{a}").partial(a=added)
    late = create_retriever_tool(_store(Chroma, e).as_retriever(), "kb", "Search.", document_prompt=prompt)
    assert isinstance(read_tool(late), str)


# --- LlamaIndex ------------------------------------------------------------------------------------------------------


class OwnNode(TextNode):
    def get_content(self, *args: Any, **kwargs: Any) -> str:
        note("content")
        return super().get_content(*args, **kwargs)


class OwnPost(BaseNodePostprocessor):
    """Hands on nodes of a class of the user's."""

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None) -> Any:
        note("post")
        return [NodeWithScore(node=OwnNode(text=n.node.get_content()), score=n.score) for n in nodes]


class OwnSimilarity(SimilarityPostprocessor):
    def _postprocess_nodes(self, *args: Any, **kwargs: Any) -> Any:
        note("similarity")
        return super()._postprocess_nodes(*args, **kwargs)


class Speaking(BaseNodePostprocessor):
    """Adds metadata that write themselves out."""

    def _postprocess_nodes(self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None) -> Any:
        return [NodeWithScore(node=TextNode(text="a", metadata={"n": Speaks()}), score=n.score) for n in nodes]


@functools.wraps(default_parse_choice_select_answer_fn)
def own_choice(answer: str, count: int, raise_error: bool = False) -> Any:
    note("choice")
    return default_parse_choice_select_answer_fn(answer, count)


def own_batch(nodes: Sequence[Any]) -> str:
    return TALLY + "\n".join(f"Document {n}:\n{node.get_content()}" for n, node in enumerate(nodes, 1))


def own_tokens(text: str) -> list[str]:
    note("tokens")
    return text.split()


def engine(e: LlamaEngines, posts: Sequence[Any] = (), **synthesis: Any) -> RetrieverQueryEngine:
    synthesizer = get_response_synthesizer(llm=e.model, **synthesis)
    return RetrieverQueryEngine(index_of(e).as_retriever(similarity_top_k=3), synthesizer, list(posts))


def qa(**more: Any) -> Any:
    """A template with something of the user's in it."""
    return LlamaTemplate("{context_str} {query_str}{extra}", **more)


def _selected(llm: Any) -> bool:
    return bool(TALLY + "")


def _citing(e: LlamaEngines) -> Any:
    return CitationQueryEngine.from_args(index_of(e), llm=e.model, text_splitter=SentenceSplitter(tokenizer=own_tokens))


def _counting(e: LlamaEngines) -> Any:
    return engine(e, prompt_helper=PromptHelper(tokenizer=own_tokens))


def _told(e: LlamaEngines) -> Any:
    e.model.completion_to_prompt = lambda text: TALLY + text  # type: ignore[assignment,method-assign]
    e.model.messages_to_prompt = lambda messages: TALLY + str(messages)  # type: ignore[assignment,method-assign]
    return engine(e)


ENGINES: dict[str, Callable[[LlamaEngines], Any]] = {
    "node": lambda e: engine(e, [OwnPost(), e.rerank]),
    "metadata": lambda e: engine(e, [Speaking(), e.rerank]),
    "similarity": lambda e: engine(e, [OwnSimilarity(), e.rerank]),
    "choice": lambda e: engine(e, [LLMRerank(llm=e.model, parse_choice_select_answer_fn=own_choice)]),
    "batch": lambda e: engine(e, [LLMRerank(llm=e.model, format_node_batch_fn=own_batch)]),
    "mapping": lambda e: engine(e, text_qa_template=qa(function_mappings={"extra": lambda **_: added()})),
    "selector": lambda e: engine(
        e, text_qa_template=SelectorPromptTemplate(qa(extra=""), [(_selected, qa(extra="!"))])
    ),
    "tokens": _counting,
    "citing": _citing,
    "model": _told,
}


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize("is_async", [False, True])
def test_query_engines(name: str, is_async: bool) -> None:
    act = (lambda p: asyncio.run(p.aquery("who?"))) if is_async else (lambda p: p.query("who?"))
    compared(ENGINES[name](LlamaEngines()), lambda p: apart(act, p))


# --- plain data ------------------------------------------------------------------------------------------------------


class Liar:
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        note("class")
        return str


class Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        note("meta")
        return super().__getattribute__(name)

    def __hash__(cls) -> int:
        note("hash")
        return 0


class Made(metaclass=Meta):
    pass


class Asked:
    def __getattr__(self, name: str) -> Any:
        note("getattr")
        raise AttributeError(name)


@pytest.mark.parametrize("make", [Liar, Made, Asked, lambda: Forged(page_content="a"), lambda: Tally("a"), Speaks])
def test_to_tell_plain_data_asks_nobody(make: Callable[[], Any]) -> None:
    value = make()
    del LOG[:]
    assert not is_plain([value])
    assert LOG == []


@reads("web")
def looks_up(word: str) -> str:
    return word


def of_the_users(value: Any) -> Any:
    return value


@dataclasses.dataclass
class WithMethods:
    x: int = 1

    @property
    def double(self) -> int:
        return 2


def with_private_attributes(**private: Any) -> Document:
    document = Document("text")
    object.__setattr__(document, "__pydantic_private__", private)
    return document


CODE: dict[str, Any] = {
    "a function in a private attribute": with_private_attributes(_held=of_the_users),
    "a function": of_the_users,
    "a function in a dict": {"a": [of_the_users]},
    "a function that reads": looks_up,
    "a function in the closure of a library's": contextlib.contextmanager(of_the_users),
    "a function in a partial one": functools.partial(dict, a=of_the_users),
    "a function that says that it is a library's": types.FunctionType(
        of_the_users.__code__, {"__name__": "langchain_core.messages"}
    ),
    "a method": WithMethods(),
    "what it is bound to": types.MethodType(contextlib.suppress, [of_the_users]),
    "very many values": [[number] for number in range(3_000)],
}


@pytest.mark.parametrize("what", CODE)
def test_code_of_the_users_is_found_in_what_is_held(what: str) -> None:
    assert not is_free_of_code(CODE[what])
    assert is_free_of_code({"a": [1, (contextlib.suppress, functools.partial(dict, a=1))]})
