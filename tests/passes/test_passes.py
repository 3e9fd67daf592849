"""Each pass: before/after fixtures (tests/passes/*.txt), also executed, and what holds for all graphs.

A fixture file is named after its pass (`default.txt`: all of them). Its cases look like this; the last two
parts are rewritten by `pytest --update-golden`:

    === title
    context(llm=(0.03, 0.02, 8), prefix=['llm'], expected_items=16)
    a graph
    --- after
    a graph
    --- records
    TR101 + hits: ...

In `context`, an engine with three numbers has a profile (seconds per batch, seconds per item, knee), one with
two sizes the steps of an LLM (seconds of one text, of 32); the other names are fields of `Context`, and `prefix`,
`at_end`, `remote` name the engines that are so.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from teola_plugin.engines import Capabilities
from teola_plugin.errors import GraphError, PassError
from teola_plugin.graph import Graph, parse
from teola_plugin.passes import DEFAULT, OPTIONAL, Context, Pass, Record, optimize_graph
from teola_plugin.passes.decompose_stages import decompose_stages
from teola_plugin.passes.share_subexpressions import share_subexpressions
from teola_plugin.profile import PAPER_LLM, LlmProfile, Profile
from tests.support.strategies import ASKING_TWICE, graphs, renamed
from tests.support.world import run_in_any_order, run_in_order, some_inputs

ALL = (*DEFAULT, *OPTIONAL)
PASSES: dict[str, tuple[Pass, ...]] = {p.__name__: (p,) for p in ALL} | {"default": DEFAULT}


def affine(base_s: float, item_s: float, knee_items: int) -> Profile:
    """A latency profile whose knee is given."""
    return Profile.affine(base_s, item_s, max_items=knee_items, knee_share=1)


def profile_of(numbers: tuple[float, ...]) -> Profile | LlmProfile:
    if len(numbers) == 2:
        return replace(PAPER_LLM["7b"], step=Profile(((1, numbers[0]), (32, numbers[1])), max_items=32))
    base_s, item_s, knee_items = numbers
    return affine(base_s, item_s, int(knee_items))


EAGER = Context(
    profiles={name: affine(0.01, 0.01, 2) for name in ("encoder", "db", "kb")} | {"llm": profile_of((0.01, 0.1))},
    capabilities={"llm": Capabilities(prefix=True, prefix_at_end=True)},
    overhead_s=0,
    split_tax=0,
    allow_early_stop=True,
)
"""Lets passes rewrite whatever they can."""


# --- fixtures -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    path: Path
    title: str
    context: str
    before: str
    after: str
    records: str
    raw: str

    def text(self) -> str:
        head = [f"=== {self.title}", *([self.context] if self.context else []), self.before]
        return "\n".join([*head, "--- after", self.after, "--- records", *([self.records] if self.records else [])])


def read_cases(path: Path) -> list[Case]:
    cases = []
    for block in re.split(r"^=== ", path.read_text(), flags=re.M)[1:]:
        title, _, rest = block.partition("\n")
        before, after, records = [*re.split(r"^--- \w+\n", rest, flags=re.M), "", ""][:3]
        context = re.match(r"(context\(.*?\)\n)?", before).group()  # type: ignore[union-attr]
        parts = (context, before[len(context) :], after, records, f"=== {block}")
        cases.append(Case(path, title, *(p.strip() for p in parts)))
    return cases


def read_context(line: str) -> Context:
    """The Context a `context(...)` line describes."""
    if not line:
        return Context()
    call = ast.parse(line, mode="eval").body
    assert isinstance(call, ast.Call)
    given = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    profiles = {name: profile_of(value) for name, value in given.items() if isinstance(value, tuple)}
    at_end, remote = given.pop("at_end", []), given.pop("remote", [])
    prefix = [*given.pop("prefix", []), *at_end]
    fields = {name: value for name, value in given.items() if name not in profiles}
    limits = fields.pop("max_items", {})
    fields["pure"] = frozenset(fields.get("pure", ()))
    capabilities = {
        e: Capabilities(max_items=limits.get(e, 64), prefix=e in prefix, prefix_at_end=e in at_end, remote=e in remote)
        for e in {*prefix, *remote, *limits}
    }
    return Context(profiles, capabilities, **fields)


CASES = [case for path in sorted(Path(__file__).parent.glob("*.txt")) for case in read_cases(path)]


def test_every_pass_has_cases_that_fire_and_cases_that_must_not() -> None:
    for name in PASSES:
        signs = [set(re.findall(r"^TR\d+ ([+-])", c.records, re.M)) for c in CASES if c.path.stem == name]
        assert any("+" in s for s in signs), name
        assert any("+" not in s for s in signs) or name == "default", name


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.path.stem}: {c.title}")
def test_fixture(case: Case, update_golden: bool) -> None:
    before = parse(case.before)
    optimized = optimize_graph(before, PASSES[case.path.stem], read_context(case.context), strict=True)
    found = replace(case, after=str(optimized.graph), records="\n".join(map(str, optimized.records)))
    if update_golden:
        case.path.write_text(case.path.read_text().replace(case.raw, found.text()))
    else:
        assert found.text() == case.text()
    assert str(before) == case.before, "write the graph as it prints"
    for items in (0, 1, 3):
        assert_same_meaning(before, optimized.graph, items, choose=lambda n: n - 1)
        assert_same_meaning(before, optimized.graph, items, choose=lambda _: 0)


def assert_same_meaning(before: Graph, after: Graph, items: int, choose: Any) -> None:
    inputs = some_inputs(before, items)
    expected = run_in_order(before, inputs)
    assert run_in_order(after, inputs) == expected
    assert run_in_any_order(after, inputs, choose) == expected


def test_a_stage_is_as_large_as_the_knee_though_more_items_fit_into_a_batch() -> None:
    profile = Profile.affine(0.01, 0.02, max_items=64)
    graph = parse(
        "inputs(docs=[])\nvecs: [] = embedding(*docs) @ encoder\nhits: [] = searching(*vecs) @ kb\noutputs(hits)"
    )
    staged = optimize_graph(graph, (decompose_stages,), Context({"encoder": profile, "kb": profile}), strict=True).graph
    assert staged["vecs"].setting("stage_items") == profile.knee_items < profile.max_items


# --- properties ---------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(
    graphs(),
    st.lists(st.sampled_from(ALL), max_size=7),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
def test_any_passes_in_any_order_keep_outputs_and_engine_state(
    graph: Graph, passes: list[Pass], items: int, random: Any
) -> None:
    after = optimize_graph(graph, passes, EAGER, strict=True).graph
    assert_same_meaning(graph, after, items, random.randrange)


@settings(deadline=None)
@given(graphs(steps=ASKING_TWICE, shows_all=True), st.integers(0, 2), st.randoms(use_true_random=False))
def test_what_is_asked_for_twice_is_shared_only_where_nobody_can_tell(graph: Graph, items: int, random: Any) -> None:
    after = optimize_graph(graph, [share_subexpressions], EAGER, strict=True).graph
    assert_same_meaning(graph, after, items, random.randrange)


@settings(deadline=None)
@given(graphs(), st.sampled_from(ALL))
def test_a_pass_run_twice_changes_nothing_more(graph: Graph, one: Pass) -> None:
    once = optimize_graph(graph, [one], EAGER, strict=True).graph
    assert optimize_graph(once, [one], EAGER, strict=True).graph == once


@settings(deadline=None)
@given(graphs(), st.randoms(use_true_random=False))
def test_names_do_not_matter(graph: Graph, random: Any) -> None:
    numbers = list(range(100))
    random.shuffle(numbers)
    other = renamed(graph, lambda _, at: f"n{numbers[at]}")
    plain, changed = optimize_graph(graph, context=EAGER), optimize_graph(other, context=EAGER)
    assert _numbered(plain.graph) == _numbered(changed.graph)
    assert [(r.code, r.number) for r in plain.records] == [(r.code, r.number) for r in changed.records]


def _numbered(graph: Graph) -> Graph:
    return renamed(graph, lambda _, at: f"x{at}")


def test_a_new_name_does_not_clash() -> None:
    graph = parse(
        "inputs(q); kv_early = embedding(q) @ encoder; kv = prefilling(q, kv_early) @ llm; a = decoding(kv) @ llm;"
        "outputs(a)"
    )
    split = optimize_graph(graph, context=EAGER, strict=True)
    assert split.graph["kv"].refs[0].name == "kv_early_"


# --- the pass driver ----------------------------------------------------------------------------------------

GRAPH = parse("inputs(x); y = call(x, fn='f'); outputs(y)")


def test_snapshots_show_the_graph_after_each_pass() -> None:
    optimized = optimize_graph(GRAPH)
    assert [name for name, _ in optimized.snapshots] == [p.__name__ for p in DEFAULT]
    assert optimized.snapshots[-1][1] == optimized.graph


def raises(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    raise ZeroDivisionError("oops")


def breaks(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    return replace(graph, primitives=()), [Record("TR101", "breaks", "y", True, "gone")]


def forgets_outputs(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    return replace(graph, outputs=()), []


def flattens(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    p = replace(graph["y"], depth=1)
    return graph.replacing({"y": [p]}), []


def returns_nonsense(graph: Graph, context: Context) -> Any:
    return None


@pytest.mark.parametrize("bad", [raises, breaks, forgets_outputs, flattens, returns_nonsense])
def test_a_pass_that_fails_is_dropped_as_a_whole(bad: Pass, caplog: pytest.LogCaptureFixture) -> None:
    optimized = optimize_graph(GRAPH, [bad, mark])
    assert optimized.graph["y"].setting("marked") is True
    assert [(r.code, r.pass_name) for r in optimized.records] == [("TR001", bad.__name__)]
    assert bad.__name__ in caplog.text


def test_strict_names_the_pass_and_those_before_it() -> None:
    with pytest.raises(PassError, match=r"^raises: ZeroDivisionError: oops \(passes before it: Marker\)$") as error:
        optimize_graph(GRAPH, [Marker("a"), raises], strict=True)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def mark(graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
    return graph.replacing({"y": [graph["y"].with_settings(marked=True)]}), []


@dataclass(frozen=True)
class Marker:
    """A pass with a setting."""

    key: str
    seen: list[str] = field(default_factory=list, compare=False)

    def __call__(self, graph: Graph, context: Context) -> tuple[Graph, list[Record]]:
        return graph.replacing({"y": [graph["y"].with_settings(**{self.key: 1})]}), []


def test_a_pass_may_be_an_object() -> None:
    assert optimize_graph(GRAPH, [Marker("a"), Marker("b")]).graph["y"].settings == (
        ("fn", "f"),
        ("a", 1),
        ("b", 1),
    )


def test_a_broken_graph_is_refused_before_any_pass() -> None:
    with pytest.raises(GraphError):
        optimize_graph(replace(GRAPH, outputs=("z",)))


def test_a_record_needs_a_registered_code() -> None:
    with pytest.raises(KeyError, match="TR999"):
        Record("TR999", "p", "y", True, "why")
