"""Nodes that go on with replies that have not come: loops, displays and calls of unknown values."""

# ruff: noqa: PERF401, PERF402
from __future__ import annotations

from typing import Any

from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.adapters.reader.forms_common import GRADER, form
from tests.adapters.reader.forms_world import LLM, State

SEEN: list[str] = []


class Opinion(BaseModel):
    score: str
    points: list[str] = Field(default_factory=list)

    @property
    def size(self) -> int:
        SEEN.append("size")
        return len(self.points)

    def noted(self) -> str:
        SEEN.append(self.score)
        return self.score

    def shouted(self) -> str:
        return self.score.upper()


class Own(ChatOpenAI):
    def with_structured_output(self, *args: Any, **kwargs: Any) -> Any:
        SEEN.append("made")
        return super().with_structured_output(*args, **kwargs)


ASKER = LLM.with_structured_output(Opinion)
OWN = Own(model="own")


# --- rounds over what is not known -----------------------------------------------------------------------------------


@form(4)
def rounds_over_what_is_not_known(state: State) -> Any:
    found: list[Any] = []
    count = 0
    for each in state["documents"]:
        opinion = ASKER.invoke(f"JSON {each}")
        for at, point in enumerate(opinion.points):
            count += 1
            found.append({"at": at, "point": point, "of": each})
            if point == "x":
                continue
    return {"out": [count, *found]}


@form(5)
def rounds_over_what_is_not_known_in_a_try(state: State) -> Any:
    found: list[Any] = []
    for each in state["documents"]:
        try:
            opinion = ASKER.invoke(f"JSON {each}")
            for point in list(opinion.points)[:1]:
                found.append(point)
        except Exception:
            continue
    return {"out": found}


@form(2)
def a_loop_over_what_is_not_known_that_may_be_left(state: State) -> Any:
    for each in state["documents"]:
        for point in ASKER.invoke(f"JSON {each}").points:
            if point == "x":
                return {"out": point}
    return {"out": "none"}


@form(4)
def comprehensions_over_what_is_not_known(state: State) -> Any:
    found = []
    for each in state["documents"]:
        opinion = ASKER.invoke(f"JSON {each}")
        found.append("; ".join(f"{point}!" for point in opinion.points) + str([p.strip() for p in opinion.points]))
    return {"out": found}


# --- displays and records ---------------------------------------------------------------------------------------------


@form(4)
def a_reply_spread_into_a_dict(state: State) -> Any:
    found = []
    for each in state["documents"]:
        found.append({"of": each, **ASKER.invoke(f"JSON {each}").model_dump(), **{"step": 1}})
    return {"out": found}


@form(4)
def a_reply_as_a_dict_that_is_changed(state: State) -> Any:
    found = []
    for each in state["documents"]:
        data = ASKER.invoke(f"JSON {each}").model_dump()
        data["kept"] = data["score"]
        data["of"] = each
        found.append(data)
    return {"out": found}


@form(4)
def sums_that_hang_on_replies(state: State) -> Any:
    total = 0.0
    for each in state["documents"]:
        verdict = GRADER.invoke(f"JSON {each}")
        if verdict.score == "yes":
            total += 5.0
        total += 1.5
    return {"out": [total, min(total, 10.0)]}


@form(5)
def the_same_request_again_in_a_try(state: State) -> Any:
    model = LLM.bind(temperature=0.8).with_structured_output(Opinion)
    found = []
    for n in range(3):
        try:
            found.append({"at": str(n), "score": model.invoke("JSON the same").score.strip()})
        except Exception as e:
            found.append({"at": str(n), "score": str(e)})
    return {"out": found}


@form(4)
def methods_of_replies_that_compute(state: State) -> Any:
    return {"out": [ASKER.invoke(f"JSON {each}").shouted() for each in state["documents"]]}


# --- code of the program's that a reply may reach ---------------------------------------------------------------------


@form(2, "it changes a list that it did not make", varies=True)
def methods_of_replies_that_change_something(state: State) -> Any:
    found = []
    for each in state["documents"]:
        opinion = ASKER.invoke(f"JSON {each} {len(SEEN)}")
        found.append(opinion.noted())
    return {"out": found}


@form(2, "it changes a list that it did not make", varies=True)
def properties_of_replies_that_change_something(state: State) -> Any:
    found = []
    for each in state["documents"]:
        opinion = ASKER.invoke(f"JSON {each} {len(SEEN)}")
        found.append(opinion.size)
    return {"out": found}


@form(2)
def functions_chosen_by_a_reply(state: State) -> Any:
    log: list[str] = []
    for each in state["documents"]:
        opinion = ASKER.invoke(f"JSON {each} {log}")
        note = (lambda: log.append("yes")) if opinion.score == "yes" else (lambda: log.append("no"))
        note()
    return {"out": log}


@form(1, "it changes a list that it did not make", varies=True)
def a_model_with_a_method_of_the_users(state: State) -> Any:
    return {"out": OWN.with_structured_output(Opinion).invoke("JSON one").score}
