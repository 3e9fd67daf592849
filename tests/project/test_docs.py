"""The pages: files and names that they mention exist, links lead somewhere, and the README's example runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosted_service import served

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "teola_plugin"
PAGES = sorted(path for path in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")) if path.name != "papers.md")
README = ROOT / "README.md"
THEIRS = {"app.py", "engines.toml", "profiles.json"}
"""Files of a user's, in examples."""

FILE = re.compile(r"`([\w./-]+\.(?:py|toml|txt|json|md))(?::([\w.]+))?`")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def mentioned(page: Path) -> Iterator[tuple[str, str]]:
    """Files in backticks, and the names in them that stand behind a colon."""
    found = set(FILE.findall(prose(page)))
    return ((path, name) for path, name in sorted(found) if path not in THEIRS and not re.search("NAME|LAYER", path))


def file_at(path: str, page: Path) -> Path | None:
    places = (ROOT / path, PACKAGE / path, page.parent / path)
    return next((place for place in places if place.is_file()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_names_that_a_page_mentions_exist(page: Path) -> None:
    missing = []
    for path, name in mentioned(page):
        found = file_at(path, page)
        text = found.read_text() if found else ""
        parts = name.split(".") if name else []
        if found is None or not all(re.search(rf"^\s*(?:async def|def|class) {part}\b", text, re.M) for part in parts):
            missing.append(f"{path}:{name}")
    assert missing == []


def test_the_architecture_page_is_made_of_names_of_files() -> None:
    assert len(list(mentioned(ROOT / "docs" / "architecture.md"))) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = page.parent / path if path else page
        assert found.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)", found.read_text(), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, target


def test_the_readme_stays_short() -> None:
    assert len(README.read_text().splitlines()) <= 150


def test_the_examples_of_the_readme_run(tmp_path: Path) -> None:
    example = README.read_text().split("## First example")[1]
    program = tmp_path / "example.py"
    program.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", example, re.M | re.S)))
    with served() as service:
        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, timeout=100, cwd=ROOT,
            env={**os.environ, "OPENAI_BASE_URL": service.url, "OPENAI_API_KEY": "none", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search("^answers +equal$", done.stdout, re.M)
    assert re.search("^callback trees +equal", done.stdout, re.M)
