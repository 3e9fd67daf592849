"""`QueryPipeline`, part of llama-index-core until 0.13: a module runs ahead once the module's own inputs exist.

LlamaIndex runs the modules in waves (`arun`) or in sequence (`run`), and still does. Ahead of LlamaIndex's run, in the
order of the data, run the modules with only known models and stores, by their own code, with callbacks muted:

    question -> retriever a ----------------> prompt -> llm        waves: retriever b waits for neither, but the first
             -> prompt -> llm -> retriever b -^                    llm, in the wave of retriever a, keeps it waiting

LlamaIndex's own functions tell the inputs of a module. Some inputs depend on more than the links: a condition, an
optional key, two links to one key, a module without keys (run in the first wave despite links). Modules with such
inputs, or with possible effects, are left to LlamaIndex's run, and later modules go on from the values.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llama_index.core.schema import NodeWithScore

from teola_plugin.adapters.early import is_harmless
from teola_plugin.adapters.interception import around
from teola_plugin.adapters.leaf import is_stock, plain_class
from teola_plugin.adapters.llamaindex.draft import Draft
from teola_plugin.adapters.llamaindex.engines import add_engine
from teola_plugin.adapters.llamaindex.entries import Entry
from teola_plugin.adapters.llamaindex.known import is_plain_template
from teola_plugin.adapters.llamaindex.models import is_model, is_ours, spec_of
from teola_plugin.adapters.llamaindex.observers import is_awaited
from teola_plugin.adapters.llamaindex.parts import entered, part_of
from teola_plugin.adapters.llamaindex.postprocessors import add_postprocessor
from teola_plugin.adapters.llamaindex.reachable import (
    PIPELINES,
    asks_models_of_others,
    asks_outside,
    is_silent,
    reachable,
)
from teola_plugin.adapters.llamaindex.rehearsal import fresh, stand_in
from teola_plugin.adapters.llamaindex.retrievers import add_retriever
from teola_plugin.adapters.llamaindex.synthesizers import add_synthesizer
from teola_plugin.adapters.llamaindex.transforms import Query, add_transform
from teola_plugin.adapters.plain import is_plain
from teola_plugin.effects import declared_effects
from teola_plugin.engines import EngineSpec
from teola_plugin.graph import Ref
from teola_plugin.seams import current

if PIPELINES:
    from llama_index.core.base.base_query_engine import QueryEngineComponent  # type: ignore[attr-defined]
    from llama_index.core.base.base_retriever import RetrieverComponent  # type: ignore[attr-defined]
    from llama_index.core.base.query_pipeline.query import QueryComponent
    from llama_index.core.indices.query.query_transform.base import QueryTransformComponent  # type: ignore[attr-defined]
    from llama_index.core.llms.llm import LLMChatComponent, LLMCompleteComponent  # type: ignore[attr-defined]
    from llama_index.core.postprocessor.types import PostprocessorComponent  # type: ignore[attr-defined]
    from llama_index.core.prompts.base import PromptComponent  # type: ignore[attr-defined]
    from llama_index.core.query_pipeline import FnComponent, InputComponent, QueryPipeline
    from llama_index.core.query_pipeline.query import add_output_to_module_inputs, get_output
    from llama_index.core.response_synthesizers.base import SynthesizerComponent  # type: ignore[attr-defined]

Outputs = Mapping[str, Any]
"""The outputs of a module, by the keys of its links."""


def install() -> None:
    """Make pipelines report inputs, and modules report outputs. Idempotent."""
    if PIPELINES:
        _ENTERING.replace(QueryPipeline, "_run_multi", coroutines=["_arun_multi"])
        _TELLING.replace(QueryComponent, "run_component", coroutines=["arun_component"])


def add_query_pipeline(draft: Draft, pipeline: Any) -> tuple[str, ...]:
    """Add the modules of a pipeline; returns the names of the last modules' outputs."""
    draft.reading(pipeline)
    if not is_stock(pipeline, QueryPipeline):
        draft.leave("TB220", pipeline)
        return ()
    shape = _shape(pipeline)
    draft.rely_on_that(lambda: _shape(pipeline) == shape)
    draft.rely_on(*pipeline.module_dict.values())
    count = Counter(map(id, pipeline.module_dict.values()))
    names: dict[str, str | None] = {}
    for key in _in_order(pipeline):
        module, links = pipeline.module_dict[key], _links_to(pipeline, key)
        draft.reading(module)
        sources = [name for link in links if (name := names[link.source])]
        work = _work_of(draft, module) if _waits_for_links(draft, module, links) else None
        if work and len(sources) == len(links):
            taken = _taken(key, module, links)
            names[key] = _add_module(draft, _name(key, module), work, taken, *(sources or ["inputs"]))
        elif count[id(module)] == 1:
            names[key] = draft.await_run(_name(key, module), module, "run", *sources)
        else:
            draft.leave("TB107", module)
            names[key] = None
    return tuple(name for key in pipeline.get_leaf_keys() if (name := names[key]))


# --- links -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Link:
    """A link from one module to another."""

    source: str
    source_key: str | None
    key: str | None
    condition: Callable[..., Any] | None
    change: Callable[..., Any] | None


def _links_to(pipeline: Any, key: str) -> list[_Link]:
    edges = pipeline.dag.in_edges(key, data=True)
    return [_Link(source, a["src_key"], a["dest_key"], a["condition_fn"], a["input_fn"]) for source, _, a in edges]


def _in_order(pipeline: Any) -> list[str]:
    """Return the keys of the modules, each after all its sources; modules of a circle are left out."""
    waiting = list(pipeline.module_dict)
    ordered: list[str] = []
    while ready := [key for key in waiting if all(link.source in ordered for link in _links_to(pipeline, key))]:
        ordered += ready
        waiting = [key for key in waiting if key not in ready]
    return ordered


def _shape(pipeline: Any) -> Any:
    modules = [(key, id(module), module.partial_dict.keys()) for key, module in pipeline.module_dict.items()]
    return modules, [(source, end, tuple(a.values())) for source, end, a in pipeline.dag.edges(data=True)]


def _waits_for_links(draft: Draft, module: Any, links: list[_Link]) -> bool:
    """Whether a module runs exactly when all its links have brought a value, each for a separate key."""
    if not links:
        return True
    free = module.free_req_input_keys
    keys = [next(iter(free)) if link.key is None and len(free) == 1 else link.key for link in links]
    if sorted(map(str, keys)) != sorted(free) or any(link.condition for link in links):
        draft.leave("TB221", module)
        return False
    if not all(link.change is None or is_harmless(link.change) for link in links):
        draft.leave("TB101", module, "input_fn")
        return False
    return True


def _taken(key: str, module: Any, links: list[_Link]) -> Callable[..., dict[str, Any]]:
    """Return a function from the sources' values (or the pipeline's inputs) to the module's inputs."""

    def first(inputs: Mapping[str, Outputs]) -> dict[str, Any]:
        return dict(inputs[key])

    def linked(*values: Outputs) -> dict[str, Any]:
        taken: dict[str, Any] = {}
        for link, value in zip(links, values, strict=True):
            output = _own(get_output(link.source_key, value))
            if link.change is not None:
                output = link.change(output)
            add_output_to_module_inputs(link.key, output, module, taken)
        return taken

    return linked if links else first


def _own(value: Any) -> Any:
    """Return a copy of nodes and lists for a single module: modules may change their inputs."""
    if isinstance(value, list):
        is_of_nodes = all(isinstance(each, NodeWithScore) for each in value)
        return fresh(value) if is_of_nodes else list(value)
    return value


# --- modules ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Work:
    """The early run of a module. `asks`: by the module's own code. `engine`: the awaited engine, by name.

    `is_outside`: requests leave this process.
    """

    run: Callable[..., Any]
    asks: bool = False
    engine: tuple[str, EngineSpec] | None = None
    is_async: bool = False
    is_outside: bool = False


def _name(key: str, module: Any) -> str:
    """Return the module's key, unless invented by a chain; else a name by its class."""
    return key if key.isidentifier() else plain_class(module).__name__.removesuffix("Component").lower()


def _add_module(draft: Draft, name: str, work: _Work, taken: Callable[..., Any], *sources: str) -> str:
    if not work.asks:
        return draft.call(
            name, name, lambda *values: work.run(taken(*values)), *sources, is_rehearsal=True, may_raise=True
        )

    async def arun(*values: Any) -> Any:
        return await work.run(taken(*values))

    function = arun if work.is_async else lambda *values: work.run(taken(*values))
    return draft.run(
        name, name, function, *map(Ref, sources), engine=work.engine, is_async=work.is_async,
        is_outside=work.is_outside,
    )  # fmt: skip


def _work_of(draft: Draft, module: Any) -> _Work | None:
    """Return the early run of a module, None if left to the module's own run."""
    if is_stock(module, InputComponent):
        return _Work(lambda taken: module._run_component(**taken))
    if is_stock(module, PromptComponent):
        return _prompted(draft, module)
    if is_stock(module, FnComponent):
        return _called(draft, module)
    if is_stock(module, LLMChatComponent) or is_stock(module, LLMCompleteComponent):
        return _generated(draft, module)
    return _asked(draft, module)


def _prompted(draft: Draft, module: Any) -> _Work | None:
    if module.llm is not None and not is_model(module.llm):
        draft.leave("TB208", module, type(module.llm).__name__)
        return None
    if not is_plain_template(module.prompt):
        draft.leave("TB212", module)
        return None
    return _Work(lambda taken: stand_in(module).run_component(**taken))


def _called(draft: Draft, module: Any) -> _Work | None:
    if draft.is_async and module.async_fn is not None:
        draft.leave("TB101", module, "async_fn")
        return None
    effects = declared_effects(module.fn)
    if effects is None or not effects.pure or effects.reads:
        draft.leave("TB101", module, effects.why if effects else "")
        return None
    return _Work(lambda taken: module.run_component(**taken))


def _generated(draft: Draft, module: Any) -> _Work | None:
    if not is_model(module.llm):
        draft.leave("TB208", module, type(module.llm).__name__)
        return None
    if is_ours(module.llm):
        return _by_itself(draft, module, ("llm", module.llm.spec))
    if module.streaming:
        draft.leave("TB210", module)
        return None
    return _by_itself(draft, module, ("llm", spec_of(module.llm)))


def _asked(draft: Draft, module: Any) -> _Work | None:
    inner = Draft(is_async=draft.is_async)
    if _read(inner, module) and inner.is_whole and all(map(is_silent, reachable(module))):
        return _by_itself(draft, module, next(iter(inner.engines.items()), None))
    draft.leave("TB220", module)
    return None


def _read(draft: Draft, module: Any) -> object:
    """Return a true value if the module is stock and its parts can be read."""
    if is_stock(module, RetrieverComponent):
        return add_retriever(draft, module.retriever, Query())
    if is_stock(module, SynthesizerComponent):
        return add_synthesizer(draft, module.synthesizer, "nodes", "question")
    if is_stock(module, PostprocessorComponent):
        return add_postprocessor(draft, module.postprocessor, "nodes", "query")
    if is_stock(module, QueryEngineComponent):
        return add_engine(draft, module.query_engine, Query())
    if is_stock(module, QueryTransformComponent):
        return add_transform(draft, module.query_transform, {}, Query())
    if is_stock(module, QueryPipeline) and not module.show_progress:
        return add_query_pipeline(draft, module)
    return None


def _by_itself(draft: Draft, module: Any, engine: tuple[str, EngineSpec] | None) -> _Work:
    """Return the module's own run. A coroutine's run needs the caller's loop only if clients of models live there."""
    draft.run_ahead(*reachable(module))
    is_outside = asks_outside(module)
    if not draft.is_async:
        return _Work(lambda taken: module.run_component(**taken), True, engine, is_outside=is_outside)
    if asks_models_of_others(module):
        return _Work(lambda taken: module.arun_component(**taken), True, engine, True, is_outside)
    return _Work(lambda taken: asyncio.run(module.arun_component(**taken)), True, engine, is_outside=is_outside)


# --- what is told ----------------------------------------------------------------------------------------------------


def _entry(inputs: Any, *, is_async: bool) -> Entry:
    """Return the entry; without inputs if they are not plain data, so nothing runs ahead."""
    is_known = isinstance(inputs, Mapping) and is_plain(inputs)
    return Entry(None, is_async, modules=inputs if is_known else None)


@contextlib.contextmanager
def _entering(pipeline: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_async: bool) -> Iterator[None]:
    if (part := part_of(pipeline)) is None:
        yield
        return
    inputs = args[0] if args else kwargs.get("module_input_dict")
    with entered(part, _entry(inputs, is_async=is_async)):
        yield


@contextlib.contextmanager
def _telling(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], is_async: bool
) -> Iterator[Callable[[Any], Any]]:
    yield partial(_told, module)


_ENTERING, _TELLING = around(_entering), around(_telling)


def _told(module: object, outputs: Any) -> Any:
    session = current() if is_awaited(module) else None
    if session and isinstance(outputs, dict) and is_plain(outputs):
        session.observe(module, {key: _own(value) for key, value in outputs.items()})
    return outputs
