"""A pytest plugin that routes the pipelines of somebody else's tests through `teola_plugin.optimize`.

    --route=off      nothing is routed
    --route=exec     each outermost call of a composite runnable is one of its optimized twin
    --route=object   a composite's constructor makes an optimized twin; so do `|`, `bind` and their like
    --route=graph    what StateGraph.compile() and @entrypoint give is optimized

`exec-ahead`, `object-ahead` and `graph-ahead` are the same with every model declared pure and taken to have answered
before, and every pipeline taken to gain by running ahead, which gets a head start before each model. Otherwise hardly
anything would run ahead: the fake models of the tests count their calls (which is no setting of theirs here) and answer
at once, each is a provider of its own class, and most pipelines are one model behind one prompt.

A pipeline without anything to run ahead, which `optimize` hands back as it is, becomes a twin all the same, so that the
suite tests every method of a twin. At the end stands what became of the pipelines and the calls.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest

from routed.routes import give_head_start, route_calls, route_graphs, route_objects
from routed.twins import Twins

MODES = ("off", "exec", "object", "graph", "exec-ahead", "object-ahead", "graph-ahead")
HEAD_START_S = 0.01
COUNTERS = ("i", "response_index")
"""Fields in which fake models count their calls."""

_twins = Twins()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--route", choices=MODES, default="off", help="what goes through teola_plugin.optimize")
    parser.addoption("--leave-out", action="append", default=[], metavar="ID", help="a test that is not run")


def pytest_configure(config: pytest.Config) -> None:
    route, _, ahead = config.getoption("--route").partition("-")
    if ahead:
        _run_all_ahead()
    match route:
        case "exec":
            route_calls(_twins)
        case "object":
            route_objects(_twins)
        case "graph":
            route_graphs(_twins)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Unlike `--deselect`, which takes the start of an id, this leaves out one test."""
    left_out = [item for item in items if item.nodeid in config.getoption("--leave-out")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)


MAY_BLOCK = {"routed/twins.py": "twin_of", "teola_plugin/seams.py": "result"}
"""No user optimizes a pipeline in each call of it; and who calls `invoke` in an event loop holds that up anyhow."""


@pytest.fixture(autouse=True)
def some_may_block_a_loop(request: pytest.FixtureRequest) -> None:
    """LangChain's tests forbid it."""
    if "blockbuster" in request.fixturenames:
        for function in request.getfixturevalue("blockbuster").functions.values():
            for file, caller in MAY_BLOCK.items():
                function.can_block_in(file, {caller})


@pytest.fixture(autouse=True)
def langchain_is_not_installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests were written without `langchain`, whose version a model tells its tracers if it is there."""
    if "langchain_version" not in request.node.name:
        monkeypatch.setattr("langchain_core.language_models.base._get_langchain_version", lambda: None)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist tells the process that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["routed"] = dict(_twins.tally)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _twins.tally.update(node.workeroutput.get("routed", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    mode = terminalreporter.config.getoption("--route")
    if mode != "off":
        terminalreporter.write_line(f"routed ({mode}): {_twins.summary()}")


@pytest.fixture(autouse=True)
def no_provider_has_failed() -> None:
    """What an earlier test did to models of the same class says nothing."""
    from teola_plugin import providers

    providers.forget()


def _run_all_ahead() -> None:
    from langchain_core.language_models import BaseChatModel, BaseLLM

    from teola_plugin import api, providers, pure
    from teola_plugin.adapters import configured

    provider, configuration_key = providers.Provider, configured.configuration_key

    def answered() -> providers.Provider:
        made = provider()
        made.heard(None, 0.0)
        return made

    def uncounted(model: Any, *other: Any) -> Hashable:
        counters = {name: 0 for name in COUNTERS if name in getattr(type(model), "model_fields", ())}
        return configuration_key(model.model_copy(update=counters) if counters else model, *other)

    providers.Provider, configured.configuration_key = answered, uncounted  # type: ignore[misc,assignment]
    for cls in (BaseChatModel, BaseLLM):
        pure(cls)
        give_head_start(cls, HEAD_START_S)
    planned = api.planned
    api.planned = lambda *args: replace(planned(*args), has_slack=True)
