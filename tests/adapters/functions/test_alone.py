"""What a call keeps in attributes is known behind its requests if the call is alone, and else not asked for."""

from __future__ import annotations

import _thread
import asyncio
import io
import logging.handlers
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from types import ModuleType
from typing import Any, TypedDict, cast

import anyio
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.graph import START, StateGraph
from tqdm import tqdm  # type: ignore[import-untyped]

from teola_plugin import optimize
from teola_plugin.adapters.functions import known, runs
from teola_plugin.adapters.reader import alone
from teola_plugin.adapters.reader.notes import Notes
from teola_plugin.runtime.session import background
from tests.adapters.functions.test_functions import chat
from tests.support.hosted_service import Service, asked_side_by_side, counted


@pytest.fixture(autouse=True)
def tests_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads, signal handlers and loops that are there, and the threads of services, do nothing to a program.

    The threads that read have begun: one that begins is unknown for a moment.
    """
    begun = threading.Barrier(background.MAX_READING + 1)
    for _ in range(background.MAX_READING):
        background.begin_reading(cast("Callable[[], None]", begun.wait))
    begun.wait()
    threads = {each.ident: each for each in threading.enumerate()}
    there = {number: threads.get(number) for number in sys._current_exceptions() if number != threading.get_ident()}
    is_idle, interrupts = alone._is_idle, alone._interrupts

    def is_known(number: Any, threads: Any) -> bool:
        begins = threads.get(None) if number not in threads else threads[number]
        target = getattr(begins, "_target", None)
        is_there = number in there and there[number] is threads.get(number)  # numbers are given out again
        return is_there or getattr(target, "__module__", "") == "socketserver" or is_idle(number, threads)

    monkeypatch.setattr(alone, "_is_idle", is_known)
    monkeypatch.setattr(asyncio.events, "_event_loop_policy", None)
    handlers = [signal.getsignal(each) for each in signal.valid_signals()]
    monkeypatch.setattr(
        alone, "_interrupts", lambda handler: any(handler is each for each in handlers) or interrupts(handler)
    )


class Keeper:
    """Keeps what it has asked."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm
        self.seen: list[str] = []

    def run(self, text: str) -> Any:
        self.seen = []
        first = self.llm.invoke(f"first {text}").content
        self.seen.append(text)
        second = self.llm.invoke(f"second {text} {len(self.seen)}").content
        return first, second, list(self.seen)

    async def arun(self, text: str) -> Any:
        self.seen = []
        first = (await self.llm.ainvoke(f"first {text}")).content
        self.seen.append(text)
        second = (await self.llm.ainvoke(f"second {text} {len(self.seen)}")).content
        return first, second, list(self.seen)

    async def gathered(self, text: str) -> Any:
        self.seen = [text]
        first = await asyncio.gather(*(self.llm.ainvoke(f"first {text} {n}") for n in range(2)))
        second = (await self.llm.ainvoke(f"second {text} {len(self.seen)}")).content
        return [each.content for each in first], second

    async def filled_beside(self, text: str) -> Any:
        self.seen = []

        async def part(number: int) -> None:
            await self.llm.ainvoke(f"first {text} {number}")
            self.seen = [*self.seen, text]
            await self.llm.ainvoke(f"then {number} {len(self.seen)}")

        await asyncio.gather(part(1), part(2))
        return list(self.seen)


Call = Callable[[Any], Any]
ALONE: dict[str, Call] = {
    "a method": lambda keeper: keeper.run("hive"),
    "a coroutine": lambda keeper: asyncio.run(keeper.arun("hive")),
    "requests beside each other": lambda keeper: asyncio.run(keeper.gathered("hive")),
}


@pytest.mark.parametrize("is_llamaindex_there", [True, False])
@pytest.mark.parametrize("name", ALONE)
def test_a_call_that_is_alone_knows_what_it_has_stored(
    name: str, is_llamaindex_there: bool, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_llamaindex_there:
        monkeypatch.setattr(runs, "has_llamaindex", lambda: False)
        monkeypatch.setattr(known, "has_llamaindex", lambda: False)
    asked_side_by_side(service, Keeper(chat(service)), "first", "second", ALONE[name])


# --- others that store meanwhile -------------------------------------------------------------------------------------


def store(keeper: Keeper) -> None:
    keeper.seen = ["x", "y"]


def once_asked(service: Service, keeper: Keeper) -> None:
    with service.news:
        service.news.wait_for(lambda: any("first" in each for each in service.asked), 10)
    store(keeper)


def beside_a_thread(service: Service, keeper: Keeper, fast: Any) -> Any:
    thread = threading.Thread(target=once_asked, args=(service, keeper))
    thread.start()
    found = fast.run("hive")
    thread.join()
    return found


def beside_a_thread_of_c(service: Service, keeper: Keeper, fast: Any) -> Any:
    begun, done = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        once_asked(service, keeper)
        done.set()

    _thread.start_new_thread(work, ())
    begun.wait()
    found = fast.run("hive")
    done.wait()
    return found


def beside_a_pool(service: Service, keeper: Keeper, fast: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(once_asked, service, keeper)
        return fast.run("hive")


def in_a_pool(service: Service, keeper: Keeper, fast: Any) -> Any:
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(fast.run, "hive")
        once_asked(service, keeper)
        return found.result()


def beside_a_task(service: Service, keeper: Keeper, fast: Any) -> Any:
    async def later() -> None:
        await asyncio.sleep(0.2)
        store(keeper)

    async def both() -> Any:
        task = asyncio.create_task(later())
        found = await fast.arun("hive")
        await task
        return found

    return asyncio.run(both())


def before_a_timer(service: Service, keeper: Keeper, fast: Any) -> Any:
    async def timed() -> Any:
        asyncio.get_running_loop().call_later(0.2, store, keeper)
        return await fast.arun("hive")

    return asyncio.run(timed())


def beside_a_signal(service: Service, keeper: Keeper, fast: Any) -> Any:
    before = signal.signal(signal.SIGALRM, lambda *given: store(keeper))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        return fast.run("hive")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Noting(BaseCallbackHandler):
    keeper: Any = None

    def on_llm_end(self, *given: Any, **more: Any) -> None:
        self.keeper.seen = ["x", "y"]


def heard(service: Service, keeper: Keeper, fast: Any) -> Any:
    noting = Noting()
    noting.keeper = keeper
    keeper.llm = chat(service, callbacks=[noting])
    return fast.run("hive")


class Handing(Keeper):
    """Hands what it keeps to a handler."""

    noting: Any = None

    def run(self, text: str) -> Any:
        self.noting.given = self.seen = []
        first = self.llm.invoke(f"first {text}").content
        second = self.llm.invoke(f"second {text} {len(self.seen)}").content
        return first, second, list(self.seen)


class Filling(Noting):
    given: Any = None

    def on_llm_end(self, *given: Any, **more: Any) -> None:
        self.given.extend(["x", "y", "z"])


def heard_of_the_list(service: Service, keeper: Keeper, fast: Any) -> Any:
    noting = Filling()
    made = Handing(chat(service, callbacks=[noting]))
    made.noting = noting
    return (made if fast is keeper else optimize(made)).run("hive")


class Starting(Keeper):
    """Starts a thread, which stores."""

    service: Any = None

    def run(self, text: str) -> Any:
        thread = threading.Thread(target=once_asked, args=(self.service, self))
        thread.start()
        found = super().run(text)
        thread.join()
        return found


class Waiting(logging.Handler):
    """Stores once the first question is asked, in the thread of a listener."""

    def __init__(self, service: Service, keeper: Keeper) -> None:
        super().__init__()
        self.service, self.keeper = service, keeper

    def emit(self, record: Any) -> None:
        once_asked(self.service, self.keeper)


class Listening(Keeper):
    """Has a library start a thread."""

    service: Any = None

    def run(self, text: str) -> Any:
        queue: Any = SimpleQueue()
        listener = logging.handlers.QueueListener(queue, Waiting(self.service, self))
        listener.start()
        queue.put(logging.makeLogRecord({}))
        found = super().run(text)
        listener.stop()
        return found


def started_by(kind: type[Any]) -> Callable[[Service, Keeper, Any], Any]:
    def call(service: Service, keeper: Keeper, fast: Any) -> Any:
        made = kind(keeper.llm)
        made.service = service
        return (made if fast is keeper else optimize(made)).run("hive")

    return call


OTHERS = [
    beside_a_thread, beside_a_thread_of_c, beside_a_pool, in_a_pool, beside_a_task, before_a_timer, beside_a_signal,
    heard, heard_of_the_list, started_by(Starting), started_by(Listening),
]  # fmt: skip


@pytest.mark.parametrize("call", OTHERS)
def test_what_others_store_meanwhile_is_not_guessed(
    call: Callable[[Service, Keeper, Any], Any], service: Service
) -> None:
    keeper = Keeper(chat(service))
    service.lasts_s = 0.3
    with counted(service) as original:
        plain = call(service, keeper, keeper)
    assert "chat second hive 3" in original
    fast = optimize(keeper)
    for _ in range(3):
        with counted(service) as made:
            assert call(service, keeper, fast) == plain
        assert made == original


def test_a_reading_looks_again_who_is_there(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "thread_alone", threading.get_ident)

    def beside_a_thread_that_stays(service: Service, keeper: Keeper, fast: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            is_over = threading.Event()

            def work() -> None:
                once_asked(service, keeper)
                is_over.wait()

            pool.submit(work)
            found = fast.run("hive")
            is_over.set()
            return found

    test_what_others_store_meanwhile_is_not_guessed(beside_a_thread_that_stays, service)


def test_what_coroutines_beside_each_other_store_is_not_guessed(service: Service) -> None:
    keeper = Keeper(chat(service))
    plain, fast = asyncio.run(keeper.filled_beside("hive")), optimize(keeper)
    with counted(service) as original:
        assert asyncio.run(keeper.filled_beside("hive")) == plain
    for _ in range(3):
        with counted(service) as made:
            assert asyncio.run(fast.filled_beside("hive")) == plain
        assert sum(made.values()) == sum(original.values()) == 4


class State(TypedDict, total=False):
    text: str


@pytest.mark.parametrize("is_async", [True, False])
def test_who_reads_a_stream_may_store_between_its_parts(is_async: bool, service: Service) -> None:
    keeper = Keeper(chat(service))

    def begin(state: State) -> State:
        keeper.seen = ["a"]
        return {"text": keeper.llm.invoke("first").content}

    def end(state: State) -> State:
        return {"text": keeper.llm.invoke(f"second {len(keeper.seen)}").content}

    async def abegin(state: State) -> State:
        keeper.seen = ["a"]
        return {"text": (await keeper.llm.ainvoke("first")).content}

    async def aend(state: State) -> State:
        return {"text": (await keeper.llm.ainvoke(f"second {len(keeper.seen)}")).content}

    def called(graph: Any) -> list[Any]:
        found = []
        for part in graph.stream({"text": ""}):
            found.append(part)
            store(keeper)
        return found

    async def acalled(graph: Any) -> list[Any]:
        found = []
        async for part in graph.astream({"text": ""}):
            found.append(part)
            store(keeper)
        return found

    builder = StateGraph(State)
    builder.add_node("begin", abegin if is_async else begin)
    builder.add_node("end", aend if is_async else end)
    builder.add_edge(START, "begin")
    builder.add_edge("begin", "end")
    graph = builder.compile()
    call: Call = (lambda graph: asyncio.run(acalled(graph))) if is_async else called
    service.lasts_s = 0.3
    with counted(service) as original:
        plain = call(graph)
    fast = optimize(graph)
    for _ in range(3):
        with counted(service) as made:
            assert call(fast) == plain
        assert made == original


def storing(keeper: Keeper) -> None:
    keeper.seen = []


def storing_nothing(keeper: Keeper) -> None:
    print(keeper.seen)


def seeing_an_end(keeper: Keeper) -> None:
    keeper.seen = []
    weakref.finalize(keeper, print)


def starting(keeper: Keeper) -> None:
    keeper.seen = []
    threading.Thread(target=print).start()


def storing_anywhere(keeper: Keeper) -> None:
    keeper.seen = []
    setattr(keeper, input(), [])


@pytest.mark.parametrize("function", [storing, storing_nothing, seeing_an_end, starting, storing_anywhere])
def test_what_runs_by_itself_counts_where_functions_mention_it(function: Any) -> None:
    assert Notes([function]).stores_alone == (function is storing)


# --- who is alone ----------------------------------------------------------------------------------------------------


def is_told() -> bool:
    return alone.thread_alone() == threading.get_ident()


def test_idle_threads_are_no_others() -> None:
    assert is_told()
    with ThreadPoolExecutor(2) as pool:
        held = threading.Event()
        waiting = [pool.submit(held.wait) for _ in range(3)]
        assert not is_told()
        held.set()
        for each in waiting:
            each.result()
        until_s = time.monotonic() + 5
        while not is_told():  # a thread is counted in just after its result is there
            assert time.monotonic() < until_s
            time.sleep(0.001)
    for _ in tqdm(range(1), file=io.StringIO()):
        assert tqdm.monitor in threading.enumerate()
        assert is_told()


@pytest.mark.parametrize("name", ["gevent", "eventlet"])
def test_greenlets_are_others(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not is_told()


async def pending() -> None:
    await asyncio.sleep(60)


class Socket:
    def __init__(self, loop: Any) -> None:
        self.ends = socket.socketpair()
        loop.add_reader(self.ends[0], print)

    def cancel(self) -> None:
        for each in self.ends:
            each.close()


BUSY: dict[str, Callable[[Any], Any]] = {
    "a task": lambda loop: loop.create_task(pending()),
    "a task that waits for the call": lambda loop: loop.create_task(asyncio.Event().wait()),
    "a timer": lambda loop: loop.call_later(60, print),
    "a callback": lambda loop: loop.call_soon(print),
    "a socket": Socket,
    "a signal": lambda loop: loop.add_signal_handler(signal.SIGUSR1, print),
}


@pytest.mark.parametrize("name", BUSY)
@pytest.mark.parametrize("is_running", [True, False])
def test_a_loop_with_something_to_do_is_not_quiet(name: str, is_running: bool) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)

    async def inside() -> list[bool]:
        first = is_told()
        held = BUSY[name](loop)
        if "waits" in name:
            await asyncio.sleep(0)
        second = is_told()
        if name != "a signal":
            held.cancel()
        return [first, second]

    try:
        assert is_told()
        if is_running:
            assert loop.run_until_complete(inside()) == [True, False]
        else:
            held = BUSY[name](loop)
            if "waits" in name:
                loop.run_until_complete(asyncio.sleep(0))
            assert not is_told()
            if name != "a signal":
                held.cancel()
            if name != "a socket":
                loop.run_until_complete(asyncio.sleep(0))
        loop.remove_signal_handler(signal.SIGUSR1)
    finally:
        loop.close()
        asyncio.set_event_loop(None)


def test_a_client_s_connection_is_quiet(service: Service) -> None:
    async def inside() -> bool:
        async with await anyio.connect_tcp(*service.server_address):
            await asyncio.sleep(0)
            return is_told()

    assert asyncio.run(inside())


def test_another_connection_is_not(service: Service) -> None:
    async def inside() -> bool:
        made = await asyncio.get_running_loop().create_connection(asyncio.Protocol, *service.server_address)
        try:
            return is_told()
        finally:
            made[0].close()

    assert not asyncio.run(inside())


def test_another_kind_of_loop_is_not_known() -> None:
    class Loop(asyncio.SelectorEventLoop):
        pass

    async def inside() -> bool:
        return is_told()

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert not runner.run(inside())
