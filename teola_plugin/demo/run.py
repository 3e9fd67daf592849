"""The comparisons of the demo: applications x frameworks x ways of calling, on one set of engines."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rich.console import Console

from teola_plugin.api import optimize
from teola_plugin.comparison import Comparison, compare
from teola_plugin.demo.corpus import QUESTIONS, document, passages
from teola_plugin.demo.parts import Parts, Sizes, llm_parts
from teola_plugin.demo.table import results_table
from teola_plugin.errors import EngineUnavailable
from teola_plugin.runtime.hosts.ray.cluster import connect
from teola_plugin.screen import progress_bar

NOISE = (
    "The default model is tiny and has random weights: its words are noise. What is shown is that both pipelines give"
    " the same noise, and how long it takes them."
)
FORMS = {"langchain": ("invoke", "ainvoke", "stream"), "llamaindex": ("query", "aquery", "stream")}


@dataclass(frozen=True, slots=True)
class Choice:
    """The options of the command."""

    frameworks: Sequence[str]
    apps: Sequence[str]
    engines: str
    model: str | None
    repeats: int
    passages: int
    html: Path | None = None
    runtime: Literal["local", "ray"] = "local"


@dataclass(frozen=True, slots=True)
class Case:
    """One row: a pipeline, the form of the call, and the input."""

    name: str
    pipeline: Any
    form: str
    inputs: Sequence[Any]
    with_async: Any = None
    """The same pipeline with the framework's own switch for concurrency, if it has one."""


class Kit(Protocol):
    """A framework's models and store, and the pipelines made from them."""

    parts: Parts

    def pipeline(self, app: str, *, streaming: bool = False, use_async: bool = False) -> Any: ...


def run_demo(choice: Choice, console: Console) -> bool:
    """Print the times of both pipelines. Returns whether nothing differs."""
    if choice.engines == "real" and choice.model is None:
        console.print(NOISE)
    rows: list[tuple[str, Comparison]] = []
    with progress_bar(console) as progress:
        task = progress.add_task("starting the LLM engine", total=None)
        if choice.runtime == "ray":
            progress.update(task, description="connecting to Ray")
            connect()
            progress.update(task, description="starting the LLM engine on Ray")
        parts = llm_parts(choice.engines, choice.model, runtime=choice.runtime)
        progress.update(task, description="reading the standard library")
        sizes = Sizes(passages(choice.passages))
        cases: list[Case] = []
        for framework in choice.frameworks:
            progress.update(task, description=f"storing {len(sizes.passages)} passages ({framework})")
            cases += cases_of(framework, choice.apps, kit_for(framework, parts, sizes), sizes)
        for case in cases:
            progress.update(task, description=case.name, completed=0, total=None)
            rows.append((case.name, _compared(case, choice, lambda d, t: progress.update(task, completed=d, total=t))))
    console.print(results_table(rows))
    _print_details(console, rows)
    if choice.html:
        _write_pages(choice.html, rows)
        console.print(f"pages: {choice.html}", highlight=False)
    return all(c.equal for _, c in rows)


def _compared(case: Case, choice: Choice, progress: Any) -> Comparison:
    faster = optimize(case.pipeline, runtime=choice.runtime)
    return compare(
        case.pipeline, case.inputs, optimized=faster, repeats=choice.repeats, mode=case.form, progress=progress
    )


def cases_of(framework: str, apps: Sequence[str], kit: Kit, sizes: Sizes) -> Iterator[Case]:
    """Yield the pipelines of a framework, each called in all forms on a question."""
    question = QUESTIONS[0]
    for app, form in itertools.product(apps, FORMS[framework]):
        name = f"{framework} {app} {form}"
        streaming = form == "stream"
        if framework == "langchain":
            given = {"question": question}
            if app == "advanced":
                given["document"] = document(sizes.document_passages)
            yield Case(name, kit.pipeline(app, streaming=streaming), form, [given])
        else:
            pipeline, concurrent = (kit.pipeline(app, streaming=streaming, use_async=u) for u in (False, True))
            yield Case(name, pipeline, "query" if streaming else form, [question], concurrent)


def kit_for(framework: str, parts: Parts, sizes: Sizes, *, collection: str = "stdlib") -> Kit:
    """Return the models and the store of one framework; the named collection is made anew."""
    try:
        if framework == "langchain":
            from teola_plugin.demo.langchain_kit import LangChainKit

            return LangChainKit(parts, sizes, collection)
        from teola_plugin.demo.llamaindex_kit import LlamaIndexKit

        return LlamaIndexKit(parts, sizes, f"{collection}_nodes")
    except ModuleNotFoundError as e:
        extras = f"{framework},chroma,embeddings,dev"
        raise EngineUnavailable(
            f"the demo in {framework} needs the package {e.name}: install teola-plugin[{extras}]"
        ) from e


def _print_details(console: Console, rows: Sequence[tuple[str, Comparison]]) -> None:
    for name, c in rows:
        for line in [*c.differences[:5], *c.tree_differences[:5], *c.fallbacks[:3]]:
            console.print(f"{name}: {line}", style="red", markup=False, highlight=False)
    if all(c.equal for _, c in rows):
        console.print("All answers and all callback trees are equal.", style="green")


def _write_pages(folder: Path, rows: Sequence[tuple[str, Comparison]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, c in rows:
        c.to_html(folder / f"{name.replace(' ', '-')}.html")
