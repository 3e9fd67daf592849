"""Models and components that a pipeline holds inside plain objects of the user's classes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from llama_index.core import Settings
from llama_index.core.query_engine import CustomQueryEngine
from llama_index.core.workflow import StartEvent, StopEvent, Workflow, step
from pydantic import BaseModel, ConfigDict

from teola_plugin import optimize
from teola_plugin.adapters.llamaindex import reading_workflows
from teola_plugin.adapters.llamaindex.reachable import MOST, plain_objects, reachable
from teola_plugin.api import optimized
from tests.adapters.llamaindex.test_llamaindex_hosted import chat, retriever
from tests.support.hosted_service import Service, counted
from tests.support.llamaindex_world import apart

if not reading_workflows.HAS_ENGINE:
    pytest.skip("steps of another release of llama-index-workflows are not read", allow_module_level=True)


class Writer:
    """Holds a model."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    def write(self, text: str) -> str:
        return str(self.llm.complete(text))


class Finder(Writer):
    """Holds a retriever, too."""

    def __init__(self, llm: Any, search: Any) -> None:
        super().__init__(llm)
        self.search = search

    def write(self, text: str) -> str:
        return super().write(text)


class Team:
    """Holds an object that holds a model, and itself."""

    def __init__(self, writer: Any) -> None:
        self.writers = {"first": [writer]}
        self.team = self

    def run(self, text: str) -> list[str]:
        return [self.writers["first"][0].write(f"{text} {n}") for n in range(3)]


class Tools(BaseModel):
    """A pydantic model with a language model."""

    model_config = ConfigDict(arbitrary_types_allowed=True)
    llm: Any

    def run(self, text: str) -> list[str]:
        return [str(self.llm.complete(f"{text} {n}")) for n in range(3)]


class Settled:
    """Asks the model of the settings."""

    def run(self, text: str) -> list[str]:
        return [str(Settings.llm.complete(f"{text} {n}")) for n in range(3)]


class Flow(Workflow):
    def __init__(self, team: Any) -> None:
        super().__init__(timeout=60)
        self.team = team

    @step
    async def ask(self, ev: StartEvent) -> StopEvent:
        return StopEvent(result=self.team.run(ev.q))


class Engine(CustomQueryEngine):
    team: Any

    def custom_query(self, query_str: str) -> str:
        return str(self.team.run(query_str))


def result_of(pipeline: Any) -> Any:
    """Run a pipeline. The functions that are read call methods of other names: all that they name is looked at."""

    async def act() -> Any:
        return await pipeline.run(q="bees")

    return str(apart(asyncio.run, act()) if isinstance(pipeline, Workflow) else apart(pipeline.query, "bees"))


@pytest.fixture(autouse=True)
def settings(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_llm", chat(service))


TEAMS: list[Any] = [lambda llm: Team(Writer(llm)), lambda llm: Tools(llm=llm), lambda llm: Settled()]


@pytest.mark.parametrize("make", [Flow, lambda team: Engine(team=team)])
@pytest.mark.parametrize("team", TEAMS)
def test_models_inside_plain_objects_are_asked_ahead(service: Service, team: Any, make: Any) -> None:
    with counted(service) as wanted:
        result = result_of(make(team(Settings.llm)))
    fast = optimize(make(team(Settings.llm)))
    with counted(service) as made:
        assert result_of(fast) == result
    assert made == wanted
    service.holds, service.awaits = "bees 0", "bees 2"
    service.forget()
    result_of(fast)
    assert not service.has_waited_in_vain
    assert optimized(fast).reports[-1].wasted == 0


# --- the search ------------------------------------------------------------------------------------------------------

noted: list[str] = []


class Guarded:
    """Its attributes run code."""

    def __init__(self, llm: Any) -> None:
        vars(self)["_llm"] = llm

    @property
    def llm(self) -> Any:
        noted.append("llm")
        return self._llm

    def __getattr__(self, name: str) -> Any:
        noted.append(name)
        raise AttributeError(name)

    def __eq__(self, other: object) -> bool:
        noted.append("eq")
        return False

    def __hash__(self) -> int:
        noted.append("hash")
        return 1


class Own(Guarded):
    def __getattribute__(self, name: str) -> Any:
        noted.append(name)
        return object.__getattribute__(self, name)


class Hidden:
    """Gives another `__dict__`."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        noted.append("dict")
        return {}


def test_looking_for_components_runs_no_code(service: Service) -> None:
    flow = Flow([Guarded(Settings.llm), Own(Settings.llm), Hidden()])
    noted.clear()
    found = reachable(flow)
    assert (found, noted) == ([flow, Settings.llm], [])


def test_components_in_plain_objects_are_found_once_and_last(service: Service) -> None:
    search = retriever(service)
    team = Team(Finder(Settings.llm, search))
    flow = Flow(team)
    assert reachable(flow) == [flow, Settings.llm, search]
    assert plain_objects(flow) == [team, team.writers["first"][0]]


class Chain:
    def __init__(self, after: Any) -> None:
        self.after = after


def test_a_component_beside_many_plain_objects_is_found(service: Service) -> None:
    after: Any = None
    for _ in range(2 * MOST):
        after = Chain(after)
    flow = Flow([after, [[Settings.llm]]])
    assert reachable(flow) == [flow, Settings.llm]


def test_components_are_found_before_any_plain_object_is_searched(service: Service) -> None:
    flow = Flow([[Chain(None) for _ in range(2 * MOST)], [[Settings.llm]]])
    assert reachable(flow) == [flow, Settings.llm]


def test_an_object_whose_attributes_run_code_is_not_searched(service: Service) -> None:
    flow = Flow(Own(Settings.llm))
    noted.clear()
    assert (reachable(flow), plain_objects(flow), noted) == ([flow], [], [])


def test_objects_of_other_packages_are_not_searched(service: Service) -> None:
    holder = asyncio.Queue[Any]()
    vars(holder)["llm"] = Settings.llm
    assert reachable(Flow(holder))[1:] == []
