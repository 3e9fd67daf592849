"""Original against optimized `QueryPipeline`, which llama-index-core had until 0.13: `make llamaindex`.

Modules run ahead in the order of the data; values, exceptions, events and what is left in the user's objects are those
of LlamaIndex's own loop, its quirks among them.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.indices.query.query_transform import HyDEQueryTransform
from llama_index.core.postprocessor import SimilarityPostprocessor
from llama_index.core.prompts import PromptTemplate
from llama_index.core.response_synthesizers import get_response_synthesizer

from teola_plugin import optimize, pure
from teola_plugin.api import optimized
from teola_plugin.engines import Batch, Emit
from teola_plugin.models.llamaindex import EngineLLM
from tests.adapters.llamaindex.test_llamaindex_models import Server
from tests.support.fakes import FakeEngine
from tests.support.llamaindex_comparing import Stage, same
from tests.support.llamaindex_parts import chroma_retriever, fusion, rag
from tests.support.llamaindex_world import QUESTION, answer, apart

query_pipeline = pytest.importorskip("llama_index.core.query_pipeline", reason="llama-index-core >= 0.13")
ArgPackComponent, CustomQueryComponent, FnComponent, InputComponent, QueryPipeline = (
    getattr(query_pipeline, name)
    for name in ("ArgPackComponent", "CustomQueryComponent", "FnComponent", "InputComponent", "QueryPipeline")
)

ONE_END = ("run", "arun", "run_with_intermediates", "arun_with_intermediates")
FORMS = (
    *ONE_END, "run_multi", "arun_multi", "run_multi_with_intermediates", "arun_multi_with_intermediates",
)  # fmt: skip


# --- pipelines --------------------------------------------------------------------------------------------------------


def of(modules: dict[str, Any], *links: Any) -> Any:
    """A link is (source, destination), and what `add_link` takes besides."""
    pipeline = QueryPipeline(modules=modules)
    for source, end, *settings in links:
        pipeline.add_link(source, end, **(settings[0] if settings else {}))
    return pipeline


def keys(source: str | None, end: str | None = None, **more: Any) -> dict[str, Any]:
    return {"src_key": source, "dest_key": end, **more}


def chain(stage: Stage) -> Any:
    return QueryPipeline(chain=[PromptTemplate("Rewrite: {input}"), stage.engines.model, chroma_retriever(stage)])


def two_branches(stage: Stage) -> Any:
    """`b` waits for `first`, which LlamaIndex runs in the same wave as `a`, and `last` for both."""
    model = stage.engines.model
    modules = {
        "input": InputComponent(), "rewrite": PromptTemplate("Rewrite: {input}"), "first": model,
        "a": chroma_retriever(stage), "b": chroma_retriever(stage), "joined": FnComponent(fn=joined),
        "prompt": PromptTemplate("Of {found}: {input}"), "last": model,
    }  # fmt: skip
    return of(
        modules, ("input", "rewrite", keys("input", "input")), ("rewrite", "first"), ("first", "b"),
        ("input", "a", keys("input")), ("a", "joined", keys(None, "one")), ("b", "joined", keys(None, "other")),
        ("joined", "prompt", keys(None, "found")), ("input", "prompt", keys("input", "input")), ("prompt", "last"),
    )  # fmt: skip


@pure
def joined(one: Any, other: Any) -> str:
    return f"{len(one)} and {len(other)} notes"


def fan(stage: Stage, count: int = 3) -> Any:
    """Several questions to one model at once, told to a function that takes them all."""
    modules: dict[str, Any] = {"input": InputComponent()}
    links: list[Any] = []
    for i in range(count):
        modules |= {f"prompt{i}": PromptTemplate(f"{i}: {{input}}"), f"llm{i}": stage.engines.model}
        links += [("input", f"prompt{i}", keys("input")), (f"prompt{i}", f"llm{i}")]
        links += [(f"llm{i}", "all", keys(None, f"text{i}"))]
    return of({**modules, "all": FnComponent(fn=together)}, *links)


def together(text0: Any, text1: Any, text2: Any) -> str:
    return "|".join([str(text0), str(text1), str(text2)])


def rag_of_parts(stage: Stage) -> Any:
    modules = {
        "input": InputComponent(), "retriever": fusion(stage), "near": SimilarityPostprocessor(similarity_cutoff=-1.0),
        "rerank": stage.engines.rerank, "writer": stage.engines.model, "prompt": PromptTemplate("Guess: {input}"),
        "synthesizer": get_response_synthesizer(llm=stage.engines.model, response_mode="accumulate"),
        "last": PromptTemplate("{guess} or {answer}"),
    }  # fmt: skip
    return of(
        modules, ("input", "retriever", keys("input")), ("retriever", "near"),
        ("near", "rerank", keys("nodes", "nodes")), ("input", "synthesizer", keys("input", "query_str")),
        ("rerank", "synthesizer", keys("nodes", "nodes")), ("input", "prompt", keys("input")), ("prompt", "writer"),
        ("writer", "last", keys(None, "guess")), ("synthesizer", "last", keys(None, "answer")),
    )  # fmt: skip


def engines_and_transforms(stage: Stage) -> Any:
    modules = {
        "input": InputComponent(), "engine": rag(stage), "hyde": HyDEQueryTransform(llm=stage.engines.model),
        "retriever": chroma_retriever(stage), "count": FnComponent(fn=len), "last": PromptTemplate("{answer}: {count}"),
    }  # fmt: skip
    modules["count"] = FnComponent(fn=counted)
    return of(
        modules, ("input", "engine", keys("input")), ("input", "hyde", keys("input", "query_str")),
        ("hyde", "retriever"), ("retriever", "count"), ("engine", "last", keys(None, "answer")),
        ("count", "last", keys(None, "count")),
    )  # fmt: skip


def counted(nodes: Any) -> int:
    return len(nodes)


def nested(stage: Stage) -> Any:
    inner = QueryPipeline(chain=[PromptTemplate("Inner: {input}"), stage.engines.model])
    return fan_of(stage, inner)


def fan_of(stage: Stage, module: Any) -> Any:
    """`module` beside a prompt and a model, and what both say."""
    modules = {
        "input": InputComponent(), "module": module, "prompt": PromptTemplate("Beside: {input}"),
        "llm": stage.engines.model, "both": PromptTemplate("{one} {other}"), "last": stage.engines.model,
    }  # fmt: skip
    return of(
        modules, ("input", "module", keys("input")), ("input", "prompt", keys("input")), ("prompt", "llm"),
        ("module", "both", keys(None, "one")), ("llm", "both", keys(None, "other")), ("both", "last"),
    )  # fmt: skip


def noted(stage: Stage) -> Any:
    """A function with an effect, between modules that have none."""

    def note(text: Any) -> str:
        stage.heard.append(str(text))
        return f"noted {text}"

    return fan_of(stage, FnComponent(fn=note))


def custom(stage: Stage) -> Any:
    class Custom(CustomQueryComponent):  # type: ignore[misc, valid-type]
        @property
        def _input_keys(self) -> set[str]:
            return {"text"}

        @property
        def _output_keys(self) -> set[str]:
            return {"text"}

        def _run_component(self, **kwargs: Any) -> dict[str, Any]:
            stage.heard.append(kwargs["text"])
            return {"text": f"custom {kwargs['text']}"}

        async def _arun_component(self, **kwargs: Any) -> dict[str, Any]:
            return self._run_component(**kwargs)

    return fan_of(stage, Custom())


def partial(stage: Stage) -> Any:
    pipeline = fan_of(stage, PromptTemplate("{tone}: {input}"))
    pipeline.module_dict["module"].partial(tone="kindly")
    return pipeline


def changed(stage: Stage) -> Any:
    """Links that change what they carry, purely or not."""

    def heard(value: Any) -> Any:
        stage.heard.append(value)
        return f"{value}?"

    model = stage.engines.model
    modules = {
        "input": InputComponent(), "a": PromptTemplate("A {x}"), "b": PromptTemplate("B {x}"), "llm_a": model,
        "llm_b": model, "last": PromptTemplate("{a} {b}"),
    }  # fmt: skip
    return of(
        modules, ("input", "a", keys("input", "x", input_fn=lambda x: x + "!")),
        ("input", "b", keys("input", "x", input_fn=heard)), ("a", "llm_a"), ("b", "llm_b"),
        ("llm_a", "last", keys(None, "a")), ("llm_b", "last", keys(None, "b")),
    )  # fmt: skip


PIPELINES = (chain, two_branches, fan, rag_of_parts, engines_and_transforms, nested, noted, custom, partial, changed)


def calling(form: str, question: Any = QUESTION, **more: Any) -> Callable[[Any], Any]:
    """Call an entry method with one input."""

    def act(pipeline: Any) -> Any:
        if "multi" not in form:
            return getattr(pipeline, form)(input=question, **more)
        (root,) = pipeline.get_root_keys()
        return getattr(pipeline, form)({root: {"input": question}}, **more)

    return act


def told(stage: Stage, build: Callable[[Stage], Any]) -> Any:
    pipeline = build(stage)
    pipeline.callback_manager = stage.callback_manager
    return pipeline


# --- the same ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("build", PIPELINES)
def test_all_shapes(build: Callable[[Stage], Any], form: str) -> None:
    same(
        lambda stage: told(stage, build), calling(form), exact=not form.startswith("a"), is_chat_model=form in ONE_END
    )  # fmt: skip


@pytest.mark.parametrize("form", ["run", "arun", "run_multi", "arun_multi"])
@pytest.mark.parametrize("build", [chain, two_branches, fan])
def test_batches(build: Callable[[Stage], Any], form: str) -> None:
    same(lambda stage: told(stage, build), calling(form, [QUESTION, "And the hives?", ""], batch=True), exact=False)


@pytest.mark.parametrize("form", ["run", "arun"])
@pytest.mark.parametrize("is_chat_model", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
def test_streams(form: str, is_chat_model: bool, is_last: bool) -> None:
    """A stream is what comes out, or a prompt that is made of it."""

    def build(stage: Stage) -> Any:
        pipeline = two_branches(stage)
        pipeline.module_dict["last" if is_last else "first"].streaming = True
        return told(stage, lambda _: pipeline)

    async def aread(asked: Any) -> Any:
        value = await asked
        return [piece async for piece in value] if hasattr(value, "__aiter__") else value

    def act(pipeline: Any) -> Any:
        asked = calling(form)(pipeline)
        if form == "arun":
            return aread(asked)
        return [*asked] if hasattr(asked, "__next__") else asked

    same(build, act, exact=False, is_chat_model=is_chat_model)


# --- quirks -----------------------------------------------------------------------------------------------------------


def packed(stage: Stage) -> Any:
    """A module without keys of its own runs in the first wave, whatever is linked to it."""
    model = stage.engines.model
    modules = {
        "input": InputComponent(), "a": PromptTemplate("A {x}"), "b": PromptTemplate("B {x}"), "llm_a": model,
        "llm_b": model, "pack": ArgPackComponent(),
    }  # fmt: skip
    return of(
        modules, ("input", "a", keys("input")), ("input", "b", keys("input")), ("a", "llm_a"), ("b", "llm_b"),
        ("llm_a", "pack", keys(None, "0")), ("llm_b", "pack", keys(None, "1")),
    )  # fmt: skip


def optional(stage: Stage) -> Any:
    """`run` has the optional text in time, `arun` goes on without it."""
    modules = {
        "input": InputComponent(), "a": FnComponent(fn=lambda text: f"a({text})"),
        "last": FnComponent(fn=lambda question, more="default": f"{question} {more}"), "llm": stage.engines.model,
    }  # fmt: skip
    return of(
        modules, ("input", "a", keys("input")), ("input", "last", keys("input", "question")),
        ("a", "last", keys(None, "more")), ("last", "llm"),
    )  # fmt: skip


def conditional(stage: Stage, holds: bool = False) -> Any:
    """What comes last becomes an output, where a condition cuts off what is behind it."""

    def condition(value: Any) -> bool:
        stage.heard.append(str(value))
        return holds

    modules = {
        "input": InputComponent(), "prompt": PromptTemplate("A {x}"), "llm": stage.engines.model,
        "behind": PromptTemplate("Behind {x}"), "last": stage.engines.model,
    }  # fmt: skip
    return of(
        modules, ("input", "prompt", keys("input")), ("prompt", "llm"), ("llm", "behind", {"condition_fn": condition}),
        ("behind", "last"),
    )  # fmt: skip


def two_links_to_one_key(stage: Stage) -> Any:
    pipeline = two_branches(stage)
    pipeline.add_link("first", "prompt", dest_key="input")
    return pipeline


def twice(stage: Stage) -> Any:
    """One module under two keys."""

    def note(text: Any) -> str:
        stage.heard.append(str(text))
        return f"noted {text}"

    module = FnComponent(fn=note)
    modules = {
        "input": InputComponent(), "a": module, "b": module, "prompt": PromptTemplate("{x} {y}"),
        "llm": stage.engines.model,
    }  # fmt: skip
    return of(
        modules, ("input", "a", keys("input")), ("input", "b", keys("input")), ("a", "prompt", keys(None, "x")),
        ("b", "prompt", keys(None, "y")), ("prompt", "llm"),
    )  # fmt: skip


QUIRKS = (packed, optional, conditional, two_links_to_one_key, twice)


@pytest.mark.parametrize("form", ["run", "arun", "run_with_intermediates", "arun_with_intermediates", "arun_multi"])
@pytest.mark.parametrize("build", [*QUIRKS, lambda stage: conditional(stage, True)])
def test_quirks(build: Callable[[Stage], Any], form: str) -> None:
    same(lambda stage: told(stage, build), calling(form), exact=not form.startswith("a"))


def test_the_quirks_are_there() -> None:
    def value(build: Callable[[Stage], Any], form: str, pick: str | None = None) -> Any:
        act = calling(form)
        outcome = apart(act, build(Stage())) if not form.startswith("a") else apart(_run, act, build(Stage()))
        return outcome[pick] if pick else outcome

    assert value(packed, "run_multi", "pack") == value(packed, "arun_multi", "pack") == {"output": []}
    assert str(value(optional, "run")) != str(value(optional, "arun"))
    assert str(value(conditional, "run")).startswith("assistant: ")


def _run(act: Callable[[Any], Any], pipeline: Any) -> Any:
    async def run() -> Any:
        return await act(pipeline)

    return asyncio.run(run())


def breaks_of(build: Callable[[Stage], Any]) -> list[str]:
    return sorted({b.code for b in optimized(optimize(build(Stage()))).traced.breaks})


def test_what_is_left_to_the_stock_loop() -> None:
    assert breaks_of(two_branches) == breaks_of(nested) == breaks_of(partial) == []
    assert breaks_of(noted) == ["TB101"]
    assert breaks_of(changed) == ["TB101"]
    assert breaks_of(custom) == ["TB220"]
    assert breaks_of(packed) == breaks_of(conditional) == ["TB221"]
    assert breaks_of(optional) == ["TB101", "TB221"]
    assert breaks_of(two_links_to_one_key) == ["TB221"]
    assert breaks_of(twice) == ["TB101", "TB107"]


# --- failures ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["run", "arun"])
@pytest.mark.parametrize("build", [chain, two_branches, fan])
def test_a_model_that_fails(build: Callable[[Stage], Any], form: str) -> None:
    def failing(stage: Stage) -> Any:
        really = stage.engines.llm.answer

        def answer(prompt: str) -> Any:
            if "Of " in prompt or "Rewrite" in prompt or "2: " in prompt:
                raise ValueError(f"no answer to {prompt}")
            return really(prompt)

        stage.engines.llm.answer = answer
        return told(stage, build)

    same(failing, calling(form), exact=form == "run")


@pytest.mark.parametrize(
    "act",
    [
        lambda pipeline: pipeline.run(),
        lambda pipeline: pipeline.run("one", "two"),
        lambda pipeline: pipeline.run(QUESTION),
        lambda pipeline: pipeline.run(input=QUESTION, other="more"),
        lambda pipeline: pipeline.run(input=[1, 2]),
        lambda pipeline: pipeline.run(input=iter(["once"])),
        lambda pipeline: pipeline.run_multi({"nobody": {"input": QUESTION}}),
        lambda pipeline: pipeline.run_multi({}),
        lambda pipeline: pipeline.run(input=ChatMessage(role="user", content=QUESTION)),
    ],
)
@pytest.mark.parametrize("build", [chain, two_branches])
def test_inputs_of_all_kinds(build: Callable[[Stage], Any], act: Callable[[Any], Any]) -> None:
    same(lambda stage: told(stage, build), act)


def test_a_pipeline_that_is_changed_later() -> None:
    def change(pipeline: Any) -> None:
        pipeline.add("more", PromptTemplate("More: {x}"))
        pipeline.add_link("last", "more")

    same(lambda stage: told(stage, two_branches), calling("run"), change=change)


# --- running ahead ----------------------------------------------------------------------------------------------------


class Gated(FakeEngine):
    """Answers a prompt with `waiting` in it only after one with `awaited` was asked for, by whoever."""

    def __init__(self, waiting: str, awaited: str) -> None:
        super().__init__(answer, name="llm", concurrent=True)
        self._waiting, self._awaited = waiting, awaited

    async def run(self, batch: Batch, emit: Emit) -> None:
        prompts = [item.payload for item in batch.items]
        self.batches.append(batch)
        if any(self._waiting in prompt for prompt in prompts):
            async with asyncio.timeout(10):
                while not any(self._awaited in prompt for prompt in self.seen):  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
        await super().run(batch, emit)


def gated(waiting: str, awaited: str) -> Stage:
    stage = Stage()
    stage.engines.model = EngineLLM(engine=Gated(waiting, awaited))
    return stage


@pytest.mark.parametrize("form", ["run", "arun", "batch"])
def test_models_beside_each_other_are_asked_at_once(form: str) -> None:
    """LlamaIndex itself asks the second model once the first has answered, in `run`."""
    stage = gated("0: ", "2: ")
    twin = optimize(fan(stage))
    if form == "arun":
        apart(_run, calling("arun"), twin)
    elif form == "run":
        apart(calling("run"), twin)
    else:
        apart(calling("run", [QUESTION], batch=True), twin)


@pytest.mark.parametrize("form", ["run", "arun"])
def test_a_module_runs_ahead_of_the_wave_before_it(form: str) -> None:
    """Two branches of two models each: the second of one branch need not wait for the first of the other."""
    stage = gated("Slow", "Second")
    model = stage.engines.model
    modules: dict[str, Any] = {"input": InputComponent(), "last": PromptTemplate("{slow} {end}")}
    modules |= {"slow_prompt": PromptTemplate("Slow {x}"), "slow": model, "prompt": PromptTemplate("First {x}")}
    modules |= {"first": model, "then": PromptTemplate("Second {x}"), "end": model}
    pipeline = of(
        modules, ("input", "slow_prompt", keys("input")), ("slow_prompt", "slow"), ("input", "prompt", keys("input")),
        ("prompt", "first"), ("first", "then"), ("then", "end"), ("slow", "last", keys(None, "slow")),
        ("end", "last", keys(None, "end")),
    )  # fmt: skip
    twin = optimize(pipeline)
    assert apart(calling("run"), twin) if form == "run" else apart(_run, calling("arun"), twin)
    assert optimized(twin).reports[-1].wasted == 0


@pytest.mark.parametrize("form", ["run", "arun"])
def test_what_is_behind_a_function_with_effects_goes_on_from_its_value(form: str) -> None:
    stage = gated("Slow", "Second noted")

    def note(text: Any) -> str:
        stage.heard.append(str(text))
        return f"noted {text}"

    modules = {
        "input": InputComponent(), "note": FnComponent(fn=note), "slow_prompt": PromptTemplate("Slow {x}"),
        "slow": stage.engines.model, "then": PromptTemplate("Then {x}"), "end": stage.engines.model,
        "more": PromptTemplate("Second {x}"), "last": stage.engines.model, "both": PromptTemplate("{a} {b} {c}"),
    }  # fmt: skip
    pipeline = of(
        modules, ("input", "note", keys("input")), ("input", "slow_prompt", keys("input")), ("slow_prompt", "slow"),
        ("note", "then"), ("then", "end"), ("note", "more"), ("more", "last"), ("slow", "both", keys(None, "a")),
        ("end", "both", keys(None, "b")), ("last", "both", keys(None, "c")),
    )  # fmt: skip
    twin = optimize(pipeline)
    assert apart(calling("run"), twin) if form == "run" else apart(_run, calling("arun"), twin)
    assert len(stage.heard) == 1


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_chat_model", [True, False])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_servers_model_is_asked_no_more(is_async: bool, is_chat_model: bool, streaming: bool) -> None:
    outcomes, bodies = [], []
    for is_optimized in (False, True):
        server, stage = Server(), Stage()
        stage.engines.model = server.model(is_chat_model=is_chat_model)
        pipeline = fan_of(stage, PromptTemplate("Beside: {x}"))
        pipeline.module_dict["llm"].streaming = streaming
        pipeline = optimize(pipeline) if is_optimized else pipeline
        outcomes.append(_outcome(pipeline, is_async))
        bodies.append(sorted(map(str, server.asked)))
    assert outcomes[1] == outcomes[0]
    assert bodies[1] == bodies[0]


def _outcome(pipeline: Any, is_async: bool) -> Any:
    try:
        return apart(_run, calling("arun"), pipeline) if is_async else apart(calling("run"), pipeline)
    except Exception as e:
        return type(e)


# --- the twin ---------------------------------------------------------------------------------------------------------


def test_the_twin_is_a_pipeline_and_shares_the_state() -> None:
    pipeline = two_branches(Stage())
    twin = optimize(pipeline)
    assert type(twin).__mro__[1] is type(pipeline)
    assert isinstance(twin, QueryPipeline)
    assert twin.module_dict is pipeline.module_dict
    assert twin.dag is pipeline.dag


def test_nobody_is_warned_of_the_class_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = two_branches(Stage())
    warned: list[Any] = []
    monkeypatch.setattr(warnings, "warn", lambda *args, **kwargs: warned.append(args))
    assert optimize(pipeline) is not pipeline
    assert warned == []


def test_a_declared_function_takes_what_is_no_plain_data() -> None:
    @pure
    def told_of(value: Any) -> str:
        return type(value).__name__

    stage = Stage()
    pipeline = fan_of(stage, FnComponent(fn=told_of))
    twin = optimize(pipeline)
    assert breaks_of(lambda stage: fan_of(stage, FnComponent(fn=told_of))) == []
    assert str(apart(calling("run"), twin)) == str(apart(calling("run"), pipeline))


def test_a_pipeline_of_prompts_has_nothing_to_run_ahead() -> None:
    pipeline = QueryPipeline(chain=[PromptTemplate("A {x}"), PromptTemplate("B {x}")])
    assert optimize(pipeline) is pipeline
