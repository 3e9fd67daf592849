"""Published classes that search the web, by name: one table for all adapters.

Whoever uses an entry also checks that the class is the published one, without user code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

_COMMUNITY = "langchain_community.utilities."


@dataclass(frozen=True, slots=True)
class SearchClient:
    """A class of clients. Each of its `methods` makes one request to a search engine and returns plain data.

    `raises_if_empty`: a search that finds nothing is an error.
    `telling`: methods that make the request by the first of `methods` and only compute the text of its reply.
    """

    name: str
    methods: tuple[str, ...]
    raises_if_empty: bool = False
    telling: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchTool:
    """A class of LangChain's tools. A call makes one request to a search engine and leaves nothing behind.

    `is_made`: the constructor has no effects either, so a function that is read may make such a tool.
    `if_empty`: what a search that finds nothing comes to: a reply, an error, or a ToolException, which LangChain turns
    into a reply where the tool says so (`handle_tool_error`).
    """

    is_made: bool = False
    if_empty: Literal["reply", "error", "tool error"] = "reply"


CLIENTS: Mapping[str, SearchClient] = {
    "tavily.tavily": SearchClient("TavilyClient", ("search", "extract", "qna_search")),
    _COMMUNITY + "tavily_search": SearchClient("TavilySearchAPIWrapper", ("raw_results",)),
    _COMMUNITY + "duckduckgo_search": SearchClient(
        "DuckDuckGoSearchAPIWrapper", ("_ddgs_text", "_ddgs_news", "_ddgs_images"), raises_if_empty=True
    ),
    _COMMUNITY + "google_serper": SearchClient(
        "GoogleSerperAPIWrapper", ("_google_serper_api_results",), telling=("run",)
    ),
    _COMMUNITY + "brave_search": SearchClient("BraveSearchWrapper", ("_search_request",)),
}
"""Clients by the modules of their classes."""

TOOLS: Mapping[tuple[str, str], SearchTool] = {
    ("langchain_tavily", "TavilySearch"): SearchTool(is_made=True, if_empty="tool error"),
    ("langchain_community", "TavilySearchResults"): SearchTool(is_made=True),
    ("langchain_community", "TavilyAnswer"): SearchTool(is_made=True),
    ("langchain_community", "DuckDuckGoSearchRun"): SearchTool(is_made=True, if_empty="error"),
    ("langchain_community", "DuckDuckGoSearchResults"): SearchTool(is_made=True, if_empty="error"),
    ("langchain_community", "BraveSearch"): SearchTool(is_made=True),
    ("langchain_community", "WikipediaQueryRun"): SearchTool(),
    ("langchain_community", "GoogleSearchRun"): SearchTool(),
    ("langchain_community", "GoogleSearchResults"): SearchTool(),
    ("langchain_community", "GoogleSerperRun"): SearchTool(),
    ("langchain_community", "GoogleSerperResults"): SearchTool(),
}
"""Tools by package and name."""

PACKAGES = frozenset(package for package, _ in TOOLS)


def client_of(module: str, name: str) -> SearchClient | None:
    """Return the entry of a class of clients."""
    found = CLIENTS.get(module)
    return found if found is not None and found.name == name else None


def tool_of(module: str, name: str) -> SearchTool | None:
    """Return the entry of a class of tools; `module`: the module of the class."""
    return TOOLS.get((module.partition(".")[0], name))
