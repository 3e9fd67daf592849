"""What public applications import and this environment lacks, replaced at its edge; their own text stays as it is.

Hosted models are `ChatOpenAI` by another name, hosted stores are stores in memory, web searches and pages are requests
to the service, prompts of the hub have the same variables. Modules of LangChain before 1.0 are those of
langchain-classic.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import urllib.request
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any

import ddgs.ddgs
import pydantic.v1
import tiktoken.registry
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.tools import BaseTool
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.types import RetryPolicy

from public.replies import encoding, vector
from teola_plugin.demo.corpus import passages

PROMPTS = {
    "rlm/rag-prompt": "Answer the question from this context alone.\nQuestion: {question}\nContext: {context}\nAnswer:",
    "hwchase17/self-discovery-select": "Select modules that help to solve it.\n{reasoning_modules}\n{task_description}",
    "hwchase17/self-discovery-adapt": "Adapt each selected module to the task.\n{selected_modules}\n{task_description}",
    "hwchase17/self-discovery-structure": "Make them a structure.\n{adapted_modules}\nTask: {task_description}",
    "hwchase17/self-discovery-reasoning": "Follow the structure.\n{reasoning_structure}\nTask: {task_description}",
    "langchain-ai/rag-fusion-query-generation": "Generate multiple search queries related to: {original_query}",
    "bagatur/chain-of-note-wiki": "Take notes of each passage, then answer.\n{passages}\nQuestion: {question}",
}
"""Prompts of the hub in words of ours, with their variables."""


def address() -> str:
    return os.environ["OPENAI_BASE_URL"].removesuffix("/v1")


def _post(query: str) -> dict[str, Any]:
    request = urllib.request.Request(
        address() + "/search", json.dumps({"query": query}).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)  # type: ignore[no-any-return]


async def _apost(query: str) -> dict[str, Any]:
    import httpx

    async with httpx.AsyncClient(timeout=60) as client:
        return (await client.post(address() + "/search", json={"query": query})).json()  # type: ignore[no-any-return]


def corpus() -> list[Document]:
    return [Document(each.text, metadata={"source": each.source, "name": each.source}) for each in passages(48)]


class Pages:
    """Loads the passages that stand for a page of the web."""

    def __init__(self, path: str | Sequence[str] = "", *args: Any, **kwargs: Any) -> None:
        self.paths = [path] if isinstance(path, str) else list(path)

    def load(self) -> list[Document]:
        documents = corpus()
        return [
            Document(
                "\n\n".join(d.page_content for d in documents[n % 3 :: 3]), metadata={"source": path, "title": path}
            )
            for n, path in enumerate(self.paths)
        ]


class Records:
    """Loads the passages that stand for the rows of a table or the entries of a database."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def load(self) -> list[Document]:
        return [Document(d.page_content, metadata={"title": d.metadata["source"], "tags": []}) for d in corpus()]


class Finder:
    """The client of a web search."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def search(self, query: str, **options: Any) -> dict[str, Any]:
        return _post(query)


def _at_the_service(constructor: Any) -> None:
    """Let the clients of a constructor ask the service by default, in place of the address in its code."""
    code = constructor.__code__
    consts = tuple(address() if each == "https://api.tavily.com" else each for each in code.co_consts)
    constructor.__code__ = code.replace(co_consts=consts)


class SearchTool(BaseTool):
    """A web search as a tool."""

    name: str = "tavily_search"
    description: str = "A search engine. Input should be a search query."
    max_results: int = 3
    topic: str = "general"

    def _run(self, query: str) -> Any:
        return _post(query)

    async def _arun(self, query: str) -> Any:
        return await _apost(query)


class _Corpus(Embeddings):
    """Vectors of the corpus, without requests."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [vector(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return vector(text)


@cache
def stored() -> dict[str, Any]:
    """What a store in memory holds when the corpus is in it."""
    store = InMemoryVectorStore(_Corpus())
    store.add_documents(corpus(), ids=[str(n) for n in range(len(corpus()))])
    return store.store


class Store(InMemoryVectorStore):
    """A hosted store: it holds the corpus already."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        given = [*args, *kwargs.values()]
        super().__init__(next((each for each in given if isinstance(each, Embeddings)), OpenAIEmbeddings()))
        self.store = dict(stored())

    def as_retriever(self, **options: Any) -> VectorStoreRetriever:
        """Without the filters of its owner, which know no corpus."""
        kept = {key: value for key, value in options.pop("search_kwargs", {}).items() if key == "k"}
        return super().as_retriever(search_kwargs=kept, **options)

    @classmethod
    def from_existing_index(cls, *args: Any, **kwargs: Any) -> Store:
        return cls(*args, **kwargs)

    from_connection_string = from_existing_index


class Wrapper:
    """The wrapper of an encyclopedia."""

    def __init__(self, **options: Any) -> None:
        pass

    def run(self, query: str) -> str:
        return " ".join(each["content"] for each in _post(query)["results"])

    def load(self, query: str) -> list[Document]:
        return _documents(query, _post(query))


def _found_by_ddgs(self: Any, query: str, **options: Any) -> list[dict[str, Any]]:
    """In place of `DDGS.text`, which asks several search engines."""
    return [{"href": r["url"], "title": r["title"], "body": r["content"]} for r in _post(query)["results"]]


def _documents(query: str, told: dict[str, Any]) -> list[Document]:
    return [
        Document(r["content"], metadata={"source": r["url"], "title": r["title"], "page": "", "categories": [query]})
        for r in told["results"]
    ]


class Articles(BaseRetriever):
    """A retriever that searches the web."""

    site: str = "wiki"

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(site=options.get("site", "wiki"))

    @classmethod
    def create(cls, **options: Any) -> Articles:
        return cls(site=options.get("dataset_id", "site"))

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return _documents(query, _post(f"{self.site}: {query}"))

    async def _aget_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return _documents(query, await _apost(f"{self.site}: {query}"))


class Arxiv(Articles):
    """Another."""

    site: str = "arxiv"


class WikipediaPages:
    """A loader of the articles about a subject."""

    def __init__(self, query: str, **options: Any) -> None:
        self.query = query

    def load(self) -> list[Document]:
        return Articles().invoke(self.query)


class Soup:
    """A page's text."""

    def __init__(self, page: Any, *args: Any, **options: Any) -> None:
        self.text = page if isinstance(page, str) else page.decode()

    def get_text(self, *args: Any, **options: Any) -> str:
        return self.text


def _unlimited(*args: Any, **options: Any) -> Any:
    """A decorator that changes nothing."""
    return args[0] if args and callable(args[0]) else lambda function: function


def ollama(format: str | None = None, num_ctx: int | None = None, **options: Any) -> ChatOpenAI:
    """A chat model by options of which the service knows fewer."""
    return ChatOpenAI(**options)


def embeddings(**options: Any) -> OpenAIEmbeddings:
    return OpenAIEmbeddings()


class Hub:
    @staticmethod
    def pull(name: str, **options: Any) -> ChatPromptTemplate:
        return ChatPromptTemplate.from_template(PROMPTS[name])


MODULES: dict[str, dict[str, Any]] = {
    "langchain.hub": {"pull": Hub.pull},
    "langchain_core.pydantic_v1": vars(pydantic.v1),
    "bs4": {"BeautifulSoup": Soup},
    "ratelimit": {"limits": _unlimited, "sleep_and_retry": _unlimited},
    "langchain_anthropic": {"ChatAnthropic": ChatOpenAI},
    "langchain_fireworks": {"ChatFireworks": ChatOpenAI},
    "langchain_nomic": {},
    "langchain_nomic.embeddings": {"NomicEmbeddings": embeddings},
    "langchain_nvidia_ai_endpoints": {"ChatNVIDIA": ChatOpenAI, "NVIDIAEmbeddings": embeddings},
    "duckduckgo_search": {"DDGS": Finder},
    "pytesseract": {},
    "html2text": {},
    "markdownify": {"markdownify": lambda page, **options: page},
    "langchain_groq": {"ChatGroq": ChatOpenAI},
    "langchain_mistralai": {"ChatMistralAI": ChatOpenAI, "MistralAIEmbeddings": OpenAIEmbeddings},
    "langchain_mistralai.chat_models": {"ChatMistralAI": ChatOpenAI},
    "langchain_google_genai": {"ChatGoogleGenerativeAI": ChatOpenAI},
    "langchain_ollama": {"ChatOllama": ollama, "OllamaEmbeddings": OpenAIEmbeddings},
    "langchain_tavily": {"TavilySearch": SearchTool},
    "langchain_elasticsearch": {"ElasticsearchStore": Store},
    "langchain_pinecone": {"PineconeVectorStore": Store, "Pinecone": Store},
    "IPython": {},
    "IPython.display": {"Image": lambda *args, **kwargs: None, "display": lambda *args, **kwargs: None},
}
"""Modules that are not installed."""

REPLACED: dict[str, dict[str, Any]] = {
    "getpass": {"getpass": lambda *args, **options: "none"},
    "langchain_community.document_loaders": {
        "WebBaseLoader": Pages,
        "WikipediaLoader": WikipediaPages,
        "NotionDBLoader": Records,
        "CSVLoader": Records,
    },
    "langchain_community.document_loaders.recursive_url_loader": {"RecursiveUrlLoader": Pages},
    "langchain_community.vectorstores": {
        "SKLearnVectorStore": InMemoryVectorStore,
        "Chroma": InMemoryVectorStore,
        "Pinecone": Store,
    },
    "langchain_community.utilities": {"WikipediaAPIWrapper": Wrapper},
    "langchain_community.retrievers": {
        "WikipediaRetriever": Articles,
        "ArxivRetriever": Arxiv,
        "PubMedRetriever": Articles,
        "KayAiRetriever": Articles,
    },
    "langchain_community.chat_models": {
        "ChatOpenAI": ChatOpenAI,
        "ChatAnthropic": ChatOpenAI,
        "ChatOllama": ollama,
    },
    "langchain_community.embeddings": {"OpenAIEmbeddings": OpenAIEmbeddings},
    "langchain.chat_models": {"ChatOpenAI": ChatOpenAI, "ChatAnthropic": ChatOpenAI},
    "langchain.embeddings": {"OpenAIEmbeddings": OpenAIEmbeddings},
    "langgraph.pregel": {"RetryPolicy": RetryPolicy},
}
"""Names in installed modules that need what is not here."""


class _Classic(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `langchain.X` in langchain-classic where LangChain no longer has it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not name.startswith("langchain.") or not importlib.util.find_spec(_classic(name)):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return importlib.import_module(_classic(spec.name))

    def exec_module(self, module: ModuleType) -> None:
        pass


def _classic(name: str) -> str:
    return "langchain_classic." + name.removeprefix("langchain.")


def install() -> None:
    """Make the stand-ins importable in this process."""
    tiktoken.registry.ENCODINGS["gpt2"] = encoding()
    for name, content in MODULES.items():
        module = ModuleType(name)
        module.__dict__.update(content)
        if any(other.startswith(name + ".") for other in MODULES):
            module.__path__ = []
        sys.modules[name] = module
        parent, _, last = name.rpartition(".")
        if parent:
            setattr(importlib.import_module(parent), last, module)
    for name, content in REPLACED.items():
        vars(importlib.import_module(name)).update(content)
    for module, cls in (("tavily.tavily", "TavilyClient"), ("tavily.async_tavily", "AsyncTavilyClient")):
        _at_the_service(getattr(importlib.import_module(module), cls).__init__)
    importlib.import_module("langchain_community.utilities.tavily_search").TAVILY_API_URL = address()
    brave = importlib.import_module("langchain_community.utilities.brave_search").BraveSearchWrapper
    brave.model_fields["base_url"].default = address() + "/brave"
    brave.model_rebuild(force=True)
    ddgs.ddgs.DDGS.text = _found_by_ddgs
    sys.meta_path.append(_Classic())
