"""From templates to graphs: what components become, and what is refused."""

from __future__ import annotations

import doctest
from dataclasses import replace
from typing import Any

import pytest
from papers.apps import APPS

import teola_plugin.templates.functions
import teola_plugin.templates.options
import teola_plugin.templates.values
from teola_plugin import reads, writes
from teola_plugin.errors import GraphError
from teola_plugin.passes import Context, optimize_graph
from teola_plugin.passes.prune_dependencies import prune_dependencies
from teola_plugin.profile import PAPER, PAPER_LLM
from teola_plugin.registry import EngineConfig, register, unregister
from teola_plugin.runtime.engines.simulated import ProfileEmbedding, ProfileLLM, ProfileReranker, ProfileStore
from teola_plugin.templates import (
    App,
    Apply,
    Branches,
    Chunking,
    Component,
    Condition,
    Embedding,
    Generation,
    Ingestion,
    Loop,
    Operation,
    Part,
    QueryExpansion,
    Reranking,
    Searching,
    Situating,
    Step,
    Synthesis,
    Takes,
    Tool,
    WebSearch,
)
from teola_plugin.templates.decompose import decompose
from teola_plugin.templates.functions import chunks, parsed
from teola_plugin.templates.options import number

INDEX = Chunking() >> Embedding() >> Ingestion()


def lines(template: Step, **inputs: int) -> list[str]:
    return str(decompose(template, inputs=inputs).graph).splitlines()


def engines() -> dict[str, object]:
    return {
        "llm": ProfileLLM("llm", PAPER_LLM["7b"]),
        "embedder": ProfileEmbedding(8, PAPER["embedding"]),
        "store": ProfileStore(["a"], PAPER["searching"], PAPER["ingestion"]),
        "reranker": ProfileReranker(PAPER["reranking"]),
    }


@pytest.mark.parametrize("module", ["functions", "options", "values"])
def test_doctests(module: str) -> None:
    assert doctest.testmod(getattr(teola_plugin.templates, module)).failed == 0


# --- chains and branches --------------------------------------------------------------------------------------------


def test_a_chain_has_its_order_as_edges() -> None:
    assert lines(INDEX >> Searching(2) >> Generation("{question} {found}", "answer", max_tokens=4)) == [
        "inputs(document, question)",
        "chunks: [] = chunking(document, 256, 30, fn='chunks') @ python",
        "vectors: [] = embedding(*chunks) @ embedder, after(chunks)",
        "ingested = ingestion(*vectors, *chunks) @ store, writes(kb), after(vectors)",
        "query_vectors = embedding(question) @ embedder, after(ingested)",
        "hits = searching(query_vectors, top_k=2) @ store, reads(kb), after(ingested)",
        "found: [] = call(hits, fn='documents') @ python, after(ingested)",
        "found_text = call(found, fn='joined') @ python",
        "answer_kv = prefilling(question, ' ', found_text) @ llm, after(found)",
        "answer = decoding(answer_kv, max_tokens=4) @ llm, after(found)",
        "outputs(answer, ingested)",
    ]


def test_branches_have_no_order_but_that_of_effects() -> None:
    got = lines([INDEX, QueryExpansion(2)] >> Searching(2))
    assert "queries_kv = prefilling('Write 2 searches" in got[4]
    assert "after" not in got[4] + got[5]
    assert got[7] == "hits: [] = searching(*query_vectors, top_k=2) @ store, reads(kb), after(ingested, queries)"
    side_by_side = lines([INDEX, Searching(2)])
    assert side_by_side[5] == "hits = searching(query_vectors, top_k=2) @ store, reads(kb), after(ingested)"


def test_a_branch_may_take_what_another_one_gives_whatever_their_order() -> None:
    ways = (Apply(str.upper, "shout", "loud"), Apply(str.strip, "question", "shout"))
    assert [line.split(" = ")[0] for line in lines(Branches(ways))[1:-1]] == ["shout", "loud"]
    ways = (Condition(bool, "shout", Apply(str.upper, "question", "loud")), Apply(str.strip, "question", "shout"))
    assert [line.split(" = ")[0] for line in lines(Branches(ways))[1:3]] == ["shout", "condition"]


def test_a_step_may_be_followed_by_branches_and_joined() -> None:
    a = Apply(str, "question", "a")
    b, c = Apply(str, "a", "b"), Apply(str, "a", "c")
    assert lines(a >> [b, c] >> Apply(str, ["b", "c"], "d"))[-2] == "d = call(b, c, fn='make_d') @ python"


def test_pass_1_leaves_of_the_chain_what_effects_demand() -> None:
    chained, side_by_side = APPS["C"].graph("chain"), APPS["C"].graph("parallel")
    assert chained != side_by_side
    pruned = [optimize_graph(g, [prune_dependencies], Context(), strict=True).graph for g in (chained, side_by_side)]
    assert pruned[0] == pruned[1]
    assert [p.name for p in pruned[0] if p.after] == ["hits"]


# --- components -----------------------------------------------------------------------------------------------------


def test_a_chunk_is_situated_among_its_neighbours() -> None:
    situating = Situating(2, prompt="{around}|{part}", engine="writer_llm", max_tokens=9)
    assert lines(Chunking() >> situating >> Embedding())[2:-1] == [
        "around: [] = call(chunks, 2, fn='neighbours') @ python",
        "context_kv: [] = prefilling(*around, '|', *chunks) @ writer_llm, after(chunks)",
        "context: [] = decoding(*context_kv, max_tokens=9) @ writer_llm, after(chunks)",
        "situated: [] = call(*context, *chunks, fn='joined') @ python, after(chunks)",
        "vectors: [] = embedding(*situated) @ embedder, after(situated)",
    ]


def test_synthesis_one_shot_and_tree() -> None:
    passages = Apply(list, "question", "best", makes_list=True)
    prompts = {"prompt": "{question}: {context}.", "combine_prompt": "{answers}?"}
    assert lines(passages >> Synthesis(**prompts))[2:-1] == [
        "best_text = call(best, fn='joined') @ python",
        "answer_kv = prefilling(question, ': ', best_text, '.') @ llm, after(best)",
        "answer = decoding(answer_kv) @ llm, after(best)",
    ]
    passages = Apply(list, "question", "best", makes_list=True)
    assert lines(passages >> Synthesis("tree", **prompts))[2:-1] == [
        "partial_answers_kv: [] = prefilling(question, ': ', *best, '.') @ llm, after(best)",
        "partial_answers: [] = decoding(*partial_answers_kv) @ llm, after(best)",
        "partial_answers_text = call(partial_answers, fn='joined') @ python, after(best)",
        "answer_kv = prefilling(partial_answers_text, '?') @ llm, after(best)",
        "answer = decoding(answer_kv) @ llm, after(best)",
    ]


def test_a_refine_has_a_pair_for_each_passage_that_may_come() -> None:
    template = Searching(2) >> Synthesis("refine", prompt="{context}", refine_prompt="{answer}+{context}")
    assert lines(template)[4:-1] == [
        "passage_1 = call(found, 0, fn='item') @ python",
        "draft_1_kv = prefilling(passage_1) @ llm, after(found)",
        "draft_1 = decoding(draft_1_kv) @ llm, after(found)",
        "has_passage_2 = condition(found, 1, fn='has_item') @ python",
        "passage_2 = call(found, 1, fn='item') @ python, when(has_passage_2)",
        "draft_2_kv = prefilling(draft_1, '+', passage_2) @ llm, after(found), when(has_passage_2)",
        "draft_2 = decoding(draft_2_kv) @ llm, after(found), when(has_passage_2)",
        "answer = aggregate(draft_2, draft_1)",
    ]


def test_what_may_not_be_staged_or_split_is_not() -> None:
    template = QueryExpansion(2, splittable=False) >> Searching(2, batchable=False)
    graph = decompose(template).graph
    assert [p.name for p in graph if p.is_splittable] == []
    assert str(graph["queries"].setting("fn")) == "parsed"
    assert graph["query_vectors"].setting("stage_items") == graph["hits"].setting("stage_items") == 0


def test_chunks_begin_with_the_end_of_the_one_before() -> None:
    assert chunks("abcdefghijkl", 2, 1) == ["abcdefgh", "efghijkl"]


def test_of_a_list_that_is_not_split_only_what_is_wanted_counts() -> None:
    assert parsed("a\nb\nc", "lines", 2) == ["a", "b"]
    assert parsed("a\nb\nc", "lines") == ["a", "b", "c"]


@pytest.mark.parametrize("make", [Generation, QueryExpansion])
def test_settings_of_an_engine_are_those_of_its_decoding(make: Any) -> None:
    (decoding,) = (p for p in decompose(make(prompt="{question}", settings={"seed": 7})).graph if p.kind == "decoding")
    assert decoding.setting("seed") == 7


@pytest.mark.parametrize("mode", ["one-shot", "tree", "refine"])
def test_settings_of_an_engine_are_those_of_all_decodings_of_a_synthesis(mode: str) -> None:
    graph = decompose(Searching(2) >> Synthesis(mode, settings={"seed": 7}, max_tokens=9)).graph
    seeds = [(p.setting("seed"), p.setting("max_tokens")) for p in graph if p.kind == "decoding"]
    assert seeds == [(7, 9)] * (1 if mode == "one-shot" else 2)


def test_nested_lists_are_joined_where_the_scope_says() -> None:
    """FacTool as ALTO has it: claims, queries of each claim, hits of each query, a verdict for each claim."""
    template = (
        Generation("Claims in {question}", "claims", items="lines")
        >> QueryExpansion(2, scope="claims", takes={"question": "claims"}, prompt="{question}")
        >> Searching(4)
        >> Reranking(1, scope="claims", takes={"question": "claims"})
        >> Generation("{claims} by {best}", "verdicts", scope="claims")
        >> Generation("All of: {verdicts}", "answer")
    )
    assert lines(template)[2:-1] == [
        "claims: [] = decoding(claims_kv, items='lines') @ llm",
        "queries_kv: [] = prefilling(*claims) @ llm, after(claims)",
        "queries: [[]] = decoding(*queries_kv, items='lines', wanted=2, max_tokens=64) @ llm, after(claims)",
        "query_vectors: [[]] = embedding(*queries) @ embedder, after(queries)",
        "hits: [[]] = searching(*query_vectors, top_k=4) @ store, reads(kb), after(queries)",
        "found: [[[]]] = call(*hits, fn='documents') @ python, after(queries)",
        "scores: [[[]]] = reranking(*claims, *found) @ reranker, after(found)",
        "best_of_each: [] = call(*found, *scores, 1, fn='best') @ python, after(found)",
        "best: [[]] = call(*best_of_each, fn='same') @ python, after(found)",
        "best_text: [] = call(*best, fn='joined') @ python, after(best)",
        "verdicts_kv: [] = prefilling(*claims, ' by ', *best_text) @ llm, after(best)",
        "verdicts: [] = decoding(*verdicts_kv) @ llm, after(best)",
        "verdicts_text = call(verdicts, fn='joined') @ python",
        "answer_kv = prefilling('All of: ', verdicts_text) @ llm, after(verdicts)",
        "answer = decoding(answer_kv) @ llm, after(verdicts)",
    ]


def test_functions_say_what_they_touch() -> None:
    @writes("log")
    def note(text: str) -> str:
        return text

    @reads("log")
    def recall(text: str) -> str:
        return text

    template = Branches((Apply(note, "question", "a"), Apply(recall, "question", "b"), Apply(str, "question", "c")))
    assert lines(template)[1:] == [
        "a = call(question, fn='make_a') @ python, writes(log)",
        "b = call(question, fn='make_b') @ python, reads(log), after(a)",
        "c = call(question, fn='make_c') @ python",
        "outputs(a, b, c)",
    ]


def test_tools_stay_in_order_unless_they_are_said_to_read() -> None:
    for more, after in (({}, ("a",)), ({"reads": ["world"]}, ()), ({"writes": ()}, ())):
        graph = decompose(Tool("question", "a") >> Tool("question", "b", name="other", **more)).graph
        pruned = optimize_graph(graph, [prune_dependencies], Context(), strict=True).graph
        assert pruned["b"].after == after


def test_operations_read_and_write_what_their_engine_holds() -> None:
    """Unless something else is said."""

    def touched(op: str, **more: Any) -> tuple[Any, Any]:
        (made,) = decompose(Operation(op, "question", "a", engine="vault", **more)).graph
        return made.reads, made.writes

    assert touched("searching") == (("vault",), ())
    assert touched("ingestion") == touched("tool") == ((), ("vault",))
    assert touched("embedding") == touched("tool", writes=()) == ((), ())
    assert touched("searching", reads=["kb"]) == (("kb",), ())


def test_profiles_that_are_given_win_over_those_of_the_engines() -> None:
    known: list[Any] = []

    def spy(graph: Any, context: Context) -> Any:
        known.append(context.profiles)
        return graph, []

    App("x", Generation("{question}"), engines(), passes=[spy], profiles={"llm": PAPER_LLM["figure7"]})
    assert known[0] == {"llm": PAPER_LLM["figure7"], **{n: e.profile for n, e in engines().items() if n != "llm"}}  # type: ignore[attr-defined]


def test_a_primitive_does_not_take_the_name_of_an_input() -> None:
    template = Apply(str, "question", "x", name="document") >> Condition(
        bool, "x", Apply(str, "document", "y"), name="x"
    )
    graph = decompose(template).graph
    assert [i.name for i in graph.inputs] == ["question", "document"]
    assert [p.name for p in graph][:3] == ["x", "x_2", "y"]


def test_a_component_of_ones_own() -> None:
    def rule(part: Part) -> None:
        text = part.value("text")
        part.give("loud", part.add("tool", text, engine="voice", levels=text.levels, volume=part.option("volume")))

    shout = Component(
        "shout", rule, {"text": Takes(("question",))}, {"loud": "loud"}, {"voice": "horn"}, {"volume": number(3)}
    )
    assert lines(shout) == ["inputs(question)", "shout_tool = tool(question, volume=3) @ horn", "outputs(shout_tool)"]


# --- conditions and loops -------------------------------------------------------------------------------------------


def test_what_only_one_way_gives_is_empty_on_the_other() -> None:
    search = WebSearch(2, takes={"queries": "question"})
    template = Condition(bool, "question", search, name="unknown") >> Generation("{results}", "answer")
    assert lines(template)[1:-1] == [
        "unknown = condition(question, fn='unknown') @ python",
        "pages = websearch(question, top_k=2) @ search, when(unknown)",
        "results: [] = call(pages, fn='documents') @ python, when(unknown)",
        "other_results: [] = call([], fn='same') @ python, when(unknown, False)",
        "results_either: [] = aggregate(other_results, results)",
        "results_either_text = call(results_either, fn='joined') @ python, after(unknown, results)",
        "answer_kv = prefilling(results_either_text) @ llm, after(unknown, results)",
        "answer = decoding(answer_kv) @ llm, after(unknown, results)",
    ]


def test_a_loop_is_unrolled_and_its_last_round_counts() -> None:
    draft = Generation("{question}", "draft")
    better = Generation("Better: {draft}", "draft", name="better")
    assert lines(draft >> Loop(better, bool, "draft", at_most=3, name="reflection"))[3:] == [
        "draft_kv_2 = prefilling('Better: ', draft) @ llm",
        "draft_2 = decoding(draft_kv_2) @ llm, after(draft)",
        "reflection_done = condition(draft_2, fn='reflection_done') @ python",
        "draft_kv_3 = prefilling('Better: ', draft_2) @ llm, when(reflection_done, False)",
        "draft_3 = decoding(draft_kv_3) @ llm, after(draft_2), when(reflection_done, False)",
        "reflection_done_2 = condition(draft_3, fn='reflection_done') @ python, when(reflection_done, False)",
        "draft_kv_4 = prefilling('Better: ', draft_3) @ llm, when(reflection_done_2, False)",
        "draft_4 = decoding(draft_kv_4) @ llm, after(draft_3), when(reflection_done_2, False)",
        "draft_last = aggregate(draft_4, draft_3, draft_2)",
        "outputs(draft_last)",
    ]


def test_rounds_after_the_third_are_a_graph_of_their_own() -> None:
    better = Generation("Better: {draft} {question}", "draft", name="better")
    template = Generation("{question}", "draft") >> Loop(better, bool, "draft", at_most=None, name="reflection")
    decomposed = decompose(template)
    assert str(decomposed.graph).splitlines()[-5:] == [
        "reflection_done_3 = condition(draft_4, fn='reflection_done') @ python, when(reflection_done_2, False)",
        "reflection_rounds = call(question, draft_4, fn='reflection') @ python, when(reflection_done_3, False)",
        "draft_rounds = call(reflection_rounds, 'draft', fn='value_of') @ python, when(reflection_done_3, False)",
        "draft_last = aggregate(draft_rounds, draft_4, draft_3, draft_2)",
        "outputs(draft_last)",
    ]
    rounds = decomposed.rounds["reflection"]
    assert str(rounds.graph).splitlines() == [
        "inputs(question, draft)",
        "draft_kv_5 = prefilling('Better: ', draft, ' ', question) @ llm",
        "draft_5 = decoding(draft_kv_5) @ llm",
        "reflection_done_4 = condition(draft_5, fn='reflection_done') @ python",
        "outputs(draft_5, reflection_done_4)",
    ]
    assert rounds.again == rounds.gives == {"draft": "draft_5"}
    assert rounds.done == "reflection_done_4"


def test_rounds_write_what_their_components_write() -> None:
    kept = Tool("draft", "draft", name="keeping", writes=("notes",))
    after = Tool("draft", "end", name="looking", reads=("notes",))
    template = Generation("{question}", "draft") >> Loop(kept, bool, "draft", at_most=9, name="notes_loop") >> after
    graph = decompose(template).graph
    rounds = graph["notes_loop_rounds"]
    assert rounds.writes == ("notes",)
    assert rounds.name in graph["end"].after
    assert rounds.name in graph.outputs  # if it fails, the query has failed


# --- what is refused ------------------------------------------------------------------------------------------------

TWICE = Embedding(takes={"texts": "question"})


def text(prompt: str = "{question}", to: str = "text", **more: Any) -> Component:
    return Generation(prompt, to, **more)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TWICE >> text() >> TWICE, "component 'embedding' comes after itself: a cycle"),
        (
            lambda: Apply(str, "b", "a") >> Apply(str, "a", "b"),
            "component 'make_a': takes: 'b' is given by 'make_b', which does not come before it: a cycle",
        ),
        (
            lambda: Branches((Apply(str, "b", "a"), Apply(str, "a", "b"))),
            "a cycle: the branches that begin with 'make_a', 'make_b' take from one another",
        ),
        (lambda: Embedding() >> Ingestion(), "component 'embedding': takes: nothing gives 'situated' or 'chunks'"),
        (lambda: text("{questoin}"), "component 'generation': takes: nothing gives 'questoin'; there are question, "),
        (lambda: text() >> text(), "component 'generation_2': gives: 'text' is there already"),
        (lambda: text() >> text(to="question"), "component 'question': gives: 'question' is there already"),
        (lambda: text(scope="question"), "component 'generation': scope: nothing that it takes has a part for each"),
        (lambda: text(scope="claims"), "scope: expected 'request' or a list (there is none), got 'claims'"),
        (lambda: text() >> Reranking(takes={"passages": "text"}), "takes: expected a list, and 'text' is a single"),
        (
            lambda: text(items="lines") >> Synthesis("refine", takes={"passages": "text"}),
            "component 'synthesis': passages: how many of text a refine takes at most is not known",
        ),
        (
            lambda: Condition(bool, "question", text(), text(items="lines"), name="which"),
            "component 'which': gives: there is no choosing among text (0 lists deep), text_2 (1 lists deep)",
        ),
        (
            lambda: text(to="x", items="lines")
            >> Loop(text("{x}", "x", items="lines", scope="x", name="more"), bool, "x", at_most=4, name="deeper"),
            "component 'deeper': gives: x_5 is in other lists than x_4 of the round before: at_most=3 at most",
        ),
        (
            lambda: text(to="claims", items="lines")
            >> text("{claims}", "queries", items="lines", scope="claims")
            >> text("{claims}", "notes", items="lines", scope="claims")
            >> text("{queries} {notes}", "y", scope="queries"),
            "component 'y': scope: notes and queries stand in different lists",
        ),
        (lambda: Chunking(10, 10), "component 'chunking': overlap: expected less than size=10, got 10"),
        (
            lambda: Component("c", lambda part: None, outputs={"x": "x"}),
            "component 'c': outputs: its rule did not give 'x'",
        ),
        (
            lambda: [text(items="lines"), QueryExpansion()] >> Apply(str, ["text", "queries"], "x", scope="text")
            >> Operation("tool", ["text", "queries"], "y", engine="llm"),
            "component 'tool_y': takes: ",
        ),
    ],
)  # fmt: skip
def test_templates_that_do_not_hold_together(make: Any, message: str) -> None:
    with pytest.raises(GraphError, match=r"^app 'x': ") as caught:
        App("x", make(), {**engines(), "search": ProfileLLM("search", PAPER_LLM["7b"])})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Searching(0), "component 'searching': top_k: expected a whole number >= 1, got 0"),
        (lambda: Searching(True), "component 'searching': top_k: expected a whole number >= 1, got True"),
        (lambda: Chunking("256"), "component 'chunking': size: expected a whole number >= 1, got '256'"),
        (lambda: Chunking(overlap=-1), "component 'chunking': overlap: expected a whole number >= 0, got -1"),
        (lambda: Synthesis("refin"), "mode: expected one of 'one-shot', 'tree', 'refine', got 'refin'"),
        (lambda: Synthesis(prompt=""), "component 'synthesis': prompt: expected a text, got ''"),
        (lambda: text("{question"), "component 'generation': prompt: expected '}' before end of string; write {{"),
        (lambda: text("{0}"), "component 'generation': prompt: {0} is not the name of a value"),
        (lambda: text("{question:>3}"), "prompt: {question} is not the name of a value"),
        (lambda: text(items="words"), "component 'generation': items: expected one of None, 'lines'"),
        (lambda: Embedding(batchable=1), "component 'embedding': batchable: expected True or False, got 1"),
        (lambda: Embedding(takes={"text": "x"}), "'embedding': takes: expected names for 'texts', got 'text'"),
        (lambda: Embedding(engine="my model"), "component 'embedding': engine: expected an identifier, got 'my model'"),
        (lambda: Operation("sing", "question", "x", engine="e"), "component 'sing_x': op: expected one of embedding, "),
        (lambda: Apply("f", "question", "x"), "component 'x': function: expected a function, got 'f'"),
        (lambda: Loop(text(), bool, "text", at_most=0), "'loop': at_most: expected a whole number >= 1 or None, got 0"),
        (lambda: text() >> 3, "a template is made of components, not of 3"),
        (lambda: App("x", [], {}), "a template is made of components, not of []"),
        (lambda: App("x", text(), engines(), outputs=["anser"]), "outputs: nothing gives 'anser', but question, text"),
        (lambda: Condition(None, "question", text()), "'condition': expected a function that says yes or no, got None"),
    ],
)  # fmt: skip
def test_components_that_make_no_sense(make: Any, message: str) -> None:
    with pytest.raises(GraphError) as caught:
        make()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llm": None}, "engines: llm: expected an Engine, an EngineConfig or the name of a registered one, got None"),
        ({"llm": "nobody"}, "engines: llm: there is no engine 'nobody'; registered are"),
        ({"llm": ProfileEmbedding(8, PAPER["embedding"])}, "of type ProfileEmbedding, does not understand 'decoding'"),
        ({"reranker": ...}, "reranking (test_templates.py:"),
        ({"reranker": ...}, "engine: there is no engine 'reranker'; there are llm, embedder, store"),
    ],
)
def test_engines_that_are_not_there_or_do_not_fit(changes: dict[str, object], message: str) -> None:
    given = {name: each for name, each in {**engines(), **changes}.items() if each is not ...}
    with pytest.raises(GraphError) as caught:
        App("x", Searching() >> Reranking() >> Synthesis(), given)
    assert message in str(caught.value)


def test_one_engine_for_one_declaration() -> None:
    config = register(EngineConfig("shared", "profile_llm", profile=PAPER_LLM["7b"]))
    try:
        apps = [App("x", text(engine="writer"), {"writer": given}) for given in (config, config, "shared")]
    finally:
        unregister("shared")
    assert len({id(app.engines["writer"]) for app in apps}) == 1
    other = App("x", text(engine="writer"), {"writer": replace(config, max_items=2)}).engines["writer"]
    assert other is not apps[0].engines["writer"]
    assert other.capabilities.max_items == 2


# --- options --------------------------------------------------------------------------------------------------------


def rag() -> App:
    return App("rag", INDEX >> QueryExpansion(3) >> Searching(4) >> Reranking(2) >> Synthesis(), engines())


def test_a_query_may_set_any_option() -> None:
    graph = rag().graph(
        chunk_size=99, num_queries=5, search_top_k=7, reranking_top_k=6, synthesis_mode="tree", answer_tokens=8,
        answer_prompt="{context} for {question}",
    )  # fmt: skip
    assert str(graph["chunks"]).count("99") == 1
    assert graph["queries"].setting("wanted") == 5
    assert graph["hits"].setting("top_k") == 7
    assert graph["answer"].setting("max_tokens") == graph["partial_answers"].setting("max_tokens") == 8
    assert graph["partial_answers_kv"].args[1].value == " for "  # type: ignore[union-attr]


def test_plans_are_kept_by_configuration() -> None:
    app = rag()
    assert app.configured({}) is app.configured({"chunk_size": 256}) is not app.configured({"chunk_size": 255})


def test_the_plans_that_were_asked_for_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(teola_plugin.templates.app, "KEPT", 2)
    app = rag()
    first, second = (app.configured({"chunk_size": size}) for size in (101, 102))
    assert app.configured({"chunk_size": 101}) is first
    app.configured({"chunk_size": 103})
    assert app.configured({"chunk_size": 101}) is first
    assert app.configured({"chunk_size": 102}) is not second


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"top_k": 3}, "top_k: several components have it; say which: searching_top_k, reranking_top_k"),
        ({"chunk_sise": 3}, "chunk_sise: no such input or option; did you mean 'chunk_size'?; there are"),
        ({"search_top_k": 0}, "component 'searching': top_k: expected a whole number >= 1, got 0"),
        ({"chunk_overlap": 300}, "component 'chunking': overlap: expected less than size=256, got 300"),
        ({"answer_prompt": "{contxt}"}, "component 'synthesis': takes: nothing gives 'contxt'"),
        ({"synthesis_mode": "poem"}, "component 'synthesis': mode: expected one of"),
    ],
)
def test_options_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=r"^app 'rag': ") as caught:
        rag().run(question="q", document="d", **given)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"question": "q"}, "document: a query has to bring it"),
        ({"question": "q", "document": "d", "documents": "x"}, "documents: no such input or option; did you mean"),
    ],
)
def test_inputs_that_do_not_fit(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError) as caught:
        rag().run(**given)
    assert message in str(caught.value)


def test_a_list_is_declared_and_must_be_one() -> None:
    app = App("x", Generation("{topics}", scope="topics"), engines(), inputs=["topics[]"])
    assert str(app.graph()).startswith("inputs(topics=[])")
    with pytest.raises(GraphError, match="topics: expected a list, got 'abc'"):
        app.run(topics="abc")
    with pytest.raises(GraphError, match=r"inputs: expected names such as 'topic' or 'claims\[\]', got 'a b'"):
        App("x", text(), engines(), inputs=["a b"])


def test_explain_shows_template_graphs_and_decisions() -> None:
    said = rag().explain(synthesis_mode="refine")
    assert "searching(queries or question) -> found @ embedder, store  [top_k=4]  searching (test_templates.py:" in said
    assert said.index("p-graph") < said.index("TR101 +") < said.index("e-graph") < said.index("= partial_decoding(")


# --- the paper's applications ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", APPS)
@pytest.mark.parametrize("mode", ["chain", "parallel"])
def test_the_paper_s_applications_hold_together(name: str, mode: str) -> None:
    app = APPS[name]
    graph = app.graph(mode)
    assert {i.name for i in graph.inputs} == set(app.inputs(3))
    assert {p.setting("fn") for p in graph} - {None} <= set(app.functions)
    assert {p.engine for p in graph} - {"", "python"} == set(app.engines)
    assert app.inputs(3) == app.inputs(3) != app.inputs(4)
    assert all(p.setting("max_tokens") for p in graph if p.kind == "decoding")
