"""Run the frameworks' own tests with every pipeline routed through `optimize` (`make conformance`).

    python tests/conformance/run.py                              # all suites in all their modes
    python tests/conformance/run.py core classic:exec            # one suite in all its modes, one suite in one mode
    python tests/conformance/run.py core:object -- -k sequence   # the rest goes to pytest

A framework's tests come from the source distribution of exactly the installed version. Only the tests and their
settings are kept: beside the framework's own modules, `import` would find those instead of the installed ones.

The modes are those of `routed`; `off` routes nothing and says what the tests come to on this machine.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
CACHE = Path(sys.prefix) / "suites"
QUIET = {
    "ANONYMIZED_TELEMETRY": "False",
    "HF_HUB_OFFLINE": "1",
    "LANGCHAIN_TRACING_V2": "false",
    "LANGSMITH_TRACING": "false",
    "NO_DOCKER": "true",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
PYTEST = (
    "-q", "-p", "routed", "-p", "no:cacheprovider", "-p", "no:randomly", "-o", "timeout=60", "-rfE",
    "--benchmark-disable",
)  # fmt: skip
OFFLINE = ("--disable-socket", "--allow-unix-socket")
"""As LangChain's own makefiles have it."""


@dataclass(frozen=True, slots=True)
class Suite:
    """Tests of one distribution; without one, of this folder. `excepted`: tests that fail for a reason, by mode.

    The reasons under "" hold in every mode, also in `off`: the machine, the network or the versions beside it.
    """

    modes: tuple[str, ...]
    path: str
    distribution: str = ""
    options: tuple[str, ...] = ()
    excepted: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


LOAD = "langchain-core loads classes of its own only, unless told otherwise"
CLASSIC = {
    "tests/unit_tests/chat_models/test_base.py::test_configurable": "langchain-openai has other fields by now",
    "tests/unit_tests/test_imports.py::test_no_more_changes_to_proxy_community": "it reads the sources beside it",
    **{
        f"tests/unit_tests/load/test_load.py::{test}": LOAD
        for test in (
            "test_loads_openai_llm", "test_loads_llmchain", "test_loads_llmchain_env", "test_load_openai_llm",
            "test_load_llmchain", "test_load_llmchain_env", "test_loads_with_missing_secrets",
        )
    },
}  # fmt: skip

SUITES = {
    "core": Suite(
        modes=("exec", "object", "exec-ahead", "object-ahead"),
        path="tests/unit_tests",
        distribution="langchain-core",
        options=(*OFFLINE, "-o", "addopts=--snapshot-warn-unused --strict-markers"),
    ),
    "classic": Suite(
        modes=("exec", "object", "exec-ahead", "object-ahead"),
        path="tests/unit_tests",
        distribution="langchain-classic",
        options=(*OFFLINE, "-o", "addopts=--snapshot-warn-unused", "-W", "ignore::pytest.PytestUnknownMarkWarning"),
        excepted={"": CLASSIC},
    ),
    "langgraph": Suite(
        modes=("graph-ahead", "exec-ahead"),
        path="tests",
        distribution="langgraph",
        options=("-p", "no:asyncio", "-o", "addopts=--snapshot-warn-unused --strict-markers"),
    ),
    "standard": Suite(modes=("off",), path="chat_model.py"),
}


def main() -> int:
    """0 if every run passed."""
    parser = argparse.ArgumentParser(description="Run the frameworks' own tests through teola_plugin.optimize.")
    parser.add_argument("runs", nargs="*", metavar="SUITE[:MODE]", help=f"of {', '.join(SUITES)}; all by default")
    given = sys.argv[1:]
    cut = given.index("--") if "--" in given else len(given)
    asked = parser.parse_args(given[:cut]).runs or list(SUITES)
    if unknown := [run for run in asked if run.partition(":")[0] not in SUITES]:
        parser.error(f"no such suite: {', '.join(unknown)}")
    failed = [f"{suite}:{mode}" for suite, mode in _chosen(asked) if _run(suite, mode, given[cut + 1 :])]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return bool(failed)


def _chosen(asked: Sequence[str]) -> Iterator[tuple[str, str]]:
    for run in asked:
        suite, _, mode = run.partition(":")
        yield from ((suite, m) for m in ((mode,) if mode else SUITES[suite].modes))


def _run(name: str, mode: str, options: Sequence[str]) -> int:
    suite = SUITES[name]
    print(f"--- {name} {version(suite.distribution) if suite.distribution else ''}, mode {mode}", flush=True)
    excepted = {**suite.excepted.get("", {}), **suite.excepted.get(mode, {})}
    leave_out = [f"--leave-out={test}" for test in excepted]
    folder = _folder(suite.distribution)
    chosen = [] if any((folder / option.partition("::")[0]).exists() for option in options) else [suite.path]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *PYTEST,
        f"--route={mode}",
        *suite.options,
        *leave_out,
        *options,
        *chosen,
    ]
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, cwd=folder, env=env, check=False).returncode


def _folder(distribution: str) -> Path:
    """Where the tests of a distribution lie, fetched if they are not there."""
    if not distribution:
        return HERE
    folder = CACHE / f"{distribution}-{version(distribution)}"
    if not folder.exists():
        with tempfile.TemporaryDirectory() as temporary:
            fetched = _fetch(distribution, Path(temporary))
            kept = Path(temporary) / "kept"
            shutil.copytree(fetched / "tests", kept / "tests")
            shutil.copy(fetched / "pyproject.toml", kept)
            CACHE.mkdir(exist_ok=True)
            shutil.move(kept, folder)
    return folder


def _fetch(distribution: str, folder: Path) -> Path:
    """The unpacked source distribution."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    wanted = f"{distribution}=={version(distribution)}"
    subprocess.run([*pip, "--no-binary", distribution, "--dest", str(folder), wanted], check=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    return unpacked


if __name__ == "__main__":
    sys.exit(main())
