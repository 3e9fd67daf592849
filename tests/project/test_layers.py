"""Layers run one way, and heavy packages are imported only by the files that own them.

Imports are read from the source, those inside functions too.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "teola_plugin"

LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "codes", "events", "forks", "finalizers", "loops", "syntax", "shown", "failures",
     "processor"),
    ("graph", "providers"),
    ("engines", "seams", "trace", "profile", "registry", "items", "effects", "resources", "chat", "calling", "turns",
     "tenancy", "rounds", "value_keys", "request_identity", "routes"),
    ("passes", "plan", "gates", "graph_builder"),
    ("runtime", "adapters"),
    ("models",),
    ("api", "profiling", "worth", "comparison", "explanation", "callbacks", "templates", "__init__"),
    ("cli", "cli_engines", "demo", "doctor", "screen"),
)  # fmt: skip
"""A module imports from its own layer (without circles) and from those above it here. `__init__` is the package's."""

STRANGERS = {("runtime", "adapters"), ("adapters", "runtime")}
"""One layer, but they do not know each other."""

HEAVY = ("torch", "vllm", "chromadb", "sentence_transformers", "transformers", "ray", "langchain", "langchain_core",
         "langchain_classic", "langgraph", "llama_index", "fastapi", "opentelemetry")  # fmt: skip
OWNERS = (
    "runtime/engines/",
    "runtime/hosts/ray/",
    "adapters/",
    "models/",
    "demo",
    "comparison/",
    "callbacks",
    "cli",
    "doctor",
)

MODULES = sorted(PACKAGE.rglob("*.py"))

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
ANYBODY = frozenset(
    ["what", "who", "whom", "whose", "whoever", "whatever", "somebody", "nobody", "anybody", "everybody"]
)
POINTING = frozenset(
    ["it", "its", "that", "those", "this", "these", "one", "ones", "other", "others", "such", "they", "them", "their"]
)


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The entry of LAYERS that a module of ours belongs to."""
    return module.split(".")[1] if "." in module else "__init__"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(path: Path) -> Iterator[str]:
    """Full names of all that a file imports; `from a import b` is `a.b` if that is a module of ours, else `a`."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write imports in full"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (n if n in OURS else str(node.module) for n in names)


OURS = {name_of(path) for path in MODULES}
IMPORTS = {name_of(path): {m for m in imports(path) if m.split(".")[0] == "teola_plugin"} for path in MODULES}


def test_every_module_has_a_layer() -> None:
    known = {part for layer in LAYERS for part in layer}
    assert {part_of(module) for module in OURS} <= known


@pytest.mark.parametrize("module", sorted(OURS))
def test_imports_run_one_way(module: str) -> None:
    rank = {part: at for at, layer in enumerate(LAYERS) for part in layer}
    part = part_of(module)
    for other in IMPORTS[module]:
        assert rank[part_of(other)] <= rank[part], f"{module} imports {other}, which is a layer above it"
        assert (part, part_of(other)) not in STRANGERS, f"{module} imports {other}"


def test_there_are_no_circles() -> None:
    # A package imports its own modules and they may import each other: only ways that come back are wrong.
    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join([*way[way.index(module) :], module])
        if module not in done:
            for other in sorted(IMPORTS[module]):
                visit(other, (*way, module))
            done.add(module)

    done: set[str] = set()
    for module in sorted(OURS):
        visit(module, ())


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_type_checking_hides_none_of_our_modules(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            names = {getattr(n, "module", None) or "" for n in ast.walk(node) if isinstance(n, ast.ImportFrom)}
            assert not any(n.startswith("teola_plugin") for n in names), "it marks a circle"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_heavy_packages_have_owners(path: Path) -> None:
    where = path.relative_to(PACKAGE).as_posix()
    if not where.startswith(OWNERS):
        assert not {m for m in imports(path) if m.split(".")[0] in HEAVY}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_says_what_it_is_first(path: Path) -> None:
    tree = tree_of(path)
    assert ast.get_docstring(tree), "no docstring"
    if len(tree.body) > 1:
        assert isinstance(tree.body[1], ast.ImportFrom)
        assert tree.body[1].module == "__future__"


def test_docstrings_name_their_subjects() -> None:
    """Pronouns in the place of nouns, counted per 1,000 words: other projects have 2 to 5 and 17 to 32 of these."""
    nodes = (node for path in MODULES for node in ast.walk(tree_of(path)))
    texts = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, DOCUMENTED)]
    words = " ".join(texts).lower().translate(str.maketrans("", "", "`.,:;()")).split()
    assert 1_000 * sum(word in ANYBODY for word in words) / len(words) < 8
    assert 1_000 * sum(word in POINTING for word in words) / len(words) < 35


def test_no_module_is_called_utils() -> None:
    vague = {"utils", "helpers", "common", "base", "manager", "core", "types", "misc"}
    assert not {path.stem for path in MODULES} & vague


@pytest.mark.parametrize("statement", ["import teola_plugin", "from teola_plugin import optimize, pure"])
def test_importing_the_package_imports_no_framework(statement: str) -> None:
    heavy = [*HEAVY, "numpy", "pydantic", "jinja2", "rich", "typer"]
    code = f"import sys; {statement}; print(sorted(set(sys.modules) & set({heavy!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
