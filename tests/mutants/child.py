"""The process that runs tests on one fault. It is forked from one that has imported the frameworks already."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from multiprocessing import forkserver
from pathlib import Path

from tests.mutants.probes import Probes

ROOT = Path(__file__).parents[2]

PRELOADED = (
    "pytest", "hypothesis", "hypothesis.extra.numpy", "numpy", "pydantic", "httpx", "openai", "openai.resources",
    "typer", "rich", "jinja2",
    "langchain_core.runnables", "langchain_core.language_models", "langchain_core.prompts", "langchain_core.tools",
    "langchain_core.vectorstores", "langchain_classic.chains", "langchain_classic.retrievers", "langgraph.graph",
    "langgraph.prebuilt", "llama_index.core", "llama_index.core.query_engine", "llama_index.core.workflow", "chromadb",
    "tokenizers", "psutil", "sentence_transformers",
)  # fmt: skip
"""What most tests import, none of it ours. All of it takes longer than most runs of tests."""

OPTIONS = (
    "-x", "-q", "-rfE", "--tb=no", "--color=no", "-p", "no:cacheprovider",
    "-p", "no:langsmith_plugin",  # importing it takes several times as long as a small test
    "-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
    "--randomly-seed=1", "--randomly-dont-reorganize",
)  # fmt: skip

FEWER = {
    "TEOLA_TEST_AGENTS": "20", "TEOLA_TEST_CHAINS": "25", "TEOLA_TEST_GRAPHS": "25", "TEOLA_TEST_GUESSES": "20",
    "TEOLA_TEST_HISTORIES": "20", "TEOLA_TEST_PROGRAMS": "100", "TEOLA_TEST_TEMPLATES": "20",
}  # fmt: skip
"""Random cases for one fault, unless the environment says otherwise: what survives these mostly survives them all."""


def run(folder: str, options: Sequence[str], mark: tuple[str, str], is_probed: bool) -> None:
    """Run pytest in that copy of the source, in a session of its own, and exit with its status."""
    os.setsid()
    os.chdir(folder)
    forkserver._forkserver.__init__()  # type: ignore[misc, attr-defined]  tests that fork so have one of their own
    output = os.open("output.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ |= {**FEWER, **os.environ, "PYTHONPATH": folder, mark[0]: mark[1]}
    sys.path[:] = [folder, *(path for path in sys.path if path and Path(path) != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    gc.freeze()  # pytest collects ten times a run, each time all that is imported
    status = 3
    with contextlib.suppress(SystemExit):
        import pytest
        from hypothesis import HealthCheck, settings

        # A busy machine is no fault, and a fault is to be found the second time too.
        patient = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
        settings.register_profile("mutants", patient)
        settings.load_profile("mutants")
        plugins = [Probes()] if is_probed else []
        status = int(pytest.main([*OPTIONS, *options], plugins))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # what the tests left open is ended by whoever started this
