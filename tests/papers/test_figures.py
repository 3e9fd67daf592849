"""The papers' figures: what must come out exactly, what must be in order, and that every one can be made and shown."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from paper_figures import app
from papers.catalog import FIGURES, chosen
from papers.drawing import SHAPES, TICKS, draw, ticks
from papers.figures import Cell, Figure, Plot, Result, Row, Series, Setting, Table
from papers.making import Made, make, processes
from papers.page import page
from papers.report import head_of, lines, markdown
from papers.teola.ablations import graph_ablation
from papers.teola.batches import FIGURE_7, ends, figure_4, figure_7
from papers.teola.bounds import Runs, bounds_of
from papers.teola.critical_path import WAITING, around, spent_s
from papers.teola.curves import MANY
from papers.teola.measure import Load, Place, measure, path_of
from papers.teola.modes import BEST, MORE, PAPERS, WAYS, Way
from papers.teola.texts import Costs, least_s
from simulator import Span
from typer.testing import CliRunner

from teola_plugin.errors import TeolaError
from teola_plugin.graph import parse
from teola_plugin.profile import PAPER_LLM

QUICK = Setting(quick=True)


def ours(result: Result, table: int = 0) -> dict[str, list[float | str | None]]:
    return {row.label: [cell.ours for cell in row.cells] for row in result.tables[table].rows}


# --- figures that the paper gives exactly ---------------------------------------------------------------------------


def test_figure_7_is_exact() -> None:
    for cell in (cell for row in figure_7(QUICK).tables[0].rows for cell in row.cells if cell.published is not None):
        assert cell.ours == pytest.approx(cell.published)


def test_figure_7_is_the_engine_s_and_not_the_table_s() -> None:
    # With room for three prompts nobody waits, whatever the policy.
    profile = PAPER_LLM["figure7"].prefill
    assert ends(FIGURE_7, "to", profile, 3) == pytest.approx(dict.fromkeys("ABG", 1.1))


def test_figure_4_is_exact() -> None:
    cells = figure_4(QUICK).tables[0].rows[0].cells
    assert [cell.ours for cell in cells] == pytest.approx([cell.published for cell in cells])


def test_each_part_of_the_passes_is_a_part_of_the_gain() -> None:
    relative = {name: cells[1] for name, cells in ours(graph_ablation(QUICK)).items()}
    parts = relative["parallelism only"], relative["pipelining only"]
    assert relative["full"] == 1 < min(parts)
    assert max(parts) < relative["none"]


def test_what_serves_both_apps_is_beside_the_framework_alone() -> None:
    (figure,) = chosen(["teola-together"])
    for table in figure.make(QUICK).tables:
        rows = {row.label: row for row in table.rows}
        assert [label for label in rows if label.startswith("framework over")] == [
            "framework over ours, topology", "framework over ours, critical path",
        ]  # fmt: skip
        assert {label.split("-")[0] for label, row in rows.items() if row.cells[0].published} == {"LlamaDistPC"}


# --- all of them ----------------------------------------------------------------------------------------------------


SIMULATED = [figure for figure in FIGURES if not figure.is_real]


@pytest.mark.papers
@pytest.mark.parametrize("figure", SIMULATED, ids=lambda figure: figure.name)
def test_every_figure_is_made_and_shown(figure: Figure) -> None:
    made = [make(figure, QUICK)]
    assert made[0].result.tables
    numbers = [c.ours for t in made[0].result.tables for row in t.rows for c in row.cells if isinstance(c.ours, float)]
    assert numbers, "it has figures"
    assert all(map(math.isfinite, numbers))
    assert figure.title in markdown(made, HEAD)
    assert escape(figure.title) in page(made, HEAD)


def test_names_are_unique_and_say_whose_figure_it_is() -> None:
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names)
    assert all("-" in name for name in names)


@pytest.mark.papers
def test_the_same_seed_gives_the_same_figures() -> None:
    (figure,) = chosen(["teola-batching"])
    assert figure.make(QUICK) == figure.make(QUICK) != figure.make(Setting(quick=True, seed=1))


@pytest.mark.papers
def test_processes_give_what_one_gives() -> None:
    (figure,) = chosen(["teola-graph"])
    seen: list[tuple[int, int]] = []
    with processes(2, lambda done, total: seen.append((done, total))) as spread:
        assert figure.make(Setting(quick=True, map=spread)) == figure.make(QUICK)
    assert seen[-1][0] == seen[-1][1] > 1


# --- ways -----------------------------------------------------------------------------------------------------------


def test_the_ways_are_those_of_the_paper() -> None:
    assert [(way.shape, way.policy, way.prefix_cache, way.has_bundles, way.is_tuned) for way in PAPERS] == [
        ("chain", "po", "none", True, False),
        ("chain", "to", "none", False, True),
        ("parallel", "po", "instruction", True, False),
        ("parallel", "to", "instruction", False, True),
    ]
    assert not any(way.passes for way in WAYS if "ours" not in way.name)
    assert BEST.shape == "chain", "ours starts from what the user wrote, not from what somebody made parallel by hand"


def test_a_way_has_the_prefix_cache_that_it_says() -> None:
    loads = [Load(Place(("A",)), way, math.inf, 6) for way in (PAPERS[0], PAPERS[2])]
    assert [measure(load).engines["llm"].cached_tokens > 0 for load in loads] == [False, True]
    loads = [Load(Place(("C",)), way, math.inf, 6) for way in (PAPERS[3], MORE[1])]
    instructions, full = [measure(load).engines["llm"].cached_tokens for load in loads]
    assert instructions < full


def test_a_way_is_run_as_it_says() -> None:
    dist_po, dist_to, pc_po, pc_to = [measure(Load(Place(("B",)), way, math.inf, 6)).took_s for way in PAPERS]
    assert dist_to < dist_po, "bundles go one at a time"
    assert pc_to < pc_po
    assert pc_po < dist_po, "what is independent goes side by side"


def test_the_critical_path_is_walked_back_by_dependencies() -> None:
    graph = parse(
        "inputs(x); a = embedding(x) @ embedder; b = embedding(x) @ other; c = call(a, fn='f') @ python\n"
        "d = searching(c) @ store; outputs(d)"
    )
    spans = [
        Span(0, "a", "embedder", 0.0, 0.0, 1.0),
        Span(0, "b", "other", 0.0, 0.0, 1.4),  # ends later, and nobody waits for it
        Span(0, "d", "store", 1.1, 1.5, 2.0),
    ]
    assert spent_s(graph, spans, 2.1) == pytest.approx({"embedder": 1.0, "store": 0.5, WAITING: 0.6})


def test_what_stands_around_the_work_of_an_engine() -> None:
    graph = parse(
        "inputs(x); q = embedding(x) @ embedder; d = searching(q) @ store; r = reranking(d) @ ranker\n"
        "a = embedding(r) @ embedder; w = websearch(x) @ web; o = aggregate(a, w); outputs(o)"
    )
    spans = [
        Span(0, "q", "embedder", 0.1, 0.1, 1.0),
        Span(0, "d", "store", 1.0, 1.0, 1.5),
        Span(0, "r", "ranker", 1.5, 1.5, 3.5),
        Span(0, "r", "ranker", 1.5, 1.6, 2.6),  # the shorter half may be the last
        Span(0, "a", "embedder", 3.5, 3.5, 3.8),
    ]
    found = around(graph, spans, lambda span: span.end_s - span.begin_s)
    assert [found.of(name) for name in ("embedder", "store", "ranker")] == pytest.approx([0.1, 2.3, 1.8])


@pytest.mark.papers
@pytest.mark.parametrize("app", "ABCDE")
def test_no_query_is_shorter_than_its_bounds(app: str) -> None:
    load = Load(Place((app,)), BEST, 0.0, 3)
    runs = Runs(*map(measure, (load, replace(load, way=PAPERS[0]), replace(load, instances=MANY))))
    bounds = bounds_of(runs)
    assert {bound.name for bound in bounds} >= set(runs.ours.engines)
    for bound in bounds:
        assert bound.together_s <= runs.ours.mean_s + 1e-9, bound
    if app == "D":
        assert max(bounds, key=lambda bound: bound.together_s).name == "writer_llm and embedder"


@given(st.data(), st.integers(1, 7), st.integers(1, 3), st.integers(1, 4))
def test_no_schedule_of_texts_is_sooner_than_their_bound(
    data: st.DataObject, count: int, instances: int, steps: int
) -> None:
    """Any prompt may be prefilled before any step, and any texts that are there be taken next."""
    seconds = st.sampled_from((0.0, 0.125, 0.5, 1.0))
    prefill_s, step_s, text_s, batch_s, item_s = (data.draw(seconds) for _ in range(5))
    ends: list[float] = []
    for share in Counter(data.draw(st.integers(1, instances)) for _ in range(count)).values():
        now_s, step = 0.0, 0
        writing: list[int] = []  # for each text that is written the step after which it ends
        befores = sorted(data.draw(st.integers(0, 3 * steps)) for _ in range(share))
        while befores or writing:
            while befores and (befores[0] <= step or not writing):
                befores.pop(0)
                writing.append(step + steps)
                now_s += prefill_s
            now_s += step_s + text_s * len(writing)
            step += 1
            ends += [now_s] * writing.count(step)
            writing = [end for end in writing if end > step]
    over_s = [0.0]
    for number, end_s in enumerate(sorted(ends), 1):
        over_s.append(min(max(over_s[k], end_s) + batch_s + item_s * (number - k) for k in range(number)))
    costs = Costs(prefill_s, steps * step_s, steps * text_s, batch_s, item_s)
    assert least_s(count, instances, costs) <= over_s[-1] + 1e-9


@pytest.mark.parametrize("way", [PAPERS[0], BEST], ids=str)
def test_the_parts_of_a_path_are_the_latency(way: Way) -> None:
    load = Load(Place(("C",)), way, 0.0, 1)
    path = path_of(load)
    assert sum(path.values()) == pytest.approx(measure(load).mean_s)
    assert min(path.values()) >= 0
    assert path["llm"] > path[WAITING], "nobody else is there to wait for"


# --- showing --------------------------------------------------------------------------------------------------------

TABLE = Table(
    "speed",
    ("A | B", "note"),
    (Row("<ours>", (Cell(2.0, (1.2, 1.55), "x"), Cell(None, note="nothing & none"))),),
    corner="way",
)
RESULT = Result((TABLE,), (Plot("p", "x", "y", (Series("one", ((1.0, 2.0), (2.0, 8.0))),), top=4.0),), ("a <b>",))
MADE = [Made(Figure("paper-one", "First", "Paper, 1", lambda setting: RESULT), RESULT, 1.0)]
HEAD = head_of("make them", 7, 3.0)


def test_markdown() -> None:
    text = markdown(MADE, HEAD)
    assert "| way | A \\| B | note |\n|---|---|---|\n| <ours> | 2.00x (paper 1.20-1.55x) | - \\* |" in text
    assert "\\* nothing & none" in text
    assert "- command: `make them`\n- seed: 7" in text


def test_text() -> None:
    assert [line.rstrip() for line in lines(MADE[0])][2:6] == [
        "  speed",
        "    way                         A | B  note",
        "    <ours>  2.00x (paper 1.20-1.55x)     -*",
        "    * nothing & none",
    ]


def test_the_page_escapes_and_closes_what_it_opens() -> None:
    class Balanced(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []

        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

    html = page(MADE, HEAD)
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []
    assert "&lt;ours&gt;" in html
    assert "<ours>" not in html


def test_the_page_needs_nothing_else() -> None:
    html = page(MADE, HEAD)
    assert "<script" not in html
    assert not re.search(r"""(src|href)=["'](?!#)|url\((?!#)|@import|//""", html)


def test_every_figure_has_an_anchor_and_every_link_ends_at_one() -> None:
    html = page([*MADE, replace(MADE[0], figure=replace(MADE[0].figure, name="paper-two", source="Other"))], HEAD)
    ids = re.findall(r'id="([^"]+)"', html)
    assert len(set(ids)) == len(ids)
    assert {"paper-one", "paper-two"} <= set(ids)
    assert set(re.findall(r'href="#([^"]+)"', html)) == {"paper-one", "paper-two"}


def test_on_the_page_a_published_number_has_a_column_and_a_note_a_line() -> None:
    html = page(MADE, HEAD)
    assert TABLE.has_published == (True, False)
    assert '<td>2.00x</td><td class="paper">1.20-1.55x</td>' in html
    assert '<td>-<span class="mark">*</span></td>' in html
    assert ">* nothing &amp; none</p>" in html


def test_each_note_has_a_mark_of_its_own() -> None:
    cells = (Cell(1, note="b"), Cell(2, note="a"), Cell(3, note="b"), Cell(4))
    table = Table("t", ("1", "2", "3", "4"), (Row("one", cells),))
    assert table.marks == {"b": "*", "a": "**"}
    assert "| one | 1 \\* | 2 \\*\\* | 3 \\* | 4 |" in markdown([replace(MADE[0], result=Result((table,)))], HEAD)


def test_what_was_made_quickly_says_so() -> None:
    for shown in (page, markdown):
        assert "no number is a result" not in shown(MADE, HEAD)
        assert "no number is a result" in shown(MADE, replace(HEAD, is_quick=True))


def test_a_plot_begins_at_zero_and_what_is_above_its_top_is_outside() -> None:
    drawing = draw(RESULT.plots[0])
    assert [text for _, text in drawing.y_ticks] == ["0", "1", "2", "3", "4"]
    first, second = drawing.lines[0].places
    assert first == (drawing.width / 2, drawing.height / 2)
    assert second[1] < 0
    assert drawing.is_cut


def test_a_plot_is_no_higher_than_its_lines() -> None:
    drawing = draw(replace(RESULT.plots[0], top=50.0))
    assert [text for _, text in drawing.y_ticks] == ["0", "2", "4", "6", "8"]
    assert not drawing.is_cut


@pytest.mark.parametrize("largest", [0.0, 0.0123, 0.83, 1.0, 6.0, 43.0, 99_999.0])
def test_ticks_are_few_and_enough(largest: float) -> None:
    at = [place for place, _ in ticks(largest)]
    assert at[0] == 0
    assert at[-1] >= largest - 1e-9
    assert at[-2] < (largest or 1.0)
    assert 4 <= len(at) <= TICKS + 1
    assert len({text for _, text in ticks(largest)}) == len(at), "no two read the same"


def test_as_many_marks_as_colours_and_all_different() -> None:
    html = page(MADE, HEAD)
    assert len(set(SHAPES)) == len(SHAPES) == len(set(re.findall(r"\.line-(\d)", html)))
    styles = [line.style for line in draw(replace(RESULT.plots[0], series=RESULT.plots[0].series * 9)).lines]
    assert styles == [*range(len(SHAPES)), 0]


def test_a_row_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="'one' has 1 cells for 2 columns"):
        Table("t", ("a", "b"), (Row("one", (Cell(1),)),))


# --- the command ----------------------------------------------------------------------------------------------------


def test_an_unknown_name_lists_the_names() -> None:
    done = CliRunner().invoke(app, ["teola-figure77"])
    assert done.exit_code == 2
    assert "did you mean teola-figure7?" in done.output
    assert all(figure.name in done.output for figure in FIGURES)


def test_a_name_is_one_figure_or_a_paper() -> None:
    assert [figure.name for figure in chosen(["teola-figure7"])] == ["teola-figure7"]
    assert {figure.name.split("-")[0] for figure in chosen(["teola"])} == {"teola"}
    assert chosen([]) == list(FIGURES)
    assert chosen([], simulated=True) == SIMULATED
    with pytest.raises(TeolaError, match="teola-real: nothing of this is simulated"):
        chosen(["teola-real"], simulated=True)
    with pytest.raises(TeolaError, match="there is no figure 'teol'"):
        chosen(["teol"])


def test_the_command(tmp_path: Path) -> None:
    html, text = tmp_path / "papers.html", tmp_path / "papers.md"
    done = CliRunner().invoke(app, ["teola-figure7", "--html", str(html), "--markdown", str(text)])
    assert done.exit_code == 0, done.output
    assert "0.80 s (paper 0.80 s)" in done.output
    assert "topology-aware batching" in text.read_text()
    assert "topology-aware batching" in html.read_text()


def test_list() -> None:
    done = CliRunner().invoke(app, ["--list"])
    assert done.exit_code == 0
    assert all(figure.title in done.output for figure in FIGURES)


def test_a_missing_folder_is_told_before_the_work(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["--html", str(tmp_path / "none" / "page.html")])
    assert done.exit_code == 2
    assert "there is no folder" in done.output
