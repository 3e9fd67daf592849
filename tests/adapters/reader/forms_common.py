"""What the forms of nodes share: prompts, models, and the table that they are put into."""

import asyncio
import logging
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate, PromptTemplate
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.adapters.reader.forms_world import LLM, Form

FORMS: dict[str, Form] = {}
log = logging.getLogger(__name__)

PROMPT = ChatPromptTemplate.from_messages([("system", "You help."), ("human", "Answer {question}")])
TEXT_PROMPT = PromptTemplate(template="Say {question}", input_variables=["question"])
CHAIN = PROMPT | LLM | StrOutputParser()
INSTRUCTIONS = "You are a helper. Question: {question}"
MODELS = {"small": LLM, "large": ChatOpenAI(model="large")}


class Grade(BaseModel):
    """A score."""

    score: str = Field(description="yes or no")


class Plan(BaseModel):
    steps: list[str] = Field(description="what to do", default_factory=list)


class Verdict(TypedDict):
    score: Annotated[str, ..., "yes or no"]


GRADER = LLM.with_structured_output(Grade)
GRADING = PROMPT | GRADER
PLANNER = LLM.with_structured_output(Plan)


def form(first: int, why: str = "", **options: Any) -> Callable[..., Any]:
    """Puts a node into the table."""

    def put(node: Callable[..., Any]) -> Callable[..., Any]:
        is_async = asyncio.iscoroutinefunction(node)
        FORMS[node.__name__] = Form(node, first, why, **{"is_async": is_async, **options})
        return node

    return put
