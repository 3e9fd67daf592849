"""The `teola` command, as a user meets it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from teola_plugin import __version__
from teola_plugin.cli import app
from teola_plugin.doctor import TESTED

PIPELINE = """
from langchain_core.runnables import RunnableLambda
chain = RunnableLambda(lambda x: x.upper()).with_config(run_name="shout")
count = 0
def changing(x):
    global count
    count += 1
    return count
unstable = RunnableLambda(changing)
given = []
def note(x):
    given.append(("invoke", x))
    return x
async def anote(x):
    given.append(("ainvoke", x))
    return x
noting = RunnableLambda(note, anote)
number = 7
"""
NO_ROOM = Path("/dev/full")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "app_under_test.py").write_text(PIPELINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "app_under_test", raising=False)
    return tmp_path


def teola(*args: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(app, args)


def test_version() -> None:
    assert teola("--version").output.strip() == f"teola-plugin {__version__}"


def test_without_arguments_it_helps() -> None:
    assert "demo" in teola().output


@pytest.mark.usefixtures("folder")
def test_compare() -> None:
    done = teola("compare", "app_under_test:chain", "-i", '"a"', "-i", "b", "--repeats", "1")
    assert done.exit_code == 0, done.output
    assert "equal" in done.output
    assert "nothing to optimize" in done.output


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("mode", ["invoke", "ainvoke"])
def test_compare_calls_as_it_is_told_with_json_or_a_text(mode: str) -> None:
    given = '{"a": 1}'
    done = teola("compare", "app_under_test:noting", "-i", given, "-i", "{b", "--mode", mode, "--repeats", "1")
    assert done.exit_code == 0, done.output
    seen = sys.modules["app_under_test"].given
    assert seen.count((mode, {"a": 1})) == seen.count((mode, "{b")) == len(seen) / 2 > 0


@pytest.mark.usefixtures("folder")
def test_compare_ends_with_1_if_something_differs() -> None:
    done = teola("compare", "app_under_test:unstable", "-i", "a", "--repeats", "1")
    assert done.exit_code == 1
    assert "DIFFERENCES" in done.output


def test_compare_reads_a_file_and_writes_a_page(folder: Path) -> None:
    (folder / "inputs.jsonl").write_text('"a"\n\nplain text\n', encoding="utf-8")
    done = teola("compare", "app_under_test:chain", "--inputs", "inputs.jsonl", "--repeats", "1", "--html", "page.html")
    assert done.exit_code == 0, done.output
    assert "<!doctype html>" in (folder / "page.html").read_text()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere:chain", "there is no module 'nowhere'"),
        ("app_under_test:nothing", "has no 'nothing'"),
        ("app_under_test", "is not MODULE:OBJECT"),
        ("./app_under_test:chain", "is not MODULE:OBJECT"),
        ("app_under_test:number", "int has none of the methods"),
    ],
)
def test_compare_says_what_is_wrong(target: str, said: str) -> None:
    done = teola("compare", target, "-i", "a")
    assert done.exit_code == 1
    assert said in done.output
    assert "Traceback" not in done.output


@pytest.mark.usefixtures("folder")
def test_compare_needs_an_input() -> None:
    assert teola("compare", "app_under_test:chain").exit_code == 2
    assert teola("compare", "app_under_test:chain", "--inputs", "missing.jsonl").exit_code == 2


def test_a_page_that_cannot_be_written_is_told_before_the_runs(folder: Path) -> None:
    for page in ("missing/page.html", str(folder)):
        done = teola("compare", "app_under_test:chain", "-i", "a", "--html", page)
        assert done.exit_code == 2, done.output


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("target", "said"), [("chain", "nothing to gain"), ("number", "int is no pipeline")])
def test_explain_says_why_not(target: str, said: str) -> None:
    done = teola("explain", f"app_under_test:{target}")
    assert done.exit_code == 1
    assert said in done.output
    assert len(done.output.splitlines()) <= 2, "and nothing else"


def test_demo_refuses_what_makes_no_sense() -> None:
    assert teola("demo", "--engines", "profile", "--model", "m").exit_code == 2
    assert teola("demo", "--repeats", "0").exit_code == 2
    assert teola("demo", "--framework", "haystack").exit_code == 2


def test_doctor_says_what_is_installed() -> None:
    done = teola("doctor")
    assert done.exit_code == 0, done.output
    assert "langchain_core" in done.output


@pytest.mark.parametrize(
    ("version", "is_tested"),
    [
        ("0.12.52.post1", True), ("0.14.0", True), ("0.14.25", True),
        ("0.12.51", False), ("0.13.6", False), ("0.14.26", False), ("0.15.0rc1", False),
    ],
)  # fmt: skip
def test_doctor_names_releases_outside_of_the_tested_range(
    version: str, is_tested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("teola_plugin.doctor._version", lambda module, _: version)
    monkeypatch.setattr("teola_plugin.doctor._import_error", lambda *_: "")
    assert ("tested with llama-index-core" not in teola("doctor").output) == is_tested


def test_the_tested_range_is_that_of_the_locks() -> None:
    locks = [
        Path(__file__).parents[1].joinpath(f"requirements/{name}.txt").read_text()
        for name in ("llamaindex-0.12", "llamaindex-0.14", "cpu")
    ]
    locked = [re.search(r"^llama-index-core==([0-9.]*[0-9])", lock, re.M)[1] for lock in locks]  # type: ignore[index]
    (old, _), (oldest, newest) = TESTED["llama_index.core"]
    assert locked == [old, oldest, newest]


def test_doctor_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("teola_plugin.doctor._version", lambda module, _: None if module == "chromadb" else "1.0")
    assert "pip install 'teola-plugin[chroma]'" in teola("doctor").output


def test_the_demo_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chromadb", None)
    monkeypatch.delitem(sys.modules, "teola_plugin.demo.langchain_kit", raising=False)
    done = teola("demo", "--engines", "profile", "--framework", "langchain", "--quick")
    assert done.exit_code == 1
    assert "needs the package chromadb: install teola-plugin[langchain" in done.output


@pytest.mark.skipif(not NO_ROOM.exists(), reason="only Linux has it")
def test_a_full_disk_is_told(folder: Path) -> None:
    command = [sys.executable, "-m", "teola_plugin.cli", "compare", "app_under_test:chain", "-i", "a", "--repeats", "1"]
    with NO_ROOM.open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=folder)
    assert done.returncode == 1
    assert "No space left" in done.stderr


def test_libraries_do_not_spoil_the_screen_and_ctrl_c_is_one_line(tmp_path: Path) -> None:
    """In a process of its own: descriptors and signals are real."""
    (tmp_path / "noisy.py").write_text(
        textwrap.dedent("""
        import os, signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in what a shell starts with &
        print("noise of a library")
        os.system("echo noise of a child")
        from langchain_core.runnables import RunnableLambda
        def wait(x):
            os.write(ready, b"x")
            import time
            time.sleep(60)
        ready = int(os.environ["READY_FD"])
        chain = RunnableLambda(wait)
    """)
    )
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "teola_plugin.cli", "compare", "noisy:chain", "-i", "a"],
        cwd=tmp_path, pass_fds=[write], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "READY_FD": str(write), "PYTHONPATH": str(Path(__file__).parent.parent)},
    )  # fmt: skip
    os.read(read, 1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    os.close(read)
    os.close(write)
    assert process.returncode == 130
    assert out.split() == ["stopped"]
    assert err == ""
