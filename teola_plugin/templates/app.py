"""An application: a template with engines, on which queries run.

    rag = Chunking() >> Embedding() >> Ingestion() >> QueryExpansion(3) >> Searching(16) >> Reranking(3) >> Synthesis()
    app = App("advanced RAG", rag, {"llm": llm, "embedder": embedder, "store": store, "reranker": reranker})
    answer = app.run(question="...", document="...", chunk_size=512)

template --decompose--> p-graph --passes--> e-graph --planned--> plan         once per configuration, kept
query: plan + inputs --> requests --> engines shared with all other queries    each time

A query may set any option of any component: by an unambiguous name (`chunk_size`, or `top_k` if only one component has
the option), or with the component's name in front (`searching_top_k`). Source: arXiv 2407.00326, sections 3.2 and 4.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from teola_plugin import loops, runtime
from teola_plugin.engines import NOT_URGENT, EngineSpec, Urgency
from teola_plugin.errors import GraphError
from teola_plugin.graph import Graph
from teola_plugin.passes import DEFAULT, Context, Optimized, Pass, optimize_graph
from teola_plugin.passes.estimates import planned
from teola_plugin.plan import is_request
from teola_plugin.profile import LlmProfile, Profile
from teola_plugin.rounds import Rounds
from teola_plugin.runtime.hosts.local import LocalHost
from teola_plugin.runtime.session.graph_runner import run_query
from teola_plugin.runtime.session.plan_executor import Prepared, PreparedRounds
from teola_plugin.templates.decompose import Decomposed, decompose, labels_of
from teola_plugin.templates.describe import describe
from teola_plugin.templates.engines import check_op, engine_of, hint
from teola_plugin.templates.flow import Component, Step, as_step, components
from teola_plugin.templates.options import is_name
from teola_plugin.templates.streaming import writers_of
from teola_plugin.tenancy import Terms, current_terms
from teola_plugin.value_keys import configuration_key

KEPT = 128
"""The number of configurations whose plans are kept."""


@dataclass(frozen=True, slots=True)
class Configured:
    """The plan of one configuration of the options. `rounds`: the optimized rounds of loops, by their calls."""

    decomposed: Decomposed
    optimized: Optimized
    prepared: Prepared
    rounds: Mapping[str, Optimized]


class App:
    """An application; see the module.

    Threads and event loops may run queries at any time; all queries share the engines' batches.
    """

    def __init__(
        self, name: str, template: Step, engines: Mapping[str, object], *, inputs: Iterable[str] = (),
        outputs: Iterable[str] = (), passes: Iterable[Pass] = DEFAULT,
        profiles: Mapping[str, Profile | LlmProfile] | None = None, host: LocalHost | None = None,
    ) -> None:  # fmt: skip
        """Build the application. `engines`, by the components' names: an Engine, an EngineConfig or a registered name.

        `inputs`: names of values given with a query, besides `question` and `document`; a list as "claims[]".
        `outputs`: names of the values which make the answer, instead of the values of the last component. `passes`: the
        rewrites; with none, components run one after the other. `profiles`: latency profiles for the passes.

        Raises: GraphError naming component and field, for any fault of the template.
        """
        self.name = name
        self.template = as_step(template)
        self.inputs = dict(_declared(name, each) for each in inputs)
        self.passes = tuple(passes)
        self.engines = {key: engine_of(name, key, given) for key, given in engines.items()}
        self._outputs = tuple(outputs)
        self._profiles = dict(profiles or {})
        self._host = host or runtime.host
        try:
            self._labels = labels_of(self.template)
        except GraphError as e:
            raise GraphError(f"app {name!r}: {e}") from e
        self._components = {self._labels[id(c)]: c for c in components(self.template)}
        self._configured: OrderedDict[Any, Configured] = OrderedDict()
        self._configuring = threading.Lock()
        self._names = _option_names(self._components)
        self._usual = {i.name for i in self.configured({}).decomposed.graph.inputs}

    # --- queries -----------------------------------------------------------------------------------------------------

    def run(self, **given: Any) -> Any:
        """Run one query and return the answer; a mapping by name, if the template gives several values.

        `given`: the inputs and options, by name. A skipped value is None if alone, and left out of a mapping.

        Raises: GraphError for inputs or options which do not fit; an error of an engine or function, the same object;
        EngineLoopBlocked, see `loops`.
        """
        loops.check_may_wait()
        begun = self._begin(given)
        try:
            return begun.result()
        finally:
            begun.cancel()

    async def arun(self, **given: Any) -> Any:
        """`run` for a coroutine. Cancelling the coroutine cancels the query."""
        return await asyncio.wrap_future(self._begin(given))

    def stream(self, **given: Any) -> Iterator[str]:
        """Yield the text of the answer while it is written; leaving the iterator cancels the query.

        Raises: GraphError if the answer is not a single text of an LLM, such as a refine or a loop which chooses among
        several.
        """
        said: SimpleQueue[str | None] = SimpleQueue()
        begun = self._begin(given, said.put)
        begun.add_done_callback(lambda _: said.put(None))

        def pieces() -> Iterator[str]:
            try:
                loops.check_may_wait()
                while (piece := said.get()) is not None:
                    yield piece
                begun.result()
            finally:
                begun.cancel()

        return pieces()

    def astream(self, **given: Any) -> AsyncIterator[str]:
        """`stream` for a coroutine."""
        loop = asyncio.get_running_loop()
        said: asyncio.Queue[str | None] = asyncio.Queue()

        def tell(piece: str | None) -> None:
            loop.call_soon_threadsafe(said.put_nowait, piece)

        begun = self._begin(given, tell)
        begun.add_done_callback(lambda _: tell(None))

        async def pieces() -> AsyncIterator[str]:
            try:
                while (piece := await said.get()) is not None:
                    yield piece
                begun.result()
            finally:
                begun.cancel()

        return pieces()

    async def run_here(self, **given: Any) -> Any:
        """`run` on the host's own event loop, for example a virtual loop."""
        values, configured = self._split(given)
        return await self._answer(configured, values, current_terms())

    def _begin(self, given: Mapping[str, Any], tell: Callable[[str], None] | None = None) -> Any:
        values, configured = self._split(given)
        if tell is not None and not self._writers(configured):
            raise GraphError(f"app {self.name!r}: only an answer that an LLM writes as one text can be streamed")
        answer = self._answer(configured, values, current_terms(), tell)
        return asyncio.run_coroutine_threadsafe(answer, self._host.loop)

    async def _answer(
        self, configured: Configured, values: Mapping[str, Any], terms: Terms, tell: Callable[[str], None] | None = None
    ) -> Any:
        names = configured.decomposed.outputs
        streamed = self._writers(configured) if tell else ()
        self._host.admission.enter(terms, time.monotonic())
        try:
            found = await run_query(self._host, configured.prepared, values, terms=terms, streamed=streamed, tell=tell)
        finally:
            self._host.admission.leave(terms, time.monotonic())
        if len(names) == 1:
            return found.get(*names.values())
        return {name: found[p] for name, p in names.items() if p in found}

    def _writers(self, configured: Configured) -> tuple[str, ...]:
        names = list(configured.decomposed.outputs.values())
        return writers_of(configured.optimized.graph, names[0]) if len(names) == 1 else ()

    # --- configurations ----------------------------------------------------------------------------------------------

    def graph(self, **options: Any) -> Graph:
        """Return the p-graph, with order edges for the template's order of components."""
        return self.configured(options).decomposed.graph

    def explain(self, **options: Any) -> str:
        """Return the template, the p-graph, the decisions of the passes, and the e-graph as text."""
        configured = self.configured(options)
        graph, optimized, rounds = configured.decomposed.graph, configured.optimized, configured.rounds
        return describe(self.name, self.template, self._labels, graph, optimized, rounds)

    def configured(self, options: Mapping[str, Any]) -> Configured:
        """Return the plan under the options, made once per configuration. Raises: as `run`."""
        chosen = self._chosen(options)
        key = configuration_key(chosen)
        with self._configuring:
            if key in self._configured:
                self._configured.move_to_end(key)
                return self._configured[key]
        made = self._made(chosen)
        with self._configuring:
            made = self._configured.setdefault(key, made)
            while len(self._configured) > KEPT:
                self._configured.popitem(last=False)
        return made

    def _made(self, options: Mapping[str, Mapping[str, Any]]) -> Configured:
        try:
            decomposed = decompose(self.template, inputs=self.inputs, outputs=self._outputs, options=options)
        except GraphError as e:
            raise GraphError(f"app {self.name!r}: {e}") from e
        rounds: dict[str, Optimized] = {}
        optimized, prepared = self._prepared(decomposed, NOT_URGENT, rounds)
        return Configured(decomposed, optimized, prepared, rounds)

    def _prepared(
        self, made: Decomposed | Rounds, then: Urgency, rounds: dict[str, Optimized]
    ) -> tuple[Optimized, Prepared]:
        """Optimize and plan a graph.

        `then`: the work which follows the whole graph. `rounds` receives the optimized loops of the graph.
        """
        for p in made.graph:
            if p.kind.endswith("prefilling") or is_request(p):
                check_op(self.name, p, self.engines)
        context = self._context()
        optimized = optimize_graph(made.graph, self.passes, context)
        plan = planned(optimized.graph, context, then)
        specs = {name: EngineSpec("engine", engine, name) for name, engine in self.engines.items()}
        inner = {}
        for p in optimized.graph:
            fn = p.setting("fn")
            if (each := made.rounds.get(fn)) is not None:
                rounds[p.name], prepared = self._prepared(each, plan.remaining[p.name], rounds)
                inner[fn] = PreparedRounds(each, prepared)
        return optimized, Prepared(plan, made.functions, specs, streams_lists=True, rounds=inner)

    def _context(self) -> Context:
        profiles = {name: p for name, e in self.engines.items() if (p := getattr(e, "profile", None)) is not None}
        capabilities = {name: engine.capabilities for name, engine in self.engines.items()}
        return Context(
            {**profiles, **self._profiles}, capabilities, allow_early_stop=True, streams_lists=True,
        )  # fmt: skip

    def _chosen(self, given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        chosen = {
            label: {name: option.value for name, option in c.options.items()} for label, c in self._components.items()
        }
        for name, value in given.items():
            label, option = self._option(name)
            try:
                chosen[label][option] = self._components[label].check(option, value)
            except GraphError as e:
                raise GraphError(f"app {self.name!r}: {e}") from e
        return chosen

    def _option(self, name: str) -> tuple[str, str]:
        found = self._names.get(name, ())
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(f"{label}_{option}" for label, option in found)
            raise GraphError(f"app {self.name!r}: {name}: several components have it; say which: {several}")
        known = [*self._usual, *(n for n, where in self._names.items() if len(where) == 1)]
        raise GraphError(
            f"app {self.name!r}: {name}: no such input or option{hint(name, known)}; there are {', '.join(known)}"
        )

    def _split(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], Configured]:
        known = {*self._usual, *self.inputs}
        options = {name: value for name, value in given.items() if name in self._names and name not in known}
        configured = self.configured(options)
        inputs = {i.name: i for i in configured.decomposed.graph.inputs}
        values = {name: value for name, value in given.items() if name not in options}
        for name, value in values.items():
            if name not in inputs:
                self._option(name)
                raise GraphError(f"app {self.name!r}: {name}: nothing takes it in this configuration")
            if inputs[name].depth and not _is_list(value, inputs[name].depth):
                expected = "a list" if inputs[name].depth == 1 else f"a list {inputs[name].depth} deep"
                raise GraphError(f"app {self.name!r}: {name}: expected {expected}, got {value!r:.80}")
        if missing := [name for name in inputs if name not in values]:
            raise GraphError(f"app {self.name!r}: {', '.join(missing)}: a query has to bring it; no value was given")
        return values, configured


def _is_list(value: object, depth: int) -> bool:
    if depth == 0:
        return True
    return isinstance(value, Sequence) and not isinstance(value, str) and all(_is_list(v, depth - 1) for v in value)


def _declared(app: str, said: object) -> tuple[str, int]:
    """Return the name and the list depth of a declared input such as "claims[]"."""
    name, depth = str(said), 0
    while name.endswith("[]"):
        name, depth = name[:-2], depth + 1
    if not is_name(name):
        raise GraphError(f"app {app!r}: inputs: expected names such as 'topic' or 'claims[]', got {said!r}")
    return name, depth


def _option_names(all_components: Mapping[str, Component]) -> dict[str, list[tuple[str, str]]]:
    """Return the query names of options, each with component and option; an ambiguous name has several meanings."""
    names: dict[str, list[tuple[str, str]]] = {}
    for label, component in all_components.items():
        for option, about in component.options.items():
            for name in (option, *about.short):
                names.setdefault(name, []).append((label, option))
    for label, component in all_components.items():
        for option in component.options:
            names[f"{label}_{option}"] = [(label, option)]
    return names
