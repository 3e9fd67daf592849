"""A graph whose node is read asks its model exactly what the original asks, and no text that the original does not."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import dataclasses
import decimal
import io
import logging
import math
import sys
import threading
import time
import types
import urllib.parse
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import httpx
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.output_parsers import JsonOutputParser, StrOutputParser
from langchain_core.runnables import RunnableLambda, RunnableParallel, RunnablePassthrough
from langchain_core.tracers.base import BaseTracer
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from openai import OpenAI

from teola_plugin import optimize, optimized, pure
from tests.adapters.langchain.test_langchain_foreign import HostedNatively
from tests.adapters.reader.world import Model, read
from tests.support.hosted_service import Service, served
from tests.support.langchain_world import ask

assign = RunnablePassthrough.assign


@pure
class Slow(HostedNatively):
    """Takes its time, in which what is read gets out."""

    def _said(self, how: str, messages: Any, kwargs: Any) -> str:
        made = super()._said(how, messages, kwargs)
        time.sleep(0.05)
        return str(messages[0].content).partition("say ")[2] or made


class State(TypedDict, total=False):
    x: Any
    out: Any


Node = Callable[[Any], Any]


def graph(model: Any, function: Node, **kwargs: Any) -> Any:
    """The function between two nodes that ask."""

    def before(state: State) -> None:
        model.invoke("before")

    def node(state: State) -> dict[str, Any]:
        return {"out": function(state["x"])}

    async def anode(state: State) -> dict[str, Any]:
        return {"out": await function(state["x"])}

    def after(state: State) -> None:
        model.invoke("after")

    made = StateGraph(State)
    made.add_node("before", before)
    made.add_node("node", anode if asyncio.iscoroutinefunction(function) else node)
    made.add_node("after", after)
    for edge in ((START, "before"), ("before", "node"), ("node", "after"), ("after", END)):
        made.add_edge(*edge)
    return made.compile(**kwargs)


def outcome(pipeline: Any, given: Any, config: Any = None, **kwargs: Any) -> Any:
    """The value, or what was raised."""
    try:
        if asyncio.iscoroutinefunction(pipeline.builder.nodes["node"].runnable.afunc):
            return asyncio.run(pipeline.ainvoke({"x": given}, config, **kwargs))["out"]
        return pipeline.invoke({"x": given}, config, **kwargs)["out"]
    except BaseException as e:
        return type(e)


def asked(build: Callable[[Any], Node], given: Any = None, config: Any = None, **kwargs: Any) -> tuple[list[str], int]:
    """What the original asks, which must be what the optimized graph asks, and how much of it ran ahead."""
    saver = {"checkpointer": InMemorySaver()} if "durability" in kwargs else {}
    plain, fast = Slow(), Slow()
    original, chain = graph(plain, build(plain), **saver), optimize(graph(fast, build(fast), **saver))
    assert repr(outcome(chain, given, config, **kwargs)) == repr(outcome(original, given, config, **kwargs))
    time.sleep(0.1)
    found = [text for _, text in plain._calls]
    assert sorted(text for _, text in fast._calls) == sorted(found)
    report = optimized(chain).reports[-1]
    return found, report.hits + report.shared


def behind(act: Callable[[Any], Any]) -> Callable[[Any], Node]:
    """A node that does something between two requests; the second says what came of it."""

    def build(model: Any) -> Node:
        def node(x: Any) -> Any:
            model.invoke("first")
            return model.invoke(f"second {act(x)}").content

        return node

    return build


# --- sets ------------------------------------------------------------------------------------------------------------

GROWN = set(range(100))
GROWN -= set(range(100)) - {1, 3, 17, 64}
"""In an order that a copy of it does not have."""


@dataclasses.dataclass(eq=False)
class Thing:
    n: int


THINGS = [Thing(n) for n in range(9)]


@pytest.mark.parametrize(
    "show",
    [
        str, list, repr, lambda s: f"{s}", lambda s: ",".join(map(str, s)), lambda s: "{d[k]}".format(d={"k": s}),
        lambda s: dict.fromkeys(s), lambda s: collections.Counter(s).most_common(), lambda s: bytes(s),
        lambda s: urllib.parse.urlencode({"t": s}, doseq=True), lambda s: {"a": s}.values(), lambda s: [*s],
        lambda s: "%s" % {"k": s}, lambda s: {frozenset([64, 1, *s, 0]): 1}, lambda s: list({*s, 0, 8}),
        lambda s: [each.n for each in set(THINGS)], lambda s: list(set(s) | {8, 16}),
        lambda s: ask("{s}").format(s=s), lambda s: ask("{s}").invoke({"s": {"k": s}}).to_string(),
    ],
)  # fmt: skip
def test_a_set_is_shown_in_its_own_order_or_not_at_all(show: Callable[[Any], Any]) -> None:
    assert len(asked(behind(show), GROWN)[0]) == 4


def test_what_does_not_hang_on_the_order_of_a_set_is_asked_ahead() -> None:
    def node(x: Any) -> Any:
        own = {word for word in ("the", "quick", "brown", "fox")}
        own.add("jumps")
        own.discard("the")
        return sorted(x), len(x), 3 in x, ",".join(own)

    assert asked(behind(node), GROWN)[1] >= 3


def test_a_chain_does_not_fill_a_copy_of_a_set_into_a_prompt() -> None:
    def build(model: Any) -> Any:
        return assign(a=ask("A {q}") | model | StrOutputParser()) | assign(b=ask("B {s}") | model | StrOutputParser())

    plain, fast = Slow(), Slow()
    build(plain).invoke({"q": "q", "s": GROWN})
    optimize(build(fast)).invoke({"q": "q", "s": GROWN})
    time.sleep(0.1)
    assert sorted(fast._calls) == sorted(plain._calls)


# --- what writes something out ---------------------------------------------------------------------------------------


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError("full")


class NoText:
    def __repr__(self) -> str:
        raise ValueError("no text")


class Full(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("full")


class Refusing(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        raise OSError("full")


NO_TEXT = NoText()
LOG = logging.getLogger("tests.exact")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


def narrow() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)


@pytest.mark.parametrize("make", [Broken, closed, narrow])
def test_nothing_is_asked_behind_what_cannot_be_printed(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", make())
    assert asked(behind(lambda x: print("größer")))[0] == ["before", "first"]


def standard() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8")


def refusing() -> None:
    raise OSError("full")


class Refused(io.StringIO):
    def flush(self) -> None:
        refusing()


def with_its_own() -> io.TextIOWrapper:
    stream = standard()
    stream.flush = refusing  # type: ignore[method-assign]
    return stream


@pytest.mark.parametrize("act", [lambda x: sys.stdout.flush(), lambda x: sys.stderr.flush()])
def test_what_stands_behind_a_flushed_standard_stream_is_asked(
    act: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", standard())
    monkeypatch.setattr(sys, "stderr", standard())
    assert asked(behind(act)) == asked(behind(lambda x: None))


def shut() -> io.TextIOWrapper:
    stream = standard()
    stream.close()
    return stream


@pytest.mark.parametrize("make", [Refused, shut, with_its_own])
def test_nothing_is_asked_behind_a_flush_that_raises(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", make())
    assert asked(behind(lambda x: sys.stdout.flush()))[0] == ["before", "first"]


def test_nothing_is_asked_behind_a_flush_with_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", standard())
    assert asked(behind(lambda x: sys.stdout.flush(x)))[0] == ["before", "first"]


@pytest.mark.parametrize(
    "act",
    [
        lambda x: print([NO_TEXT]), lambda x: print("a", unheard_of=1), lambda x: warnings.warn("w", stacklevel=1),
        lambda x: LOG.warning("w", extra={"message": 1}), lambda x: LOG.warning("w", unheard_of=1),
        lambda x: LOG.warning("%d", "no number"),
    ],
)  # fmt: skip
def test_nothing_is_asked_behind_what_is_written_out_and_raises(act: Callable[[Any], Any]) -> None:
    """Pytest makes warnings errors, and raises where a record cannot be formatted."""
    assert asked(behind(act))[0] == ["before", "first"]


@pytest.mark.parametrize("kind", ["handler", "filter"])
def test_nothing_is_asked_behind_a_handler_of_logging_that_raises(kind: str) -> None:
    handler, filter_ = Full(), Refusing()
    LOG.addHandler(handler) if kind == "handler" else LOG.addFilter(filter_)
    try:
        assert asked(behind(lambda x: LOG.warning("w")))[0] == ["before", "first"]
    finally:
        LOG.removeHandler(handler)
        LOG.removeFilter(filter_)


FACTORY = """
def around(factory):
    def make(*args, **kwargs):
        record = factory(*args, **kwargs)
        record.stamp = 1
        return record
    return make

class Around:
    def __init__(self, factory):
        self.factory = factory

    def __call__(self, *args, **kwargs):
        return self.factory(*args, **kwargs)
"""


def around(factory: Any, file: str, name: str = "around") -> Any:
    """A factory of log records around another one, as Ray and vLLM have them, that is written in this file."""
    module = types.ModuleType(f"factory_of_{len(MODULES)}")
    module.__file__ = file
    sys.modules[module.__name__] = module
    MODULES.append(module)
    exec(compile(FACTORY, file, "exec"), vars(module))
    return vars(module)[name](factory)


MODULES: list[types.ModuleType] = []
OWN, INSTALLED = "app.py", "lib/site-packages/ray/log.py"


@pytest.mark.parametrize(
    ("factory", "is_certain"),
    [
        (around(logging.LogRecord, INSTALLED), True),
        (around(around(logging.LogRecord, INSTALLED), INSTALLED), True),
        (around(logging.LogRecord, OWN), False),
        (around(around(logging.LogRecord, OWN), INSTALLED), False),
        (around(logging.LogRecord, INSTALLED, "Around"), True),
        (around(around(logging.LogRecord, INSTALLED), INSTALLED, "Around"), True),
        (around(logging.LogRecord, OWN, "Around"), False),
        (around(around(logging.LogRecord, OWN), INSTALLED, "Around"), False),
    ],
)
def test_a_factory_of_log_records_that_the_user_wrote_may_raise(factory: Any, is_certain: bool) -> None:
    logging.setLogRecordFactory(factory)
    try:
        assert (asked(behind(lambda x: LOG.warning("w")), {"a": 1})[1] >= 3) == is_certain
    finally:
        logging.setLogRecordFactory(logging.LogRecord)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "act",
    [
        lambda x: print("a", x, sep="\n"),
        lambda x: LOG.warning("%s %d", "w", 5),
        lambda x: warnings.warn("w", stacklevel=1),
    ],
)
def test_what_is_written_out_as_usual_holds_up_nothing(act: Callable[[Any], Any]) -> None:
    assert asked(behind(act), {"a": 1})[1] >= 3


APART = logging.getLogger("apart")


class Counting:
    """Counts how often code of the class runs."""

    def __init__(self) -> None:
        self.calls = 0

    def __str__(self) -> str:
        self.calls += 1
        return "counting"

    def __index__(self) -> int:
        self.calls += 1
        return 1

    def __setitem__(self, at: Any, value: Any) -> None:
        self.calls += 1

    def __delitem__(self, at: Any) -> None:
        self.calls += 1


def stored(counting: Any) -> None:
    try:
        counting["key"] = 1
    except AttributeError:
        counting.calls = -1


def deleted(counting: Any) -> None:
    with contextlib.suppress(AttributeError):
        del counting["key"]
        return
    counting.calls = -1


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "use",
    [
        lambda counting: APART.warning("%s", counting), lambda counting: APART.warning("%s %s", 1, [counting]),
        lambda counting: warnings.warn("w", stacklevel=counting), stored, deleted,
    ],
)  # fmt: skip
def test_code_of_an_objects_class_may_change_what_is_asked(
    use: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(APART, "propagate", False)
    monkeypatch.setattr(APART, "handlers", [logging.StreamHandler(io.StringIO())])

    def node(model: Any) -> Node:
        def ask(x: Any) -> Any:
            counting = Counting()
            use(counting)
            return [model.invoke("before").content, model.invoke(f"{counting.calls} calls").content]

        return ask

    asked(node, {"a": 1})


# --- iterators -------------------------------------------------------------------------------------------------------

# ruff: noqa: C401, C402, C416, C417, RUF032, UP031

TAKING: list[tuple[Callable[[Any, Any], Any], int]] = [
    (lambda m, qs: sum(m.invoke(q).content for q in qs), 1),
    (lambda m, qs: sum(map(lambda q: m.invoke(q).content, qs)), 1),
    (lambda m, qs: set([m.invoke(q).content] for q in qs), 1),
    (lambda m, qs: {*([m.invoke(q).content] for q in qs)}, 1),
    (lambda m, qs: set().union([m.invoke(q).content] for q in qs), 1),
    (lambda m, qs: dict((m.invoke(q).content,) for q in qs), 1),
    (lambda m, qs: {}.update((m.invoke(q).content,) for q in qs), 1),
    (lambda m, qs: dict.fromkeys([m.invoke(q).content] for q in qs), 1),
    (lambda m, qs: collections.Counter([m.invoke(q).content] for q in qs), 1),
    (lambda m, qs: max(m.invoke(q).content if q == "q1" else len(m.invoke(q).id) for q in qs), 2),
    (lambda m, qs: max(map(lambda q: [m.invoke(q)], qs)), 2),
    (lambda m, qs: math.fsum([m.invoke(q).content] for q in qs), 1),
    (lambda m, qs: [m.invoke(q).content + 1 for q in qs], 1),
    (lambda m, qs: [m.invoke(q).content > 1 for q in qs], 1),
    (lambda m, qs: [m.invoke(q).content["score"] for q in qs], 1),
    (lambda m, qs: [m.invoke(q).content.score for q in qs], 1),
    (lambda m, qs: {"x"}.isdisjoint(m.invoke(f"say {q[:-1] or 'x'}").content for q in ["x", "", "y"]), 1),
]


def unpacked(m: Any, qs: Any) -> Any:
    a, b = (m.invoke(q).content for q in qs)
    return a + b


@pytest.mark.parametrize(("take", "count"), [*TAKING, (unpacked, 3)])
def test_an_iterator_is_read_no_further_than_it_is_taken(take: Callable[[Any, Any], Any], count: int) -> None:
    found, _ = asked(lambda model: lambda x: take(model, x), ["q1", "q2", "q3", "q4", "q5"])
    assert len([each for each in found if each != "before" and each != "after"]) >= count


@pytest.mark.parametrize(
    "take",
    [
        lambda m, qs: sum(len(m.invoke(q).content) for q in qs), lambda m, qs: {m.invoke(q).content for q in qs},
        lambda m, qs: max(m.invoke(q).content for q in qs), lambda m, qs: dict((q, m.invoke(q).content) for q in qs),
        lambda m, qs: sum(1 for q in qs if m.invoke(q).content == "yes"),
    ],
)  # fmt: skip
def test_what_takes_all_in_any_case_is_asked_at_once(take: Callable[[Any, Any], Any]) -> None:
    assert asked(lambda model: lambda x: repr(take(model, x))[:0], ["q1", "q2", "q3"])[1] >= 4


# --- decimals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: decimal.Decimal(1) / 3, lambda x: -decimal.Decimal("1.23456"), lambda x: f"{x['d']:.3f}",
        lambda x: sum([x["d"], x["d"]]), lambda x: round(x["d"], 5), lambda x: decimal.Decimal(0.5),
        lambda x: x["d"].quantize(decimal.Decimal("0.00001")), lambda x: x["d"] < 0.5, lambda x: divmod(x["d"], 2),
    ],
)  # fmt: skip
def test_decimals_are_computed_by_the_context_of_the_program(compute: Callable[[Any], Any]) -> None:
    with decimal.localcontext() as context:
        context.prec, context.rounding = 4, decimal.ROUND_UP
        context.traps[decimal.FloatOperation] = True
        asked(behind(compute), {"d": decimal.Decimal("2.3456789")})


# --- time and locks --------------------------------------------------------------------------------------------------


def timed(model: Any, wait: Callable[[Any], Any]) -> Node:
    async def both() -> str:
        await asyncio.sleep(0.19)  # a longer pause ends the reading
        return "x"

    async def node(x: Any) -> Any:
        async def inner() -> Any:
            await model.ainvoke("first")
            await both()
            return (await model.ainvoke("second")).content

        try:
            return await wait(inner())
        except TimeoutError:
            return "late"

    return node


def test_nothing_is_asked_behind_what_may_take_too_long() -> None:
    assert asked(lambda model: timed(model, lambda work: asyncio.wait_for(work, 0.15)))[0][:2] == ["before", "first"]
    assert "second" not in asked(lambda model: timed(model, lambda work: asyncio.wait_for(work, 0.15)))[0]


def test_nothing_is_asked_that_has_no_time() -> None:
    assert "first" not in asked(lambda model: timed(model, lambda work: asyncio.wait_for(work, 0)))[0]


def test_what_is_gathered_in_time_is_asked_at_once() -> None:
    def build(model: Any) -> Node:
        async def node(x: Any) -> Any:
            await asyncio.wait_for(asyncio.gather(model.ainvoke("a"), model.ainvoke("b")), 60)

        return node

    assert asked(build)[1] >= 2


LOCK = threading.Lock()


def test_what_is_asked_under_a_lock_is_left_to_the_framework() -> None:
    def locked(model: Any) -> Any:
        with LOCK:
            return model.ask("first")

    def beside(model: Any) -> Any:
        with LOCK:
            text = "first" * 2
        return model.ask(text)

    answering = Model(lambda question, number: "yes")
    assert read(locked, answering).barrier
    assert read(beside, answering).certain == ["firstfirst"]


# --- several inputs --------------------------------------------------------------------------------------------------

WITHOUT_KEY = [{"q": "1"}, {"q": "2"}, {"z": "3"}, {"q": "4"}]


BATCHES: list[Callable[[Any, Any], Any]] = [
    lambda chain, x: chain.batch(x), lambda chain, x: chain.map().invoke(x),
    lambda chain, x: chain.with_config(tags=["t"]).batch(x),
    lambda chain, x: chain.with_retry(stop_after_attempt=1).batch(x),
    lambda chain, x: chain.batch(x, return_exceptions=True),
]  # fmt: skip


@pytest.mark.parametrize("batch", BATCHES)
def test_a_batch_asks_nothing_if_an_input_lacks_a_key(batch: Callable[[Any, Any], Any]) -> None:
    def build(model: Any) -> Node:
        chain = ask("A {q}") | model | StrOutputParser()
        return lambda x: batch(chain, x) and None

    asked(build, WITHOUT_KEY)
    assert asked(build, [{"q": "1"}, {"q": "2"}])[1] >= (3 if batch is not BATCHES[-1] else 1)


def test_a_batch_asks_a_second_time_only_if_all_first_replies_can_be_parsed() -> None:
    def build(model: Any) -> Node:
        chain = ask("say {q}") | model | JsonOutputParser() | (lambda found: f"second {found}") | model
        return lambda x: len(chain.batch(x))

    given = [{"q": "[1]"}, {"q": "no json"}, {"q": "[2]"}]
    assert not any("second" in each for each in asked(build, given)[0])


# --- what a client refuses -------------------------------------------------------------------------------------------


class Strange(BaseMessage):
    type: str = "strange"


SPANS: dict[str, tuple[float, float]] = {}
"""When the service began and ended its latest reply, by the text of the request."""

CALL = AIMessage(content="x", tool_calls=[{"name": "t", "args": {"a": {1}}, "id": "1"}])


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    reply_to = Service.reply_to

    def later(self: Service, path: str, given: Any) -> Any:
        began_s = time.monotonic()
        time.sleep(0.05)
        SPANS[str(given.get("messages", [{}])[-1].get("content"))] = began_s, time.monotonic()
        return reply_to(self, path, given)

    SPANS.clear()
    monkeypatch.setattr(Service, "reply_to", later)
    with served() as found:
        yield found


def sent(service: Service, build: Callable[[Any, Any], Node]) -> tuple[list[str], int]:
    """As `asked`, of a client of OpenAI's kind."""
    found, ahead = list[list[str]](), 0
    for is_fast in (False, True):
        service.forget()
        model = ChatOpenAI(model="m", api_key="x", base_url=service.url, max_retries=0)  # type: ignore[arg-type]
        embeddings = OpenAIEmbeddings(
            model="e",
            api_key="x",
            base_url=service.url,
            max_retries=0,
            check_embedding_ctx_length=False,  # type: ignore[arg-type]
        )
        made = graph(model, build(model, embeddings))
        made = optimize(made) if is_fast else made
        outcome(made, {})
        time.sleep(0.1)
        found.append(sorted(service.asked))
        ahead = optimized(made).reports[-1].hits if is_fast else 0
    assert found[1] == found[0]
    return found[0], ahead


@pytest.mark.parametrize(
    "ask_first",
    [
        lambda m, e: m.invoke("\ud800"), lambda m, e: m.invoke("A", unheard_of=1), lambda m, e: m.invoke([CALL]),
        lambda m, e: m.invoke([Strange(content="x")]), lambda m, e: m.invoke("A", temperature=math.nan),
        lambda m, e: m.bind(tools=[{"a": b"x"}]).invoke("A"), lambda m, e: e.embed_query(int),
        lambda m, e: m.invoke([("strange", "x")]), lambda m, e: m.invoke(None),
    ],
)  # fmt: skip
def test_nothing_is_asked_behind_what_the_client_refuses(
    service: Service, ask_first: Callable[[Any, Any], Any]
) -> None:
    def build(model: Any, embeddings: Any) -> Node:
        return lambda x: (ask_first(model, embeddings), model.invoke("second"))[1].content

    assert sent(service, build)[0] == ["chat before"]


def test_a_client_takes_what_it_always_takes(service: Service) -> None:
    tool = {"type": "function", "function": {"name": "t", "description": "d", "parameters": {"type": "object"}}}

    def build(model: Any, embeddings: Any) -> Node:
        bound = model.bind_tools([tool])
        return lambda x: (bound.invoke("A"), embeddings.embed_query("v"), model.invoke("B", temperature=0.5))[2].content

    found, ahead = sent(service, build)
    assert len(found) == 5
    assert ahead >= 3


class Signs(httpx.Auth):
    def auth_flow(self, request: Any) -> Any:
        yield request


class Carries(httpx.HTTPTransport):
    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return super().handle_request(request)


def by_hooks(url: str) -> OpenAI:
    http_client = httpx.Client(event_hooks={"request": [lambda request: None]})
    return OpenAI(api_key="x", base_url=url, max_retries=0, http_client=http_client)


class Listens(logging.Handler):
    spent = False

    def emit(self, record: logging.LogRecord) -> None:
        if self.spent:
            raise PermissionError("the budget is spent")


@pytest.mark.parametrize("how", ["auth", "function", "logging", "transport", "mounted", "inner", ""])
def test_what_runs_as_a_client_sends_runs_in_its_place(service: Service, how: str) -> None:
    handler, log = Listens(), logging.getLogger("httpx")
    auth: Any = {"auth": Signs(), "function": lambda request: request}.get(how)
    if how == "logging":
        log.addHandler(handler)
        log.setLevel(logging.INFO)

    def build(model: Any, embeddings: Any) -> Node:
        by: Any = {"transport": {"transport": Carries()}, "mounted": {"mounts": {"http://": Carries()}}}.get(how, {})
        made: Any = {"api_key": "x", "base_url": service.url, "http_client": httpx.Client(auth=auth, **by)}
        mine = ChatOpenAI(model="m", max_retries=0, **made)
        if how == "inner":
            mine.root_client = by_hooks(service.url)
            mine.client = mine.root_client.chat.completions
        return lambda x: (mine.invoke("A"), mine.invoke("B"))[1].content

    try:
        sent(service, build)
    finally:
        log.removeHandler(handler)
        log.setLevel(logging.NOTSET)
    is_ahead = SPANS["B"][0] < SPANS["A"][1]
    assert is_ahead is not bool(how)


class Meter:
    """Stands in for a client, and lets so many calls pass."""

    def __init__(self, held: Any) -> None:
        self.held, self.left = held, 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self.held, name)

    @property
    def with_raw_response(self) -> Any:
        self.left -= 1
        if self.left < 0:
            raise PermissionError("the budget is spent")
        return self.held.with_raw_response


@pytest.mark.parametrize("where", ["client", "method"])
def test_a_client_that_is_another_s_is_called_by_the_framework_alone(service: Service, where: str) -> None:
    def build(model: Any, embeddings: Any) -> Node:
        meter = Meter(model.client)
        if where == "client":
            model.client = meter
        else:
            model.client.with_raw_response.create = model.client.with_raw_response.create
            create = model.client.with_raw_response.create
            model.client.with_raw_response.create = lambda **given: (meter.with_raw_response, create(**given))[1]
        return lambda x: (model.invoke("A") if meter.left > 0 else None, model.invoke("B"))[1].content

    assert sent(service, build)[1] == 0


# --- handlers --------------------------------------------------------------------------------------------------------


class Budget:
    def __init__(self) -> None:
        self.spent = 0


class Counts(BaseCallbackHandler):
    def __init__(self) -> None:
        self.count = 0
        self.budget = Budget()
        self.notes: list[Any] = []

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.count += 1
        self.budget.spent += 1
        self.notes.append(1)


@pytest.mark.parametrize("kind", ["count", "budget", "notes", ""])
def test_what_a_handler_notes_is_not_known_behind_a_request(kind: str) -> None:
    def build(model: Any) -> Node:
        handler = Counts()
        model.callbacks = [handler]
        budget, notes = handler.budget, handler.notes

        def counted(x: Any) -> Any:
            model.invoke("first")
            return model.invoke(f"second {handler.count}").content

        def budgeted(x: Any) -> Any:
            model.invoke("first")
            return model.invoke("second").content if budget.spent < 2 else ""

        def noted(x: Any) -> Any:
            model.invoke("first")
            return model.invoke(f"second {notes}").content

        return {"count": counted, "budget": budgeted, "notes": noted}.get(kind) or behind(lambda x: "")(model)

    ahead = asked(build)[1]
    assert kind or ahead >= 3


class Interrupts(BaseCallbackHandler):
    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        raise KeyboardInterrupt


class Exits(BaseCallbackHandler):
    def check(self, messages: Any) -> None:
        if messages[0][0].content == "first":
            sys.exit(3)

    def on_chat_model_start(self, serialized: Any, messages: Any, **kwargs: Any) -> None:
        self.check(messages)


class Cancels(BaseCallbackHandler):
    def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        raise asyncio.CancelledError


class Fails(BaseCallbackHandler):
    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        raise ValueError("which LangChain logs")


@pytest.mark.parametrize("place", ["model", "call", "config"])
@pytest.mark.parametrize("cls", [Interrupts, Exits, Cancels, Fails])
def test_nothing_is_asked_behind_a_handler_that_ends_the_call(cls: type[BaseCallbackHandler], place: str) -> None:
    handler = cls()

    def build(model: Any) -> Node:
        if place == "model":
            model.callbacks = [handler]

        def node(x: Any) -> Any:
            model.invoke("first", config={"callbacks": [handler]} if place == "call" else None)
            return model.invoke("second").content

        return node

    found, ahead = asked(build, config={"callbacks": [handler]} if place == "config" else None)
    assert ("second" in found) is (cls is Fails)
    assert cls is not Fails or ahead >= 3


class Traces(BaseTracer):
    def __init__(self, notes: list[Any]) -> None:
        super().__init__()
        self.notes = notes

    def _on_llm_end(self, run: Any) -> None:  # by then the program has been read
        self.notes.append(1)

    def _persist_run(self, run: Any) -> None:
        """Keeps nothing."""


class Stores(BaseCallbackHandler):
    count = 0

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        global STORED
        STORED += 1
        Stores.count += 1


STORED = 0


@pytest.mark.parametrize("kind", ["traced", "of a class", "global"])
def test_what_handlers_of_the_call_note_is_not_known(kind: str) -> None:
    global STORED
    STORED = Stores.count = 0
    notes: list[Any] = []
    handler = Traces(notes) if kind == "traced" else Stores()
    says: Any = {"traced": lambda: notes, "of a class": lambda: Stores.count, "global": lambda: STORED}[kind]

    def build(model: Any) -> Node:
        notes.clear()

        def node(x: Any) -> Any:
            for text in ("zeroth", "first"):
                model.invoke(text)
            return model.invoke(f"second {says()}").content

        return node

    def texts(is_fast: bool) -> list[str]:
        global STORED
        STORED = Stores.count = 0
        model = Slow()
        made = graph(model, build(model))
        outcome(optimize(made) if is_fast else made, None, {"callbacks": [handler]})
        return sorted(text for _, text in model._calls)

    original = texts(False)
    assert not any(text in original for text in ("second []", "second 0"))
    assert texts(True) == original


def test_nothing_that_a_listener_may_change_is_read_before_it() -> None:
    heard: list[Any] = []

    def texts(is_fast: bool) -> list[str]:
        heard.clear()
        model = Slow()
        first = RunnableLambda(lambda x: model.invoke("first")).with_listeners(on_end=lambda run: heard.append(1))
        chain = (
            RunnableLambda(lambda x: model.invoke("before") and x)
            | assign(a=first)
            | RunnableLambda(lambda x: model.invoke(f"second {len(heard)}"))
        )
        (optimize(chain) if is_fast else chain).invoke({"x": "1"})
        time.sleep(0.1)
        return sorted(text for _, text in model._calls)

    assert texts(True) == texts(False)


# --- what the program changes ----------------------------------------------------------------------------------------


def counting(how: str) -> tuple[Callable[[], int], Callable[[], None]]:
    """A number that a node reads, and what makes it one more."""

    class Counter:
        n = 0

    def function() -> None:
        pass

    function.n = 0  # type: ignore[attr-defined]
    counter = Counter()

    def of_function() -> None:
        function.n += 1  # type: ignore[attr-defined]

    def of_class() -> None:
        Counter.n += 1

    return {
        "function": (lambda: function.n, of_function),  # type: ignore[attr-defined]
        "class": (lambda: counter.n, of_class),
    }[how]


@pytest.mark.parametrize("how", ["function", "class"])
def test_what_was_asked_is_not_asked_again_of_what_has_changed_since(how: str) -> None:
    def build(model: Any) -> Node:
        number, count = counting(how)

        def node(x: Any) -> Any:
            first = model.invoke(f"first {number()}").content
            count()
            return first + model.invoke(f"second {number()}").content

        return node

    assert asked(build)[0] == ["before", "first 0", "second 1", "after"]


def asked_by_chain(build: Callable[[Any], Any], given: dict[str, Any]) -> list[str]:
    """What a chain asks, which must be what the optimized one asks."""
    plain, fast = Slow(), Slow()
    original, chain = build(plain), optimize(build(fast))
    assert repr(chain.invoke(copy.deepcopy(given))) == repr(original.invoke(copy.deepcopy(given)))
    time.sleep(0.1)
    found = sorted(text for _, text in plain._calls)
    assert sorted(text for _, text in fast._calls) == found
    return found


def test_a_prompt_is_asked_once_although_its_partial_variables_change() -> None:
    def build(model: Any) -> Any:
        template = ask("{p} {q}").partial(p="0")

        def node(x: Any) -> Any:
            said = model.invoke(template.invoke({"q": "x"})).content
            template.partial_variables["p"] += "1"
            return said

        chain = template | model | StrOutputParser()
        return RunnablePassthrough() | assign(a=RunnableLambda(node)) | assign(b=chain) | assign(c=chain)

    assert len(asked_by_chain(build, {"q": "x"})) == 3


@pytest.mark.parametrize("kind", ["function", "prompt"])
def test_what_one_branch_changes_in_place_is_what_the_branch_after_it_asks_about(kind: str) -> None:
    def build(model: Any) -> Any:
        def changes(x: Any) -> Any:
            x["rows"].append("added")
            return model.invoke("first").content

        def waits(x: Any) -> Any:
            time.sleep(0.1)  # until that has been changed
            return x

        asks: Any = RunnableLambda(lambda x: model.invoke(f"second {x['rows']}").content)
        if kind == "prompt":
            asks = ask("second {rows}") | model | StrOutputParser()
        return RunnableParallel(a=RunnableLambda(changes), b=RunnableLambda(waits) | asks)

    assert asked_by_chain(build, {"rows": ["given"]}) == ["first", "second ['given', 'added']"]


# --- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [LOCK, 2**70, range(3), asked])
def test_nothing_is_asked_behind_a_state_that_cannot_be_saved(value: Any) -> None:
    def build(model: Any) -> Node:
        return lambda x: (model.invoke("first"), value)[1]

    config = {"configurable": {"thread_id": "1"}}
    assert "after" not in asked(build, config=config, durability="sync")[0]


def test_a_state_of_data_is_saved_beside_what_runs_ahead() -> None:
    def build(model: Any) -> Node:
        return lambda x: (model.invoke("first"), {"a": [1, model.invoke("second")]})[1] and None

    assert asked(build, config={"configurable": {"thread_id": "1"}}, durability="sync")[1] >= 3
