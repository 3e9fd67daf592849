"""Handlers that change what is asked, or refuse it, are heard first; those that only note things hold up nothing."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers import ConsoleCallbackHandler

from teola_plugin.adapters.handlers import may_interfere


class Redacts(BaseCallbackHandler):
    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        for batch in messages:
            for message in batch:
                message.content = message.content.replace("secret", "")


class Adds(BaseCallbackHandler):
    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        prompts.append("more")


class Inherits(Redacts):
    pass


class Sets(BaseCallbackHandler):
    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        setattr(messages[0][0], "content", "")  # noqa: B010


class Finds(BaseCallbackHandler):
    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        last = next(iter(messages[0]))
        last.content = ""


class Renames(BaseCallbackHandler):
    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        batch: Any = []
        batch = messages[0]
        batch.append("more")


class Replaces(BaseCallbackHandler):
    def on_llm_start(self, serialized: Any, prompts: Any, **kwargs: Any) -> None:
        prompts.append("more")
        prompts = []


class ByAMethod(BaseCallbackHandler):
    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self._heard(messages)

    def _heard(self, messages: Any) -> None:
        messages[0].clear()


def clears(messages: Any) -> None:
    messages[0].clear()


class ByAFunction(BaseCallbackHandler):
    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        clears(messages)


Unread: Any = type("Unread", (BaseCallbackHandler,), {"on_llm_start": eval("lambda self, *_, **__: None")})


class Counts(BaseCallbackHandler):
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.told: list[Any] = []

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.counts["asked"] = self.counts.get("asked", 0) + 1
        entry = {"messages": str(messages)}
        entry["more"] = "x"
        settings = dict(kwargs)
        settings["seen"] = self.shown(entry)
        self.told.append(entry)

    @staticmethod
    def shown(entry: dict[str, str]) -> str:
        lines = [f"{name}: {text}" for name, text in entry.items()]
        lines.append("")
        return "\n".join(lines)


class Keeps(BaseCallbackHandler):
    def __init__(self) -> None:
        self.runs: dict[Any, list[Any]] = {}

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **kwargs: Any) -> None:
        run = self.runs.setdefault(run_id, [])
        run.append(len(messages))
        if (again := self.runs.get(run_id)) is not None:
            again.append(1)
        for each in self.runs.values():
            each.append(0)


class KeepsWhatItHears(BaseCallbackHandler):
    def __init__(self) -> None:
        self.heard: dict[Any, Any] = {}

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **kwargs: Any) -> None:
        heard = self.heard.setdefault(run_id, messages)
        heard.clear()


class Refuses:
    def on_event_start(self, event_type: Any, payload: Any = None, **kwargs: Any) -> None:
        if payload is None:
            raise RuntimeError("no")


@pytest.mark.parametrize(
    "handler",
    [
        Redacts(),
        Adds(),
        Inherits(),
        Sets(),
        Finds(),
        Renames(),
        Replaces(),
        ByAMethod(),
        ByAFunction(),
        Unread(),
        KeepsWhatItHears(),
    ],
    ids=lambda handler: type(handler).__name__,
)
def test_what_changes_what_it_hears_interferes(handler: Any) -> None:
    assert may_interfere([Counts(), handler], ("on_",), may_raise=False)


@pytest.mark.parametrize("handler", [Counts(), Keeps(), ConsoleCallbackHandler()])
def test_what_only_notes_does_not(handler: Any) -> None:
    assert not may_interfere([handler], ("on_",), may_raise=False)


def test_what_raises_interferes_where_that_is_heard() -> None:
    assert may_interfere([Refuses()], ("on_event",), may_raise=True)
    assert not may_interfere([Refuses()], ("on_event",), may_raise=False)
    assert not may_interfere([Refuses()], ("handle",), may_raise=True)
