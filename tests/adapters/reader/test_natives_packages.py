"""loguru's loggers and tenacity's `retry`: read as what they come to, with nothing of the user's run early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger
from tenacity import retry, retry_if_exception_type, retry_if_result, stop_after_attempt, wait_exponential

from tests.adapters.reader.langchain_reading import check, hosted, read, stopped

LLM = hosted()
RAN: list[str] = []


def ran(*args: Any) -> Any:
    RAN.append("ran")
    return args[0] if args else False


@pytest.fixture(autouse=True)
def _nothing_runs() -> Iterator[None]:
    RAN.clear()
    logger.remove()
    yield
    logger.remove()


@retry(stop=stop_after_attempt(3), wait=wait_exponential(multiplier=1, min=4, max=10))
def ask(text: str) -> str:
    return LLM.invoke(text).content  # type: ignore[return-value]


@retry
async def aask(text: str) -> str:
    return (await LLM.ainvoke(text)).content  # type: ignore[return-value]


def in_the_body(text: str) -> str:
    @retry(
        retry=retry_if_exception_type(ValueError),
        wait=wait_exponential(multiplier=1, min=4),
        stop=stop_after_attempt(5),
    )
    def call() -> str:
        return LLM.invoke(text).content  # type: ignore[return-value]

    return call()


def bare_in_the_body(text: str) -> str:
    @retry
    def call() -> str:
        return LLM.invoke(text).content  # type: ignore[return-value]

    return call()


@pytest.mark.parametrize("asks", [ask, in_the_body, bare_in_the_body])
def test_a_function_that_is_tried_again_is_read_as_called_once(asks: Any) -> None:
    found = check(lambda x: [asks(x), asks(x + "b"), LLM.invoke("last").content], "a")
    assert found.shown == [3]
    assert found.certain[0][0]


def test_a_coroutine_that_is_tried_again() -> None:
    async def both(x: str) -> Any:
        return await asyncio.gather(aask(x), aask(x + "b"))

    assert check(both, "a", is_async=True).shown == [2]


def test_an_error_ends_what_is_read() -> None:
    @retry(stop=stop_after_attempt(2))
    def fails(text: str) -> str:
        LLM.invoke(text)
        raise ValueError(text)

    def node(x: str) -> Any:
        try:
            return fails(x)
        except ValueError:  # tenacity raises another one
            return LLM.invoke("never").content

    found = read(node, "a")
    assert "again" in found.stopped
    assert found.shown == [1]


def test_an_error_of_a_request_is_none_that_the_program_foresees() -> None:
    @retry(stop=stop_after_attempt(2))
    def number(text: str) -> int:
        return int(LLM.invoke(text).content)  # type: ignore[arg-type]

    def node(x: str) -> Any:
        try:
            number(x)
        except ValueError:
            return "no number"
        return LLM.invoke("next").content

    assert read(node, "a").certain[0][1:] == [False]


@retry(retry=retry_if_result(ran))
def judged(text: str) -> str:
    return LLM.invoke(text).content  # type: ignore[return-value]


@retry(before=ran)
def told(text: str) -> str:
    return LLM.invoke(text).content  # type: ignore[return-value]


def judged_in_the_body(text: str) -> str:
    return retry(retry=retry_if_result(ran))(lambda: LLM.invoke(text).content)()  # type: ignore[return-value]


def told_in_the_body(text: str) -> str:
    return retry(before=ran)(lambda: LLM.invoke(text).content)()  # type: ignore[return-value]


@pytest.mark.parametrize("asks", [judged, told, judged_in_the_body, told_in_the_body])
def test_what_is_called_for_each_try_does_not_run(asks: Any) -> None:
    assert stopped(asks, "a")
    assert not RAN


def logs(x: str) -> Any:
    logger.info(f"asks {x}")
    logger.exception("asks")
    return LLM.invoke(x).content


def formats(x: str) -> Any:
    logger.info("asks {nothing}", x)
    return LLM.invoke(x).content


def looks_late(x: str) -> Any:
    logger.opt(lazy=True).info("asks {}", ran)
    return LLM.invoke(x).content


def test_what_is_logged_is_logged_by_the_run_alone() -> None:
    lines: list[str] = []
    logger.add(lines.append)
    assert read(logs, "a").certain == [[True]]
    assert not lines
    logger.add(ran, catch=False)
    assert read(logs, "a").certain == [[False]]
    assert not RAN


def test_a_message_that_may_not_format_ends_certainty() -> None:
    assert read(formats, "a").certain == [[False]]


def test_what_a_logger_calls_does_not_run() -> None:
    assert read(looks_late, "a").certain in ([], [[False]])
    core = logger._core  # type: ignore[attr-defined]
    logger.configure(patcher=ran)
    try:
        assert read(logs, "a").certain == [[False]]
    finally:
        core.patcher = None
    assert not RAN
