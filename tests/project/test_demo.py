"""The demo's pipelines: original and optimized give the same answers and callback trees, on real engines too."""

from __future__ import annotations

import asyncio
import io
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from teola_plugin.calling import Caller
from teola_plugin.cli import app
from teola_plugin.comparison import Comparison, compare
from teola_plugin.demo.corpus import MODULES, document, passages, split
from teola_plugin.demo.parts import Parts, Sizes, llm_parts, real_parts
from teola_plugin.demo.run import FORMS, Kit, cases_of, kit_for
from teola_plugin.runtime.engines.vllm import VllmEngine
from teola_plugin.screen import progress_bar

APPS = ("advanced", "naive")
ROWS = [(framework, app, form) for framework in FORMS for app, form in itertools.product(APPS, FORMS[framework])]
REAL_ROWS = [
    ("langchain", "advanced", "ainvoke"), ("langchain", "naive", "stream"),
    ("llamaindex", "advanced", "stream"), ("llamaindex", "naive", "aquery"),
]  # fmt: skip
"""Each pipeline once and each way of answering somewhere: on cores shared with others, real engines take their time."""
SIZES = Sizes(passages(48), document_passages=4)


@pytest.fixture(autouse=True)
def main_loop() -> Iterator[None]:
    """LlamaIndex makes an event loop for a main thread that has none, and leaves it open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()


@pytest.fixture(scope="module")
def profile_kits() -> dict[str, Kit]:
    return kits(llm_parts("profile", tokens=4))


@pytest.fixture(scope="module")
def real_kits(vllm_engine: VllmEngine) -> dict[str, Kit]:
    return kits(real_parts(vllm_engine))


def kits(parts: Parts) -> dict[str, Kit]:
    return {framework: kit_for(framework, parts, SIZES, collection=f"{parts.kind}_stdlib") for framework in FORMS}


def compared(found: dict[str, Kit], framework: str, app: str, form: str) -> Comparison:
    cases = cases_of(framework, [app], found[framework], SIZES)
    case = next(c for c in cases if c.name == f"{framework} {app} {form}")
    return compare(case.pipeline, case.inputs, repeats=1, mode=case.form)


@pytest.mark.real
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("framework", "app", "form"), REAL_ROWS)
def test_real(framework: str, app: str, form: str, real_kits: dict[str, Kit]) -> None:
    _is_equal_and_ran_ahead(real_kits, framework, app, form)


@pytest.mark.parametrize(("framework", "app", "form"), ROWS)
def test_profile(framework: str, app: str, form: str, profile_kits: dict[str, Kit]) -> None:
    _is_equal_and_ran_ahead(profile_kits, framework, app, form)


def _is_equal_and_ran_ahead(kits: dict[str, Kit], framework: str, app: str, form: str) -> None:
    found = compared(kits, framework, app, form)
    assert found.equal, str(found)
    assert found.is_optimized
    assert found.hits + found.shared > 0
    assert not found.fallbacks
    if app == "naive":  # in coroutines LlamaIndex asks for its three notes at once by itself, and then for the answer
        assert (found.misses, found.wasted) == (3 + 1 if form == "aquery" else 0, 0)


@pytest.mark.parametrize(("framework", "app"), list(itertools.product(FORMS, APPS)))
def test_the_pipelines_do_what_they_say(framework: str, app: str, profile_kits: dict[str, Kit]) -> None:
    """Four calls of the LLM each: queries, an answer and two refinements; or three notes and the answer."""
    kit = profile_kits[framework]
    (case, *_) = cases_of(framework, [app], kit, SIZES)
    stats = kit.parts.llm.stats  # type: ignore[attr-defined]
    before = stats.items
    with Caller() as caller:
        answer = caller.call(case.pipeline, case.form, case.inputs[0])
    assert answer.error is None, answer.error
    assert stats.items - before == 4


def test_the_corpus_is_real_text_of_many_modules() -> None:
    found = passages(100)
    assert len(found) == 100
    assert len({p.source.split(".")[0] for p in found}) >= len(MODULES) - 2
    assert all(260 <= len(p.text) <= 400 for p in found)
    assert passages(100) == found
    assert len(split(document(4))) == 4


def test_the_bar_leaves_what_libraries_say_to_the_log() -> None:
    before = sys.stderr
    with progress_bar(Console(file=io.StringIO(), force_terminal=True)):
        assert sys.stderr is before


def test_the_table_fits_a_narrow_terminal(tmp_path: Path) -> None:
    arguments = ["demo", "--engines", "profile", "--quick", "--framework", "langchain", "--app", "naive"]
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*arguments, "--html", str(tmp_path / "pages")])
    assert done.exit_code == 0, done.output
    assert "langchain naive invoke" in done.output
    assert "All answers and all callback trees are equal." in done.output
    assert max(map(len, done.output.splitlines())) <= max(80, len(str(tmp_path)) + 20)
    assert len(list((tmp_path / "pages").glob("*.html"))) == 3
