"""Random templates: what their e-graphs come to, whatever the passes and the order of completions.

TEOLA_TEST_TEMPLATES: how many. A failing one is named, and TEOLA_TEST_SEED=<seed> runs it alone.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from functools import partial
from unittest.mock import patch

import pytest

from teola_plugin.graph import parse
from teola_plugin.passes import BRANCHES, Context, optimize_graph
from teola_plugin.profile import PAPER, PAPER_LLM, Profile
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.hosts.virtual_time import VirtualLoop
from teola_plugin.templates import App
from teola_plugin.templates.decompose import decompose
from teola_plugin.templates.flow import components
from tests.support.interpret import interpret
from tests.support.templates_world import ENGINES, INPUTS, Maker, World, WorldEngine, functions_of, meaning
from tests.support.world import run_in_any_order, run_in_order

TEMPLATES = int(os.environ.get("TEOLA_TEST_TEMPLATES", "60"))
SEED = os.environ.get("TEOLA_TEST_SEED")
CHUNK = 20
CHUNKS = (
    [range(int(SEED), int(SEED) + 1)]
    if SEED
    else [range(at, min(at + CHUNK, TEMPLATES)) for at in range(0, TEMPLATES, CHUNK)]
)
SUBSETS = [subset for n in range(len(BRANCHES) + 1) for subset in itertools.combinations(BRANCHES, n)]
CONTEXT = Context(
    {
        "embedder": Profile.affine(0.5, 0.001, max_items=2),
        "store": Profile.affine(0.5, 0.001, max_items=2),
        "reranker": PAPER["reranking"],
        "llm": PAPER_LLM["7b"],
    },
    {name: WorldEngine(name, None).capabilities for name in ENGINES},  # type: ignore[arg-type]
    split_tax=0.0,
    overhead_s=0.0,
    allow_early_stop=True,
)


def made(seed: int):  # type: ignore[no-untyped-def]
    return Maker(random.Random(seed)).template()


@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_passes_and_orders_change_nothing(seeds: range) -> None:
    for seed in seeds:
        drawn = random.Random(-seed - 1)
        decomposed = decompose(made(seed), inputs={"topics": 1})
        graph = decomposed.graph
        assert parse(str(graph)) == graph
        inputs = {i.name: INPUTS[i.name] for i in graph.inputs}
        with patch("tests.support.world.World", partial(World, decomposed=decomposed)):
            expected = run_in_order(graph, inputs)
            assert run_in_any_order(graph, inputs, drawn.randrange) == expected, seed
            for passes in (BRANCHES, drawn.choice(SUBSETS)):
                changed = optimize_graph(graph, passes, CONTEXT, strict=True).graph
                assert run_in_order(changed, inputs) == expected, seed
                assert run_in_any_order(changed, inputs, drawn.randrange) == expected, seed


@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_conditions_and_loops_mean_what_they_say(seeds: range) -> None:
    for seed in seeds:
        maker = Maker(random.Random(seed), is_plain=True)
        template = maker.template()
        names = sorted({name for c in components(template) for name in c.outputs.values()})
        decomposed = decompose(template, inputs={"topics": 1}, outputs=names)
        got = interpret(decomposed.graph, INPUTS, {}, functions_of(decomposed))
        expected = meaning(template, dict(INPUTS), maker)
        assert {name: got[p] for name, p in decomposed.outputs.items()} == expected, seed


@pytest.mark.parametrize("seeds", CHUNKS, ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_hosts_agree_with_the_interpreter(seeds: range) -> None:
    for seed in seeds:
        template = made(seed)
        graph = decompose(template, inputs={"topics": 1}).graph
        inputs = {i.name: INPUTS[i.name] for i in graph.inputs}
        decomposed = decompose(template, inputs={"topics": 1})
        with patch("tests.support.world.World", partial(World, decomposed=decomposed)):
            outputs, rows = run_in_order(graph, inputs)
        expected = {name: outputs[p] for name, p in decomposed.outputs.items() if p in outputs}
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            got, rows_left = runner.run(on_a_host(template, inputs, drawn=random.Random(seed)))
        assert got == (next(iter(expected.values()), None) if len(decomposed.outputs) == 1 else expected), seed
        assert rows_left == rows, seed


async def on_a_host(template, inputs, drawn):  # type: ignore[no-untyped-def]
    host = LocalHost(loop=asyncio.get_running_loop())
    world = World(None, None)  # type: ignore[arg-type]
    engines = {name: WorldEngine(name, world) for name in ENGINES}
    app = App("random", template, engines, inputs=["topics[]"], passes=drawn.choice(SUBSETS), host=host)
    got = await app.run_here(**inputs)
    await host.aclose()
    return got, world.rows


def test_templates_have_all_that_there_is() -> None:
    kinds = {p.kind for seed in range(60) for p in decompose(made(seed), inputs={"topics": 1}).graph}
    assert kinds >= {
        "embedding", "ingestion", "searching", "reranking", "prefilling", "decoding", "condition", "aggregate", "call",
        "tool", "chunking", "websearch",
    }  # fmt: skip
