"""A forked child answers by itself, and its parent goes on undisturbed."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator

import pytest

from teola_plugin import runtime
from teola_plugin.engines import EngineSpec
from teola_plugin.runtime.engines.python import PythonEngine
from teola_plugin.runtime.engines.vllm import VllmEngine
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.session import Session
from teola_plugin.seams import Reply, active, current
from tests.runtime.hosts.test_runtime import barrier, gated
from tests.support.fakes import FakeEngine

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


@pytest.fixture
def host() -> Iterator[LocalHost]:
    host = LocalHost()
    yield host
    host.close()


def in_child(act: Callable[[], object], seconds: int = 20) -> str:
    """What `act` returns in a forked child, as text. A child that hangs is ended by its own alarm."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(seconds)
        try:
            said = repr(act())
        except BaseException:  # the parent shows it
            said = traceback.format_exc()
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(pid, 0)
    return said


def ask(host: LocalHost, engine: object, payload: object, op: str = "x") -> object:
    reply = Reply()
    host.submit(engine, op, [payload], {}, [reply])  # type: ignore[arg-type]
    return reply.result()


def test_the_host_of_a_child_works_and_its_parent_s_goes_on(host: LocalHost) -> None:
    engine, other = FakeEngine(), FakeEngine()
    engine.gate = gated(host)
    waiting = Reply()
    host.submit(engine, "x", ["parent"], {}, [waiting])
    barrier(host)

    def child() -> object:
        engine.gate = None
        answers = ask(host, engine, "a"), ask(host, other, "b")
        host.close()
        return answers

    assert in_child(child) == "('a', 'b')"
    host.loop.call_soon_threadsafe(engine.gate.set)
    assert waiting.result() == "parent"


def test_the_threads_of_an_engine_start_again_in_a_child(host: LocalHost) -> None:
    engine = PythonEngine()
    assert ask(host, engine, lambda: "parent") == "parent"
    assert in_child(lambda: ask(host, engine, lambda: "child")) == "'child'"


def test_a_child_has_no_session_of_its_parent_s(host: LocalHost) -> None:
    engine = FakeEngine()
    engine.gate = gated(host)
    session = Session(host)
    session.ask(EngineSpec("engine", engine), "x", ["question"], {})
    with active(session):
        assert in_child(current) == "None"
        assert current() is session
    host.loop.call_soon_threadsafe(engine.gate.set)


@pytest.mark.real
def test_vllm_of_the_parent_outlives_a_child_that_starts_its_own(vllm_engine: VllmEngine) -> None:
    def decode() -> object:
        reply = Reply()
        settings = {"max_tokens": 4, "temperature": 0.0}
        runtime.host.submit(vllm_engine, "decoding", ["Fork"], settings, [reply])
        return reply.result()

    def child() -> object:
        said = decode()
        runtime.host.close()
        return said

    said = decode()
    assert in_child(child, seconds=110) == repr(said)
    assert decode() == said
