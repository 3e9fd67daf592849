"""Gates of requests that leave this process: those that nothing else of the graph makes them wait for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from teola_plugin.gates import gate_requests
from teola_plugin.graph import parse

GRAPH = parse("""
inputs(question)
ok = call(question, fn='check') @ python
notes: [] = call(question, fn='split') @ python
first: [] = prefilling(question, *notes) @ hosted
second = prefilling(question, notes) @ hosted
third = prefilling(second) @ hosted, when(ok)
fourth = prefilling(question) @ hosted, after(notes)
outputs(first, third, fourth)
""")


@pytest.mark.parametrize(
    ("before", "gated"),
    [
        ({"first": ("notes",)}, ("notes",)),  # it waits for one item of the list at a time
        ({"second": ("notes",)}, ()),
        ({"third": ("ok", "notes")}, ()),
        ({"fourth": ("notes", "ok")}, ("ok",)),
    ],
)
def test_gates_are_what_a_request_does_not_wait_for_anyhow(
    before: Mapping[str, tuple[str, ...]], gated: tuple[str, ...]
) -> None:
    primitives = {p.name: p for p in GRAPH}
    gate_requests(primitives, before)
    assert [primitives[name].gated for name in before] == [gated]


def test_a_gate_that_waits_for_another_one_stands_for_it() -> None:
    graph = parse("""
inputs(question)
a = call(question, fn='check') @ python
b = call(a, fn='check') @ python
asked = prefilling(question) @ hosted
then = prefilling(asked) @ hosted
outputs(b, then)
""")
    primitives = {p.name: p for p in graph}
    gate_requests(primitives, {"asked": ("a", "b"), "then": ("a", "b")})
    assert primitives["asked"].gated == ("b",)
    assert primitives["then"].gated == ()
