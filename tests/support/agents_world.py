"""The world of the agents made up at random: a model with a script, and what tools leave behind.

A reply is chosen by its prompt: the same conversation goes on the same way every time.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from teola_plugin.engines import Batch, Completion, Delta, Done, Emit, Failed
from teola_plugin.models.langchain import EngineChatModel
from tests.support.langchain_world import digest
from tests.support.langgraph_world import Boom, Patient

Arguments = Callable[[random.Random], dict[str, Any]]


class Writing(Patient):
    """Writes in small pieces, now and then with a pause; what ends in an error is streamed up to there.

    The last piece comes once `is_due` says so of the prompt, or after some waiting.
    """

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.batches.append(batch)
        self.running += 1
        try:
            if batch.op != "decoding":
                for position in range(len(batch.items)):
                    emit(position, Done(1))
                return
            await asyncio.gather(*(self._write(at, str(item.payload), emit) for at, item in enumerate(batch.items)))
        finally:
            self.running -= 1

    async def _write(self, position: int, prompt: str, emit: Emit) -> None:
        error = None
        try:
            text = self.answer(prompt)
        except Boom as e:
            error, text = e, "I fail <tool_call>{"
        chance = random.Random(without_ids(prompt))
        pieces = []
        while text:
            cut = chance.randint(1, 40)
            pieces.append(text[:cut])
            text = text[cut:]
            if not text:
                self.gave_up |= not await self.is_so(lambda: self.is_due(prompt))
            emit(position, Delta(pieces[-1]))
            await asyncio.sleep(chance.choice([0, 0, 0.0005]))
        emit(position, Failed(error) if error else Done(Completion("".join(pieces), pieces=pieces)))


@dataclass
class Script:
    """What the model replies: up to `turns` replies with calls, then a final one."""

    seed: int
    turns: int
    known: dict[str, Arguments]
    final: str = ""
    fails: bool = False

    def reply(self, prompt: str) -> str:
        """By its prompt alone."""
        prompt = without_ids(prompt)
        chance = random.Random(f"{self.seed} {prompt}")
        if not prompt.startswith("Tools,"):  # asked by a tool
            return " ".join(digest(prompt)[i : i + 5] for i in range(0, 15, 5))
        if self.fails and chance.random() < 0.1:
            raise Boom("the engine failed")
        turn = prompt.rpartition("\nUser:")[2].count("\nAssistant:") - 1
        if turn >= self.turns or chance.random() < 0.1:
            return f"{self.ending(chance)}{digest(prompt)[:8]} 🐝 done."
        return self.calling(chance)

    def ending(self, chance: random.Random) -> str:
        """How a final reply begins."""
        if not self.final:
            return ""
        score = chance.choice([3, 3, 3, "many"])
        return written({"name": self.final, "arguments": {"summary": "all is well", "score": score}}) + "\n"

    def calling(self, chance: random.Random) -> str:
        """A reply with calls."""
        parts = [chance.choice(["", "", "I look it up.\n", "Ich schaue nach… "])]
        calls: list[str] = []
        for _ in range(chance.choice([0, 1, 1, 2, 2, 3, 4])):
            if calls and chance.random() < 0.3:
                calls.append(calls[-1])
            else:
                calls.append(self.call(chance))
        for call in calls:
            parts += [call, chance.choice(["\n", "", "\nand "])]
        text = "".join(parts).rstrip() if calls else f"{parts[0]}Nothing to look up."
        return text.removesuffix("</tool_call>") if chance.random() < 0.05 else text

    def call(self, chance: random.Random) -> str:
        """One call, at times a bad one."""
        name = chance.choice(list(self.known))
        call = {"name": name, "arguments": self.known[name](chance)}
        match chance.randint(0, 24):
            case 0:
                return written({**call, "name": "unknown"})
            case 1:
                return written(call).replace('"arguments": {', '"arguments": {,')
            case 2:
                return written({**call, "arguments": "bees"})
            case 3:
                return written({**call, "arguments": {"query": {"not": "text"}, "limit": "many"}})
            case 4:
                return written({"name": name})
            case 5:
                return "<tool_call>no call at all</tool_call>"
            case _:
                return written(call)


def without_ids(prompt: str) -> str:
    """`create_agent` tells the model of the ids of invalid calls."""
    return re.sub(r"call_[0-9a-f]{20}", "call_", prompt)


def written(call: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps(call, ensure_ascii=False)}\n</tool_call>"


@dataclass
class World:
    """The engine, the model on it, and what tools leave behind. `ran`: how often each tool did its work."""

    script: Script
    engine: Any = None
    chat: Any = None
    effects: list[str] = field(default_factory=list)
    ran: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.engine = Writing(self.script.reply)
        self.chat = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)
        self._lock = threading.Lock()

    def reset(self) -> None:
        """Before each conversation."""
        self.engine.batches.clear()
        self.effects.clear()
        self.ran.clear()

    def did(self, name: str, *args: Any) -> str:
        """The work of a tool: it takes a moment."""
        shown = self._counted(name, args)
        time.sleep(int(digest(shown)[0], 16) * 0.0002)
        return f"{name} found {digest(shown)[:6]}"

    def _counted(self, name: str, args: tuple[Any, ...]) -> str:
        shown = f"{name} {args}"
        with self._lock:  # tools run side by side
            self.ran[shown] += 1
        return shown

    async def adid(self, name: str, *args: Any) -> str:
        """`did` for a coroutine."""
        shown = self._counted(name, args)
        await asyncio.sleep(int(digest(shown)[0], 16) * 0.0002)
        return f"{name} found {digest(shown)[:6]}"
