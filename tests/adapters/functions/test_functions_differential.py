"""Functions that a seed makes, original and optimized: equal answers and errors, equal requests, equal state."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_openai import ChatOpenAI

from teola_plugin import optimize, optimized
from teola_plugin.adapters.functions import known, runs
from tests.support.hosted_service import Service, counted, served

SEEDS = int(os.environ.get("TEOLA_FUNCTION_SEEDS", "8"))
FIRST = int(os.environ.get("TEOLA_FUNCTION_FIRST", "0"))
GROUP = 8
DEPTH = 3
HEAD = """
import asyncio

state = {"calls": 0, "last": "none"}
"""


class Writer:
    """Writes a module with a function `answer(text)`, which asks the models `one` and `two`, and its helpers."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.is_async = seed % 2 == 1
        self.lines = [HEAD]
        self.texts: list[str] = []
        self.helpers: list[str] = []
        self.made = 0

    def module(self) -> str:
        for number in range(self.random.randrange(3)):
            self.function(f"helper{number}", 2)
            self.helpers.append(f"helper{number}")
        self.function("answer", 7)
        return "\n".join(self.lines)

    def function(self, name: str, statements: int) -> None:
        self.texts = ["text"]
        self.put(0, f"{self.word('async ')}def {name}(text):")
        self.put(1, "found, seen = [], {}")
        self.block(1, statements, is_loop=False)
        self.put(1, f"return {self.random.choice(['found, seen', 'found', self.text()])}\n")

    def word(self, word: str) -> str:
        return word if self.is_async else ""

    def put(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def text(self) -> str:
        return self.random.choice(self.texts)

    def shown(self) -> str:
        """A prompt: short, so that replies that hold prompts do not grow without end."""
        parts = [f"{self.random.choice('pqr')}{self.random.randrange(4)}", f"{{{self.text()}[-9:]}}"]
        if self.random.random() < 0.2:
            kept = ["{state['last'][-4:]}", "{state['calls']}", "{len(found)}", "{len(seen)}"]
            parts.append(self.random.choice(kept))
        return " ".join(parts)

    def ask(self, prompt: str) -> str:
        if self.helpers and self.random.random() < 0.2:
            return f'str({self.word("await ")}{self.random.choice(self.helpers)}(f"{prompt}"))'
        method = "ainvoke" if self.is_async else "invoke"
        asked = f'{self.word("await ")}{self.random.choice(["one", "two"])}.{method}(f"{prompt}")'
        return f"({asked}).content"

    def new(self) -> str:
        self.made += 1
        return f"v{self.made}"

    def condition(self) -> str:
        text = self.text()
        kinds = [f"len({text}) % 2", f"'{self.random.randrange(4)}' in {text}", f"{text} in seen", "len(found) > 2"]
        return self.random.choice([*kinds, "state['calls'] > 1"])

    def block(self, depth: int, statements: int, *, is_loop: bool) -> None:
        known = len(self.texts)
        for _ in range(statements):
            self.statement(depth, is_loop=is_loop)
        if depth > 1:  # what an arm or a round has stored may not be there behind it
            del self.texts[known:]

    def statement(self, depth: int, *, is_loop: bool) -> None:
        simple = [self.store, self.store, self.store, self.note, self.note, self.change]
        nested = [self.loop, self.branch, self.attempt, self.several] if depth < DEPTH else []
        ends = [self.leave] if is_loop or self.random.random() < 0.3 else []
        self.random.choice([*simple, *nested, *ends])(depth, is_loop)

    def store(self, depth: int, is_loop: bool) -> None:
        asked, name = self.ask(self.shown()), self.new()
        self.put(depth, f"{name} = {asked}")
        self.texts.append(name)

    def note(self, depth: int, is_loop: bool) -> None:
        text = self.text()
        noted = [f"found.append({text})", f"seen[{text}] = seen.get({text}, 0) + 1", f"found += [{text}[:3]]"]
        self.put(depth, self.random.choice([*noted, "found[:] = found[-3:]"]))

    def change(self, depth: int, is_loop: bool) -> None:
        self.put(depth, self.random.choice(["state['calls'] += 1", f"state['last'] = {self.text()}"]))

    def several(self, depth: int, is_loop: bool) -> None:
        name, at = self.new(), len(self.texts)
        self.texts.append("each")
        asked = self.ask(self.shown())
        del self.texts[at:]
        kept = f" if {self.condition()}" if self.random.random() < 0.3 else ""
        self.put(depth, f"{name} = [{asked} for each in ({self.text()}, 'k', {self.text()}[:2]){kept}]")
        self.put(depth, f"found += {name}")

    def loop(self, depth: int, is_loop: bool) -> None:
        self.put(depth, f"for n{depth} in range({self.random.randrange(1, 4)}):")
        name = self.new()
        self.put(depth + 1, f"{name} = f'{{{self.text()}[:6]}} {{n{depth}}}'")
        at = len(self.texts)
        self.texts.append(name)
        self.block(depth + 1, 2, is_loop=True)
        del self.texts[at:]

    def branch(self, depth: int, is_loop: bool) -> None:
        self.put(depth, f"if {self.condition()}:")
        self.block(depth + 1, 2, is_loop=is_loop)
        if self.random.random() < 0.6:
            self.put(depth, "else:")
            self.block(depth + 1, 2, is_loop=is_loop)

    def attempt(self, depth: int, is_loop: bool) -> None:
        self.put(depth, "try:")
        self.block(depth + 1, 1, is_loop=is_loop)
        self.put(depth + 1, self.random.choice([f"state['calls'] += int({self.text()}[-2])", f"seen[{self.text()}]"]))
        self.block(depth + 1, 1, is_loop=is_loop)
        self.put(depth, self.random.choice(["except (ValueError, KeyError) as e:", "except ValueError as e:"]))
        self.put(depth + 1, "found.append(type(e).__name__)")
        self.block(depth + 1, 1, is_loop=is_loop)

    def leave(self, depth: int, is_loop: bool) -> None:
        ends = ["return found", f"raise RuntimeError({self.text()})", *(["break", "continue"] if is_loop else [])]
        self.put(depth, f"if {self.condition()}:")
        self.put(depth + 1, self.random.choice(ends))


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with served() as service:
        service.lasts_s = 0.005
        yield service


def loaded(path: Path, name: str, service: Service) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for model in ("one", "two"):
        setattr(module, model, ChatOpenAI(model=model, base_url=service.url, api_key="x", max_retries=0))
    return module


def outcome(function: Callable[[str], Any], text: str) -> tuple[str, str]:
    try:
        found = function(text)
        return "value", repr(asyncio.run(found) if inspect.iscoroutine(found) else found)
    except Exception as e:
        return type(e).__name__, str(e)


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, GROUP))
def test_functions_that_a_seed_makes(
    first: int, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hits = 0
    for seed in range(first, first + GROUP):
        with monkeypatch.context() as patched:
            if seed // 2 % 2:
                patched.setattr(runs, "has_llamaindex", lambda: False)
                patched.setattr(known, "has_llamaindex", lambda: False)
            path = tmp_path / f"made_{seed}.py"
            path.write_text(Writer(seed).module())
            original, other = (loaded(path, f"made_{seed}_{number}", service) for number in range(2))
            fast = optimize(other.answer)
            for text in ("hive", "bee 2", "hive"):
                with counted(service) as expected:
                    wanted = outcome(original.answer, text)
                with counted(service) as made:
                    assert outcome(fast, text) == wanted, path.read_text()
                assert made == expected, path.read_text()
                assert other.state == original.state, path.read_text()
            if fast is not other.answer:
                hits += sum(report.hits for report in optimized(fast).reports)
    assert hits
