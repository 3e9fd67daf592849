"""SGLang's programs in LangChain: what is found in them, and that every way gives the same answers."""

from __future__ import annotations

import pytest
from papers.figures import Setting
from papers.sglang.figure import result, rows
from papers.sglang.programs import PROGRAMS
from papers.sglang.runs import WAYS, Load, Run, found, hit_rate, run

FEW = Load(users=2, queries=2, share=1 / 64)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_way_gives_the_same_answers(name: str) -> None:
    runs = {way: run(PROGRAMS[name], how, FEW) for way, how in WAYS.items()}
    assert len({made.answers for made in runs.values()}) == 1
    assert len(set(runs["by hand"].answers)) == FEW.queries
    original = runs["by hand"]
    assert runs["in turn"].computed_tokens + runs["in turn"].cached_tokens == (
        original.computed_tokens + original.cached_tokens
    )
    assert all(0 <= hit_rate(made, original) < 1 for made in runs.values())


def test_branches_and_the_beginnings_that_they_share_are_found_where_they_stand_in_turn() -> None:
    assert {name: (found(program).branches, len(found(program).prefixes)) for name, program in PROGRAMS.items()} == {
        "multi-chain reasoning": (5, 1),
        "tree of thought": (3, 4),
        "LLM judge": (6, 1),
        "multi-document QA": (4, 1),
        "few-shot": (1, 0),
        "multi-turn chat": (1, 0),
        "JSON decoding": (1, 0),
        "ReAct": (1, 0),
    }


def test_what_ran_ahead_and_is_found_in_the_cache_counts_once() -> None:
    original = Run(("a",), (1.0,), 1.0, computed_tokens=100, cached_tokens=0)
    ahead = Run(("a",), (1.0,), 1.0, computed_tokens=100, cached_tokens=60)
    assert hit_rate(ahead, original) == 0


def test_branches_side_by_side_answer_one_user_sooner_and_so_does_the_code_in_turn() -> None:
    (shown,) = rows(Setting(quick=True), "LLM judge")
    assert shown.is_equal
    assert shown.alone_s["optimized"] == pytest.approx(shown.alone_s["by hand"], rel=0.02)
    assert shown.alone_s["optimized"] < shown.alone_s["in turn"] / 3
    for table in result([shown]).tables:
        (row,) = table.rows
        assert row.label == "LLM judge"
        assert all(cell.ours is not None for cell in row.cells)


def test_two_runs_give_the_same() -> None:
    """In virtual time nothing depends on the machine."""
    first, second = (run(PROGRAMS["ReAct"], WAYS["optimized"], FEW) for _ in range(2))
    assert first == second
