"""The mutation tool (tests/mutants): its lists are up to date, and it tells what is noticed from what is not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mutants.faults import layers_in, stale_in
from tests.mutants.operators import sampled
from tests.mutants.run import LISTS, ROOT, main

LAYERS = layers_in(ROOT / LISTS)

SOURCE = """
def larger(a, b):
    while a is None:
        pass
    return a if a > b else b
"""

UNUSED = """
def unused(a):
    return a
"""

TESTS = """
from thing import larger


def test_larger():
    assert larger(1, 2) == 2
"""

KILLED = """
[[fault]]
name = "the smaller one"
file = "thing.py"
old = "a > b"
new = "a < b"
"""

HANGS = """
[[fault]]
name = "no end"
file = "thing.py"
old = "a is None"
new = "a is not None"
"""

SURVIVES = """
[[fault]]
name = "nobody asks"
file = "unused.py"
old = "return a"
new = "return None"
"""

EQUIVALENT = SURVIVES + 'equivalent = "nobody calls it"\n'

STALE = """
[[fault]]
name = "not there any more"
file = "thing.py"
old = "return c"
new = "return a"
"""


@pytest.mark.parametrize("name", LAYERS)
def test_faults_can_be_planted(name: str) -> None:
    assert stale_in(LAYERS[name], ROOT) == []


@pytest.mark.parametrize("name", LAYERS)
def test_tests_and_files_are_there(name: str) -> None:
    layer = LAYERS[name]
    paths = [*layer.files, *(test.partition("::")[0] for test in layer.all_tests)]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert layer.files


def tried(root: Path, *faults: str, tests: str = TESTS, options: tuple[str, ...] = ()) -> int:
    """The exit status of the tool for a small project with these faults."""
    (root / LISTS).mkdir(parents=True)
    (root / "thing.py").write_text(SOURCE)
    (root / "unused.py").write_text(UNUSED)
    (root / "tests/test_thing.py").write_text(tests)
    listed = 'tests = ["tests/test_thing.py"]\nfiles = ["unused.py"]\n' + "".join(faults)
    (root / LISTS / "tiny.toml").write_text(listed)
    return main(["tiny", "--hang-s=3", *options], root)


def test_what_is_noticed_is_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(tmp_path, KILLED, EQUIVALENT) == 0
    said = capsys.readouterr().out
    assert "tiny: 1 killed, 0 survived, 1 equivalent: 100%" in said
    assert "equivalent: nobody asks (nobody calls it)" in said


def test_what_nothing_notices_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(tmp_path, HANGS, SURVIVES, options=("--sample=100",)) == 1
    said = capsys.readouterr().out
    assert "tiny: 1 killed, 1 survived, 0 equivalent: 50%" in said
    assert "  survived: nobody asks" in said
    assert "tiny, random changes: 0 of 1 killed" in said
    assert "-    return a\n+    return None" in said
    assert (tmp_path / "thing.py").read_text() == SOURCE


def test_a_stale_list_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(tmp_path, KILLED, STALE) == 1
    assert "'not there any more': `old` occurs 0 times in thing.py" in capsys.readouterr().out


def test_tests_that_fail_anyway_prove_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(tmp_path, KILLED, tests=TESTS.replace("== 2", "== 1")) == 1
    assert "the tests fail without a fault: tests/test_thing.py::test_larger" in capsys.readouterr().out


def test_samples_are_repeatable_and_differ_from_the_source() -> None:
    files = ["teola_plugin/graph.py", "teola_plugin/seams.py"]
    changes = sampled(files, ROOT, 100, "a seed")
    assert changes == sampled(files, ROOT, 100, "a seed")
    assert changes != sampled(files, ROOT, 100, "another seed")
    for change in changes:
        assert ast.dump(ast.parse(change.text)) != ast.dump(ast.parse((ROOT / change.file).read_text()))
