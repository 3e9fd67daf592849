"""Compiled LangGraph graphs, made up at random: nodes that ask models, chains, effects, failures, loops and sends.

Each node writes a key of its own and keys with reducers, so that nodes of one superstep rarely conflict. Some nodes run
ahead (they are pure but for what they ask), all others are LangGraph's alone.
"""

from __future__ import annotations

import asyncio
import operator
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from langchain_core.callbacks import adispatch_custom_event, dispatch_custom_event
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.runnables import RunnableConfig, RunnableLambda, RunnableParallel, RunnablePassthrough
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.runtime import Runtime
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from teola_plugin import pure
from teola_plugin.engines import Batch, Completion, Emit
from teola_plugin.models.langchain import EngineChatModel, EngineLLM
from tests.support.fakes import FakeEngine
from tests.support.langchain_world import answer, ask, digest

# --- states ----------------------------------------------------------------------------------------------------------


def longer(a: str, b: str) -> str:
    return a if len(a) >= len(b) else b


class Given(TypedDict, total=False):
    question: str


class State(Given, total=False):
    k0: str
    k1: str
    k2: str
    k3: str
    k4: str
    k5: str
    k6: str
    k7: str
    plan: str
    draft: str
    sum: str
    mode: str
    log: Annotated[list[str], operator.add]
    messages: Annotated[list[AnyMessage], add_messages]
    longest: Annotated[str, longer]
    turns: Annotated[int, operator.add]


def extended(a: list[str], b: list[str]) -> list[str]:
    a.extend(b)
    return a


@pure
def extended_by_a_liar(a: list[str], b: list[str]) -> list[str]:
    """Declared pure, and yet it changes its first argument."""
    a.extend(b)
    return a


class ChangedState(State, total=False):
    """With values that reducers and nodes change in place."""

    bag: Annotated[list[str], extended]
    facts: Annotated[list[str], extended_by_a_liar]
    sheet: dict[str, str]


class OddState(State, total=False):
    """With a reducer that nobody can read: lambdas of annotations in quotes have no source."""

    odd: Annotated[str, lambda a, b: f"{a} {b}"]


class Shown(TypedDict, total=False):
    k0: str
    log: Annotated[list[str], operator.add]
    turns: Annotated[int, operator.add]


class Fields(BaseModel):
    question: str = ""
    k0: str = ""
    k1: str = ""
    k2: str = ""
    k3: str = ""
    k4: str = ""
    k5: str = ""
    k6: str = ""
    k7: str = ""
    log: Annotated[list[str], operator.add] = []
    turns: Annotated[int, operator.add] = 0


@dataclass
class Slots:
    question: str = ""
    k0: str = ""
    k1: str = ""
    k2: str = ""
    k3: str = ""
    k4: str = ""
    k5: str = ""
    k6: str = ""
    k7: str = ""
    log: Annotated[list[str], operator.add] = field(default_factory=list)
    turns: Annotated[int, operator.add] = 0


# --- what nodes hold -------------------------------------------------------------------------------------------------


class Boom(Exception):
    pass


class Patient(FakeEngine):
    """Takes a moment for each batch, for some longer than for others, so that something can run ahead of it.

    The reply to what `holds` names comes once it is asked something else, which `awaits` names, and each reply once
    `is_due` says so of the prompt, or after some waiting.
    """

    def __init__(self, answer: Callable[[Any], Any], least_s: float = 0) -> None:
        super().__init__(answer, name="llm", concurrent=True)
        self.running = 0
        self.least_s = least_s
        self.holds = self.awaits = ""
        self.is_due: Callable[[str], bool] = lambda prompt: True
        self.patience = 5_000
        self.gave_up = False
        self.began: list[str] = []

    async def hold(self, batch: Batch) -> None:
        await self.hold_back(batch)
        moment_s = max(int(digest(str(item.payload))[0], 16) for item in batch.items) * 0.0003
        await asyncio.sleep(max(moment_s, self.least_s))

    async def hold_back(self, batch: Batch) -> None:
        texts = [str(item.payload) for item in batch.items]
        self.began += texts
        if self.holds and any(self.holds in text for text in texts):
            self.gave_up |= not await self.has_begun(self.awaits)
        self.gave_up |= not await self.is_so(lambda: all(map(self.is_due, texts)))

    async def has_begun(self, part: str) -> bool:
        """Whether what has this in its prompt was asked, after some waiting."""
        return await self.is_so(lambda: any(part in text for text in self.began))

    async def is_so(self, condition: Callable[[], bool]) -> bool:
        """Whether the condition holds, after some waiting."""
        for _ in range(self.patience):
            if condition():
                return True
            await asyncio.sleep(0.001)
        return False

    async def run(self, batch: Batch, emit: Emit) -> None:
        self.running += 1
        try:  # an LLM batches continuously: no item waits for those that came with it
            await asyncio.gather(*(self._one(batch, position, emit) for position in range(len(batch.items))))
        finally:
            self.running -= 1

    async def _one(self, batch: Batch, position: int, emit: Emit) -> None:
        one = replace(batch, items=batch.items[position : position + 1])
        await self.hold(one)
        await super().run(one, lambda _, outcome: emit(position, outcome))

    @property
    def asked(self) -> Counter[str]:
        return Counter(str(i.payload) for b in self.batches if b.op == "decoding" for i in b.items)


class World:
    """The engine, the models on it, and what nodes leave behind outside of the state."""

    def __init__(self, fails: Callable[[str], bool] = lambda prompt: False, least_s: float = 0) -> None:
        self.fails = fails
        self.engine = Patient(self._answer, least_s)
        self.chat = EngineChatModel(engine=self.engine, max_tokens=None, temperature=None)
        self.llm = EngineLLM(engine=self.engine, max_tokens=None, temperature=None)
        self.effects: list[str] = []
        self.tries: Counter[str] = Counter()
        self.caches: list[InMemoryCache] = []

    def reset(self) -> None:
        self.engine.batches.clear()
        self.effects.clear()
        self.tries.clear()
        for cache in self.caches:
            cache.clear()

    def _answer(self, prompt: Any) -> Completion:
        if self.fails(prompt):
            raise Boom("the engine failed")
        return answer(prompt)


Node = Callable[..., Any]


@dataclass
class Nodes:
    """Node functions. `key` is what a node writes, `read` what it reads."""

    world: World
    chance: random.Random
    is_async: bool = False
    spelled: list[Callable[[str], Node]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.spelled = [self.plans, self.drafts, self.sums_up_at_times, self.says_mode]
        self.spelled += [self.sums_up] if self.is_async else []
        self.chance.shuffle(self.spelled)

    def pick(self, key: str, read: str, *, is_quick: bool = False) -> tuple[Any, dict[str, Any]]:
        """A node and the options that it is added with; `is_quick`: one that may run ahead, or is slow itself."""
        if self.spelled and self.chance.random() < 0.3:
            return self.spelled.pop()(read), {}
        quick = [
            self.asks, self.asks_then_builds, self.asks_then_builds, self.varies, self.logs, self.chain, self.chain,
            self.plain, self.batches, self.needs, self.asks_as_object, self.slow,
        ]  # fmt: skip
        others = [
            self.talks, self.assigns, self.declared, self.unpacks, self.notes, self.notes, self.raises, self.tells,
            self.flaky, self.cached, self.competes, self.mapped, self.writes_nothing, self.configured,
        ]  # fmt: skip
        if self.is_async:
            quick += [self.asks_in_coroutine, self.asks_in_coroutine]
            others += [self.notes_in_coroutine]
        make = self.chance.choice(quick if is_quick else [*quick, *others])
        made = make(key, read, self.chance.choice(["red", "green", "blue"]))
        return made if isinstance(made, tuple) else (made, {})

    # those that may run ahead

    def asks(self, key: str, read: str, word: str) -> Node:
        chat = self.world.chat
        return lambda state: {key: chat.invoke(f"{word} {state.get(read, '')}").content}

    def asks_then_builds(self, key: str, read: str, word: str) -> Node:
        llm = self.world.llm

        def node(state: State) -> Any:
            text = llm.invoke(word + " " + state.get(read, ""))
            made = {key: text}
            if "a" in text[:4]:
                made["longest"] = text + "!"
            return made

        return node

    def asks_in_coroutine(self, key: str, read: str, word: str) -> Any:
        chat = self.world.chat

        async def node(state: State) -> Any:
            first, second = await asyncio.gather(chat.ainvoke(word + state["question"]), chat.ainvoke(word))
            return {key: first.content + second.content + state.get(read, "")}

        return node

    def varies(self, key: str, read: str, word: str) -> Node:
        chat = self.world.chat

        def node(state: State) -> Any:
            text = str(chat.invoke(f"{word} about {state.get(read, '')}").content)
            if "7" in text[:3]:
                return None
            if "3" in text[:3]:
                return {"log": [word]}
            return {key: text, "log": [key, text[:3]]}

        return node

    def talks(self, key: str, read: str, word: str) -> Node:
        chat = self.world.chat

        def node(state: State) -> Any:
            said = HumanMessage(content=f"{word} {state.get(read, '')}", id=f"human-{key}")
            reply = chat.invoke([*state.get("messages", []), said])
            return {"messages": [said, reply], key: str(reply.content)}

        return node

    def logs(self, key: str, read: str, word: str) -> Node:
        chat = self.world.chat
        return lambda state: {"log": [f"{key} {chat.invoke(word + ' ' + ' '.join(state.get('log', []))).content}"]}

    def chain(self, key: str, read: str, word: str) -> Any:
        known = RunnableLambda(lambda state: {"text": state.get(read, "")})
        told = known | ask(word + " {text}") | self.world.chat | StrOutputParser()
        return self.chance.choice([
            RunnableParallel(**{key: told}),
            told | (lambda text: {key: text, "longest": text}),
            ask(word + " {question}") | self.world.llm | (lambda text: {key: text}),
        ])  # fmt: skip

    def assigns(self, key: str, read: str, word: str) -> Any:
        told = ask(word + " {question}") | self.world.chat | StrOutputParser()
        return RunnableLambda(lambda state: {"question": state["question"]}) | RunnablePassthrough.assign(**{key: told})

    def plain(self, key: str, read: str, word: str) -> Node:
        return self.chance.choice([
            lambda state: {key: state.get(read, word)[::-1]},
            lambda state: {key: word + state["question"], "turns": 1},
            lambda state: {key: ", ".join(sorted(state))},
        ])  # fmt: skip

    def declared(self, key: str, read: str, word: str) -> Node:
        @pure
        def node(state: State) -> Any:
            return {"longest": str(state.get("longest", word)) + word, key: repr(sorted(state.items(), key=str))[:40]}

        return node

    def unpacks(self, key: str, read: str, word: str) -> Node:
        chat = self.world.chat

        def node(state: State) -> Any:
            made = dict(log=[word])  # noqa: C408
            made["log"].append(str(chat.invoke(word).content))
            return {**made, key: state.get(read, "none")}

        return node

    def batches(self, key: str, read: str, word: str) -> Node:
        chat = self.world.chat

        def node(state: State) -> Any:
            replies = chat.batch([f"{word} {part}" for part in state.get(read, "x y").split()[:2]])
            return {key: " ".join(str(reply.content) for reply in replies)}

        return node

    def needs(self, key: str, read: str, word: str) -> Node:
        """A KeyError where the key was not written."""
        chat = self.world.chat
        return lambda state: {key: chat.invoke(word + state[read]).content, "log": [state["question"]]}

    def asks_as_object(self, key: str, read: str, word: str) -> Any:
        return Asker(self.world.chat, key, word)

    def cached(self, key: str, read: str, word: str) -> Any:
        return self.asks(key, read, word), {"cache_policy": CachePolicy()}

    def writes_nothing(self, key: str, read: str, word: str) -> Node:
        return self.chance.choice([lambda state: None, lambda state: {}, lambda state: {"unknown": 1, key: word}])

    def competes(self, key: str, read: str, word: str) -> Node:
        """Two of one superstep are an InvalidUpdateError."""
        return lambda state: {"k0": word, "longest": word + key}

    # those that spell out which keys they write

    def plans(self, read: str) -> Node:
        chat = self.world.chat
        return lambda state: {"plan": chat.invoke("plan " + state["question"]).content}

    def drafts(self, read: str) -> Node:
        chat = self.world.chat

        def node(state: State) -> dict[str, Any]:
            text = str(chat.invoke(f"draft {state.get('plan', 'nothing')} {state.get(read, '')}").content)
            return {"draft": text, "log": [text[:3]], "messages": [HumanMessage(text)]}

        return node

    def sums_up(self, read: str) -> Any:
        llm = self.world.llm

        async def node(state: State) -> dict[str, Any]:
            text = await llm.ainvoke(f"sum {state.get('draft', '')} {state.get('plan', '')} {state.get('mode', '')}")
            return {"sum": text, "longest": text}

        return node

    def sums_up_at_times(self, read: str) -> Node:
        chat = self.world.chat

        def node(state: State) -> dict[str, Any] | None:
            text = str(chat.invoke("sum up " + state.get("draft", "") + " ".join(state.get("log", []))).content)
            if "1" in text[:2]:
                return None
            if "5" in text[:3]:
                return {"log": [text]}
            return {"sum": text, "turns": 1}

        return node

    def says_mode(self, read: str) -> Any:
        """The tracer has an input of that name itself."""
        prompt = ask("mode {mode} input {input}")
        return (lambda s: {"mode": s.get("mode", ""), "input": s["question"]}) | prompt | self.world.chat | _as_mode

    # LangGraph's alone

    def mapped(self, key: str, read: str, word: str) -> Any:
        parts = RunnableLambda(lambda state: state.get(read, "a b").split()[:3])
        return (
            parts | (ask(word + " {part}") | self.world.chat).map() | (lambda ms: {key: ms[-1].content if ms else ""})
        )

    def notes(self, key: str, read: str, word: str) -> Node:
        effects, chat = self.world.effects, self.world.chat

        def node(state: State) -> Any:
            effects.append(f"{key} {state.get(read, '')} {sorted(state.get('log', []))}")
            return {key: f"noted {chat.invoke(key).content}", "log": [word]}

        return node

    def notes_in_coroutine(self, key: str, read: str, word: str) -> Any:
        effects, chat = self.world.effects, self.world.chat

        async def node(state: State) -> Any:
            effects.append(f"{key} {state.get(read, '')}")
            await asyncio.sleep(0)
            return {key: (await chat.ainvoke(word + state["question"])).content}

        return node

    def slow(self, key: str, read: str, word: str) -> Node:
        def node(state: State) -> Any:
            time.sleep(0.004)
            return {key: word, "log": [key]}

        return node

    def raises(self, key: str, read: str, word: str) -> Node:
        def node(state: State) -> Any:
            if digest(state.get(read, ""))[0] in "01":
                raise Boom(f"{key} does not like it", word)
            return {key: word}

        return node

    def tells(self, key: str, read: str, word: str) -> Any:
        def node(state: State) -> Any:
            get_stream_writer()({key: word})
            dispatch_custom_event("told", {"key": key})
            return {key: state.get(read, word)}

        async def anode(state: State, config: RunnableConfig) -> Any:
            await adispatch_custom_event("told", {"key": key}, config=config)
            return {key: state.get(read, word)}

        return anode if self.is_async else node

    def configured(self, key: str, read: str, word: str) -> Any:
        chat = self.world.chat

        def of_config(state: State, config: RunnableConfig) -> Any:
            return {key: chat.invoke(word + str(config["metadata"]["who"]), config).content}

        def of_runtime(state: State, runtime: Runtime[Any]) -> Any:
            return {key: chat.invoke(f"{word} {runtime.context}").content}

        return self.chance.choice([of_config, of_runtime])

    def flaky(self, key: str, read: str, word: str) -> Any:
        tries, chat = self.world.tries, self.world.chat

        def node(state: State) -> Any:
            text = chat.invoke(word + state.get(read, "")).content
            tries[key] += 1
            if tries[key] % 2:
                raise Boom("not yet")
            return {key: text}

        return node, {"retry_policy": RetryPolicy(initial_interval=0.001, jitter=False, max_attempts=2, retry_on=Boom)}

    def turning(self, key: str, read: str, word: str) -> Node:
        """One turn of a loop."""
        chat = self.world.chat

        def node(state: State) -> Any:
            return {key: chat.invoke(f"{word} {state.get('turns', 0)}").content, "turns": 1}

        return node

    def stops(self, key: str, read: str, word: str) -> Node:
        chat = self.world.chat

        def node(state: State) -> Any:
            said = interrupt({"about": chat.invoke(word).content})
            return {key: f"{said} {state.get(read, '')}"}

        return node

    def commands(self, key: str, targets: list[str]) -> Node:
        chat = self.world.chat

        def node(state: State) -> Any:
            text = str(chat.invoke(f"where to {state.get('turns', 0)}").content)
            return Command(update={key: text}, goto=targets[ord(text[0]) % len(targets)])

        return node

    def worker(self, word: str) -> Node:
        """One of several that are sent a part each."""
        chat = self.world.chat
        return lambda part: {"log": [str(chat.invoke(f"{word} {part['part']}").content)]}

    def of_object(self, key: str, read: str) -> Any:
        """A node of a graph whose state is an object."""
        chat, effects, word = self.world.chat, self.world.effects, self.chance.choice(["red", "green"])

        def notes(state: Any) -> Any:
            effects.append(f"{key} {state.question}")
            return {key: word, "log": [key]}

        def builds(state: Any) -> Any:
            made = {key: str(chat.invoke(word + " ".join(state.log)).content)}
            return made if state.question else {}

        async def waits(state: Any) -> Any:
            return {key: (await chat.ainvoke(word + state.question)).content}

        reads: dict[str, Node] = {
            f"k{n}": f
            for n, f in enumerate([
                lambda state: {key: chat.invoke(word + state.k0).content},
                lambda state: {key: chat.invoke(word + state.k1).content, "log": [state.k0]},
                lambda state: {key: chat.invoke(word + state.k2).content},
            ])
        }  # fmt: skip
        others = [notes, builds, waits] if self.is_async else [notes, builds]
        return self.chance.choice([reads.get(read, reads["k0"]), reads["k1"], *others])


def _as_mode(message: Any) -> dict[str, Any]:
    return {"mode": message.content}


class Asker:
    """A node that is an object."""

    def __init__(self, chat: Any, key: str, word: str) -> None:
        self.chat, self.key, self.word = chat, key, word

    def __call__(self, state: State) -> dict[str, Any]:
        return {self.key: str(self.chat.invoke(self.word + " " + state["question"]).content)}


class SteadyNodes(Nodes):
    """Nodes that come to the same in each run, whatever else runs at the same time."""

    def pick(self, key: str, read: str, *, is_quick: bool = False) -> tuple[Any, dict[str, Any]]:
        """See `Nodes.pick`."""
        quick = [self.asks, self.asks, self.asks_then_builds, self.varies, self.logs, self.chain, self.plain]
        others = [self.batches, self.talks, self.mapped, self.writes_nothing, self.adds, self.adds, self.fills_in]
        if self.is_async:
            quick += [self.asks_in_coroutine, self.asks_in_coroutine]
        make = self.chance.choice(quick if is_quick else [*quick, *others])
        made = make(key, read, self.chance.choice(["red", "green", "blue"]))
        return made if isinstance(made, tuple) else (made, {})

    def adds(self, key: str, read: str, word: str) -> Node:
        """To lists that their reducers extend in place."""
        chat = self.world.chat

        def node(state: ChangedState) -> dict[str, Any]:
            about = f"{state.get(read, '')} {state.get('facts', '')} {len(state.get('bag', []))}"
            return {key: chat.invoke(f"{word} {about}").content, "bag": [key], "facts": [word]}

        return node

    def fills_in(self, key: str, read: str, word: str) -> Any:
        """A line of what the caller has given, in place, once the model has replied."""
        known = RunnableLambda(lambda state: {"about": state.get(read, "")}) | ask(word + " {about}")

        def fill_in(state: dict[str, Any]) -> dict[str, Any]:
            state.get("sheet", {})[key] = state["text"]
            return {key: state["text"]}

        return RunnablePassthrough.assign(text=known | self.world.chat | StrOutputParser()) | fill_in


# --- graphs ----------------------------------------------------------------------------------------------------------


class Tardy(InMemorySaver):
    """Begins to save a moment after it was told to, as a busy or a distant store does."""

    moment_s = 0.002

    def put(self, *args: Any, **kwargs: Any) -> Any:
        time.sleep(self.moment_s)
        return super().put(*args, **kwargs)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.moment_s)
        super().put_writes(*args, **kwargs)

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(self.moment_s)
        return super().put(*args, **kwargs)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(self.moment_s)
        super().put_writes(*args, **kwargs)


class Maker:
    """A graph by chance. `stops_before`, `stops_after`: interrupts that a call may ask for."""

    state: type = State
    saver: type[InMemorySaver] = InMemorySaver

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        fails = self.chance.random() < 0.08
        self.world = World((lambda prompt: digest(prompt)[0] == "0") if fails else (lambda prompt: False))
        self.is_async = self.chance.random() < 0.4
        self.has_saver = self.chance.random() < 0.45
        self.nodes = Nodes(self.world, self.chance, self.is_async)
        self.names: list[str] = []

    def graph(self) -> Any:
        size, shape = self.chance.randint(2, 8), self.chance.choice(["braid", "braid", "random", "serial"])
        return (self._object_graph if self.chance.random() < 0.15 else self._dict_graph)(size, shape)

    def _object_graph(self, size: int, shape: str) -> Any:
        builder: Any = StateGraph(self.chance.choice([Fields, Slots]))
        for n, parents in self._connect(builder, size, shape):
            builder.add_node(f"n{n}", self.nodes.of_object(f"k{n}", f"k{min(parents, default=0)}"))
        return self._compiled(builder)

    def _dict_graph(self, size: int, shape: str, depth: int = 1) -> Any:
        schemas: Any = self.chance.choice([{}, {}, {"input_schema": Given}, {"output_schema": Shown}])
        builder: Any = StateGraph(OddState if self.chance.random() < 0.15 else self.state, **schemas)
        loops = size > 2 and self.chance.random() < 0.25
        for n, parents in self._connect(builder, size, shape):
            key, read = f"k{n}", self.chance.choice(["question", *(f"k{p}" for p in (*parents, *parents))])
            options: dict[str, Any] = {}
            if loops and n == size - 1:
                node = self.nodes.turning(key, read, "turn")
            elif depth and n and self.chance.random() < 0.06:
                node = self._inner(depth)
            elif depth and self.has_saver and self.chance.random() < 0.06:
                node = self.nodes.stops(key, read, "stop")
            else:
                node, options = self.nodes.pick(key, read, is_quick=shape == "braid" and self.chance.random() < 0.7)
            options |= {"defer": True} if n and not loops and self.chance.random() < 0.04 else {}
            builder.add_node(f"n{n}", node, **options)
        if loops:
            self._loop(builder, f"n{size - 1}", f"n{self.chance.randint(0, size - 2)}")
        elif size > 3 and self.chance.random() < 0.25:
            self._decide(builder, f"n{self.chance.randint(0, size - 3)}", [f"n{size - 2}", f"n{size - 1}"])
        return self._compiled(builder, is_inner=not depth)

    def _loop(self, builder: Any, last: str, first: str) -> None:
        builder.add_conditional_edges(last, lambda s: first if s.get("turns", 0) < 3 else END, [first, END])

    def _inner(self, depth: int) -> Any:
        """A graph as a node: with the same state, or called by a function."""
        inner = self._dict_graph(self.chance.randint(1, 3), "random", depth - 1)
        if self.chance.random() < 0.7 or self.is_async:
            return inner
        return lambda state: {"log": [repr(sorted(inner.invoke({"question": state["question"]})))]}

    def _connect(self, builder: Any, size: int, shape: str) -> Iterator[tuple[int, list[int]]]:
        """Edges from the start onwards. Each node with those before it.

        A braid has strands that do not wait for each other, but for LangGraph's supersteps.
        """
        builder.add_edge(START, "n0")
        strands = self.chance.randint(2, 3)
        for n in range(size):
            match shape:
                case "serial":
                    parents = [n - 1] if n else []
                case "braid" if n == size - 1 > strands:
                    parents = [*range(n - strands, n)]
                case "braid":
                    parents = [max(n - strands, 0)] if n else []
                case _:
                    parents = self.chance.sample(range(max(0, n - 3), n), min(n, self.chance.choice([1, 1, 2])))
            yield n, parents
            if len(parents) > 1 and self.chance.random() < 0.6:
                builder.add_edge([f"n{p}" for p in parents], f"n{n}")
            else:
                for parent in parents:
                    builder.add_edge(f"n{parent}", f"n{n}")

    def _decide(self, builder: Any, source: str, targets: list[str]) -> None:
        """A node after which a condition, sends or a command say what comes next."""
        chat, effects = self.world.chat, self.world.effects

        def by_model(state: State) -> Any:
            return targets if chat.invoke(f"which {state['question']}").content < "8" else END

        def with_effect(state: State) -> Any:
            effects.append(f"decided {sorted(state)}")
            return targets[0]

        def sends(state: State) -> Any:
            return [Send("worker", {"part": part}) for part in state["question"].split()]

        match self.chance.choice(["by model", "effect", "sends", "one", "command"]):
            case "by model":
                builder.add_conditional_edges(source, by_model, [*targets, END])
            case "effect":
                builder.add_conditional_edges(source, with_effect)
            case "sends":
                builder.add_node("worker", self.nodes.worker("part"))
                builder.add_conditional_edges(source, sends, ["worker"])
                builder.add_edge("worker", targets[0])
            case "one":
                by_length: Any = lambda state: len(state["question"]) % 2 == 0  # noqa: E731
                builder.add_conditional_edges(source, by_length, {True: targets[0], False: END})
            case _:
                node = self.nodes.commands("k7", targets)
                if self.chance.random() < 0.5:
                    node.__annotations__["return"] = Command[Literal[tuple(targets)]]  # type: ignore[misc]
                builder.add_node("commander", node)
                builder.add_edge(source, "commander")

    def _compiled(self, builder: Any, *, is_inner: bool = False) -> Any:
        options: dict[str, Any] = {}
        if any(spec.cache_policy for spec in builder.nodes.values()):
            self.world.caches.append(InMemoryCache())
            options["cache"] = self.world.caches[-1]
        if is_inner:
            return builder.compile(**options)
        self.names = list(builder.nodes)
        if self.has_saver:
            options["checkpointer"] = self.saver()
            if self.chance.random() < 0.2:
                options[self.chance.choice(["interrupt_before", "interrupt_after"])] = self.chance.choice(
                    [[self.chance.choice(self.names)], "*"]
                )
        return builder.compile(**options)


class SteadyMaker(Maker):
    """Graphs with a checkpointer that come to the same in each run, as long as each save ends before the next nodes."""

    state = ChangedState

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.world = World()
        self.has_saver = True
        self.nodes = SteadyNodes(self.world, self.chance, self.is_async)
