"""Files that a program writes: what the reader says is what CPython does, and no reading writes."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import pytest

from teola_plugin.adapters.reader import instances
from teola_plugin.adapters.reader.asking import Nobody, Request
from teola_plugin.adapters.reader.natives_files import is_output, write
from teola_plugin.adapters.reader.run import Given, Run
from teola_plugin.adapters.reader.values import Barrier, Opaque
from teola_plugin.engines import EngineSpec
from tests.adapters.reader.fuzzing import Reading, World, Worldly, evaluated, judged, replies
from tests.adapters.reader.random_programs import HEADER, INPUTS, MODELS, inputs
from tests.adapters.reader.test_fuzz_semantics import module_of

pytestmark = pytest.mark.usefixtures("no_batches")

EACH = """
    for name in ['one', 'two', 'three']:
        reply = m.ask(name)
"""
READ = {
    "a file for each reply": EACH + """
        with open(name + '.md', 'w') as file:
            file.write(reply)
    """,
    "all replies so far, in a folder that is made": """
    os.makedirs('found/here', exist_ok=True)
    found = {}
    for name in ['one', 'two', 'three']:
        found[name] = m.ask(name)
        with open(f'found/here/{name}.json', 'w', encoding='utf-8') as file:
            json.dump(found, file, indent=2, ensure_ascii=False)
    return found
    """,
    "rows": """
    with open('log.csv', 'a', newline='') as file:
        rows = csv.writer(file)
        for name in ['one', 'two', 'three']:
            rows.writerow([name, m.ask(name), 3, None])
            file.flush()
    file.close()
    """,
    "rows of names": """
    with open('log.csv', 'w') as file:
        rows = csv.DictWriter(file, fieldnames=['name', 'reply'])
        rows.writeheader()
        for name in ['one', 'two', 'three']:
            rows.writerows([{'name': name, 'reply': m.ask(name)}])
    """,
    "printed": """
    with open('log.txt', 'a', encoding='utf-8') as file:
        for name in ['one', 'two', 'three']:
            print(name, m.ask(name), file=file, sep=': ')
        file.writelines(['the', 'end'])
    """,
    "paths": """
    here = Path('found') / 'here'
    here.mkdir(parents=True, exist_ok=True)
    for name in ['one', 'two', 'three']:
        file = here / f'{name}.md'
        file.write_text(m.ask(name), encoding='utf-8')
        print(f'saved {file} of {file.parent.name}', file.stem, str('up' / file))
        with file.with_suffix('.bin').open('wb') as binary:
            binary.write(b'x')
    return Path(here, 'a.txt').as_posix(), here.joinpath('b', Path('c')).name
    """,
    "whether files are there": EACH + """
        if os.path.isfile(name) or Path('x').exists(): print('again')
    """,
    "the number of characters": """
    with open('b.txt', 'w') as file:
        length = file.write(m.ask('one'))
        known = file.write('abc')
    return length, known, m.ask('two'), m.ask('three')
    """,
}  # fmt: skip
"""Programs whose three requests are certain at once."""

MAY_RAISE = {
    "no such folder": EACH + """
        with open('nowhere/' + name, 'w') as file:
            file.write(reply)
    """,
    "a folder below a file that is written": """
    for name in ['one', 'two', 'three']:
        reply = m.ask(name)
        Path('found').write_text('x')
        Path('found/here').mkdir(parents=True)
    """,
    "a path from a reply": EACH + """
        with open(reply, 'w') as file:
            file.write(reply)
    """,
    "a folder in place of a file": EACH + """
        with open('.', 'w') as file:
            file.write(reply)
    """,
    "a file of the system": EACH + """
        with open('/proc/self/comm', 'w') as file:
            file.write('x')
    """,
    "no name": EACH + """
        with open('', 'w') as file:
            file.write(reply)
    """,
    "an encoding that lacks characters": EACH + """
        with open('log.txt', 'w', encoding='ascii') as file:
            file.write(reply)
    """,
    "an encoding that there is not": EACH + """
        with open('log.txt', 'w', encoding='nonsense') as file:
            file.write(reply)
    """,
    "a row with a name too many": EACH + """
        with open('log.csv', 'w') as file:
            csv.DictWriter(file, ['name']).writerow({'name': name, 'reply': reply})
    """,
    "a way through a folder that is not there": EACH + """
        with open('nowhere/../log.txt', 'w') as file:
            file.write(reply)
    """,
    "a folder without a name": EACH + """
        os.makedirs('', exist_ok=True)
    """,
    "a folder that may not be made": """
        for name in ['one', 'two', 'three']:
            reply = m.ask(name)
            try:
                int(reply)
                os.makedirs('found')
            except ValueError:
                pass
            with open('found/log.txt', 'w') as file:
                file.write(reply)
    """,
    "a row of half a character": EACH + """
        with open('log.csv', 'w', encoding='utf-8') as file:
            csv.writer(file).writerow([reply, chr(0xd800)])
    """,
    "a row of a number of many digits": EACH + """
        with open('log.csv', 'w') as file:
            csv.writer(file).writerow([reply, 10 ** 5000])
    """,
    "a reply that may be no JSON": EACH + """
        with open('log.txt', 'w') as file:
            json.dump(json.loads(reply), file)
    """,
}  # fmt: skip
"""Programs of which a single request is certain at first."""

ERRORS = {
    "a number": """
        with open('log.txt', 'w') as file:
            file.write(3)
    """,
    "a set": """
        with open('log.txt', 'w') as file:
            json.dump({'x': {1, 2}}, file)
    """,
    "a delimiter": """
        with open('log.txt', 'w') as file:
            csv.writer(file, delimiter='xx')
    """,
    "a closed file": """
        file = open('log.txt', 'w')
        file.close()
        file.write('x')
    """,
    "a closed file that is entered": """
        file = open('log.txt', 'w')
        file.close()
        with file:
            print('x')
    """,
    "a file closed by a with statement": """
        with open('log.txt', 'w') as file:
            file.write('x')
        file.write('y')
    """,
    "a file that one path closes": """
        with open('log.txt', 'w') as file:
            if jb.ask('one'): file.close()
            file.write('x')
    """,
}  # fmt: skip
"""Programs that raise, on some path at least, before they ask."""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(instances, "text_accessor", lambda: None)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def program(body: str, path: Path) -> Any:
    lines = indent(dedent(body), "    ")
    head = f"def program({', '.join([*MODELS, *INPUTS])}):\n"
    return module_of(
        "import csv, json, os\nfrom pathlib import Path\n" + HEADER + "\n" + head + lines + "\n", path / "program.py"
    ).program


def first(made: Any) -> Reading:
    """What a first reading finds."""
    given = Given()
    args = {name: given.copy(each) for name, each in inputs(0)().items()}
    models = {name: given.copy(each) for name, each in World(replies(3)).models.items()}
    return evaluated(made, Worldly(may_raise=False), {}, given, {**models, **args})


def both(body: str, tmp_path: Path) -> Reading:
    made = program(body, tmp_path)
    found = first(made)
    assert os.listdir(".") == []
    for case in range(20):
        judged(made, inputs(case), case)
    return found


@pytest.mark.parametrize("what", READ)
def test_writing_ends_no_reading(what: str, tmp_path: Path) -> None:
    found = both(READ[what], tmp_path)
    assert (found.barrier, [ask.is_certain for ask in found.asks]) == (None, [True] * 3)


@pytest.mark.parametrize("what", MAY_RAISE)
def test_writing_may_raise(what: str, tmp_path: Path) -> None:
    found = both(MAY_RAISE[what], tmp_path)
    assert [ask.is_certain for ask in found.asks] == [True, False, False]


def test_a_folder_is_made_once(tmp_path: Path) -> None:
    found = first(program(dedent(EACH) + "    os.makedirs('found')", tmp_path))
    assert [ask.is_certain for ask in found.asks] == [True, True, False]
    os.mkdir("found")
    found = first(program(dedent(EACH) + "    os.makedirs('found')", tmp_path))
    assert [ask.is_certain for ask in found.asks] == [True, False, False]


@pytest.mark.parametrize("what", ERRORS)
def test_errors_are_those_of_cpython(what: str, tmp_path: Path) -> None:
    found = both(dedent(ERRORS[what]) + "return m.ask('two')", tmp_path)
    assert not any(ask.is_certain for ask in found.asks if ask.request.key[0] == "m")


@pytest.mark.parametrize(
    "body", ["with open('a.txt') as file: return m.ask(file.read())", "open('a.txt', 'r+').write(m.ask('a'))"]
)
def test_what_files_hold_is_not_read(body: str, tmp_path: Path) -> None:
    barrier = first(program(body, tmp_path)).barrier
    assert barrier is not None
    assert "opens a file to read it" in barrier.what


def test_paths_are_read_by_the_code_of_the_library_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []
    made = program("return m.ask(Path('a.txt').name)", tmp_path)
    monkeypatch.setattr(type(tmp_path), "name", property(ran.append), raising=False)
    found = first(made)
    assert (found.barrier is None, ran) == (False, [])


@pytest.mark.parametrize(("owner", "name"), [(io, "open"), (os, "mkdir")])
def test_what_the_library_calls_is_its_own(
    owner: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for number, body in enumerate(["Path('a.txt').write_text('x')", "os.makedirs('found/here')"]):
        (tmp_path / str(number)).mkdir()
        made.append(program(f"{body}\nreturn m.ask('one')", tmp_path / str(number)))
    monkeypatch.setattr(owner, name, print)
    assert [first(each).barrier is None for each in made] == [False, False]


def test_a_write_to_a_file_of_the_run_is_noted(tmp_path: Path) -> None:
    run = Run(Nobody())
    with (tmp_path / "a.txt").open("w") as file:
        write(run, Opaque(file), "x")
    assert run.written


def test_a_request_that_names_a_written_file_is_left_to_the_run(tmp_path: Path) -> None:
    found = first(program("open('a.png', 'w').write(text)\nreturn m.ask('look at a.png')", tmp_path))
    assert found.barrier is not None
    assert "has written" in found.barrier.what


@pytest.mark.parametrize(
    ("op", "shares", "is_asked"),
    [("act", False, False), ("call", False, False), ("act", True, True), ("decoding", False, True)],
)
def test_what_may_read_a_written_file_is_left_to_the_run(op: str, shares: bool, is_asked: bool) -> None:
    run = Run(Nobody())
    run.written.add("a.txt")
    act: Callable[[], Any] = lambda: None  # noqa: E731
    request = Request("key", EngineSpec("python", None), op, None, {}, lambda value: value, act=act, shares=shares)
    if is_asked:
        run.ask(request)
    else:
        with pytest.raises(Barrier, match="has written"):
            run.ask(request)


def test_only_files_of_the_system_are_written(tmp_path: Path) -> None:
    class Counting(io.RawIOBase):
        looks = 0

        @property
        def closed(self) -> bool:
            Counting.looks += 1
            return False

        def writable(self) -> bool:
            Counting.looks += 1
            return True

    over = io.TextIOWrapper(io.BufferedWriter(Counting()))
    looks = Counting.looks
    assert not is_output(Opaque(over))
    assert not is_output(Opaque(io.StringIO()))
    with (tmp_path / "a.txt").open("w") as file:
        assert is_output(Opaque(file))
        file.write = print  # type: ignore[assignment]
        assert not is_output(Opaque(file))
        del file.write
    assert not is_output(Opaque(file))
    assert Counting.looks == looks
