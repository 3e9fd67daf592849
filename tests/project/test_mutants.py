"""The mutation tool (tests/mutants): its lists are up to date, and it tells what is noticed from what is not."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.mutants.faults import layers_in, stale_in
from tests.mutants.operators import sampled
from tests.mutants.reach import reaching
from tests.mutants.record import Record
from tests.mutants.run import LISTS, ROOT, main
from tests.mutants.trees import FORKS, copies

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
    paths = [*layer.files, *(test.partition("::")[0] for test in (*layer.tests, *layer.own_tests))]
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert layer.files


def tried(root: Path, *faults: str, tests: str = TESTS, options: tuple[str, ...] = ()) -> int:
    """The exit status of the tool for a small project with these faults."""
    written(root, *faults, tests=tests)
    return again(root, *options)


def written(root: Path, *faults: str, tests: str = TESTS) -> None:
    (root / LISTS).mkdir(parents=True)
    (root / "thing.py").write_text(SOURCE)
    (root / "unused.py").write_text(UNUSED)
    (root / "tests/test_thing.py").write_text(tests)
    listed = 'tests = ["tests/test_thing.py"]\nfiles = ["unused.py"]\n' + "".join(faults)
    (root / LISTS / "tiny.toml").write_text(listed)


def again(root: Path, *options: str) -> int:
    return main(["tiny", "--hang-s=3", *options], root, preloaded=["pytest"])


def recorded(root: Path, results: Sequence[str] = ()) -> list[str | None]:
    """What is known of the faults of that project, after these results were added."""
    layer = layers_in(root / LISTS)["tiny"]
    for fault, by in zip(layer.faults, results, strict=False):
        Record(layer, root, LISTS).add(fault, by, root)
    return [*map(Record(layer, root, LISTS).found, layer.faults)]


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
    assert tried(tmp_path, KILLED, tests=TESTS.replace("== 2", "== 3")) == 1
    assert "the tests fail without a fault: tests/test_thing.py::test_larger" in capsys.readouterr().out


def test_what_is_known_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tried(tmp_path, KILLED, SURVIVES, options=("--only=smaller",)) == 0
    record = (tmp_path / LISTS / "tiny.json").read_text()
    assert again(tmp_path, "--minutes=0") == 1
    assert "100% of the 1 of 2 that are known (1 from the record)" in capsys.readouterr().out
    assert again(tmp_path) == 1
    said = capsys.readouterr().out
    assert "the smaller one: tests" not in said
    assert "tiny: 1 killed, 1 survived, 0 equivalent: 50% (1 from the record)" in said
    assert again(tmp_path, "--again", "--only=smaller") == 0
    assert "the smaller one: tests/test_thing.py::test_larger" in capsys.readouterr().out
    lines = (tmp_path / LISTS / "tiny.json").read_text().splitlines()
    assert lines[2] == record.splitlines()[1]
    assert lines[1].endswith(", null],")


@pytest.mark.parametrize(
    ("file", "old", "new", "known"),
    [
        ("tests/test_thing.py", "", "\n\ndef test_more():\n    assert larger(3, 4) == 4\n", [True, False]),
        ("tests/test_thing.py", "larger(1, 2) == 2", "larger(2, 1) == 2", [False, False]),
        ("thing.py", "pass", "a = 1", [False, True]),
        ("unused.py", "return a", "return [a]", [True, False]),
        ("unused.py", "return a", "return a  # what is asked", [True, True]),
        ("thing.py", "while", '"""Return the larger one."""\n    while', [True, True]),
        ("tests/test_thing.py", "    assert", '    """Compare."""\n    assert', [True, True]),
        (f"{LISTS}/tiny.toml", 'new = "a < b"', 'new = "a != b"', [False, True]),
    ],
)
def test_what_may_have_changed_is_run_again(
    tmp_path: Path, file: str, old: str, new: str, known: list[str | None]
) -> None:
    written(tmp_path, KILLED, SURVIVES)
    results = ["tests/test_thing.py::test_larger[1 - 2]", ""]
    assert recorded(tmp_path, results) == recorded(tmp_path) == results
    text = (tmp_path / file).read_text()
    (tmp_path / file).write_text(text.replace(old, new) if old else text + new)
    assert [by is not None for by in recorded(tmp_path)] == known


def test_what_noticed_others_of_a_file_is_tried_first(tmp_path: Path) -> None:
    written(tmp_path, KILLED, HANGS, SURVIVES)
    recorded(tmp_path, ["tests/test_thing.py::test_larger"])
    layer = layers_in(tmp_path / LISTS)["tiny"]
    tests = ["tests/test_thing.py::test_larger"]
    assert [*map(Record(layer, tmp_path, LISTS).likely, layer.faults)] == [tests, tests, []]
    recorded(tmp_path, [tests[0], "no end"])
    assert [*map(Record(layer, tmp_path, LISTS).likely, layer.faults)] == [tests, [], []]


def test_samples_are_repeatable_and_differ_from_the_source() -> None:
    files = ["teola_plugin/graph.py", "teola_plugin/seams.py"]
    changes = sampled(files, ROOT, 100, "a seed")
    assert changes == sampled(files, ROOT, 100, "a seed")
    assert changes != sampled(files, ROOT, 100, "another seed")
    for change in changes:
        assert ast.dump(ast.parse(change.text)) != ast.dump(ast.parse((ROOT / change.file).read_text()))


SLOW_TESTS = """
import time
from thing import larger


def test_nothing():
    time.sleep(1)


def test_slow():
    time.sleep(0.1)
    assert larger(1, 2)


def test_that_fails():
    assert larger(1, 2) == 1


class TestClass:
    def test_fast(self):
        assert larger(1, 2) == 2
"""


def test_tests_that_run_its_function_are_tried_first(tmp_path: Path) -> None:
    written(tmp_path, KILLED, SURVIVES, tests=SLOW_TESTS)
    layer = layers_in(tmp_path / LISTS)["tiny"]
    FORKS.set_forkserver_preload(["pytest"])
    with copies(tmp_path, tmp_path / "copies", 1, 30) as free:
        reached = reaching(layer.faults, layer.tests, free.get(), is_real=True)
    slow, fast = "tests/test_thing.py::test_slow", "tests/test_thing.py::TestClass::test_fast"
    assert reached == {"the smaller one": [fast, slow], "nobody asks": []}
