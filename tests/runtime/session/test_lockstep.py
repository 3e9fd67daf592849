"""Batches in lockstep: a request waits for what may raise in any of the inputs."""

from __future__ import annotations

from teola_plugin.engines import EngineSpec
from teola_plugin.graph import parse
from teola_plugin.runtime.session.batch_gates import Lockstep, batch_gates
from teola_plugin.trace import Function

GRAPH = parse("""
inputs(question, mode)
ok = call(question, fn='check') @ python
prompt = call(question, fn='join') @ python
kv = prefilling(prompt) @ hosted
text = decoding(kv) @ hosted
told = call(text, fn='unknown') @ pipeline
parsed = call(text, fn='check') @ python
kv_2 = prefilling(parsed) @ hosted, gated(ok, told)
answer = decoding(kv_2) @ hosted
vector = embedding(parsed) @ own
outputs(answer, vector)
""")
FUNCTIONS = {"check": Function(str), "join": Function(str, is_total=True), "unknown": Function(str, is_total=True)}
ENGINES = {"hosted": EngineSpec("python", object(), provider="service"), "own": EngineSpec("embedding", object())}


def test_what_may_raise_before_a_request_that_leaves_the_process() -> None:
    gates = batch_gates(GRAPH, FUNCTIONS, ENGINES)
    assert gates["text"] == {"question"}
    assert gates["answer"] == {"question", "ok", "told", "parsed"}
    assert "vector" not in gates
    assert gates.keys() == {"kv", "text", "kv_2", "answer"}


def test_a_gate_opens_once_all_runs_have_passed_it() -> None:
    lockstep, open_ = Lockstep(3), list[str]()
    both, one = frozenset(["a", "b"]), frozenset(["a"])
    assert lockstep.is_open(frozenset())
    lockstep.when_open(both, lambda: open_.append("both"))
    lockstep.when_open(one, lambda: open_.append("one"))
    for name in "abba":
        lockstep.passed(name)
    assert open_ == []
    lockstep.passed("a")
    assert open_ == ["one"]
    assert lockstep.is_open(one)
    assert not lockstep.is_open(both)
    lockstep.passed("b")
    assert open_ == ["one", "both"]
